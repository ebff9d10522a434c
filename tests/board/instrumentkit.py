"""What the tests of instruments share: large boards made by stock git, boards of each kind, a count of processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.board.boardkit import ACTOR

from ropewalk.board import wire
from ropewalk.board.base import Step
from ropewalk.board.local import LocalBoard
from ropewalk.board.remote import RemoteBoard
from ropewalk.remote import importing
from ropewalk.store.oplog import Move
from storekit import Kit, stock

START = 1_700_000_000
_counting: list[list[str]] = []
_STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty")


def _note(event: str, args: tuple[Any, ...]) -> None:
    if _counting and event in _STARTS:
        _counting[-1].append(event if event.startswith("os.f") else " ".join(str(word) for word in args[1] or ()))


sys.addaudithook(_note)


@contextmanager
def processes() -> Iterator[list[str]]:
    """Gives the command lines of the processes that are started meanwhile."""
    _counting.append([])
    try:
        yield _counting[-1]
    finally:
        _counting.pop()


def bare(path: Path) -> Path:
    """Makes a bare repository whose main has one commit."""
    stock("init", "-q", "--bare", "-b", "main", str(path))
    stream = (
        b"commit refs/heads/main\ncommitter s <s@example.com> %d +0000\ndata 5\nfirst\nM 644 inline a\ndata 2\na\n\n"
    )
    stock("--git-dir", str(path), "fast-import", "--quiet", stdin=stream % START)
    return path


def done_tasks(path: Path, count: int) -> None:
    """Gives a repository that `bare` made tasks that are done, four refs each, as flockwork writes them."""
    out: list[str] = []
    refs: list[str] = []

    def commit(ref: str, words: str, change: str = "", *, at: int) -> None:
        data, line = words.encode(), "refs/heads/main" if change else "refs/scratch"
        refs.append(ref)
        if not change:
            out.append("reset refs/scratch\n\n")
        before = "from refs/heads/main^0\n" if change and len(refs) < 5 else ""
        out.append(f"commit {line}\nmark :{len(refs)}\ncommitter flockwork <f@example.com> {at} +0000\n"
                   f"data {len(data)}\n{words}\n{before}{change}\n")  # fmt: skip

    for number in range(count):
        task, attempt, at = f"t{number:05d}", f"att-w{number % 8}-{number:06x}", START + 10 * number
        model = f"model: m{number % 3}\nkind: direct"
        commit(f"specs/{task}", f"spec {task}\n\ndo {task}\nverify: true\n", at=at)
        commit(f"claims/{task}", f"claim {task}\nharness: opencode\n{model}\n{attempt}\n", at=at + 1)
        change = f"M 644 inline f/{task}\ndata 2\nx\n\n"
        commit(f"tasks/{task}", f"fix {task}\n\nAttempt: {attempt}\n", change, at=at + 2)
        commit(f"verdicts/{task}", f"verdict\ntask: {task}\nattempt: {attempt}\nfixed: true\nhost: w\noc_rc: 0\n"
               f"pytest_rc: 0\nharness: opencode\noc_elapsed: {number % 100}.5\n{model}\n", at=at + 3)  # fmt: skip
    marks = path / "marks"
    stock("--git-dir", str(path), "fast-import", "--quiet", f"--export-marks={marks}", stdin="".join(out).encode())
    stock("--git-dir", str(path), "update-ref", "-d", "refs/scratch")
    ids = {int(line.split()[0][1:]): line.split()[1] for line in marks.read_text().splitlines()}
    # one ref a file would take most of the time
    lines = sorted(f"refs/swarm/{ref} {ids[number]}" for number, ref in enumerate(refs, 1))
    packed = "".join(f"{line.split()[1]} {line.split()[0]}\n" for line in lines)
    (path / "packed-refs").write_text(f"# pack-refs with: peeled fully-peeled sorted \n{packed}")


def remote_board(path: Path, folder: Path) -> RemoteBoard:
    """Gives the board in a repository, seen by its path."""
    folder.mkdir(exist_ok=True)
    return RemoteBoard(str(path), str(folder))


def local_board(path: Path, root: Path) -> tuple[Kit, LocalBoard]:
    """Gives a store that has all refs of a repository's board."""
    kit = Kit(str(root))
    importing.import_branch(kit.store, str(path), "main", into=None, actor=ACTOR, progress=lambda *_: None, wait=60)
    board = LocalBoard(kit.store)
    form = "--format=%(refname) %(objectname)"
    lines = stock("--git-dir", str(path), "for-each-ref", form, "refs/swarm").decode().splitlines()
    listed = [line.split() for line in lines]
    out = stock("--git-dir", str(path), "cat-file", "--batch", stdin="".join(f"{oid}\n" for _, oid in listed).encode())
    objects, at = [], 0
    for ref, oid in listed:
        end = out.index(b"\n", at)
        size = int(out[at:end].split()[2])
        if not ref.startswith("refs/swarm/tasks/"):
            objects.append(wire.Object(oid, out[end + 1 : end + 1 + size]))
        at = end + size + 2
    board.push(Step("push", ACTOR, [Move(ref, None, oid) for ref, oid in listed], objects))
    return kit, board
