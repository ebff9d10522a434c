"""Codecs and name checks against git's own: trees, loose files, paths, refs."""

from __future__ import annotations

import os
import subprocess
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.core.errors import InvalidError
from ropewalk.core.ids import check_path, check_ref, is_dotgit, path_bytes, path_text
from ropewalk.store import loose, trees
from ropewalk.store.loose import Damaged, LooseStore, inflate, object_id
from storekit import STOCK, Kit, stock

settings.register_profile("exact", deadline=None, derandomize=True, max_examples=60, database=None)
settings.load_profile("exact")

NAMES = st.binary(min_size=1, max_size=12).filter(lambda n: b"\0" not in n and b"/" not in n and n not in (b".", b".."))
SAFE = NAMES.filter(lambda n: not is_dotgit(n))
MODES = st.sampled_from([trees.FILE, trees.EXEC, trees.LINK, trees.TREE, trees.GITLINK])


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Gives an empty bare repository."""
    path = str(tmp_path_factory.mktemp("codecs") / "r.git")
    stock("init", "--quiet", "--bare", path)
    return path


@given(st.dictionaries(NAMES, st.tuples(MODES, st.binary(min_size=20, max_size=20)), max_size=20))
def test_trees_round_trip(entries: dict[bytes, trees.Entry]) -> None:
    """Serializing and parsing give the entries back, in an order that does not depend on the first one."""
    raw = trees.serialize(trees.in_order(entries))
    assert trees.parse(raw, "x") == entries
    assert list(trees.parse(raw, "x")) == list(trees.in_order(dict(reversed(entries.items()))))


@settings(max_examples=25)
@given(st.dictionaries(SAFE, MODES, min_size=1, max_size=12))
def test_trees_are_what_mktree_makes(repo: str, entries: dict[bytes, bytes]) -> None:
    """Git's mktree gives the same id, and ls-tree the same order."""
    oid = b"\x11" * 20
    kinds = {trees.TREE: b"tree", trees.GITLINK: b"commit"}
    rows = b"".join(b"%s %s %s\t%s\0" % (m.rjust(6, b"0"), kinds.get(m, b"blob"), oid.hex().encode(), n)
                    for n, m in entries.items())  # fmt: skip
    told = stock("--git-dir", repo, "mktree", "-z", "--missing", stdin=rows).decode().strip()
    raw = trees.serialize(trees.in_order({n: (m, oid) for n, m in entries.items()}))
    assert object_id("tree", raw) == told
    listed = stock("--git-dir", repo, "ls-tree", "-z", "--name-only", told).split(b"\0")[:-1]
    assert listed == list(trees.parse(raw, told))


@given(st.sampled_from(["blob", "tree", "commit", "tag"]), st.binary(max_size=6000))
def test_loose_files_round_trip(kind: str, content: bytes) -> None:
    """Any content of any size comes back exactly, and any cut of its file is found."""
    packed = loose.deflate(b"%s %d\0" % (kind.encode(), len(content)) + content, tree=kind == "tree")
    oid = object_id(kind, content)
    assert inflate(packed, oid) == (kind, content)
    for cut in {0, 1, len(packed) // 2, len(packed) - 1}:
        with pytest.raises(Damaged):
            inflate(packed[:cut], oid)
    for more in (b"\0", packed):
        with pytest.raises(Damaged):
            inflate(packed + more, oid)


@settings(max_examples=20)
@given(st.binary(max_size=20_000))
def test_git_reads_our_loose_files_and_we_read_its(repo: str, content: bytes) -> None:
    """Both sides write the same id, and each reads what the other wrote."""
    store = LooseStore(os.path.join(repo, "objects"))
    ours = store.write("blob", content)
    assert stock("--git-dir", repo, "cat-file", "blob", ours) == content
    os.unlink(store.path(ours))
    told = stock("--git-dir", repo, "hash-object", "-w", "--stdin", stdin=content).decode().strip()
    assert told == ours
    assert store.read(told) == ("blob", content)


@given(st.binary(max_size=300), st.data())
def test_a_changed_byte_of_a_loose_file_is_found(content: bytes, data: st.DataObject) -> None:
    """A flip anywhere is `Damaged`, or leaves the very content (a bit that zlib ignores)."""
    packed = bytearray(loose.deflate(b"blob %d\0" % len(content) + content, tree=False))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    try:
        assert inflate(bytes(packed), object_id("blob", content)) == ("blob", content)
    except Damaged:
        pass


def test_a_bomb_is_refused_without_being_inflated() -> None:
    """A small file that would inflate to a gigabyte is cut off at the size its header names."""
    packer = zlib.compressobj(9)
    bomb = packer.compress(b"blob 5\0") + b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    with pytest.raises(Damaged):
        inflate(bomb, "0" * 40)


@given(st.binary(max_size=40))
def test_paths_round_trip_as_text(path: bytes) -> None:
    """Any bytes become text that is UTF-8 and come back."""
    text = path_text(path)
    assert text.encode("utf-8") or not path
    assert path_bytes(text) == path


@given(st.text(max_size=30).filter(lambda t: not t.startswith("base64:")))
def test_paths_that_are_text_stay_as_they_are(text: str) -> None:
    """What people write as a name is what the JSON shows."""
    try:
        raw = path_bytes(text)
    except InvalidError:
        return  # a lone surrogate that stands for no byte
    if not any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        assert path_text(raw) == text


BAD_PARTS = [
    ".git", ".GIT", ".Git", "git~1", "GIT~1", ".git ", ".git.", ".git . .", ".git::$INDEX_ALLOCATION", ".git\\x",
    ".g\u200cit", "\u200e.git", ".gi\ufefft", ".\u206agit", ".git\u200d",
]  # fmt: skip
GOOD_PARTS = [
    ".gitignore", ".gitmodules", ".github", "git", "git~2", "x.git", ".git2", "con", "aux.c", "a:b", "trailing.",
    "trailing ", "\u200c", "é", "\udcff", "-x", "a\\b", "new\nline", "\x01",
]  # fmt: skip


@pytest.mark.parametrize("part", BAD_PARTS)
def test_disguises_of_dot_git_are_refused(repo: str, part: str) -> None:
    """Git with the protection of both file systems refuses them in an index, and so does a change list."""
    for path in (part, f"a/{part}", f"{part}/a", f"a/{part}/b"):
        raw = path_bytes(path)
        with pytest.raises(InvalidError):
            check_path(raw)
        if "\\" not in part:
            assert not _index_takes(repo, raw), path


@pytest.mark.parametrize("part", GOOD_PARTS)
def test_odd_names_that_git_takes_are_taken(repo: str, part: str) -> None:
    """Device names of other systems, bytes that are no UTF-8 and control characters are names here."""
    for path in (part, f"a/{part}/b"):
        assert check_path(path_bytes(path))
        assert _index_takes(repo, path_bytes(path))


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from([".", "g", "i", "t", "G", "I", "T", "~", "1", " ", "\u200c", "\ufeff", ":", "a", "/", "\\"]),
        min_size=1,
        max_size=8,
    )
)
def test_no_path_that_git_refuses_is_taken(repo: str, letters: list[str]) -> None:
    """Whatever a change list takes, git's index and git's fsck take too."""
    raw = "".join(letters).encode()
    try:
        check_path(raw)
    except InvalidError:
        return
    assert _index_takes(repo, raw), raw
    assert not _fsck_minds(repo, raw), raw


