"""Revisions: what a person or an agent writes for a commit, and what it is.

A revision is a ref, a full or unambiguous short id, and any of these followed by `~N`, `^` or `^N`;
`REV:PATH` names a file or folder in it.
"""

from __future__ import annotations

import re

from ropewalk.core.errors import AmbiguousError, InvalidError, NotFoundError
from ropewalk.core.ids import HEX40, HEX_PREFIX, path_bytes
from ropewalk.store.objects import Commit
from ropewalk.store.store import Store, resolve_ref

_FAR = 32
_STEP = re.compile(r"(~|\^)(\d{0,9})")
_REV = re.compile(r"(?P<name>[^~^:\0]+)(?P<steps>(?:[~^]\d{0,9})*)\Z")


def default_branch(store: Store) -> str:
    """Gives the full name of the branch that HEAD of `repo.git` names."""
    try:
        with open(f"{store.layout.repo}/HEAD", encoding="utf-8") as file:
            text = file.read().strip()
    except OSError:
        text = ""
    return text[5:] if text.startswith("ref: refs/") else "refs/heads/main"


def resolve(store: Store, rev: str) -> str:
    """Gives the commit id of a revision; `E_INVALID`, `E_NOT_FOUND` or `E_AMBIGUOUS`."""
    found = _REV.match(rev)
    if found is None:
        raise InvalidError(f"{rev!r} is not a revision", hint="use a ref, an id, or one with ~N or ^", rev=rev)
    oid = _name(store, found["name"])
    for mark, digits in _STEP.findall(found["steps"]):
        number = int(digits) if digits else 1
        if mark == "~" and number > _FAR:
            oid = _far(store, oid, number, rev)
        elif mark == "~":
            for _ in range(number):
                oid = _parent(store, oid, 1, rev)
        elif number:
            oid = _parent(store, oid, number, rev)
    return oid


def _parent(store: Store, oid: str, number: int, rev: str) -> str:
    parents = store.objects.commit(oid).parents
    if number > len(parents):
        raise NotFoundError(f"{rev!r}: {oid[:12]} has {len(parents)} parents", rev=rev)
    return parents[number - 1]


def _far(store: Store, oid: str, number: int, rev: str) -> str:
    """Gives the n-th first parent; git finds a far one faster than we do."""
    words = ["rev-list", "--first-parent", f"--skip={number}", "--max-count=1", oid]
    found = store.git(*words, timeout=120).text()
    if not HEX40.match(found):
        raise NotFoundError(f"{rev!r}: {oid[:12]} has fewer than {number} first parents in a row", rev=rev)
    return found


def _name(store: Store, name: str) -> str:
    if name in ("@", "HEAD"):
        name = default_branch(store)
    found = resolve_ref(store, name)
    oid = found[1] if found else None
    low = name.lower()
    if oid is None and HEX40.match(low):
        oid = low
    if oid is None and HEX_PREFIX.match(low):
        oid = _short(store, low)
    if oid is None:
        raise NotFoundError(f"there is no revision {name!r}", hint="list refs with `rw ref list`", rev=name)
    return peel(store, oid, name)


def peel(store: Store, oid: str, name: str) -> str:
    """Gives the commit that an id is, or that a tag object points to; `E_NOT_FOUND` for anything else."""
    for _ in range(8):
        kind = store.objects.kind(oid)
        if kind == "commit":
            return oid
        if kind != "tag":
            break
        oid = store.objects.read(oid)[7:47].decode("ascii", "replace")
    raise NotFoundError(f"{name!r} is not a commit of this store", rev=name)


def _short(store: Store, prefix: str) -> str | None:
    out = store.git("rev-parse", f"--disambiguate={prefix}", ok=(0, 128), timeout=30).text().split()
    commits = [oid for oid in out if HEX40.match(oid) and store.objects.kind(oid) in ("commit", "tag")]
    if len(commits) > 1:
        raise AmbiguousError(f"{prefix!r} fits {len(commits)} commits", prefix=prefix, candidates=commits[:20])
    return commits[0] if commits else None


def split(rev_path: str) -> tuple[str, bytes]:
    """Gives (revision, path) of `REV:PATH`; the path is `b""` when only a revision was given."""
    rev, _, path = rev_path.partition(":")
    raw = path_bytes(path).strip(b"/")
    if b"\0" in raw:
        raise InvalidError("the path holds a NUL byte", path=ascii(path))
    return rev, raw


def commit_of(store: Store, rev: str) -> Commit:
    """Gives the parsed commit of a revision."""
    return store.objects.commit(resolve(store, rev))
