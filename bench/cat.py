"""`rw cat main:PATH` as a whole process, against `python -c pass` and `git cat-file`; a loose and a packed object.

The runs of all are interleaved; the figure is the median.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import common


def pack(store: Path) -> None:
    """Packs all objects of a store's repository and removes the loose files."""
    repo = store / "repo.git"
    ids = common.git(repo, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    common.git(repo, "pack-objects", "-q", "objects/pack/pack", stdin=ids.encode() + b"\n")
    common.git(repo, "prune-packed", "-q")


def timed(argv: list[str], env: dict[str, str], cwd: Path) -> float:
    """Gives the milliseconds of one whole process."""
    start = time.perf_counter()
    done = subprocess.run(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True)
    took = (time.perf_counter() - start) * 1000
    if done.returncode:
        raise SystemExit(f"{argv[0]} ended with {done.returncode}: {done.stdout!r} {done.stderr!r}")
    return took


def main() -> int:
    """Runs what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--runs", type=int, help="runs of each (default 40; quick 8)")
    asked = parser.parse_args()
    runs = asked.runs or (8 if asked.quick else 40)
    with common.folder() as at:
        loose, packed = at / "loose", at / "packed"
        for root in (loose, packed):
            common.make_store(root, files=200, commits=20)
        pack(packed)
        path = f"main:{common.file_name(7)}"
        env = common.environment(ROPEWALK_AGENT=common.AGENT)
        if common.rw_command()[0].endswith("rw"):
            env.pop("PYTHONPATH")
        ways = {
            "python -c pass": ([sys.executable, "-c", "pass"], env),
            "rw cat, loose": ([*common.rw_command(), "cat", path], {**env, "ROPEWALK_STORE": str(loose)}),
            "rw cat, packed": ([*common.rw_command(), "cat", path], {**env, "ROPEWALK_STORE": str(packed)}),
            "git cat-file, packed": (["git", f"--git-dir={packed}/repo.git", "cat-file", "-p", path], env),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for argv, variables in ways.values():
            timed(argv, variables, at)  # the first run reads the disk and writes byte code
        for _ in range(runs):
            for name, (argv, variables) in ways.items():
                times[name].append(timed(argv, variables, at))
    base = common.median(times["python -c pass"])
    figures = {
        name: {"median_ms": common.median(some), "times_python": common.median(some) / base}
        for name, some in times.items()
    }
    common.table(
        f"whole processes, median of {runs}, {' '.join(common.rw_command())}",
        ("process", "ms", "of python -c pass"),
        [(name, f["median_ms"], f"{f['times_python']:.1f}x") for name, f in figures.items()],
    )
    common.finish("cat", {"runs": runs, "command": common.rw_command(), "processes": figures}, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
