"""Findings about objects on disk: damage, packs, and what a clean-up may take (A1 to A3, A13, A17 to A19)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ropewalk.core.errors import RopewalkError, StoreCorruptError
from ropewalk.remote import importing
from ropewalk.store import loose, maintain, refs, trees
from ropewalk.store.changes import Change, Content
from ropewalk.store.trees import FILE
from ropewalk.workspace import checkout
from storekit import MAIN, STOCK, Kit, child_env, lines, put, stock


def blob_of(kit: Kit, path: bytes) -> str:
    """Gives the id of a file on `main`."""

    entry = trees.lookup(kit.store.objects, kit.store.objects.commit(kit.main()).tree, path)
    assert entry is not None
    return entry[1].hex()


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("size", [20, 100_000])
def test_A1_a_cut_loose_object_is_an_error_at_once(kit: Kit, keep: float, size: int) -> None:
    kit.first(put("f", os.urandom(size)))
    oid = blob_of(kit, b"f")
    kit.only_loose(oid)
    kit.damage(oid, keep)
    fresh = kit.again()
    started = time.monotonic()
    with pytest.raises(StoreCorruptError):
        fresh.store.objects.read(oid)
    with pytest.raises(StoreCorruptError):
        fresh.store.objects.kind(oid)
    assert fresh.store.objects.read_many([oid]) == [None]
    assert time.monotonic() - started < 5
    fresh.close()


@pytest.mark.parametrize("what", ["commit", "tree", "blob"])
def test_A1_a_land_over_damage_fails_with_a_type_and_changes_nothing(kit: Kit, what: str) -> None:
    kit.first(put("d/f", lines()), put("g", "g\n"))
    change = kit.commit(put("d/f", lines("3:mine"))).changeset
    kit.change(put("d/f", lines("20:yours")), agent="a/c")
    objects = kit.store.objects
    tree = objects.commit(change).tree
    oid = {"commit": change, "tree": tree, "blob": objects.tree(objects.tree(tree)[b"d"][1].hex())[b"f"][1].hex()}[what]
    kit.only_loose(oid)
    kit.damage(oid)
    fresh = kit.again()
    before = fresh.store.last_op()
    with pytest.raises(RopewalkError) as caught:
        fresh.land(change)
    assert caught.value.code in ("E_STORE_CORRUPT", "E_INTERNAL", "E_NOT_FOUND")
    assert fresh.store.last_op() == before
    fresh.close()


def test_A2_a_damaged_twin_of_a_packed_object_does_not_matter(kit: Kit) -> None:
    kit.first(put("f", lines()))
    oid = blob_of(kit, b"f")
    maintain.collect(kit.store)
    assert not os.path.exists(kit.loose(oid))
    os.makedirs(os.path.dirname(kit.loose(oid)), exist_ok=True)
    Path(kit.loose(oid)).write_bytes(b"x\x9c torn")
    fresh = kit.again()
    assert fresh.store.objects.read(oid) == lines().encode()
    assert fresh.change(put("f", lines("3:x"))).status == "landed"
    fresh.close()


def test_A2_a_checkpoint_leaves_no_loose_twin_and_builds_from_the_journal(kit: Kit) -> None:
    """Loose files that were damaged since do not get into the pack."""
    kit.first(*[put(f"f{n}", lines(f"1:{n}")) for n in range(20)])
    oid = blob_of(kit, b"f3")
    kit.damage(oid)
    maintain.collect(kit.store)
    assert kit.store.objects.loose.ids() == []
    assert kit.store.db.rows("SELECT * FROM object_journal") == []
    kit.fsck()
    assert kit.stock("cat-file", "blob", oid) == lines("1:3").rstrip("\n")


def test_A3_a_damaged_object_is_replaced_when_it_is_written_again(kit: Kit) -> None:
    kit.first(put("f", lines()), put("g", "g\n"))
    oid = blob_of(kit, b"f")
    for keep in (0.0, 0.5):
        kit.damage(oid, keep)
        fresh = kit.again()
        fresh.commit(put(f"copy{keep}", lines()))
        fresh.store.expose()
        assert fresh.store.objects.loose.read(oid) == ("blob", lines().encode())
        fresh.close()


def test_A3_a_damaged_file_where_a_merges_result_belongs_is_replaced(kit: Kit) -> None:
    """Git takes the file for the object and writes nothing; the land must not rest on it."""
    kit.first(put("f", lines()))
    one = kit.commit(put("f", lines("3:mine"))).changeset
    kit.change(put("f", lines("20:yours")), agent="a/c")
    merged = kit.store.objects.loose.write("blob", lines("3:mine", "20:yours").encode())
    kit.damage(merged)
    assert kit.land(one).merged_by == "ort"
    assert kit.store.objects.loose.read(merged) == ("blob", lines("3:mine", "20:yours").encode())
    kit.fsck()


def test_two_contents_under_one_id_are_refused(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collision is never taken for the object that is there."""
    store = kit.store.objects.loose
    there = store.write("blob", b"one")
    monkeypatch.setattr(loose, "inflate", lambda packed, oid: ("blob", b"two"))
    with pytest.raises(StoreCorruptError):
        store.write("blob", b"one")
    assert there


