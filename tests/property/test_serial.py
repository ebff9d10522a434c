"""Any interleaving of lands equals some serial order: the one that the operation log says."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.store import oplog
from storekit import MAIN, Kit, child_env, delete, lines, move, put

WORKERS = 6


def changes_of(kit: Kit, chance: random.Random) -> list[str]:
    """Makes changes on one base, some of which meet: edits of shared files, moves, removals, new files."""
    made = []
    for number in range(14):
        file = f"f{chance.randrange(4)}.txt"
        entry = chance.choice(
            [
                put(file, lines(f"{chance.randrange(30)}:edit {number}")),
                put(f"new{number}.txt", f"{number}\n"),
                put(file, lines(f"{chance.randrange(3)}:edit {number}", f"{chance.randrange(20, 30)}:end {number}")),
                move(file, f"moved/{file}"),
                delete(file),
            ]
        )
        made.append(kit.commit(entry, agent=f"w/{number}").changeset)
    return made


@pytest.mark.race
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_lands_at_once_is_what_lands_one_after_another(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kit = Kit(str(tmp_path / "store"))
    kit.first(*(put(f"f{n}.txt", lines()) for n in range(4)), put("keep", "k\n"))
    heads = changes_of(kit, chance)
    kit.close()
    shutil.copytree(tmp_path / "store", tmp_path / "serial", symlinks=True)
    # half of them through the queue, and all at the same moment
    children = []
    for number, head in enumerate(heads):
        argv = [sys.executable, "-m", "ropewalk.cli.main", "land", head, "--store", str(tmp_path / "store"),
                "--as", f"w/{number}", "--allow-mass-delete"]  # fmt: skip
        if number % 2:
            argv += ["--jobs", "2", "--", "test", "-e", "keep"]
        children.append(subprocess.Popen(argv, env=child_env(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
    answers = [msgspec.json.decode(child.communicate(timeout=300)[0]) for child in children]
    assert all(a["ok"] or a["error"]["code"] in ("E_CONFLICT", "E_LAND_MISMATCH") for a in answers), answers

    kit, serial = Kit(str(tmp_path / "store")), Kit(str(tmp_path / "serial"))
    try:
        order = []
        rows = kit.store.db.rows("SELECT op FROM ops WHERE kind = 'land' ORDER BY op")
        for (op,) in rows:
            (landed,) = (m.new for m in oplog.find(kit.store.db, op).body.moves)
            assert landed is not None
            order.append((str(kit.store.objects.commit(landed).trailer("Ropewalk-Changeset")), landed))
        assert sorted(change for change, _ in order) == sorted(
            head
            for head, answer in zip(heads, answers, strict=True)
            if answer["ok"] and answer["result"]["status"] == "landed"
        )
        for change, landed in order:
            done = serial.land(change, ref=MAIN, allow_mass_delete=True)
            assert serial.store.objects.commit(done.landed).tree == kit.store.objects.commit(landed).tree
    finally:
        kit.close()
        serial.close()
