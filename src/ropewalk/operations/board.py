"""Boards: give one its law, make one for trying, and take a board's refs away."""

from __future__ import annotations

import os
import tempfile
from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.board import names, tasks
from ropewalk.board.base import Step
from ropewalk.core.errors import CasMismatchError, ClaimedError, InvalidError, NoBoardError, RemoteError
from ropewalk.core.ids import EMPTY_TREE
from ropewalk.core.process import git
from ropewalk.operations.context import Context
from ropewalk.operations.registry import Command, operation
from ropewalk.operations.task import ON_A_BOARD, BoardName
from ropewalk.store.oplog import Move

Where = Annotated[
    str, Meta(min_length=1, max_length=4096, description="the board; without it that of --board, or the store's own")
]
_AT_ONCE = 1000


class BoardInitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a board and whether flockwork's workers may run on it."""

    url: Where | None = None
    mixed: Annotated[bool, Meta(description="workers of flockwork run on it too")] = False
    board: BoardName | None = None


class BoardLaw(msgspec.Struct, frozen=True):
    """Is a board with its law: the version, and whether workers of flockwork may run on it."""

    board: str
    law: int
    mixed: bool


@operation(
    "board init",
    request=BoardInitRequest,
    response=BoardLaw,
    summary="Give a board its law; the same again changes nothing",
    errors=(*ON_A_BOARD, CasMismatchError, ClaimedError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("url?",)),
)
def board_init(ctx: Context, req: BoardInitRequest) -> BoardLaw:
    """Writes the law; a board without one is taken for flockwork's own."""
    board = ctx.board(req.url or req.board)
    board.refresh()
    law = tasks.init(board, ctx.agent, mixed=req.mixed)
    return BoardLaw(board.name, law.version, law.mixed)


class BoardScratchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes where to make it."""

    dir: (
        Annotated[str, Meta(max_length=4096, description="a new folder; without it one among the temporary ones")]
        | None
    ) = None
    mixed: Annotated[bool, Meta(description="workers of flockwork run on it too")] = False


@operation(
    "board scratch",
    request=BoardScratchRequest,
    response=BoardLaw,
    summary="Make a bare repository with an empty main and a board's law, for trying",
    errors=(InvalidError, RemoteError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("dir?",)),
)
def board_scratch(ctx: Context, req: BoardScratchRequest) -> BoardLaw:
    """Makes a board that is thrown away by removing its folder."""
    agent = ctx.agent
    if req.dir is None:
        folder = os.path.join(tempfile.mkdtemp(prefix="ropewalk-board-"), "board.git")
    else:
        folder = ctx.path(req.dir)
        if os.path.lexists(folder):
            raise InvalidError(f"{req.dir!r} is there already", hint="name a new folder", path=folder)
    os.makedirs(folder)
    git(folder, "init", "--quiet", "--bare", "--initial-branch=main")
    who = {f"GIT_{role}_{part}": text for role in ("AUTHOR", "COMMITTER")
           for part, text in (("NAME", agent), ("EMAIL", f"{agent.replace('/', '.')}@ropewalk.local"))}  # fmt: skip
    git(folder, "hash-object", "-w", "-t", "tree", "--stdin", stdin=b"")
    first = git(folder, "commit-tree", EMPTY_TREE, "-m", "An empty tree to begin with", extra_env=who).text()
    git(folder, "update-ref", "refs/heads/main", first)
    board = ctx.board(folder)
    board.refresh()
    law = tasks.init(board, agent, mixed=req.mixed)
    return BoardLaw(folder, law.version, law.mixed)


class BoardDropRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes a board, and that it is meant."""

    url: Where | None = None
    yes: Annotated[bool, Meta(description="really remove all tasks, claims and verdicts")] = False
    board: BoardName | None = None


class BoardDropped(msgspec.Struct, frozen=True):
    """Is how many refs there were, by kind; without `yes` they are there still."""

    board: str
    refs: dict[str, int]
    dropped: bool


@operation(
    "board drop",
    request=BoardDropRequest,
    response=BoardDropped,
    summary="Remove all of a board's refs, its archive too; what landed stays",
    errors=(*ON_A_BOARD, CasMismatchError, ClaimedError),
    writes=True,
    tool="",
    store=False,
    command=Command(positional=("url?",)),
)
def board_drop(ctx: Context, req: BoardDropRequest) -> BoardDropped:
    """Drops a board; without --yes it says what would go, and while a task is claimed it refuses."""
    from ropewalk.board import state

    board = ctx.board(req.url or req.board)
    board.refresh()
    listed = board.below(names.ROOT)
    if not listed:
        raise NoBoardError(f"there is no board at {board.name}", hint="`rw board init` makes one")
    counts: dict[str, int] = {}
    for name, _ in listed:
        kind = name[len(names.ROOT) :].split("/")[0]
        counts[kind] = counts.get(kind, 0) + 1
    if not req.yes:
        ctx.warnings.append("nothing was removed; --yes removes it")
        return BoardDropped(board.name, counts, False)
    busy = [s.id for s in state.look(board, everything=True).values() if s.state == "claimed"]
    if busy:
        raise ClaimedError(
            f"{busy[0]} is claimed", hint="end the attempts with `rw board evict TASK` first", tasks=busy
        )
    # what shows that there is a board goes last, so that a drop that was cut short can go on
    order = sorted(listed, key=lambda ref: (ref[0] == names.LAW, ref[0].startswith(names.SPECS), ref[0]))
    for start in range(0, len(order), board.most_moves or _AT_ONCE):
        part = order[start : start + (board.most_moves or _AT_ONCE)]
        board.push(Step("board_drop", ctx.agent, [Move(name, value, None) for name, value in part]))
        ctx.progress(f"{start + len(part)} of {len(order)} refs removed")
    return BoardDropped(board.name, counts, True)
