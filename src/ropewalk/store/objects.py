"""Objects of a repository: loose files and the journal by our own reader, packs through a `git cat-file` child.

What is written is kept in memory until a transaction journals it; the projection puts it into `repo.git`.

Everything is addressed by 40 hexadecimal digits. Parsed trees and commits are kept in small caches, which
never go stale because an object never changes.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, TypeVar

from ropewalk.core.errors import NotFoundError, StoreCorruptError
from ropewalk.core.ids import EMPTY_TREE
from ropewalk.core.process import ObjectChild
from ropewalk.store import trees
from ropewalk.store.loose import (
    FSYNC_SIZE,
    LARGE,
    Damaged,
    LooseStore,
    NewObject,
    Pieces,
    header,
    inflate,
    object_id,
    pieces,
)

_TREE_ENTRIES, _COMMITS = 400_000, 50_000
_PERSON = re.compile(rb"(?P<name>.*?) ?<(?P<mail>[^>]*)> (?P<time>-?\d{1,18}) (?P<zone>[-+]\d{1,9})\Z", re.DOTALL)


T = TypeVar("T")


class Person(NamedTuple):
    """Is an author or committer: name and address as bytes, seconds since 1970, zone as git writes it."""

    name: bytes
    mail: bytes
    at: int
    zone: bytes

    def line(self) -> bytes:
        """Gives the person as a commit's header has it."""
        return b"%s <%s> %d %s" % (self.name, self.mail, self.at, self.zone)


class Commit(NamedTuple):
    """Is a parsed commit; other headers (encoding, signatures) stay in the object and are not parsed."""

    id: str
    tree: str
    parents: tuple[str, ...]
    author: Person
    committer: Person
    message: bytes
    encoding: bytes = b""

    @property
    def title(self) -> str:
        """Gives the first line of the message as text."""
        return self.message.split(b"\n", 1)[0].decode("utf-8", "replace")

    def trailer(self, name: str) -> str | None:
        """Gives the last value of a trailer such as `Ropewalk-Changeset`, from the last paragraph."""
        last = self.message.rstrip(b"\n").rsplit(b"\n\n", 1)[-1]
        key = name.encode("ascii") + b": "
        for line in reversed(last.split(b"\n")):
            if line.startswith(key):
                return line[len(key) :].decode("utf-8", "replace").strip()
        return None


def _no_journal(oid: str) -> bytes | None:
    return None


def _nothing() -> None:
    return None


