"""Too few descriptors, too little memory, and a disk that becomes full or read-only while a server has the store open.

Each is answered with a typed error or the result; nothing is half recorded, what is there can be read, and once the
want is over everybody can write.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ropewalk.cli import main
from ropewalk.core.errors import fault

from .kit import AGENT, ask, lines_of, must, place, prepare, put, refs_of, run_words, sound
from .scenarios import SCENARIOS
from .sweep import next_command, template, words_of
from .tracing import SECONDS, command, environment

FULL = os.environ.get("RWTEST_FULL") == "1"
NAMES = ("commit (large file)", "land (git merges)", "import", "gc (consolidate)")
STEPS = 16 if FULL else 5
WANTS = {"E_IO", "E_NO_SPACE", "E_REMOTE", "E_INVALID"}

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mine = tmp_path_factory.getbasetemp()
    return (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "sweep"


def limited(option: str, words: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Runs a command under a limit."""
    return subprocess.run(["prlimit", option, *command(*words)], cwd=folder, env=environment(folder / "home"),
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)  # fmt: skip


def least(option: Callable[[int], str], low: int, high: int, folder: Path) -> int:
    """Gives the smallest limit at which a command starts at all: below it Python itself ends."""
    while low < high:
        middle = (low + high) // 2
        if limited(option(middle), ["version"], folder).returncode == 0:
            high = middle
        else:
            low = middle + 1
    return low


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["descriptors", "memory"])
def test_a_limit_is_a_typed_error_and_leaves_nothing_half_done(
    base: Path, tmp_path: Path, name: str, what: str
) -> None:
    scenario = next(s for s in SCENARIOS if s.name == name)
    made = template(base, scenario)
    option: Callable[[int], str] = (
        (lambda n: f"--nofile={n}:{n}") if what == "descriptors" else (lambda n: f"--as={n << 20}:{n << 20}")
    )
    bottom = least(option, *((3, 64) if what == "descriptors" else (8, 512)), tmp_path)
    step = 1 if what == "descriptors" else 4
    worked = 0
    for number in range(STEPS):
        folder = place(made.folder, tmp_path / str(number))
        limit = bottom + number * step
        done = limited(option(limit), words_of(scenario, folder, made.ids), folder)
        assert b"Traceback" not in done.stderr, (limit, done.stderr.decode())
        envelope = lines_of(done.stdout)[-1]
        if envelope["ok"]:
            worked += 1
            assert scenario.done(folder, made.ids), limit
        else:
            error = envelope["error"]
            assert error["code"] in WANTS and error["hint"] and done.returncode == error["exit"], (limit, envelope)
            scenario.done(folder, made.ids)
        next_command(folder)
        assert run_words(folder, words_of(scenario, folder, made.ids))[-1]["ok"]
        assert scenario.done(folder, made.ids)
        sound(folder)
        shutil.rmtree(folder)
    # a Python that starts at all may have the memory for a small command, too
    assert what == "memory" or worked < STEPS, "the limits were too high to be felt"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        ImportError("libz.so.1: failed to map segment from shared object"),
        ImportError("libz.so.1: cannot allocate memory in static TLS block"),
        SystemError("<built-in function compile> returned NULL without setting an exception"),
        SystemError("error return without exception set"),
    ],
    ids=repr,
)
def test_a_lack_of_memory_is_known_by_every_name_python_has_for_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def nothing_left(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(main, "_main", nothing_left)
    assert main.main(["log"]) == 2
    out, err = capfd.readouterr()
    assert json.loads(out)["error"]["code"] == fault(error).code == "E_INVALID" and not err


def test_a_fault_of_ours_is_not_taken_for_a_lack_of_memory() -> None:
    for error in (SystemError("bad argument to internal function"), ImportError("No module named 'x'")):
        assert fault(error).code == "E_INTERNAL"


class Session:
    """Is an MCP server that has a store open."""

    def __init__(self, folder: Path) -> None:
        self._child = subprocess.Popen(
            command("mcp", "--store", str(folder / "store"), "--as", AGENT, "--profile", "full"), cwd=folder,
            env=environment(folder / "home"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._number = 0

    def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Calls a tool and gives its envelope."""
        self._number += 1
        params = {"name": name, "arguments": arguments}
        line = json.dumps({"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params})
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(line.encode() + b"\n")
        self._child.stdin.flush()
        envelope: dict[str, Any] = json.loads(self._child.stdout.readline())["result"]["structuredContent"]
        return envelope

    def close(self) -> None:
        """Ends the server; it printed nothing beside its answers."""
        _, err = self._child.communicate(timeout=SECONDS)
        assert b"Traceback" not in err, err.decode()


@pytest.fixture
def mounted() -> Iterator[Callable[..., None]]:
    """Mounts for the time of a test; needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    places: list[str] = []

    def mount(*words: str) -> None:
        done = subprocess.run(["mount", *words], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"mount is not allowed here: {done.stderr.decode().strip()}")
        places.append(words[-1])

    yield mount
    for place_ in reversed(dict.fromkeys(places)):
        subprocess.run(["umount", "-l", place_], check=False, capture_output=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fills the disk that a folder is on for a time."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"\1" * size)
            except OSError:
                continue
    yield
    filler.unlink()


def big(path: str) -> list[dict[str, Any]]:
    """Gives a change of a file that is written as a file of its own."""
    return put(path, os.urandom(1_000_000).hex())


def test_a_disk_that_fills_under_a_server(tmp_path: Path, mounted: Callable[..., None]) -> None:
    place_ = tmp_path / "small"
    place_.mkdir()
    mounted("-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place_))
    folder = place_ / "f"
    folder.mkdir()
    prepare(folder)
    ids = json.loads((folder / "ids.json").read_text())
    session = Session(folder)
    assert session("commit", message="before", changes=put("before.txt", "b\n"), advance="main")["ok"]
    acknowledged = ["before.txt"]
    with full(folder):
        head = refs_of(folder)["main"]
        for number in range(3):
            refused = session("commit", message="large", changes=big(f"large{number}"), advance="main")
            assert not refused["ok"] and refused["error"]["code"] == "E_NO_SPACE", refused
            assert refs_of(folder)["main"] == head
        # the log has its blocks, so that small writes may still go through: then they count
        for number in range(40):
            answer = session("commit", message=f"n{number}", changes=put(f"n{number}.txt", "n\n"), advance="main")
            if answer["ok"]:
                acknowledged.append(f"n{number}.txt")
            else:
                assert answer["error"]["code"] == "E_NO_SPACE", answer
        assert session("read_file", rev="main", path="d/y.txt")["result"]["content"] == "y\n"
    assert session("commit", message="after", changes=big("after.txt"), advance="main")["ok"]
    assert session("land", head=ids["x"], onto="main")["ok"]
    session.close()
    for path in [*acknowledged, "after.txt", "d/x.txt"]:
        must(folder, "cat", rev="main", path=path, max_bytes=10)
    next_command(folder)


def test_a_file_system_that_gives_up_under_a_server(tmp_path: Path, mounted: Callable[..., None]) -> None:
    """Lets ext4 abort, as after an error of the disk: it is read-only at once, and what was not synced is gone."""
    if not shutil.which("mkfs.ext4") or not shutil.which("e2fsck"):
        pytest.skip("e2fsprogs is not installed")
    image, place_ = tmp_path / "image", tmp_path / "disk"
    place_.mkdir()
    with open(image, "wb") as file:
        file.truncate(96 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    mounted("-o", "loop", str(image), str(place_))
    folder = place_ / "f"
    folder.mkdir()
    prepare(folder)
    session = Session(folder)
    acknowledged = [f"n{number}.txt" for number in range(5)]
    for path in acknowledged:
        assert session("commit", message=path, changes=put(path, "n\n"), advance="main")["ok"]
    aborted = subprocess.run(["mount", "-o", "remount,abort", str(place_)], capture_output=True)
    if aborted.returncode:
        pytest.skip(f"ext4 can't be made to abort here: {aborted.stderr.decode().strip()}")
    for _ in range(2):
        answer = session("commit", message="late", changes=put("late.txt", "l\n"), advance="main")
        assert not answer["ok"] and answer["error"]["code"] == "E_IO", answer
    assert session("read_file", rev="main", path="n4.txt")["result"]["content"] == "n\n"
    alone = ask(folder, "log", rev="main")
    assert alone["ok"] or alone["error"]["code"] == "E_IO", alone
    session.close()
    subprocess.run(["umount", str(place_)], check=True)
    checked = subprocess.run(["e2fsck", "-fy", str(image)], capture_output=True, text=True)
    assert checked.returncode in (0, 1), checked.stdout
    mounted("-o", "loop", str(image), str(place_))
    # the machine did not start anew, so nothing tells the store that its disk forgot what was not synced
    assert must(folder, "repair")["left"] == []
    for path in acknowledged:
        assert must(folder, "cat", rev="main", path=path)["content"] == "n\n"
    assert not re.search(r"late\.txt", json.dumps(must(folder, "ls", rev="main")))
    must(folder, "commit", message="after", changes=put("after.txt", "a\n"), advance="main")
    sound(folder)
