"""What the benchmarks share: a repository to work on, worker processes that start together, medians and tables."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))

AGENT = "bench/one"
GIT_ENV = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "Bench",
    "GIT_AUTHOR_EMAIL": "bench@example.org",
    "GIT_COMMITTER_NAME": "Bench",
    "GIT_COMMITTER_EMAIL": "bench@example.org",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "gc.auto",
    "GIT_CONFIG_VALUE_0": "0",
    "GIT_CONFIG_KEY_1": "maintenance.auto",
    "GIT_CONFIG_VALUE_1": "false",
}


def environment(**more: str) -> dict[str, str]:
    """Gives the environment of every child: ours on the path, and nothing of the caller's git, ropewalk or Python.

    Packages are compiled where they are installed, so that children may keep what they compiled here.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "ROPEWALK_", "PYTHON"))}
    return {**kept, **GIT_ENV, "PYTHONPATH": str(ROOT / "src"), **more}


def git(folder: Path | str, *args: str, stdin: bytes | None = None, ok: tuple[int, ...] = (0,)) -> str:
    """Runs git in a folder and gives what it printed, without the last line end."""
    done = subprocess.run(
        ["git", *args], cwd=folder, env=environment(), input=stdin if stdin is not None else b"", capture_output=True
    )
    if done.returncode not in ok:
        raise SystemExit(f"git {' '.join(args)} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode().rstrip("\n")


def rw_command() -> list[str]:
    """Gives the installed `rw` beside this Python, else the module as a program."""
    beside = Path(sys.executable).parent / "rw"
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "ropewalk.cli.main"]


def text(number: int, size: int, salt: str = "") -> str:
    """Gives a file's text of about `size` bytes; every line is its own."""
    lines: list[str] = []
    length = 0
    while length < size:
        lines.append(f"def f_{number}_{len(lines)}(value):  # {salt}\n")
        length += len(lines[-1])
    return "".join(lines)


def file_name(number: int) -> str:
    """Gives the path of the n-th file: twenty files a folder."""
    return f"src/part{number // 20:03d}/file{number:05d}.py"


def make_store(root: Path, *, files: int, commits: int, size: int = 1500) -> str:
    """Makes a store whose main has `files` files in `commits` commits, and gives its head."""
    from ropewalk.store import changes, layout
    from ropewalk.store.changes import Change, Content
    from ropewalk.store.store import Store

    layout.create(str(root), "bench-store", "bench", "main")
    with Store(str(root)) as store:
        head: str | None = None
        for number in range(commits):
            if number == 0:
                entries = [Change(file_name(n), content=Content(inline=text(n, size))) for n in range(files)]
            else:
                n = number * 7 % files
                entries = [Change(file_name(n), content=Content(inline=text(n, size, f"edit {number}")))]
            made = changes.commit(
                store,
                agent=AGENT,
                message=f"Step {number}",
                changes=entries,
                parent=head,
                advance="main",
                key=None,
                read_file=changes.read_disk_file,
            )
            head = made.changeset
    assert head is not None
    return head


@contextmanager
def folder(keep: str | None = None) -> Iterator[Path]:
    """Gives a temporary folder, whose subfolders lie apart on the disk; `keep` names one that stays.

    ext4 passes over inodes that were freed in the last minutes, one by one, when it makes a file in their block
    group (without a journal always, else after a crash). What one peer, or an earlier run, has deleted would slow
    down the next one's every file by up to thirty times. So the folder is marked as the top of a hierarchy, which
    makes ext4 spread its subfolders over the groups, and nothing is deleted before the end.
    """
    made = Path(keep) if keep else Path(tempfile.mkdtemp(prefix="ropewalk-bench-"))
    made.mkdir(parents=True, exist_ok=True)
    _spread(made)
    try:
        yield made
    finally:
        if not keep:
            shutil.rmtree(made, ignore_errors=True)


def _spread(path: Path) -> None:
    """Sets ext4's flag `T` on a folder; other file systems have no such flag and need none."""
    get_flags, set_flags, top = 0x80086601, 0x40086602, 0x00020000
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = struct.unpack("L", fcntl.ioctl(fd, get_flags, struct.pack("L", 0)))[0]
        fcntl.ioctl(fd, set_flags, struct.pack("L", flags | top))
    except OSError:
        pass
    finally:
        os.close(fd)


# workers: real processes of the same script, released together


