"""The landing queue: what lands is a tree on which its check passed, whoever dies, fails or waits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.core.errors import CheckFailedError, ConflictError
from ropewalk.store import changes, land
from ropewalk.store.changes import Change, Content
from ropewalk.store.land import Landed
from ropewalk.workspace import drive, queue
from ropewalk.workspace.drive import Orders, Outcome

from .conftest import MAIN, Bench

LOGGED = 'tree=$(git rev-parse "HEAD^{tree}"); '


def change(bench: Bench, files: dict[str, str], agent: str = "claude/one", base: str = "main") -> str:
    """Makes a changeset on the store and gives its id."""
    entries = [Change(path=path, content=Content(inline=text)) for path, text in files.items()]
    return changes.commit(
        bench.store, agent=agent, message=f"adds {', '.join(files)}", changes=entries, parent=base, advance=None,
        key=None, read_file=changes.read_disk_file,
    ).changeset  # fmt: skip


def orders(bench: Bench, script: str, *, jobs: int = 2, seconds: float = 60.0) -> Orders:
    return drive.orders(["sh", "-c", script], seconds, str(bench.data / "checks"), jobs=jobs)


def queued(bench: Bench, ids: Sequence[str], how: Orders) -> list[Outcome]:
    requests = [land.request(agent="claude/one", change=one, ref=MAIN) for one in ids]
    return drive.land_checked(bench.store, MAIN, requests, how)


def passed(log: Path) -> set[str]:
    """Gives the trees that the check wrote down as good."""
    return {line.split()[0] for line in log.read_text().splitlines() if line.endswith(" 0")} if log.exists() else set()


def landed_trees(bench: Bench, base: str) -> list[str]:
    """Gives the trees of the commits on main since a base, oldest first."""
    found, at = [], bench.head()
    while at != base:
        one = bench.store.objects.commit(at)
        found.append(one.tree)
        (at,) = one.parents
    return found[::-1]


def test_several_land_in_order_each_on_its_own_checked_tree(bench: Bench) -> None:
    base, log = bench.head(), bench.folder / "log"
    ids = [change(bench, {f"f{n}": f"{n}\n"}) for n in range(5)]
    outcomes = queued(bench, ids, orders(bench, f'{LOGGED} echo "$tree 0" >> {log}'))
    assert [o.result.status for o in outcomes if isinstance(o.result, Landed)] == ["landed"] * 5
    trees = landed_trees(bench, base)
    assert [o.checks[-1].tree for o in outcomes] == trees and set(trees) <= passed(log)
    assert sorted(log.read_text().split()[::2]) == sorted(trees), "no check was run twice"
    assert queue.entries(bench.store) == []


def test_a_broken_change_lands_nothing_and_keeps_back_nobody(bench: Bench) -> None:
    base, log = bench.head(), bench.folder / "log"
    ids = [change(bench, {f"f{n}": "x\n", **({"broken": "x"} if n == 1 else {})}) for n in range(4)]
    script = f'{LOGGED} test -e broken; rc=$((1 - $?)); echo "$tree $rc" >> {log}; exit $rc'
    outcomes = queued(bench, ids, orders(bench, script))
    assert [isinstance(o.result, Landed) for o in outcomes] == [True, False, True, True]
    error = outcomes[1].result
    assert isinstance(error, CheckFailedError) and error.details["rc"] == 1 and error.details["runs"] == 2
    assert set(landed_trees(bench, base)) <= passed(log)
    assert "broken" not in bench.tree() and set(bench.tree()) >= {"f0", "f2", "f3"}


def test_a_pair_that_fails_only_together_lands_one(bench: Bench) -> None:
    ids = [change(bench, {name: "x\n"}) for name in ("left", "right")]
    outcomes = queued(bench, ids, orders(bench, "! { test -e left && test -e right; }"))
    assert [isinstance(o.result, Landed) for o in outcomes] == [True, False]
    assert "left" in bench.tree() and "right" not in bench.tree()


def test_a_check_that_flips_lands_and_is_said_and_not_kept(bench: Bench) -> None:
    once = bench.folder / "once"
    (outcome,) = queued(
        bench, [change(bench, {"f": "f\n"})], orders(bench, f"test -e {once} || {{ touch {once}; exit 1; }}")
    )
    assert isinstance(outcome.result, Landed) and [c.flaky for c in outcome.checks] == [True]
    tree = outcome.checks[0].tree
    known = [r for r in queue.records(bench.store, _key(bench, tree, f"test -e {once} || {{ touch {once}; exit 1; }}"))]
    assert [r.flaky for r in known] == [True]
    key = _key(bench, tree, f"test -e {once} || {{ touch {once}; exit 1; }}")
    assert queue.standing(bench.store, key, 10_000, known[0].at).passed is None, "another change runs it again"


def _key(bench: Bench, tree: str, script: str) -> str:
    from ropewalk.workspace import check

    return check.key(tree, orders(bench, script).command)


def test_a_pass_is_taken_for_the_same_tree_of_another_change(bench: Bench) -> None:
    log = bench.folder / "log"
    base = bench.head()
    one, two = change(bench, {"f": "f\n"}), change(bench, {"f": "f\n"}, "codex/two")
    how = orders(bench, f"echo x >> {log}")
    queued(bench, [one], how)
    with bench.store.transaction() as tx:
        from ropewalk.store.oplog import Move

        tx.record("ref_set", "person/me", [Move("refs/heads/other", None, base)])
    request = land.request(agent="codex/two", change=two, ref="refs/heads/other")
    (outcome,) = drive.land_checked(bench.store, "refs/heads/other", [request], how)
    assert isinstance(outcome.result, Landed) and [c.cached for c in outcome.checks] == [True]
    assert log.read_text() == "x\n"
    other = drive.orders(["sh", "-c", f"echo x >> {log}; true"], 60.0, str(bench.data / "checks"))
    three = change(bench, {"f": "f\n", "g": "g\n"})
    (outcome,) = queued(bench, [three], other)
    assert [c.cached for c in outcome.checks] == [False] and log.read_text() == "x\nx\n"


def test_a_failure_of_another_change_drops_none_without_a_run_of_its_own(bench: Bench) -> None:
    log = bench.folder / "log"
    one, two = change(bench, {"f": "f\n"}), change(bench, {"f": "f\n"}, "codex/two")
    how = orders(bench, f"echo x >> {log}; exit 1")
    queued(bench, [one], how)
    assert log.read_text() == "x\nx\n"
    queued(bench, [two], how)
    assert log.read_text() == "x\nx\nx\n"


@pytest.mark.parametrize(
    ("script", "kind", "reason"),
    [
        ("kill -9 $$", "infrastructure", "SIGKILL"),
        ("exit 137", "infrastructure", "killed"),
        ("echo 'cp: No space left on device' >&2; exit 1", "infrastructure", "full disk"),
        ("exit 3", "failed", None),
    ],
)
def test_an_end_that_says_nothing_about_the_tree_is_told_apart(
    bench: Bench, script: str, kind: str, reason: str | None
) -> None:
    (outcome,) = queued(bench, [change(bench, {"f": "f\n"})], orders(bench, script))
    assert isinstance(outcome.result, CheckFailedError)
    assert (outcome.result.details["kind"], outcome.result.details.get("reason")) == (kind, reason)


def test_a_check_that_leaves_children_is_ended_with_them(bench: Bench) -> None:
    child = bench.folder / "child"
    script = f"sleep 600 & echo $! > {child}; sleep 600 & exit 0"
    (outcome,) = queued(bench, [change(bench, {"f": "f\n"})], orders(bench, script))
    assert isinstance(outcome.result, Landed) and outcome.checks[0].seconds < 60
    assert _gone(int(child.read_text()))
    assert list((bench.data / "checks").iterdir()) == []


def _gone(pid: int) -> bool:
    for _ in range(200):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_a_check_that_takes_write_bits_away_leaves_nothing(bench: Bench) -> None:
    (outcome,) = queued(
        bench, [change(bench, {"f": "f\n"})], orders(bench, "mkdir d; touch d/x; chmod 0 d; chmod 500 .")
    )
    assert isinstance(outcome.result, Landed)
    assert list((bench.data / "checks").iterdir()) == []


def test_a_check_sees_the_tree_alone(bench: Bench) -> None:
    """One commit that is always the same, no remotes, and none of the caller's variables but those of tools."""
    os.environ["SECRET_TOKEN"] = "s3cret"
    os.environ["GIT_DIR"] = "/nonexistent"
    try:
        script = (
            'test -z "$SECRET_TOKEN$GIT_DIR" && test "$(git rev-list --count --all)" = 1 && test -z "$(git status -s)"'
        )
        (outcome,) = queued(bench, [change(bench, {"f": "f\n"})], orders(bench, script))
    finally:
        del os.environ["SECRET_TOKEN"], os.environ["GIT_DIR"]
    assert isinstance(outcome.result, Landed), outcome.result


