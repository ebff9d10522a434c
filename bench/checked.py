"""Checked landing: changes that are ready at the same moment, each to land on a tree on which its check passed.

Three ways on the same changes: the queue (`rw land ID --check`, one process a change), one at a time (a clone in
which each change is merged, checked and pushed before the next), and land-check-retry (a clone for each change that
merges, checks and pushes, and begins again when another was faster). All may run the same number of checks at once.
The check writes down the tree that it read and how it ended, and takes two seconds. At the end each commit on main
must stand there with a pass. With --broken one change fails its check, and must not be on main.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from pathlib import Path

import common

CHECK = """\
tree=$(git rev-parse 'HEAD^{tree}')
echo "begin $tree" >> "$1"
sleep "$2"
if test -e broken; then echo "$tree 1" >> "$1"; exit 1; fi
echo "$tree 0" >> "$1"
"""


def prepare(root: Path, files: int, count: int, broken: int | None) -> list[str]:
    """Makes the store and the changes, one of which may be broken; gives their ids."""
    from ropewalk.store import changes
    from ropewalk.store.changes import Change, Content
    from ropewalk.store.store import Store

    base = common.make_store(root, files=files, commits=10)
    made = []
    with Store(str(root)) as store:
        for number in range(count):
            entries = [Change(common.file_name(number), content=Content(inline=common.text(number, 1500, "mine")))]
            if number == broken:
                entries.append(Change("broken", content=Content(inline="x\n")))
            one = changes.commit(
                store, agent=f"bench/w{number}", message=f"Change {number}", changes=entries, parent=base,
                advance=None, key=None, read_file=changes.read_disk_file,
            )  # fmt: skip
            made.append(one.changeset)
    return made


def by_queue(root: Path, made: list[str], check: list[str], jobs: int) -> tuple[float, list[float]]:
    """Lands all at once through the queue; gives the seconds, and those after which each was answered."""
    start = time.monotonic()
    ends: list[float] = []
    children = []
    for number, change in enumerate(made):
        env = common.environment(ROPEWALK_STORE=str(root), ROPEWALK_AGENT=f"bench/w{number}",
                                 XDG_DATA_HOME=str(root.parent / "data"))  # fmt: skip
        argv = [*common.rw_command(), "land", change, "--onto", "main", "--jobs", str(jobs), "--json", "--", *check]
        children.append(subprocess.Popen(argv, env=env, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def wait(child: subprocess.Popen[bytes]) -> None:
        child.wait()
        ends.append(time.monotonic() - start)

    waits = [threading.Thread(target=wait, args=(child,)) for child in children]
    for one in waits:
        one.start()
    for one in waits:
        one.join()
    return max(ends), sorted(ends)


def merged(clone: Path, number: int) -> bool:
    """Merges a change onto the present main of the origin."""
    common.git(clone, "fetch", "-q", "origin", "main")
    common.git(clone, "reset", "-q", "--hard", "origin/main")
    common.git(clone, "merge", "-q", "--no-ff", "--no-edit", f"origin/change{number}")
    return True


def one_at_a_time(at: Path, origin: Path, count: int, check: list[str]) -> float:
    """Merges, checks and pushes one change after another; gives the seconds."""
    clone = at / "clone-single"
    common.git(at, "clone", "-q", "-b", "main", str(origin), str(clone))
    start = time.monotonic()
    for number in range(count):
        merged(clone, number)
        if subprocess.run(check, cwd=clone, env=common.environment(), capture_output=True).returncode == 0:
            common.git(clone, "push", "-q", "origin", "HEAD:main")
    return time.monotonic() - start


def retrying(at: Path, origin: Path, count: int, check: list[str], jobs: int) -> float:
    """Lets a thread for each change merge, check and push until it is through; gives the seconds."""
    clones = [at / f"clone{number}" for number in range(count)]
    for clone in clones:
        common.git(at, "clone", "-q", "-b", "main", str(origin), str(clone))
    free = threading.Semaphore(jobs)

    def land(number: int) -> None:
        while True:
            with free:
                merged(clones[number], number)
                if subprocess.run(check, cwd=clones[number], env=common.environment(), capture_output=True).returncode:
                    return
                done = subprocess.run(["git", "push", "-q", "origin", "HEAD:main"], cwd=clones[number],
                                      env=common.environment(), capture_output=True)  # fmt: skip
            if done.returncode == 0:
                return

    start = time.monotonic()
    threads = [threading.Thread(target=land, args=(number,)) for number in range(count)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return time.monotonic() - start


def verified(repo: Path, base: str, log: Path) -> tuple[int, int]:
    """Gives how many commits are on main since the base, and how many runs of the check there were.

    Ends the benchmark when a landed tree did not pass.
    """
    with log.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        lines = file.read().splitlines()
    passed = {line.split()[0] for line in lines if line.endswith(" 0")}
    trees = common.git(repo, "log", "--first-parent", "--format=%T", f"{base}..main").split()
    unchecked = [tree for tree in trees if tree not in passed]
    if unchecked:
        raise SystemExit(f"landed without a passed check: {unchecked}")
    if common.git(repo, "ls-tree", "main", "broken"):
        raise SystemExit("the broken change landed")
    return len(trees), sum(line.startswith("begin") for line in lines)


def main() -> int:
    """Runs what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--changes", type=int, help="how many (default 16; quick 6)")
    parser.add_argument("--seconds", type=float, help="how long the check takes (default 2; quick 0.5)")
    parser.add_argument("--jobs", type=int, default=4, help="checks at once")
    parser.add_argument("--only-queue", action="store_true", help="leave the peers out")
    asked = parser.parse_args()
    count = asked.changes or (6 if asked.quick else 16)
    seconds = asked.seconds or (0.5 if asked.quick else 2.0)
    rows: list[tuple[object, ...]] = []
    figures: dict[str, object] = {"changes": count, "check_seconds": seconds, "jobs": asked.jobs}
    for broken in (None, count // 3):
        name = "all good" if broken is None else f"change {broken} broken"
        with common.folder() as at:
            made = prepare(at / "store", 200, count, broken)
            base = common.git(at / "store" / "repo.git", "rev-parse", "main")
            origin = at / "origin.git"
            common.git(at, "clone", "-q", "--bare", str(at / "store" / "repo.git"), str(origin))
            common.git(origin, "fetch", "-q", str(at / "store" / "repo.git"), *made)
            spread = "".join(f"create refs/heads/change{n} {oid}\n" for n, oid in enumerate(made))
            common.git(origin, "update-ref", "--stdin", stdin=spread.encode())
            (at / "check.sh").write_text(CHECK)

            def check(log: str, at: Path = at) -> list[str]:
                return ["sh", str(at / "check.sh"), str(at / log), str(seconds)]

            ours, ends = by_queue(at / "store", made, check("queue.log"), asked.jobs)
            landed, runs = verified(at / "store" / "repo.git", base, at / "queue.log")
            rows.append((name, "queue", ours, landed, runs, ""))
            found: dict[str, object] = {"queue": ours, "answered": ends, "landed": landed, "runs": runs}
            if not asked.only_queue:
                for way in ("one at a time", "land-check-retry"):
                    log, fresh = way.replace(" ", "-") + ".log", at / f"{way.replace(' ', '-')}.git"
                    common.git(at, "clone", "-q", "--mirror", str(origin), str(fresh))
                    took = (
                        one_at_a_time(at, fresh, count, check(log))
                        if way == "one at a time"
                        else retrying(at, fresh, count, check(log), asked.jobs)
                    )
                    landed, runs = verified(fresh, base, at / log)
                    rows.append((name, way, took, landed, runs, f"{common.shown(took / ours)}x"))
                    found[way] = took
            figures[name] = found
    common.table(
        f"{count} changes, a check of {seconds:g} s, {asked.jobs} at once",
        ("changes", "way", "seconds", "landed", "checks run", "the queue is"), rows,
    )  # fmt: skip
    common.finish("checked", figures, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
