"""Many processes at once on one store: every change lands or says why not, in one total order, whatever git does."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.store import oplog
from storekit import MAIN, Kit, child_env, put

pytestmark = [pytest.mark.race, pytest.mark.slow]

HERE = Path(__file__).parent
SPACE = 6
"""How many lines of the shared file a worker has for itself, as worker.py has it."""
ROUNDS = int(os.environ.get("RWTEST_RACE_ROUNDS", "1"))
WORKERS = int(os.environ.get("RWTEST_RACE_WORKERS", "50"))
Row = dict[str, Any]


def begin(kit: Kit) -> None:
    """Makes the first commit that all workers start from."""
    shared = "".join(f"line {n}\n" for n in range((WORKERS + 1) * SPACE))
    kit.first(put("shared.txt", shared), put("clash.txt", "nobody\nrest\n"))


def start(script: str, *args: str) -> subprocess.Popen[bytes]:
    """Starts a script of this folder and waits until it is ready."""
    child = subprocess.Popen(
        [sys.executable, str(HERE / script), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_env(),
    )
    assert child.stdout is not None and child.stdout.readline() == b"ready\n", child.stderr and child.stderr.read()
    return child


def go(child: subprocess.Popen[bytes]) -> None:
    """Lets a worker begin."""
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()


class Output:
    """Collects what a child prints, by a thread of its own."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self.rows: list[Row] = []
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.endswith(b"\n"):
                self.rows.append(msgspec.json.decode(line))

    def finish(self) -> str:
        """Waits for the end and gives the error output."""
        self.thread.join(300)
        assert self.child.stderr is not None and self.child.stdin is not None and self.child.stdout is not None
        words = self.child.stderr.read().decode()
        self.child.wait(60)
        for pipe in (self.child.stdin, self.child.stdout, self.child.stderr):
            pipe.close()
        return words


def race(kit: Kit, workers: int, rounds: int, kinds: str) -> list[Row]:
    """Runs workers to their end and gives their rows."""
    children = [start("worker.py", kit.root, str(n), str(rounds), kinds) for n in range(workers)]
    outputs = [Output(child) for child in children]
    for child in children:
        go(child)
    words = [output.finish() for output in outputs]
    assert not any(words), next(w for w in words if w)
    assert all(child.returncode == 0 for child in children)
    return [row for output in outputs for row in output.rows]


def check(kit: Kit, rows: list[Row]) -> list[oplog.Operation]:
    """Checks the order of operations, main's history and every answer that was given; gives the lands."""
    assert oplog.check_chain(kit.store.db) is None
    ops = oplog.after(kit.store.db, 0, 1 << 30)
    assert [o.op for o in ops] == list(range(1, len(ops) + 1))
    moves = [m for o in ops for m in o.body.moves if m.name == MAIN]
    assert [m.old for m in moves[1:]] == [m.new for m in moves[:-1]]
    history = kit.stock("rev-list", "--first-parent", "--reverse", MAIN).split()
    assert history == [m.new for m in moves]
    lands = [o for o in ops if o.kind == "land"]
    by_change = dict(kit.store.db.rows("SELECT change, landed FROM landed"))
    assert len(by_change) == len(lands)
    for row in rows:
        if row["status"] in ("landed", "up_to_date"):
            assert by_change[row["change"]] == row["landed"]
        else:
            assert row["status"] == "conflict", row
            assert row["change"] not in by_change
    return lands


def test_fifty_processes_commit_and_land_at_once(kit: Kit) -> None:
    """Disjoint, overlapping and clashing changes: nothing is lost, nothing is left in the spool."""
    begin(kit)
    rows = race(kit, WORKERS, ROUNDS, "own,region,line")
    lands = check(kit, rows)
    assert len(rows) == WORKERS * ROUNDS * 3
    by = Counter((row["kind"], row["status"]) for row in rows)
    assert by["own", "landed"] == by["region", "landed"] == WORKERS * ROUNDS, by
    assert by["line", "landed"] + by["line", "conflict"] == WORKERS * ROUNDS and by["line", "landed"] >= 1
    assert max(row["attempts"] for row in rows) <= 8
    files = kit.files()
    shared = files[b"shared.txt"][1].decode().splitlines()
    for n in range(WORKERS):
        assert shared[n * SPACE] == f"{n} {ROUNDS - 1}"
        assert all(files[b"own/w%d/%d.txt" % (n, r)][1] == b"%d %d\n" % (n, r) for r in range(ROUNDS))
    last = [o for o in lands if o.body.changesets[0] in {r["landed"] for r in rows if r["kind"] == "line"}][-1]
    winner = next(r for r in rows if r["landed"] == last.body.changesets[0])
    assert files[b"clash.txt"][1] == f"{winner['worker']} {winner['round']}\nrest\n".encode()
    assert os.listdir(os.path.join(kit.root, "spool")) == []
    kit.fsck()