class Objects:
    """Reads and writes the objects of one repository; what it writes is kept in `new` until taken.

    `journal` gives the packed bytes of an object that is in the store's journal; `expose` puts all of the
    journal's objects where git sees them; `heal` mends what git needs besides objects, after its child died.
    """

    def __init__(
        self,
        git_dir: str,
        journal: Callable[[str], bytes | None] = _no_journal,
        expose: Callable[[], None] = _nothing,
        heal: Callable[[], bool] = lambda: False,
    ) -> None:
        self.git_dir = git_dir
        self._journal = journal
        self._expose = expose
        self._heal = heal
        self.loose = LooseStore(os.path.join(git_dir, "objects"))
        self.new: dict[str, NewObject] = {}
        self._spilled: set[str] = set()
        self._child: ObjectChild | None = None
        self._child_stamp = 0
        self._trees: OrderedDict[str, trees.Tree] = OrderedDict({EMPTY_TREE: {}})
        self._entries = 0
        self._commits: OrderedDict[str, Commit] = OrderedDict()

    def close(self) -> None:
        """Ends the child that reads packs."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def forget(self) -> None:
        """Drops what was read before; after a repair another answer may be right."""
        self._trees = OrderedDict({EMPTY_TREE: {}})
        self._entries = 0
        self._commits.clear()
        self.close()

    def find(self, oid: str) -> tuple[str, bytes] | None:
        """Gives (type, content), or None when there is no such object.

        A damaged loose file is passed over for a packed twin (A2); without one it is `E_STORE_CORRUPT`.
        """
        damage = None
        try:
            found = self._unpacked(oid)
        except Damaged as error:
            damage, found = str(error), None
        if found is None:
            found = self._packed([oid])[0]
            if damage is not None and found is not None and object_id(*found) != oid:
                found = None  # git read the damaged file and did not hash it
        if found is None and damage is not None:
            raise StoreCorruptError(f"the object {oid} is damaged: {damage}", object=oid)
        if found is None and oid == EMPTY_TREE:
            return "tree", b""
        return found

    def _unpacked(self, oid: str) -> tuple[str, bytes] | None:
        """Gives (type, content) from memory, a loose file or the journal; raises `Damaged`."""
        mine = self.new.get(oid)
        if mine is not None and mine.packed:
            return inflate(mine.packed, oid)
        damage: Damaged | None = None
        try:
            found = self.loose.read(oid)
            if found is not None:
                return found
        except Damaged as error:
            damage = error
        packed = self._journal(oid)
        if packed is not None:
            return inflate(packed, oid)
        if damage is not None:
            raise damage
        return None

    def read(self, oid: str, want: str | None = None) -> bytes:
        """Gives the content of an object; `E_NOT_FOUND` when it is missing or not of the wanted type."""
        found = self.find(oid)
        if found is None:
            raise NotFoundError(f"there is no object {oid}", object=oid)
        if want is not None and found[0] != want:
            raise NotFoundError(f"{oid} is a {found[0]}, not a {want}", object=oid, kind=found[0])
        return found[1]

    def header(self, oid: str) -> tuple[str, int] | None:
        """Gives the (type, size) of an object as it is stated where it is; None when there is no such object."""
        found = self._stated(oid)
        return found if found is not None else self._asked(lambda child: child.header(oid))

    def _stated(self, oid: str) -> tuple[str, int] | None:
        """Gives the (type, size) that memory, a loose file or the journal states."""
        mine = self.new.get(oid)
        packed = mine.packed if mine is not None else b""
        found = header(packed) if packed else self.loose.header(oid)
        if found is None:
            packed = self._journal(oid) or b""
            found = header(packed) if packed else None
        return found

    def open(self, oid: str, want: str) -> Pieces:
        """Gives an object to read in pieces; one that is large is never in memory whole.

        A large one that is not read to its end was not checked. Raises as `read` does, while it is read too.
        """
        stated = self.header(oid)
        if stated is None or stated[0] != want or stated[1] <= LARGE:
            content = self.read(oid, want)
            return Pieces(want, len(content), iter((content,)))
        try:
            there = self.loose.open(oid)
        except Damaged:
            there = None
        if there is not None:
            return there._replace(parts=_told(there.parts, oid))
        # a child of its own, which ends when nobody wants the rest
        return Pieces(*stated, _told(_from_child(self.git_dir, oid), oid))

    def read_many(self, ids: Sequence[str]) -> list[tuple[str, bytes] | None]:
        """Gives (type, content) for each id, packed ones in one go."""
        answers: dict[str, tuple[str, bytes] | None] = {}
        packed, damaged = [], set()
        for oid in ids:
            try:
                found = self._unpacked(oid)
            except Damaged:
                found = None
                damaged.add(oid)
            if found is None:
                packed.append(oid)
            else:
                answers[oid] = found
        answers.update(zip(packed, self._packed(packed), strict=True))
        for oid in damaged:
            there = answers[oid]
            if there is not None and object_id(*there) != oid:
                answers[oid] = None  # git read the damaged file and did not hash it
        return [answers[oid] for oid in ids]

    def _packed(self, ids: Sequence[str]) -> list[tuple[str, bytes] | None]:
        if not ids:
            return []
        found = self._asked(lambda child: child.ask(ids), lambda found: None not in found)
        if found is not None:
            return found
        # git dies of a damaged object: ask for each alone
        return [None] if len(ids) == 1 else [self._packed([oid])[0] for oid in ids]

    def _asked(self, ask: Callable[[ObjectChild], T | None], whole: Callable[[T], bool] = lambda _: True) -> T | None:
        """Gives what the child that reads packs answers, a new one when it died or does not see the present packs.

        None when it dies again.
        """
        found: T | None = None
        for _ in (1, 2):
            stamp = self._packs_stamp()
            if self._child is None:
                self._child, self._child_stamp = ObjectChild(self.git_dir), stamp
            try:
                found = ask(self._child)
            except OSError:
                self.close()
                self._heal()
                continue
            if (found is not None and whole(found)) or stamp == self._child_stamp:
                break
            self.close()  # packs came or went since the child looked: a new one sees what is there now
        return found

    def _packs_stamp(self) -> int:
        try:
            return os.stat(os.path.join(self.git_dir, "objects", "pack")).st_mtime_ns
        except OSError:
            return 0

    def packed(self, oid: str) -> tuple[str, bytes] | None:
        """Gives (type, content) of an object that git finds, in a pack unless only a whole loose file has it."""
        return self._packed([oid])[0]

    def kind(self, oid: str) -> str | None:
        """Gives the type of an object, or None."""
        if oid in self._commits:
            return "commit"
        stated = self._stated(oid)
        packed = self._asked(lambda child: child.header(oid)) if stated is None else None
        if packed is not None:
            return packed[0]
        if stated is not None and stated[1] > LARGE:
            return stated[0]
        found = self.find(oid)
        return None if found is None else found[0]

    def tree(self, oid: str) -> trees.Tree:
        """Gives a parsed tree; callers do not change it."""
        cached = self._trees.get(oid)
        if cached is None:
            cached = trees.parse(self.read(oid, "tree"), oid)
            self._remember_tree(oid, cached)
        return cached

    def _remember_tree(self, oid: str, entries: trees.Tree) -> None:
        self._trees[oid] = entries
        self._entries += len(entries) + 1
        while self._entries > _TREE_ENTRIES and len(self._trees) > 8:
            self._entries -= len(self._trees.popitem(last=False)[1]) + 1

    def commit(self, oid: str) -> Commit:
        """Gives a parsed commit."""
        cached = self._commits.get(oid)
        if cached is None:
            cached = parse_commit(oid, self.read(oid, "commit"))
            self._commits[oid] = cached
            if len(self._commits) > _COMMITS:
                self._commits.popitem(last=False)
        return cached

    def write(self, kind: str, content: bytes) -> str:
        """Makes an object, notes it in `new` for the journal, and gives its id; a large one is on disk at once."""
        made = self.loose.make(kind, content)
        self.new[made.id] = made
        return made.id

    def write_file(self, source: BinaryIO) -> str:
        """Makes a blob of an open file's bytes; a large file is never in memory whole."""
        size = os.fstat(source.fileno()).st_size
        if size <= FSYNC_SIZE:
            return self.write("blob", source.read())
        made = self.loose.make_large("blob", size, pieces(source))
        self.new[made.id] = made
        return made.id

    def spill(self) -> None:
        """Puts what is in `new` and in the journal where git sees it, before a git child is asked about it."""
        self._expose()
        for oid in self.new.keys() - self._spilled:
            self.loose.ensure(oid, self.new[oid].packed)
            self._spilled.add(oid)

    def write_tree(self, entries: Mapping[bytes, trees.Entry], *, ordered: bool = False) -> str:
        """Writes a tree and gives its id; `ordered` says that the entries are in git's order already."""
        if not ordered:
            entries = trees.in_order(entries)
        oid = self.write("tree", trees.serialize(entries))
        if oid not in self._trees:
            self._remember_tree(oid, entries)
        return oid

    def write_commit(
        self,
        tree: str,
        parents: Sequence[str],
        author: Person,
        committer: Person,
        message: bytes,
        encoding: bytes = b"",
        signer: Callable[[bytes], bytes] | None = None,
    ) -> str:
        """Writes a commit and gives its id; `encoding` names the message's, when it is not UTF-8."""
        content = commit_bytes(tree, parents, author, committer, message, encoding)
        if signer is not None:
            content = signed(content, signer(content))
        oid = self.write("commit", content)
        self._commits[oid] = Commit(oid, tree, tuple(parents), author, committer, message, encoding)
        return oid

    def take_new(self) -> list[NewObject]:
        """Gives the objects written since the last call; the caller journals them."""
        taken = list(self.new.values())
        self.new.clear()
        self._spilled.clear()
        return taken

    def keep(self, oid: str) -> None:
        """Notes an object that was named by its id for the journal: another tool may have made it, unsynced (A3)."""
        packed = None if self._journal(oid) is not None else self.loose.read_packed(oid)
        if packed is not None:
            large = len(packed) > FSYNC_SIZE
            if large:
                self.loose.put(oid, packed, sync=True)
            self.new[oid] = NewObject(oid, inflate(packed, oid)[0], b"" if large else packed)

    def adopt(self, oid: str) -> None:
        """Notes an object that git wrote for us (a merge's result) for the journal.

        Raises `Damaged`, after it removed the file, when it is not whole.
        """
        packed = self.loose.read_packed(oid)
        if packed is not None:
            try:
                inflate(packed, oid)
            except Damaged:
                # git took a damaged file for the object and wrote nothing over it (A3)
                self.loose.unlink(oid)
                raise
            self.new[oid] = NewObject(oid, "", packed)


