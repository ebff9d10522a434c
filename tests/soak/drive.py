"""Runs a soak: makes the store, starts all, kills and replaces writers, stops all, and has the outcome checked."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from storekit import SRC, Kit, child_env, put

from . import check
from .chores import Chores
from .writer import COUNTERS, REFS

TESTS = str(Path(__file__).resolve().parent.parent)
FACES = ("library",) * 6 + ("mcp", "mcp", "cli", "library")
"""How writers ask, in turn."""
READING = ("library", "library", "library", "mcp", "library", "fresh", "library", "fresh", "cli", "fresh")
KILL_SECONDS = 0.8
END_SECONDS = 180.0


class Samples:
    """Watches the store's log, its packs, and its processes from outside while they work."""

    def __init__(self, store: str) -> None:
        self._store = store
        self.wal = self.packs = self.loose = 0
        self.lasting: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def finish(self) -> None:
        """Ends the watch."""
        self._stop.set()
        self._thread.join(60)

    def _watch(self) -> None:
        packs = os.path.join(self._store, "repo.git", "objects", "pack")
        turns = 0
        zombies: dict[int, int] = {}
        while not self._stop.wait(0.2):
            self.wal = max(self.wal, os.path.getsize(os.path.join(self._store, "store.db-wal")))
            self.packs = max(self.packs, sum(n.endswith(".pack") for n in os.listdir(packs)))
            turns += 1
            if turns % 10 == 0:
                found = check.zombies(os.getpid())
                zombies = {pid: zombies.get(pid, 0) + 1 for pid in found}
                self.lasting |= {found[pid] for pid, count in zombies.items() if count > 3}


class Crew:
    """Is the writers and readers: starts them, kills some, and brings them to their end."""

    def __init__(self, store: str, folder: str, writers: int, readers: int, seed: int) -> None:
        self.store, self.folder = store, folder
        self.random = random.Random(seed)
        self.env = {**child_env(), "PYTHONPATH": f"{SRC}{os.pathsep}{TESTS}"}
        self.writers = [self._start("writer", n, FACES[n % len(FACES)]) for n in range(writers)]
        self.readers = [self._start("reader", n, READING[n % len(READING)], str(writers)) for n in range(readers)]
        self.doomed = [n for n in range(writers) if FACES[n % len(FACES)] == "library"]
        self.killed = 0
        self.wrong: list[str] = []

    def _start(self, what: str, number: int, face: str, *more: str) -> subprocess.Popen[bytes]:
        with open(os.path.join(self.folder, f"{what}{number}.err"), "ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", f"soak.{what}", self.store, self.folder, str(number), face,
                 str(self.random.getrandbits(48)), *more],
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=self.env, cwd=self.folder,
            )  # fmt: skip

    def watch(self, seconds: float) -> None:
        """Lets them work so long, and kills a writer of the library now and then."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.wrong:
            time.sleep(self.random.uniform(0, 2 * KILL_SECONDS))
            number = self.random.choice(self.doomed)
            victim = self.writers[number]
            victim.send_signal(signal.SIGKILL)
            if victim.wait(60) == -signal.SIGKILL:
                self.killed += 1
                self.writers[number] = self._start("writer", number, "library")
            self._look()

    def _look(self) -> None:
        for what, children in (("writer", self.writers), ("reader", self.readers)):
            for number, child in enumerate(children):
                if child.poll() is not None:
                    self.wrong.append(f"{what} {number} ended with {child.returncode} before its time")

    def finish(self) -> float:
        """Tells all to stop, waits for their end, and gives how long that took."""
        began = time.monotonic()
        with open(os.path.join(self.folder, "stop"), "wb"):
            pass
        for what, children in (("writer", self.writers), ("reader", self.readers)):
            for number, child in enumerate(children):
                try:
                    code = child.wait(max(1.0, END_SECONDS - (time.monotonic() - began)))
                except subprocess.TimeoutExpired:
                    child.kill()
                    code = child.wait()
                if code:
                    self.wrong.append(f"{what} {number} ended with {code}")
                with open(os.path.join(self.folder, f"{what}{number}.err"), "rb") as errors:
                    said = errors.read().decode("utf-8", "replace").strip()
                if said:
                    self.wrong.append(f"{what} {number} said {said[-1500:]}")
        return time.monotonic() - began


def begin(root: str, writers: int) -> None:
    """Makes the store that all start from."""
    kit = Kit(root)
    entries = [put(f"own/w{n}/{x}.txt", "0\n") for n in range(writers) for x in "ab"]
    entries += [put(f"shared/{n}.txt", "0 nobody\n") for n in range(COUNTERS)]
    entries += [put("region.txt", "".join(f"0 w{n}\nw{n}.1\nw{n}.2\nw{n}.3\n" for n in range(writers)))]
    entries += [put(f"fixed/{n}.txt", f"a needle {n}\n") for n in range(5)]
    first = kit.first(*entries)
    from ropewalk.store import refs
    from ropewalk.store.oplog import Move

    names = [f"{x}/w{n}" for n in range(writers) for x in "bu"] + [f"s/{n}" for n in range(REFS)]
    refs.move(kit.store, "seed/one", [Move(f"refs/heads/{name}", None, first) for name in names], "ref_move")
    kit.close()


def soak(folder: str, *, seconds: float, writers: int = 50, readers: int = 20, seed: int = 1) -> dict[str, Any]:
    """Runs a soak in a folder and gives its figures; `wrong` has a sentence for all that is not as it must be."""
    load = os.getloadavg()[0]
    root, work = os.path.join(folder, "store"), os.path.join(folder, "work")
    os.makedirs(work)
    # hundreds of processes start: each would compile the package anew where nobody may write beside the sources
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(folder, "compiled")
    sources = [os.path.join(SRC, "ropewalk"), os.path.join(TESTS, "soak"), os.path.join(TESTS, "storekit.py")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *sources], check=True, timeout=300)
    begin(root, writers)
    began = time.monotonic()
    samples, chores = Samples(root), Chores(root, work, seed)
    samples.start()
    crew = Crew(root, work, writers, readers, seed)
    try:
        chores.start()
        crew.watch(seconds)
    finally:
        chores.stop.set()
        ending = crew.finish()
        chores.finish()
        samples.finish()
    worked = time.monotonic() - began
    figures = check.figures(work, worked)
    wrong = [*crew.wrong, *chores.failures, *check.outcome(root, work, chores, samples)][:40]
    figures |= {
        "seconds": round(worked, 1), "load_at_start": round(load, 2), "seed": seed, "writers": writers,
        "readers": readers, "killed_from_outside": crew.killed, "ending_seconds": round(ending, 1),
        "wal_max_mib": round(samples.wal / (1 << 20), 1), "packs_max": samples.packs, "chores": dict(chores.counts),
        "slowest_seconds": {k: round(v, 1) for k, v in chores.slowest.items()},
        "checked_seconds": round(time.monotonic() - began - worked, 1), "wrong": wrong,
    }  # fmt: skip
    with open(os.path.join(folder, "figures.json"), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(figures), indent=2))
    return figures