class Result(dict[str, Any]):
    """Is what the workers of one round did together: seconds of each pair, and when the last one ended."""


def run_workers(script: str, kind: str, count: int, seconds: float, settings: dict[str, Any]) -> Result:
    """Starts `count` workers, releases them at one moment, and gives all their times.

    Each worker prints `ready` when it is prepared and gets the moment to start by its standard input.
    """
    workers = []
    for index in range(count):
        spec = json.dumps({"kind": kind, "index": index, "count": count, "seconds": seconds, **settings})
        workers.append(
            subprocess.Popen(
                [sys.executable, script, "--worker", spec],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(),
                text=True,
            )
        )
    return released(workers, kind)


def released(workers: Sequence[subprocess.Popen[str]], kind: str) -> Result:
    """Releases workers at one moment once all are ready, and gives all their times."""
    count = len(workers)
    try:
        for worker in workers:
            assert worker.stdout is not None
            if worker.stdout.readline().strip() != "ready":
                raise SystemExit(f"a {kind} worker could not start")
        start = time.monotonic() + 0.05 + 0.002 * count
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{start}\n")
            worker.stdin.flush()
        times: list[float] = []
        ends: list[float] = [start]
        last: dict[str, str] = {}
        extra: dict[str, int] = {}
        for worker in workers:
            out, _ = worker.communicate(timeout=1800)
            if worker.returncode != 0:
                raise SystemExit(f"a {kind} worker ended with {worker.returncode}")
            said = json.loads(out)
            times += said["times"]
            ends.append(said["end"])
            last.update(said["last"])
            for name, number in said.get("extra", {}).items():
                extra[name] = extra.get(name, 0) + number
        return Result(kind=kind, times=times, seconds=max(ends) - start, last=last, extra=extra)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()


def work(spec: dict[str, Any], pair: Callable[[str, str], None], extra: dict[str, int] | None = None) -> None:
    """Is a worker's life: say ready, wait for the moment, do pairs on one's own files until the time is over."""
    files = [n for n in range(spec["files"]) if n % spec["count"] == spec["index"]]
    print("ready", flush=True)
    start = float(sys.stdin.readline())
    while (left := start - time.monotonic()) > 0:
        time.sleep(left)
    times: list[float] = []
    last: dict[str, str] = {}
    number = 0
    while True:
        began = time.monotonic()
        if number and (began - start >= spec["seconds"] or number == spec.get("pairs")):
            break
        n = files[number % len(files)]
        content = text(n, 1500, f"round {spec['round']} writer {spec['index']} pair {number}")
        pair(file_name(n), content)
        times.append(time.monotonic() - began)
        last[file_name(n)] = content.split("# ", 1)[1].split("\n", 1)[0]
        number += 1
    print(json.dumps({"times": times, "end": time.monotonic(), "last": last, "extra": extra or {}}))


# figures


def median(values: Sequence[float]) -> float:
    """Gives the median."""
    return statistics.median(values)


def percentile(values: Sequence[float], part: float) -> float:
    """Gives the value that `part` of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints a table."""
    cells = [[str(c) for c in head], *[[shown(c) for c in row] for row in rows]]
    widths = [max(len(row[n]) for row in cells) for n in range(len(head))]
    print(f"\n{title}")
    for row in cells:
        print(
            "  "
            + "  ".join(c.ljust(w) if n == 0 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True)))
        )


_BEGAN = time.monotonic()


def progress(words: str) -> None:
    """Says on standard error what is being measured now, and since when the run lasts."""
    print(f"{time.monotonic() - _BEGAN:6.1f} s  {words}", file=sys.stderr, flush=True)


def shown(value: Any) -> str:
    """Gives a figure as a person reads it."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return "" if value is None else str(value)


def machine() -> dict[str, Any]:
    """Gives what the figures were measured on."""
    versions = subprocess.run(["git", "--version"], capture_output=True, text=True).stdout.split()
    return {
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "git": versions[2] if len(versions) > 2 else "",
        "kernel": platform.release(),
        "filesystem": subprocess.run(
            ["stat", "-f", "-c", "%T", tempfile.gettempdir()], capture_output=True, text=True
        ).stdout.strip(),
    }


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Gives the parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smaller run that only shows that it works")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    return parser


def finish(name: str, figures: dict[str, Any], path: str | None) -> None:
    """Writes the figures as JSON if asked."""
    if path:
        data = {"bench": name, "machine": machine(), "at": int(time.time()), **figures}
        Path(path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
