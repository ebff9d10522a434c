"""Commits are signed when they are made, by the key of their maker's family, and git agrees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.core.errors import InvalidError
from storekit import STOCK, Kit, put


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """Gives an ssh key of this test, without a passphrase."""
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "a", "-f", str(path)], check=True, timeout=30)
    return path


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(str(tmp_path / "store"))


def authors(kit: Kit, sign: str) -> None:
    Path(kit.root, "authors.toml").write_text(f'[a]\nemail = "a@example.com"\nsign = "{sign}"\n')


def verified(kit: Kit, commit: str, key: Path) -> bool:
    allowed = key.with_name("allowed")
    allowed.write_text(f"a@example.com {key.with_suffix('.pub').read_text()}")
    done = subprocess.run(
        ["git", "--git-dir", kit.repo, "-c", f"gpg.ssh.allowedSignersFile={allowed}", "verify-commit", commit],
        env=STOCK, capture_output=True, timeout=30,
    )  # fmt: skip
    return done.returncode == 0


def test_commits_and_lands_of_a_family_with_a_key_are_signed(kit: Kit, key: Path) -> None:
    authors(kit, f"ssh:{key}")
    first = kit.first(put("f", "f\n"), agent="a/one")
    landed = kit.change(put("g", "g\n"), agent="a/one").landed
    other = kit.change(put("h", "h\n"), agent="b/two").landed
    kit.store.show()
    assert verified(kit, first, key) and verified(kit, landed, key) and not verified(kit, other, key)
    commit = kit.store.objects.commit(landed)
    assert commit.trailer("Ropewalk-Changeset") and kit.store.objects.commit(landed).tree
    kit.fsck()
    kit.close()


def test_a_key_that_is_not_there_or_asks_for_a_passphrase_is_an_error_at_once(
    kit: Kit, key: Path, tmp_path: Path
) -> None:
    head = kit.first(put("f", "f\n"), agent="b/one")
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True, timeout=30)
    for sign in ("ssh:/nowhere/key", f"ssh:{locked}", "pgp:x", "ssh:", "ssh:-f", "gpg:nobody@example.com"):
        authors(kit, sign)
        with pytest.raises(InvalidError):
            kit.commit(put("g", "g\n"), agent="a/one")
    assert kit.main() == head
    kit.close()
