"""Workspaces against `git worktree add`: the time and the disk that many of them take, and the first `git status`.

Every way makes as many folders of the same tree, one command after another, and then runs `git status` in each for
the first time. The peer is a clone with its worktrees. `overlay` is what `rw ws create` does for root by itself; who
has no right to mount gets `files`. As root, all is measured again as an ordinary user with --user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import common

USER = 1000


def disk(*folders: Path) -> int:
    """Gives the bytes of disk that folders take; files with several names count once, and mounts not at all."""
    words = ["du", "-s", "-x", "-B1", *(str(folder) for folder in folders if folder.exists())]
    return sum(
        int(line.split()[0]) for line in subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    )


def timed(work: Callable[[], object]) -> float:
    """Gives the seconds that something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def status(folder: Path) -> None:
    """Runs `git status` in a folder, which must be clean."""
    if common.git(folder, "status", "--porcelain"):
        raise SystemExit(f"{folder} is not clean")


def by_git(root: Path, place: Path, count: int) -> dict[str, Any]:
    """Makes worktrees of a clone."""
    clone = place / "clone"
    common.git(place, "clone", "-q", "--no-checkout", str(root / "repo.git"), str(clone))
    before = disk(place)
    made = [place / f"w{n}" for n in range(count)]
    create = [timed(partial(common.git, clone, "worktree", "add", "-q", "--detach", str(path))) for path in made]
    first = [timed(partial(status, path)) for path in made]
    return {"create": create, "status": first, "disk": disk(place) - before}


def by_ropewalk(root: Path, place: Path, count: int, overlay: str) -> dict[str, Any]:
    """Makes workspaces by the command."""
    env = common.environment(ROPEWALK_STORE=str(root), ROPEWALK_AGENT=common.AGENT, XDG_DATA_HOME=str(place))
    found: list[dict[str, Any]] = []
    before = disk(place, root)

    def create(name: str) -> None:
        words = [*common.rw_command(), "ws", "create", name, "--overlay", overlay, "--json"]
        done = subprocess.run(words, env=env, cwd=root, capture_output=True)
        if done.returncode:
            raise SystemExit(f"rw ws create ended with {done.returncode}: {done.stdout[:600]!r} {done.stderr[:600]!r}")
        found.append(json.loads(done.stdout)["result"])

    seconds = [timed(partial(create, f"{overlay}{n}")) for n in range(count)]
    first = [timed(partial(status, Path(one["path"]))) for one in found]
    return {"create": seconds, "status": first, "disk": disk(place, root) - before, "how": found[-1]["how"]}


def unmount(place: Path) -> None:
    """Unmounts what was mounted below a folder."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        points = [line.split()[4] for line in file]
    for point in points:
        if point.startswith(f"{place}/"):
            subprocess.run(["umount", "-l", point], check=True)


def measure(where: Path, files: int, count: int) -> dict[str, Any]:
    """Makes the store and measures every way."""
    root = where / "store"
    common.make_store(root, files=files, commits=1)
    found = {}
    ways: dict[str, Callable[[Path], dict[str, Any]]] = {
        "git worktree add": partial(by_git, root, count=count),
        "rw, files": partial(by_ropewalk, root, count=count, overlay="never"),
        "rw, overlay if it can": partial(by_ropewalk, root, count=count, overlay="auto"),
    }
    for name, work in ways.items():
        place = where / name.replace(" ", "-").replace(",", "")
        place.mkdir()
        try:
            found[name] = work(place)
        finally:
            unmount(place)
        total = sum(found[name]["create"])
        sys.stderr.write(f"uid {os.geteuid()}, {name}: {count} in {total:.1f} s, {found[name]['disk'] / 1e6:.0f} MB\n")
    return found


def as_user(where: Path, files: int, count: int) -> dict[str, Any]:
    """Measures in a folder as an ordinary user, in a child."""
    os.chown(where, USER, USER)
    ids = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    child = [sys.executable, __file__, "--where", str(where), "--files", str(files), "--count", str(count)]
    env = {**os.environ, "HOME": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
    # before minutes are spent: this Python, and what it imports, may be root's alone
    subprocess.run(["setpriv", *ids, sys.executable, "-c", "import ropewalk, apsw"], env=env, check=True)
    done = subprocess.run(["setpriv", *ids, *child], env=env, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def rows(who: str, found: dict[str, Any]) -> list[list[Any]]:
    """Gives the table's rows, each beside what the peer took."""
    peer, lines = found["git worktree add"], []
    for name, one in found.items():
        total, bytes_ = sum(one["create"]), one["disk"]
        lines.append([
            who, name if one.get("how") != "files" or name == "rw, files" else f"{name} (it can't)", round(total, 2),
            round(common.median(one["create"]) * 1000, 1), round(sum(one["create"] + one["status"]), 2),
            round(common.median(one["status"]) * 1000, 1), round(bytes_ / 1e6, 1),
            f"1/{sum(peer['create']) / total:.1f}", f"1/{peer['disk'] / max(1, bytes_):.1f}",
        ])  # fmt: skip
    return lines


def main() -> int:
    """Runs what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--files", type=int, default=20_000, help="files of the tree")
    parser.add_argument("--count", type=int, default=50, help="folders of each kind")
    parser.add_argument("--where", help="measure in this folder alone, as this user, and print JSON")
    parser.add_argument("--only-root", action="store_true", help="not again as an ordinary user")
    asked = parser.parse_args()
    files, count = (2000, 3) if asked.quick else (asked.files, asked.count)
    if asked.where:
        print(json.dumps(measure(Path(asked.where), files, count)))
        return 0
    found: dict[str, Any] = {}
    with common.folder() as first, common.folder() as where:  # nothing is deleted before all is measured
        if os.geteuid() == 0 and not asked.only_root and shutil.which("setpriv"):
            found[f"uid {USER}"] = as_user(first, files, count)
        found["root" if os.geteuid() == 0 else "user"] = measure(where, files, count)
    common.table(
        f"{count} folders of {files} files",
        ("who", "way", "all, s", "one, ms", "with status, s", "status, ms", "disk, MB", "time", "disk"),
        [row for who, one in found.items() for row in rows(who, one)],
    )
    common.finish("workspaces", {"files": files, "count": count, "rounds": found}, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