def test_A13_many_packs_become_one_at_a_checkpoint(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.first(put("f", "f\n"))
    for n in range(maintain.PACKS_MAX + 5):
        oid = stock("--git-dir", kit.repo, "hash-object", "-w", "--stdin", stdin=b"%d" % n).decode().strip()
        stock("--git-dir", kit.repo, "pack-objects", f"{kit.repo}/objects/pack/pack", stdin=oid.encode() + b"\n")
    assert len(maintain.packs(kit.store)) > maintain.PACKS_MAX
    maintain.checkpoint_if_due(kit.store)
    assert len(maintain.packs(kit.store)) == 1
    assert kit.change(put("f", "g\n")).status == "landed"
    kit.fsck()


def test_A17_a_persons_clean_up_deletes_nothing_that_only_the_log_names(kit: Kit) -> None:
    kit.first(put("f", lines()))
    kept = [kit.commit(put("f", lines(f"3:{n}"))).changeset for n in range(3)]
    kit.land(kept[0])
    refs.undo(kit.store, "a/b", kit.store.last_op())
    for command in (
        ["gc", "--prune=now"],
        ["prune", "--expire=now"],
        ["gc", "--aggressive", "--prune=now"],
        ["maintenance", "run", "--task=gc"],
        ["repack", "-a", "-d"],
        ["prune-packed"],
        ["pack-refs", "--all"],
    ):
        stock("--git-dir", kit.repo, *command, ok=False)
    fresh = kit.again()
    for change in kept:
        assert fresh.files(change)[b"f"][0] == FILE
    assert fresh.land(kept[1]).status == "landed"
    assert kit.stock("rev-parse", "main") == fresh.main()
    fresh.close()
    kit.fsck()


def test_A18_our_own_collection_works_on_a_repository_that_keeps_everything(kit: Kit) -> None:
    kit.first(put("f", lines()))
    alone = kit.commit(put("f", lines("1:only the log names me"))).changeset
    for n in range(3):
        kit.change(put("f", lines(f"3:{n}")))
        done = maintain.collect(kit.store)
        assert done.packs_after == 1
    assert kit.files(alone)
    assert kit.stock("config", "extensions.preciousObjects") == "true"
    kit.fsck()


def test_S22_what_killed_writers_left_half_written_is_swept_by_a_collection(kit: Kit) -> None:
    """An old file goes; a fresh one may be a living writer's."""
    kit.first(put("f", "f\n"))
    folder = Path(kit.repo, "objects")
    for name, age in (("tmp_rw_1_2_3", 7200), ("tmp_obj_x", 7200), ("tmp_rw_9_9_9", 10)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age, time.time() - age))
    maintain.collect(kit.store)
    assert [n for n in os.listdir(folder) if n.startswith("tmp_")] == ["tmp_rw_9_9_9"]


