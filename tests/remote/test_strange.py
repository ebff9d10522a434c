"""What other programs wrote comes in and goes out unchanged, is read, and is landed on as git would do it."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from strange import COMMITS, FILE, TREES, Case, Raw

from ropewalk.cli.main import main

CASES = {**COMMITS, **TREES}


def said(line: list[str]) -> dict[str, Any]:
    """Gives the envelope of a command, run in this process."""
    out = io.BytesIO()
    kept = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(out), io.StringIO()
    try:
        main(["--json", *line])
        sys.stdout.flush()
        found: dict[str, Any] = msgspec.json.decode(out.getvalue())
    finally:
        sys.stdin, sys.stdout, sys.stderr = kept
    assert found["ok"] or found["error"]["code"] != "E_INTERNAL", (line, found)
    return found


def complaints(git: Any, repo: Path, *heads: str) -> set[str]:
    """Gives what `git fsck --strict` says of objects, without ids of what nothing names."""
    done = git.run("fsck", "--strict", "--full", "--no-dangling", "--no-reflogs", *heads, folder=repo)
    words = (done.stdout + done.stderr).decode("utf-8", "replace")
    return {line for line in words.splitlines() if line.startswith(("error", "warning", "missing", "broken"))}


@pytest.fixture
def here(new_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    store = new_store()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROPEWALK_STORE", store.layout.root)
    monkeypatch.setenv("ROPEWALK_AGENT", "test/one")
    return store


@pytest.mark.parametrize("name", CASES)
def test_it_comes_in_and_goes_out_unchanged(name: str, here: Any, tmp_path: Path, git: Any) -> None:
    case, source = CASES[name], tmp_path / "source.git"
    git("init", "--quiet", "--bare", "--template=", str(source))
    head = case.make(Raw(source)).decode()
    (source / "refs" / "heads" / "main").write_text(head + "\n")
    before = complaints(git, source)
    done = said(["git", "import", str(source)])
    if not done["ok"]:
        # what git's own clone refuses is refused
        assert git.run("clone", "--quiet", "--bare", f"file://{source}", str(tmp_path / "clone")).returncode, done
        assert done["error"]["hint"] and here.last_op() == 0
        return
    assert done["result"]["head_changeset"] == head
    assert said(["verify", "--deep"])["result"]["problems"] == []
    reads(head)
    repo = Path(here.layout.repo)
    here.expose()
    assert complaints(git, repo) == before
    out = tmp_path / "out.git"
    assert said(["git", "export", str(out)])["result"]["head_sha"] == head
    assert complaints(git, out) == before
    lands_like_git(case, here, git, source, head)
    checks_out(case, tmp_path)


def reads(head: str) -> None:
    """Reads what came in by every command that shows something of it; none may fail by a fault of ours."""
    assert [e["id"] for e in said(["log", "main", "--limit", "1"])["result"]["entries"]] == [head]
    shown = said(["show", "main"])["result"]
    assert shown["id"] == head and isinstance(shown["message"], str)
    for words in ("ls main --depth 3 --limit 5", "history main:a.txt", "blame main:a.txt", "cat main:a.txt",
                  "grep two main", "diff main main", "log main --path d"):  # fmt: skip
        said(words.split())
    for line in said(["ls", "main", "--limit", "20"])["result"]["entries"]:
        if line["kind"] in ("file", "symlink"):
            said(["cat", f"main:{line['name']}"])


def lands_like_git(case: Case, store: Any, git: Any, source: Path, head: str) -> None:
    """Lands a new file and a change on top, and holds the tree against the one that git's index makes."""
    changes = [{"path": "zz-new.txt", "content": {"inline": "new\n"}}, {"path": "a.txt", "content": {"inline": "x\n"}}]
    Path("changes.json").write_bytes(msgspec.json.encode(changes))
    made = said(["commit", "-m", "on top", "--changes", "changes.json", "--parent", "main"])
    if not made["ok"]:
        assert made["error"]["hint"] or made["error"]["message"], made
        return
    landed = said(["land", made["result"]["changeset"], "--allow-mass-delete"])
    assert landed["ok"], landed
    tree = git("rev-parse", f"{landed['result']['landed']}^{{tree}}", folder=store.layout.repo)
    index = {"GIT_INDEX_FILE": str(source / "index-of-test"), "GIT_DIR": str(source)}
    git.env.update(index)
    try:
        if not case.index or git.run("read-tree", head).returncode:
            return  # git itself makes nothing of such a tree
        for path, text in (("zz-new.txt", b"new\n"), ("a.txt", b"x\n")):
            blob = git("hash-object", "-w", "--stdin", stdin=text)
            git("update-index", "--add", "--cacheinfo", f"{FILE.decode()},{blob},{path}")
        wanted = git.run("write-tree")
        if wanted.returncode == 0:
            assert tree == wanted.stdout.decode().strip()
    finally:
        for key in index:
            del git.env[key]


def checks_out(case: Case, tmp_path: Path) -> None:
    """Makes a workspace; what can't be one is a typed error, and nothing is written elsewhere."""
    (tmp_path / "inner").mkdir()
    seen = {str(p) for p in tmp_path.glob("*")}
    made = said(["ws", "create", "w", "--dir", str(tmp_path / "inner" / "w")])
    assert made["ok"] or not case.checkout, made
    assert {str(p) for p in tmp_path.glob("*")} == seen
    if made["ok"]:
        assert said(["ws", "status", "w"])["result"]["changes"] == []
        config = (tmp_path / "inner" / "w" / ".git" / "config").read_text()
        assert re.search("repositoryformatversion", config)
    else:
        assert os.listdir(tmp_path / "inner") == []
