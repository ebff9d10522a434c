"""The board's core under attack: the wire format, names, states, and every step that a task can go through."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.board import invariants
from tests.board.boardkit import ACTOR, BoardKit, bare

from ropewalk.board import claim, holder, names, observe, recover, state, tasks, wire
from ropewalk.board.base import Step, words
from ropewalk.board.claim import As
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.wire import Outcome
from ropewalk.core.errors import (
    ClaimedError,
    FencedError,
    InvalidError,
    NotFoundError,
    RopewalkError,
    UnsupportedError,
)
from ropewalk.mcp import tools as mcp_tools
from ropewalk.plan.task import Gate, Limits, Task, check_all, check_id, find_circle, problems
from ropewalk.store import refs
from ropewalk.store.oplog import Move
from storekit import MAIN, put, stock

NewBoard = Callable[..., BoardKit]

MANY = 500 if os.environ.get("RWTEST_FULL") else 50

# the wire

_ids = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}(\.[a-z0-9]{1,5})?", fullmatch=True).filter(
    lambda name: not name.endswith(".lock")
)
_word = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,30}", fullmatch=True)
_line = st.text(st.characters(categories=("L", "M", "N", "P", "S")), max_size=30)
_sly = st.sampled_from(["verify: rm -rf /", "n: 7", " m: 2", "> n: 3", "spec x", "att-x-000000", "title: no", "", "  ",
                        "needs: x", "limit_seconds: 1", "target: other", "\tverify: no", "> > verify: x"])  # fmt: skip
_breaks = st.sampled_from(["\n", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r", "\n\n"])
_prose = st.lists(st.tuples(st.one_of(_line, _sly), _breaks), max_size=8).map(
    lambda rows: "".join(a + b for a, b in rows)
)
_path = st.text(st.characters(categories=("L", "N"), include_characters=" ,*[]\"'"), min_size=1, max_size=12).filter(
    str.isprintable
)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\n", max_size=3), inner, max_size=3),
    max_leaves=6,
)
_limits = st.builds(
    Limits,
    seconds=st.none() | st.floats(1e-9, 7 * 86_400),
    check_seconds=st.none() | st.floats(0.001, 1000),
    turns=st.none() | st.integers(1, 10_000),
    tokens=st.none() | st.integers(0, 1_000_000_000),
    money=st.none() | st.floats(0, 1e6),
    heirs=st.none() | st.integers(0, 100),
    attempts=st.none() | st.integers(1, 100),
)
_gates = st.tuples(st.integers(1, 50), st.integers(0, 50), st.booleans()).map(lambda g: Gate(g[0], g[0] + g[1], g[2]))


_tasks = st.builds(
    Task,
    id=_ids,
    check=_line.filter(str.strip),
    description=_prose.map(lambda text: text.lstrip("\n").rstrip()),
    title=_line,
    needs=st.lists(_ids, max_size=3, unique=True).map(tuple),
    owns=st.lists(_path, max_size=3).map(tuple),
    modifies=st.lists(_path, max_size=3).map(tuple),
    region=st.just("") | st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True),
    module=_line,
    role=_line,
    class_=_line,
    harness=st.just("") | _word,
    model=st.just("") | _word,
    effort=_line,
    priority=st.integers(-1_000_000, 1_000_000),
    limits=_limits,
    reply=st.none() | st.dictionaries(st.text("ab: \n", max_size=4), _json, max_size=3),
    guard=st.booleans(),
    target=st.just("main") | _ids,
    gate=st.none() | _gates,
).filter(lambda task: not problems(task))


@settings(deadline=None, max_examples=MANY, suppress_health_check=list(HealthCheck))
@given(_tasks)
def test_any_task_comes_back_from_its_spec(task: Task) -> None:
    read = wire.read_spec(task.id, wire.message(wire.make(wire.spec_words(task), 0).content))
    assert read.problems == ()
    assert read.task == task


@settings(deadline=None, max_examples=MANY, suppress_health_check=list(HealthCheck))
@given(_tasks)
def test_what_flockwork_reads_of_a_spec_is_what_we_mean(task: Task) -> None:
    """It takes the first line that begins with `verify:`, and the last ones of `n:` and `m:` behind blanks."""
    text = wire.message(wire.make(wire.spec_words(task), 0).content)
    listed = text.strip().splitlines()
    assert next(line[7:].strip() for line in listed if line.startswith("verify:")) == task.check.strip()
    for key, value in (("n:", task.gate and task.gate.n), ("m:", task.gate and task.gate.m)):
        found = [line.strip()[2:].strip() for line in listed if line.strip().startswith(key)]
        assert found == ([] if value is None else [str(value)])


FLOCKWORK = (
    ("spec t\n\ntask t: add hello.txt\nverify: test -f hello.txt\n", "test -f hello.txt", None),
    ("spec t\n\nverify:pytest -q\nmake it green\n", "pytest -q", None),
    ("spec t\r\n\r\nDo it\r\nverify: pytest -q\r\nn: 2\r\nm: 3\r\n", "pytest -q", Gate(2, 3)),
    ("spec t\n\nDo it\nverify: first\nverify: second\n  n: 1\nm: 1\nn: 2\nm: 2\n", "first", Gate(2, 2)),
    ("spec t\n\ngoal: a file\nverify: true\nn: 1\nm: 1", "true", Gate(1, 1)),
)


@pytest.mark.parametrize("text,check,gate", FLOCKWORK)
def test_a_spec_of_flockwork_is_read_as_it_reads_it(text: str, check: str, gate: Gate | None) -> None:
    spec = wire.read_spec("t", text)
    assert (spec.problems, spec.task.check, spec.task.gate) == ((), check, gate)
    assert spec.task.description != "", "nothing of the brief is lost"


def test_a_brief_that_begins_with_fields_loses_none_that_is_not_ours() -> None:
    spec = wire.read_spec("t", "spec t\n\nverify: true\nowner: bob\ntitle: A\nplease\n")
    assert spec.task.description == "owner: bob\nplease"
    assert spec.task.title == "A" and spec.brief == "verify: true\nowner: bob\ntitle: A\nplease\n"


BAD_SPECS = (
    (b"", "no check"),
    (b"spec t\n", "no check"),
    (b"spec t\n\nverify:\n", "no check"),
    (b"spec t\n\n  verify: indented\n", "no check"),
    (b"spec t\n\nverify: true\nregion: ../../heads/main\n", "region"),
    (b"spec t\n\nverify: true\nregion: a..b\n", "region"),
    (b"spec t\n\nverify: true\ntarget: a..b\n", "target"),
    (b"spec t\n\nverify: true\ntarget: x.lock\n", "target"),
    (b"spec t\n\nverify: true\ntarget: -f\n", "target"),
    (b"spec t\n\nverify: true\nneeds: ../x\n", "need"),
    (b"spec t\n\nverify: true\nneeds: x x\n", "twice"),
    (b"spec t\n\nverify: true\nowns: /etc/passwd\n", "path inside"),
    (b"spec t\n\nverify: true\npriority: high\n", "priority"),
    (b"spec t\n\nverify: true\npriority: 99999999999999999999\n", "priority"),
    (b"spec t\n\nverify: true\nlimit_seconds: nan\n", "seconds"),
    (b"spec t\n\nverify: true\nlimit_seconds: inf\n", "seconds"),
    (b"spec t\n\nverify: true\nlimit_turns: " + b"9" * 5000 + b"\n", "limit_turns"),
    (b"spec t\n\nverify: true\nn: two\nm: 2\n", "gate"),
    (b"spec t\n\nverify: true\nn: 3\nm: 2\n", "gate"),
    (b"spec t\n\nverify: true\nn: 0\nm: 0\n", "gate"),
    (b"spec t\n\nverify: true\nreply: " + b'{"a":' * 5000 + b"\n", "reply"),
    (b"spec t\n\nverify: true\nreply: []\n", "reply"),
    (b"spec t\n\nverify: true\nmodel: a b\n", "model"),
)


@pytest.mark.parametrize("text,words_of_it", BAD_SPECS, ids=[str(n) for n in range(len(BAD_SPECS))])
def test_a_spec_that_can_not_be_done_says_why(text: bytes, words_of_it: str) -> None:
    found = wire.read_spec("t", text.decode("utf-8", "replace")).problems
    assert any(words_of_it in one for one in found), found


def test_one_bad_spec_stops_nobody_else(board: BoardKit) -> None:
    """Whatever a peer has pushed, a look at everything names what is wrong with it, and the rest goes on."""
    board.add("good")
    pushed = {f"bad{number}": text for number, (text, _) in enumerate(BAD_SPECS)}
    pushed["bytes"] = b"spec bytes\n\nverify: true\n\xff\xfe\r\n\x1b[31m"
    pushed["slash/ed"] = b"spec slash/ed\n\nverify: true\nDo it"
    pushed["large"] = b"spec large\n\nverify: true\n" + b"x" * (5 << 20)
    board.raws({names.spec(name): text for name, text in pushed.items()})
    board.force("refs/swarm/specs/blob", board.kit.store.objects.write("blob", b"no commit"))
    looked = state.look(board.board, everything=True)
    states = {name: one.state for name, one in looked.items()}
    bad = {name for name, one in states.items() if one == "invalid"}
    assert bad == {f"bad{n}" for n in range(len(BAD_SPECS))} | {"blob", "large"}
    assert states["good"] == states["bytes"] == states["slash/ed"] == "ready"
    assert all(one.why for one in looked.values() if one.state == "invalid")
    assert {one.id for one in state.order(looked.values()) if one.state == "ready"} == {"bytes", "slash/ed", "good"}
    board.done("good")


CLAIMS = (
    (
        "claim t\nharness: opencode\nmodel: m\nkind: chain\ndispatch_started: 20260101T000000Z\natt-w-0a1b2c",
        "att-w-0a1b2c",
    ),
    ("claim t\nharness: x\natt-my worker-0a1b2c", None),
    ("claim t\natt-w-0a1b2c\r\n", "att-w-0a1b2c"),
    ("att-w-0a1b2c", "att-w-0a1b2c"),
    ("claim t\nbeat: ²\nlife: ٣\natt-w-0a1b2c", "att-w-0a1b2c"),
    ("claim t\nbeat: " + "9" * 5000 + "\natt-w-0a1b2c", "att-w-0a1b2c"),
    ("", None),
    ("claim t\n", None),
    ("\n\n\n", None),
)


@pytest.mark.parametrize("text,attempt", CLAIMS, ids=[str(n) for n in range(len(CLAIMS))])
def test_claims_of_anybody_are_read(text: str, attempt: str | None) -> None:
    found = wire.read_claim(text)
    assert (found.attempt if found else None) == attempt
    if found is not None:
        assert found.beat == found.life == 0 and not found.ours


@settings(deadline=None, max_examples=MANY, suppress_health_check=list(HealthCheck))
@given(_line, _prose, _prose)
def test_words_of_an_agent_add_no_field(harness: str, reason: str, note: str) -> None:
    text = wire.claim_words("t", "att-w-0a1b2c", harness=harness, model="m", host="h", base="b", life=2)
    changed = wire.changed_claim(text, ended=reason, closed="x")
    found = wire.read_claim(changed)
    assert found is not None and (found.attempt, found.life, found.closed) == ("att-w-0a1b2c", 2, "x")
    assert len(changed.splitlines()) == len(text.splitlines()) + 2
    outcome = Outcome(False, 1, 2, harness, model="m", reason=reason, more={"note": note + "\nfixed: true"})
    read = wire.read_verdict(wire.verdict_words("t", "att-w-0a1b2c", "w", outcome))
    assert read is not None and (read.fixed, read.oc_rc, read.pytest_rc) == (False, 1, 2)


def test_verdicts_of_anybody_are_read() -> None:
    read = wire.read_verdict(
        "verdict\ntask: t\nattempt: att-w-1\nfixed: yes\noc_rc: ²\npytest_rc: -9\n\x00\r\nhost: h\r"
    )
    assert read is not None and (read.fixed, read.oc_rc, read.pytest_rc, read.host) == (None, None, -9, "h")
    assert wire.read_verdict("review-verdict\ntask: t") is None and wire.read_verdict("") is None


@settings(deadline=None, max_examples=MANY, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=300))
def test_no_bytes_at_all_stop_a_reader(data: bytes) -> None:
    text = wire.message(b"tree x\n\n" + data)
    for read in (wire.read_claim, wire.read_verdict, wire.fields):
        read(text)
    wire.made_at(data)
    wire.read_spec("t", text)
    wire.read_review(text, "t", "r")
    holder.is_dead(text)
    try:
        wire.read_law(text)
    except InvalidError:
        pass


def test_the_date_of_an_object_is_read_or_is_none() -> None:
    for line in (b"committer x <x> 9" + b"9" * 5000 + b" +0000", b"committer x", b"committer x <x> \xb2 +0000", b""):
        assert wire.made_at(b"tree x\n" + line + b"\n\nwords") == 0
    assert wire.made_at(wire.make("words", 5).content) == 5


# names


@pytest.mark.parametrize(
    "name",
    ["", "A", "a/b", "a@b", "a..b", "a.lock", "a.", ".a", "-a", "a b", "a\n", "a\0", "ä", "a~1", "a^", "a:b", "a*",
     "a[", "a\\", "a" * 101, "refs/heads/main", "@", "_a", "\ud800"],
)  # fmt: skip
def test_F23_a_name_that_git_or_the_format_can_not_hold_is_refused_before_anything_moves(
    board: BoardKit, name: str
) -> None:
    last = board.kit.store.last_op()
    with pytest.raises(InvalidError):
        board.add(Task(name, "true"), "fine")
    assert board.kit.store.last_op() == last and board.board.below(names.SPECS) == []
    with pytest.raises(InvalidError):
        names.check_person("a/" + name)


def test_F23_names_that_are_taken_are_names_that_git_takes() -> None:
    for name in ("a", "run1.task-2", "a_b", "0", "a" * 100, "a.b.c", "lock", "a-"):
        assert check_id(name) == name
        stock("check-ref-format", names.spec(name))
        stock("check-ref-format", names.archived(names.claim(name), names.new_attempt("W.x_1-2")))


def test_a_name_on_a_foreign_board_is_only_read(board: BoardKit) -> None:
    assert names.is_readable("a/b") and not names.is_readable("a@b") and not names.is_readable("../a")
    board.raw("refs/swarm/specs/dir/task", b"spec dir/task\n\nverify: true\nDo it")
    held = board.take("dir/task")
    assert board.state("dir/task") == "claimed"
    claim.close(board.board, held, Outcome(False, 0, 1, "command"))
    assert board.state("dir/task") == "failed"


def test_a_task_that_is_wrong_is_refused_with_all_that_is_wrong(board: BoardKit) -> None:
    bad = [
        Task("a", ""), Task("b", "x\ny"), Task("c", "true", region="../x"), Task("d", "true", target="x..y"),
        Task("e", "true", owns=("../x",)), Task("f", "true", needs=("f",)), Task("g", "true", needs=("nowhere",)),
        Task("h", "true", gate=Gate(2, 1)), Task("i", "true", title="two\nlines"), Task("j", "a\u2028b"),
        Task("k", "true", description="\ud800"), Task("l", "true", description="a\0b"), Task("a", "true"),
    ]  # fmt: skip
    with pytest.raises(InvalidError) as caught:
        board.add(*bad)
    listed = caught.value.details["problems"]
    assert isinstance(listed, list) and len(listed) >= len(bad)
    for one in "bcdefghijkl":
        assert any(str(line).startswith(f"{one}:") for line in listed), one
    assert board.board.below(names.ROOT) == [(names.LAW, board.board.ref(names.LAW))]


def test_needs_in_a_circle_and_across_targets_are_refused(board: BoardKit) -> None:
    with pytest.raises(InvalidError, match="circle"):
        board.add(Task("a", "true", needs=("b",)), Task("b", "true", needs=("c",)), Task("c", "true", needs=("a",)))
    with pytest.raises(InvalidError, match="on main"):
        board.add(Task("a", "true"), Task("b", "true", needs=("a",), target="other"))
    board.add("a")
    with pytest.raises(InvalidError, match="on main"):
        check_all([Task("b", "true", needs=("a",), target="other")], {"a": "main"})
    long = {f"t{n}": [f"t{n + 1}"] for n in range(50_000)} | {"t50000": []}
    assert find_circle(long) == []


# states, and the steps between them


def test_a_task_goes_through_its_states_and_the_laws_hold_in_each(board: BoardKit) -> None:
    assert board.add("a", "b", "c") == (["a", "b", "c"], [])
    assert board.add("a", "b", "c") == ([], []), "the same again is no change"
    board.lawful()
    held = board.take("a")
    assert (board.state("a"), board.status("a").why) == ("claimed", held.attempt)
    board.lawful()
    held = claim.mark(board.board, held, "dispatch_started")
    assert claim.mark(board.board, held, "dispatch_started") == held, "the first of each stays"
    board.lawful()
    board.done("a", held=held)
    assert board.state("a") == "done" and board.verdict("a").values["landed"] == board.main()
    board.failed("b")
    assert (board.state("b"), board.status("b").why) == ("failed", "the check ended with 1")
    tasks.cancel(board.board, "c", board.who(), "not\nneeded")
    assert (board.state("c"), board.status("c").why) == ("cancelled", "not needed")
    assert tasks.cancel(board.board, "c", board.who()).state == "cancelled"
    assert state.look(board.board) == {}
    assert sorted(state.look(board.board, everything=True)) == ["a", "b", "c"]
    board.lawful()
    for task in "abc":
        with pytest.raises(ClaimedError):
            board.take(task)
    with pytest.raises(InvalidError):
        tasks.cancel(board.board, "a", board.who())
    with pytest.raises(InvalidError):
        tasks.reopen(board.board, "abc", ACTOR)
    assert board.state("b") == "failed", "all or none"
    assert tasks.reopen(board.board, "bc", ACTOR) == ["b", "c"]
    assert [board.state(task) for task in "abc"] == ["done", "ready", "ready"]
    board.lawful()
    assert tasks.reopen(board.board, "a", ACTOR, done=True) == ["a"]
    board.done("a")
    board.lawful()
    board.kit.fsck()


def test_every_step_can_be_undone_as_one(board: BoardKit) -> None:
    """On a store each step is an operation: undone, the board is as before it."""
    before = board.board.below(names.ROOT)
    board.add(Task("a", "true", region="r"))
    after = board.board.below(names.ROOT)
    board.take("a")
    refs.undo(board.kit.store, ACTOR, board.kit.store.last_op())
    assert board.board.below(names.ROOT) == after
    board.lawful()
    refs.undo(board.kit.store, ACTOR, board.kit.store.last_op() - 2)
    assert board.board.below(names.ROOT) == before


def test_order_is_by_priority_then_what_hangs_on_it_then_age_then_name(board: BoardKit) -> None:
    board.add("old")
    board.add(
        Task("z", "true", priority=1), Task("chain0", "true"), Task("chain1", "true", needs=("chain0",)),
        Task("chain2", "true", needs=("chain1",)), Task("b", "true"), Task("a", "true"),
        Task("low", "true", priority=-1),
    )  # fmt: skip
    listed = [s.id for s in state.order(state.look(board.board).values())]
    assert listed[:2] == ["z", "chain0"] and listed[-1] == "low"
    ready = [s.id for s in state.order(state.look(board.board).values()) if s.state == "ready"]
    assert ready[2:] == ["a", "b", "old", "low"] or ready[2:] == ["old", "a", "b", "low"]


def test_an_update_changes_what_nobody_holds_and_nothing_else(board: BoardKit) -> None:
    board.add("a", "b")
    board.take("b")
    with pytest.raises(InvalidError, match="already"):
        board.add(Task("a", "false"))
    with pytest.raises(InvalidError, match="b is claimed"):
        board.add(Task("a", "false"), Task("b", "false"), update=True)
    assert board.status("a").spec.task.check == "true"
    assert board.add(Task("a", "false"), Task("c", "true"), update=True) == (["c"], ["a"])
    assert board.status("a").spec.task.check == "false"
    board.lawful()


def test_a_claim_under_a_spec_that_was_changed_meanwhile_is_refused(board: BoardKit) -> None:
    board.add("a")
    seen = board.status("a")
    board.add(Task("a", "false", description="something else"), update=True)
    with pytest.raises(ClaimedError):
        claim.take(board.board, seen, board.who())
    assert board.state("a") == "ready"


def test_on_a_server_a_claim_under_a_spec_that_was_changed_is_refused(tmp_path: Path) -> None:
    mine = bare(tmp_path / "board.git")
    tasks.add(mine, [Task("a", "true")], ACTOR)
    theirs = RemoteBoard(str(tmp_path / "board.git"), str(tmp_path / "theirs"))
    seen = state.need(theirs, "a")
    assert seen is not None
    mine.refresh()
    tasks.add(mine, [Task("a", "false", description="something else")], ACTOR, update=True)
    with pytest.raises(ClaimedError) as caught:
        claim.take(theirs, seen, As("w2", ACTOR, "command"))
    assert caught.value.details["reason"] == "changed"
    theirs.refresh()
    seen = state.need(theirs, "a")
    assert seen is not None and seen.state == "ready" and seen.spec.task.check == "false"
    claim.take(theirs, seen, As("w2", ACTOR, "command"))
    assert tasks.add(mine, [Task("b", "true")], ACTOR) == (["b"], [])
    with pytest.raises(InvalidError, match="a is claimed"):
        tasks.add(mine, [Task("a", "true")], ACTOR, update=True)
    for board in (mine, theirs):
        board.close()
    assert invariants.broken(tmp_path / "board.git") == []


def test_what_is_not_there_is_not_found(board: BoardKit) -> None:
    for name in ("a", "", "a b", "../..", "a\0", "x" * 5000):
        assert state.need(board.board, name) is None
        with pytest.raises(NotFoundError):
            tasks.cancel(board.board, name, board.who())
        with pytest.raises(NotFoundError):
            tasks.reopen(board.board, [name], ACTOR)


# needs (F18)


def test_F18_a_need_is_met_by_a_true_verdict_of_the_claim_whose_return_is_on_the_target(board: BoardKit) -> None:
    board.add("a", Task("b", "true", needs=("a",)))
    assert (board.state("b"), board.status("b").why) == ("waiting", "it needs a")
    board.take("a")
    assert board.state("b") == "waiting"
    claim.release(board.board, _holding(board, "a"))
    first = board.main()
    board.done("a")
    assert board.state("b") == "ready"
    done = board.main()
    board.force(MAIN, first)
    assert (board.state("b"), board.status("b").why) == (
        "waiting", "it needs a, whose change is not on main any more",
    )  # fmt: skip
    board.force(MAIN, done)
    assert board.state("b") == "ready"


def _holding(board: BoardKit, task: str) -> claim.Held:
    found = board.status(task).claim
    assert found is not None
    return claim.find(board.board, task, found.attempt, ACTOR)


def test_F18_a_failed_an_undone_and_an_unfenced_need_are_unmet(board: BoardKit) -> None:
    board.add("f", "u", "v", *(Task(f"on-{x}", "true", needs=(x,)) for x in "fuv"))
    board.failed("f")
    assert board.status("on-f").why == "it needs f, which failed"
    board.done("u")
    tasks.reopen(board.board, ["u"], ACTOR, done=True)
    assert board.status("on-u").why == "it needs u"
    # somebody writes a return and a true verdict under another attempt than the claim's
    board.take("v")
    board.write(names.verdict("v"), "verdict\ntask: v\nattempt: att-x-000000\nfixed: true")
    board.board.push(Step("push", ACTOR, [Move(names.returned("v"), None, board.main())]))
    assert "another attempt" in board.status("on-v").why
    board.write(names.spec("w"), "spec w\n\nverify: true\nneeds: gone\n")
    assert board.status("w").why == "it needs gone, which is not on the board"


def test_a_target_that_is_not_there_makes_a_task_wait(board: BoardKit) -> None:
    board.add(Task("a", "true", target="release"))
    assert board.status("a").why == "there is no branch release"
    board.kit.commit(put("r", "r\n"), parent=None, advance="release")
    assert board.state("a") == "ready"
    board.done("a")
    assert board.kit.store.ref("refs/heads/release") == board.status("a").returned
    board.lawful()


# regions (F19)


def test_F19_a_region_is_held_by_one_task_at_a_time(board: BoardKit) -> None:
    board.add(Task("a", "true", region="r"), Task("b", "true", region="r"), Task("c", "true", region="s"))
    seen = board.status("b")
    held = board.take("a")
    assert (board.state("b"), board.status("b").why) == ("waiting", "region r is busy")
    assert board.state("c") == "ready"
    with pytest.raises(ClaimedError) as caught:
        claim.take(board.board, seen, board.who("w2"))
    assert caught.value.details["reason"] == "region" and board.status("b").claim is None
    board.lawful()
    tasks.cancel(board.board, "b", board.who())
    assert board.board.ref(names.lock("r")) is not None, "a cancelled task gives up nothing of another's"
    tasks.reopen(board.board, ["b"], ACTOR)
    board.done("a", held=held)
    assert board.board.ref(names.lock("r")) is None and board.state("b") == "ready"
    second = board.take("b")
    claim.release(board.board, second)
    assert board.board.ref(names.lock("r")) is None
    board.lawful()


def test_F19_an_attempt_gives_up_no_region_that_another_has(board: BoardKit) -> None:
    """flockwork's workers take a task without its region; ending theirs leaves the one who holds it alone."""
    board.add(Task("a", "true", region="r"), Task("b", "true", region="r"))
    held = board.take("a")
    board.write(names.claim("b"), "claim b\nharness: opencode\natt-fw-abcdef")
    theirs = claim.find(board.board, "b", "att-fw-abcdef", ACTOR)
    claim.release(board.board, theirs)
    assert board.board.ref(names.lock("r")) is not None
    board.lawful()
    board.done("a", held=held)
    board.lawful()


