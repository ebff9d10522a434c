"""Merges against the installed git: hundreds of generated three-way merges, each in both orders of the sides."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ropewalk.store import guard, merge, trees
from ropewalk.store.merge import Merged
from ropewalk.store.objects import Objects
from ropewalk.store.trees import EXEC, FILE, GITLINK, LINK
from storekit import NOBODY, STOCK, Kit, stock, write_tree

pytestmark = [pytest.mark.compat, pytest.mark.slow]

Model = dict[bytes, tuple[bytes, bytes]]
FOLDERS = [b"src", b"src/core", b"src/core/deep", b"docs", b"tools/a", b"tools/b"]
ROUNDS = int(os.environ.get("RWTEST_MERGE_ROUNDS", "8"))


class Case(NamedTuple):
    """Is one generated merge: its kind and three models."""

    kind: str
    base: Model
    ours: Model
    theirs: Model


def text(r: random.Random, count: int = 24, end: bytes = b"\n") -> bytes:
    """Gives a text that no other file of the case resembles."""
    mark = b"%08x" % r.getrandbits(32)
    return b"".join(b"%s says %d of %d%s" % (mark, n, r.randrange(1000), end) for n in range(count))


def base_model(r: random.Random) -> Model:
    """Gives a base of folders with texts, a binary, links, modes, submodules and empty files."""
    model: Model = {b"README": (FILE, text(r)), b"run.sh": (EXEC, text(r))}
    for folder in FOLDERS:
        for n in range(r.randint(3, 4)):
            model[b"%s/f%d.txt" % (folder, n)] = (FILE, text(r))
    model[b"src/data.bin"] = (FILE, bytes(r.getrandbits(8) for _ in range(400)) + b"\0")
    model[b"src/crlf.txt"] = (FILE, text(r, end=b"\r\n"))
    model[b"docs/link"] = (LINK, b"../README")
    model[b"docs/empty"] = (FILE, b"")
    model[b"lib/sub"] = (GITLINK, bytes(r.getrandbits(8) for _ in range(20)))
    return model


def plain(r: random.Random, model: Model, under: bytes = b"") -> bytes:
    """Gives the path of an ordinary text file."""
    return r.choice([p for p in sorted(model) if p.endswith(b".txt") and b"crlf" not in p and p.startswith(under)])


def edit(content: bytes, at: int, word: bytes) -> bytes:
    """Gives a text with one line replaced."""
    rows = content.splitlines(keepends=True) or [b""]
    at = min(at, len(rows) - 1)
    end = b"\r\n" if rows[at].endswith(b"\r\n") else b"\n"
    rows[at] = word + end
    return b"".join(rows)


def touch(model: Model, path: bytes, at: int, word: bytes) -> None:
    """Replaces a line of a file of a model."""
    mode, content = model[path]
    model[path] = (mode, edit(content, at, word))


def rename(model: Model, old: bytes, new: bytes) -> None:
    """Moves a file of a model."""
    model[new] = model.pop(old)


def rename_folder(model: Model, old: bytes, new: bytes) -> None:
    """Moves all files below a folder."""
    for path in [p for p in model if p.startswith(old + b"/")]:
        rename(model, path, new + path[len(old) :])


# each kind changes ours and theirs, which come as copies of the base

Kind = Callable[[random.Random, Model, Model, Model], None]


def disjoint(r: random.Random, b: Model, o: Model, t: Model) -> None:
    one, two = r.sample([p for p in sorted(b) if p.endswith(b".txt") and b"crlf" not in p], 2)
    touch(o, one, 3, b"ours")
    touch(t, two, 4, b"theirs")


def disjoint_adds(r: random.Random, b: Model, o: Model, t: Model) -> None:
    o[r.choice(FOLDERS) + b"/new-ours.txt"] = (FILE, text(r))
    t[r.choice(FOLDERS) + b"/new-theirs.txt"] = (FILE, text(r))


def disjoint_deletes(r: random.Random, b: Model, o: Model, t: Model) -> None:
    one, two = r.sample([p for p in sorted(b) if p.endswith(b".txt")], 2)
    del o[one], t[two]


def add_folder(r: random.Random, b: Model, o: Model, t: Model) -> None:
    o[b"fresh/a/b.txt"] = (FILE, text(r))
    o[b"fresh.txt"] = (FILE, text(r))
    t[b"fresh-two/a.txt"] = (FILE, text(r))
    t[b"fresh0"] = (FILE, text(r))


def same_add(r: random.Random, b: Model, o: Model, t: Model) -> None:
    o[b"src/same.txt"] = t[b"src/same.txt"] = (r.choice([FILE, EXEC]), text(r))
    disjoint(r, b, o, t)


def same_edit(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    for side in (o, t):
        touch(side, path, 7, b"typo fixed")
    o[b"docs/more.txt"] = (FILE, text(r))


def same_subtree(r: random.Random, b: Model, o: Model, t: Model) -> None:
    """Both change one nested folder in the same way; one renames out of it, or not."""
    for side in (o, t):
        touch(side, b"src/core/deep/f0.txt", 2, b"both")
        if r.random() < 0.5:
            side.pop(b"src/core/deep/f1.txt", None)
    touch(o, b"README", 1, b"ours")


def same_removal_moved(r: random.Random, b: Model, o: Model, t: Model) -> None:
    for side in (o, t):
        touch(side, b"src/core/deep/f0.txt", 2, b"both")
    rename(o, b"src/core/deep/f1.txt", b"docs/moved.txt")
    if r.random() < 0.5:
        rename(t, b"src/core/deep/f1.txt", b"docs/elsewhere.txt")
    else:
        del t[b"src/core/deep/f1.txt"]


def regions(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    touch(o, path, 2, b"ours")
    touch(t, path, 20, b"theirs")


def same_line(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    touch(o, path, 5, b"ours")
    touch(t, path, 5, b"theirs")


def crlf(r: random.Random, b: Model, o: Model, t: Model) -> None:
    touch(o, b"src/crlf.txt", 2, b"ours")
    touch(t, b"src/crlf.txt", r.choice([2, 20]), b"theirs")
    if r.random() < 0.3:
        o[b"src/crlf.txt"] = (FILE, o[b"src/crlf.txt"][1].replace(b"\r\n", b"\n"))


def binary(r: random.Random, b: Model, o: Model, t: Model) -> None:
    data = b[b"src/data.bin"][1]
    o[b"src/data.bin"] = (FILE, b"o" + data)
    if r.random() < 0.7:
        t[b"src/data.bin"] = (FILE, data + b"t")


def modes(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    o[path] = (EXEC, o[path][1])
    choice = r.random()
    if choice < 0.4:
        touch(t, path, 4, b"theirs")
    elif choice < 0.7:
        t[path] = (EXEC, edit(t[path][1], 4, b"theirs"))
    else:
        touch(t, b"README", 1, b"theirs")


def rename_edit(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    rename(o, path, b"src/renamed.txt")
    if r.random() < 0.5:
        touch(o, b"src/renamed.txt", 20, b"ours")
    touch(t, path, r.choice([3, 20]), b"theirs")


def rename_far(r: random.Random, b: Model, o: Model, t: Model) -> None:
    rename(o, plain(r, b, b"docs"), b"tools/b/renamed.txt")
    touch(t, plain(r, b, b"src"), 3, b"theirs")


def rename_delete(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    rename(o, path, b"docs/renamed.txt")
    del t[path]


def rename_same(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    rename(o, path, b"docs/renamed.txt")
    rename(t, path, b"docs/renamed.txt")
    if r.random() < 0.5:
        touch(o, b"docs/renamed.txt", 2, b"ours")
        touch(t, b"docs/renamed.txt", 20, b"theirs")


def rename_rename(r: random.Random, b: Model, o: Model, t: Model) -> None:
    """One file to two names."""
    path = plain(r, b)
    rename(o, path, b"docs/one.txt")
    rename(t, path, b"docs/two.txt")
    if r.random() < 0.4:
        touch(t, b"docs/two.txt", 2, b"theirs")


def rename_onto(r: random.Random, b: Model, o: Model, t: Model) -> None:
    """Two files to one name."""
    one, two = r.sample([p for p in sorted(b) if p.endswith(b".txt") and b"crlf" not in p], 2)
    rename(o, one, b"docs/both.txt")
    rename(t, two, b"docs/both.txt")


def rename_add(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    rename(o, path, b"docs/new.txt")
    t[b"docs/new.txt"] = (FILE, text(r) if r.random() < 0.7 else b[path][1])
    if r.random() < 0.5:
        touch(o, b"docs/new.txt", r.choice([3, 20]), b"ours")
        touch(t, path, 3, b"theirs")


def rename_swap(r: random.Random, b: Model, o: Model, t: Model) -> None:
    one, two = r.sample([p for p in sorted(b) if p.endswith(b".txt") and b"crlf" not in p], 2)
    o[one], o[two] = o[two], o[one]
    touch(t, one, 3, b"theirs")


def rename_source_again(r: random.Random, b: Model, o: Model, t: Model) -> None:
    """A file is moved away and another made in its place."""
    path = plain(r, b)
    rename(o, path, b"docs/moved.txt")
    o[path] = (FILE, text(r))
    touch(t, path, 3, b"theirs")


def both_add(r: random.Random, b: Model, o: Model, t: Model) -> None:
    same = text(r)
    o[b"docs/new.txt"] = (FILE, same if r.random() < 0.4 else text(r))
    t[b"docs/new.txt"] = (r.choice([FILE, EXEC]), same)


def cross_adds(r: random.Random, b: Model, o: Model, t: Model) -> None:
    """Both delete a file and add two that resemble it, crosswise."""
    path = plain(r, b)
    content = b[path][1]
    del o[path], t[path]
    names = [b"docs/left.txt", b"docs/right.txt"]
    o[names[0]], o[names[1]] = (FILE, edit(content, 2, b"o1")), (FILE, edit(content, 9, b"o2"))
    for n, name in enumerate(names if r.random() < 0.5 else [b"docs/third.txt"]):
        t[name] = (FILE, edit(content, 15 + n, b"t"))


def modify_delete(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    touch(o, path, 3, b"ours")
    del t[path]


def delete_both(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    del o[path], t[path]
    disjoint_adds(r, b, o, t)


def delete_folder(r: random.Random, b: Model, o: Model, t: Model) -> None:
    for path in [p for p in o if p.startswith(b"tools/a/")]:
        del o[path]
    if r.random() < 0.5:
        touch(t, plain(r, b, r.choice([b"tools/a", b"docs"])), 3, b"theirs")
    else:
        t[r.choice([b"tools/a", b"tools/b"]) + b"/new.txt"] = (FILE, text(r))


def folder_rename(r: random.Random, b: Model, o: Model, t: Model) -> None:
    rename_folder(o, b"tools/a", r.choice([b"tools/z", b"kit", b"src/tools"]))
    choice = r.random()
    if choice < 0.4:
        t[b"tools/a/new.txt"] = (FILE, text(r))
    elif choice < 0.6:
        rename(t, plain(r, b, b"docs"), b"tools/a/came.txt")
    elif choice < 0.8:
        touch(t, plain(r, b, b"tools/a"), 3, b"theirs")
    else:
        touch(t, plain(r, b, b"docs"), 3, b"theirs")


def folder_renames(r: random.Random, b: Model, o: Model, t: Model) -> None:
    """Both move the same folder, or folders into each other's way."""
    rename_folder(o, b"tools/a", b"kit")
    rename_folder(t, r.choice([b"tools/a", b"tools/b"]), r.choice([b"kit", b"gear"]))
    o[b"tools/b/ours.txt"] = (FILE, text(r))