def test_a_conflict_is_told_at_once_and_keeps_back_nobody(bench: Bench) -> None:
    base = bench.head()
    bench.publish({"src/b.py": "theirs\n"})
    ids = [change(bench, {"src/b.py": "ours\n"}, base=base), change(bench, {"f": "f\n"})]
    outcomes = queued(bench, ids, orders(bench, "true"))
    assert isinstance(outcomes[0].result, ConflictError) and isinstance(outcomes[1].result, Landed)


def test_two_that_conflict_with_each_other(bench: Bench) -> None:
    ids = [change(bench, {"src/b.py": f"{who}\n"}) for who in ("one", "two")]
    outcomes = queued(bench, ids, orders(bench, "true"))
    assert isinstance(outcomes[0].result, Landed) and isinstance(outcomes[1].result, ConflictError)


# several processes


def start(bench: Bench, head: str, script: str, *more: str, agent: str = "claude/one") -> subprocess.Popen[bytes]:
    """Starts `rw land HEAD --check …` as a process."""
    return subprocess.Popen(
        bench.argv("land", head, "--onto", "main", "--jobs", "2", *more, "--", "sh", "-c", script),
        env=bench.env | {"ROPEWALK_STORE": bench.store.layout.root, "ROPEWALK_AGENT": agent},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def answer(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, _ = child.communicate(timeout=120)
    found: dict[str, Any] = msgspec.json.decode(out)
    return found


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def test_the_queue_is_shown_and_an_entry_can_be_taken_out(bench: Bench) -> None:
    go = bench.folder / "go"
    child = start(bench, change(bench, {"f": "f\n"}), f"while ! test -e {go}; do sleep 0.05; done")
    try:
        until(lambda: queue.entries(bench.store))
        where = ("--store", bench.store.layout.root, "--as", "person/me")
        (row,) = bench.rw("queue", "list", *where)["result"]["entries"]
        assert (row["onto"], row["agent"], row["title"]) == ("main", "claude/one", "adds f")
        shown = bench.rw("queue", "show", str(row["entry"]), *where)["result"]
        assert shown["command"][:2] == ["sh", "-c"] and shown["before"] == []
        assert bench.rw("queue", "cancel", str(row["entry"]), *where)["ok"]
        error = answer(child)["error"]
    finally:
        child.kill()
        child.communicate()
    assert error["code"] == "E_CHECK_FAILED" and error["details"]["by"] == "person/me"
    again = bench.rw("queue", "cancel", str(row["entry"]), *where)
    assert again["error"]["code"] == "E_NOT_FOUND" and "f" not in bench.tree()


def test_a_dead_driver_loses_its_place_and_its_check_ends(bench: Bench) -> None:
    pids = bench.folder / "pids"
    script = f"echo $$ >> {pids}; while true; do sleep 0.05; done"
    first = start(bench, change(bench, {"f": "f\n"}), script)
    until(lambda: pids.exists() and pids.read_text())
    (old,) = pids.read_text().split()
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    until(lambda: not queue.entries(bench.store))
    second = start(bench, change(bench, {"g": "g\n"}), "true")
    assert answer(second)["result"]["status"] == "landed"
    assert _gone(int(old)), "whoever comes next ends what a dead driver left running"
    assert list((bench.data / "ropewalk").glob("*/checks/*")) == []


def test_drivers_killed_at_random_moments_land_nothing_unchecked(bench: Bench) -> None:
    """Nine landers, three of them killed: the others land, each landed tree passed, and a broken one never lands."""
    base, log = bench.head(), bench.folder / "log"
    chance = random.Random(5)
    script = f'{LOGGED} sleep 0.1; test -e broken; rc=$((1 - $?)); echo "$tree $rc" >> {log}; exit $rc'
    heads = [change(bench, {f"f{n}": "x\n", **({"broken": "x"} if n == 4 else {})}, f"claude/w{n}") for n in range(9)]
    children = [start(bench, head, script, agent=f"claude/w{n}") for n, head in enumerate(heads)]
    victims = set(chance.sample([n for n in range(9) if n != 4], 3))
    for number in victims:
        time.sleep(chance.uniform(0.2, 1.2))
        children[number].kill()
    results = [None if n in victims else answer(child) for n, child in enumerate(children)]
    for number in victims:
        children[number].communicate()
    for number, result in enumerate(results):
        if result is not None and number != 4:
            assert result["ok"] and result["result"]["status"] == "landed", result
    failed = results[4]
    assert failed is not None and failed["error"]["code"] == "E_CHECK_FAILED"
    trees = landed_trees(bench, base)
    assert len(trees) >= 5 and set(trees) <= passed(log) and "broken" not in bench.tree()
    # whoever was killed sends it again, and each is there once
    for number in victims:
        again = answer(start(bench, heads[number], script, agent=f"claude/w{number}"))
        assert again["result"]["status"] in ("landed", "up_to_date"), again
    sources = [str(bench.store.objects.commit(at).trailer("Ropewalk-Changeset")) for at in _commits(bench, base)]
    assert sorted(sources) == sorted(head for n, head in enumerate(heads) if n != 4)


def _commits(bench: Bench, base: str) -> list[str]:
    found, at = [], bench.head()
    while at != base:
        found.append(at)
        (at,) = bench.store.objects.commit(at).parents
    return found


def test_a_driver_waits_for_its_check_without_spinning(bench: Bench) -> None:
    looks: list[str] = []

    def traced(cursor: object, sql: str, bindings: object) -> bool:
        looks.append(sql)
        return True

    one = change(bench, {"f": "1\n"})
    bench.store.db.con.exec_trace = traced
    try:
        (outcome,) = queued(bench, [one], orders(bench, "true"))
    finally:
        bench.store.db.con.exec_trace = None
    assert isinstance(outcome.result, Landed)
    assert sum("FROM queue WHERE id IN" in sql for sql in looks) < 60, "it looks when something ended, or now and then"