# lives, deaths, heirs


def test_deaths_are_bounded_by_heirs_in_each_life(board: BoardKit) -> None:
    board.add(Task("a", "true", region="r", limits=Limits(heirs=2)))
    dead = Outcome(False, 124, 1, "command", reason="timeout\nfixed: true")
    for life in range(2):
        for _ in range(2):
            held = board.take("a")
            assert held.life == life
            assert claim.die(board.board, held, dead)
            board.lawful()
        claim.release(board.board, board.take("a"))
        assert not claim.die(board.board, board.take("a"), dead)
        assert board.state("a") == "infrastructure" and board.verdict("a").fixed is False
        board.lawful()
        tasks.reopen(board.board, ["a"], ACTOR)
    board.failed("a")
    assert (board.state("a"), claim.lives(board.board, "a")) == ("failed", 2)


def test_a_review_is_no_life(board: BoardKit) -> None:
    board.add("a")
    board.failed("a")
    for reviewer in ("r1", "r2"):
        board.write(names.review("a", reviewer), wire.review_words("a", reviewer, "veto", "x"))
    tasks.reopen(board.board, ["a"], ACTOR)
    assert claim.lives(board.board, "a") == 1 and board.board.below(names.review("a", "")) == []
    board.lawful()


def test_R7_an_attempt_whose_claim_is_gone_neither_lands_nor_speaks(board: BoardKit) -> None:
    board.add("a")
    old = board.take("a", "w1")
    claim.release(board.board, old)
    new = board.take("a", "w2")
    last = board.kit.store.last_op()
    outcome = Outcome(True, 0, 0, "command")
    for step in (
        lambda: claim.release(board.board, old),
        lambda: claim.close(board.board, old, outcome, board.main()),
        lambda: claim.die(board.board, old, outcome),
        lambda: claim.mark(board.board, old, "work_done"),
        lambda: claim.beat(board.board, old),
        lambda: claim.find(board.board, "a", old.attempt, ACTOR),
        lambda: board.landed(old),
    ):
        with pytest.raises(FencedError):
            step()
    kinds = [row[0] for row in board.kit.store.db.rows("SELECT kind FROM ops WHERE op > ?", (last,))]
    assert set(kinds) <= {"commit"}, "nothing but an unlanded change was written"
    board.done("a", held=new)
    board.lawful()
    assert stock("--git-dir", board.kit.repo, "rev-list", "--count", "main").strip() == b"2"