def _told(parts: Iterator[bytes], oid: str) -> Iterator[bytes]:
    """Yields pieces, and tells of what is wrong with them as an error of the store."""
    try:
        yield from parts
    except (Damaged, BrokenPipeError) as error:
        raise StoreCorruptError(f"the object {oid} is damaged: {error}", hint="run `rw repair`", object=oid) from None


def _from_child(git_dir: str, oid: str) -> Iterator[bytes]:
    child = ObjectChild(git_dir)
    try:
        yield from child.parts(oid)
    finally:
        child.close()


def commit_bytes(
    tree: str, parents: Sequence[str], author: Person, committer: Person, message: bytes, encoding: bytes = b""
) -> bytes:
    """Gives a commit's content."""
    lines = [b"tree " + tree.encode("ascii")]
    lines += [b"parent " + p.encode("ascii") for p in parents]
    lines += [b"author " + author.line(), b"committer " + committer.line()]
    if encoding:
        lines.append(b"encoding " + encoding)
    return b"\n".join(lines) + b"\n\n" + message


def signed(content: bytes, signature: bytes) -> bytes:
    """Gives a commit's content with the signature of it in its header."""
    head, _, message = content.partition(b"\n\n")
    return head + b"\ngpgsig " + signature.replace(b"\n", b"\n ") + b"\n\n" + message


def parse_commit(oid: str, raw: bytes) -> Commit:
    """Gives the commit of its raw bytes; `E_STORE_CORRUPT` when it is not one."""
    head, _, message = raw.partition(b"\n\n")
    tree, parents = "", []
    author = committer = None
    encoding = b""
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        if key == b"tree" and not tree:
            tree = value.decode("ascii", "replace")
        elif key == b"parent":
            parents.append(value.decode("ascii", "replace"))
        elif key == b"author" and author is None:
            author = parse_person(value)
        elif key == b"committer" and committer is None:
            committer = parse_person(value)
        elif key == b"encoding":
            encoding = value
    if not tree or author is None or committer is None:
        raise StoreCorruptError(f"the commit {oid} can't be read", object=oid)
    return Commit(oid, tree, tuple(parents), author, committer, message, encoding)


def parse_person(value: bytes) -> Person:
    """Gives the person of a header line; what does not parse is kept as a name at time 0."""
    found = _PERSON.match(value)
    if found is None:
        return Person(value, b"", 0, b"+0000")
    return Person(found["name"], found["mail"], int(found["time"]), found["zone"])
