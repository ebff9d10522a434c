"""Loose objects: our own reader, which never trusts a file, and our own writer.

libgit2 spins for ever on a truncated loose object (finding A1) and writes nothing over a damaged one (A3).
This reader inflates with a bound, wants the exact end, length and hash; this writer replaces what is
damaged and refuses another content under the same id. What is large is read, checked and written in pieces.
"""

from __future__ import annotations

import os
import re
import zlib
from _thread import get_ident
from collections.abc import Iterator
from hashlib import sha1
from io import BytesIO
from typing import BinaryIO, NamedTuple

from blake3 import blake3

from ropewalk.core import durable
from ropewalk.core.errors import InvalidError, StoreCorruptError, os_error

_HEADER = re.compile(rb"(blob|tree|commit|tag) (0|[1-9][0-9]{0,18})\0")
FSYNC_SIZE = 1 << 20
"""Objects above this many bytes are synced in place instead of copied into the journal."""
LARGE = 8 << 20
"""Objects above this many bytes are read in pieces where only a part is wanted, or all of it in turn."""
PIECE = 1 << 20
_PART = 0.95
"""What does not shrink to this part of its size is stored as it is."""


class NewObject(NamedTuple):
    """Is one object as it was written: id, type, and the bytes of its loose file (empty when synced in place)."""

    id: str
    kind: str
    packed: bytes


class Pieces(NamedTuple):
    """Is an object that is being read: type, size, and its content in pieces of about a MiB."""

    kind: str
    size: int
    parts: Iterator[bytes]


class Damaged(Exception):
    """A loose file does not hold the object its name says."""


def object_id(kind: str, content: bytes) -> str:
    """Gives git's id of an object."""
    digest = sha1(_header(kind, len(content)), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest()


def _header(kind: str, size: int) -> bytes:
    return b"%s %d\0" % (kind.encode("ascii"), size)


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


def header(packed: bytes) -> tuple[str, int] | None:
    """Gives the (type, size) that the first bytes of a loose file state; None when they are no object's."""
    try:
        found = _HEADER.match(zlib.decompressobj().decompress(packed[:128], 64))
    except zlib.error:
        return None
    return None if found is None else (found[1].decode("ascii"), int(found[2]))


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

    def header(self, oid: str) -> tuple[str, int] | None:
        """Gives the (type, size) that a loose file states; None when there is no such file or header."""
        try:
            with open(self.path(oid), "rb", buffering=0) as file:
                return header(file.read(128))
        except OSError:
            return None

    def open(self, oid: str) -> Pieces | None:
        """Gives an object to read in pieces; None when there is no loose file; raises `Damaged`.

        The last piece raises `Damaged` unless end, length and hash are exact, so whoever stops before it has
        bytes that nobody checked.
        """
        try:
            file = open(self.path(oid), "rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise os_error(error, "read of an object") from None
        reader = zlib.decompressobj()
        try:
            head = reader.decompress(file.read(PIECE), 64)
            found = _HEADER.match(head)
            if found is None:
                raise Damaged("its header is not an object's")
        except zlib.error as error:
            file.close()
            raise Damaged(str(error)) from None
        except BaseException:
            file.close()
            raise
        return Pieces(found[1].decode("ascii"), int(found[2]), _parts(file, reader, head, found.end(), oid))

    def check(self, oid: str) -> bool:
        """Reads a loose file to its end and says whether there is one; raises `Damaged`."""
        there = self.open(oid)
        for _ in there.parts if there is not None else ():
            pass
        return there is not None

    def make(self, kind: str, content: bytes) -> NewObject:
        """Gives an object's id and packed bytes; one larger than `FSYNC_SIZE` is written and synced at once.

        A damaged file is replaced. Another content under the same id, a collision, is `E_STORE_CORRUPT`.
        """
        if len(content) > FSYNC_SIZE:
            return self.make_large(kind, len(content), pieces(BytesIO(content)))
        data = _header(kind, len(content)) + content
        oid = sha1(data, usedforsecurity=False).hexdigest()
        packed = self.read_packed(oid)
        if packed is not None:
            try:
                if inflate(packed, oid) != (kind, content):
                    raise StoreCorruptError(f"two contents have the id {oid}", object=oid, collision=True)
                return NewObject(oid, kind, packed)
            except Damaged:
                pass
        return NewObject(oid, kind, deflate(data, tree=kind == "tree"))

    def make_large(self, kind: str, size: int, parts: Iterator[bytes]) -> NewObject:
        """Writes an object of `size` bytes that come in pieces, synced, and gives its id.

        `E_INVALID` when other than `size` bytes come. Else as `make`.
        """
        part = f"{self.folder}/tmp_rw_{os.getpid()}_{get_ident()}_large"
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o444)
            try:
                oid, content = _squeeze(fd, kind, size, parts)
                os.fsync(fd)
            finally:
                os.close(fd)
            self._refuse_collision(oid, kind, content)
            # over one that is there too: that says nothing of what was synced (A15)
            self._install(part, oid, sync=True)
        except BaseException as error:
            try:
                os.unlink(part)
            except OSError:
                pass
            if isinstance(error, OSError):
                raise os_error(error, "write of an object") from None
            raise
        return NewObject(oid, kind, b"")

    def take(self, other: LooseStore, oid: str) -> NewObject:
        """Puts an object that git wrote loose, here or in another folder, in place: checked, and synced when large.

        Raises `Damaged`.
        """
        stated = other.header(oid)
        if stated is not None and stated[1] > FSYNC_SIZE and (there := other.open(oid)) is not None:
            return self.make_large(*there)
        packed = other.read_packed(oid) or b""
        kind, _ = inflate(packed, oid)
        self.put(oid, packed)
        return NewObject(oid, kind, packed)

    def _refuse_collision(self, oid: str, kind: str, content: bytes) -> None:
        try:
            there = self.open(oid)
            if there is None:
                return
            digest = blake3()
            for piece in there.parts:
                digest.update(piece)
        except Damaged:
            return
        if (there.kind, digest.digest()) != (kind, content):
            raise StoreCorruptError(f"two contents have the id {oid}", object=oid, collision=True)

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
        part = f"{self.folder}/tmp_rw_{os.getpid()}_{get_ident()}_{oid[:16]}"
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o444)
            try:
                durable.write_all(fd, packed)
                if sync:
                    os.fsync(fd)
            finally:
                os.close(fd)
            self._install(part, oid, sync=sync)
        except OSError as error:
            try:
                os.unlink(part)
            except OSError:
                pass
            raise os_error(error, "write of an object") from None

    def _install(self, part: str, oid: str, *, sync: bool) -> None:
        final = self.path(oid)
        try:
            os.rename(part, final)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(final), exist_ok=True)
            os.rename(part, final)
        if sync:
            durable.sync(os.path.dirname(final))
            durable.sync(self.folder)

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


