"""Divergence: how a branch of a repository at hand stands to the board's."""

from __future__ import annotations

import msgspec

from ropewalk.board import names
from ropewalk.board.base import Board


class Divergence(msgspec.Struct, frozen=True):
    """Is both heads and how many commits each has that the other lacks; `reason` says why that is not known."""

    board: str
    target: str
    local: str | None
    there: str | None
    ahead: int | None
    behind: int | None
    reason: str | None


def divergence(board: Board, git_dir: str, target: str = "main") -> Divergence:
    """Gives how a branch of the repository `git_dir` stands to the board's; nothing is fetched or written."""
    from ropewalk.core.process import git

    there = board.ref(names.branch(target))
    done = git(git_dir, "rev-parse", "--verify", "--quiet", f"{names.branch(target)}^{{commit}}", ok=(0, 1, 128))
    local = done.text() if done.code == 0 else None

    def say(reason: str | None, ahead: int | None = None, behind: int | None = None) -> Divergence:
        return Divergence(board.name, target, local, there, ahead, behind, reason)

    if local is None:
        return say(f"there is no branch {target} here")
    if there is None:
        return say(f"the board has no branch {target}")
    if local == there:
        return say(None, 0, 0)
    counted = git(git_dir, "rev-list", "--left-right", "--count", f"{local}...{there}", "--", ok=(0, 128))
    if counted.code != 0:
        return say(f"the board's commits are not here: `git fetch {board.name} {target}` brings them")
    ahead, behind = (int(word) for word in counted.text().split())
    return say(None, ahead, behind)
