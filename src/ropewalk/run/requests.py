"""Requests: what agents of a run want of each other. A request is a task of the board, with a check, named after who
asked first; what is known of a region is what was noted of it and what its tasks left.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

import msgspec
from blake3 import blake3

from ropewalk.board import names, state, tasks
from ropewalk.board.base import Board
from ropewalk.board.claim import As
from ropewalk.board.state import Status
from ropewalk.core.errors import ClaimedError, InvalidError, NotFoundError
from ropewalk.lane import journal
from ropewalk.lane.door import Who
from ropewalk.plan.task import Task
from ropewalk.run.work import memories
from ropewalk.store.store import Store

HOPS = 3
"""Is how far requests go: a task, asked for by a task, that was asked for by one that a person made."""

MOST = 20
"""Is how many requests all the tasks that come from one of a person's may make."""

NOTES = "regions"
"""Is the folder of a store with what was noted of regions, a Markdown file for each."""

_REQUEST = re.compile(r"(?P<root>.+)\.r(?P<hop>[0-9])\.(?P<digest>[0-9a-f]{10})")
_ROOT = 80
_NOTE_BYTES, _SHOWN = 256 << 10, 8000
_WORDS = re.compile(r"\w{3,}")


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a request and how it stands.

    `is_new` says whether this call made it, `why` what it waits for, who has it, or how it ended.
    """

    id: str
    state: str
    why: str = ""
    title: str = ""
    landed: str = ""
    is_new: bool = False


def ask(board: Board, who: Who, about: str, what: str, check: str) -> Request:
    """Asks for a change by those who work on a task or a region; the same request again gives the one that is there.

    Raises `E_INVALID` for a request of no task, of one that is `HOPS` requests away from a person's, or past `MOST`,
    `E_NOT_FOUND` for what is neither a task nor a region.
    """
    if not who.task:
        raise InvalidError("this lane works on no task of a board, so it can't ask for changes", lane=who.lane)
    root, hop = _origin(who.task)
    if hop > HOPS:
        raise InvalidError(
            f"{who.task} was asked for itself, over {HOPS} tasks: requests go no further",
            hint="say in your last message what is missing", task=who.task, hops=HOPS,
        )  # fmt: skip
    board.refresh()
    pattern = _about(board, who, about, _digest(about, what, check, who.target))
    if (found := _same(board, pattern.id)) is not None:
        return _shown(found)
    if len(there := _of_root(board, root)) >= MOST:
        raise InvalidError(
            f"tasks that come from {root} have made {len(there)} requests already",
            hint="say in your last message what is missing", task=who.task, most=MOST,
        )  # fmt: skip
    title = " ".join(what.split())[:100]
    task = msgspec.structs.replace(
        pattern, id=f"{root}.r{hop}.{pattern.id}", check=check.strip(), title=title,
        description=f"{what.strip()}\n\nAsked for by task {who.task}, which goes on without it.",
    )  # fmt: skip
    new, _ = tasks.add(board, [task], who.agent)
    board.refresh()
    made = _settled(board, pattern.id, who) or state.need(board, task.id)
    assert made is not None
    return _shown(made, is_new=bool(new) and made.id == task.id)


def stands(board: Board, name: str) -> Request:
    """Gives how a request stands; `E_NOT_FOUND` when there is none."""
    board.refresh()
    found = state.need(board, name)
    if found is None or _REQUEST.fullmatch(name) is None:
        raise NotFoundError(f"there is no request {name!r}", hint="use the id that request_change gave", id=name)
    return _shown(found)


def _origin(task: str) -> tuple[str, int]:
    """Gives the task of a person's that a task comes from, and the hop of what it asks for."""
    found = _REQUEST.fullmatch(task)
    if found is None:
        return task[:_ROOT].rstrip("._-"), 1
    return found["root"], int(found["hop"]) + 1


def _digest(*parts: str) -> str:
    return blake3("\0".join(" ".join(part.split()) for part in parts).encode("utf-8")).hexdigest()[:10]


def _about(board: Board, who: Who, about: str, digest: str) -> Task:
    """Gives a task with all that follows from what it is about, and the digest as its id."""
    own = {who.task, _origin(who.task)[0]}
    found = state.need(board, about)
    if found is not None:
        if about in own:
            raise InvalidError(f"{about} is what you work on yourself", hint="do it, or name another task", task=about)
        task = found.spec.task
        # what is under way is not changed under its agent's hands
        needs = (about,) if found.state not in state.CLOSED and task.target == who.target else ()
        return Task(digest, "", needs=needs, owns=task.owns, modifies=task.modifies, region=task.region,
                    module=task.module, target=who.target)  # fmt: skip
    here = _region(board, about)
    if not here:
        regions = sorted({s.spec.task.region for s in state.look(board, everything=True).values()} - {""})
        raise NotFoundError(
            f"{about!r} is neither a task nor a region of this run",
            hint=f"regions: {', '.join(regions[:20])}" if regions else "name a task: this run has no regions",
            about=about,
        )  # fmt: skip
    bounded = all(s.spec.task.owns for s in here)
    owns = sorted({glob for s in here for glob in (*s.spec.task.owns, *s.spec.task.modifies)}) if bounded else []
    return Task(digest, "", owns=tuple(owns), region=about, target=who.target)


