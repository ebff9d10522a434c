"""A workspace after the machine was booted: its files were not synced, so what a loss of power took does not land."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ropewalk.core import clock
from ropewalk.core.errors import WorkspaceDamagedError
from ropewalk.workspace import capture, move, state

from .conftest import Bench

PAGE = "0123456789abcde\n" * 256


def boot(monkeypatch: pytest.MonkeyPatch, name: str = "another") -> None:
    """Lets the kernel say that the machine was booted."""
    monkeypatch.setattr(clock, "boot_id", lambda: name)


def test_what_is_gone_or_cut_short_is_named_put_back_or_landed_on_purpose(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.publish({"pages.txt": PAGE * 3})
    path = bench.create()
    bench.publish({"other.txt": "o\n"})
    boot(monkeypatch)
    (path / "README.md").write_text("")
    (path / "src" / "b.py").unlink()
    (path / "pages.txt").write_text(PAGE + "\0" * len(PAGE))
    (path / "src" / "a.py").write_text("the agent's\n")
    for attempt in (bench.land, bench.rebase):
        with pytest.raises(WorkspaceDamagedError) as caught:
            attempt()
        assert caught.value.details["paths"] == ["README.md", "pages.txt", "src/b.py"]
        assert "src/b.py" in caught.value.message
    with state.held(bench.store, "one"):
        move.discard(bench.store, bench.ws(), "a/b", [b"README.md", b"pages.txt"])
    with pytest.raises(WorkspaceDamagedError, match=r"src/b\.py"):
        bench.land()
    assert sorted(bench.land(allow_mass_delete=True).landed.changed_paths) == ["src/a.py", "src/b.py"]
    (path / "src" / "a.py").unlink()
    assert bench.land().landed.changed_paths == ["src/a.py"]


def test_edits_of_another_kind_land_without_a_question(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.create()
    (path / "src" / "a.py").write_text("shorter\n")
    (path / "new.txt").write_text("")
    boot(monkeypatch)
    assert sorted(bench.land().landed.changed_paths) == ["new.txt", "src/a.py"]


def test_a_look_after_the_boot_is_evidence_for_what_follows(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.create()
    (path / "new.txt").write_text("new\n")
    bench.land()
    boot(monkeypatch)
    assert capture.capture(bench.store, bench.ws()).changes == []
    (path / "new.txt").unlink()
    assert bench.land().landed.changed_paths == ["new.txt"]


def test_stat_data_of_another_boot_are_not_believed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.create()
    kept = capture.stats.load(f"{state.private(bench.store, 'one')}/stat")
    (path / "README.md").write_text("zeros\n")
    seen = capture.stats.seen_of((path / "README.md").lstat())
    forged = kept.files | {b"README.md": (*seen[:1], seen[1], seen[2], *seen[3:])}
    capture.stats.save(
        bench.store, "one", capture.stats.Stats(kept.at + 10**12, kept.tree, kept.base, forged, kept.boot)
    )
    assert bench.changes() == {}
    boot(monkeypatch)
    assert bench.changes() == {"README.md": "modified"}


@pytest.mark.parametrize(
    ("data", "torn"),
    [(b"", True), (b"\0" * 9000, True), (b"x" * 4096, True), (b"x" * 4096 + b"\0" * 4096, True), (b"x" * 9000, False),
     (b"x" * 100, False), (b"y" * 4096, False), (b"x" * 9001, False), (b"\0" * 12288, False)],
)  # fmt: skip
def test_what_counts_as_torn(data: bytes, torn: bool) -> None:
    assert capture.is_torn(data, b"x" * 9000) is torn


@pytest.mark.parametrize("lost", ["info", "refs", "objects"])
def test_a_damaged_git_directory_of_ours_is_made_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    path = bench.create()
    (path / "new.txt").write_text("new\n")
    mine = Path(state.git_dir(bench.store, "one"))
    shutil.rmtree(mine / lost)
    (mine / "config").write_bytes(b"")
    (mine / "index").write_bytes((mine / "index").read_bytes()[:40])
    boot(monkeypatch)
    assert bench.land().landed.changed_paths == ["new.txt"]
