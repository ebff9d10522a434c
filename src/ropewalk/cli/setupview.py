"""What was set up as text, for a person; no key is in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_DIRTY = {"ask": "ask whether to start without it", "start": "start without it", "stop": "do not start"}


def of(operation: str) -> Callable[[dict[str, Any]], list[str]] | None:
    """Gives the view of an operation; None for one that has none here."""
    return _setup if operation == "setup" else None


def _setup(result: dict[str, Any]) -> list[str]:
    lines = [f"tasks are done by {result['harness']}{', ' + result['model'] if result['model'] else ''}"]
    lines.append(
        f"agents at once: {result['workers']} (told from {result['counted']}: {result['modules']} modules, at most"
        f" {result['most_at_once']} at once, {result['recommended']} worth having)"
    )
    manager, own = ", ".join(result["manager"]), ", ".join(result["endpoints"])
    lines.append(f"endpoints: {own or 'all'}; the manager's: {manager or 'all'}")
    for one in result["probed"]:
        key = " (with a key)" if one["has_key"] else ""
        lines.append(f"  {one['name']} {one['url']}{key}: {one['verdict']}")
        lines += [f"    {words}" for words in one.get("found", [])]
    lines.append(f"where you have uncommitted work, runs {_DIRTY[result['dirty']]}")
    lines += [f"wrote {path}" for path in result["written"]] or ["nothing is other than before"]
    return [*lines, 'next: rw run "what is to be done"']
