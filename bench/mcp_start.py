"""What an agent's MCP server costs: start to the answer of `initialize`, and memory, against a bare Python.

Memory is the resident set after tools/list, from the kernel; a bare Python waits for a line of input.
"""

from __future__ import annotations

import subprocess
import sys
import time

import common
from session import Session


def resident(pid: int) -> float:
    """Gives the resident memory of a process in MB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def times(figure: dict[str, float], base: dict[str, float], name: str) -> str:
    """Gives how many times the base a figure is."""
    return f"{figure[name] / base[name]:.1f}x"


def main() -> int:
    """Runs what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--runs", type=int, help="runs of each (default 20; quick 4)")
    asked = parser.parse_args()
    runs = asked.runs or (4 if asked.quick else 20)
    starts: dict[str, list[float]] = {"python": [], "rw mcp": []}
    sizes: dict[str, list[float]] = {"python": [], "rw mcp": []}
    with common.folder() as at:
        common.make_store(at / "store", files=50, commits=5)
        for number in range(runs + 1):
            began = time.perf_counter()
            bare = subprocess.Popen(
                [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.readline()"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=common.environment(),
            )  # fmt: skip
            assert bare.stdout is not None
            bare.stdout.readline()
            bare_ms = (time.perf_counter() - began) * 1000
            bare_mb = resident(bare.pid)
            bare.communicate(b"\n")
            began = time.perf_counter()
            session = Session(str(at / "store"), common.AGENT)
            server_ms = (time.perf_counter() - began) * 1000
            session.request("tools/list", {})
            server_mb = resident(session.child.pid)
            session.close()
            if number:  # the first of each reads the disk and writes byte code
                starts["python"].append(bare_ms)
                starts["rw mcp"].append(server_ms)
                sizes["python"].append(bare_mb)
                sizes["rw mcp"].append(server_mb)
    figures = {n: {"start_ms": common.median(starts[n]), "resident_mb": common.median(sizes[n])} for n in starts}
    base = figures["python"]
    common.table(
        f"a server process, median of {runs}",
        ("process", "start ms", "of python", "MB", "of python"),
        [
            (n, f["start_ms"], times(f, base, "start_ms"), f["resident_mb"], times(f, base, "resident_mb"))
            for n, f in figures.items()
        ],
    )  # fmt: skip
    common.finish("mcp_start", {"runs": runs, "processes": figures}, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
