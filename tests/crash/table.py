"""Makes the tables of docs/reliability.md from a sweep's rows: `python -m tests.crash.table ROWS.jsonl`."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- sweep -->", "<!-- /sweep -->"
TITLES = {
    "kill": "SIGKILL",
    "error=EIO": "EIO, once",
    "error=ENOSPC": "ENOSPC, once",
    "error=ENOSPC+": "ENOSPC, for good",
}


def table(rows: list[dict[str, Any]], failed: dict[tuple[str, str], int]) -> str:
    """Gives the tables of noted points, one row an operation."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["operation"]][row["kind"]].append(row)
    kinds = [k for k in TITLES if any(k in by for by in groups.values())]
    lines = ["| operation | mutating system calls | " + " | ".join(f"{TITLES[k]}: tried, failed" for k in kinds) + " |"]
    lines.append("|---|---|" + "---|" * len(kinds))
    totals = dict.fromkeys(kinds, 0)
    for operation, by in groups.items():
        cells = []
        for kind in kinds:
            count = len({tuple(row["point"]) for row in by.get(kind, [])})
            totals[kind] += count
            cells.append(f"{count}, {failed.get((operation, kind), 0)}")
        points = max(row["points"] for rows in by.values() for row in rows)
        lines.append(f"| {operation} | {points} | " + " | ".join(cells) + " |")
    lines.append("| all | | " + " | ".join(str(totals[k]) for k in kinds) + " |")
    return "\n".join(lines)


def main() -> int:
    """Puts the tables into the page; a second argument names the test runner's list of failed tests."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    failed: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        if row.get("failed"):
            failed[row["operation"], row["kind"]] += 1
    seeds = sorted({row["seed"] for row in rows})
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    note = f"Seed {', '.join(map(str, seeds))}."
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows, failed)}\n\n{note}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
