"""How a request may fail, by name.

`eNNN` answers with that HTTP status in the wire format's own words, `eNNNraS` with Retry-After (S seconds, 1 if none
is named), too; `always429` answers everything so; `ctx` says the context is too long. `hang` never answers, `stall`
begins and falls silent, `malformed` sends what can't be parsed, `trunc` cuts the connection within the answer, `empty`
is a 200 without a body, `reset` resets the connection, `sseerr` puts an error into the stream.
"""

from __future__ import annotations

import re

import msgspec

_BROKEN = ("hang", "stall", "malformed", "trunc", "empty", "reset", "sseerr")
_STATUS = re.compile(r"e([45]\d\d)(?:ra(\d*))?")
_WORDS = {
    400: "scripted: the request is invalid",
    401: "scripted: the key is invalid",
    403: "scripted: the key may not do this",
    404: "scripted: there is no such model",
    429: "scripted: too many requests",
    529: "scripted: overloaded",
}


class Fault(msgspec.Struct, frozen=True):
    """Is a way to fail; `first` is the step it begins at, `times` how often a step fails so (0: always)."""

    name: str
    status: int = 0
    retry_after: int | None = None
    first: int = 0
    times: int = 0

    @property
    def message(self) -> str:
        """Is what the error says."""
        return _WORDS.get(self.status, f"scripted error {self.status}")


def fault(name: str, first: int = 0, times: int = 0) -> Fault | None:
    """Gives the fault of a name, nothing when there is none."""
    if name == "always429":
        return Fault(name, 429, 1)
    if name == "ctx":
        return Fault(name, 400, None, first, times)
    if name in _BROKEN:
        return Fault(name, 0, None, first, times)
    if found := _STATUS.fullmatch(name):
        wait = None if found[2] is None else int(found[2] or 1)
        return Fault(name, int(found[1]), wait, first, times)
    return None
