"""Many prepared changes landed by one command, against as many branches merged one after another.

The changes edit a file each and stand on one base. `rw land A B C … --onto main` is one process, and each land an
operation of its own in the log; the peer runs `git merge --no-edit BRANCH` once a branch, in a clone with a work
tree. Both work on the same repository, each round on a fresh copy of it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import common


def prepare(root: Path, files: int, count: int) -> list[str]:
    """Makes the store and the changes, and gives the changes' ids."""
    from ropewalk.store import changes
    from ropewalk.store.changes import Change, Content
    from ropewalk.store.store import Store

    base = common.make_store(root, files=files, commits=20)
    made = []
    with Store(str(root)) as store:
        for number in range(count):
            n = number * 3 % files
            content = Content(inline=common.text(n, 1500, f"change {number}"))
            one = changes.commit(
                store,
                agent=f"bench/w{number % 16}",
                message=f"Change {number}",
                changes=[Change(common.file_name(n), content=content)],
                parent=base,
                advance=None,
                key=None,
                read_file=changes.read_disk_file,
            )
            made.append(one.changeset)
    return made


def by_ropewalk(root: Path, made: list[str]) -> float:
    """Lands all by one command and gives the seconds."""
    env = common.environment(ROPEWALK_STORE=str(root), ROPEWALK_AGENT=common.AGENT)
    start = time.perf_counter()
    done = subprocess.run(
        [*common.rw_command(), "land", *made, "--onto", "main", "--json"], env=env, cwd=root, capture_output=True
    )
    seconds = time.perf_counter() - start
    envelope = json.loads(done.stdout)
    if done.returncode or not envelope["ok"]:
        raise SystemExit(f"rw land ended with {done.returncode}: {done.stdout[:600]!r} {done.stderr[:600]!r}")
    return seconds


def by_git(clone: Path, made: list[str]) -> float:
    """Merges all, one after another, and gives the seconds."""
    env = common.environment()
    start = time.perf_counter()
    for number in range(len(made)):
        done = subprocess.run(
            ["git", "merge", "-q", "--no-edit", f"origin/change{number}"],
            cwd=clone, env=env, stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"git merge failed: {done.stderr!r}")
    return time.perf_counter() - start


def main() -> int:
    """Runs what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--changes", type=int, help="how many (default 512; quick 48)")
    parser.add_argument("--files", type=int, help="files of the repository (default 2000; quick 400)")
    parser.add_argument("--rounds", type=int, help="rounds (default 3; quick 1)")
    asked = parser.parse_args()
    count = asked.changes or (48 if asked.quick else 512)
    files = asked.files or (400 if asked.quick else 2000)
    rounds = asked.rounds or (1 if asked.quick else 3)
    ours: list[float] = []
    theirs: list[float] = []
    with common.folder() as at:
        first = at / "first"
        made = prepare(first, files, count)
        common.git(at, "clone", "-q", "--bare", str(first / "repo.git"), "origin.git")
        # only what a ref names is cloned, so the changes get their branches in the peer's repository
        spread = "".join(f"create refs/heads/change{n} {oid}\n" for n, oid in enumerate(made))
        common.git(at / "origin.git", "fetch", "-q", str(first / "repo.git"), *made)
        common.git(at / "origin.git", "update-ref", "--stdin", stdin=spread.encode())
        for number in range(rounds):
            store, clone = at / f"store{number}", at / f"clone{number}"
            shutil.copytree(first, store)
            common.git(at, "clone", "-q", "-b", "main", "origin.git", str(clone))
            ours.append(by_ropewalk(store, made))
            theirs.append(by_git(clone, made))
            one = common.git(store / "repo.git", "rev-parse", "main^{tree}")
            two = common.git(clone, "rev-parse", "HEAD^{tree}")
            if one != two:
                raise SystemExit("the two ways made different trees")
    mine, peer = common.median(ours), common.median(theirs)
    common.table(
        f"{count} changes on {files} files, median of {rounds}",
        ("way", "seconds", "a second", "ropewalk is"),
        [
            ("rw land A B C …", mine, count / mine, ""),
            ("git merge, one by one", peer, count / peer, f"{common.shown(peer / mine)}x"),
        ],
    )
    common.finish("many", {"changes": count, "files": files, "ropewalk_seconds": ours, "git_seconds": theirs,
                           "times": peer / mine}, asked.json)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
