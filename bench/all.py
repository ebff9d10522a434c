"""Runs every benchmark, one after another, and puts their figures into one file."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import common

SCRIPTS = ("land", "many", "checked", "workspaces", "sync", "board", "gateway", "plan", "run", "cages", "cat",
           "mcp_start", "tokens", "size")  # fmt: skip


def main() -> int:
    """Runs what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--full", action="store_true", help="the whole run (the default; the opposite of --quick)")
    parser.add_argument("--only", action="append", choices=SCRIPTS, help="run this one alone; may be given again")
    asked = parser.parse_args()
    if asked.quick and asked.full:
        parser.error("--quick or --full, not both")
    load = common.machine()["load_before"]
    if load > 0.5:
        print(f"the load is {load:.1f}: others work on this machine, so the figures are too low", file=sys.stderr)
    found: dict[str, object] = {}
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.only or SCRIPTS:
            out = Path(folder, f"{name}.json")
            words = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), "--json", str(out)]
            code = subprocess.run([*words, "--quick"] if asked.quick else words).returncode
            if code:
                failed.append(name)
            else:
                found[name] = json.loads(out.read_text(encoding="utf-8"))
    common.finish("all", {"quick": asked.quick, "benches": found, "failed": failed}, asked.json)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
