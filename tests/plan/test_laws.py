"""Laws of planning, for plans made by chance: what never runs at once, what ends, what is the same each time."""

from __future__ import annotations

import json
import random
from itertools import pairwise

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ropewalk.plan import checks, graph
from ropewalk.plan.globs import Index, is_match, witness
from ropewalk.plan.lint import CHECKS, Around, Barrier, Decision, Watcher, lint
from ropewalk.plan.packer import frame_of, groups, pack
from ropewalk.plan.packets import CLASSES, ROLES, Packet, parse, write
from ropewalk.plan.plan import Module, Plan, read, writes
from ropewalk.plan.schedule import Schedule, frame
from ropewalk.plan.simulate import bound, perturbed, recommend, simulate
from ropewalk.plan.task import Gate, Limits, Task

from .plankit import chance_plan

SOME = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
FEW = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))

NAMES = st.sampled_from(["a", "b", "ab", "x.py", "x.js", "*", "**", "?", "a*", "*b", "[ab]", "[!a]", "*.py", "a**b"])
GLOBS = st.builds(lambda parts, end: "/".join(parts) + end, st.lists(NAMES, min_size=1, max_size=4),
                  st.sampled_from(["", "/"]))  # fmt: skip
PATHS = st.lists(st.sampled_from(["a", "b", "ab", "x", "aab"]), min_size=1, max_size=5).map("/".join)
SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 8), st.integers(0, 10**6), st.sampled_from([0.3, 1.0, 2.5]))


@SOME
@given(GLOBS, GLOBS, PATHS)
def test_a_witness_is_matched_by_both_and_none_is_missed(one: str, other: str, path: str) -> None:
    found = witness(one, other)
    assert (found is None) == (witness(other, one) is None)
    if found is not None:
        assert is_match(found, [one]) and is_match(found, [other]), found
        assert "//" not in found and not found.startswith("/") and not found.endswith("/")
    elif ".py" not in one + other and ".js" not in one + other:
        assert not (is_match(path, [one]) and is_match(path, [other]))


@SOME
@given(st.lists(GLOBS, max_size=12), GLOBS)
def test_the_index_finds_what_meets(globs: list[str], glob: str) -> None:
    index = Index()
    for n, one in enumerate(globs):
        index.add(one, n)
    assert sorted(n for _, n in index.meeting(glob)) == [n for n, g in enumerate(globs) if witness(g, glob) is not None]


@SOME
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.sampled_from("abcdefgh"), max_size=3)))
def test_each_need_on_a_circle_is_in_one_that_is_told(needs: dict[str, list[str]]) -> None:
    needs = {name: [n for n in wanted if n != name and n in needs] for name, wanted in needs.items()}
    told = {edge for way in graph.circles(needs) for edge in pairwise(way)}
    reach = {name: {name} for name in needs}
    for _ in needs:
        for name in needs:
            reach[name] |= {far for n in needs[name] for far in reach[n]}
    assert told == {(name, need) for name in needs for need in needs[name] if name in reach[need]}
    assert (len(graph.order(needs)) == len(needs)) == (not told)


@SOME
@given(st.integers(1, 9), st.integers(0, 10**6))
def test_the_widest_set_is_the_widest(count: int, seed: int) -> None:
    source = random.Random(seed)
    needs = {str(n): [str(m) for m in range(n) if source.random() < 0.3] for n in range(count)}
    before = list(graph.ancestors(needs).values())
    sets = [s for s in range(1 << count) if not any(before[n] & s for n in range(count) if s >> n & 1)]
    assert graph.widest(needs) == max(s.bit_count() for s in sets)


def check_run(plan: Plan, run: Schedule, source: random.Random, fails: float) -> None:
    """Runs a schedule with durations and failures by chance, and holds its laws at each step."""
    tasks = {task.id: task for task in plan.tasks}
    folders = {module.name: module.folder for module in plan.modules}
    running: dict[str, float] = {}
    now, started = 0.0, set()
    while True:
        for name in run.pick(now, lambda _: "memory" if running and source.random() < 0.1 else ""):
            assert name not in started
            assert all(run.state(need) == "done" for need in tasks[name].needs)
            for other in running:
                mine, theirs = (writes(tasks[n], folders) for n in (name, other))
                assert not any(witness(a, b) for a in mine for b in theirs), (name, other)
                assert not set(run.frame.regions[run.frame.kinds[run.frame.ids.index(name)]]) & set(
                    run.frame.regions[run.frame.kinds[run.frame.ids.index(other)]]
                )
            started.add(name)
            running[name] = now + source.expovariate(1.0)
        assert len(running) <= run.slots
        why = {one.id for one in run.waiting(now)}
        assert why == {task.id for task in plan.tasks if run.state(task.id) in ("waiting", "blocked", "gated")}
        if not running:
            break
        name = min(running, key=lambda n: running[n])
        now = running.pop(name)
        if source.random() < fails:
            run.failed(name)
        else:
            run.done(name, now)
    assert run.over
    bad = {task.id for task in plan.tasks if run.state(task.id) in ("failed", "blocked")}
    for task in plan.tasks:
        blocked = any(need in bad for need in task.needs)
        assert (run.state(task.id) == "blocked") == blocked
        assert (task.id in started) == (not blocked)


