"""Reports and resolutions over the generated merges: every kind of conflict is named, and can be answered."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Literal

import pytest
from test_merge import KINDS, Case, base_model, generate

from ropewalk.core.ids import path_text
from ropewalk.store import guard, merge, report, trees
from ropewalk.store.changes import read_disk_file
from ropewalk.store.merge import Merged
from ropewalk.store.report import Report, Resolution
from storekit import MAIN, NOBODY, FileResolution, Kit, read_tree, write_tree

pytestmark = [pytest.mark.compat, pytest.mark.slow]

Side = Literal["ours", "theirs", "base"]


def some(limit: int = 3) -> Iterator[Case]:
    """Gives the first cases of each kind."""
    seen: dict[str, int] = {}
    for case in generate(limit):
        seen[case.kind] = seen.get(case.kind, 0) + 1
        if seen[case.kind] <= limit:
            yield case


class Met(Exception):
    """A case has no conflict."""


class Clash:
    """Is one merge in conflict, with the commits and the report of it."""

    def __init__(self, kit: Kit, case: Case) -> None:
        self.kit, self.objects = kit, kit.store.objects
        self.base, self.ours, self.theirs = (write_tree(self.objects, m) for m in (case.base, case.ours, case.theirs))
        self.merged: Merged = merge.merge(self.objects, self.base, self.ours, self.theirs)
        if self.merged.clean:
            raise Met
        root = self.objects.write_commit(self.base, [], NOBODY, NOBODY, b"base\n")
        one, two = (self.objects.write_commit(t, [root], NOBODY, NOBODY, b"x\n") for t in (self.ours, self.theirs))
        self.report: Report = report.build(kit.store, self.merged, ref=MAIN, base=root, theirs=two, change=one)
        self.target = two

    def answer(self, take: Side) -> str:
        """Gives the tree when every path is answered with one side, after the check of a land."""
        files = {path_text(c.path): FileResolution(take=take) for c in self.merged.conflicts}
        resolution = Resolution(self.target, files)
        assert report.undecided(self.merged, resolution) == []
        tree, decided = report.apply(self.kit.store, self.merged, resolution, read_disk_file)
        merge.adopt(self.objects, tree, (self.ours, self.theirs))
        decided += [c.path for c in self.merged.conflicts] + [p for m in self.merged.messages for p in m.paths]
        wanted = trees.diff(self.objects, self.base, self.ours)
        guard.check_integrity(self.kit.store, base=self.base, change=self.ours, target=self.theirs, result=tree,
                              wanted=wanted, merged=decided)  # fmt: skip
        return tree


@pytest.mark.parametrize("take", ["ours", "theirs"])
def test_every_conflict_can_be_answered_with_one_side(kit: Kit, take: Side) -> None:
    """No marker and no stand-in name of git's stays, and each answered path is as that side has it."""
    count = 0
    for case in some():
        try:
            clash = Clash(kit, case)
        except Met:
            continue
        count += 1
        tree = clash.answer(take)
        result = read_tree(clash.objects, tree)
        for conflict in clash.merged.conflicts:
            there = trees.lookup(clash.objects, tree, conflict.path)
            if there is not None and there[0] == trees.TREE:
                there = None
            # a side's entry is git's: of a renamed file it holds what both sides made of its lines
            assert there == getattr(conflict, take), (case.kind, conflict.path)
        for path, (_, content) in result.items():
            assert not re.search(rb"~[0-9a-f]{40}", path), (case.kind, path)
            assert b"<<<<<<< " not in content, (case.kind, path)
    assert count > 40


def test_every_conflict_has_a_kind_and_its_paths(kit: Kit) -> None:
    """The report knows the kinds of all that git reports, and its texts stay small."""
    found: set[str] = set()
    for case in some(6):
        try:
            clash = Clash(kit, case)
        except Met:
            continue
        assert clash.report.files, case.kind
        for file in clash.report.files:
            assert "other" not in file.kinds, (case.kind, file.path, [m.kind for m in clash.merged.messages])
            found.update(file.kinds)
    assert found >= {
        "content", "add_add", "modify_delete", "delete_modify", "rename_rename", "rename_delete", "rename_add",
        "binary", "distinct_types", "directory_file", "submodule", "dir_rename", "symlink",
    }  # fmt: skip


def test_a_report_of_a_large_conflict_fits_a_context_window(kit: Kit) -> None:
    """Long hunks are cut, with the command that shows the rest."""
    r = random.Random(1)
    base = base_model(r)
    big = b"".join(b"line %d\n" % n for n in range(20_000))
    models = [{**base, b"big.txt": (trees.FILE, big.replace(b"line", word))} for word in (b"line", b"mine", b"yours")]
    clash = Clash(kit, Case("big", *models))
    (file,) = clash.report.files
    (hunk,) = file.hunks
    for side in (hunk.base, hunk.ours, hunk.theirs):
        assert len(side.text) <= report.TEXT_MAX and side.count == 20_000 and side.rest and "--lines" in side.rest


def test_the_cases_cover_every_kind() -> None:
    assert {case.kind for case in some(1)} == set(KINDS)
