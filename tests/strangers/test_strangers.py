"""Real projects' histories come in and go out with the same ids, and agents land on top of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.strangers import build
from tests.strangers.build import History, Project

FULL = bool(os.environ.get("RWTEST_FULL"))
AGENTS = 4
SAMPLES = 5 if FULL else 2


@pytest.mark.compat
@pytest.mark.parametrize("project", build.SMALL, ids=lambda p: p.name)
def test_a_small_real_history(project: Project, rw: Any, git: Any, tmp_path: Path) -> None:
    round_trip(project, rw, git, tmp_path)


@pytest.mark.compat
@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="fetches more from registries; runs with RWTEST_FULL=1")
@pytest.mark.parametrize("project", build.LARGE, ids=lambda p: p.name)
def test_a_large_real_history(project: Project, rw: Any, git: Any, tmp_path: Path) -> None:
    round_trip(project, rw, git, tmp_path)


def round_trip(project: Project, rw: Any, git: Any, tmp_path: Path) -> None:
    """Imports half of a history, reads it, imports the rest, lets agents land on it, and exports it back."""
    try:
        folders = build.fetch(project, tmp_path / "fetched", build.online(os.environ, tmp_path))
    except build.Unreachable as error:
        if FULL or os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no registry in reach: {error}")
    source = History(project, folders, git, tmp_path / "source.git")
    source.grow(2)
    rw.store = str(tmp_path / "store")
    rw.ok("init", "--store", rw.store, str(tmp_path))
    bring(rw, git, source.repo)
    source.grow()
    bring(rw, git, source.repo)
    assert refs(git, Path(rw.store) / "repo.git") == refs(git, source.repo)
    git("fsck", "--strict", "--full", folder=Path(rw.store) / "repo.git")
    reads_like_git(rw, git, source.repo)

    out = tmp_path / "out.git"
    for name in refs(git, source.repo):
        rw.ok("git", "export", str(out), "--ref", name)
    assert refs(git, out) == refs(git, source.repo)
    assert git("fsck", "--strict", "--full", folder=out) == ""

    before = rw.ok("resolve", "main")["id"]
    agents_land(rw, git)
    a_workspace_lands(rw, git, tmp_path)
    if FULL:
        reads_like_git(rw, git, Path(rw.store) / "repo.git")
    assert rw.ok("verify", "--deep")["problems"] == []
    done = rw.ok("git", "export", str(source.repo), "--ref", "main")
    assert (done["old_sha"], done["exported"]) == (before, AGENTS + 1)
    assert refs(git, source.repo) == refs(git, Path(rw.store) / "repo.git")
    assert git("fsck", "--strict", "--full", folder=source.repo) == ""
    record = os.environ.get("RWTEST_HISTORIES")
    if record:
        commits = git("rev-list", "--all", "--count", folder=source.repo)
        row = {"name": project.name, "registry": project.registry, "commits": int(commits),
               "refs": len(refs(git, source.repo)), "objects": len(git("cat-file", "--batch-all-objects",
               "--batch-check=%(objectname)", folder=source.repo).split())}  # fmt: skip
        with open(record, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def refs(git: Any, repo: Path) -> dict[str, str]:
    """Gives a repository's branches and tags with their ids, tag objects as themselves."""
    listed = git("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags", folder=repo)
    return dict(line.split(" ") for line in listed.splitlines())


def bring(rw: Any, git: Any, repo: Path) -> None:
    """Imports every ref of a repository and holds each answer against the source."""
    for name, oid in refs(git, repo).items():
        done = rw.ok("git", "import", str(repo), "--ref", name)
        assert done["git_head_sha"] == oid
        assert done["head_changeset"] == git("rev-parse", f"{name}^{{commit}}", folder=repo)


