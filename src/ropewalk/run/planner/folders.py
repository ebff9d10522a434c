"""Folders on disk: plans, decisions and rules as a person has them, and the files of the project around them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from ropewalk.core import durable
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import InvalidError, NotFoundError, os_error
from ropewalk.core.policy import FILE as POLICY
from ropewalk.plan import document
from ropewalk.plan.document import Document
from ropewalk.plan.mapping import Map

_MOST, _FILES, _PACKETS = 4 << 20, 200_000, 10_000
_LOOSE = 20_000
"""Is how many files are looked at below a folder that is no repository's."""
_PASSED = frozenset((".git", ".hg", ".ropewalk", "node_modules", "__pycache__", ".venv", "venv"))


def root(folder: str) -> str:
    """Gives the project's own folder: the nearest one above with a repository or a `ropewalk.toml`, else itself."""
    here = folder
    while True:
        if any(os.path.exists(os.path.join(here, name)) for name in (".git", POLICY)):
            return here
        above = os.path.dirname(here)
        if above == here:
            return folder
        here = above


def files(folder: str) -> list[tuple[str, int]]:
    """Gives the files below a folder with their sizes, without those of tools."""
    found: list[tuple[str, int]] = []
    most = _FILES if any(os.path.exists(os.path.join(folder, name)) for name in (".git", POLICY)) else _LOOSE
    for inside, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if name not in _PASSED)
        for name in sorted(names):
            path = os.path.join(inside, name)
            try:
                size = os.lstat(path).st_size
            except OSError:
                continue
            found.append((os.path.relpath(path, folder), size))
            if len(found) == most:
                return found
    return found


def text(path: str) -> str:
    """Gives the text of a file; empty when there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return ""


def markdown(folder: str, prefix: str) -> dict[str, str]:
    """Gives the Markdown files of a folder by their paths below another, none where there is no such folder."""
    found: dict[str, str] = {}
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise os_error(error, f"read of {prefix}") from None
    for name in names[:_PACKETS]:
        path = os.path.join(folder, name)
        if name.endswith(".md") and os.path.isfile(path):
            try:
                with open(path, "rb") as file:
                    found[f"{prefix}/{name}"] = file.read(_MOST).decode("utf-8", "surrogateescape")
            except OSError as error:
                raise os_error(error, f"read of {prefix}/{name}") from None
    return found


def read(folder: str) -> dict[str, str]:
    """Gives the files of a plan's folder; `E_NOT_FOUND` when there is no plan in it."""
    found = markdown(os.path.join(folder, document.FOLDER), document.FOLDER)
    head = os.path.join(folder, document.FILE)
    if os.path.isfile(head):
        found[document.FILE] = text(head)
    if not found:
        raise NotFoundError(
            f"there is no plan in {folder}: neither {document.FILE} nor {document.FOLDER}/",
            hint="`rw plan draft` writes one", folder=folder,
        )  # fmt: skip
    return found


def load(folder: str) -> Document:
    """Gives the plan of a folder; `E_NOT_FOUND` and `E_INVALID`, with everything that is wrong."""
    return document.parse(read(folder), os.path.basename(folder.rstrip("/")) or "the plan")


def save(folder: str, made: Document, seen: Map | None = None, *, anew: bool = False) -> list[str]:
    """Writes a plan's folder, which is durable then, and gives the paths.

    `E_INVALID` when one is there, unless it is written anew.

    Packets that the plan no longer has are removed then.
    """
    written = document.write(made)
    head = os.path.join(folder, document.FILE)
    if not anew and (os.path.exists(head) or os.path.exists(os.path.join(folder, document.FOLDER))):
        raise InvalidError(
            f"there is a plan in {folder} already", hint="name another folder with --into", folder=folder
        )
    # a new folder is there whole or not at all
    place = folder if os.path.lexists(folder) else f"{folder.rstrip('/')}.{os.getpid()}.part"
    try:
        durable.make_folders(os.path.join(place, document.FOLDER))
        for path, words in written.items():
            put(os.path.join(place, path), words.encode("utf-8", "surrogateescape"))
        if seen is not None:
            put(os.path.join(place, document.MAP), msgspec.json.format(msgspec.json.encode(seen)) + b"\n")
        for path in markdown(os.path.join(place, document.FOLDER), document.FOLDER):
            if path not in written:
                os.unlink(os.path.join(place, path))
        if place != folder:
            os.rename(place, folder)
            durable.sync(os.path.dirname(folder))
    except OSError as error:
        raise os_error(error, "write of the plan") from None
    return sorted(written)


def put(path: str, data: bytes) -> None:
    """Puts a file in place, whole or not at all; it is durable then."""
    durable.replace(path, data, part=f"{path}.{os.getpid()}.part")


def map_of(folder: str) -> Map | None:
    """Gives the map that is kept with a plan, None where there is none that can be read."""
    try:
        with open(os.path.join(folder, document.MAP), "rb") as file:
            return msgspec.json.decode(file.read(), type=Map)
    except (OSError, *UNREADABLE):
        return None


def decisions(folder: str, inside: str) -> Mapping[str, str] | None:
    """Gives the files of decisions of a project by their paths, None where it has no folder of them."""
    path = os.path.join(folder, inside)
    return markdown(path, inside) if os.path.isdir(path) else None
