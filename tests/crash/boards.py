"""What is struck of boards and runs: tasks put on one and claimed, runs taken back and brought in."""

from __future__ import annotations

import json
from pathlib import Path

from tests.foreign import spring

from .kit import Ids, keep, must, put, refs_of
from .scenarios import SCENARIOS, Scenario, all_or_none

_TASKS = [{"id": name, "check": f"test -e {name}.txt", "description": f"write {name}.txt"} for name in ("one", "two")]


def _listed(folder: Path, ids: Ids) -> None:
    (folder / "tasks.json").write_text(json.dumps({"tasks": _TASKS}))


def _states(folder: Path) -> dict[str, str]:
    return {row["id"]: row["state"] for row in must(folder, "task list")["tasks"]}


def _added(folder: Path, ids: Ids) -> bool:
    return all_or_none([name in _states(folder) for name in ("one", "two")])


def _on_a_board(folder: Path, ids: Ids) -> None:
    _listed(folder, ids)
    must(folder, "task add", file=str(folder / "tasks.json"))


def _claimed(folder: Path, ids: Ids) -> bool:
    shown = must(folder, "task show", task="one")
    assert len(shown.get("history", [])) <= 1, shown
    return bool(shown["state"] == "claimed")


def _ran(folder: Path, ids: Ids, **more: str) -> None:
    script = '```script\n[{"put": "run.txt", "text": "1"}]\n```\n'
    task = {"id": "one", "prompt": script, "check": "test -e run.txt"}
    (folder / "run.json").write_text(json.dumps({"tasks": [task]}))
    done = must(folder, "run", tasks=str(folder / "run.json"), harness="scripted", cage="none", **more)
    assert done["state"] == "done", done
    keep(folder, ids, run=done["id"])


def _ran_on_main(folder: Path, ids: Ids) -> None:
    _ran(folder, ids, onto="main")
    must(folder, "commit", message="beside", changes=put("beside.txt", "b\n"), advance="main")


def _dropped(folder: Path, ids: Ids) -> bool:
    refs = refs_of(folder)
    undone = must(folder, "runs show", id=ids["run"])["state"] == "undone"
    kept = must(folder, "ref list", prefix="refs/run-undone/")["refs"]
    return all_or_none([undone, bool(kept), f"run/{ids['run']}" not in refs])


def _reverted(folder: Path, ids: Ids) -> bool:
    paths = {row["name"] for row in must(folder, "ls", rev="main")["entries"]}
    assert "beside.txt" in paths
    undone = must(folder, "runs show", id=ids["run"])["state"] == "undone"
    return all_or_none([undone, "run.txt" not in paths])


def _foreign(folder: Path, ids: Ids) -> None:
    spring(folder / "away")


def _brought(folder: Path, ids: Ids) -> bool:
    lanes = must(folder, "lane list")["lanes"]
    assert len(lanes) <= 1, lanes
    runs = must(folder, "runs list")["runs"]
    assert len(runs) <= 1 and len(runs) >= len(lanes), (runs, lanes)  # the run is there before its lanes
    return len(lanes) == 1


BOARDS = [
    Scenario("task add", lambda f, i: ["task", "add", str(f / "tasks.json")], _added, _listed),
    Scenario("claim", lambda f, i: ["claim", "one"], _claimed, _on_a_board, again=frozenset({"E_CLAIMED"})),
    Scenario("runs undo", lambda f, i: ["runs", "undo", i["run"]], _dropped, _ran),
    Scenario("runs undo (a land)", lambda f, i: ["runs", "undo", i["run"]], _reverted, _ran_on_main),
    Scenario("import-run", lambda f, i: ["import-run", str(f / "away")], _brought, _foreign),
]  # fmt: skip
ALL = [*SCENARIOS, *BOARDS]
