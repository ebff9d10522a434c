"""flockwork 0.4.0's own instruments and ours say the same of a board, task by task, but for its known defects.

Each difference stands here with its number in the list of defects: 1 (a change that the agent committed is recorded as
fixed and does not land), 10 (what was final is opened again), 25 (`h1_pass` is false while work is in flight and after
an honest failure), 26 (a final failure counts as fixed; verdicts in the archive are not read).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.board import flockwork, instrumentkit
from tests.board.boardkit import ACTOR, BoardKit
from tests.board.flockwork import Flockwork

from ropewalk.board import attribution, audit, claim, durations, graph, names, tasks
from ropewalk.board.base import Board
from ropewalk.board.wire import Outcome

AGENT = """case "$brief" in
*good*) echo done > good.txt ;;
*bad*) echo done > bad.txt ;;
*own*) echo done > own.txt; git add own.txt; git commit -qm own ;;
*broken*) exit 7 ;;
esac"""


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Gives the folder of flockwork's package."""
    base = tmp_path_factory.getbasetemp()
    return flockwork.fetch(base.parent if base.name.startswith("popen-") else base)


def plain(value: Any) -> Any:
    """Gives a result as JSON has it."""
    return msgspec.to_builtins(value)


def text(value: bool | int | None) -> str | None:
    """Gives a value as flockwork's instruments print what they read."""
    return None if value is None else str(value).lower()


