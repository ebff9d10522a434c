"""A plan for a repository that nobody knows: notes in three new folders, and a line that two agents edit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ropewalk.core.errors import RopewalkError
from ropewalk.core.ids import path_text
from ropewalk.plan.plan import Module, Plan
from ropewalk.plan.task import Task
from ropewalk.store import trees
from ropewalk.store.store import Store

GOAL = "Write notes from three sides, four of each, and say in one line of what is there who was here."
MAP = '{"parts": [], "tests": [], "notes": ["new folders alone are written, and one line of what is there"]}'
"""Is what the manager adds to the map of such a repository."""

_TEXT_MAX = 200_000
_PARTS = ("north", "south", "west")


def plan(store: Store, base: str) -> Plan:
    """Gives the plan for a commit: it is made of what the tree holds, so that it can be done in any.

    Its scripted agents wait for each other in a folder outside of the tree, which `ROPEWALK_DEMO` names.
    """
    texts = _texts(store, base)
    path, line = next(((p, found) for p, t in texts if (found := _unique_line(t))), ("ropewalk-demo/both.txt", ""))
    made: list[Task] = []
    for who, part in zip(("left", "right"), _PARTS, strict=False):
        barrier = {"barrier": "$ROPEWALK_DEMO/line", "count": 2}
        edit = ({"replace": path, "old": line, "new": f"{line.rstrip()} ({who})\n"} if line else
                {"put": path, "text": f"written by ({who})\n"})  # fmt: skip
        made.append(_task(f"both-{who}", part, f"Sign a line of {path} from the {who}, as another agent does, too.",
                          f"grep -q '({who})' {_quoted(path)}", [barrier, edit], on_conflict="both"))  # fmt: skip
    for part in _PARTS:
        first = [f"both-{'left' if part == 'north' else 'right'}"] if part != "west" else []
        for number in range(4):
            note = f"ropewalk-demo/{part}/note-{number}.md"
            steps: list[dict[str, object]] = [{"put": note, "text": f"# Note {number}\n\nWritten by an agent.\n"}]
            more: dict[str, object] = {}
            if part == "west" and number == 0:
                steps = [{"die_once": "$ROPEWALK_DEMO/killed"}, *steps]
            if part == "west" and number == 1:
                more, steps = {"on_failure": steps}, [{"put": note, "text": "# Note\n"}]
            needs = [*first, f"{_PARTS[0]}-0"] if part == "west" and number == 3 else first
            made.append(_task(f"{part}-{number}", part, f"Write note {number} of the {part}.",
                              f"grep -q 'by an agent' {note}", steps, needs, **more))  # fmt: skip
    return Plan("Notes from three sides", tuple(Module(part, f"ropewalk-demo/{part}") for part in _PARTS), tuple(made))


def _task(name: str, module: str, words: str, check: str, steps: Sequence[object], needs: Sequence[str] = (),
          **script: object) -> Task:  # fmt: skip
    block = msgspec.json.encode({**script, "steps": list(steps)}).decode()
    return Task(name, check, f"{words}\n\n```script\n{block}\n```", needs=tuple(needs), module=module, role="Builder",
                class_="build")  # fmt: skip


def _quoted(path: str) -> str:
    from shlex import quote

    return quote(path)


def _texts(store: Store, base: str) -> list[tuple[str, str]]:
    """Gives up to 12 text files of a commit."""
    found: list[tuple[str, str]] = []
    for path, entry in trees.walk(store.objects, store.objects.commit(base).tree):
        if entry[0] not in (trees.FILE, trees.EXEC) or path.startswith(b".git") or b"/.git" in path:
            continue
        try:
            data = store.objects.read(entry[1].hex(), "blob")
            name, text = path.decode("utf-8"), data.decode("utf-8")
        except (UnicodeDecodeError, RopewalkError):
            continue
        if 0 < len(data) <= _TEXT_MAX and "\0" not in text and "\r" not in text and path_text(path) == name:
            found.append((name, text))
        if len(found) == 12:
            break
    return found


def _unique_line(text: str) -> str | None:
    """Gives a line with its end that a file holds once."""
    return next(
        (line + "\n" for line in text.split("\n")[:200] if len(line) > 10 and text.count(line + "\n") == 1), None
    )
