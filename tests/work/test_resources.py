"""Admission: with too little memory or disk no further agent is started; it is said for what, and it goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.work.workkit import WorkKit

from ropewalk.lane import resources
from ropewalk.lane.programs.plain import Scripted
from ropewalk.plan.task import Task
from ropewalk.run.work.admission import Admission
from ropewalk.run.work.loop import work
from ropewalk.run.work.options import Options, Report

_BALLOON = "import sys; held = b'x' * int(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


def scripted(name: str) -> Task:
    return Task(name, "true", f'Do {name}\n\n```script\n[{{"put": "{name}", "text": "x\\n"}}]\n```')


def worked(bench: WorkKit, folder: Path, events: list[dict[str, Any]], **more: Any) -> Report:
    options = Options(
        "w1", Scripted(), {"PATH": "/usr/bin:/bin"}, str(folder / "data"), threading.Event(),
        lambda kind, **facts: events.append({"event": kind, **facts}), until_empty=True, **more,
    )  # fmt: skip
    return work(bench.board, bench.kit.store, options)


@pytest.mark.parametrize(
    ("more", "word"), [({"spare_memory": 1 << 50}, "no_memory"), ({"spare_disk": 1 << 60}, "no_disk")]
)
def test_L11_what_is_short_is_named_and_nothing_is_started(
    bench: WorkKit, tmp_path: Path, more: dict[str, int], word: str
) -> None:
    bench.add(scripted("one"))
    events: list[dict[str, Any]] = []
    done = worked(bench, tmp_path, events, outage_seconds=0.5, **more)
    assert done.ended == "gave_up" and done.reason.startswith(f"{word}: ") and done.tasks == []
    assert [e["event"] for e in events if e["event"] in ("waiting", "claim")] == ["waiting"]
    assert bench.state("one") == "ready"


def test_L30_a_lane_waits_for_memory_and_starts_once_there_is_some(bench: WorkKit, tmp_path: Path) -> None:
    there = resources.memory()
    assert there is not None
    size = min(3 << 30, there.available // 4)
    words = [sys.executable, "-c", _BALLOON, str(size)]
    balloon = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert balloon.stdin is not None and balloon.stdout is not None
    try:
        assert balloon.stdout.readline() == b"held\n"
        bench.add(scripted("one"), scripted("two"))
        events: list[dict[str, Any]] = []
        waits = threading.Event()

        def note(kind: str, **facts: Any) -> None:
            events.append({"event": kind, **facts})
            if kind == "waiting":
                waits.set()
                balloon.kill()  # what held the memory ends

        options = Options(
            "w1", Scripted(), {"PATH": "/usr/bin:/bin"}, str(tmp_path / "data"), threading.Event(), note,
            until_empty=True, spare_memory=there.available - size // 2,
        )  # fmt: skip
        done = work(bench.board, bench.kit.store, options)
    finally:
        balloon.kill()
        balloon.communicate()
    assert waits.is_set() and [t.how for t in done.tasks] == ["landed", "landed"], events


def test_one_that_was_just_let_in_counts_with_what_it_will_need(tmp_path: Path) -> None:
    there = resources.memory()
    assert there is not None
    each = (there.available >> 20) // 2
    admission = Admission(str(tmp_path), memory=0)
    assert admission.ask(each) == "" and admission.ask(each + each // 2).startswith("no_memory: ")
