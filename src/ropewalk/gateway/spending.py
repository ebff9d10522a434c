"""Spending: what the user lets a run, a day and a provider cost, in the table `[budget]` of endpoints.toml.

```toml
[budget]
run = 5.0                                       # dollars, of each run
day = { dollars = 20.0, tokens = 50_000_000 }
provider.anthropic = { dollars = 10.0 }         # of all time, by an endpoint's name
```
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.gateway.budget import DAY, Cap

Dollars = Annotated[float, Meta(ge=0, le=1e6)]


class Limit(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is a cap as the file has it."""

    dollars: Dollars | None = None
    tokens: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    requests: Annotated[int, Meta(ge=1, le=10**12)] | None = None


Bound = Dollars | Limit


class Bounds(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is the table; a number is dollars."""

    run: Bound | None = None
    day: Bound | None = None
    provider: dict[str, Bound] = {}

    def caps(self) -> dict[str, Cap]:
        """Gives the caps that hold for all lanes, by the names that the gateway counts under."""
        found = {f"provider:{name}": _cap(bound) for name, bound in self.provider.items()}
        return found if self.day is None else {**found, DAY: _cap(self.day)}

    def of_run(self, dollars: float | None = None, tokens: int | None = None) -> Cap | None:
        """Gives the cap of a run that names these itself; what it does not name is as the table has it."""
        known = _cap(self.run) if self.run is not None else Cap()
        made = Cap(known.dollars if dollars is None else dollars, known.tokens if tokens is None else tokens,
                   known.requests)  # fmt: skip
        return None if made == Cap() else made


def _cap(bound: Bound) -> Cap:
    return Cap(bound.dollars, bound.tokens, bound.requests) if isinstance(bound, Limit) else Cap(bound)
