"""What an agent is told: its task, and in a further turn what was wrong with what it did."""

from __future__ import annotations

from typing import Any

import msgspec

from ropewalk.board import runs
from ropewalk.board.wire import Spec
from ropewalk.plan.task import Task
from ropewalk.run.planner import briefs
from ropewalk.store.store import Store
from ropewalk.workspace import setup

_OUTPUT = 6000


def whole(store: Store, tree: str, spec: Spec) -> str:
    """Gives the prompt of a task on a tree: with its role's card, the operator's rules and what was decided, if any."""
    policy = setup.policy_of(store)
    told, decided = briefs.rules(policy), briefs.decided(store, tree, policy)
    if not briefs.is_role(spec.task.role) and not told.held and not decided:
        return of_task(spec)
    return of_task(spec, briefs.brief(spec.task, told, decided).text)


def of_task(spec: Spec, brief: str = "") -> str:
    """Gives the prompt of a task: its brief where it has one, else what it says, has to pass, and may write."""
    task = spec.task
    parts = [brief] if brief else _plain(spec)
    if task.reply is not None:
        shape = msgspec.json.format(msgspec.json.encode(task.reply)).decode("utf-8")
        parts.append(f"Your last message has to be JSON, and nothing else, that this JSON Schema allows:\n\n{shape}")
    return "\n\n".join(parts) + "\n"


def _plain(spec: Spec) -> list[str]:
    task = spec.task
    words = task.description.strip() or spec.brief.strip() or task.id
    parts = [task.title, words] if task.title and task.title not in words[:400] else [words]
    if task.owns or task.modifies:
        parts.append("Write these paths alone: " + ", ".join((*task.owns, *task.modifies)))
    if task.check:
        parts.append(f"The task is done when this passes at the top of the tree:\n\n    {task.check}")
    return parts


def message(task: Task, attempt: str) -> str:
    """Gives the message of a task's change: in a run its title, elsewhere the task's name on the board."""
    if runs.of_task(task.id):
        return f"{task.name}\n\nTask: {task.id}\nAttempt: {attempt}\n"
    return f"fix {task.id}\n\n{task.name}\n\nAttempt: {attempt}\n"


def after(how: str, rc: int, words: str, task: str, turn: int, of: int) -> str:
    """Gives the prompt of a further turn after one whose change did not land."""
    if how == "refused":
        return after_refusal(words, task, turn, of)
    return (after_nothing if how == "unchanged" else after_failure)(rc, words, task, turn, of)


def after_failure(rc: int, words: str, task: str, turn: int, of: int) -> str:
    """Gives the prompt after the check failed, with its output and the whole task."""
    how = "did not end in its time" if rc == 124 else f"ended with {rc}"
    said = words.strip()[-_OUTPUT:] or "(it printed nothing)"
    return (
        f"The check of this task {how} on the tree with your change, merged with what others landed. This is attempt"
        f" {turn} of {of}. What you did so far is in the tree; mend it.\n\n{_fenced(said)}\n\nThe task is:\n\n"
        f"{task}"
    )


def after_nothing(rc: int, words: str, task: str, turn: int, of: int) -> str:
    """Gives the prompt after an agent changed nothing though the check fails."""
    said = words.strip()[-_OUTPUT:] or "(it printed nothing)"
    return (
        f"No file was changed, and the check of this task ends with {rc}. This is attempt {turn} of {of}.\n\n"
        f"{_fenced(said)}\n\nThe task is:\n\n{task}"
    )


def after_refusal(words: str, task: str, turn: int, of: int) -> str:
    """Gives the prompt after a change that may not land."""
    return (
        f"The change can't land: {words.strip()[-_OUTPUT:]}\nThis is attempt {turn} of {of}. What you did so far is in"
        f" the tree; mend it.\n\nThe task is:\n\n{task}"
    )


def after_cut(text: str) -> str:
    """Gives the prompt for an agent that was cut off in the middle of its turn, and goes on in its session."""
    words = "You were cut off before you came to an end. What you did so far is in the tree; go on with it."
    return text if text.startswith(words) else f"{words}\n\n{text}"


def after_full(text: str) -> str:
    """Gives the prompt for an agent that begins a new session, because the one before had grown too large."""
    words = "The session before was too large for its model. What was done so far is in the tree; go on with it."
    return text if text.startswith(words) else f"{words}\n\n{text}"


def after_conflict(report: dict[str, Any], task: str) -> str:
    """Gives the prompt after a conflict: both sides are in the tree."""
    return f"{conflict_words(report)}\n\nThe task is:\n\n{task}"


def conflict_words(report: dict[str, Any]) -> str:
    """Gives what an agent is told of a conflict."""
    lines = ["Your change conflicts with what others landed meanwhile. Their work is now in your tree, and these",
             "files hold both sides between conflict markers. Edit each so that the intent of both is kept and no",
             "marker is left; then end.", ""]  # fmt: skip
    for file in report["files"]:
        last = file.get("last_changed") or {}
        who = f", last changed by {last['agent']}" if last.get("agent") else ""
        lines.append(f"- {file['path']} ({', '.join(file['kinds'])}{who}) {file.get('note', '')}".rstrip())
    return "\n".join(lines)


def _fenced(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))
