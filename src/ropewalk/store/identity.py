"""Who makes a commit: agent families and the names and addresses their commits carry (`authors.toml`)."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import InvalidError
from ropewalk.core.process import ChildTimeout, clean_env, run
from ropewalk.store.layout import Layout
from ropewalk.store.objects import Person


def person(layout: Layout, agent: str, at: int) -> Person:
    """Gives the author or committer of an agent at a time (seconds since 1970, UTC).

    Without an entry of its family in `authors.toml` agent `claude/one` is `claude/one
    <one@claude.ropewalk.local>`.
    """
    name, mail = names(layout, agent)
    return Person(name.encode("utf-8"), mail.encode("utf-8"), at, b"+0000")


def names(layout: Layout, agent: str) -> tuple[str, str]:
    """Gives the name and the address that an agent's commits carry."""
    family, _, instance = agent.partition("/")
    name, mail = agent, f"{instance}@{family}.ropewalk.local"
    data = _authors(layout.authors)
    if data:
        entry = _entry(data, family)
        name = str(entry.get("name", agent)).replace("{instance}", instance)
        mail = str(entry.get("email", mail)).replace("{instance}", instance)
    if any(c in name + mail for c in "<>\n\0"):
        raise InvalidError("a name or address in authors.toml has one of < > or a line end", family=family)
    return name, mail


def signer(layout: Layout, agent: str) -> Callable[[bytes], bytes] | None:
    """Gives what signs the commits of an agent's family, by `sign = "ssh:KEYFILE"` or `"gpg:KEY"`; None without it.

    A commit is signed when it is made and never later, so that its id stays. `E_INVALID` when that can't be done.
    """
    data = _authors(layout.authors)
    family = agent.partition("/")[0]
    wanted = _entry(data, family).get("sign") if data else None
    if wanted is None:
        return None
    kind, _, key = str(wanted).partition(":")
    key = os.path.expanduser(key)
    if kind not in _SIGN or not key or key.startswith("-") or "\0" in key:
        raise InvalidError(
            f"authors.toml: {family} signs with {wanted!r}", hint='use sign = "ssh:KEYFILE" or "gpg:KEY"', family=family
        )
    return lambda content: _sign(kind, key, family, content)


_SIGN = {
    "ssh": ["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f"],
    "gpg": ["gpg", "--batch", "--no-tty", "--pinentry-mode", "error", "--detach-sign", "--armor", "--local-user"],
}
_SIGN_SECONDS = 10.0


def _sign(kind: str, key: str, family: str, content: bytes) -> bytes:
    """Gives the signature of a commit's content, armored; nothing can prompt."""
    env = clean_env({"SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C.UTF-8"})
    env.pop("SSH_ASKPASS", None)
    try:
        done = run([*_SIGN[kind], key], stdin=content, env=env, timeout=_SIGN_SECONDS)
    except ChildTimeout:
        words = f"it did not end within {_SIGN_SECONDS:g} s"
    except FileNotFoundError:
        words = f"{_SIGN[kind][0]} is not installed"
    else:
        if done.code == 0 and done.out.startswith(b"-----BEGIN"):
            return done.out.rstrip(b"\n")
        words = done.err.decode("utf-8", "replace").strip()[-300:] or f"it ended with {done.code}"
    raise InvalidError(
        f"the commit can't be signed with {kind}:{key}: {words}",
        hint=f"mend `sign` of {family} in authors.toml; a key behind a passphrase needs its agent", family=family,
    )  # fmt: skip


_KNOWN: dict[str, tuple[tuple[int, int, int], bytes]] = {}


def _authors(path: str) -> bytes:
    """Gives authors.toml, read again only when it changed; empty when it has no table."""
    try:
        now = os.stat(path)
    except FileNotFoundError:
        return b""
    stamp = (now.st_mtime_ns, now.st_size, now.st_ino)
    known = _KNOWN.get(path)
    if known is None or known[0] != stamp:
        with open(path, "rb") as file:
            data = file.read()
        known = _KNOWN[path] = (stamp, data if b"\n[" in b"\n" + data else b"")
    return known[1]


def check(layout: Layout) -> None:
    """Raises `E_INVALID` when authors.toml can't be read."""
    _table(_authors(layout.authors))


def _table(data: bytes) -> dict[str, object]:
    try:
        found: dict[str, object] = msgspec.toml.decode(data)
        return found
    except UNREADABLE as error:
        raise InvalidError(
            f"authors.toml can't be read: {error}", hint="mend that file, or remove it", file="authors.toml"
        ) from None


def _entry(data: bytes, family: str) -> dict[str, object]:
    table = _table(data)
    entry = table.get(family, {})
    if not isinstance(entry, dict):
        raise InvalidError(f"authors.toml: {family} is not a table", file="authors.toml")
    return entry
