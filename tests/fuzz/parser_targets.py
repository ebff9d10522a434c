"""The package's own parsers as functions of bytes: each gives something, or raises what its callers expect."""

from __future__ import annotations

import os
import re
import tempfile
import zlib
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path

from ropewalk.core import ids
from ropewalk.core.errors import RopewalkError
from ropewalk.mcp.lines import TooLong, read_lines
from ropewalk.store import files, history, identity, layout, loose, objects, packs, projection, revisions, spool, trees

OID = "1" * 40
_FOLDER = Path(tempfile.mkdtemp(prefix="ropewalk-parsers-"))


def _loose(data: bytes) -> None:
    for packed in (data, zlib.compress(data, 1)):
        for oid in (OID, sha1(data, usedforsecurity=False).hexdigest()):
            try:
                kind, content = loose.inflate(packed, oid)
            except loose.Damaged:
                continue
            assert loose.object_id(kind, content) == oid


def _tree(data: bytes) -> None:
    try:
        found = trees.parse(data, OID)
    except RopewalkError:
        return
    again = trees.parse(trees.serialize(trees.in_order(found)), OID)
    assert again == found and all(len(raw) == 20 for _, raw in found.values())


def _commit(data: bytes) -> None:
    try:
        found = objects.parse_commit(OID, data)
    except RopewalkError:
        return
    assert isinstance(history.title_of(found), str) and isinstance(found.title, str)
    assert isinstance(history.text_of(found.message, found.encoding), str)
    found.trailer("Ropewalk-Changeset")
    for who in (found.author, found.committer):
        assert -(10**18) < who.at < 10**18
        again = objects.parse_person(who.line())
        assert objects.parse_person(again.line()) == again


def _pack(data: bytes) -> None:
    half = len(data) // 2
    (_FOLDER / "rw-x.pack").write_bytes(data[:half])
    (_FOLDER / "rw-x.idx").write_bytes(data[half:])
    try:
        packs.read(str(_FOLDER), "x")
    except loose.Damaged:
        pass


def _file(name: str, read: Callable[[str], object]) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        (_FOLDER / name).write_bytes(data)
        try:
            read(str(_FOLDER))
        except RopewalkError as error:
            assert error.code != "E_INTERNAL"

    return target


def _shown(root: str) -> object:
    class One:
        layout = layout_of(root)

    return projection.read_shown(One())  # type: ignore[arg-type]


def layout_of(root: str) -> layout.Layout:
    """Gives the names of a store's parts."""
    return layout.Layout(root)


def _author(root: str) -> object:
    (Path(root) / ".git").mkdir(exist_ok=True)
    found = identity.person(layout_of(root), "family/one", 7)
    assert objects.parse_person(found.line()) == found
    assert b"\n" not in found.line()
    return found


def _mark(root: str) -> object:
    git = Path(root) / ".git"
    (git / "objects").mkdir(parents=True, exist_ok=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    os.replace(Path(root) / "mark", git / layout.WORKSPACE_MARK)
    return layout.workspace_mark(root)


def _request(data: bytes) -> None:
    for body in (data, len(data).to_bytes(8, "big") + zlib.crc32(data).to_bytes(4, "big") + data):
        path = _FOLDER / "slot"
        path.write_bytes(body)
        fd = os.open(path, os.O_RDONLY)
        try:
            for kind in (spool.LandRequest, spool.Answer):
                found = spool._read(fd, kind)
                assert found is None or isinstance(found, kind)
        finally:
            os.close(fd)


def _names(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for check in (ids.check_ref, ids.check_agent, ids.check_key, revisions.split, files.parse_lines):
        try:
            check(text)
        except RopewalkError as error:
            assert error.code == "E_INVALID"
    try:
        assert ids.path_bytes(ids.path_text(data)) == data
        assert ids.check_path(data) == data
        assert data and not data.startswith(b"/") and b"\0" not in data
        assert not re.search(rb"(\A|/)(\.\.?|\.git)(/|\Z)", data, re.IGNORECASE)
    except RopewalkError as error:
        assert error.code == "E_INVALID"


def _lines(data: bytes) -> None:
    read, write = os.pipe()
    try:
        os.write(write, data[:60_000])
        os.close(write)
        given = [None if isinstance(one, TooLong) else one for one in read_lines(read, lambda: None, 16)]
    finally:
        os.close(read)
    parts = data[:60_000].split(b"\n")
    wanted = [None if len(one) > 16 else one for one in (parts if parts[-1] else parts[:-1])]
    assert given == wanted


TARGETS: dict[str, Callable[[bytes], None]] = {
    "loose": _loose,
    "tree": _tree,
    "commit": _commit,
    "pack": _pack,
    "FORMAT": _file("FORMAT", layout.read_format),
    "authors": _file("authors.toml", _author),
    "projected": _file("projected", _shown),
    "mark": _file("mark", _mark),
    "spool": _request,
    "names": _names,
    "lines": _lines,
}
"""Is every parser by name."""

SEEDS: dict[str, list[bytes]] = {
    "loose": [b"blob 3\0abc", b"tree 0\0", zlib.compress(b"commit 1\0x")],
    "tree": [b"100644 a\0" + b"x" * 20 + b"40000 b\0" + b"y" * 20, b"040000 a\0" + b"x" * 20, b"9 a\0" + b"x" * 20],
    "commit": [
        b"tree " + b"1" * 40 + b"\nparent " + b"2" * 40 + b"\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n"
        b"encoding latin-1\ngpgsig x\n y\n\nmessage\n\nRopewalk-Changeset: x\n",
        b"tree x\nauthor A <a> 99999999999999999999 +0\ncommitter <> -1 -0\nencoding \0\n\n\xff",
        b"tree x\nauthor A <a> 1 +0000\ncommitter " + b"9" * 5000 + b" <> " + b"9" * 5000 + b" +0\n\n",
    ],
    "pack": [b"PACK", b"\xfftOc" * 300, b"\0" * 4000],
    "FORMAT": [b'{"format": 1, "id": "x", "name": "y"}', b'{"x":' + b"[" * 50_000, b'{"format": 1e999}', b"\xff"],
    "authors": [
        b'[family]\nname = "A {instance}"\nemail = "{instance}@x"\n', b'[family]\nname = ["x"]\n', b"[family\n",
        b"[family]\nname = " + b"[" * 5000, b"family = 1\n[x]\n", b'[family]\nname = "\\u000d \\u0085<"\n',
        b"[family]\n\xff",
        b'[family]\nname = ""\nemail = ""\n', b'[family]\nname = " x "\nemail = "a b"\n',
    ],
    "projected": [b'{"op": 1, "seq": 2, "waiting": ["refs/x"]}', b'{"op":' + b"[" * 50_000, b'{"op": -1}', b"\xff"],
    "mark": [b'{"store": "x", "workspace": "y"}', b'{"x":' + b"[" * 50_000, b"[]", b'{"store": "\xff"}'],
    "spool": [b"", b"\x82\xa2id\xa1a", b"\xff" * 40, b"\x91" * 50_000, b"\x81\xa1x" + b"\x91" * 50_000],
    "names": [b"refs/heads/main", b"main~2^", b"a/../b", b".GIT/x", b"git~1", b"base64:", b"1-2", b"\xff", b"tags/v1"],
    "lines": [b"a\nb\n", b"x" * 40 + b"\n", b"\n\n", b"a"],
}  # fmt: skip
"""Is what a search begins with."""
