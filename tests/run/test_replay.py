"""Results that are taken from the journal: what is the same in all it depends on is not done again."""

from __future__ import annotations

from ropewalk.lane import journal
from ropewalk.store.store import Store
from run.conftest import Runs, task


def states(envelope: dict[str, object]) -> dict[str, tuple[str, bool]]:
    """Gives how each task ended, and whether another's result stood for it."""
    result = envelope["result"]
    assert isinstance(result, dict)
    return {one["id"]: (one["state"], bool(one.get("cached"))) for one in result["tasks"]}


def test_an_unchanged_task_is_taken_from_the_journal_and_a_changed_one_is_done(runs: Runs) -> None:
    one, two = task("one", {"put": "one.txt", "text": "1\n"}), task("two", {"put": "two.txt", "text": "2\n"})
    code, first = runs.run([one, two], "--jobs", "2")
    assert code == 0 and states(first) == {"one": ("landed", False), "two": ("landed", False)}
    with Store(runs.root) as store:
        noted = {lane.record.task: lane.result for lane in journal.lanes(store)}
    assert all(result is not None and result.passed and result.landed for result in noted.values())
    # `two` alone, so that both runs start it on the same tree
    changed = task("two", {"put": "two.txt", "text": "3\n"})
    assert states(runs.run([one], "--replay-results")[1]) == {"one": ("landed", True)}
    assert states(runs.run([changed], "--replay-results")[1]) == {"two": ("landed", False)}
    code, again = runs.run([one], "--replay-results")
    assert code == 0 and runs.files(again["result"]["ref"])["one.txt"] == "1\n"
    assert not [event for event in runs.events(again["result"]["id"]) if event["event"] == "agent_ended"]


def test_another_check_another_sample_and_no_flag_run_it_again(runs: Runs) -> None:
    one = task("one", {"put": "one.txt", "text": "1\n"})
    runs.run([one])
    assert states(runs.run([one])[1]) == {"one": ("landed", False)}
    assert states(runs.run([one], "--replay-results", "--sample", "1")[1]) == {"one": ("landed", False)}
    assert states(runs.run([one], "--replay-results", "--sample", "1")[1]) == {"one": ("landed", True)}
    other = {**one, "check": "test -e one.txt"}
    assert states(runs.run([other], "--replay-results")[1]) == {"one": ("landed", False)}


def test_a_result_that_did_not_pass_is_never_taken(runs: Runs) -> None:
    one = task("one", {"put": "one.txt", "text": "1\n"}, check="false")
    assert states(runs.run([one], "--attempts", "1")[1]) == {"one": ("failed", False)}
    with Store(runs.root) as store:
        (lane,) = journal.lanes(store)
    assert lane.result is not None and lane.result.passed is False and "check" in lane.result.gate
    assert states(runs.run([one], "--attempts", "1", "--replay-results")[1]) == {"one": ("failed", False)}
