"""Ids, names and how bytes become text at the edge.

Object ids are 40 lower-case hexadecimal digits (`str`) everywhere but inside raw trees, where git keeps 20
bytes. Paths are `bytes` inside and text, or base64 with `encoding`, at the edge.
"""

from __future__ import annotations

import re
import uuid
from base64 import b64decode, b64encode

from ropewalk.core.errors import InvalidError

ZERO_ID = "0" * 40
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

HEX40 = re.compile(r"[0-9a-f]{40}\Z")
HEX_PREFIX = re.compile(r"[0-9a-f]{4,40}\Z")
_AGENT = re.compile(r"[a-z0-9._-]{1,64}/[a-z0-9._-]{1,64}\Z")
_BASE64_PREFIX = "base64:"


def check_agent(agent: str) -> str:
    """Gives `agent` back when it is `family/instance`; else `E_INVALID`."""
    if not _AGENT.match(agent) or any(p.strip(".") == "" for p in agent.split("/")):
        raise InvalidError(
            f"{agent!r} is not an agent's name",
            hint="use family/instance: lower case letters, digits, '.', '_' and '-', as in claude/one",
            agent=agent,
        )
    return agent


def check_key(key: str | None) -> str | None:
    """Gives an idempotency key in its canonical form; `E_INVALID` when it is no UUID."""
    if key is None:
        return None
    try:
        return str(uuid.UUID(key))
    except ValueError:
        raise InvalidError(f"{key!r} is not a UUID", hint="make one with `uuidgen`", key=key) from None


def path_text(path: bytes) -> str:
    """Gives a git path as text: UTF-8 as it is, anything else as `base64:…`, so that every name round-trips."""
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        return _BASE64_PREFIX + b64encode(path).decode("ascii")
    if text.startswith(_BASE64_PREFIX):
        return _BASE64_PREFIX + b64encode(path).decode("ascii")
    return text


def path_bytes(text: str) -> bytes:
    """Gives the git path that `path_text` made into text; also takes names with surrogate escapes."""
    if text.startswith(_BASE64_PREFIX):
        try:
            return b64decode(text[len(_BASE64_PREFIX) :], validate=True)
        except ValueError:
            raise InvalidError(f"{text!r} is not base64", path=text) from None
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidError(f"{text!r} can't be a path", path=text.encode("utf-8", "replace").decode()) from None


def show_text(data: bytes) -> str:
    """Gives bytes as text for a person to read; what is not UTF-8 is replaced, so it does not round-trip."""
    return data.decode("utf-8", "replace")


_DOTGIT_IGNORABLE = dict.fromkeys(
    [0x200C, 0x200D, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF]
)


def is_dotgit(part: bytes) -> bool:
    """Says whether a path part is `.git` to git, or to HFS+ or NTFS (case, ignorable marks, `git~1`, streams)."""
    low = part.lower()
    if b"git" not in low.translate(None, b"\xe2\x80\x8c\x8d\x8e\x8f\xaa\xab\xac\xad\xae\xef\xbb\xbf\x81"):
        return False
    text = part.decode("utf-8", "surrogateescape").translate(_DOTGIT_IGNORABLE).casefold()
    # NTFS would split the name at its backslashes too
    ntfs = [piece.split(":", 1)[0].rstrip(" .") for piece in text.split("\\")]
    return text == ".git" or not {".git", "git~1"}.isdisjoint(ntfs)


def check_path(path: bytes, *, what: str = "path") -> bytes:
    """Gives a path inside a tree back; `E_INVALID` when it is absolute, escapes, or hides a `.git`.

    Takes every name that git takes on Linux, device names of other systems and bytes that are no UTF-8 among
    them.
    """
    problem = None
    if not path:
        problem = "is empty"
    elif b"\0" in path:
        problem = "holds a NUL byte"
    elif path.startswith(b"/"):
        problem = "is absolute"
    elif path.endswith(b"/"):
        problem = "ends with a slash"
    elif len(path) > 4096:
        problem = "is longer than 4,096 bytes"
    else:
        for part in path.split(b"/"):
            if part in (b"", b".", b".."):
                problem = f"has the part {part.decode()!r}"
            elif len(part) > 255:
                problem = "has a part longer than 255 bytes"
            elif is_dotgit(part):
                problem = "has a part that is .git"
            if problem:
                break
    if problem:
        raise InvalidError(f"{what} {path_text(path)!r} {problem}", path=path_text(path), problem=problem)
    return path


_BAD_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|\.lock(/|\Z)|(\A|/)\.|\.\Z|/\Z|\A/")


def check_ref(name: str) -> str:
    """Gives the full name of a ref: `main` is `refs/heads/main`, `tags/v1` is `refs/tags/v1`.

    `E_INVALID` for what git would refuse.

    The rules are those of `git check-ref-format`.
    """
    if name in ("", "@", "HEAD") or _BAD_REF.search(name) or len(name) > 1024 or name.startswith("-"):
        raise InvalidError(f"{name!r} is not a ref name", hint="see `git help check-ref-format`", name=name)
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidError("the ref name is not UTF-8", name=ascii(name)) from None
    full = name if name.startswith("refs/") else f"refs/{name}" if name.startswith("tags/") else f"refs/heads/{name}"
    if full.startswith("refs/ropewalk/") or full.count("/") < 2:
        raise InvalidError(f"{name!r} is kept for ropewalk itself or too short", name=name)
    if any(len(part.encode()) > 240 for part in full.split("/")):
        raise InvalidError("a part of the ref name is longer than 240 bytes", name=name)
    if HEX40.match(name):
        raise InvalidError(f"{name!r} looks like an id", name=name)
    return full


def short_ref(full: str) -> str:
    """Gives a branch as `main`, a tag as `tags/v1`, and any other ref in full; `check_ref` makes it full again."""
    if full.startswith("refs/heads/") and not full.startswith(("refs/heads/refs/", "refs/heads/tags/")):
        return full[len("refs/heads/") :]
    if full.startswith("refs/tags/"):
        return full[len("refs/") :]
    return full