@SOME
@given(SHAPES, st.integers(1, 6), st.sampled_from([0.0, 0.15]))
def test_a_schedule_keeps_apart_what_has_to_be_and_ends(
    shape: tuple[int, int, int, float], slots: int, fails: float
) -> None:
    plan, seconds = chance_plan(*shape, wide=0.3)
    packing = pack(plan, slots, seconds)
    check_run(plan, Schedule(frame_of(plan, packing), slots, seconds), random.Random(shape[2]), fails)
    bare = frame(plan.tasks, None, {t.id: writes(t, {m.name: m.folder for m in plan.modules}) for t in plan.tasks})
    check_run(plan, Schedule(bare, slots, seconds), random.Random(shape[2]), fails)


@SOME
@given(SHAPES, st.integers(1, 6))
def test_F21_a_simulation_is_within_its_bounds(shape: tuple[int, int, int, float], workers: int) -> None:
    plan, seconds = chance_plan(*shape, wide=0.2)
    made = frame_of(plan, pack(plan, workers, seconds))
    got = simulate(made, seconds, workers)
    assert set(got.starts) == set(got.ends) == set(seconds)
    assert got.peak <= workers
    assert bound(made, seconds, workers) * (1 - 1e-9) <= got.makespan <= sum(seconds.values()) * (1 + 1e-9)


@FEW
@given(SHAPES, st.integers(1, 10))
def test_packing_is_the_same_each_time_and_whole(shape: tuple[int, int, int, float], regions: int) -> None:
    plan, seconds = chance_plan(*shape)
    one, other = pack(plan, regions, seconds), pack(plan, regions, seconds)
    assert one == other
    assert sorted(one.of) == sorted(module.name for module in plan.modules)
    assert len(one.regions) == min(regions, len(plan.modules))
    assert len({region.name for region in one.regions}) == len(one.regions)
    assert one.makespan <= pack(plan, regions, seconds, search=False).makespan * 1.25


def test_nested_paths_are_packed_together() -> None:
    paths = ["src", "src/api", "Src/web", "srcs", "doc/a/b", "doc/a", "src-x"]
    modules = tuple(Module(f"m{n}", path) for n, path in enumerate(paths))
    tasks = tuple(Task(f"t{n}", "make", module=f"m{n}") for n in range(len(paths)))
    plan = Plan("", modules, tasks)
    assert groups(plan) == [["m0", "m1", "m2"], ["m3"], ["m4", "m5"], ["m6"]]
    of = pack(plan, 7).of
    assert of["m0"] == of["m1"] == of["m2"] and of["m4"] == of["m5"] and len(set(of.values())) == 4
    whole = Plan("", (*modules, Module("all", ".")), tasks)
    assert len(pack(whole, 7).regions) == 1


def test_a_wide_task_holds_each_region_that_it_writes_in() -> None:
    plan = Plan("", (Module("a", "src/a"), Module("b", "src/b"), Module("c", "src/c"), Module("d", "src/d")),
                (Task("one", "make", module="a", owns=("src/a/x.py", "src/b/*.py", "doc/x.md")),
                 Task("two", "make", module="b"), Task("three", "make", module="c"),
                 Task("four", "make", module="d", owns=("doc/",))))  # fmt: skip
    packing = pack(plan, 4)
    assert packing.held == {"one": ("a", "b"), "two": ("b",), "three": ("c",), "four": ("d",)}
    run = Schedule(frame_of(plan, packing), 4)
    assert run.pick(0) == ["one", "three"]
    assert {w.id: w.kind for w in run.waiting(0)} == {"two": "region", "four": "paths"}


