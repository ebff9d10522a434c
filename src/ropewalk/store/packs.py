"""Packs of our own making: small ones that show the journal's objects to git, unsynced and soon replaced.

A projection with many new objects writes one pack instead of a file for each. Their objects are still in the
journal, which is what is durable: a checkpoint makes the lasting pack through `git index-pack` and these go, and
after a power loss they go unread. Small packs are put together without unpacking anything.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from hashlib import sha1
from itertools import accumulate
from math import log
from typing import NamedTuple

from ropewalk.core.durable import write_all
from ropewalk.store.loose import Damaged, deflate, inflate

PREFIX = "rw-"
"""What tells these packs from lasting ones, which git calls `pack-…`."""
MANY = 16
"""So many packs of about one size are put together into one; the next size is as many times larger."""
_TYPES = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}
_HEADER, _TRAILER = 12, 20


class Packed(NamedTuple):
    """Is one object as it stands in a pack: raw id and entry bytes."""

    id: bytes
    entry: bytes


def entry_head(kind: str, size: int) -> bytes:
    """Gives the bytes before an object's deflated content in a pack: its type and size."""
    byte = (_TYPES[kind] << 4) | (size & 15)
    size >>= 4
    head = bytearray()
    while size:
        head.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    head.append(byte)
    return bytes(head)


def entry(kind: str, content: bytes) -> bytes:
    """Gives an object's bytes in a pack, whole and no delta."""
    return entry_head(kind, len(content)) + deflate(content, tree=kind == "tree")


def from_loose(rows: Iterable[tuple[str, bytes]]) -> list[Packed]:
    """Gives pack entries of loose files' bytes, each id once; raises `Damaged`."""
    found: dict[str, Packed] = {}
    for oid, packed in rows:
        if oid not in found:
            found[oid] = Packed(bytes.fromhex(oid), entry(*inflate(packed, oid)))
    return list(found.values())


def write(folder: str, objects: Sequence[Packed]) -> str:
    """Writes a pack and its index, unsynced, and gives its name; git sees it once the index is there."""
    body = b"".join([o.entry for o in objects])
    head = b"PACK" + struct.pack(">II", 2, len(objects))
    trailer = sha1(head + body, usedforsecurity=False).digest()
    offsets = list(accumulate((len(o.entry) for o in objects), initial=_HEADER))
    rows = sorted((o.id, offset, zlib.crc32(o.entry)) for o, offset in zip(objects, offsets, strict=False))
    fanout = [0] * 256
    for oid, _, _ in rows:
        fanout[oid[0]] += 1
    index = b"".join(
        [
            b"\377tOc" + struct.pack(">I", 2),
            struct.pack(">256I", *accumulate(fanout)),
            b"".join([oid for oid, _, _ in rows]),
            struct.pack(f">{len(rows)}I", *(crc for _, _, crc in rows)),
            struct.pack(f">{len(rows)}I", *(offset for _, offset, _ in rows)),
            trailer,
        ]
    )
    name = sha1(b"".join([oid for oid, _, _ in rows]), usedforsecurity=False).hexdigest()
    _put(f"{folder}/{PREFIX}{name}.pack", [head, body, trailer])
    _put(f"{folder}/{PREFIX}{name}.idx", [index, sha1(index, usedforsecurity=False).digest()])
    return name


def read(folder: str, name: str) -> list[Packed]:
    """Gives the entries of a pack that `write` made, as they are; `FileNotFoundError` when it went, `Damaged`."""
    with open(f"{folder}/{PREFIX}{name}.pack", "rb") as file:
        data = file.read()
    with open(f"{folder}/{PREFIX}{name}.idx", "rb") as file:
        index = file.read()
    sums = [sha1(part[:-_TRAILER], usedforsecurity=False).digest() == part[-_TRAILER:] for part in (data, index)]
    if not all(sums) or data[-_TRAILER:] != index[-2 * _TRAILER : -_TRAILER]:
        raise Damaged("a pack of the projection's is not as it was written")
    count = struct.unpack_from(">I", index, 8 + 255 * 4)[0]
    ids, offsets_at = 8 + 1024, 8 + 1024 + 24 * count
    offsets = struct.unpack_from(f">{count}I", index, offsets_at)
    order = sorted(range(count), key=offsets.__getitem__)
    ends = [*(offsets[n] for n in order[1:]), len(data) - _TRAILER]
    return [
        Packed(index[ids + 20 * n : ids + 20 * n + 20], data[offsets[n] : end])
        for n, end in zip(order, ends, strict=True)
    ]


def present(folder: str) -> list[str]:
    """Gives the names of the packs of ours in a folder."""
    return sorted(n[len(PREFIX) : -4] for n in os.listdir(folder) if n.startswith(PREFIX) and n.endswith(".idx"))


def written(folder: str) -> dict[str, int]:
    """Gives the packs of ours in a folder, each with the inode that its index has until it is written again."""
    found = {}
    for name in present(folder):
        try:
            found[name] = os.stat(f"{folder}/{PREFIX}{name}.idx").st_ino
        except FileNotFoundError:
            continue
    return found


def crowded(folder: str, names: Sequence[str]) -> list[str]:
    """Gives the packs that are to be put together: those of the smallest size of which there are many."""
    levels: dict[int, list[str]] = {}
    for name in names:
        try:
            size = os.stat(f"{folder}/{PREFIX}{name}.pack").st_size
        except FileNotFoundError:
            continue
        levels.setdefault(int(log(max(size, 4096) / 4096, MANY)), []).append(name)
    return next((found for _, found in sorted(levels.items()) if len(found) >= MANY), [])


def merge(folder: str, names: Sequence[str]) -> str | None:
    """Puts packs together into one and removes them; gives its name, None when none of them can be read.

    One that is damaged stays as it is: what it shows is in the journal, and a checkpoint takes it away.
    """
    found: dict[bytes, Packed] = {}
    whole = []
    for name in names:
        try:
            found.update({o.id: o for o in read(folder, name)})
            whole.append(name)
        except (FileNotFoundError, Damaged):
            continue
    if not found:
        return None
    made = write(folder, list(found.values()))
    remove(folder, [name for name in whole if name != made])
    return made


def remove(folder: str, names: Iterable[str]) -> None:
    """Removes packs, the index first, so that git stops looking before the objects go."""
    for name in names:
        for end in ("idx", "rev", "pack"):
            try:
                os.unlink(f"{folder}/{PREFIX}{name}.{end}")
            except FileNotFoundError:
                pass


def sweep(folder: str) -> None:
    """Removes what a killed projection left half done; the caller holds the projector's lock."""
    for name in os.listdir(folder):
        lonely = name.endswith(".pack") and not os.path.exists(f"{folder}/{name[:-5]}.idx")
        if name.startswith(PREFIX) and (".tmp_rw_" in name or lonely):
            try:
                os.unlink(f"{folder}/{name}")
            except FileNotFoundError:
                pass


def _put(path: str, parts: Sequence[bytes]) -> None:
    fresh = f"{path}.tmp_rw_{os.getpid()}"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o444)
    try:
        write_all(fd, b"".join(parts))
    finally:
        os.close(fd)
    os.rename(fresh, path)
