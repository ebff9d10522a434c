"""Cases that people reported of other tools, as they stand in the store (S2, S5, S21)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ropewalk.store import history, lineage, maintain, repair, verify
from storekit import MAIN, STOCK, Kit, child_env, lines, put, stock


@pytest.mark.parametrize(("call", "git_too"), [("write", False), ("unlink", False), ("rename", True), ("link", True)])
def test_S2_an_export_killed_half_way_is_ended_by_the_next(kit: Kit, tmp_path: Path, call: str, git_too: bool) -> None:
    """No file is missing from any commit, whichever side of the ref's move the kill came.

    A lock that a killed git left in the other repository is git's; it is named, and not removed by us.
    """
    kit.first(put("a", "a\n"))
    target = str(tmp_path / "out.git")
    words = [sys.executable, "-m", "ropewalk.cli.main", "git", "export", target, "--store", kit.root]
    subprocess.run(words, env=child_env(), check=True, capture_output=True, timeout=60)
    for n in range(3):
        kit.change(put(f"new{n}", f"{n}\n"))
    for when in (1, 3):
        subprocess.run(
            ["strace", *(["-f"] if git_too else []), "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e",
             f"inject={call}:signal=KILL:when={when}", *words],
            env=child_env(), capture_output=True, timeout=60,
        )  # fmt: skip
        assert stock("--git-dir", target, "ls-tree", "main")
    done = subprocess.run(words, env=child_env(), capture_output=True, timeout=60)
    if done.returncode:
        error = msgspec.json.decode(done.stdout)["error"]
        assert (error["code"], error["details"]["reason"]) == ("E_REMOTE", "locked") and git_too, error
        for lock in Path(target).rglob("*.lock"):
            lock.unlink()
        subprocess.run(words, env=child_env(), check=True, capture_output=True, timeout=60)
    for name in ("main", "main~1", "main~2"):
        ours, theirs = (stock("--git-dir", repo, "ls-tree", "-r", name) for repo in (kit.repo, target))
        assert ours == theirs and ours
    subprocess.run(["git", "--git-dir", target, "fsck", "--strict"], env=STOCK, check=True, capture_output=True)


DAMAGES = {"gone": None, "empty": b"", "cut": 0.5, "one byte": -60}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("what", ["commit-graph", "multi-pack-index", "idx", "rev", "projected", "flushed"])
def test_S5_derived_files_are_not_trusted_and_are_made_anew(kit: Kit, what: str, damage: str) -> None:
    """The same answers with each of them gone, torn or wrong, and none of it is left after a repair."""
    base = kit.first(put("f", lines()))
    for n in range(5):
        kit.change(put("f", lines(f"{n}:x")), agent=f"a/n{n}")
    maintain.collect(kit.store)
    objects = Path(kit.repo, "objects")
    stock("--git-dir", kit.repo, "multi-pack-index", "write")
    path = {
        "commit-graph": objects / "info/commit-graph", "multi-pack-index": objects / "pack/multi-pack-index",
        "projected": Path(kit.root, "projected"), "flushed": Path(kit.root, "flushed"),
    }.get(what) or objects / "pack" / f"pack-{maintain.packs(kit.store)[0]}.{what}"  # fmt: skip
    if what == "rev":
        stock("--git-dir", kit.repo, "index-pack", "--rev-index", str(path.with_suffix(".pack")))
    head, files = kit.main(), kit.files()
    log = [e.id for e in history.log(kit.store, head, path=b"", before=None, limit=99).entries]
    kit.close()
    spoil(path, damage)
    kit.store = kit.again().store
    if what != "idx":  # without its index a pack can't be read
        assert [e.id for e in history.log(kit.store, head, path=b"", before=None, limit=99).entries] == log
        assert lineage.ancestor(kit.store, base, head) and not lineage.ancestor(kit.store, head, base)
        assert kit.files() == files and kit.main() == head
        assert kit.change(put("g", "g\n")).merged_onto == head
    repair.repair(kit.store, progress=lambda _: None)
    again = kit.again()
    assert verify.verify(again.store, deep=True, progress=lambda _: None).problems == []
    assert again.files(head) == files and again.store.gave_ref(MAIN, head)
    again.close()
    kit.fsck()


def spoil(path: Path, damage: str) -> None:
    """Damages a file."""
    how = DAMAGES[damage]
    data = path.read_bytes()
    path.unlink()
    if isinstance(how, bytes):
        path.write_bytes(how)
    elif isinstance(how, float):
        path.write_bytes(data[: int(len(data) * how)])
    elif how is not None:
        at = max(how, -len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[len(data) + at + 1 :])


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from storekit import Kit, put
k = Kit(sys.argv[1], lock_wait=60)
for n in range(12):
    k.change(put(f'{sys.argv[3]}/{n}', f'{n}\\n'), agent=f'a/w{sys.argv[3]}')
k.close()
"""


def test_S21_a_collection_in_a_loop_takes_nothing_from_writers(kit: Kit) -> None:
    kit.first(put("f", "f\n"))
    tests = str(Path(__file__).parent.parent)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, kit.root, tests, str(n)], env=child_env(),
                         stderr=subprocess.PIPE)
        for n in range(4)
    ]  # fmt: skip
    rounds = 0
    while any(w.poll() is None for w in writers):
        maintain.collect(kit.store)
        stock("--git-dir", kit.repo, "prune", "--expire=now", ok=False)
        rounds += 1
    for writer in writers:
        _, err = writer.communicate(timeout=60)
        assert writer.returncode == 0, err.decode()
    assert rounds > 0
    fresh = kit.again()
    assert len(fresh.files()) == 4 * 12 + 1
    assert verify.verify(fresh.store, deep=True, progress=lambda _: None).problems == []
    fresh.close()
    kit.fsck()
    assert not [n for n in os.listdir(f"{kit.repo}/objects") if n.startswith("tmp_")]
