"""What a check is, and what a run of it found; without the code that runs one, which most commands never need."""

from __future__ import annotations

from typing import Literal

import msgspec


class Command(msgspec.Struct, frozen=True):
    """Is what is run: the words, the bound in seconds, and the hash of the environment that it is run in."""

    argv: tuple[str, ...]
    seconds: float
    environment: str


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is how one run ended.

    `infrastructure` is an end that says nothing about the tree: the bound, a signal, a full disk; `reason`
    names it.
    """

    kind: Literal["passed", "failed", "infrastructure"]
    rc: int
    seconds: float
    output: str = ""
    reason: str = ""


class Checked(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one run of a check as a land reports it; `cached` when it was made for another land, `cage` what held it."""

    tree: str
    rc: int
    seconds: float
    cached: bool = False
    flaky: bool = False
    cage: str = ""
