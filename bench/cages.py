"""What a cage costs a check, and what the tripwire costs a lane without one.

checks    `true` on a tree of 2,000 files: bare, at level files, and at level full, their rounds interleaved
tripwire  a checkout of 20,000 files: its first record, a further one, and a comparison
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import common


def timed(what: Callable[[], object]) -> float:
    """Gives how many milliseconds something took."""
    began = time.perf_counter()
    what()
    return (time.perf_counter() - began) * 1000


def checks(base: Path, rounds: int, files: int) -> dict[str, float]:
    """Gives the median milliseconds of a check at each level, with its checkout."""
    from ropewalk.core.errors import CageUnavailableError
    from ropewalk.lane.cage.checks import CagedChecks
    from ropewalk.run.work import evidence
    from ropewalk.store.store import Store

    head = common.make_store(base / "store", files=files, commits=1)
    cages: dict[str, CagedChecks | None] = {"none": None}
    for level in ("files", "full"):
        try:
            cages[level] = CagedChecks(level)
        except CageUnavailableError as error:
            print(f"{level}: {error.message}", file=sys.stderr)
    found: dict[str, list[float]] = {level: [] for level in cages}
    base.chmod(0o755)
    with Store(str(base / "store")) as store:
        for number in range(rounds + 1):
            for level, cage in cages.items():
                how = evidence.orders(store, "true", 60.0, str(base / "checks"), cage=cage)
                began = time.perf_counter()
                verdict = evidence.look(store, head, how)
                if verdict is None or verdict.kind != "passed":
                    raise SystemExit(f"a check at level {level} did not pass: {verdict}")
                if number:
                    found[level].append((time.perf_counter() - began) * 1000)
    return {level: statistics.median(times) for level, times in found.items()}


def wire(base: Path, rounds: int, files: int) -> dict[str, float]:
    """Gives the milliseconds of a first record of a checkout, of a further one, and of a comparison."""
    from ropewalk.lane.cage import tripwire

    folder = base / "checkout"
    for n in range(files):
        path = folder / common.file_name(n)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(common.text(n, 1500))
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "made")):
        common.git(folder, *words)
    time.sleep(1.1)  # git reads again what is as young as its index
    common.git(folder, "status")
    copies = str(base / "copies")
    last = tripwire.record(str(folder), copies)
    first = [timed(lambda: tripwire.record(str(folder), copies)) for _ in range(rounds)]
    further = [timed(lambda: tripwire.record(str(folder), copies, last=last)) for _ in range(rounds)]
    after = [timed(lambda: tripwire.compare(last)) for _ in range(rounds)]
    return {name: statistics.median(times) for name, times in
            (("record", first), ("record again", further), ("compare", after))}  # fmt: skip


def main() -> int:
    """Runs what the command line asks for."""
    asked = common.arguments(__doc__).parse_args()
    rounds, small = (2, 200) if asked.quick else (15, 2000)
    with common.folder() as base:
        held = checks(base, rounds, small)
        common.table(f"a check of {small} files, ms", ("level", "median"), list(held.items()))
        many = 500 if asked.quick else 20_000
        looked = wire(base, 2 if asked.quick else 5, many)
        common.table(f"the tripwire, {many} files, ms", ("step", "median"), list(looked.items()))
    common.finish("cages", {"checks": held, "tripwire": looked, "rounds": rounds}, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