def test_B3_the_zombie_of_a_reclaimed_task_can_not_end_it(board: BoardKit) -> None:
    board.add("a")
    zombie = board.take("a", "w1")
    recover.evict(board.board, board.status("a"), ACTOR, "lease over")
    heir = board.take("a", "w2")
    with pytest.raises(FencedError):
        board.landed(zombie)
    with pytest.raises(FencedError):
        claim.close(board.board, zombie, Outcome(True, 0, 0, "command"), board.main())
    assert board.status("a").why == heir.attempt
    board.done("a", held=heir)
    board.lawful()


def test_F2_a_closing_claim_differs_from_the_one_before(board: BoardKit) -> None:
    board.add("a")
    held = board.take("a")
    assert claim.closing_object(held).id != held.claim
    board.done("a", held=held)
    closed = wire.read_claim(words(board.board, names.claim("a")) or "")
    assert closed is not None and closed.closed and closed.attempt == held.attempt
    with pytest.raises(FencedError):
        claim.find(board.board, "a", held.attempt, ACTOR)


# strangers


def test_R16_a_verdict_without_a_claim_closes_no_need(board: BoardKit) -> None:
    board.add("a", Task("b", "true", needs=("a",)))
    board.write(names.verdict("a"), "verdict\ntask: a\nattempt: att-nobody-000001\nfixed: true\noc_rc: 0\npytest_rc: 0")
    assert (board.state("a"), board.state("b")) == ("half", "waiting")
    with pytest.raises(FencedError):
        claim.find(board.board, "a", "att-nobody-000001", ACTOR)
    with pytest.raises(InvalidError):
        tasks.cancel(board.board, "a", board.who())
    assert board.status("a").claim is None, "nothing was left half done"
    assert tasks.reopen(board.board, ["a"], ACTOR) == ["a"]
    board.done("a")
    assert board.state("b") == "ready"
    board.lawful()


