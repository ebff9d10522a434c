"""One reader of the soak: `python -m soak.reader STORE FOLDER NUMBER FACE SEED WRITERS`, until FOLDER/stop is there.

Whatever it reads must fit what it read before, and any error ends it with a traceback. It notes how long each read
took, and which heads and operations it saw, in FOLDER/r<NUMBER>.json.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from typing import Any

import msgspec

from . import faces
from .writer import COUNTERS

THINK_SECONDS = 0.2


class Reader:
    """Is one reader: its face, and what it saw so far."""

    def __init__(self, store: str, folder: str, number: int, kind: str, seed: int, writers: int) -> None:
        self.folder, self.number, self.kind, self.writers = folder, number, kind, writers
        self.random = random.Random(seed)
        self.face = faces.make(kind, store, f"soak/r{number}", self.random)
        self.times: dict[str, list[float]] = {}
        self.heads: list[str] = []
        self.operations: dict[int, str] = {}
        self.counts: dict[str, int] = {}
        self.newest = 0
        self.health: list[list[dict[str, int]]] = []
        self.first = self.see()

    def ask(self, operation: str, **request: Any) -> Any:
        """Gives the result of a read; it must succeed."""
        began = time.perf_counter()
        found = self.face.ask(operation, request)
        self.times.setdefault(operation, []).append(round((time.perf_counter() - began) * 1000, 2))
        assert found["ok"], (operation, request, found)
        return found["result"]

    def see(self) -> str:
        """Gives the head of main, and notes it."""
        head: str = self.ask("resolve", rev="main")["id"]
        if not self.heads or self.heads[-1] != head:
            self.heads.append(head)
        return head

    def grown(self, name: str, value: int) -> None:
        """Checks that a count that nobody takes back never gets smaller."""
        assert value >= self.counts.get(name, 0), (name, value, self.counts[name])
        self.counts[name] = value

    def run(self) -> None:
        """Reads until told to stop, then writes down what was seen."""
        done = 0
        while not os.path.exists(os.path.join(self.folder, "stop")):
            getattr(self, self.random.choice(KINDS))()
            done += 1
            # who reads thinks about it: without this, twenty readers would be a test of the scheduler
            time.sleep(self.random.uniform(0, THINK_SECONDS))
            if done in (10, 40) or done % 200 == 0:
                self.look()
        self.look()
        self.face.close()
        seen = {"kind": self.kind, "times": self.times, "heads": self.heads, "operations": self.operations,
                "health": self.health}  # fmt: skip
        with open(os.path.join(self.folder, f"r{self.number}.json"), "wb") as file:
            file.write(msgspec.json.encode(seen))

    def look(self) -> None:
        """Notes descriptors and memory."""
        pids = [os.getpid()] + ([self.face.pid] if isinstance(self.face, faces.Mcp) else [])
        self.health.append(faces.health(pids))

    def pair(self) -> None:
        """Both files of a writer, and what they were when this reader began."""
        number = self.random.randrange(self.writers)
        for head in (self.see(), self.first):
            a, b = (self.ask("cat", rev=head, path=f"own/w{number}/{x}.txt")["content"] for x in "ab")
            assert a == b, (head, number, a, b)
            if head != self.first:
                self.grown(f"own{number}", int(a))

    def shared(self) -> None:
        """A counter of all."""
        counter = self.random.randrange(COUNTERS)
        self.grown(
            f"shared{counter}", int(self.ask("cat", rev=self.see(), path=f"shared/{counter}.txt")["content"].split()[0])
        )

    def region(self) -> None:
        """The file whose lines belong to all."""
        lines = self.ask("cat", rev=self.see(), path="region.txt")["content"].splitlines()
        assert len(lines) == 4 * self.writers
        for number in range(self.writers):
            value, name = lines[4 * number].split()
            self.grown(f"region{number}", int(value))
            assert [name, *lines[4 * number + 1 : 4 * number + 4]] == [f"w{number}{x}" for x in ("", ".1", ".2", ".3")]

    def listing(self) -> None:
        """A folder."""
        rows = self.ask("ls", rev=self.see(), path="own")["entries"]
        assert len(rows) == self.writers, rows

    def log(self) -> None:
        """The newest commits, each on top of the next."""
        head = self.see()
        rows = self.ask("log", rev=head, limit=20)["entries"]
        assert rows[0]["id"] == head
        for above, below in itertools.pairwise(rows):
            assert above["parents"] == [below["id"]], (above, below)

    def diff(self) -> None:
        """What changed since a head seen before."""
        old, new = self.random.choice(self.heads), self.see()
        if old != new:
            self.ask("diff", old=old, new=new, limit=5)

    def show(self) -> None:
        """The newest commit."""
        head = self.see()
        assert self.ask("show", rev=head)["id"] == head

    def grep(self) -> None:
        """A word that always is in the same five files."""
        rows = self.ask("grep", pattern="needle", rev=self.see(), path="fixed")["matches"]
        assert len(rows) == 5, rows

    def operations_paged(self) -> None:
        """Three pages of the operation log: without gaps, and as they were when they were read before."""
        before: dict[str, int] = {}
        last = 0
        for _ in range(3):
            page = self.ask("op log", limit=30, **before)
            for row in page["ops"]:
                assert last in (0, row["op"] + 1), (last, row["op"])
                last = row["op"]
                moves = ",".join(f"{m['name']} {m['old']} {m['new']}" for m in row["ref_moves"])
                words = f"{row['kind']} {row['actor']} {moves}"
                assert self.operations.setdefault(row["op"], words) == words, (row, self.operations[row["op"]])
            if not before:
                assert page["ops"][0]["op"] >= self.newest
                self.newest = page["ops"][0]["op"]
            if not page.get("truncated"):
                break
            before = {"before": page["next"]}

    def refs(self) -> None:
        """The list of refs."""
        names = [row["name"] for row in self.ask("ref list")["refs"]]
        assert "main" in names and "s/0" in names and len(set(names)) == len(names)


KINDS = ("pair", "pair", "shared", "region", "listing", "log", "diff", "show", "grep", "operations_paged", "refs")


def main(words: list[str]) -> None:
    """Runs a reader."""
    store, folder, number, kind, seed, writers = words
    Reader(store, folder, int(number), kind, int(seed), int(writers)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