def test_backslashes_hide_no_dot_git(repo: str) -> None:
    """A name that a Windows clone would split at its backslash is refused, as fsck on the receiving side does."""
    assert _fsck_minds(repo, b"x\\.git")
    for path in (b"x\\.git", b"x\\.GIT\\y", b"x\\git~1"):
        with pytest.raises(InvalidError):
            check_path(path)


def _index_takes(repo: str, path: bytes) -> bool:
    index = Path(repo, "test-index")
    index.unlink(missing_ok=True)
    blob = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    done = subprocess.run(
        ["git", "--git-dir", repo, "-c", "core.protectHFS=true", "-c", "core.protectNTFS=true", "update-index", "-z",
         "--index-info"],
        input=b"100644 %s\t%s\0" % (blob.encode(), path),
        env={**STOCK, "GIT_INDEX_FILE": str(index)}, capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    if done.returncode:
        return False
    out = subprocess.run(["git", "--git-dir", repo, "ls-files", "-z"], env={**STOCK, "GIT_INDEX_FILE": str(index)},
                         capture_output=True, timeout=30, check=True).stdout  # fmt: skip
    return out == path + b"\0"


def _fsck_minds(repo: str, path: bytes) -> bool:
    """Says whether fsck finds a `.git` in a tree of this path."""
    store = LooseStore(os.path.join(repo, "objects"))
    entry = trees.FILE, bytes.fromhex(store.write("blob", b""))
    oid = ""
    for part in reversed(path.split(b"/")):
        oid = store.write("tree", trees.serialize({part: entry}))
        entry = trees.TREE, bytes.fromhex(oid)
    done = subprocess.run(["git", "--git-dir", repo, "fsck", "--no-dangling", oid], env=STOCK, capture_output=True,
                          timeout=30, check=False)  # fmt: skip
    minds = b"hasDotgit" in done.stderr and oid.encode() in done.stderr
    for made in store.ids():
        os.unlink(store.path(made))
    return minds


REFS = st.lists(
    st.sampled_from(["a", "b", "/", ".", "..", ".lock", "@", "{", "~", "^", ":", "?", "*", "[", "\\", " ", "-", "é",
                     "refs/", "heads/", "HEAD", "\x7f", "\t"]),
    min_size=1, max_size=6,
).map("".join)  # fmt: skip


@settings(max_examples=120)
@given(REFS)
def test_ref_names_are_gits(name: str) -> None:
    """A name that is taken is one for git; one that git takes as a branch is refused for a stated reason only."""
    full = name if name.startswith("refs/") else f"refs/heads/{name}"
    done = subprocess.run(["git", "check-ref-format", full], env=STOCK, capture_output=True, timeout=30, check=False)
    git_takes = done.returncode == 0
    try:
        assert check_ref(name) == full
        assert git_takes, name
    except InvalidError:
        stated = name in ("@", "HEAD") or name.startswith("-") or full.count("/") < 2 or len(name) == 40
        assert not git_takes or stated, name


def test_a_tree_of_an_old_git_with_padded_modes_is_read(kit: Kit) -> None:
    """Some imported histories have trees with `040000`; what is below is found all the same."""
    objects = kit.store.objects
    blob = objects.write("blob", b"x\n")
    inner = objects.write("tree", b"100644 f\0" + bytes.fromhex(blob))
    outer = objects.write("tree", b"040000 d\0" + bytes.fromhex(inner))
    assert [p for p, _ in trees.walk(objects, outer)] == [b"d/f"]
    assert trees.lookup(objects, outer, b"d/f") == (trees.FILE, bytes.fromhex(blob))
