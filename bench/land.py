"""Commit and land, from many writer processes at once: ropewalk, MCP sessions, clones that push, and git plumbing.

A pair is one commit of one file and its landing on main, whoever else lands meanwhile. Every writer edits files of
its own, so there is no conflict. All peers work on the same repository in one run, their rounds interleaved:

ropewalk  a process that keeps the store open and calls commit and land; durable when it answers
mcp       a client process and its `rw mcp` server, JSON-RPC over pipes: tools/call commit, tools/call land
plumbing  hash-object, read-tree, update-index, write-tree, commit-tree, then under one flock merge-tree, commit-tree,
          update-ref NEW OLD; a bare repository, core.fsync=none
clones    a clone a writer: edit, git commit -a, then git pull --rebase and git push until the push goes through

After each round the head is checked: as many commits as pairs were answered, and every file as it was landed last.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import common

PEERS = ("ropewalk", "mcp", "plumbing", "clones")
FILES, COMMITS = 400, 200


# workers


def ropewalk_worker(spec: dict[str, Any]) -> None:
    """Keeps the store open and calls the library."""
    from ropewalk.store import changes, land
    from ropewalk.store.changes import Change, Content
    from ropewalk.store.store import Store

    agent = f"bench/w{spec['index']}"
    extra = {"attempts": 0}
    store = Store(spec["store"], lock_wait=120.0)
    store.ref("refs/heads/main")
    profile: Any = None
    if spec.get("profile"):
        import cProfile

        profile = cProfile.Profile()

    def pair(path: str, content: str) -> None:
        made = changes.commit(
            store,
            agent=agent,
            message=f"Edit {path}",
            changes=[Change(path, content=Content(inline=content))],
            parent="main",
            advance=None,
            key=None,
            read_file=changes.read_disk_file,
        )
        landed = land.land(store, land.request(agent=agent, change=made.changeset, ref="refs/heads/main"))
        assert landed.status == "landed", landed
        extra["attempts"] += landed.attempts

    if profile is not None:
        profile.enable()
    common.work(spec, pair, extra)
    if profile is not None:
        profile.disable()
        profile.dump_stats(f"{spec['profile']}.{spec['index']}")
    store.close()


def mcp_worker(spec: dict[str, Any]) -> None:
    """Speaks to a server of its own."""
    from session import Session

    session = Session(spec["store"], f"bench/m{spec['index']}")

    def pair(path: str, content: str) -> None:
        made = session.call("commit", {"message": f"Edit {path}", "parent": "main",
                                       "changes": [{"path": path, "content": {"inline": content}}]})  # fmt: skip
        landed = session.call("land", {"head": made["result"]["changeset"], "onto": "main"})
        assert landed["result"]["status"] == "landed", landed

    common.work(spec, pair)
    session.close()


def clone_worker(spec: dict[str, Any]) -> None:
    """Works as an agent with a clone does."""
    clone = Path(spec["clones"]) / f"c{spec['index']}"
    env = common.environment()
    extra = {"pushes": 0}

    def call(*args: str) -> int:
        done = subprocess.run(["git", *args], cwd=clone, env=env, stdin=subprocess.DEVNULL, capture_output=True)
        return done.returncode

    def pair(path: str, content: str) -> None:
        (clone / path).write_text(content, encoding="utf-8")
        if call("commit", "-q", "-a", "-m", f"Edit {path}"):
            raise SystemExit("git commit failed")
        while True:
            if call("pull", "-q", "--rebase", "origin", "main"):
                raise SystemExit("git pull --rebase failed")
            extra["pushes"] += 1
            if call("push", "-q", "origin", "HEAD:main") == 0:
                return

    common.work(spec, pair, extra)


def plumbing_worker(spec: dict[str, Any]) -> None:
    """Publishes with git's low-level commands under one lock."""
    repo = spec["bare"]
    env = common.environment(
        GIT_DIR=repo, GIT_INDEX_FILE=f"{repo}/bench-index-{spec['index']}",
        GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="core.fsync", GIT_CONFIG_VALUE_0="none",
    )  # fmt: skip

    def call(*args: str, stdin: str = "") -> str:
        done = subprocess.run(["git", *args], env=env, input=stdin, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"git {args[0]} failed: {done.stderr}")
        return done.stdout.strip()

    def pair(path: str, content: str) -> None:
        parent = call("rev-parse", "refs/heads/main")
        blob = call("hash-object", "-w", "--stdin", stdin=content)
        call("read-tree", parent)
        call("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
        tree = call("write-tree")
        change = call("commit-tree", tree, "-p", parent, "-m", f"Edit {path}")
        lock = os.open(f"{repo}/bench.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            head = call("rev-parse", "refs/heads/main")
            merged = call("merge-tree", "--write-tree", head, change)
            new = call("commit-tree", merged, "-p", head, "-m", f"Edit {path}")
            call("update-ref", "refs/heads/main", new, head)
        finally:
            os.close(lock)

    common.work(spec, pair)


WORKERS = {"ropewalk": ropewalk_worker, "mcp": mcp_worker, "clones": clone_worker, "plumbing": plumbing_worker}


# the run


def prepare(at: Path, writers: int, peers: list[str]) -> dict[str, str]:
    """Makes one repository and gives every peer its copy of it."""
    first = at / "first"
    common.make_store(first, files=FILES, commits=COMMITS)
    source = first / "repo.git"
    for name in ("ropewalk", "mcp"):
        shutil.copytree(first, at / name)
    for name in ("plumbing", "clones"):
        common.git(at, "clone", "-q", "--bare", str(source), f"{name}.git")
    (at / "clones").mkdir()
    if "clones" in peers:
        for index in range(writers):
            common.git(at, "clone", "-q", "-b", "main", str(at / "clones.git"), f"clones/c{index}")
    return {
        "ropewalk": str(at / "ropewalk"),
        "mcp": str(at / "mcp"),
        "plumbing": str(at / "plumbing.git"),
        "clones": str(at / "clones.git"),
    }


def lost(repo: str, before: int, result: common.Result) -> int:
    """Gives how many answered pairs are not on the head: commits that miss, or files that are not as landed last."""
    missing = before + len(result["times"]) - int(common.git(repo, "rev-list", "--count", "main"))
    wrong = 0
    asked = "".join(f"main:{path}\n" for path in result["last"])
    done = subprocess.run(
        ["git", "cat-file", "--batch"], cwd=repo, env=common.environment(), input=asked.encode(), capture_output=True
    )
    for said in result["last"].values():
        wrong += said.encode() not in done.stdout
    return max(missing, wrong) if missing >= 0 else abs(missing)


def measure(writers: int, rounds: int, seconds: float, peers: list[str], profile: str | None = None) -> dict[str, Any]:
    """Gives the figures of one number of writers."""
    results: dict[str, list[common.Result]] = {peer: [] for peer in peers}
    gone = dict.fromkeys(peers, 0)
    with common.folder() as at:
        places = prepare(at, writers, peers)
        for number in range(rounds):
            for peer in peers:
                repo = places[peer] if peer in ("plumbing", "clones") else f"{places[peer]}/repo.git"
                before = int(common.git(repo, "rev-list", "--count", "main"))
                settings = {"round": number, "files": FILES, "store": places[peer], "bare": places[peer],
                            "clones": str(at / "clones")}  # fmt: skip
                if profile and peer == "ropewalk":
                    settings["profile"] = profile
                result = common.run_workers(__file__, peer, writers, seconds, settings)
                gone[peer] += lost(repo, before, result)
                results[peer].append(result)
    figures: dict[str, Any] = {}
    for peer, some in results.items():
        times = [t for r in some for t in r["times"]]
        rate = common.median([len(r["times"]) / r["seconds"] for r in some])
        extra = {name: sum(r["extra"].get(name, 0) for r in some) / len(times) for r in some[:1] for name in r["extra"]}
        figures[peer] = {
            "pairs": len(times),
            "pairs_per_second": rate,
            "p50_ms": common.percentile(times, 0.5) * 1000,
            "p99_ms": common.percentile(times, 0.99) * 1000,
            "max_ms": max(times) * 1000,
            "lost": gone[peer],
            **{f"{name}_per_pair": value for name, value in extra.items()},
        }
    ours = figures["ropewalk"]["pairs_per_second"] if "ropewalk" in figures else None
    for figure in figures.values():
        figure["ropewalk_is_times"] = ours / figure["pairs_per_second"] if ours else None
        figure["p99_over_p50"] = figure["p99_ms"] / figure["p50_ms"]
    return figures


def main() -> int:
    """Runs what the command line asks for."""
    if len(sys.argv) == 3 and sys.argv[1] == "--worker":
        spec = json.loads(sys.argv[2])
        WORKERS[spec["kind"]](spec)
        return 0
    parser = common.arguments(__doc__)
    parser.add_argument("--writers", type=int, action="append", metavar="N", help="writer processes (default 1, 8, 32)")
    parser.add_argument("--rounds", type=int, help="rounds of each peer (default 3; quick 1)")
    parser.add_argument("--seconds", type=float, help="length of a round (default 5; quick 1)")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--profile", metavar="FILE", help="write a cProfile of each ropewalk worker to FILE.N")
    asked = parser.parse_args()
    rounds = asked.rounds or (1 if asked.quick else 3)
    seconds = asked.seconds or (1.0 if asked.quick else 5.0)
    figures: dict[str, Any] = {}
    for writers in asked.writers or [1, 8, 32]:
        figures[str(writers)] = found = measure(writers, rounds, seconds, asked.peers.split(","), asked.profile)
        common.table(
            f"commit+land, {writers} writer{'s' if writers > 1 else ''}, {rounds} rounds of {seconds:g} s",
            ("peer", "pairs/s", "p50 ms", "p99 ms", "max ms", "p99/p50", "lost", "ropewalk is"),
            [
                (peer, f["pairs_per_second"], f["p50_ms"], f["p99_ms"], f["max_ms"], f["p99_over_p50"], f["lost"],
                 f"{common.shown(f['ropewalk_is_times'])}x" if f["ropewalk_is_times"] else "")
                for peer, f in found.items()
            ],
        )  # fmt: skip
    common.finish("land", {"rounds": rounds, "seconds": seconds, "writers": figures}, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
