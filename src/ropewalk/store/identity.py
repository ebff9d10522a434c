"""Who makes a commit: agent families and the names and addresses their commits carry (`authors.toml`)."""

from __future__ import annotations

import os

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import InvalidError
from ropewalk.store.layout import Layout
from ropewalk.store.objects import Person


def person(layout: Layout, agent: str, at: int) -> Person:
    """Gives the author or committer of an agent at a time (seconds since 1970, UTC).

    Without an entry of its family in `authors.toml` agent `claude/one` is `claude/one
    <one@claude.ropewalk.local>`.
    """
    family, _, instance = agent.partition("/")
    name, mail = agent, f"{instance}@{family}.ropewalk.local"
    data = _authors(layout.authors)
    if data:
        entry = _entry(data, family)
        name = str(entry.get("name", agent)).replace("{instance}", instance)
        mail = str(entry.get("email", mail)).replace("{instance}", instance)
    if any(c in name + mail for c in "<>\n\0"):
        raise InvalidError("a name or address in authors.toml has one of < > or a line end", family=family)
    return Person(name.encode("utf-8"), mail.encode("utf-8"), at, b"+0000")


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