def test_R12_a_claim_of_the_year_2099_is_as_old_as_it_was_seen(board: BoardKit, tmp_path: Path) -> None:
    board.add("a")
    board.raw(names.claim("a"), b"claim a\nharness: opencode\natt-future-0000aa", at=4_070_908_800)
    oid = board.board.ref(names.claim("a"))
    assert oid is not None
    age = observe.observe(str(tmp_path), {"a": oid}, 10_000.0)["a"]
    assert age == 0.0
    path = tmp_path / "observed.json"
    known = json.loads(path.read_text())
    known["at"] -= 2000
    path.write_text(json.dumps(known))
    assert observe.observe(str(tmp_path), {"a": oid}, 10_000.0)["a"] >= 2000
    assert observe.observe(str(tmp_path), {"a": "another"}, 10_000.0)["a"] == 0.0


def test_F10_an_observer_that_slept_counts_two_polls(tmp_path: Path) -> None:
    observe.observe(str(tmp_path), {"a": "x"}, 5.0)
    path = tmp_path / "observed.json"
    known = json.loads(path.read_text())
    known["at"] -= 100_000
    path.write_text(json.dumps(known))
    assert observe.observe(str(tmp_path), {"a": "x"}, 5.0)["a"] == 10.0
    for torn in (b"", b"{", b'{"seen":{"a":1}}', os.urandom(50), b"[" * 100_000):
        path.write_bytes(torn)
        assert observe.observe(str(tmp_path), {"a": "x"}, 5.0) == {"a": 0.0}


