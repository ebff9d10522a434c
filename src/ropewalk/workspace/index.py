"""Git's index as bytes: what an entry says of a file's stat data, set without git reading the file again.

A tree that was copied, or whose times were set, has the bytes that its index was made of. Git would read every file
to find that out; here the entries are given the stat data that the files have now.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha1
from struct import pack, unpack_from

_HEAD, _FIXED = 12, 62
_NAME_MAX, _EXTENDED = 0xFFF, 0x4000


def restat(data: bytes, stat: Callable[[bytes], os.stat_result | None]) -> bytes | None:
    """Gives an index with the stat data of its files as they are; None when it is not of a version that this knows.

    The caller vouches that the files hold what the index says. Entries whose file is missing stay as they are.
    """
    if len(data) < _HEAD + 20 or data[:4] != b"DIRC" or unpack_from(">I", data, 4)[0] != 2:
        return None
    made, at = bytearray(data[:-20]), _HEAD
    for _ in range(unpack_from(">I", data, 8)[0]):
        (flags,) = unpack_from(">H", made, at + 60)
        if flags & _EXTENDED:
            return None
        length = flags & _NAME_MAX
        end = at + _FIXED + length if length < _NAME_MAX else made.index(b"\0", at + _FIXED + length)
        found = stat(bytes(made[at + _FIXED : end]))
        if found is not None:
            made[at : at + 40] = _entry(found, bytes(made[at + 24 : at + 28]))
        at += (end - at + 8) & ~7
    return bytes(made) + sha1(made, usedforsecurity=False).digest()


def _entry(found: os.stat_result, mode: bytes) -> bytes:
    low = 0xFFFFFFFF
    changed, modified = divmod(found.st_ctime_ns, 10**9), divmod(found.st_mtime_ns, 10**9)
    numbers = (*changed, *modified, found.st_dev, found.st_ino)
    return (
        pack(">6I", *(number & low for number in numbers))
        + mode
        + pack(">3I", found.st_uid & low, found.st_gid & low, found.st_size & low)
    )
