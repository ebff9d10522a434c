"""Pushes into a store: each is an operation, held against the store's rules, and told in git's own words.

git hands the commands of a push to two hooks. `pre-receive` sees them while the objects are still apart, and says
what this caller may not do. `proc-receive` moves the refs, through the store: a branch or tag by compare-and-swap, a
push to `refs/land/BRANCH` by landing on that branch.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

from ropewalk.core.errors import (
    CasMismatchError,
    ConflictError,
    FencedError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    RopewalkError,
)
from ropewalk.core.ids import HEX40, check_ref, short_ref
from ropewalk.remote.tokens import Rights
from ropewalk.store import adoption, land, lineage, projection, refs
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store

LAND = "refs/land/"
BOARD = "refs/swarm/"
HISTORY, ARCHIVE = BOARD + "log", BOARD + "archive/"
INDEX = (BOARD + "open/", BOARD + "locks/", BOARD + "queue/")
"""Are refs of a board that follow from others."""

ZERO = "0" * 40
MANY = 10
"""How many refs a push deletes at most without the push option `delete-many`."""

ALLOW = ("allow-revert", "allow-reland", "allow-mass-delete")
"""Are the push options that say what a push that lands does on purpose."""

STALE = "stale info"
"""Is what git says of a race that was lost; clients know it."""

_SIZE = re.compile(rb"[0-9a-fA-F]{4}\Z")
_KEYS = uuid.UUID("6f1d3c1e-7a5b-4c0e-9d0e-2f6f0a7d9b11")


class Command(NamedTuple):
    """Is one ref of a push: its old and new ids (`ZERO`: none) and its full name."""

    old: str
    new: str
    ref: str


class Push(NamedTuple):
    """Is a push: who makes it with which rights, its options, and whether all of it or nothing is to happen.

    `is_known` says that a token proves who it is.
    """

    agent: str
    rights: Rights
    options: Sequence[str] = ()
    atomic: bool = False
    is_known: bool = False


class Answer(NamedTuple):
    """Is what becomes of one command: None or why not, and lines for the person."""

    ref: str
    refused: str | None
    lines: Sequence[str] = ()


Judge = Callable[[Store, Sequence[Command], Push], Mapping[str, str]]
"""Gives which refs of a push are refused by what they mean, each with the reason."""


def parse(lines: Sequence[str]) -> list[Command]:
    """Gives the commands of lines `OLD NEW REF`; `E_INVALID` for anything else."""
    found = []
    for line in lines:
        words = line.rstrip("\n").split(" ", 2)
        if len(words) != 3 or not HEX40.match(words[0]) or not HEX40.match(words[1]):
            raise InvalidError(f"not a command of a push: {line[:100]!r}")
        found.append(Command(*words))
    return found


def refusals(commands: Sequence[Command], push: Push) -> list[str]:
    """Gives what a push may not do, before any of its objects is kept; nothing when it may go on."""
    found = []
    for one in commands:
        why = push.rights.refuses(one.ref, delete=one.new == ZERO)
        if why is not None:
            found.append(f"{short_ref(one.ref)}: {why}")
        elif one.ref.startswith(LAND) and one.new == ZERO:
            found.append(f"{one.ref}: there is nothing to delete; it only lands")
        elif not one.ref.startswith(("refs/heads/", "refs/tags/", LAND, BOARD)):
            found.append(f"{one.ref}: pushes go to branches, tags, {LAND}BRANCH and the board's refs")
    deleted = _lost(commands)
    if deleted > MANY and "delete-many" not in push.options:
        found.append(f"{deleted} refs would be deleted; push with `-o delete-many` if that is meant")
    return found


def _lost(commands: Sequence[Command]) -> int:
    """Gives how many refs a push deletes that it keeps nowhere else, and that nothing is made from anew."""
    kept = {one.new for one in commands}
    is_history = any(one.ref == HISTORY and one.new != ZERO for one in commands)
    gone = [one for one in commands if one.new == ZERO and one.old not in kept and not one.ref.startswith(INDEX)]
    if is_history:
        return sum(not one.ref.startswith(BOARD) for one in gone)
    # what is archived may say there why, and is another object then
    was = {one.old for one in commands}
    return len(gone) - sum(one.ref.startswith(ARCHIVE) and one.old == ZERO and one.new not in was for one in commands)


def receive(store: Store, commands: Sequence[Command], push: Push, judge: Judge | None = None) -> list[Answer]:
    """Moves the refs of a push through the store; gives an answer for each, in order.

    The refs that can move do so as one operation, and what lands lands by itself, after them. With `atomic` all move
    or none. Whoever lost a race is shown the refs as they are. `judge` is asked within the transaction.
    """
    if push.atomic:
        answers = _together(store, commands, push, judge)
    else:
        found = _moved(store, [one for one in commands if not one.ref.startswith(LAND)], push, judge)
        answers = [found.get(one.ref) or _one(store, one, push, judge) for one in commands]
    if any(answer.refused == STALE for answer in answers):
        # the client was shown an old value: what is in repo.git is made to say what the store says (A38)
        projection.doubt_refs(store)
    store.show()
    return answers


def _moved(store: Store, commands: Sequence[Command], push: Push, judge: Judge | None) -> dict[str, Answer]:
    """Moves what can move as one operation; gives the answers by ref, without those that have to try by themselves."""
    answers: dict[str, Answer] = {}
    moves = []
    able = []
    for one in commands:
        try:
            moves.append(_checked(store, one))
            able.append(one)
            answers[one.ref] = Answer(one.ref, None)
        except RopewalkError as error:
            answers[one.ref] = _refused(one.ref, error)
    try:
        if moves:
            _move(store, able, moves, push, judge)
    except RopewalkError:
        return {}
    return answers


def _move(
    store: Store, commands: Sequence[Command], moves: Sequence[Move], push: Push, judge: Judge | None
) -> None:  # fmt: skip
    def check() -> None:
        found = judge(store, commands, push) if judge is not None else {}
        for ref, why in found.items():
            raise ForbiddenError(why, ref=ref, refused=dict(found))

    refs.move(store, push.agent, moves, "push", check)


def _one(store: Store, one: Command, push: Push, judge: Judge | None) -> Answer:
    try:
        if one.ref.startswith(LAND):
            return _land(store, one, push)
        _move(store, [one], [_checked(store, one)], push, judge)
        return Answer(one.ref, None)
    except RopewalkError as error:
        return _refused(one.ref, error)


def _together(store: Store, commands: Sequence[Command], push: Push, judge: Judge | None) -> list[Answer]:
    if len(commands) == 1:
        return [_one(store, commands[0], push, judge)]
    lands = [one for one in commands if one.ref.startswith(LAND)]
    if lands:
        return [Answer(one.ref, "an atomic push can't land: push what lands by itself") for one in commands]
    moves = []
    for one in commands:
        try:
            moves.append(_checked(store, one))
        except RopewalkError as error:
            told = _refused(one.ref, error)
            return [told if other is one else Answer(other.ref, told.refused) for other in commands]
    try:
        _move(store, commands, moves, push, judge)
    except RopewalkError as error:
        return [_refused(one.ref, error) for one in commands]
    return [Answer(one.ref, None) for one in commands]


def _checked(store: Store, one: Command) -> Move:
    """Gives the move of a command; `E_INVALID` for one by which history would be lost."""
    ref = check_ref(one.ref)
    old, new = (None if oid == ZERO else oid for oid in (one.old, one.new))
    adoption.adopt(store, ref)
    if store.ref(ref) != old:
        raise CasMismatchError(f"{short_ref(ref)} has moved", ref=short_ref(ref), expected=old, actual=store.ref(ref))
    if ref.startswith(BOARD):
        return Move(ref, old, new)
    if ref.startswith("refs/tags/"):
        if old is not None:
            raise InvalidError("a tag is not moved or deleted by a push", hint="use `rw ref set` or `rw ref delete`")
        return Move(ref, old, new)
    if new is None:
        raise InvalidError("a branch is not deleted by a push", hint="use `rw ref delete NAME --expect ID`")
    if store.objects.kind(new) != "commit":
        raise InvalidError("a branch points to a commit")
    if old is not None and not lineage.ancestor(store, old, new):
        raise InvalidError("non-fast-forward: it would lose commits", hint="fetch and merge, or push to refs/land/")
    return Move(ref, old, new)


def _land(store: Store, one: Command, push: Push) -> Answer:
    target = check_ref("refs/heads/" + one.ref[len(LAND) :])
    if store.ref(target) is None:
        raise NotFoundError(f"there is no branch {short_ref(target)!r} to land on")
    adoption.secure(store, one.new)
    allowed = [name in push.options for name in ALLOW]

    def ask(key: str | None) -> land.Landed:
        revert, again, delete = allowed
        return land.land(store, land.request(agent=push.agent, change=one.new, ref=target, key=key, allow_revert=revert,
                                             allow_reland=again, allow_mass_delete=delete))  # fmt: skip

    # pushing the same again after an answer that was lost is answered with the first land (A36)
    named = f"{target} {one.new} {push.agent} {allowed}"
    done = ask(str(uuid.uuid4() if "allow-reland" in push.options else uuid.uuid5(_KEYS, named)))
    head = store.ref(target)
    if done.status == "replayed" and (head is None or not lineage.ancestor(store, done.landed, head)):
        done = ask(None)  # what landed then was taken back: the answer is what is said of that now
    how = "landed" if done.status != "up_to_date" else "up to date"
    return Answer(one.ref, None, [f"{how} {done.landed} on {done.onto}", *store.warnings])


def _refused(ref: str, error: RopewalkError) -> Answer:
    """Gives an error in the words that git's clients show, the report of a conflict as lines."""
    if isinstance(error, (CasMismatchError, FencedError)):
        return Answer(ref, STALE)
    if isinstance(error, ForbiddenError) and error.details.get("refused"):
        # the words are what clients see beside the ref; the others of the same push went down with it
        why = error.details["refused"].get(ref) or f"{short_ref(error.details['ref'])}: {error.message}"
        return Answer(ref, str(why).replace("\n", " ")[:900])
    hint = error.hint.replace("--allow-", "-o allow-")
    if not isinstance(error, ConflictError) or "report" not in error.details:
        return Answer(ref, f"{error.code} {error.message}".replace("\n", " ")[:900], [f"hint: {hint}"])
    lines = []
    for file in error.details["report"]["files"]:
        lines.append(f"conflict: {', '.join(file['kinds'])} {file['path']}")
        for hunk in file.get("hunks", [])[:5]:
            for side, mark in (("base", "|"), ("ours", "-"), ("theirs", "+")):
                text = (hunk.get(side) or {}).get("text") or ""
                lines += [f"  {mark} {line}" for line in text.splitlines()[:20]]
    lines.append("- is yours, + is what landed before: fetch, merge, and push again")
    return Answer(ref, f"{error.code} {error.message}".replace("\n", " ")[:900], lines)


