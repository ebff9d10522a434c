"""One writer of the soak: `python -m soak.writer STORE FOLDER NUMBER FACE SEED`, until the file FOLDER/stop is there.

Each request that writes is noted in FOLDER/w<NUMBER>.jsonl before it is sent and again when its answer is there. A
writer that takes the place of a killed one sends what that one had no answer to once more, under the same key, so that
in the end every request is known to have happened or not.
"""

from __future__ import annotations

import os
import random
import sys
import time
import uuid
from typing import Any

import msgspec

from . import faces
from .faces import Envelope, Killed, Request

COUNTERS, REFS = 4, 4
KINDS = {
    "own": 50,
    "shared": 14,
    "region": 14,
    "branch": 8,
    "ref": 5,
    "fleeting": 3,
    "undo": 6,
    "undo_main": 2,
    "large": 1,
}
UNKEYED = ("ref set", "ref delete", "op undo")
"""What is not sent again after a kill: the second one might meet somebody else's move."""
Row = dict[str, Any]


def rows_of(path: str) -> list[Row]:
    """Gives a log's rows; a kill may have cut the last one of each writer."""
    found = []
    if os.path.exists(path):
        with open(path, "rb") as file:
            for line in file:
                try:
                    found.append(msgspec.json.decode(line))
                except msgspec.DecodeError:
                    pass
    return found


class Abandoned(Exception):
    """A step came to nothing, for a reason that the soak expects."""


