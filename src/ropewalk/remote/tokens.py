"""Tokens: who a caller over HTTP is, and what it may do. Only a token's hash is kept."""

from __future__ import annotations

import fnmatch
import re
import secrets
from collections.abc import Sequence
from typing import Literal

import msgspec
from blake3 import blake3

from ropewalk.core import clock
from ropewalk.core.errors import InvalidError, NotFoundError
from ropewalk.core.ids import check_agent
from ropewalk.store.store import Store

Right = Literal["read", "write", "land", "delete"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_PATTERN = re.compile(r"(\*|refs/[^\s\x00-\x1f\x7f]{1,1000})\Z")
_MARK = "rwt_"
LAW = "refs/swarm/law"
"""Is a board's law; a pattern of refs covers it only by its own name, or where it covers all."""


class Rights(msgspec.Struct, frozen=True):
    """Is what a caller may do; `refs` are patterns of full names that it may write."""

    can: tuple[Right, ...] = ("read", "write", "land", "delete")
    refs: tuple[str, ...] = ("*",)

    def refuses(self, ref: str, *, delete: bool) -> str | None:
        """Gives why a ref may not be written, or None."""
        # a step on a board removes refs as a matter of course, and its laws say which
        lost = delete and not ref.startswith("refs/swarm/")
        needed: Right = "land" if ref.startswith("refs/land/") else "delete" if lost else "write"
        if needed not in self.can:
            return f"the right to {needed} is missing"
        full = "refs/heads/" + ref[len("refs/land/") :] if needed == "land" else ref
        if full == LAW:
            # the law of a board is not meant by whoever gives the right to work on it
            return None if {"*", LAW} & set(self.refs) else "the board's law is its owner's"
        if not any(fnmatch.fnmatchcase(full, pattern) for pattern in self.refs):
            return "this caller may not write it"
        return None


EVERYTHING = Rights()


class Token(msgspec.Struct, frozen=True):
    """Is a token as it is listed: its name, whose it is, its rights, when it was made."""

    name: str
    agent: str
    rights: Rights
    created_at: int


def create(store: Store, name: str, agent: str, rights: Rights, actor: str) -> str:
    """Makes a token and gives it, the only time that it can be seen; `E_INVALID` when the name is used."""
    if not _NAME.match(name):
        raise InvalidError(f"{name!r} is not a token's name", hint="use letters, digits, '.', '_' and '-'", name=name)
    check_agent(agent)
    for pattern in rights.refs:
        if not _PATTERN.match(pattern):
            raise InvalidError(
                f"{pattern!r} is not a pattern of full ref names",
                hint="begin it with refs/, as in 'refs/heads/topic*'", pattern=pattern,
            )  # fmt: skip
    secret = _MARK + secrets.token_urlsafe(32)
    with store.transaction() as tx:
        if tx.db.row("SELECT 1 FROM tokens WHERE name = ?", (name,)) is not None:
            raise InvalidError(f"there is a token {name!r} already", hint=f"rw token revoke {name}", name=name)
        tx.record("token_create", actor, note=name)
        tx.db.run(
            "INSERT INTO tokens VALUES (?, ?, ?, ?, ?)",
            (name, _hash(secret), agent, msgspec.json.encode(rights).decode("utf-8"), clock.now()),
        )
    return secret


def revoke(store: Store, name: str, actor: str) -> None:
    """Makes a token void at once; `E_NOT_FOUND` when there is none."""
    with store.transaction() as tx:
        if tx.db.row("SELECT 1 FROM tokens WHERE name = ?", (name,)) is None:
            raise NotFoundError(f"there is no token {name!r}", hint="list them with `rw token list`", name=name)
        tx.record("token_revoke", actor, note=name)
        tx.db.run("DELETE FROM tokens WHERE name = ?", (name,))


def listed(store: Store) -> Sequence[Token]:
    """Gives all tokens by name."""
    return [_token(row) for row in store.db.rows("SELECT name, agent, rights, at FROM tokens ORDER BY name")]


def known(store: Store, secret: str) -> Token | None:
    """Gives the token that a secret is, or None."""
    row = store.db.row("SELECT name, agent, rights, at FROM tokens WHERE hash = ?", (_hash(secret),))
    return None if row is None else _token(row)


def _token(row: tuple[object, ...]) -> Token:
    name, agent, rights, at = row
    return Token(str(name), str(agent), msgspec.json.decode(str(rights), type=Rights), int(str(at)))


def _hash(secret: str) -> str:
    # a secret of 256 random bits needs no slow hash
    return blake3(secret.encode("utf-8", "surrogateescape")).hexdigest()