# git's packet lines


def packets(stream: BinaryIO) -> Iterator[bytes | None]:
    """Gives packet lines without their line ends, None for a flush; ends with the stream. `E_INVALID` for others."""
    while True:
        head = stream.read(4)
        if not head:
            return
        size = int(head, 16) if _SIZE.match(head) else 1
        text = stream.read(size - 4) if size > 4 else b""
        if 0 < size < 4 or len(text) != max(0, size - 4):
            raise InvalidError(f"not a packet line: {head + text[:40]!r}", hint="this is for git to call")
        yield text.removesuffix(b"\n") if size else None


def packet(text: bytes) -> bytes:
    """Gives a packet line."""
    return b"%04x%s" % (len(text) + 4, text)


FLUSH = b"0000"


def converse(
    stream: BinaryIO, write: Callable[[bytes], object], act: Callable[[list[Command], list[str], bool], list[Answer]]
) -> None:
    """Speaks git's protocol of proc-receive, version 1, and lets `act` decide on (commands, options, atomic)."""
    incoming = packets(stream)
    first = next(incoming, None) or b""
    version, _, features = first.partition(b"\0")
    if version != b"version=1":
        raise InvalidError(f"git speaks another protocol: {version[:50]!r}")
    offered = features.split(b" ")
    next(incoming, None)  # the flush
    write(packet(b"version=1\0push-options atomic\n") + FLUSH)
    lines = [text.decode("utf-8", "surrogateescape") for text in iter(lambda: next(incoming, None), None)]
    options: list[str] = []
    if b"push-options" in offered:
        options = [text.decode("utf-8", "replace") for text in iter(lambda: next(incoming, None), None)]
    out = b""
    for answer in act(parse(lines), options, b"atomic" in offered):
        name = answer.ref.encode("utf-8", "surrogateescape")
        said = (
            b"ok " + name
            if answer.refused is None
            else b"ng " + name + b" " + answer.refused.encode("utf-8", "backslashreplace")
        )
        out += packet(said + b"\n")
    write(out + FLUSH)