def same_audit(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compares two audits: each task in each of flockwork's fields, orphans, and the census."""
    assert ours["tasks"].keys() == theirs["tasks"].keys()
    for task, row in theirs["tasks"].items():
        mine = ours["tasks"][task]
        assert {**row, "verdict": row["verdict"]} == {key: mine[key] for key in row} | {
            "verdict": text(mine["verdict"])
        }, task
        assert "integrated" in row or not mine.get("integrated")
    assert ours["claim_orphans"] == theirs["claim_orphans"]
    assert ours["schema"]["specs"] == theirs["schema"]["specs"]
    assert ours["schema"]["reviewer_verdicts"]["total"] == theirs["schema"]["reviewer_verdicts"]["total"]
    if theirs["h1_pass"]:  # defect 25 is the other way round alone
        assert ours["h1_pass"]


def same_graph(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compares two correction graphs; a model's `fixed` is defect 26."""
    assert ours["tasks"].keys() == theirs["tasks"].keys()
    for task, chain in theirs["tasks"].items():
        mine = ours["tasks"][task]
        assert mine["verdict_att"] == chain["verdict_att"], task
        cut = [{key: one[key] for key in ("att", "ts", "model", "kind", "final")} for one in mine["attempts"]]
        assert cut == chain["attempts"], task
    assert ours["edges"] == theirs["edges"]
    assert {m: one["attempts"] for m, one in ours["models"].items()} == {
        m: one["attempts"] for m, one in theirs["models"].items()
    }


def same_attribution(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compares two tables of attempts; what flockwork leaves empty for an archived attempt is defect 26."""
    assert ours["tasks"].keys() == theirs["tasks"].keys()
    for task, rows in theirs["tasks"].items():
        assert [one["att"] for one in ours["tasks"][task]] == [one["att"] for one in rows], task
        for mine, row in zip(ours["tasks"][task], rows, strict=True):
            assert [mine[key] for key in ("model", "kind", "archived")] == [
                row[key] for key in ("model", "kind", "archived")
            ]
            said = {key: text(mine[key]) for key in ("fixed", "oc_rc", "pytest_rc")} | {"host": mine["host"]}
            known = {key: row[key] for key in said}
            assert known == said or (row["archived"] and set(known.values()) == {None}), (task, mine, row)
    for key in ("in_progress", "interrupted"):
        assert {task: one["att"] for task, one in ours[key].items()} == {
            task: one["att"] for task, one in theirs[key].items()
        }


def same_durations(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compares durations by model."""
    assert {m: {key: ours["models"][m][key] for key in one} for m, one in theirs["models"].items()} == theirs["models"]


def agree(board: Board, peer: Flockwork) -> dict[str, Any]:
    """Runs three instruments of both kinds on a board and compares them; gives our audit."""
    result = plain(audit.audit(board))
    same_audit(result, peer.json("audit"))
    same_graph(plain(graph.correction_graph(board)), peer.json("correction-graph"))
    same_attribution(plain(attribution.attribution(board)), peer.json("attribution"))
    assert isinstance(result, dict)
    return result


@pytest.mark.compat
def test_R26_a_board_of_flockwork_reads_the_same(package: str, tmp_path: Path) -> None:
    origin = instrumentkit.bare(tmp_path / "origin.git")
    peer = Flockwork(package, origin, tmp_path / "peer")
    peer.seed({"good": "good\nverify: test -f good.txt\nn: 1\nm: 1", "bad": "bad\nverify: false",
               "own": "own\nverify: test -f own.txt", "broken": "broken\nverify: true", "open": "later\nverify: true",
               "held": "held\nverify: true"})  # fmt: skip
    peer.json("claim", "held", SWARM_HOST="w9")
    peer.work("w1", AGENT, "good", "bad", "own", "broken")
    peer.run("review", "good", "alice", "agree", ok=False)
    peer.run("gate", "good", ok=False)

    board = instrumentkit.remote_board(origin, tmp_path / "host")
    result = agree(board, peer)
    same_durations(plain(durations.durations(board)), peer.json("durations"))
    assert [(one["task"], one["kind"]) for one in result["findings"] if one["fault"]] == [
        ("own", "no_change")
    ]  # defect 1
    assert result["h1_pass"] and not peer.json("audit")["h1_pass"]  # defect 25
    assert result["tasks"]["good"]["integrated"]
    models = plain(graph.correction_graph(board))["models"]
    assert (models["m-one"]["fixed"], peer.json("correction-graph")["models"]["m-one"]["fixed"]) == (2, 4)  # defect 26

    before = plain(durations.durations(board))["models"]["m-one"]["n"]
    peer.run("sweep", str(origin), "bad")
    board.refresh()
    result = agree(board, peer)
    assert result["tasks"]["bad"]["reopened_by"] == "external"  # defect 10
    (row,) = plain(attribution.attribution(board))["tasks"]["bad"]
    assert (row["fixed"], row["archived"], row["pytest_rc"]) == (False, True, 1)
    assert plain(durations.durations(board))["models"]["m-one"]["n"] == before  # defect 26
    assert peer.json("durations")["models"]["m-one"]["n"] == before - 1


@pytest.mark.compat
def test_R26_a_board_of_ours_reads_the_same(package: str, board: BoardKit, tmp_path: Path) -> None:
    board.add("a", "b", "c", "d", "e", "f")
    for task in ("a", "b"):
        board.done(task, held=board.take(task, model="m-two"))
    claim.close(board.board, board.take("c", model="m-one"), Outcome(False, 0, 1, "command", "m-one", "direct", 12.5))
    tasks.reopen(board.board, ["c"], ACTOR)
    board.done("c", held=board.take("c", "w2", model="m-two"))
    claim.die(board.board, board.take("d"), Outcome(False, 124, 1, "command", reason="timeout"))
    board.take("d", "w3")
    board.failed("e")
    board.write(names.review("a", "alice"), f"review-verdict\ntask: a\nreviewer: alice\noutcome: agree\n"
                f"evidence: {names.returned('a')}")  # fmt: skip
    board.kit.store.show()

    peer = Flockwork(package, board.kit.repo, tmp_path / "peer")
    result = agree(board.board, peer)
    assert result["healthy"] and result["h1_pass"]
    assert not peer.json("audit")["h1_pass"]  # defect 25
    assert peer.json("audit", "a", "b", "c")["h1_pass"]
    same_durations(plain(durations.durations(board.board)), peer.json("durations"))
    assert plain(durations.durations(board.board))["models"]["m-one"]["max_s"] == 12.5  # defect 26
