"""Sync: many unpublished changes landed anew on a remote that moved, and pushed; and a store served to stock git.

The peer of `rw sync` is what a person does with git: fetch, rebase the same commits, push. Both start from the same
history and end with the same tree at the remote. Then `rw serve`, `git daemon` and a path give and take the same
repository.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common


def prepare(at: Path, count: int, files: int) -> str:
    """Makes a store with `count` changes that its remote lacks, which has one that the store lacks; gives its head."""
    from ropewalk.remote import remotes
    from ropewalk.store import changes
    from ropewalk.store.changes import Change, Content
    from ropewalk.store.store import Store

    base = common.make_store(at / "store", files=files, commits=10)
    origin = at / "origin.git"
    common.git(at, "init", "-q", "--bare", "-b", "main", str(origin))
    with Store(str(at / "store")) as store:
        remote = remotes.add(store, "origin", str(origin), common.AGENT)
        remotes.push(store, remote, "main", None, common.AGENT)
        head = base
        for number in range(count):
            entry = Change(
                common.file_name(number % files), content=Content(inline=common.text(number, 1500, f"mine {number}"))
            )
            head = changes.commit(
                store, agent=common.AGENT, message=f"Change {number}", changes=[entry], parent=head, advance="main",
                key=None, read_file=changes.read_disk_file,
            ).changeset  # fmt: skip
    blob = common.git(origin, "hash-object", "-w", "--stdin", stdin=b"by another\n")
    listed = common.git(origin, "ls-tree", "main") + f"\n100644 blob {blob}\tother.txt\n"
    tree = common.git(origin, "mktree", stdin=listed.encode())
    moved = common.git(origin, "commit-tree", "-p", "main", "-m", "By another", tree)
    common.git(origin, "update-ref", "refs/heads/main", moved)
    return head


def by_sync(at: Path) -> float:
    """Syncs, as one process; gives the seconds."""
    env = common.environment(ROPEWALK_STORE=str(at / "store"), ROPEWALK_AGENT=common.AGENT)
    start = time.monotonic()
    done = subprocess.run([*common.rw_command(), "sync", "--json"], env=env, capture_output=True)
    took = time.monotonic() - start
    if done.returncode:
        raise SystemExit(f"the sync ended with {done.returncode}: {done.stdout.decode()[:500]}")
    return took


def by_rebase(at: Path, origin: Path, clone: Path) -> float:
    """Fetches, rebases and pushes in a clone; gives the seconds."""
    start = time.monotonic()
    common.git(clone, "fetch", "-q", str(origin), "main")
    common.git(clone, "rebase", "-q", "FETCH_HEAD")
    common.git(clone, "push", "-q", str(origin), "HEAD:main")
    return time.monotonic() - start


@contextmanager
def served(root: Path) -> Iterator[str]:
    """Gives the URL of a running `rw serve` that takes pushes."""
    argv = [*common.rw_command(), "serve", "--port", "0", "--read-write", "--store", str(root)]
    with subprocess.Popen(argv, env=common.environment(), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            yield json.loads(child.stdout.readline())["serving"]
        finally:
            child.send_signal(signal.SIGTERM)


@contextmanager
def daemon(root: Path) -> Iterator[str]:
    """Gives the URL of a running `git daemon` that takes pushes."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = made.getsockname()[1]
    argv = ["git", "daemon", "--export-all", "--enable=receive-pack", f"--base-path={root}", "--listen=127.0.0.1",
            f"--port={port}", "--log-destination=none"]  # fmt: skip
    child = subprocess.Popen(argv, env=common.environment(), start_new_session=True)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                if child.poll() is not None:
                    raise SystemExit("git daemon ended") from None
        yield f"git://127.0.0.1:{port}/origin.git"
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        child.wait()


