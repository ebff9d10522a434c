"""Objects that git takes from others though it would not make them itself, written byte by byte."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

WHO = b"A <a@example.org> 1600000000 +0000"
FILE, EXEC, LINK, TREE, GITLINK = b"100644", b"100755", b"120000", b"40000", b"160000"


class Raw:
    """Writes objects into a bare repository without a check of any kind."""

    def __init__(self, repo: Path) -> None:
        self.repo = repo

    def put(self, kind: bytes, content: bytes) -> bytes:
        """Gives the hexadecimal id of an object."""
        data = b"%s %d\0" % (kind, len(content)) + content
        oid = sha1(data, usedforsecurity=False).hexdigest()
        path = self.repo / "objects" / oid[:2] / oid[2:]
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(zlib.compress(data))
        return oid.encode()

    def blob(self, content: bytes = b"one\ntwo\n") -> bytes:
        """Gives the id of a blob."""
        return self.put(b"blob", content)

    def tree(self, *entries: tuple[bytes, bytes, bytes]) -> bytes:
        """Gives the id of a tree with its entries (mode, name, id) as they are given."""
        return self.put(b"tree", b"".join(b"%s %s\0%s" % (m, n, bytes.fromhex(i.decode())) for m, n, i in entries))

    def commit(
        self, tree: bytes | None = None, *parents: bytes, author: bytes = WHO, committer: bytes = WHO,
        more: bytes = b"", message: bytes = b"\nmessage\n",
    ) -> bytes:  # fmt: skip
        """Gives the id of a commit; `message` begins with the empty line, so that it may be left out."""
        lines = b"tree %s\n" % (tree or self.plain())
        lines += b"".join(b"parent %s\n" % p for p in parents)
        return self.put(b"commit", lines + b"author %s\ncommitter %s\n" % (author, committer) + more + message)

    def plain(self) -> bytes:
        """Gives the id of a tree with two files and a folder."""
        below = self.tree((FILE, b"c.txt", self.blob(b"c\n")))
        return self.tree((FILE, b"a.txt", self.blob()), (FILE, b"b.txt", self.blob(b"b\n")), (TREE, b"d", below))

    def at(self, *extra: tuple[bytes, bytes, bytes], first: bool = False) -> bytes:
        """Gives a commit whose tree has entries beside `a.txt`, behind it or before it."""
        plain = [(FILE, b"a.txt", self.blob())]
        return self.commit(self.tree(*([*extra, *plain] if first else [*plain, *extra])))

    def chain(self, *times: int) -> bytes:
        """Gives the last of some commits with these dates."""
        last: list[bytes] = []
        for number, at in enumerate(times):
            tree = self.tree((FILE, b"a.txt", self.blob(b"%d\n" % number)))
            last = [self.commit(tree, *last, committer=b"A <a@example.org> %d +0000" % at)]
        return last[0]

    def octopus(self, arms: int) -> bytes:
        """Gives a merge of many commits."""
        root = self.commit()
        return self.commit(None, *(self.commit(None, root, message=b"\n%d\n" % n) for n in range(arms)))

    def deep(self, depth: int, name: bytes) -> bytes:
        """Gives a commit whose one file lies many folders down."""
        tree = self.tree((FILE, b"f", self.blob()))
        for _ in range(depth):
            tree = self.tree((TREE, name, tree))
        return self.at((TREE, b"deep", tree))


class Case(NamedTuple):
    """Is one oddity: how it is made, whether a work tree can hold it, whether git's index can."""

    make: Callable[[Raw], bytes]
    checkout: bool = True
    index: bool = True


COMMITS: dict[str, Case] = {
    "no address": Case(lambda r: r.commit(author=b"A U Thor 1600000000 +0000")),
    "empty address": Case(lambda r: r.commit(author=b"A <> 1600000000 +0000", committer=b" <> 1 +0000")),
    "no space before the address": Case(lambda r: r.commit(author=b"A<a@example.org> 1600000000 +0000")),
    "address twice": Case(lambda r: r.commit(author=b"A <a@b> <c@d> 1600000000 +0000")),
    "no time": Case(lambda r: r.commit(author=b"A <a@b>", committer=b"A <a@b> now")),
    "negative time": Case(lambda r: r.commit(author=b"A <a@b> -100 +0000", committer=b"A <a@b> -7 +0000")),
    "time beyond 64 bits": Case(lambda r: r.commit(author=b"A <a@b> 99999999999999999999 +0000",
                                                   committer=b"A <a@b> 99999999999999999999 +0000")),
    "time of ten thousand digits": Case(lambda r: r.commit(author=b"A <a@b> " + b"9" * 10_000 + b" +0000",
                                                           committer=b"A <a@b> " + b"9" * 10_000 + b" +0000")),
    "zone of six digits": Case(lambda r: r.commit(author=b"A <a@b> 1600000000 +051800")),
    "zone that is none": Case(lambda r: r.commit(author=b"A <a@b> 1600000000 GMT", committer=b"A <a@b> 16 -2575")),
    "NUL in the message": Case(lambda r: r.commit(message=b"\none\0two\n")),
    "no line end": Case(lambda r: r.commit(message=b"\nno line end")),
    "empty message": Case(lambda r: r.commit(message=b"\n")),
    "no message at all": Case(lambda r: r.commit(message=b"")),
    "message of line ends": Case(lambda r: r.commit(message=b"\n\n\n\r\n\n")),
    "bytes that are no text": Case(lambda r: r.commit(author=b"\xff\xfe <\x80@b> 1 +0000", message=b"\n\xfc\xc3(\n")),
    "encoding": Case(lambda r: r.commit(more=b"encoding ISO-8859-1\n", message=b"\ngr\xfc\xdfe\n")),
    "encoding that does not exist": Case(lambda r: r.commit(more=b"encoding klingon\n", message=b"\ngr\xfc\n")),
    "encoding that is no text codec": Case(lambda r: r.commit(more=b"encoding hex\n", message=b"\ngr\xfc\n")),
    "encoding with a NUL": Case(lambda r: r.commit(more=b"encoding a\0b\n", message=b"\ngr\xfc\n")),
    "encoding that loses bytes": Case(lambda r: r.commit(more=b"encoding utf-7\n", message=b"\n+\xfc+AGE\n")),
    "gpgsig-sha256": Case(lambda r: r.commit(more=b"gpgsig-sha256 -----BEGIN\n x\n -----END\n")),
    "unknown headers": Case(lambda r: r.commit(more=b"HG:rename-source hg\nHG:extra a:b\n tree 0\n parent 1\n")),
    "tag in a header": Case(lambda r: r.commit(
        more=b"mergetag object %s\n type commit\n tag v\n tagger A <a@b> 1 +0000\n \n x\n" % r.commit())),
    "a parent twice": Case(lambda r: (lambda p: r.commit(None, p, p, message=b"\ntwice\n"))(r.commit())),
    "dates that run back": Case(lambda r: r.chain(1_600_000_000, 1, 1_700_000_000, 0, 1_500_000_000)),
    "sixty-six parents": Case(lambda r: r.octopus(66)),
    "empty tree": Case(lambda r: r.commit(r.tree(), r.commit())),
    "empty commit": Case(lambda r: r.commit(None, r.commit(), message=b"\nnothing\n")),
}  # fmt: skip

