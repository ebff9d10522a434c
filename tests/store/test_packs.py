"""The projection's own packs: git reads them, they are put together, and a checkpoint lets them go."""

from __future__ import annotations

import os
import subprocess

import pytest

from ropewalk.store import maintain, packs, projection
from storekit import Kit, put, stock


def folder(kit: Kit) -> str:
    return os.path.join(kit.repo, "objects", "pack")


def test_git_reads_what_a_projection_packed(kit: Kit) -> None:
    kit.first(*[put(f"d/{n}", f"{n}\n" * n) for n in range(40)])
    names = packs.present(folder(kit))
    assert len(names) == 1
    assert kit.store.objects.loose.ids() == []
    kit.fsck()
    done = subprocess.run(
        ["git", "verify-pack", "-v", f"{folder(kit)}/{packs.PREFIX}{names[0]}.idx"], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.count(" blob ") == 40, done.stdout + done.stderr
    assert stock("--git-dir", kit.repo, "show", "main:d/7") == b"7\n" * 7


def test_packs_of_one_size_are_put_together(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "_PACK_ROWS", 1)
    kit.first(put("f", "f\n"))
    for n in range(3 * packs.MANY):
        kit.change(put(f"g{n}", f"{n}\n"))
    assert len(packs.present(folder(kit))) <= packs.MANY + 3
    kit.fsck()
    assert stock("--git-dir", kit.repo, "rev-list", "--count", "main").strip() == b"%d" % (3 * packs.MANY + 1)


def test_a_checkpoint_replaces_them_by_a_lasting_pack(kit: Kit) -> None:
    kit.first(*[put(f"d/{n}", f"{n}\n") for n in range(40)])
    held = kit.store.objects.read(kit.main())
    maintain.collect(kit.store)
    assert packs.present(folder(kit)) == [] and len(maintain.packs(kit.store)) == 1
    assert kit.again().store.objects.read(kit.main()) == held
    kit.fsck()


def test_after_a_power_loss_they_are_not_believed(kit: Kit) -> None:
    kit.first(*[put(f"d/{n}", f"{n}\n") for n in range(40)])
    name = packs.present(folder(kit))[0]
    path = f"{folder(kit)}/{packs.PREFIX}{name}.pack"
    os.chmod(path, 0o644)
    os.truncate(path, os.path.getsize(path) // 2)
    kit.store.db.set_meta("boot_id", "another boot")
    fresh = kit.again()
    assert fresh.store.recovered["restored"] >= 40
    assert packs.present(folder(kit)) == [name] and packs.read(folder(kit), name)
    fresh.fsck()
    fresh.close()
