"""What a cage costs an agent program: time from its start to its first request, and memory at that time.

Real programs, the same lane for each: shim, gateway, and a model that never answers, so that what is measured stands
still. Caged (bubblewrap, the lane's user where this is root) and bare take turns. Memory is the proportional set size
of all processes of the lane, what is ours among them beside it: shim, bubblewrap, and the first program in the cage.

The programs are those that `python tests/clis/install.py --folder DIR` puts into a folder: `--clis DIR`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import common

if TYPE_CHECKING:
    from ropewalk.lane.cage.room import Level

PROGRAMS = ("claude", "codex", "opencode", "pi", "gemini", "qwen", "grok", "copilot")
MODELS = {"claude": "claude-sonnet-4-5", "gemini": "gemini-2.5-flash"}
LEVELS: tuple[Level, ...] = ("none", "full")
_OURS = ("shim.py", "inside.py", "bwrap")
_PATIENCE = 120.0


class Seen(NamedTuple):
    """Is one start: seconds to the first request, kilobytes of all processes, and of ours among them."""

    seconds: float
    total: int
    ours: int
    processes: int


def tree(pid: int) -> list[int]:
    """Gives a process with all that stand below it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                children.setdefault(int(file.read().rsplit(b")", 1)[1].split()[1]), []).append(int(name))
        except (OSError, ValueError):
            continue
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def memory(pid: int) -> tuple[int, int, int]:
    """Gives kilobytes of all processes below one, of ours among them, and how many there are."""
    total = ours = count = 0
    for one in tree(pid):
        try:
            words = Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue
        size = next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
        is_ours = any(word.decode("utf-8", "replace").endswith(_OURS) for word in words[:6])
        total, ours, count = total + size, ours + size * is_ours, count + 1
    return total, ours, count


def start(program: str, level: Level, number: int, base: Path, server: Any, gateway: Path, clis: Path) -> Seen:
    """Starts a lane and gives what it took until its first request was there."""
    from ropewalk.gateway.process import read_address
    from ropewalk.lane.cage import room as rooms
    from ropewalk.lane.order import Order
    from ropewalk.lane.programs import registry
    from ropewalk.lane.supervisor import Supervised, end

    name = f"{program}-{level}-{number}"
    adapter = registry.get(program)
    uid = rooms.UID if os.geteuid() == 0 and level == "full" else None
    place, work = base / name, base / name / "work"
    for folder in (place, work, place / "objects"):
        folder.mkdir(mode=0o755)
    if uid is not None:
        os.chown(work, uid, uid)
    held, node = (next(clis.glob(f"{one}-[0-9]*")) for one in (program, "node"))
    search = f"{held}/node_modules/.bin:{node}/node_modules/.bin:{node}/node_modules/node/bin:/usr/bin:/bin"
    address = read_address(str(gateway))
    assert address is not None
    own = place / "lane"
    room = rooms.Room(str(work), "project", str(own / "home"), str(own / "tmp"), str(place / "objects"),
                      rooms.tool_folders(adapter.program, search), str(gateway / "door"), uid=uid)  # fmt: skip
    order = Order(f"bench/{name}/1", f"{adapter.family}/bench", adapter, "Say hello.", str(work), str(place / "lane"),
                  level, search, common.environment(), room, MODELS.get(program, "scripted-model"),
                  gateway=str(gateway), token=f"token-{name}", port=address.port)  # fmt: skip
    found = Supervised(order)
    began = time.monotonic()
    found.start()
    try:
        while not server.entries(name):
            if time.monotonic() - began > _PATIENCE or found.step() is not None:
                words = (place / "lane/stderr").read_text(errors="replace")[-300:]
                raise SystemExit(f"{name} sent no request: {words}")
            time.sleep(0.005)
        seconds = time.monotonic() - began
        return Seen(seconds, *memory(found.pid))
    finally:
        end(str(place / "lane"))


def main() -> int:
    """Runs what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--clis", type=Path, required=True, help="the folder with the programs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=PROGRAMS)
    asked = parser.parse_args()
    from ropewalk.gateway import settings
    from ropewalk.testing.model_server import running

    rounds = 1 if asked.quick else asked.rounds
    found: dict[str, dict[str, list[Seen]]] = {}
    missing = [one for one in asked.only or PROGRAMS if not list(asked.clis.glob(f"{one}-[0-9]*"))]
    with common.folder() as base, running() as server:
        base.chmod(0o755)
        gateway = base / "gateway"
        gateway.mkdir(mode=0o755)
        names = [f"{one}-{level}-{n}" for one in PROGRAMS for level in LEVELS for n in range(rounds + 1)]
        ups = {name: settings.Upstream(server.url(name, "hang"), "key", auth="bearer") for name in names}
        lanes = {f"token-{name}": settings.Lane(f"bench/{name}/1", upstreams=(name,), requests=60) for name in names}
        settings.write(str(gateway), settings.Settings(ups, lanes, first_byte=300.0))
        child = subprocess.Popen([sys.executable, "-m", "ropewalk.gateway.process", str(gateway)],
                                 stdout=subprocess.PIPE, env=common.environment())  # fmt: skip
        try:
            assert child.stdout is not None and child.stdout.readline()
            for number in range(rounds + 1):  # what is read from disk for the first time counts for neither
                for program in asked.only or PROGRAMS:
                    for level in LEVELS:
                        if program in missing:
                            continue
                        seen = start(program, level, number, base, server, gateway, asked.clis)
                        if number or asked.quick:
                            found.setdefault(program, {}).setdefault(level, []).append(seen)
        finally:
            child.terminate()
            child.wait(20)
    rows = []
    print(f"{'program':<10} {'bare s':>7} {'caged s':>8} {'bare MB':>8} {'caged MB':>9} {'ours MB':>8}")
    for program, held in found.items():
        bare, caged = (statistics.median(one.seconds for one in held[level]) for level in LEVELS)
        memories = [statistics.median(one.total for one in held[level]) / 1024 for level in LEVELS]
        ours = statistics.median(one.ours for one in held["full"]) / 1024
        print(f"{program:<10} {bare:>7.2f} {caged:>8.2f} {memories[0]:>8.0f} {memories[1]:>9.0f} {ours:>8.1f}")
        rows.append({"program": program, "bare_seconds": bare, "caged_seconds": caged, "bare_mb": memories[0],
                     "caged_mb": memories[1], "ours_mb": ours})  # fmt: skip
    common.finish("harnesses", {"rounds": rounds, "rows": rows, "missing": missing}, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