def test_a_reader_writes_nothing(kit: Kit, tmp_path: Path) -> None:
    """Reading opens no file for writing but SQLite's own, writes to none, and makes, renames and removes none."""
    begin(kit)
    trace = tmp_path / "trace"
    subprocess.run(
        ["strace", "-f", "-y", "-qq", "-o", str(trace), "-e",
         "trace=openat,write,pwrite64,rename,renameat,renameat2,unlink,unlinkat,mkdir,link,ftruncate,fsync,fdatasync",
         sys.executable, str(HERE / "reader.py"), kit.root, "once"],
        env=child_env(PYTHONDONTWRITEBYTECODE="1"), check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    touched = [line for line in trace.read_text().splitlines() if kit.root in line and "ENOENT" not in line]
    assert len(touched) > 5
    for line in touched:
        words = re.sub(r"^\d+ +", "", line)
        writes = not words.startswith("openat") or re.search(r"O_(WRONLY|RDWR|CREAT)", words)
        assert not writes or (words.startswith("openat") and re.search(r'store\.db(-wal|-shm)?"', words)), words


def test_killed_writers_lose_nothing_that_was_answered(kit: Kit) -> None:
    """SIGKILL at any moment: what was answered is there, others go on, and the dead leave nothing in the spool."""
    begin(kit)
    r = random.Random(7)
    children = [start("worker.py", kit.root, str(n), "40", "own,region") for n in range(12)]
    outputs = [Output(child) for child in children]
    for child in children:
        go(child)
    doomed = children[:8]
    for number, child in enumerate(doomed):
        # each is killed when it has answered so many changes, wherever it then is
        wanted = r.randint(1, 6) + number // 2
        while len(outputs[number].rows) < wanted and child.poll() is None:
            outputs[number].thread.join(0.002)
        child.send_signal(signal.SIGKILL)
    words = [output.finish() for output in outputs]
    assert not any(words[8:]), words[8:]
    assert [c.returncode for c in doomed] == [-signal.SIGKILL] * 8
    assert [c.returncode for c in children[8:]] == [0] * 4
    fresh = kit.again()
    rows = [row for output in outputs for row in output.rows]
    check(fresh, rows)
    assert fresh.change(put("after", "x\n")).status == "landed"
    assert [n for n in os.listdir(os.path.join(kit.root, "spool")) if not n.startswith(f"{os.getpid()}-")] == []
    assert sum(n.startswith("tmp_") for n in os.listdir(os.path.join(kit.repo, "objects"))) <= 8
    assert kit.stock("rev-parse", MAIN) == fresh.main()
    files = fresh.files()
    for row in rows:
        if row["kind"] == "own" and row["status"] == "landed":
            assert files[b"own/w%d/%d.txt" % (row["worker"], row["round"])]
    fresh.close()
    kit.fsck()


def test_one_key_from_many_processes_is_one_land(kit: Kit) -> None:
    """The same commit and the same land, sent by all at once under one key, happen once."""
    begin(kit)
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from storekit import Kit, put\n"
        "k = Kit(sys.argv[1], lock_wait=120); print('ready', flush=True); sys.stdin.readline()\n"
        "key = '00000000-0000-0000-0000-000000000001'\n"
        "c = k.commit(put('f', 'x\\n'), parent=sys.argv[3], key=key)\n"
        "l = k.land(c.changeset, key=key)\n"
        "print(c.changeset, l.landed, l.status, flush=True)\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, kit.root, str(HERE.parent), kit.main()], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_env())
        for _ in range(12)
    ]  # fmt: skip
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    for child in children:
        go(child)
    ends = [child.communicate(timeout=120) for child in children]
    assert all(child.returncode == 0 for child in children), [e[1].decode() for e in ends if e[1]][:1]
    answers = {tuple(out.decode().split()[:2]) for out, _ in ends}
    assert len(answers) == 1
    statuses = Counter(out.decode().split()[2] for out, _ in ends)
    assert statuses == {"landed": 1, "replayed": 11}
    check(kit, [])