def test_A3_a_blob_that_only_another_tool_wrote_is_made_durable_when_it_is_named(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    small, large = b"by another tool\n", os.urandom(2 << 20)
    for data in (small, large):
        oid = stock("--git-dir", kit.repo, "hash-object", "-w", "--stdin", stdin=data).decode().strip()
        kit.commit(Change(path="g", content=Content(blob=oid)))
        journalled = kit.store.db.rows("SELECT 1 FROM object_journal WHERE id = ?", (oid,))
        assert len(journalled) == (data is small)  # a large one is synced where it is
        assert kit.store.objects.read(oid, "blob") == data


@pytest.mark.parametrize(("files", "packs"), [(100, 0), (700, 1)])
def test_A13_what_comes_in_stays_a_pack_only_when_it_is_large(kit: Kit, tmp_path: Path, files: int, packs: int) -> None:
    source = str(tmp_path / "source")
    stock("init", "-q", "-b", "main", source)
    for n in range(files):
        Path(source, f"f{n}").write_text(f"{n}\n")
    stock("add", ".", cwd=source)
    stock("commit", "-q", "-m", "many", cwd=source)
    importing.import_branch(kit.store, source, "main", into=None, actor="a/b")
    journalled = kit.store.db.rows("SELECT DISTINCT id FROM object_journal")
    assert len(maintain.packs(kit.store)) == packs
    assert len(journalled) == (0 if packs else files + 2)
    assert kit.text("f7") == "7\n"


def test_A13_a_workspaces_land_makes_no_pack_and_fetches_nothing(kit: Kit, tmp_path: Path) -> None:
    kit.first(put("f", "f\n"))
    head = kit.main()
    ws, _ = checkout.create(kit.store, checkout.Asked("one", "a/b", head, MAIN, str(tmp_path / "one")))
    for n in range(3):
        Path(ws.path, f"n{n}").write_text("n\n")
    trace = tmp_path / "trace"
    env = {**os.environ, "ROPEWALK_AGENT": "a/b"}
    subprocess.run(["strace", "-f", "-qq", "-e", "trace=execve", "-o", str(trace), sys.executable, "-m",
                    "ropewalk.cli.main", "ws", "land", "one", "-m", "three", "--store", kit.root],
                   env=env, check=True, capture_output=True, timeout=60)  # fmt: skip
    started = trace.read_text()
    assert not any(f'"{word}"' in started for word in ("fetch", "push", "index-pack", "pack-objects", "unpack-objects"))
    assert maintain.packs(kit.store) == []
    tree = kit.store.objects.commit(kit.main()).tree
    assert kit.store.db.rows("SELECT 1 FROM object_journal WHERE id IN (?, ?)", (tree, kit.main()))


def test_A19_a_reader_that_stays_sees_later_objects_and_survives_packs_that_go(kit: Kit) -> None:
    """Our own reader with its git child, and a stock git that reads from the repository all the time."""
    kit.first(put("f", "0\n"))
    reader = kit.again()
    batch = subprocess.Popen(["git", "--git-dir", kit.repo, "cat-file", "--batch"], env=STOCK, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)  # fmt: skip

    def stock_reads(oid: str) -> bytes:
        assert batch.stdin is not None and batch.stdout is not None
        batch.stdin.write(oid.encode() + b"\n")
        batch.stdin.flush()
        name, kind, size = batch.stdout.readline().split()
        assert (name.decode(), kind) == (oid, b"blob")
        return batch.stdout.read(int(size) + 1)[:-1]

    try:
        seen: list[str] = []
        for n in range(4):
            # loose files, a pack of the projection's, a lasting pack, and one in the place of several
            kit.change(*[put(f"f{k}", f"{n} {k}\n") for k in range(1 if n % 2 else 9)])
            seen.append(blob_of(kit, b"f0"))
            for number, oid in enumerate(seen):
                assert reader.store.objects.read(oid, "blob") == stock_reads(oid) == b"%d 0\n" % number
            before = maintain.packs(kit.store)
            maintain.collect(kit.store)
            assert not set(before) & set(maintain.packs(kit.store))
            for number, oid in enumerate(seen):
                assert reader.store.objects.read(oid, "blob") == stock_reads(oid) == b"%d 0\n" % number
            assert reader.text("f0") == f"{n} 0\n"
    finally:
        reader.close()
        batch.communicate(timeout=30)


def test_S22_what_a_killed_collection_left_in_the_pack_folder_goes_with_the_next(kit: Kit) -> None:
    """Half-written files, a pack without its index, a pack that holds nothing of its own; not what is still written."""
    kit.first(put("f", lines()))
    maintain.collect(kit.store)
    (name,) = maintain.packs(kit.store)
    folder = Path(kit.repo, "objects/pack")
    spare = stock("--git-dir", kit.repo, "pack-objects", "-q", str(folder / "pack"), stdin=kit.main().encode() + b"\n")
    lonely = stock("--git-dir", kit.repo, "hash-object", "-w", "--stdin", stdin=b"lonely\n").decode().strip()
    other = stock("--git-dir", kit.repo, "pack-objects", "-q", str(folder / "pack"), stdin=lonely.encode() + b"\n")
    (folder / f"pack-{other.decode().strip()}.idx").unlink()
    os.unlink(kit.loose(lonely))
    for left in ("tmp_pack_dead", "tmp_idx_dead", "rw-dead.pack", "rw-dead.pack.tmp_rw_1", ".tmp-1-pack-x.pack"):
        (folder / left).write_bytes(b"half")
    with open(folder / "tmp_pack_alive", "wb"):
        kit.change(put("f", "g\n"))
        maintain.collect(kit.store)
        names = sorted(os.listdir(folder))
    assert names[-1] == "tmp_pack_alive" and {n.rpartition(".")[2] for n in names[:-1]} <= {"idx", "pack", "rev"}
    assert len(maintain.packs(kit.store)) == 1 and not {name, spare.decode().strip()} & set(maintain.packs(kit.store))
    assert kit.stock("cat-file", "blob", lonely) == "lonely"
    assert kit.again().text("f") == "g\n"
    kit.fsck()


@pytest.mark.slow
def test_S22_a_collection_killed_again_and_again_takes_no_more_room(kit: Kit) -> None:
    """Each run and its git are killed at a call drawn by a seed; what they left is swept by the next."""
    kit.first(*[put(f"f{n}", os.urandom(3000)) for n in range(40)])
    code = (
        "import sys\nfrom ropewalk.store import maintain\nfrom ropewalk.store.store import Store\n"
        "maintain.collect(Store(sys.argv[1]))\n"
    )
    maintain.collect(kit.store)
    folder = f"{kit.repo}/objects/pack"
    size, killed, draw = maintain.disk_bytes(folder), 0, random.Random(22)
    for n in range(20):
        kit.change(put("small", f"{n}\n"))
        call, when = draw.choice(["write", "rename", "unlink", "fsync", "link"]), draw.randint(1, 6)
        done = subprocess.run(
            ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e",
             f"inject={call}:signal=KILL:when={when}", sys.executable, "-c", code, kit.root],
            env=child_env(), capture_output=True, timeout=120,
        )  # fmt: skip
        killed += done.returncode != 0
        assert maintain.disk_bytes(folder) < 3 * size, os.listdir(folder)
    assert killed >= 12
    maintain.collect(kit.store)
    assert sorted(n.rpartition(".")[2] for n in os.listdir(folder)) in (["idx", "pack"], ["idx", "pack", "rev"])
    assert maintain.disk_bytes(folder) < 1.5 * size
    kit.fsck()