def sampled(items: list[str], count: int = SAMPLES) -> list[str]:
    """Gives a few items, spread over all."""
    return items[:: max(1, len(items) // count)][:count]


def reads_like_git(rw: Any, git: Any, repo: Path) -> None:
    """Holds log, history, blame, grep and diff of `main` against git's own answers."""
    ids = git("rev-list", "main", folder=repo).split()
    assert [e["id"] for e in rw.ok("log", "main", "--limit", "1000")["entries"]] == ids
    texts = [p for p in git("grep", "-I", "-l", "-e", "", "main", folder=repo).splitlines() if '"' not in p]
    for name in sampled([p.partition(":")[2] for p in texts]):
        wanted = git("log", "--follow", "--format=%H", "-M", "main", "--", name, folder=repo).split()
        assert [e["id"] for e in rw.ok("history", f"main:{name}", "--limit", "1000")["entries"]] == wanted, name
        blamed = git("blame", "--porcelain", "main", "--", name, folder=repo)
        wanted = re.findall(r"^([0-9a-f]{40}) \d+ \d+", blamed, re.MULTILINE)
        given: list[str] = []
        start = 1
        while start:
            page = rw.ok("blame", f"main:{name}", "--lines", f"{start}-")
            given += [line["changeset"] for line in page["lines"]]
            start = page.get("next")
        assert given == wanted, name
        raw = git.run("cat-file", "blob", f"main:{name}", folder=repo).stdout
        assert rw.run("cat", "--raw", f"main:{name}").stdout == raw
    found = rw.ok("grep", "return", "main", "--limit", "1000")
    lines = git.run("grep", "-I", "-n", "-E", "-e", "return", "main", folder=repo).stdout.splitlines()
    assert found["truncated"] or len(found["matches"]) == len(lines)
    for match, line in zip(found["matches"], lines, strict=False):
        assert (
            f"main:{match['path']}:{match['line']}:".encode()
            == line[: len(f"main:{match['path']}:{match['line']}:".encode())]
        )
    for new in sampled(ids):
        parents = git("rev-parse", f"{new}^@", folder=repo).split()
        for old in parents[:1]:
            rows, after = [], []
            while True:
                page = rw.ok("diff", old, new, "--limit", "1000", *after)
                rows += [(f["added"], f["deleted"]) for f in page["files"]]
                if not page.get("next"):
                    break
                after = ["--after", page["next"]]
            counts = git("diff-tree", "-r", "-M", "--numstat", "--diff-algorithm=myers", old, new, folder=repo)
            wanted_rows = [row.split("\t")[:2] for row in counts.splitlines()]
            assert [["-" if n is None else str(n) for n in row] for row in rows] == wanted_rows, (old, new)


LANDER = """
import json, subprocess, sys
from ropewalk.store import changes, land
from ropewalk.store.changes import Change, Content
from ropewalk.store.store import Store
store = Store(sys.argv[1])
name = sys.argv[2]
made = changes.commit(store, agent=f"agent/{name}", message=f"by {name}", parent=sys.argv[3], advance=None, key=None,
    changes=[Change(path=f"agents/{name}.txt", content=Content(inline=name)),
             Change(path=sys.argv[4], op="move", from_=sys.argv[5])] if sys.argv[4:] else
            [Change(path=f"agents/{name}.txt", content=Content(inline=name))], read_file=changes.read_disk_file)
sys.stdin.read()
print(land.land(store, land.request(agent=f"agent/{name}", change=made.changeset, ref="refs/heads/main")).status)
store.close()
"""


def agents_land(rw: Any, git: Any) -> None:
    """Lets agents land at once on one base, one of them a rename of a file of the project."""
    base = rw.ok("resolve", "main")["id"]
    repo = Path(rw.store) / "repo.git"
    first = next(p for p in git("ls-tree", "-r", "--name-only", "main", folder=repo).splitlines() if '"' not in p)
    children = []
    for number in range(AGENTS):
        words = [rw.store, f"a{number}", base, *([f"moved/{number}", first] if number == 0 else [])]
        children.append(subprocess.Popen([sys.executable, "-c", LANDER, *words], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, env=rw.env))  # fmt: skip
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
        child.stdin = None
    assert [child.communicate(timeout=120)[0].strip() for child in children] == [b"landed"] * AGENTS
    listed = git("ls-tree", "-r", "--name-only", "main", folder=repo).splitlines()
    assert {f"agents/a{n}.txt" for n in range(AGENTS)} | {"moved/0"} <= set(listed) and first not in listed
    assert git("rev-list", "--count", f"{base}..main", folder=repo) == str(AGENTS)


def a_workspace_lands(rw: Any, git: Any, tmp_path: Path) -> None:
    """Makes a workspace of the project, edits a file of it with the agent's own git, and lands that."""
    made = rw.ok("ws", "create", "w", "--dir", str(tmp_path / "w"))
    folder = Path(made["path"])
    assert git("status", "--porcelain", folder=folder) == ""
    assert rw.ok("ws", "status", "w")["changes"] == []
    name = next(
        p for p in git("ls-files", folder=folder).splitlines() if p.endswith((".py", ".js", ".c", ".md", ".txt"))
    )
    with open(folder / name, "a", encoding="utf-8") as file:
        file.write("# by an agent\n")
    (folder / "new.txt").write_text("new\n")
    assert {c["path"] for c in rw.ok("ws", "status", "w")["changes"]} == {name, "new.txt"}
    assert rw.ok("ws", "land", "w", "--message", "from a workspace")["land"]["status"] == "landed"
    assert git("diff", "--name-only", "main~1", "main", folder=Path(rw.store) / "repo.git").split() == sorted(
        [name, "new.txt"]
    )
