"""Every class of file × every damage: verify finds and names it, repair restores it or lists what is lost.

A sample of the cells is part of every run; with RWTEST_FULL=1 all are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from damage.cells import HARMLESS, LISTED, MENDED, UNKNOWN, Cell, cells
from damage.world import Damaged, World, reaches

_OBJECTS = ("damaged", "missing", "journal")
FULL = os.environ.get("RWTEST_FULL") == "1"


class _Names:
    """Stands for a world while the tests are only named."""

    ids: dict[str, str] = dict.fromkeys(
        ("blob", "tree", "commit", "tag", "journalled", "packed", "shown", "twin"), ""
    )  # fmt: skip


def order() -> list[str]:
    """Gives the names of all cells as they are declared."""
    return [cell.title for cell in cells(_Names())]  # type: ignore[arg-type]


def _titles() -> list[str]:
    """Gives the names of the cells of this run: two classes of three with one damage each."""
    found = cells(_Names())  # type: ignore[arg-type]
    if FULL:
        return [cell.title for cell in found]
    groups: dict[str, list[str]] = {}
    for cell in found:
        groups.setdefault(cell.group, []).append(cell.title)
    return [titles[number % len(titles)] for number, titles in enumerate(groups.values()) if number % 3 != 2]


@pytest.mark.parametrize("title", _titles())
def test_damage(title: str, world: World, tmp_path: Path) -> None:
    cell = next(cell for cell in cells(world) if cell.title == title)
    damaged = world.fresh(tmp_path)
    cell.spoil(damaged)
    found = _verified(cell, damaged)
    if not {f["kind"] for f in found} & {"database", "format", "cut"}:
        _unaffected_read(damaged, *(f["object"] for f in found if f["kind"] == "ref"))
    code, envelope = damaged.call("repair", **({"rebuild": True} if cell.rebuild else {}))
    assert envelope["ok"], envelope
    left, done = envelope["result"]["left"], envelope["result"]["done"]
    assert code == (10 if left else 0), envelope
    lost = _lost_is_listed(cell, damaged, left, done)
    _unaffected_read(damaged)
    assert damaged.refs() == world.refs, (damaged.refs(), done, left)
    if cell.outcome in (MENDED, HARMLESS):
        assert not left and not lost, envelope
    if cell.outcome == MENDED:
        assert done or damaged.healed, envelope
    elif cell.outcome == LISTED:
        assert left or done, envelope
    left = _from_the_backup(cell, damaged, left)
    _writes_go_on(damaged)
    _note(cell, found, done, left, lost)


def _verified(cell: Cell, damaged: Damaged) -> list[dict[str, Any]]:
    """Checks what verify says, and gives its findings."""
    code, envelope = damaged.call("verify", deep=True)
    assert envelope["ok"], envelope
    found: list[dict[str, Any]] = envelope["result"]["findings"]
    assert code == (10 if found else 0)
    if not cell.kinds:
        assert not found, found
        return found
    assert any(f["kind"] in cell.kinds and cell.name in f["object"] for f in found), (cell.kinds, cell.name, found)
    assert all(f["repair"] for f in found) and len(envelope["result"]["problems"]) == len(found)
    if not {f["kind"] for f in found} & {"database", "format", "ref", "cut"}:
        _hits(damaged, found)
    return found


def _hits(damaged: Damaged, found: list[dict[str, Any]]) -> None:
    """Holds the refs that findings name against those that stock git says need what can't be read."""
    bad = damaged.unreadable()
    named = {ref for f in found if f["kind"] in _OBJECTS for ref in f.get("refs", [])}
    hit = {name for name, needs in damaged.world.needs.items() if needs & bad}
    assert named == {name.removeprefix("refs/heads/") for name in hit}, (named, hit, bad, found)
    alone = damaged.world.ids
    for f in found:
        if f["object"] == alone["blob"] and f["object"] in bad:
            assert f["paths"] == ["l"] and f["changesets"] == [alone["commit"]], f
        if f["object"] in (alone["tree"], alone["commit"]) and f["object"] in bad:
            assert f["changesets"] == [alone["commit"]], f


def _unaffected_read(damaged: Damaged, *hit: str) -> None:
    """Reads all that refs show which need nothing of what is damaged and are not hit themselves."""
    bad = damaged.unreadable()
    for name, needs in damaged.world.needs.items():
        if not needs & bad and name not in hit:
            for operation, request in (("log", {"rev": name}), ("ls", {"rev": name, "depth": 5})):
                code, envelope = damaged.call(operation, **request)
                assert code == 0, (name, envelope)
                damaged.healed += envelope.get("warnings", [])


def _lost_is_listed(cell: Cell, damaged: Damaged, left: list[dict[str, Any]], done: list[str]) -> set[str]:
    """Checks that what can't be read after the repair is named, or stands below something that is."""
    lost = damaged.unreadable()
    named = {oid for oid in lost if any(oid in line for line in done)}
    for finding in left:
        if finding["kind"] in _OBJECTS:
            named |= {finding["object"], *reaches(str(damaged.world.root / "repo.git"), finding["object"])}
    if cell.outcome != UNKNOWN:
        assert lost <= named, (lost - named, left)
    return lost


def _from_the_backup(cell: Cell, damaged: Damaged, left: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Repairs again with a backup at hand, which brings every object back."""
    if left and cell.same:
        _, envelope = damaged.call("repair", **{"from": [str(damaged.world.backup)]})
        assert envelope["ok"] and not envelope["result"]["left"], envelope
        assert not damaged.unreadable()
    return left


def _writes_go_on(damaged: Damaged) -> None:
    code, envelope = damaged.call(
        "commit",
        message="after",
        parent="main",
        advance="main",
        changes=[{"path": "after", "content": {"inline": "x"}}],
    )
    assert code == 0 or envelope["error"]["details"].get("file") == "authors.toml", envelope
    if code == 0:
        code, envelope = damaged.call("verify")
        assert not [f for f in envelope["result"]["findings"] if f["kind"] not in ("run", "authors")], envelope


def _note(cell: Cell, found: list[Any], done: list[str], left: list[Any], lost: set[str]) -> None:
    path = os.environ.get("RWTEST_DAMAGE_RESULTS")
    if path:
        kinds = sorted({f["kind"] for f in found})
        row = {"group": cell.group, "damage": cell.damage, "outcome": cell.outcome, "kinds": kinds, "done": done,
               "left": sorted({f["kind"] for f in left}), "lost": len(lost), "rebuild": cell.rebuild}  # fmt: skip
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