def _parts(file: BinaryIO, reader: zlib._Decompress, head: bytes, start: int, oid: str) -> Iterator[bytes]:
    """Yields the content behind a loose file's header, then raises `Damaged` unless all of it was right."""
    digest = sha1(head, usedforsecurity=False)
    left = int(head[:start].split(b" ")[1][:-1]) - (len(head) - start)
    part = head[start:]
    with file:
        try:
            while True:
                if part:
                    yield part
                if reader.eof:
                    break
                data = reader.unconsumed_tail or file.read(PIECE)
                part = reader.decompress(data, PIECE)
                digest.update(part)
                left -= len(part)
                if left < 0 or not (data or part):
                    break
            exact = left == 0 and reader.eof and not reader.unused_data and not file.read(1)
        except zlib.error as error:
            raise Damaged(str(error)) from None
        except OSError as error:
            raise os_error(error, "read of an object") from None
    if not exact:
        raise Damaged("its length is wrong")
    if digest.hexdigest() != oid:
        raise Damaged("its hash is wrong")


def pieces(source: BinaryIO) -> Iterator[bytes]:
    """Yields a file's bytes in pieces of a MiB."""
    while part := source.read(PIECE):
        yield part


def _squeeze(fd: int, kind: str, size: int, parts: Iterator[bytes]) -> tuple[str, bytes]:
    """Writes an object's bytes as a loose file, and gives its id and the hash of its content."""
    head = _header(kind, size)
    digest, content = sha1(head, usedforsecurity=False), blake3()
    packer = None
    done = 0
    for part in parts:
        if packer is None:
            # what is compressed already takes long to try, and gains nothing
            packer = zlib.compressobj(1 if len(zlib.compress(part, 1)) < len(part) * _PART else 0)
            durable.write_all(fd, packer.compress(head))
        done += len(part)
        digest.update(part)
        content.update(part)
        durable.write_all(fd, packer.compress(part))
    if packer is None or done != size:
        raise InvalidError("the file changed while it was read", hint="send the request again", size=size, read=done)
    durable.write_all(fd, packer.flush())
    return digest.hexdigest(), content.digest()