@FEW
@given(SHAPES)
def test_F22_the_number_of_workers_is_the_least_that_is_near_the_best(shape: tuple[int, int, int, float]) -> None:
    plan, seconds = chance_plan(*shape)

    def frames(workers: int):  # type: ignore[no-untyped-def]
        return frame_of(plan, pack(plan, workers, seconds, search=False))

    advice = recommend(frames, seconds, len(groups(plan)), runs=8)
    assert advice == recommend(frames, seconds, len(groups(plan)), runs=8)
    needs = {task.id: task.needs for task in plan.tasks}
    assert advice.ceiling == min(graph.widest(needs), len(plan.modules))
    assert 1 <= advice.low <= advice.workers <= advice.high <= advice.ceiling
    means = {point.workers: point.mean for point in advice.points}
    assert means[advice.workers] <= 1.05 * min(means.values()) * (1 + 1e-9)
    samples = perturbed(seconds, 8)
    if advice.workers > 1:
        less = frames(advice.workers - 1)
        mean = sum(simulate(less, sample, advice.workers - 1, seconds).makespan for sample in samples) / 8
        assert mean > 1.05 * min(means.values()) * (1 - 1e-9)


# texts

WORDS_OF_SHELL = """make true exit 0 && || ; | ( ) { } ! ' " $( ` # \\ & > x=1 set -e if test ["""
PIECES = WORDS_OF_SHELL.split()
SHELL = st.lists(st.sampled_from(PIECES), max_size=14)
KEYS = st.sampled_from(["modules", "tasks", "id", "name", "needs", "check", "x"])
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@SOME
@given(SHELL.map(" ".join) | st.text(max_size=40))
def test_looking_into_a_check_never_raises(check: str) -> None:
    assert checks.fault(check) in ("", "it passes whatever the tree holds", "it fails whatever the tree holds")
    assert all(name and "/" not in name for name in checks.programs(check))


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",), exclude_characters="\0"), max_size=30)
LINE = WORDS.map(lambda text: " ".join(text.split()))
LISTS = st.lists(WORDS.filter(bool), max_size=4).map(tuple)
PACKETS = st.builds(
    Packet, st.sampled_from(["a", "b", "c", "d", "e"]), role=st.sampled_from([*ROLES, "", "Boss"]),
    class_=st.sampled_from([*CLASSES, ""]), model=st.sampled_from(["sonnet", "haiku", "", "glm-4"]),
    owns=st.lists(GLOBS, max_size=3).map(tuple), modifies=LISTS, reads=st.lists(GLOBS, max_size=2).map(tuple),
    registries=LISTS, depends_on=st.lists(st.sampled_from(["a", "b", "c", "zz"]), max_size=3).map(tuple),
    gate=WORDS, final_reply=WORDS, module=st.sampled_from(["core", "", "a # b"]), effort=st.sampled_from(["high", ""]),
    guard=st.booleans(), priority=st.integers(-5, 5), limits=st.builds(Limits, seconds=st.none() | st.just(5.0)),
    reply=st.none() | st.dictionaries(WORDS, WORDS, max_size=3), reviewers=st.none() | st.just(Gate(1, 2)),
    body=WORDS | st.just("## Contracts (frozen)\n### x\n" ),
)  # fmt: skip


@SOME
@given(PACKETS)
@example(Packet("a", owns=("c # d", "- e", " f", "'g'", "h\n"), gate="make # not a comment", body="\r\n---\n"))
def test_a_packet_is_read_as_it_was_written(packet: Packet) -> None:
    assert parse(write(packet)) == packet


@SOME
@given(st.lists(PACKETS, max_size=6), st.booleans())
def test_the_lint_is_total(packets: list[Packet], known: bool) -> None:
    around = Around(models=("sonnet",), providers={"sonnet": "x"}, decisions=(Decision("D1", ("**/*.py",)),),
                    rules={"R": None}, barriers=(Barrier("one", ("a", "q"), "b"),), bounds="1 h",
                    watchers=(Watcher("w", ("x",)),)) if known else Around()  # fmt: skip
    report = lint(packets, around)
    assert [check.name for check in report.checks] == list(CHECKS)
    assert report == lint(packets, around)
    ids = {packet.id for packet in packets} | {"q", "b", "a"}
    assert all(set(found.packets) <= ids and found.text for found in report.findings)


@SOME
@given(st.text(max_size=200) | VALUES.map(json.dumps))
def test_reading_a_plan_never_raises(reply: str) -> None:
    got = read(reply)
    assert (got.plan is None) == bool(got.problems) == bool(got.message)
