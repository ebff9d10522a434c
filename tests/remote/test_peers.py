"""Remotes and a store as a remote, over sshd and lighttpd: stock git into a store, and ropewalk as the client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import matrix
import peers

from storekit import SRC, STOCK, Kit, lines, put, rw, stock

pytestmark = pytest.mark.skipif(
    not (peers.SSHD and peers.LIGHTTPD) and os.environ.get("CI") != "true",
    reason="needs sshd and lighttpd (apt-get install openssh-server lighttpd)",
)


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", lines()))
    yield made
    made.close()


@pytest.fixture(scope="module")
def server() -> dict[str, str]:
    """Gives what a session of a peer has in its environment: no interpreter is named, so the recorded one is used."""
    return {"HOME": "/nonexistent", "PATH": os.environ["PATH"], "PYTHONPATH": SRC, "GIT_CONFIG_NOSYSTEM": "1"}


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory, server: dict[str, str]) -> Iterator[peers.Ssh]:
    with peers.sshd(tmp_path_factory.mktemp("ssh") / "d", server) as made:
        yield made


def test_every_failure_has_its_code_within_ten_seconds(tmp_path: Path) -> None:
    with matrix.ground(tmp_path) as on:
        cells = matrix.play(on)
        assert not list(tmp_path.glob("*/clone")), "a clone that failed left a store"
    assert matrix.wrong(cells) == []
    rows = matrix.table(cells).splitlines()
    assert len(rows) == len(matrix.ROWS) + 2 and all("|  |" not in row for row in rows)


def test_stock_git_into_a_store_over_ssh(kit: Kit, ssh: peers.Ssh, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    env = STOCK | {"GIT_SSH_COMMAND": ssh.command()}

    def git(*words: str, ok: bool = True, key: str = "good") -> str:
        done = subprocess.run(["git", *words], cwd=clone if clone.exists() else tmp_path, capture_output=True,
                              env=env | {"GIT_SSH_COMMAND": ssh.command(key)}, timeout=120)  # fmt: skip
        assert not ok or done.returncode == 0, done.stderr.decode()
        return (done.stdout + done.stderr).decode()

    git("clone", "-q", ssh.url(kit.repo), "clone")
    (clone / "p.txt").write_text("p\n")
    git("add", "-A")
    git("commit", "-q", "-m", "mine")
    mine = git("rev-parse", "HEAD").strip()
    assert "read-only" in git("push", "origin", "HEAD:topic", ok=False, key="read")
    git("push", "-q", "-o", "agent=person/anna", "origin", "HEAD:refs/heads/topic")
    assert kit.store.ref("refs/heads/topic") == mine
    assert kit.store.db.row("SELECT kind, actor FROM ops ORDER BY op DESC LIMIT 1") == ("push", "person/anna")
    theirs = kit.change(put("a.txt", lines("3:theirs"))).landed
    assert f"landed {kit.main()}" not in git("push", "origin", "HEAD:main", ok=False)
    told = git("push", "origin", "HEAD:refs/land/main")
    assert f"landed {kit.main()} on main" in told and kit.store.objects.commit(kit.main()).parents == (theirs,)
    git("fetch", "-q")
    assert git("rev-parse", "origin/main").strip() == kit.main()
    (clone / "a.txt").write_text(lines("3:mine"))
    git("commit", "-q", "-a", "-m", "against theirs")
    assert "E_CONFLICT" in git("push", "origin", "HEAD:refs/land/main", ok=False)
    kit.fsck()


def test_an_ssh_key_has_a_name_and_rights_that_its_holder_can_not_change(
    kit: Kit, ssh: peers.Ssh, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    env = STOCK | {"GIT_SSH_COMMAND": ssh.command("named"), "ROPEWALK_AGENT": "a/nother"}

    def git(*words: str, ok: bool = True) -> str:
        done = subprocess.run(["git", *words], cwd=clone if clone.exists() else tmp_path, env=env, capture_output=True,
                              timeout=120)  # fmt: skip
        assert not ok or done.returncode == 0, done.stderr.decode()
        return (done.stdout + done.stderr).decode()

    git("clone", "-q", ssh.url(kit.repo), "clone")
    (clone / "p.txt").write_text("p\n")
    git("add", "-A")
    git("commit", "-q", "-m", "mine")
    assert "the right to write is missing" in git("push", "origin", "HEAD:topic", ok=False)
    assert kit.store.ref("refs/heads/topic") is None
    git("push", "-o", "agent=some/body", "origin", "HEAD:refs/land/main")
    assert kit.store.db.row("SELECT actor FROM ops ORDER BY op DESC LIMIT 1") == ("team/ci",)
    assert kit.text("p.txt") == "p\n"


@pytest.mark.parametrize("way", ["variable", "configuration"])
def test_ropewalk_over_ssh_with_the_users_git(kit: Kit, ssh: peers.Ssh, tmp_path: Path, way: str) -> None:
    """The user's ssh is the one of GIT_SSH_COMMAND or of core.sshCommand."""
    home = tmp_path / "home"
    home.mkdir()
    if way == "configuration":
        stock("config", "--file", str(home / ".gitconfig"), "core.sshCommand", ssh.command())
    env = {"HOME": str(home)} | ({"GIT_SSH_COMMAND": ssh.command()} if way == "variable" else {})
    _round(kit, ssh.url(kit.repo), tmp_path, env)


def test_ropewalk_over_http_with_the_users_credentials(kit: Kit, server: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with peers.lighttpd(tmp_path / "web", Path(kit.root), server) as web:
        stock("config", "--file", str(home / ".gitconfig"), "credential.helper", "store")
        (home / ".git-credentials").write_text(web.url("").removesuffix("/git/").replace(" ", "%20") + "\n")
        (home / ".git-credentials").chmod(0o600)
        _round(kit, web.url("repo.git", who=""), tmp_path, {"HOME": str(home)})
        code, envelope = rw(str(tmp_path / "shown"), "clone", web.url("repo.git", who="me:no"), HOME=str(home))
        assert code == 9 and ":no@" not in str(envelope), envelope


def _round(kit: Kit, url: str, tmp_path: Path, env: dict[str, str]) -> None:
    """Clones a store over a URL, and lets both sides work, until they are one line."""

    def call(*words: str, code: int = 0) -> Any:
        done, envelope = rw(str(tmp_path / "mine"), *words, **env)
        assert done == code, envelope
        return envelope.get("result")

    assert call("clone", url)["head"] == kit.main()
    mine = Kit(str(tmp_path / "mine"))
    try:
        new = mine.change(put("m.txt", "m\n")).landed
        assert call("push")["status"] == "fast_forwarded" and kit.again().main() == new
        mine.change(put("n.txt", "n\n"))
        kit.change(put("a.txt", lines("5:five")))
        call("push", code=3)
        assert call("fetch")["imported"] == 1
        done = call("sync")
        assert len(done["relanded"]) == 1 and done["push"]["status"] == "fast_forwarded"
        assert mine.again().main() == kit.again().main()
        assert set(kit.again().files()) == {b"a.txt", b"m.txt", b"n.txt"}
        kit.fsck()
        mine.fsck()
    finally:
        mine.close()
