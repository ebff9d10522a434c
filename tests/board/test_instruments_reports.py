"""Attribution, graphs, durations, a task's story and divergence say what is so, archived attempts among it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.board.boardkit import ACTOR, BoardKit

from ropewalk.board import (
    attribution,
    audit,
    claim,
    compact,
    debug,
    divergence,
    durations,
    graph,
    holder,
    metrics,
    names,
    tasks,
    wire,
)
from ropewalk.board.base import Board, Step, create
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import NotFoundError
from ropewalk.plan.task import Limits, Task
from ropewalk.store.loose import object_id
from ropewalk.store.oplog import Move
from storekit import put, stock


def twice(board: BoardKit) -> tuple[str, str]:
    """Makes a task fail with one model and be done with another; gives both attempts."""
    board.add(Task("t", "true", description="x", limits=Limits(seconds=20)))
    first = board.take("t", model="m-one")
    first = claim.mark(board.board, first, "dispatch_started")
    claim.close(board.board, first, Outcome(False, 0, 3, "scripted", "m-one", "direct", 19.5))
    tasks.reopen(board.board, ["t"], ACTOR)
    second = board.done("t", held=board.take("t", "w2", model="m-two"))
    return first.attempt, second.attempt


def test_R19_archived_verdicts_are_shown(board: BoardKit) -> None:
    first, second = twice(board)
    rows = attribution.attribution(board.board).tasks["t"]
    assert [(one.att, one.model, one.harness, one.fixed, one.pytest_rc, one.host, one.archived) for one in rows] == [
        (first, "m-one", "command", False, 3, "w1", True), (second, "m-two", "command", True, 0, "w2", False),
    ]  # fmt: skip


def test_R19_fixed_counts_verdicts_that_say_true(board: BoardKit) -> None:
    first, second = twice(board)
    board.add("red", "taken")
    claim.close(board.board, board.take("red", model="m-one"), Outcome(False, 0, 1, "command", "m-one"))
    board.take("taken", model="m-one")
    found = graph.correction_graph(board.board)
    assert {m: (one.attempts, one.fixed) for m, one in found.models.items()} == {"m-one": (3, 0), "m-two": (1, 1)}
    assert [(one.from_att, one.to_att, one.from_model, one.to_model) for one in found.edges] == [
        (first, second, "m-one", "m-two")
    ]
    assert [one.final for one in found.tasks["t"].attempts] == [False, True]
    assert found.tasks["taken"].verdict_att is None


def test_attempts_are_in_the_order_of_their_lives_whatever_clocks_say(board: BoardKit) -> None:
    board.add("t")
    attempts = []
    for _ in range(3):
        attempts.append(board.failed("t").attempt)
        tasks.reopen(board.board, ["t"], ACTOR)
    # the first life's claim gets the date of a clock that is far ahead
    ref = names.archived(names.claim("t"), attempts[0])
    text = wire.message(board.board.content(board.board.ref(ref) or "") or b"")
    ahead = wire.make(text, 4_000_000_000)
    board.board.push(Step("push", ACTOR, [Move(ref, board.board.ref(ref), ahead.id)], [ahead]))
    attempts.append(board.take("t").attempt)
    assert [one.att for one in graph.correction_graph(board.board).tasks["t"].attempts] == attempts


def test_R19_a_claim_without_a_verdict_is_in_progress_or_interrupted(board: BoardKit) -> None:
    done = subprocess.run([sys.executable, "-c", "import ropewalk.board.holder as h; print(h.mine())"],
                          capture_output=True, text=True, check=True, timeout=60)  # fmt: skip
    board.add("alive", "dead", "away")
    board.take("alive", host=holder.mine())
    board.take("dead", host=done.stdout.strip())
    board.take("away")
    found = attribution.attribution(board.board)
    assert (sorted(found.in_progress), sorted(found.interrupted)) == (["alive", "away"], ["dead"])
    assert found.interrupted["dead"].note == "its process is gone"
    late = attribution.attribution(board.board, ages={"away": 2000.0, "alive": 2000.0})
    assert (sorted(late.in_progress), sorted(late.interrupted)) == (["alive"], ["away", "dead"])
    assert late.interrupted["away"].note == "older than its lease, and no work was started"
    assert late.interrupted["away"].claim_age_s == 2000.0


def test_R12_a_claim_from_the_future_has_no_age(board: BoardKit) -> None:
    board.add("t")
    made = wire.make("claim t\nharness: x\natt-w1-00000a", 4_000_000_000)
    board.board.push(Step("push", ACTOR, [create(names.claim("t"), made)], [made]))
    assert attribution.attribution(board.board, bound=0.0).in_progress["t"].claim_age_s is None


def test_durations_count_archived_verdicts_and_each_tasks_own_bound(board: BoardKit) -> None:
    first, second = twice(board)
    board.add("u", "v")
    for task, seconds in (("u", 100.0), ("v", 300.0)):
        claim.close(
            board.board, board.take(task, model="m-two"), Outcome(False, 0, 1, "scripted", "m-two", "", seconds)
        )
    board.add("odd")
    board.write(names.claim("odd"), "claim odd\natt-w1-00000a")
    board.write(
        names.verdict("odd"), "verdict\ntask: odd\nattempt: att-w1-00000a\nfixed: false\noc_elapsed: nan\nmodel: m-two"
    )
    found = durations.durations(board.board)
    assert (found.models["m-one"].n, found.models["m-one"].max_s, found.models["m-one"].near_bound) == (1, 19.5, True)
    two = found.models["m-two"]
    assert (two.n, two.min_s, two.max_s, two.mean_s, two.p50_s, two.p90_s) == (2, 100.0, 300.0, 200.0, 200.0, 280.0)
    assert (two.near_bound, two.harness) == (False, "command")
    assert durations.durations(board.board, bound=310.0).models["m-two"].near_bound
    lines = {one.att: one for one in found.timeline}
    assert lines[first].began is not None and lines[first].added is not None
    assert (lines[first].seconds, lines[first].fixed, lines[second].fixed) == (19.5, False, True)


def test_a_tasks_story_is_told_in_order(board: BoardKit) -> None:
    first, second = twice(board)
    found = debug.debug(board.board, "t")
    assert [(one.what, one.att, one.life) for one in found.events] == [
        ("spec", "", 0), ("claim", first, 0), ("dispatch_started", first, 0), ("verdict", first, 0),
        ("reopened", first, 1), ("claim", second, 1), ("return", second, 1), ("verdict", second, 1),
    ]  # fmt: skip
    assert found.events[4].words == f"by {ACTOR}"
    assert found.return_ref == board.board.ref(names.returned("t"))
    assert (found.state, found.verdict.fields["fixed"] if found.verdict else "") == ("done", "true")
    assert found.archived == [names.archived(names.claim("t"), first), names.archived(names.verdict("t"), first)]
    assert "verify: true" in found.spec
    for event in found.events:
        assert not event.ref or board.board.ref(event.ref) == event.sha, event
    with pytest.raises(NotFoundError):
        debug.debug(board.board, "no-such")


def test_the_graph_of_needs_is_drawn(board: BoardKit) -> None:
    board.add(
        "a", Task("b", "true", description="x", needs=("a",)), Task("c", "true", description="x", needs=("a", "b"))
    )
    board.done("a")
    found = graph.dependency_graph(board.board)
    assert [(one.task, one.state, one.needs) for one in found.nodes] == [
        ("a", "done", []), ("b", "ready", ["a"]), ("c", "waiting", ["a", "b"]),
    ]  # fmt: skip
    dot = graph.drawn(found, "dot")
    assert '"a" -> "b";' in dot and '"b" -> "c";' in dot and dot.count("->") == 3
    mermaid = graph.drawn(found, "mermaid")
    assert "n0 --> n1" in mermaid and 'n0["a: done"]:::done' in mermaid
    odd = graph.DependencyGraph("b", [graph.Node('x"]\\', "", "ready", ["gone"])], ["gone"])
    assert '"x\\"]\\\\" [label=' in graph.drawn(odd, "dot")
    assert '["x#34;#93;#92;: ready"]' in graph.drawn(odd, "mermaid")


def test_F5_what_was_compacted_is_still_told(board: BoardKit) -> None:
    first, second = twice(board)
    board.add("red", Task("u", "true", description="x", needs=("t",)))
    board.failed("red")
    board.done("u")
    before = [run(board.board) for run in INSTRUMENTS]
    assert compact.compact(board.board, ACTOR, days=-1).tasks
    assert board.board.below(names.SPECS) == []
    after = [run(board.board) for run in INSTRUMENTS]
    assert after == before
    assert audit.audit(board.board).counts == {"done": 2, "failed": 1}
    assert [one.att for one in debug.debug(board.board, "t").events if one.what == "claim"] == [first, second]
    board.add("red")
    assert audit.audit(board.board).tasks["red"].state == "ready"


INSTRUMENTS: tuple[Callable[[Board], object], ...] = (
    audit.audit, attribution.attribution, graph.correction_graph, graph.dependency_graph, durations.durations,
    metrics.of_board,
)  # fmt: skip


def test_divergence_counts_what_each_side_lacks(board: BoardKit, tmp_path: Path) -> None:
    board.kit.store.show()
    clone = str(tmp_path / "clone.git")
    stock("clone", "-q", "--bare", board.kit.repo, clone)
    same = divergence.divergence(board.board, clone)
    assert (same.ahead, same.behind, same.reason) == (0, 0, None)
    tree = stock("--git-dir", clone, "rev-parse", "main^{tree}").decode().strip()
    made = stock("--git-dir", clone, "commit-tree", "-m", "own", "-p", "main", tree).decode().strip()
    stock("--git-dir", clone, "update-ref", "refs/heads/main", made)
    assert (divergence.divergence(board.board, clone).ahead, divergence.divergence(board.board, clone).behind) == (1, 0)
    board.kit.change(put("more.txt", "x\n"))
    far = divergence.divergence(board.board, clone)
    assert (far.ahead, far.behind) == (None, None)
    assert far.reason is not None and "git fetch" in far.reason
    board.kit.store.show()
    stock("--git-dir", clone, "fetch", "-q", board.kit.repo, "main")
    near = divergence.divergence(board.board, clone)
    assert (near.ahead, near.behind, near.local, near.there) == (1, 1, made, board.main())
    assert "no branch" in (divergence.divergence(board.board, clone, "other").reason or "")


LINES = """spec x|claim x|verdict|review-verdict|integrated|law|task: x|task: y|fixed: true|fixed: no|att-w1-00000a
attempt: att-w1-00000a|att-|life: 99999999999999|life: -1|beat: x|closed:|needs: x|needs: [|region: x|target: nowhere
oc_elapsed: inf|oc_elapsed: -3|dispatch_started: 2026|claimed: x|evidence: @|evidence: refs/@x|reviewer: r|ended:
outcome: agree|landed: pending|already: satisfied|host: ////|model:|reply: {|limit_seconds: 1e999|priority: x|n: 0
verify:|verify: true||\u2028|oc_rc: \u0663|pytest_rc: 9999999999|dispatch_started: 99999999T999999Z"""


def body(odd: random.Random) -> wire.Object:
    """Gives an object that holds lines at random, sometimes with bytes that are no text."""
    lines = LINES.replace("\n", "|").split("|")
    made = wire.make("\n".join(odd.choice(lines) for _ in range(odd.randrange(7))), odd.choice([0, 5, 4_000_000_000]))
    if odd.random() < 0.9:
        return made
    content = made.content + bytes(odd.randrange(256) for _ in range(9))
    return wire.Object(object_id("commit", content), content)


def test_R21_no_body_breaks_an_instrument(board: BoardKit) -> None:
    odd = random.Random(int(os.environ.get("RWTEST_SEED", "7")))
    kinds = [names.SPECS, names.HELD, names.CLAIMS, names.VERDICTS, names.INTEGRATED, names.OPEN, names.RETURNS]
    old = "att-w1-00000b"
    places = [kind + task for kind in kinds for task in ("x", "y")]
    places += [names.review("x", "r"), names.archived(names.claim("x"), old), names.archived(names.verdict("x"), old)]
    places += [names.archived(names.review("x", "r"), old), names.archived(names.claim("y"), "unknown")]
    places += [names.lock("x"), names.landing_lock("main"), f"{names.QUEUE}main/x", f"{names.QUEUE}main/0000000001.x"]
    for _ in range(400 if os.environ.get("RWTEST_FULL") else 20):
        made = {ref: body(odd) for ref in places if odd.random() < 0.6}
        there = dict(board.board.below(names.ROOT))
        moves = [Move(ref, there.get(ref), one.id) for ref, one in made.items() if there.get(ref) != one.id]
        moves += [Move(ref, there[ref], None) for ref in there if ref not in made and ref != names.LAW]
        board.board.push(Step("push", ACTOR, moves, list(made.values())))
        found = [audit.audit(board.board), attribution.attribution(board.board), graph.correction_graph(board.board),
                 graph.dependency_graph(board.board), durations.durations(board.board),
                 metrics.summary(metrics.of_board(board.board), with_dora=True)]  # fmt: skip
        found += [debug.debug(board.board, task) for task in ("x", "y") if names.spec(task) in made]
        for one in found:
            msgspec.json.encode(one)
