"""LFS pointers, filters and submodules in workspaces: kept as they are, said, filled without a network, never run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.errors import InvalidError
from ropewalk.store import trees

from .conftest import Bench
from .test_create import commit_tree

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 3\n"
LFS = b"*.bin filter=lfs diff=lfs merge=lfs -text\n"


def test_S44_pointers_stay_byte_for_byte_and_are_named(bench: Bench, in_ws: Any) -> None:
    commit_tree(
        bench, {b".gitattributes": (trees.FILE, LFS), b"a.bin": (trees.FILE, POINTER), b"b": (trees.FILE, b"b")}
    )
    root = bench.store.layout.root
    made = bench.rw("ws", "create", "w", "--store", root, agent="a/b")
    assert any("a.bin" in line for line in made["warnings"]), made
    path = Path(made["result"]["path"])
    assert (path / "a.bin").read_bytes() == POINTER and in_ws(path, "status", "--porcelain") == ""
    assert bench.rw("ws", "info", "w", "--store", root)["result"]["lfs"] == ["a.bin"]
    (path / "b").write_text("changed\n")
    (path / "a.bin").write_bytes(b"\0contents\n")
    landed = bench.rw("ws", "land", "w", "-m", "x", "--store", root, agent="a/b")
    assert landed["ok"] and any("LFS" in line and "a.bin" in line for line in landed["warnings"]), landed
    assert bench.tree()["a.bin"][1] == b"\0contents\n"


def test_A39_a_change_under_a_filter_that_is_not_allowed_is_refused_by_name(bench: Bench) -> None:
    """A file that is encrypted in the repository would land in the clear, and no filter runs here."""
    commit_tree(bench, {b".gitattributes": (trees.FILE, b"secret/* filter=crypt\n"), b"secret/a": (trees.FILE, b"x1")})
    path = bench.create()
    (path / "other").write_text("o\n")
    bench.land()
    (path / "secret/a").write_text("in the clear\n")
    (path / ".gitattributes").write_text("")  # what the change itself says of filters does not count
    with pytest.raises(InvalidError) as caught:
        bench.land()
    assert caught.value.details["filters"] == {"secret/a": "crypt"}
    assert bench.tree()["secret/a"][1] == b"x1" and (path / "secret/a").read_text() == "in the clear\n"
    (Path(bench.store.layout.root) / "ropewalk.toml").write_text('[workspace]\nfilters = ["crypt"]\n')
    bench.land()
    assert bench.tree()["secret/a"][1] == b"in the clear\n"


@pytest.fixture
def operator(bench: Bench, git: Any) -> tuple[Path, str]:
    """Gives an operator's checkout with a submodule in `.git/modules/dep`, and the commit that main names."""
    upstream, folder = bench.folder / "upstream", bench.folder / "operator"
    git("init", "-q", str(upstream))
    (upstream / "inner.txt").write_text("inner\n")
    git("add", ".", folder=upstream)
    git("commit", "-q", "-m", "inner", folder=upstream)
    git("init", "-q", str(folder))
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "--name", "dep", str(upstream), "sub",
        folder=folder)  # fmt: skip
    oid = git("rev-parse", "HEAD", folder=upstream)
    subprocess.run(["rm", "-r", upstream], check=True)
    modules = f'[submodule "dep"]\n\tpath = sub\n\turl = {upstream}\n[submodule "../../x"]\n\tpath = bad\n\turl = x\n'
    commit_tree(bench, {
        b".gitmodules": (trees.FILE, modules.encode()), b"sub": (trees.GITLINK, bytes.fromhex(oid)),
        b"bad": (trees.GITLINK, b"\x11" * 20), b"x": (trees.FILE, b"x\n"),
    })  # fmt: skip
    return folder, oid


def test_L10_a_submodule_stays_empty_and_is_said(bench: Bench, operator: tuple[Path, str], in_ws: Any) -> None:
    path = bench.create()
    assert any("sub" in line and "--submodules" in line for line in bench.store.warnings)
    assert bench.ws().note.submodules == ["bad", "sub"] and list((path / "sub").iterdir()) == []
    assert in_ws(path, "status", "--porcelain") == "" and bench.changes() == {}


def test_L10_it_is_filled_from_the_operators_checkout(
    bench: Bench, operator: tuple[Path, str], in_ws: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ropewalk.workspace import setup

    folder, oid = operator
    canary = tmp_path / "canary"
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {canary}\ncat\n")
    script.chmod(0o755)
    module = folder / ".git" / "modules" / "dep"
    for key in ("core.fsmonitor", "core.sshCommand", "filter.evil.smudge", "remote.origin.uploadpack"):
        subprocess.run(["git", "config", "-f", module / "config", key, str(script)], check=True)
    (module / "info" / "attributes").write_text("* filter=evil\n")
    (module / "hooks").mkdir(exist_ok=True)
    (module / "hooks" / "post-checkout").symlink_to(script)
    monkeypatch.setattr(setup, "operator_folder", lambda root: str(folder))
    path = bench.create(submodules=True)
    assert (path / "sub" / "inner.txt").read_text() == "inner\n"
    assert in_ws(path / "sub", "rev-parse", "HEAD") == oid and in_ws(path, "status", "--porcelain") == ""
    assert any("bad" in line and "does not name it" in line for line in bench.store.warnings)
    (path / "x").write_text("mine\n")
    (path / "sub" / "inner.txt").write_text("an edit in there is not this repository's\n")
    assert bench.land().landed.changed_paths == ["x"] and bench.tree()["sub"][0] == trees.GITLINK
    assert not canary.exists()
