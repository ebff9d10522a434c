"""Makes the table of docs/reliability.md from a sweep's rows: `python -m tests.crash.table ROWS.jsonl`."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from .sweep import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- sweep -->", "<!-- /sweep -->"
TITLES = {"kill": "SIGKILL", "EIO": "EIO, once", "EIO for good": "EIO, for good", "ENOSPC": "ENOSPC, once",
          "ENOSPC for good": "ENOSPC, for good"}  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """Gives the table of noted points, one row an operation; a point noted again counts by its last outcome."""
    groups: dict[str, dict[str, dict[tuple[Any, ...], bool]]] = defaultdict(lambda: defaultdict(dict))
    calls: dict[str, int] = defaultdict(int)
    for row in rows:
        groups[row["operation"]][row["kind"]][tuple(row["point"])] = row["failed"]
        calls[row["operation"]] = max(calls[row["operation"]], row["points"])
    kinds = [k for k in TITLES if k in KINDS and any(k in by for by in groups.values())]
    lines = ["| operation | mutating system calls | " + " | ".join(f"{TITLES[k]}: tried, failed" for k in kinds) + " |"]
    lines.append("|---|---|" + "---|" * len(kinds))
    for operation, by in groups.items():
        cells = [_cell(list(by[kind].values())) for kind in kinds]
        lines.append(f"| {operation} | {calls[operation]} | " + " | ".join(cells) + " |")
    sums = [_cell([bad for by in groups.values() for bad in by[kind].values()]) for kind in kinds]
    lines.append(f"| all | {sum(calls.values())} | " + " | ".join(sums) + " |")
    return "\n".join(lines)


def _cell(outcomes: list[bool]) -> str:
    return f"{len(outcomes)}, {sum(outcomes)}"


def main() -> int:
    """Puts the table into the page."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    seeds = sorted({row["seed"] for row in rows})
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    note = f"Seed {', '.join(map(str, seeds))}."
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n\n{note}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