def serving(at: Path, rounds: int) -> list[tuple[str, float, float, float]]:
    """Gives, for each way to reach the same history, the median seconds of a clone, of a fetch and of a push."""
    from ropewalk.remote import tokens
    from ropewalk.remote.tokens import EVERYTHING
    from ropewalk.store.store import Store

    with Store(str(at / "store")) as store:
        secret = tokens.create(store, "bench", common.AGENT, EVERYTHING, common.AGENT)
    rows: list[tuple[str, float, float, float]] = []
    store_path, bare = str(at / "store" / "repo.git"), str(at / "origin.git")
    with served(at / "store") as http, daemon(at) as git:
        ways = (("rw serve", http.replace("//", f"//bench:{secret}@")), ("store, by path", store_path),
                ("git daemon", git), ("bare repository, by path", f"file://{bare}"))  # fmt: skip
        for name, url in ways:
            times: dict[str, list[float]] = {"clone": [], "fetch": [], "push": []}
            for number in range(rounds):
                folder = at / f"{name.split(',')[0].replace(' ', '-')}-{len(rows)}-{number}"
                _timed(times["clone"], at, "clone", "-q", "--no-local", "-b", "main", url, str(folder))
                (folder / "new.txt").write_text(f"{name} {number}\n")
                common.git(folder, "add", "-A")
                common.git(folder, "commit", "-q", "-m", "New")
                _timed(times["push"], folder, "push", "-q", "origin", f"HEAD:refs/heads/b{len(rows)}-{number}")
                _timed(times["fetch"], folder, "fetch", "-q", "origin")
            rows.append(
                (name, common.median(times["clone"]), common.median(times["fetch"]), common.median(times["push"]))
            )
    return rows


def _timed(into: list[float], folder: Path, *words: str) -> None:
    start = time.monotonic()
    common.git(folder, *words)
    into.append(time.monotonic() - start)


def main() -> int:
    """Runs what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--changes", type=int, help="how many (default 1000; quick 50)")
    parser.add_argument("--files", type=int, default=400, help="how many files the tree has")
    parser.add_argument("--rounds", type=int, help="of clone, fetch and push for each way (default 5; quick 1)")
    asked = parser.parse_args()
    count = asked.changes or (50 if asked.quick else 1000)
    rounds = asked.rounds or (1 if asked.quick else 5)
    figures: dict[str, Any] = {"changes": count, "files": asked.files}
    with common.folder() as at:
        head = prepare(at, count, asked.files)
        other = at / "peer.git"
        common.git(at, "clone", "-q", "--mirror", str(at / "origin.git"), str(other))
        clone = at / "clone"
        common.git(at, "clone", "-q", "-b", "main", str(at / "store" / "repo.git"), str(clone))
        if common.git(clone, "rev-parse", "HEAD") != head:
            raise SystemExit("the peer does not start with the same history")
        ours = by_sync(at)
        theirs = by_rebase(at, other, clone)
        ends = [common.git(repo, "rev-parse", "main^{tree}") for repo in (at / "origin.git", other)]
        counts = [int(common.git(repo, "rev-list", "--count", "main")) for repo in (at / "origin.git", other)]
        if ends[0] != ends[1] or counts[0] != counts[1]:
            raise SystemExit(f"the two ways ended with different histories: {ends}, {counts}")
        rows = [("rw sync", ours, count / ours, ""), ("git fetch, rebase, push", theirs, count / theirs,
                                                      f"{common.shown(theirs / ours)}x")]  # fmt: skip
        common.table(f"{count} unpublished changes onto a remote that moved, {asked.files} files",
                     ("way", "seconds", "changes a second", "rw sync is"), rows)  # fmt: skip
        reached = serving(at, rounds)
        common.table(f"the same history ({counts[0]} commits) to stock git, median seconds of {rounds}",
                     ("way", "clone", "fetch", "push"), reached)  # fmt: skip
    figures |= {"sync": ours, "rebase": theirs, "serving": {name: list(times) for name, *times in reached}}
    common.finish("sync", figures, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
