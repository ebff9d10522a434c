"""Landing a workspace: merged, checked on the merged tree, moved along, exactly once however often it is killed."""

from __future__ import annotations

import random
import select
import signal
import subprocess
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core.errors import BusyError, CheckFailedError, ConflictError, KeyReusedError, LandMismatchError
from ropewalk.store.changes import Content, read_disk_file
from ropewalk.store.land import Answering
from ropewalk.store.report import FileResolution, Resolution
from ropewalk.workspace import state

from .conftest import Bench


def edit(path: Path, number: int, text: str) -> None:
    """Replaces a line of `src/a.py`."""
    lines = (path / "src" / "a.py").read_text().splitlines()
    lines[number] = text
    (path / "src" / "a.py").write_text("\n".join(lines) + "\n")


def test_it_moves_along_and_nothing_of_others_is_lost(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    edit(path, 2, "mine")
    (path / ".gitignore").write_text("ignored\n")
    (path / "ignored").write_text("stays\n")
    theirs = bench.publish({"src/b.py": "b = 2\n", "new/file": "n\n"})
    done = bench.land()
    assert (done.landed.status, done.landed.merged_onto) == ("landed", theirs)
    assert (path / "src" / "b.py").read_text() == "b = 2\n"
    assert (path / "new" / "file").read_text() == "n\n"
    assert (path / "ignored").read_text() == "stays\n"
    assert bench.ws().base == bench.head() == in_ws(path, "rev-parse", "HEAD")
    assert in_ws(path, "status", "--porcelain") == ""
    bench.publish({"new/file": None})
    (path / "second").write_text("2\n")
    bench.land(message="second")
    assert not (path / "new").exists()
    assert bench.land().landed.status == "up_to_date"


def test_s25_a_stale_base_takes_nothing_back(bench: Bench) -> None:
    path = bench.create()
    bench.publish({"fix.txt": "fixed\n"})
    (path / "mine.txt").write_text("m\n")
    bench.land()
    assert bench.tree()["fix.txt"][1] == b"fixed\n"


def test_a11_a_revert_of_others_work_is_refused(bench: Bench) -> None:
    path = bench.create()
    bench.publish({"src/b.py": "b = 'better'\n"})
    bench.rebase()
    (path / "src" / "b.py").write_text("b = 1\n")
    with pytest.raises(LandMismatchError) as caught:
        bench.land()
    assert caught.value.details["reason"] == "reverts_lands"
    assert bench.land(allow_revert=True).landed.status == "landed"


def test_s29_the_target_is_a_ref_and_not_what_is_checked_out(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    in_ws(path, "checkout", "-q", "-b", "feature")
    (path / "foreign.txt").write_text("f\n")
    in_ws(path, "add", ".")
    in_ws(path, "commit", "-qm", "on another branch")
    done = bench.land(message=None)
    assert done.landed.onto == "main"
    assert in_ws(path, "branch", "--show-current") == "one"
    assert in_ws(path, "rev-parse", "feature") != bench.head()


def test_s30_a_conflict_says_what_is_so(bench: Bench, in_ws: Any) -> None:
    path = bench.create()
    edit(path, 5, "mine")
    (path / "other.txt").write_text("kept\n")
    theirs = bench.publish({"src/a.py": (path / "src" / "a.py").read_text().replace("mine", "theirs")})
    with pytest.raises(ConflictError) as caught:
        bench.land()
    assert caught.value.details["report"]["theirs"] == theirs
    assert (path / "src" / "a.py").read_text().splitlines()[5] == "mine"
    done = bench.rw("ws", "rebase", "one", folder=path)
    assert done["rc"] == 10 and done["result"]["conflicts"] == ["src/a.py"]
    text = (path / "src" / "a.py").read_text()
    assert "<<<<<<< this workspace\nmine\n" in text and "\ntheirs\n>>>>>>> main\n" in text
    assert (path / "other.txt").read_text() == "kept\n"
    status = bench.rw("ws", "status", folder=path)["result"]
    assert status["conflicts"] == ["src/a.py"] and status["base"] == theirs and status["behind"] == 0
    assert in_ws(path, "status", "--porcelain") == " M src/a.py\n?? other.txt"
    again = bench.rw("ws", "land", "-m", "x", folder=path)
    assert again["error"]["code"] == "E_CONFLICT" and again["error"]["details"]["unresolved"] == ["src/a.py"]
    edit_out = [line for line in text.splitlines() if line[:7] not in ("<<<<<<<", "=======", ">>>>>>>", "|||||||")]
    edit_out.remove("a = 5")
    (path / "src" / "a.py").write_text("\n".join(edit_out) + "\n")
    assert bench.rw("ws", "land", "-m", "x", folder=path)["result"]["land"]["status"] == "landed"
    assert bench.tree()["src/a.py"][1].splitlines()[5:7] == [b"mine", b"theirs"]
    assert bench.ws().note.conflicts == []


def test_a_resolution_lands_and_the_workspace_has_it(bench: Bench) -> None:
    path = bench.create()
    edit(path, 5, "mine")
    theirs = bench.publish({"src/a.py": (path / "src" / "a.py").read_text().replace("mine", "theirs")})
    with pytest.raises(ConflictError):
        bench.land()
    answer = Resolution(theirs, {"src/a.py": FileResolution(content=Content(inline="both\n"))})
    done = bench.land(answering=Answering(answer, read_disk_file))
    assert done.landed.merged_by == "resolution"
    assert (path / "src" / "a.py").read_text() == "both\n"
    assert bench.changes() == {}


def test_s31_each_has_a_stash_of_its_own(bench: Bench, in_ws: Any) -> None:
    one, two = bench.create("one"), bench.create("two")
    for path, text in ((one, "1"), (two, "2")):
        edit(path, 0, text)
        in_ws(path, "stash")
    for path, text in ((one, "1"), (two, "2")):
        in_ws(path, "stash", "pop")
        assert (path / "src" / "a.py").read_text().splitlines()[0] == text


def test_s40_a_file_in_the_way_is_kept(bench: Bench) -> None:
    path = bench.create()
    (path / ".git" / "info" / "exclude").write_text("out.txt\n")
    (path / "out.txt").write_text("the agent's own\n")
    bench.publish({"out.txt": "landed by another\n"})
    (path / "x").write_text("x\n")
    bench.land()
    assert (path / "out.txt").read_text() == "landed by another\n"
    kept = list((path / ".git" / "ropewalk-kept").iterdir())
    assert [p.read_text() for p in kept] == ["the agent's own\n"]
    assert any("out.txt" in line for line in bench.store.warnings)


def test_s43_the_check_sees_the_merged_tree(bench: Bench) -> None:
    path = bench.create()
    (path / "use.py").write_text("import sys\nsys.path.insert(0, 'src')\nimport b\nprint(b.b)\n")
    bench.publish({"src/b.py": "c = 1\n"})
    head = bench.head()
    with pytest.raises(CheckFailedError) as caught:
        bench.land(check=["python3", "-B", "use.py"])
    assert "AttributeError" in caught.value.details["output"]
    assert bench.head() == head
    (path / "use.py").write_text("print(1)\n")
    done = bench.land(check=["python3", "-B", "use.py"])
    assert [c.rc for c in done.checks] == [0]
    assert done.checks[0].tree == bench.store.objects.commit(bench.head()).tree


def test_a_target_that_moves_during_the_check_is_checked_again(bench: Bench) -> None:
    path = bench.create()
    (path / "mine").write_text("m\n")
    root = bench.store.layout.root
    once = bench.folder / "moved"
    entry = '[{"path": "theirs", "content": {"inline": "t\\n"}}]'
    (bench.folder / "entry.json").write_text(entry)
    rw = " ".join(bench.argv())
    script = (
        f"test -e {once} || {{ touch {once}; ID=$({rw} commit -m t --changes {bench.folder}/entry.json --parent main"
        f' --store {root} --as a/b | sed \'s/.*"changeset":"\\([0-9a-f]*\\)".*/\\1/\');'
        f" {rw} land $ID --store {root} --as a/b; }}"
    )
    done = bench.land(check=["sh", "-c", script])
    assert done.checks[-1].tree == bench.store.objects.commit(bench.head()).tree
    assert bench.tree()["theirs"][1] == b"t\n"


def test_a_check_that_hangs_is_ended(bench: Bench) -> None:
    path = bench.create()
    (path / "x").write_text("x\n")
    with pytest.raises(CheckFailedError, match=r"0\.5 s"):
        bench.land(check=["sleep", "60"], check_seconds=0.5)


def test_a_second_command_on_the_same_workspace_waits_its_turn(bench: Bench) -> None:
    bench.create()
    with state.held(bench.store, "one"), pytest.raises(BusyError), state.held(bench.store, "one"):
        pass


def test_a_key_lands_once(bench: Bench) -> None:
    path, other, key = bench.create(), bench.create("two"), str(uuid.uuid4())
    (path / "x").write_text("x\n")
    first = bench.land(key=key)
    (path / "y").write_text("y\n")
    again = bench.land(key=key)
    assert (again.landed.status, again.landed.landed) == ("replayed", first.landed.landed)
    assert bench.changes() == {"y": "added"}
    (other / "z").write_text("z\n")
    with pytest.raises(KeyReusedError):
        bench.land("two", key=key)


@pytest.mark.crash
@pytest.mark.slow
def test_a_land_killed_at_random_moments_lands_once_and_leaves_a_clean_workspace(bench: Bench, in_ws: Any) -> None:
    path, root, dice = bench.create(), bench.store.layout.root, random.Random(11)
    hits = 0
    for n in range(10):
        key = str(uuid.uuid4())
        theirs = bench.publish({f"theirs/{n}": f"{n}\n", "src/b.py": f"b = {n}\n"})
        edit(path, n, f"edited {n}")
        (path / f"mine-{n}").write_text(f"{n}\n")
        argv = bench.argv("ws", "land", "one", "-m", f"change {n}", "--key", key, "--store", root, "--as", "claude/one")
        child = subprocess.Popen(argv, env=bench.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stderr is not None and child.stdout is not None
        assert b"landing" in child.stderr.readline()
        select.select([child.stdout], [], [], dice.random() * 0.02)
        child.send_signal(signal.SIGKILL)
        out, _ = child.communicate(timeout=30)
        hits += child.returncode == -signal.SIGKILL and not out
        done = bench.rw(*argv[3:])
        assert done["ok"], done
        landed = done["result"]["land"]["landed"]
        assert bench.store.objects.commit(landed).trailer("Ropewalk-Land-Key") == key
        assert bench.store.objects.commit(landed).parents == (theirs,)
        assert bench.head() == landed == bench.ws().base == in_ws(path, "rev-parse", "HEAD")
        assert in_ws(path, "status", "--porcelain") == ""
        assert bench.changes() == {}
    assert hits >= 3
    keys = in_ws(path, "log", "--format=%(trailers:key=Ropewalk-Land-Key,valueonly)").split()
    assert len(keys) == len(set(keys)) == 10
    assert [f"{n}\n".encode() for n in range(10)] == [bench.tree()[f"mine-{n}"][1] for n in range(10)]


def test_the_command_takes_check_with_and_without_its_flag(bench: Bench) -> None:
    path = bench.create()
    (path / "x").write_text("x\n")
    done = bench.rw("ws", "land", "-m", "x", "--check", "--", "test", "-e", "x", folder=path)
    assert [c["rc"] for c in done["result"]["checks"]] == [0]
    assert msgspec.json.encode(done["result"]["land"])


def test_a10_an_undone_land_does_not_come_back_with_later_work(bench: Bench) -> None:
    from ropewalk.store import refs

    path = bench.create()
    (path / "first").write_text("1\n")
    bench.land(message="first")
    refs.undo(bench.store, "person/me", _land_op(bench))
    (path / "second").write_text("2\n")
    with pytest.raises(LandMismatchError) as caught:
        bench.land(message="second")
    assert caught.value.details["reason"] == "undone"
    assert "first" not in bench.tree()
    assert bench.land(message="second", allow_reland=True).landed.status == "landed"
    assert {"first", "second"} <= set(bench.tree())


def _land_op(bench: Bench) -> int:
    """Gives the number of the last land."""
    row = bench.store.db.row("SELECT max(op) FROM ops WHERE kind = 'land'")
    assert row is not None
    return int(row[0])