def folder_split(r: random.Random, b: Model, o: Model, t: Model) -> None:
    paths = sorted(p for p in o if p.startswith(b"tools/a/"))
    for n, path in enumerate(paths):
        rename(o, path, b"split/%d/%s" % (n % 2, path.rsplit(b"/", 1)[1]))
    t[b"tools/a/new.txt"] = (FILE, text(r))


def file_to_folder(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    old = o.pop(path)
    o[path + b"/inner.txt"] = old if r.random() < 0.3 else (FILE, text(r))
    if r.random() < 0.6:
        touch(t, path, 3, b"theirs")
    else:
        touch(t, b"README", 3, b"theirs")


def folder_to_file(r: random.Random, b: Model, o: Model, t: Model) -> None:
    for path in [p for p in o if p.startswith(b"tools/b/")]:
        del o[path]
    o[b"tools/b"] = (FILE, text(r))
    if r.random() < 0.5:
        t[b"tools/b/new.txt"] = (FILE, text(r))
    else:
        touch(t, b"README", 3, b"theirs")


def file_and_folder(r: random.Random, b: Model, o: Model, t: Model) -> None:
    o[b"docs/thing"] = (FILE, text(r))
    t[b"docs/thing/part.txt"] = (FILE, text(r))


def to_link(r: random.Random, b: Model, o: Model, t: Model) -> None:
    path = plain(r, b)
    o[path] = (LINK, b"target")
    choice = r.random()
    if choice < 0.3:
        touch(t, path, 3, b"theirs")
    elif choice < 0.5:
        del t[path]
    elif choice < 0.7:
        rename(t, path, b"docs/renamed.txt")
    else:
        touch(t, b"README", 3, b"theirs")


def links(r: random.Random, b: Model, o: Model, t: Model) -> None:
    o[b"docs/link"] = (LINK, b"ours")
    choice = r.random()
    if choice < 0.4:
        t[b"docs/link"] = (LINK, b"theirs")
    elif choice < 0.6:
        t[b"docs/link"] = (LINK, b"ours")
    else:
        t[b"docs/other-link"] = (LINK, b"ours")


def empty_files(r: random.Random, b: Model, o: Model, t: Model) -> None:
    choice = r.random()
    if choice < 0.3:
        o[b"docs/empty"] = (FILE, text(r))
        t[b"docs/empty"] = (FILE, text(r))
    elif choice < 0.6:
        del o[b"docs/empty"]
        t[b"src/also-empty"] = (FILE, b"")
    else:
        rename(o, b"docs/empty", b"docs/hollow")
        rename(t, b"docs/empty", b"docs/void")


def submodules(r: random.Random, b: Model, o: Model, t: Model) -> None:
    o[b"lib/sub"] = (GITLINK, b"\1" * 20)
    choice = r.random()
    if choice < 0.3:
        t[b"lib/sub"] = (GITLINK, b"\2" * 20)
    elif choice < 0.5:
        t[b"lib/sub"] = (GITLINK, b"\1" * 20)
    elif choice < 0.7:
        del t[b"lib/sub"]
    else:
        t[b"lib/sub-two"] = (GITLINK, b"\3" * 20)


def submodule_or_file(r: random.Random, b: Model, o: Model, t: Model) -> None:
    o[b"lib/new"] = (GITLINK, b"\1" * 20)
    if r.random() < 0.5:
        t[b"lib/new"] = (FILE, text(r))
    else:
        t[b"lib/new/inner.txt"] = (FILE, text(r))


def odd_names(r: random.Random, b: Model, o: Model, t: Model) -> None:
    o[b"src/bad-\xff.txt"] = (FILE, text(r))
    o[b'src/quote".txt'] = (FILE, text(r))
    t[b"src/new\nline.txt"] = (FILE, text(r))
    if r.random() < 0.5:
        t[b"src/bad-\xff.txt"] = (FILE, text(r))


def storm(r: random.Random, b: Model, o: Model, t: Model) -> None:
    """Several random changes on each side, from few names, so that they meet."""
    for side in (o, t):
        for _ in range(r.randint(2, 6)):
            texts = [p for p in sorted(side) if p.endswith(b".txt") and side[p][0] in (FILE, EXEC)]
            path = r.choice(texts)
            what = r.randrange(7)
            if what == 0:
                touch(side, path, r.choice([2, 12, 20]), b"%d" % r.randrange(3))
            elif what == 1:
                new = r.choice(FOLDERS) + b"/n%d.txt" % r.randrange(3)
                if new not in side:
                    rename(side, path, new)
            elif what == 2:
                del side[path]
            elif what == 3:
                side[path] = (EXEC, side[path][1])
            elif what == 4:
                side[r.choice(FOLDERS) + b"/n%d.txt" % r.randrange(3)] = (FILE, r.choice([text(r), b"one\n", b""]))
            elif what == 5:
                old = r.choice(FOLDERS)
                new = r.choice([b"kit", b"gear"])
                if not any(p.startswith(new) for p in side):
                    rename_folder(side, old, new)
            else:
                side[path] = (LINK, b"x")


KINDS: dict[str, Kind] = {
    f.__name__: f
    for f in (
        disjoint, disjoint_adds, disjoint_deletes, add_folder, same_add, same_edit, same_subtree, same_removal_moved,
        regions, same_line, crlf, binary, modes, rename_edit, rename_far, rename_delete, rename_same, rename_rename,
        rename_onto, rename_add, rename_swap, rename_source_again, both_add, cross_adds, modify_delete, delete_both,
        delete_folder, folder_rename, folder_renames, folder_split, file_to_folder, folder_to_file, file_and_folder,
        to_link, links, empty_files, submodules, submodule_or_file, odd_names, storm,
    )
}  # fmt: skip
USUAL = ("disjoint", "disjoint_adds", "disjoint_deletes", "add_folder", "same_add", "same_edit", "same_subtree",
         "rename_far", "modes", "links")  # fmt: skip
"""Kinds that agents' changes mostly are; they come as often as they do in practice, not as often as the odd ones."""


def generate(rounds: int = ROUNDS) -> list[Case]:
    """Gives the cases, the same at every run."""
    found = []
    for kind, change in KINDS.items():
        for n in range(rounds * (4 if kind in USUAL else 2 if kind == "storm" else 1)):
            r = random.Random(f"{kind} {n}")
            base = base_model(r)
            ours, theirs = dict(base), dict(base)
            change(r, base, ours, theirs)
            if r.random() < 0.3:
                ours[b"noise/ours.txt"], theirs[b"noise/theirs.txt"] = (FILE, text(r)), (FILE, text(r))
            found.append(Case(kind, base, ours, theirs))
    return found


class Told(NamedTuple):
    """Is what git said of a merge."""

    clean: bool
    tree: str
    conflicts: frozenset[bytes]


def ask_git(objects: Objects, folder: Path, wanted: list[tuple[str, str, str]]) -> list[Told]:
    """Gives git's own merges of (base, ours, theirs), from commits in a repository of its own."""
    objects.spill()
    repo = str(folder / "git.git")
    stock("init", "--quiet", "--bare", repo)
    (folder / "git.git" / "objects" / "info" / "alternates").write_text(objects.loose.folder + "\n")
    own = Objects(repo)
    rows = []
    for base, ours, theirs in wanted:
        root = own.write_commit(base, [], NOBODY, NOBODY, b"base\n")
        one = own.write_commit(ours, [root], NOBODY, NOBODY, b"ours\n")
        two = own.write_commit(theirs, [root], NOBODY, NOBODY, b"theirs\n")
        rows.append(f"{one} {two}\n")
    own.spill()
    own.close()
    done = subprocess.run(
        ["git", "--git-dir", repo, "-c", "merge.renames=true", "-c", "merge.directoryRenames=conflict",
         "-c", "merge.renameLimit=99999", "merge-tree", "--write-tree", "-z", "--stdin"],
        input="".join(rows).encode(), env=STOCK, capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    return parse_batch(done.stdout, len(wanted))


def parse_batch(out: bytes, count: int) -> list[Told]:
    """Gives the answers of `git merge-tree --stdin`: status, tree, conflicted files, messages, for each merge."""
    fields = out.split(b"\0")
    at, found = 0, []
    for _ in range(count):
        clean, tree = fields[at] == b"1", fields[at + 1].decode()
        at += 2
        paths = set()
        if not clean:
            while fields[at]:
                # a side that found its place taken stands under a name with its commit's id
                paths.add(re.sub(rb"~[0-9a-f]{40}(_\d+)?\Z", b"", fields[at].partition(b"\t")[2]))
                at += 1
            at += 1
            while fields[at].isdigit():  # git 2.39 puts its advice on submodules where the end mark is
                at += 3 + int(fields[at])
        at += 1
        found.append(Told(clean, tree, frozenset(paths)))
    return found


def test_ropewalk_merges_as_git_does(kit: Kit, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Same tree when clean, same conflicted paths when not; at least half is decided in-process."""
    objects = kit.store.objects
    cases = generate()
    wanted: list[tuple[str, str, str]] = []
    for case in cases:
        base, ours, theirs = (write_tree(objects, m) for m in (case.base, case.ours, case.theirs))
        wanted += [(base, ours, theirs), (base, theirs, ours)]
    assert len(cases) >= 500 and {c.kind for c in cases} == set(KINDS)
    told = ask_git(objects, tmp_path, wanted)
    by: Counter[str] = Counter()
    differences: list[str] = []
    for number, (trio, git) in enumerate(zip(wanted, told, strict=True)):
        objects.take_new()
        kind = cases[number // 2].kind
        mine = merge.merge(objects, *trio)
        by[mine.by] += 1
        problem = compare(mine, git) or integrity(kit, trio, mine)
        if problem:
            differences.append(f"{kind} #{number}: {problem}")
    assert not differences, "\n".join(differences[:40]) + f"\n{len(differences)} of {len(wanted)}"
    share = (by["trees"] + by["same"]) / sum(by.values())
    record_property("decided_in_process", f"{share:.0%} of {sum(by.values())}")
    print(f"\n{sum(by.values())} merges: {dict(by)}, {share:.0%} decided in-process")
    clean = sum(t.clean for t in told)
    assert len(told) * 0.3 < clean < len(told) * 0.9, clean
    assert share >= 0.5, by


def compare(mine: Merged, git: Told) -> str | None:
    """Gives how two merges differ, or None."""
    if mine.clean != git.clean:
        return f"clean: {mine.clean} by {mine.by}, git {git.clean} {sorted(git.conflicts)}"
    if mine.clean and mine.tree != git.tree:
        return f"trees differ, by {mine.by}: {mine.tree} {git.tree}"
    conflicts = {c.path for c in mine.conflicts}
    if git.conflicts and conflicts != git.conflicts:
        return f"paths: {sorted(conflicts)}, git {sorted(git.conflicts)}"
    return None


def integrity(kit: Kit, trio: tuple[str, str, str], mine: Merged) -> str | None:
    """Gives what the check of a land (A12) has against a clean merge, or None."""
    from ropewalk.core.errors import LandMismatchError

    base, ours, theirs = trio
    if not mine.clean:
        return None
    try:
        guard.check_integrity(
            kit.store, base=base, change=ours, target=theirs, result=mine.tree,
            wanted=trees.diff(kit.store.objects, base, ours),
            merged=[p for m in mine.messages for p in m.paths],
        )  # fmt: skip
    except LandMismatchError as error:
        return f"integrity refuses a right merge by {mine.by}: {error.message}"
    return None
