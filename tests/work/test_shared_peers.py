"""Landing on a board behind a real sshd and a real HTTP server, unmodified git on both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.remote import peers
from tests.work.sharedkit import Shared, answers, start
from tests.work.test_shared_crash import stopped_holder_wakes

pytestmark = [
    pytest.mark.compat,
    pytest.mark.slow,
    pytest.mark.skipif(peers.SSHD is None or peers.LIGHTTPD is None, reason="needs sshd and lighttpd"),
]
SERVER = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "HOME": "/nonexistent",
}


def test_a_holder_that_slept_past_its_lease_is_refused_over_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with peers.sshd(tmp_path / "ssh", SERVER) as ssh:
        monkeypatch.setenv("GIT_SSH_COMMAND", ssh.command())
        stopped_holder_wakes(Shared(tmp_path, address=ssh.url(tmp_path / "board.git")))


def test_a_holder_that_slept_past_its_lease_is_refused_over_http(tmp_path: Path) -> None:
    with peers.lighttpd(tmp_path / "web", tmp_path, SERVER) as web:
        stopped_holder_wakes(Shared(tmp_path, address=web.url("board.git")))


def test_four_hosts_land_over_http(tmp_path: Path) -> None:
    with peers.lighttpd(tmp_path / "web", tmp_path, SERVER) as web:
        shared = Shared(tmp_path, address=web.url("board.git"))
        ids = [f"t{n}" for n in range(8)]
        shared.add(*ids)
        said = answers([start(shared, f"w{n}", ids[n], ids[n + 4], host=("one", "two")[n % 2]) for n in range(4)])
        assert [one["how"] for one in said] == ["landed"] * 8, said
        assert sorted(shared.landed()) == ids
        shared.lawful()
