"""The probe of a git server: what it takes, what its rules refuse, and that nothing of the probe is left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.board.boardkit import BoardKit
from tests.board.remotekit import MAIN, NEEDS_SERVERS, Servers, Shared, peers

from ropewalk.board import probe
from ropewalk.board.remote import RemoteBoard
from ropewalk.core.errors import NotFoundError
from storekit import stock

pytestmark = NEEDS_SERVERS
Opener = Callable[..., Shared]


def test_F13_a_stock_server_takes_all_and_keeps_nothing_of_the_probe(shared: Opener) -> None:
    on = shared("http", law=False)
    before = on.refs()
    found = probe.probe(on.board)
    assert found.usable and found.landing == "push" and found.protocol == 2 and found.transport == "http"
    assert (found.create, found.replace, found.delete, found.atomic, found.branches) == (True,) * 5
    assert found.target_there and found.target_push and not found.refused and not found.left and not found.advice
    assert on.refs() == before, "main did not move, and no scratch ref is left"
    assert probe.remembered(on.board) == found and probe.remembered(on.board, "next") is None


PROTECTED = 'case "$1" in refs/heads/main) echo "main is protected"; exit 1;; esac'


@pytest.mark.parametrize(("hook", "script"), [
    ("update", PROTECTED),
    ("pre-receive", 'while read a b ref; do [ "$ref" != refs/heads/main ] || { echo protected; exit 1; }; done'),
])  # fmt: skip
def test_F13_a_protected_target_is_found_without_moving_it(shared: Opener, hook: str, script: str) -> None:
    on = shared(law=False)
    on.hook(hook, script)
    before = on.refs()
    found = probe.probe(on.board)
    assert found.target_push is False and found.landing == "pr" and found.usable
    assert "protected" in found.refused[0].words and "pull request" in " ".join(found.advice)
    assert on.refs() == before
    assert probe.remembered(on.board) == found


def test_F13_a_store_takes_all_and_keeps_no_branch_of_the_probe(tmp_path: Path) -> None:
    """It deletes no branch by a push, so that none may be made for a trial."""
    kit = BoardKit(tmp_path / "store")
    board = RemoteBoard(kit.kit.repo, str(tmp_path / "mirror"))
    before = kit.kit.store.refs()
    found = probe.probe(board)
    board.close()
    assert (found.usable, found.landing, found.target_push, found.branches) == (True, "push", True, True), found
    assert not found.refused and not found.left and not found.advice
    assert kit.kit.store.refs() == before
    kit.close()


def test_F13_what_a_servers_rules_refuse_is_named(shared: Opener) -> None:
    on = shared(law=False)
    on.hook("update", '[ "$3" != 0000000000000000000000000000000000000000 ] || { echo "no deletes"; exit 1; }')
    found = probe.probe(on.board)
    assert found.create and found.replace and found.delete is False and not found.usable and found.landing is None
    assert "no deletes" in found.refused[-1].words
    assert found.left and all(name in on.refs() for name in found.left)
    null = "0" * 40
    on.hook("update", f"[ $2 = {null} ] || [ $3 = {null} ] || exit 1")
    stock(
        "--git-dir", str(on.repo), "update-ref", "--stdin", stdin="".join(f"delete {n}\n" for n in found.left).encode()
    )
    found = probe.probe(on.board)
    assert found.create and found.replace is False and found.delete and not found.usable
    on.hook("update", "")
    on.set(transfer_hideRefs="refs/swarm")
    found = probe.probe(on.board)
    assert found.create is False and not found.usable and found.refused
    assert set(on.refs()) == {MAIN}


def test_F13_a_server_without_atomic_push_is_not_usable(shared: Opener) -> None:
    on = shared(law=False)
    on.set(receive_advertiseAtomic="false")
    found = probe.probe(on.board)
    assert found.atomic is False and not found.usable and "receive.advertiseAtomic" in " ".join(found.advice)
    assert set(on.refs()) == {MAIN}


def test_a_board_without_its_target_and_one_that_can_only_be_read(shared: Opener, ground: Servers) -> None:
    on = shared("http", law=False)
    found = probe.probe(on.board, "next")
    assert not found.target_there and found.target_push is None and found.landing == "push"
    reading = on.open("reading", ground.web.url(on.repo.name, below="reading"))
    found = probe.probe(reading)
    assert found.create is False and not found.usable and found.refused
    with pytest.raises(NotFoundError):
        probe.probe(on.open("none", ground.web.url("none.git")))


def test_F4_ssh_without_the_variable_of_the_protocol_is_told_which_line_to_add(
    shared: Opener, ground: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = shared("ssh", law=False)
    assert probe._protocol(on.board) == 2
    with peers.sshd(tmp_path / "old", {"HOME": "/nonexistent", "PATH": os.environ["PATH"]}) as ssh:
        once = f"-o ControlMaster=auto -o ControlPath={tmp_path}/c -o ControlPersist=20"
        monkeypatch.setenv("GIT_SSH_COMMAND", f"{ssh.command()} {once}")
        found = probe.probe(on.open("old", ssh.url(on.repo)))
        os.system(f"{ssh.command()} -o ControlPath={tmp_path}/c -O exit peer -p {ssh.port} 2>/dev/null")
    assert found.protocol == 0 and found.usable and found.transport == "ssh"
    assert "AcceptEnv GIT_PROTOCOL" in found.advice[0]
