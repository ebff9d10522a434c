"""What earlier lanes took, as estimates want it; and what tokens cost."""

from __future__ import annotations

from ropewalk.gateway import prices
from ropewalk.gateway.tokens import Tokens
from ropewalk.lane import journal
from ropewalk.plan.estimate import Past, Price
from ropewalk.store.store import Store

_LANES = 5_000
_OURS = ("plan", "chip")
"""Are the runs whose lanes did no task."""


def past(store: Store) -> tuple[Past, ...]:
    """Gives what the lanes of a store that came to a good end took, newest first."""
    found = []
    for lane in journal.lanes(store, limit=_LANES):
        result = lane.result
        if (
            result is None
            or result.state != "done"
            or lane.record.run in _OURS
            or result.cached_from
            or lane.record.imported
        ):
            continue
        tokens = result.tokens
        found.append(Past(
            lane.record.ingredients.model,
            tokens_in=None if tokens is None else float(tokens.input + tokens.cache_read + tokens.cache_write),
            tokens_out=None if tokens is None else float(tokens.output),
            seconds=result.seconds, money=result.dollars,
        ))  # fmt: skip
    return tuple(found)


def price(path: str | None = None) -> Price:
    """Gives what tokens of a model cost by the table of prices; None for a model that is not in it."""
    table = prices.read(path)

    def of(model: str, tokens_in: float, tokens_out: float) -> float | None:
        found = table.price(model)
        if found is None:  # Claude Code takes `sonnet` for whatever is called claude-sonnet-N
            found = next((one for name, one in table.models.items() if name.startswith(f"claude-{model}-")), None)
        return None if found is None else found.of(Tokens(round(tokens_in), output=round(tokens_out)))

    return of
