"""Makes the table of damage from a run's rows: `RWTEST_DAMAGE_RESULTS=ROWS.jsonl` notes them.

`python -m tests.damage.table ROWS.jsonl` prints it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DAMAGES = ("flip", "truncate", "delete", "old copy")


def cell(row: dict[str, Any] | None) -> str:
    """Gives what a cell of the table says: the findings' kinds, and what became of it."""
    if row is None:
        return ""
    found = ", ".join(f"`{kind}`" for kind in row["kinds"]) or "nothing"
    if row["outcome"] == "mended":
        after = "mended"
    elif row["outcome"] == "harmless":
        after = "harmless"
    elif row["outcome"] == "not known":
        after = "can't be known"
    elif row["lost"]:
        count = row["lost"]
        after = f"{count} object{'s' if count > 1 else ''} lost without a backup, listed"
    elif row["left"]:
        after = "listed"
    else:
        after = "mended; lost records listed"
    if row["rebuild"]:
        after += " (`--rebuild`)"
    return f"{found}: {after}"


def table(rows: list[dict[str, Any]]) -> str:
    """Gives the table, one row a class of file."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], {})[row["damage"]] = row
    lines = ["| file | " + " | ".join(DAMAGES) + " |", "|---|" + "---|" * len(DAMAGES)]
    for group, by in groups.items():
        lines.append(f"| {group} | " + " | ".join(cell(by.get(damage)) for damage in DAMAGES) + " |")
    return "\n".join(lines)


def main() -> int:
    """Prints the table of the noted cells, in the order of their declaration."""
    from tests.damage.test_matrix import order

    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    places = order()
    print(table(sorted(rows, key=lambda row: places.index(f"{row['group']}, {row['damage']}"))))
    return 0


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]
    sys.exit(main())