def test_a_law_that_is_newer_or_no_law_is_refused(board: BoardKit) -> None:
    assert tasks.init(board.board, ACTOR, mixed=False) == wire.Law(wire.LAW, False)
    assert tasks.init(board.board, ACTOR, mixed=True).mixed
    board.add("a")
    board.take("a")
    with pytest.raises(ClaimedError):
        tasks.init(board.board, ACTOR, mixed=False)
    newer = f"law\nversion: {wire.LAW + 1}\nmixed: no"
    for text, error in ((newer, UnsupportedError), ("law\nversion: ²", InvalidError), ("lore", InvalidError),
                        ("law\nversion: " + "9" * 5000, InvalidError)):  # fmt: skip
        board.write(names.LAW, text, over=board.board.ref(names.LAW))
        with pytest.raises(error):
            state.law(board.board)
        with pytest.raises(RopewalkError):
            board.add("b")


def test_F8_what_flockwork_would_do_wrongly_is_held_back_on_a_mixed_board(new_board: NewBoard) -> None:
    board = new_board(mixed=True)
    special = [Task("n", "true", needs=("plain",)), Task("r", "true", region="r"), Task("o", "true", owns=("x",)),
               Task("m", "true", modifies=("x",)), Task("t", "true", target="release")]  # fmt: skip
    board.kit.commit(put("r", "r\n"), parent=None, advance="release")
    board.add("plain", *special)
    assert [name for name, _ in board.board.below(names.SPECS)] == [names.spec("plain")]
    board.lawful()
    for task in ("r", "o", "m", "t"):
        held = board.take(task)
        assert board.board.ref(names.held(task)) is None and board.board.ref(names.spec(task)) is not None
        board.lawful()
        claim.release(board.board, held)
        assert board.board.ref(names.spec(task)) is None, "free again, it is held back again"
        board.lawful()
        board.failed(task)
        tasks.reopen(board.board, [task], ACTOR)
        assert board.board.ref(names.spec(task)) is None
        tasks.cancel(board.board, task, board.who())
        board.lawful()


def test_R18_a_thousand_tasks_are_one_step_or_none(board: BoardKit) -> None:
    many = [Task(f"t{n:04}", "true", description="x" * 100) for n in range(1000)]
    last = board.kit.store.last_op()
    with pytest.raises(InvalidError):
        board.add(*many, Task("bad", ""))
    with pytest.raises(InvalidError):
        board.add(*many, Task("t0500", "false"))
    assert board.kit.store.last_op() == last
    new, changed = board.add(*many)
    assert (len(new), changed, board.kit.store.last_op()) == (1000, [], last + 1)
    assert board.add(*many) == ([], []) and board.kit.store.last_op() == last + 1
    assert len(state.look(board.board)) == 1000
    board.lawful()


def test_R23_what_can_be_done_on_a_board_is_listed() -> None:
    """flockwork's ten tools under their names, and what it lacks."""
    listed = {one["name"] for one in mcp_tools.listed("board")}
    assert listed >= {f"fw_{name}" for name in (
        "protocol", "brief", "claim", "judge", "land", "verdict", "renew", "work_started", "work_done", "work_external"
    )}  # fmt: skip
    assert listed >= {f"fw_{name}" for name in ("list", "next", "add", "status", "audit", "review", "gate")}