TREES: dict[str, Case] = {
    "modes with zeros": Case(lambda r: r.at((b"040000", b"d", r.plain()), (b"0100644", b"z", r.blob(b"z\n")))),
    "modes of other programs": Case(lambda r: r.at((b"100664", b"b", r.blob(b"b\n")), (b"100600", b"c", r.blob()),
                                                   (b"100777", b"x", r.blob(b"x\n")))),
    "not in order": Case(lambda r: r.at((FILE, b"z", r.blob(b"z\n")), first=True)),
    "folder in the place of a file": Case(lambda r: r.at((TREE, b"b", r.plain()), (FILE, b"b.c", r.blob()))),
    "a name twice": Case(lambda r: r.at((FILE, b"b", r.blob(b"1\n")), (FILE, b"b", r.blob(b"2\n"))), False),
    "a file and a folder of one name": Case(lambda r: r.at((FILE, b"b", r.blob()), (TREE, b"b", r.plain())), False),
    "empty folder": Case(lambda r: r.at((TREE, b"empty", r.tree())), index=False),
    "submodule without .gitmodules": Case(lambda r: r.at((GITLINK, b"sub", b"12" * 20))),
    "submodule at nothing": Case(lambda r: r.at((GITLINK, b"sub", b"0" * 40)), False),
    "ten thousand entries": Case(lambda r: r.at(*((FILE, b"f%05d" % n, r.blob(b"f\n")) for n in range(10_000)))),
    "three hundred folders deep": Case(lambda r: r.deep(300, b"dd")),
    "a path of 5,000 bytes": Case(lambda r: r.deep(25, b"n" * 200), False),
    "a name of 300 bytes": Case(lambda r: r.at((FILE, b"n" * 300, r.blob())), False),
    "device names": Case(lambda r: r.at(*((FILE, n, r.blob()) for n in (b"a:b", b"aux.c", b"con", b"trailing.")))),
    "names of one case": Case(lambda r: r.at((FILE, b"README", r.blob()), (FILE, b"readme", r.blob()), first=True)),
    "names that are no text": Case(lambda r: r.at((FILE, b"v\xed\xb2\xbb", r.blob()), (FILE, b"\xff.py", r.blob()))),
    "names to quote": Case(lambda r: r.at(
        *((FILE, n, r.blob()) for n in (b'q"\\', b"t\tb")), (FILE, b"\n", r.blob()), (FILE, b"-x", r.blob()))),
    "link to everywhere": Case(lambda r: r.at((LINK, b"l", r.blob(b"/etc/passwd")), (LINK, b"up", r.blob(b"../..")))),
    "link to nothing": Case(lambda r: r.at((LINK, b"l", r.blob(b""))), False),
    ".git": Case(lambda r: r.at((TREE, b".git", r.tree((FILE, b"config", r.blob(b"[core]\n")))), first=True), False),
    ".GIT": Case(lambda r: r.at((TREE, b".GIT", r.tree((FILE, b"config", r.blob(b"[core]\n")))), first=True), False),
    "git~1": Case(lambda r: r.at((TREE, b"git~1", r.tree((FILE, b"config", r.blob(b"[core]\n"))))), False),
    "the folder above": Case(lambda r: r.at((TREE, b"..", r.tree((FILE, b"up", r.blob()))), first=True), False),
    "this folder": Case(lambda r: r.at((TREE, b".", r.tree((FILE, b"here", r.blob()))), first=True), False),
    "a slash in a name": Case(lambda r: r.at((FILE, b"b/../../x", r.blob())), False),
    "an empty name": Case(lambda r: r.at((FILE, b"", r.blob()), first=True), False),
}  # fmt: skip