def _region(board: Board, region: str) -> list[Status]:
    return [s for s in state.look(board, everything=True).values() if region and s.spec.task.region == region]


def _requests(board: Board) -> Iterable[str]:
    for kind in (names.SPECS, names.HELD):
        for ref, _ in board.below(kind):
            if _REQUEST.fullmatch(ref[len(kind) :]):
                yield ref[len(kind) :]


def _of_root(board: Board, root: str) -> list[str]:
    return [name for name in _requests(board) if _origin(name)[0] == root]


def _live(board: Board, digest: str) -> list[Status]:
    """Gives the requests of a digest that were not given up."""
    listed = sorted({name for name in _requests(board) if name.endswith(f".{digest}")})
    found = state.look(board, only=listed) if listed else {}
    return [found[name] for name in listed if name in found and found[name].state != "cancelled"]


def _same(board: Board, digest: str) -> Status | None:
    return next(iter(_live(board, digest)), None)


def _settled(board: Board, digest: str, who: Who) -> Status | None:
    """Gives the one request of a digest; of several that were made at the same moment the first by name stays."""
    found = _live(board, digest)
    for other in found[1:]:
        try:
            tasks.cancel(board, other.id, As(who.agent.replace("/", "-")[:64], who.agent, who.agent.split("/")[0]),
                         f"it is the same as {found[0].id}")  # fmt: skip
        except (ClaimedError, InvalidError):
            continue  # somebody works on it already, or has done it
    return found[0] if found else None


def _shown(found: Status, *, is_new: bool = False) -> Request:
    landed = found.returned if found.state == "done" and found.returned else ""
    return Request(found.id, found.state, found.why, found.spec.task.name, landed, is_new)


# what is known of a region


def known(
    store: Store, board: Board | None, region: str, question: str, who: Who | None = None
) -> tuple[str, list[str]]:  # fmt: skip
    """Gives what is known of a region, what fits a question first, and where it comes from.

    Where nothing is known the words say so, and no place is named. `region` may also be a task, and then it is the one
    that this works in. `who` asks: what an agent noted for those who come after it is for the same module alone.
    """
    here: list[Status] = []
    remembered: list[tuple[str, str]] = []
    if board is not None:
        board.refresh()
        task = state.need(board, region)
        if task is not None:
            region = task.spec.task.region or region
            here = _region(board, region) or [task]
        else:
            here = _region(board, region)
        asker = state.need(board, who.task) if who is not None and who.task else None
        remembered = memories.asked(
            board, region, asker.spec.task if asker is not None else None, [one.spec.task for one in here],
            who.target if who is not None else "main",
        )  # fmt: skip
    parts = [(f"notes of {region}", text) for text in _notes(store, region)] + remembered + _left(store, here)
    if not parts:
        working = ", ".join(f"{s.id} ({s.state})" for s in here[:20])
        return (f"Nothing is noted of {region} yet." + (f" Its tasks: {working}." if working else "")), []
    wanted = {word.lower() for word in _WORDS.findall(question)}
    parts.sort(key=lambda part: -len(wanted & {word.lower() for word in _WORDS.findall(part[1])}))
    shown: list[str] = []
    sources: list[str] = []
    size = 0
    for source, text in parts:
        if shown and size + len(text) > _SHOWN:
            break
        shown.append(f"[{source}]\n{text[:_SHOWN]}")
        size += len(text)
        if source not in sources:
            sources.append(source)
    return "\n\n".join(shown), sources


def _notes(store: Store, region: str) -> list[str]:
    """Gives the paragraphs that were noted of a region."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", region):
        return []
    try:
        with open(os.path.join(store.layout.root, NOTES, f"{region}.md"), "rb") as file:
            text = file.read(_NOTE_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def _left(store: Store, here: Sequence[Status]) -> list[tuple[str, str]]:
    """Gives what the tasks of a region left: their titles, and the last words of their agents."""
    ended = {s.id: s for s in here if s.state in state.CLOSED}
    if not ended:
        return []
    words: dict[str, str] = {}
    for lane in journal.lanes(store):
        if lane.record.task in ended and lane.result is not None and lane.result.text:
            words.setdefault(lane.record.task, memories.without(lane.result.text))
    return [(f"task {name}, {s.state}", f"{s.spec.task.name}\n{words.get(name, '')}".strip()[:2000])
            for name, s in ended.items()]  # fmt: skip