class Writer:
    """Is one writer: its face, its log, and what it does."""

    def __init__(self, store: str, folder: str, number: int, kind: str, seed: int) -> None:
        self.folder, self.number, self.kind = folder, number, kind
        self.random = random.Random(seed)
        self.agent = f"soak/w{number}"
        self.path = os.path.join(folder, f"w{number}.jsonl")
        before = rows_of(self.path)
        self.count = max((row["n"] for row in before if "n" in row), default=0)
        answered = {row["n"] for row in before if row["t"] in ("done", "no", "gone")}
        self.open = [row for row in before if row["t"] == "try" and row["n"] not in answered]
        self.log = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.write(self.log, b"\n")
        self.face = faces.make(kind, store, self.agent, self.random)
        self.note(t="start", pid=os.getpid(), kind=kind)

    def note(self, **row: Any) -> None:
        """Adds a row to the log by one write, so that a kill takes all of it or nothing."""
        os.write(self.log, msgspec.json.encode(row) + b"\n")

    # asking

    def read(self, operation: str, **request: Any) -> Envelope:
        """Asks for something that writes nothing; it must succeed."""
        began = time.perf_counter()
        found = self.face.ask(operation, request)
        assert found["ok"], (operation, request, found)
        self.note(t="read", op=operation, ms=_ms(began))
        return found

    def write(self, kind: str, operation: str, request: Request, **notes: Any) -> Envelope:
        """Asks for a write until there is an answer, and notes all of it."""
        self.count += 1
        self.note(t="try", n=self.count, kind=kind, op=operation, request=request, **notes)
        return self._send(self.count, operation, request, kill=self.kind != "library" and self.random.random() < 0.04)

    def _send(self, number: int, operation: str, request: Request, *, kill: bool = False) -> Envelope:
        while True:
            began = time.perf_counter()
            try:
                found = self.face.ask(operation, request, kill=kill)
            except Killed:
                self.note(t="killed", n=number)
                kill = False
                if operation in UNKEYED:
                    # sent again it might be somebody else's move that it meets: the operation log tells
                    self.note(t="gone", n=number)
                    raise Abandoned from None
                continue
            if found["ok"]:
                self.note(t="done", n=number, ms=_ms(began), result=found["result"], warnings=found.get("warnings"))
                return found
            error = found["error"]
            if error["code"] == "E_BUSY":
                self.note(t="busy", n=number, ms=_ms(began), message=error["message"])
                continue
            self.note(t="no", n=number, ms=_ms(began), code=error["code"], reason=error["details"].get("reason"),
                      message=error["message"])  # fmt: skip
            return found

    # what a writer does

    def run(self) -> None:
        """Finishes what a killed predecessor left, then works until it is told to stop."""
        for row in self.open:
            if row["op"] in UNKEYED:
                self.note(t="gone", n=row["n"])
                continue
            found = self._send(row["n"], row["op"], row["request"])
            if row["op"] == "land":
                try:
                    self._settle(row["kind"], row["request"], found, row.get("counter"))
                except Abandoned:
                    pass
        steps = list(KINDS)
        weights = list(KINDS.values())
        done = 0
        while not os.path.exists(os.path.join(self.folder, "stop")):
            kind = self.random.choices(steps, weights)[0]
            try:
                getattr(self, kind)()
            except Abandoned:
                pass
            done += 1
            if done in (5, 20) or done % 100 == 0:
                self.note_health()
        self.note_health()
        self.face.close()
        self.note(t="end")

    def note_health(self) -> None:
        """Notes descriptors and memory of this process and its server, and children that nobody waited for."""
        pids = [os.getpid()] + ([self.face.pid] if isinstance(self.face, faces.Mcp) else [])
        self.note(t="health", rows=faces.health(pids))

    def head(self) -> str:
        """Gives the head of main."""
        found: str = self.read("resolve", rev="main")["result"]["id"]
        return found

    def text(self, head: str, path: str) -> str:
        """Gives a file's text."""
        found: str = self.read("cat", rev=head, path=path)["result"]["content"]
        return found

    def commit(self, kind: str, parent: str, files: dict[str, str | bytes], **more: Any) -> str:
        """Commits files on a parent and gives the changeset."""
        changes = [{"path": path, "op": "put", "content": _content(text)} for path, text in files.items()]
        request = {"message": f"{kind} by {self.agent}", "changes": changes, "parent": parent,
                   "idempotency_key": str(uuid.UUID(int=self.random.getrandbits(128))), **more}  # fmt: skip
        found = self.write(f"{kind} commit", "commit", request)
        if not found["ok"]:
            raise Abandoned
        made: str = found["result"]["changeset"]
        if self.random.random() < 0.05:
            again = self._again("commit", request)
            assert again["ok"] and again["result"]["changeset"] == made and again["result"]["replayed"], again
        return made

    def _again(self, operation: str, request: Request) -> Envelope:
        """Sends a request once more under its key; that it is answered already does not mean that it must not wait."""
        while True:
            began = time.perf_counter()
            found = self.face.ask(operation, request)
            if found["ok"] or found["error"]["code"] != "E_BUSY":
                return found
            self.note(t="busy", ms=_ms(began), message=found["error"]["message"])

    def land(self, kind: str, change: str, onto: str = "main", counter: int | None = None) -> str:
        """Lands a change under a key of its own, sometimes twice, and gives what landed."""
        request: Request = {"head": change, "onto": onto,
                            "idempotency_key": str(uuid.UUID(int=self.random.getrandbits(128)))}  # fmt: skip
        found = self._settle(kind, request, self.write(kind, "land", request, counter=counter), counter)
        if self.random.random() < 0.05:
            again = self._again("land", request)
            assert again["ok"] and again["result"]["landed"] == found, (found, again)
            assert again["result"]["status"] == "replayed", again
        return found

    def _settle(self, kind: str, request: Request, found: Envelope, counter: int | None) -> str:
        """Answers conflicts over a shared counter until the land is done."""
        while not found["ok"]:
            if found["error"]["code"] != "E_CONFLICT" or counter is None:
                raise Abandoned
            theirs = found["error"]["details"]["report"]["theirs"]
            path = f"shared/{counter}.txt"
            value = int(self.text(theirs, path).split()[0]) + 1
            resolution = {"against": theirs, "files": {path: {"content": {"inline": self._mark(value)}}}}
            found = self.write(kind, "land", {**request, "resolutions": resolution}, counter=counter)
            if not found["ok"] and found["error"]["code"] == "E_CAS_MISMATCH":
                found = self.write(kind, "land", request, counter=counter)  # it merges cleanly now
        landed: str = found["result"]["landed"]
        return landed

    def _mark(self, value: int) -> str:
        """Gives a shared counter's line, unlike any other's, so that equal values clash instead of merging."""
        return f"{value} {self.agent} {self.random.getrandbits(64):016x}\n"

    def own(self) -> None:
        """Counts in two files of its own, in one change."""
        head = self.head()
        value = int(self.text(head, f"own/w{self.number}/a.txt")) + 1
        files: dict[str, str | bytes] = {f"own/w{self.number}/{x}.txt": f"{value}\n" for x in "ab"}
        self.land("own", self.commit("own", head, files))

    def shared(self) -> None:
        """Counts in a file that all count in."""
        head = self.head()
        counter = self.random.randrange(COUNTERS)
        path = f"shared/{counter}.txt"
        value = int(self.text(head, path).split()[0]) + 1
        self.land("shared", self.commit("shared", head, {path: self._mark(value)}), counter=counter)

    def region(self) -> None:
        """Counts in its lines of a file whose lines belong to all."""
        head = self.head()
        lines = self.text(head, "region.txt").splitlines(keepends=True)
        at = 4 * self.number
        lines[at] = f"{int(lines[at].split()[0]) + 1} w{self.number}\n"
        self.land("region", self.commit("region", head, {"region.txt": "".join(lines)}))

    def large(self) -> None:
        """Lands a file too large for the journal."""
        noise = self.random.randbytes(1_200_000)
        self.land("large", self.commit("large", self.head(), {f"large/w{self.number}.bin": noise}))

    def branch(self) -> None:
        """Commits on a branch of its own and moves it."""
        name = f"b/w{self.number}"
        parent = self.read("resolve", rev=name)["result"]["id"]
        self.commit("branch", parent, {"here.txt": f"{self.random.getrandbits(64):x}\n"}, advance=name)

    def ref(self) -> None:
        """Moves a ref that others move too."""
        name = f"s/{self.random.randrange(REFS)}"
        old, head = self.read("resolve", rev=name)["result"]["id"], self.head()
        self.write("ref", "ref set", {"name": name, "target": head, "expect": old})

    def fleeting(self) -> None:
        """Makes a ref that only it uses, or removes it."""
        name, head = f"t/w{self.number}", self.head()
        there = [
            r["target"]
            for r in self.read("ref list", prefix=f"refs/heads/{name}")["result"]["refs"]
            if r["name"] == name
        ]
        if there:
            self.write("fleeting", "ref delete", {"name": name, "expect": there[0]})
        else:
            self.write("fleeting", "ref set", {"name": name, "target": head, "create": True})

    def undo(self) -> None:
        """Lands on a branch of its own, takes it back, and takes that back."""
        name = f"u/w{self.number}"
        parent = self.read("resolve", rev=name)["result"]["id"]
        text = f"{self.random.getrandbits(64):x}\n"
        landed = self.land("undo", self.commit("undo", parent, {"undo.txt": text}), name)
        op = self._operation(landed)
        for wanted in (parent, landed)[: self.random.randint(1, 2)]:
            found = self.write("undo", "op undo", {"op": op})
            assert found["ok"], found
            op = found["result"]["op"]
            now = self.read("resolve", rev=name)["result"]["id"]
            assert now == wanted, (now, wanted)

    def undo_main(self) -> None:
        """Lands on main and tries to take it back before anybody else lands."""
        head = self.head()
        landed = self.land("undo_main", self.commit("undo_main", head, {f"taken/w{self.number}.txt": f"{head}\n"}))
        self.write("undo_main", "op undo", {"op": self._operation(landed)})

    def _operation(self, landed: str) -> int:
        """Gives the number of the operation that landed something a moment ago."""
        before: int | None = None
        while True:
            page = self.read("op log", limit=100, **({} if before is None else {"before": before}))["result"]
            for row in page["ops"]:
                if row["kind"] == "land" and row["changesets"][0]["id"] == landed:
                    found: int = row["op"]
                    return found
            before = page["next"]


def _content(text: str | bytes) -> dict[str, str]:
    if isinstance(text, str):
        return {"inline": text}
    from base64 import b64encode

    return {"base64": b64encode(text).decode("ascii")}


def _ms(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 2)


def main(words: list[str]) -> None:
    """Runs a writer."""
    store, folder, number, kind, seed = words
    if kind == "library":
        from ropewalk.store import maintain

        # with the product's own 20,000 objects a short soak would hardly see a writer's checkpoint
        vars(maintain)["JOURNAL_OBJECTS"] = 800
    Writer(store, folder, int(number), kind, int(seed)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
