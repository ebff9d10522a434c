"""Loose objects: our own reader, which never trusts a file, and our own writer.

libgit2 spins for ever on a truncated loose object (finding A1) and writes nothing over a damaged one (A3).
This reader inflates with a bound, wants the exact end, length and hash; this writer replaces what is
damaged and refuses another content under the same id.
"""

from __future__ import annotations

import os
import re
import zlib
from _thread import get_ident
from hashlib import sha1
from typing import NamedTuple

from ropewalk.core.errors import NoSpaceError, StoreCorruptError, os_error

_HEADER = re.compile(rb"(blob|tree|commit|tag) (0|[1-9][0-9]{0,18})\0")
FSYNC_SIZE = 1 << 20
"""Objects above this many bytes are synced in place instead of copied into the journal."""


class NewObject(NamedTuple):
    """Is one object as it was written: id, type, and the bytes of its loose file (empty when synced in place)."""

    id: str
    kind: str
    packed: bytes


class Damaged(Exception):
    """A loose file does not hold the object its name says."""


def object_id(kind: str, content: bytes) -> str:
    """Gives git's id of an object."""
    return sha1(b"%s %d\0" % (kind.encode("ascii"), len(content)) + content, usedforsecurity=False).hexdigest()


def deflate(data: bytes, *, tree: bool) -> bytes:
    """Gives a zlib stream that git reads; small objects use a small window, which is seven times as fast.

    Trees, mostly ids that can't be made smaller, are stored; a checkpoint and `gc` pack them better.
    """
    if tree or len(data) <= 4096:
        packer = zlib.compressobj(0 if tree else 1, zlib.DEFLATED, 12, 4)
        return packer.compress(data) + packer.flush()
    return zlib.compress(data, 1)


def inflate(packed: bytes, oid: str) -> tuple[str, bytes]:
    """Gives (type, content) of a loose file's bytes; `Damaged` unless end, length and hash are exact."""
    reader = zlib.decompressobj()
    try:
        head = reader.decompress(packed, 64)
        found = _HEADER.match(head)
        if found is None:
            raise Damaged("its header is not an object's")
        size = int(found[2])
        rest = reader.decompress(reader.unconsumed_tail, size + 1) if not reader.eof else b""
        # an exact content may leave the stream one call short of its end mark
        if not reader.eof:
            rest += reader.decompress(reader.unconsumed_tail, 1)
    except zlib.error as error:
        raise Damaged(str(error)) from None
    data = head + rest
    if not reader.eof or reader.unused_data or len(data) - found.end() != size:
        raise Damaged("its length is wrong")
    if sha1(data, usedforsecurity=False).hexdigest() != oid:
        raise Damaged("its hash is wrong")
    return found[1].decode("ascii"), data[found.end() :]


class LooseStore:
    """Reads and writes the loose files of one objects folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, oid: str) -> str:
        """Gives where the loose file of an id is, or would be."""
        return f"{self.folder}/{oid[:2]}/{oid[2:]}"

    def read_packed(self, oid: str) -> bytes | None:
        """Gives the bytes of a loose file as they are; None when there is none."""
        try:
            fd = os.open(self.path(oid), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise os_error(error, "read of an object") from None
        try:
            size = os.fstat(fd).st_size
            data = os.read(fd, size)
            while len(data) < size:
                more = os.read(fd, size - len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise os_error(error, "read of an object") from None
        finally:
            os.close(fd)
        return data

    def read(self, oid: str) -> tuple[str, bytes] | None:
        """Gives (type, content); None when there is no loose file; raises `Damaged`."""
        packed = self.read_packed(oid)
        return None if packed is None else inflate(packed, oid)

    def make(self, kind: str, content: bytes) -> NewObject:
        """Gives an object's id and packed bytes; one larger than `FSYNC_SIZE` is written and synced at once.

        A damaged file is replaced. Another content under the same id, a collision, is `E_STORE_CORRUPT`.
        """
        data = b"%s %d\0" % (kind.encode("ascii"), len(content)) + content
        oid = sha1(data, usedforsecurity=False).hexdigest()
        large = len(data) > FSYNC_SIZE
        packed = self.read_packed(oid)
        if packed is not None:
            try:
                if inflate(packed, oid) != (kind, content):
                    raise StoreCorruptError(f"two contents have the id {oid}", object=oid, collision=True)
                if large:
                    self._sync(oid)
                return NewObject(oid, kind, b"" if large else packed)
            except Damaged:
                pass
        packed = deflate(data, tree=kind == "tree")
        if large:
            self.put(oid, packed, sync=True)
        return NewObject(oid, kind, b"" if large else packed)

    def write(self, kind: str, content: bytes) -> str:
        """Writes an object's loose file, unsynced, and gives its id."""
        made = self.make(kind, content)
        self.ensure(made.id, made.packed)
        return made.id

    def ensure(self, oid: str, packed: bytes) -> bool:
        """Puts a loose file in place unless a whole one is there; existence alone is no evidence (A3)."""
        if not packed:
            return False
        there = self.read_packed(oid)
        if there is not None:
            if there == packed:
                return False
            try:
                inflate(there, oid)
                return False
            except Damaged:
                pass
        self.put(oid, packed)
        return True

    def put(self, oid: str, packed: bytes, *, sync: bool = False) -> None:
        """Puts a loose file in place by rename, over a damaged one too."""
        final = self.path(oid)
        part = f"{self.folder}/tmp_rw_{os.getpid()}_{get_ident()}_{oid[:16]}"
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o444)
            try:
                write_all(fd, packed)
                if sync:
                    os.fsync(fd)
            finally:
                os.close(fd)
            try:
                os.rename(part, final)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(final), exist_ok=True)
                os.rename(part, final)
            if sync:
                sync_folder(os.path.dirname(final))
                sync_folder(self.folder)
        except OSError as error:
            try:
                os.unlink(part)
            except OSError:
                pass
            raise os_error(error, "write of an object") from None

    def _sync(self, oid: str) -> None:
        fd = os.open(self.path(oid), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(os.path.dirname(self.path(oid)))
        sync_folder(self.folder)

    def unlink(self, oid: str) -> None:
        """Removes a loose file if there is one."""
        try:
            os.unlink(self.path(oid))
        except FileNotFoundError:
            pass

    def ids(self) -> list[str]:
        """Gives the ids of all loose files."""
        found = []
        for first in os.listdir(self.folder):
            if len(first) == 2:
                found += [first + rest for rest in os.listdir(f"{self.folder}/{first}") if len(rest) == 38]
        return found


def write_all(fd: int, data: bytes) -> None:
    """Writes all bytes; a short write goes on, and a write of nothing is a full disk."""
    view = memoryview(data)
    while view:
        done = os.write(fd, view)
        if done == 0:
            raise NoSpaceError("the disk takes no more bytes", operation="write")
        view = view[done:]


def sync_folder(path: str) -> None:
    """Syncs a folder, so that the names in it are durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
