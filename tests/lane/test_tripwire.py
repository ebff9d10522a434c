"""Lanes without a cage beside a user's checkout: what they change there is named and kept, and put back when asked."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core.errors import NotFoundError
from ropewalk.core.process import git_env
from ropewalk.lane.cage import tripwire, watch
from ropewalk.lane.cage.watch import Watch


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=me", "-c", "user.email=me@x", *words],
        check=True, env=git_env(), capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.txt").write_text("a\n")
    (folder / "b.txt").write_text("b\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Begin")
    (folder / "mine").write_text("mine alone\n")
    return folder


class Shop:
    """Is a checkout with a store in it, commands as processes, and agents that are shell scripts."""

    def __init__(self, folder: Path, tmp: Path, env: dict[str, str]) -> None:
        self.folder, self.tmp = folder, tmp
        self.env = {k: v for k, v in env.items() if not k.startswith("GIT_")} | {
            "XDG_DATA_HOME": str(tmp / "data"), "ROPEWALK_AGENT": "person/me", "ROPEWALK_CAGE": "none",
            "PYTHONDEVMODE": "",
        }  # fmt: skip

    def rw(self, *words: str, exit: int = 0, **more: str) -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-m", "ropewalk.cli.main", *words, "--json"], cwd=self.folder,
                              env=self.env | more, capture_output=True, timeout=120)  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        found: dict[str, Any] = msgspec.json.decode(done.stdout)
        assert done.returncode == exit, (done.returncode, found)
        return dict(found["result"] if found["ok"] else found["error"])

    def lane(self, name: str, script: str, exit: int = 0, **more: str) -> dict[str, Any]:
        path = self.tmp / f"{name}.sh"
        path.write_text(f"cat > /dev/null\n{script}\n")
        return self.rw("lane", "start", name, "work", "--command", f"sh {path}", "--wait", exit=exit, **more)


@pytest.fixture
def shop(checkout: Path, tmp_path: Path, clean: dict[str, str]) -> Shop:
    made = Shop(checkout, tmp_path, clean)
    made.rw("init")
    return made


def test_L1_a_lane_that_changes_the_users_checkout_is_escaped_and_nothing_is_lost(shop: Shop, checkout: Path) -> None:
    good = shop.lane("good", "echo x > new; git add new; git commit -qm mine; echo done")
    assert good["lane"]["state"] == "done"
    first = git(checkout, "rev-parse", "main")
    there = str(checkout)
    script = (
        f"cd {there}; echo evil > mine; echo more > a.txt; printf '#!/bin/sh\\n' > .git/hooks/pre-commit;"
        " git commit -qam evil; echo made > planted"
    )
    bad = shop.lane("bad", script, exit=12)
    lane = bad["lane"]
    assert lane["state"] == "escaped"
    for word in (".git/hooks/pre-commit", "a.txt", "mine", "planted", "refs/heads/main", "rw lane restore lane/bad/1"):
        assert word in lane["reason"], lane["reason"]
    # nothing is put back unasked: it may be the user's
    assert (checkout / "mine").read_text() == "evil\n" and git(checkout, "rev-parse", "main") != first
    told = shop.rw("lane", "restore", "bad", "--dry-run")
    assert {one["path"] for one in told["left"]} >= {"mine", "planted", "refs/heads/main"} and not told["put_back"]
    one = shop.rw("lane", "restore", "bad", "mine")
    assert [row["path"] for row in one["put_back"]] == ["mine"] and (checkout / "mine").read_text() == "mine alone\n"
    assert shop.rw("lane", "restore", "bad", "b.txt", exit=4)["code"] == "E_NOT_FOUND"
    evil = git(checkout, "rev-parse", "main")
    rest = shop.rw("lane", "restore", "bad")
    assert not rest["left"] and git(checkout, "rev-parse", "main") == first
    assert (checkout / "a.txt").read_text() == "a\n" and not (checkout / "planted").exists()
    assert git(checkout, "status", "--porcelain") == "?? mine"
    kept = {path.read_bytes() for path in Path(rest["aside"]).rglob("*") if path.is_file()}
    assert f"{evil} refs/heads/main\n".encode() in kept and b"made\n" in kept and b"more\n" in kept
    assert shop.rw("lane", "restore", "good", exit=2)["code"] == "E_INVALID"
    git(checkout, "fsck", "--strict")


def test_the_tripwire_is_off_where_the_user_says_so_or_nothing_needs_it(shop: Shop, checkout: Path) -> None:
    script = f"echo evil > {checkout}/mine"
    assert shop.lane("off", script, ROPEWALK_TRIPWIRE="off")["lane"]["state"] == "done"
    assert not (shop.tmp / "data" / "ropewalk" / "tripwire").exists()


def test_lanes_at_once_share_a_record_and_all_that_ran_are_named(checkout: Path, tmp_path: Path) -> None:
    wire = Watch(str(checkout), str(tmp_path / "home"))
    one, two = wire.enter("one", "none"), wire.enter("two", "none")
    held = wire.enter("held", "files")
    assert one == two == held and len(list((tmp_path / "home").glob("window-*"))) == 1
    assert watch.leave(one, "one") is None, "nothing was changed until then"
    (checkout / "a.txt").write_text("evil\n")
    late = wire.enter("late", "none")
    assert late == one
    found = watch.leave(two, "two")
    assert found is not None and [w.path for w in found.differences] == ["a.txt"]
    assert found.lanes == ["late", "two"], "the one that ended before is none of them, nor is one that Landlock held"
    assert watch.leave(two, "two") == found and watch.leave(held, "held") is None
    after = wire.enter("after", "none")
    assert after == one and watch.leave(after, "after") is None, "it was there before"
    assert watch.leave(late, "late") is not None
    fresh = wire.enter("fresh", "none")
    assert fresh != one and watch.leave(fresh, "fresh") is None and not Path(fresh).exists()
    assert Path(one).exists(), "what was found can be put back"


def test_a_change_of_mode_counts_at_level_files(checkout: Path, tmp_path: Path) -> None:
    """Landlock holds back no change of mode at any ABI."""
    wire = Watch(str(checkout), str(tmp_path / "home"))
    window = wire.enter("one", "files")
    (checkout / "a.txt").chmod(0o600)
    (checkout / "b.txt").write_text("the user's own\n")
    found = watch.leave(window, "one")
    assert found is not None and [(one.path, one.how) for one in found.differences] == [("a.txt", "mode")]
    assert not watch.restore(found).left and (checkout / "a.txt").stat().st_mode & 0o777 == 0o644
    assert (checkout / "b.txt").read_text() == "the user's own\n"


def test_lanes_that_end_together_share_a_comparison(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Watch(str(checkout), str(tmp_path / "home"))
    names = [f"lane-{number}" for number in range(16)]
    window = {wire.enter(name, "none") for name in names}.pop()
    counted, entered, go = [], threading.Event(), threading.Event()
    real = tripwire.compare

    def compare(was: tripwire.Snapshot) -> list[tripwire.Difference]:
        counted.append(1)
        entered.set()
        assert go.wait(30)
        return real(was)

    monkeypatch.setattr(tripwire, "compare", compare)
    (checkout / "mine").write_text("evil\n")
    answers: list[watch.Escape | None] = []
    threads = [threading.Thread(target=lambda name=name: answers.append(watch.leave(window, name))) for name in names]
    threads[0].start()
    assert entered.wait(30)
    asked = [threading.Event() for _ in names[1:]]
    clock = watch.clock.monotonic

    def monotonic() -> float:
        for one in asked:
            if not one.is_set():
                one.set()
                break
        return clock()

    monkeypatch.setattr(watch.clock, "monotonic", monotonic)
    for thread in threads[1:]:
        thread.start()
    assert all(one.wait(30) for one in asked), "all have ended while the first comparison runs"
    go.set()
    for thread in threads:
        thread.join()
    assert len(answers) == 16 and all(answers) and len(counted) == 2


def test_a_file_that_only_git_believes_unchanged_is_seen(checkout: Path, tmp_path: Path) -> None:
    """A lane may write the index so that git takes a changed file for a clean one; our own look does not ask it."""
    was = tripwire.record(str(checkout), str(tmp_path / "copies"))
    git(checkout, "config", "core.trustctime", "false")
    before = (checkout / "a.txt").stat()
    (checkout / "a.txt").write_text("!\n")
    import os

    os.utime(checkout / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    git(checkout, "update-index", "--assume-unchanged", "b.txt")
    (checkout / "b.txt").write_text("evil\n")
    found = {one.path for one in tripwire.compare(was)}
    assert {"a.txt", "b.txt", "config", "index"} <= found


def test_a_filter_between_file_and_object_is_no_difference(checkout: Path, tmp_path: Path) -> None:
    (checkout / ".gitattributes").write_text("*.crlf text eol=crlf\n")
    (checkout / "w.crlf").write_bytes(b"one\r\ntwo\r\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "line ends")
    was = tripwire.record(str(checkout), str(tmp_path / "copies"))
    (checkout / "w.crlf").touch()
    (checkout / "a.txt").touch()
    assert tripwire.compare(was) == []
    (checkout / "w.crlf").write_bytes(b"one\ntwo\n")
    found = tripwire.compare(was)
    assert [one.path for one in found] == ["w.crlf"] and not tripwire.restore(was, found).left
    assert (checkout / "w.crlf").read_bytes() == b"one\r\ntwo\r\n"


def test_what_runs_and_upkeep_make_is_nobodys_escape(checkout: Path, tmp_path: Path) -> None:
    was = tripwire.record(str(checkout), str(tmp_path / "copies"), without=[str(checkout / "own")])
    git(checkout, "update-ref", "refs/heads/ropewalk/20261130-000000-aaaa", "HEAD")
    git(checkout, "gc", "-q")
    git(checkout, "update-server-info")
    (checkout / "own").mkdir()
    (checkout / "own" / "file").write_text("ours\n")
    assert tripwire.compare(was) == []
    git(checkout, "update-ref", "refs/heads/other", "HEAD")
    assert [one.path for one in tripwire.compare(was)] == ["refs/heads/other"]


def test_a_record_that_is_gone_is_said(checkout: Path, tmp_path: Path) -> None:
    wire = Watch(str(checkout), str(tmp_path / "home"))
    window = wire.enter("one", "none")
    (checkout / "a.txt").write_text("evil\n")
    found = watch.leave(window, "one")
    assert found is not None
    Path(window, "record").unlink()
    with pytest.raises(NotFoundError):
        watch.restore(found)
    assert (checkout / "a.txt").read_text() == "evil\n"
