"""What a forge is known to refuse is found before it is sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.remote import limits, transport
from storekit import Kit, put, rw, stock


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", "a\n"))
    yield made
    made.close()


def test_whose_limits_are_known() -> None:
    for address in ("https://github.com/a/b.git", "git@github.com:a/b.git", "ssh://git@ssh.github.com:443/a/b",
                    "https://me:x@GitHub.com/a/b"):  # fmt: skip
        assert limits.largest(transport.place(address)) == 100 << 20, address
    for address in ("https://gitlab.com/github.com/b.git", "https://notgithub.com/a/b", "git@example.org:github.com/x",
                    "https://github.com.example.org/a/b", "/github.com/a"):  # fmt: skip
        assert limits.largest(transport.place(address, exists=False)) is None, address


def test_what_is_too_large_is_named_once_and_only_when_it_is_new(kit: Kit) -> None:
    first = kit.main()
    kit.change(put("dir/large one.bin", b"\0" * 5000), put("just.bin", b"\1" * 4999))
    second = kit.main()
    kit.change(put("copy.bin", b"\0" * 5000), put("more.bin", b"\2" * 6000))
    kit.store.expose()
    found = limits.larger(kit.store, kit.main(), [first], 4999)
    assert sorted(size for _, size in found) == [5000, 6000] and dict(found)["more.bin"] == 6000
    assert limits.larger(kit.store, kit.main(), [second], 5999) == [("more.bin", 6000)]
    assert limits.larger(kit.store, kit.main(), [], 6000) == []


@pytest.mark.slow
def test_a_file_over_githubs_limit_is_not_sent_there(kit: Kit, tmp_path: Path) -> None:
    """The user's configuration leads github.com to a repository of this host, which would take it."""
    bare, home = tmp_path / "taken.git", tmp_path / "home"
    home.mkdir()
    stock("init", "-q", "--bare", "-b", "main", str(bare))
    (home / ".gitconfig").write_text(f'[url "file://{bare}"]\n\tinsteadOf = https://github.com/a/b.git\n')
    for words in (("remote", "add", "origin", "https://github.com/a/b.git"), ("push",)):
        assert rw(kit.root, *words, HOME=str(home))[0] == 0
    kit.change(put("big.bin", bytes((100 << 20) + 1)))
    code, envelope = rw(kit.root, "push", HOME=str(home))
    assert code == 9 and envelope["error"]["details"]["reason"] == "too_large", envelope
    assert envelope["error"]["details"]["files"] == ["big.bin"]
    assert kit.stock("rev-parse", "main~1") == stock("--git-dir", str(bare), "rev-parse", "main").decode().strip()
