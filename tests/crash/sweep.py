"""The sweep: an operation is struck at a point, and what follows is held against what is promised.

By hand, for one operation, some of its points, or one point whose folder is kept:

```
python -m tests.crash.sweep land                                    # its points, counted by process
python -m tests.crash.sweep land --kind kill --most 10
python -m tests.crash.sweep land --kind error=EIO --point rw:fdatasync:1 --keep
```
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .boards import ALL
from .kit import AGENT, OTHER, Ids, ask, git, lines_of, must, place, prepare, put, refs_of, run_words, sound
from .scenarios import Scenario
from .tracing import Point, Struck, Subject, environment, numbered_git, sample, strike, traced

KINDS = {"kill": "signal=KILL", "EIO": "error=EIO", "ENOSPC": "error=ENOSPC", "EIO for good": "error=EIO+",
         "ENOSPC for good": "error=ENOSPC+"}  # fmt: skip
SEED = int(os.environ.get("RWTEST_SWEEP_SEED", "1"))
TYPED = {"E_IO", "E_NO_SPACE", "E_REMOTE"}
"""The codes with which a command may answer a strike: it was the disk, or git on the other side of a transfer."""
TRIES = 3
_HANG_SECONDS = 240


class Template(NamedTuple):
    """Is a prepared folder of a scenario, its ids, and all its points."""

    folder: Path
    ids: Ids
    points: list[Point]
    gits: Path


class Failure(NamedTuple):
    """Is a point at which something that is promised did not hold, and what."""

    operation: str
    kind: str
    point: Point
    words: str


def words_of(scenario: Scenario, folder: Path, ids: Ids) -> list[str]:
    """Gives a scenario's command line."""
    first, *rest = scenario.words(folder, ids)
    named = ["--store", str(folder / scenario.store), "--as", AGENT]
    return [first, *named, *rest] if first == "mcp" else [first, *rest, *named]


def subject(scenario: Scenario, folder: Path, made: Template) -> Subject:
    stdin = scenario.stdin(folder, made.ids) if scenario.stdin else None
    return Subject(words_of(scenario, folder, made.ids), folder, environment(folder / "home"), made.gits, stdin)


def template(base: Path, scenario: Scenario) -> Template:
    """Gives a scenario's prepared folder below `base`, made and traced by whoever of several processes asks first."""
    number = ALL.index(scenario)
    base.mkdir(parents=True, exist_ok=True)
    gits = numbered_git(base / "gits")
    with open(base / f"{number}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder, noted = base / f"{number}", base / f"{number}.json"
        if not noted.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            prepare(folder)
            ids = json.loads((folder / "ids.json").read_text())
            if scenario.more:
                scenario.more(folder, ids)
            made = Template(folder, ids, [], gits)
            copy = place(folder, base / f"{number}.traced")
            found = [step.point for step in traced(subject(scenario, copy, made))]
            assert scenario.done(copy, ids), f"{scenario.name} did not do its work"
            shutil.rmtree(copy)
            noted.write_text(json.dumps(found))
        ids = json.loads((folder / "ids.json").read_text())
        return Template(folder, ids, [Point(*p) for p in json.loads(noted.read_text())], gits)


def chosen(made: Template, most: int) -> list[Point]:
    """Gives the points to try: all, or a sample by the seed."""
    return sample(made.points, most, SEED)


def tried(scenario: Scenario, made: Template, kind: str, point: Point, work: Path) -> Failure | None:
    """Strikes an operation at a point, checks, and notes the outcome for the table; gives what did not hold."""
    failure = None
    try:
        with _bounded():
            attack(scenario, made, kind, point, work)
    except Exception as error:  # whatever it is, it is this point's outcome
        where = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__} in {where.name}, line {where.lineno}: {str(error)[:1500]}"
        failure = Failure(scenario.name, kind, point, words)
    results = os.environ.get("RWTEST_SWEEP_RESULTS")
    if results:
        row = {"kind": kind, "operation": scenario.name, "points": len(made.points), "point": list(point),
               "seed": SEED, "failed": failure is not None}  # fmt: skip
        with open(results, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return failure


@contextmanager
def _bounded() -> Iterator[None]:
    """Ends a check that hangs."""

    def late(*_: object) -> None:
        raise TimeoutError("a check did not end")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attack(scenario: Scenario, made: Template, kind: str, point: Point, work: Path) -> None:
    """Strikes a fresh copy of a scenario at a point and holds what follows against its promises."""
    for _ in range(TRIES):
        shutil.rmtree(work, ignore_errors=True)
        folder = place(made.folder, work)
        struck = strike(subject(scenario, folder, made), point, KINDS[kind])
        if struck.met:
            break
    assert struck.met, f"{scenario.name} did not come to {point}"
    assert b"Traceback" not in struck.err, struck.err.decode()
    assert kind != "kill" or struck.killed == (point.process == "rw"), struck
    # a disk that takes no writes for good takes the answer neither: then the exit code tells
    mute = kind.endswith("for good") and point.process == "rw" and point.call == "write"
    mute = mute and (not struck.out or (scenario.stdin is not None and struck.code == 7))
    assert not mute or struck.code == 7, struck
    if not mute:
        _check_answers(scenario, struck)
    _check_after(scenario, made, folder, struck)


def _answers(scenario: Scenario, struck: Struck) -> list[dict[str, Any]]:
    """Gives the envelopes a command or a server answered with."""
    lines = lines_of(struck.out)
    if scenario.stdin is None:
        return lines
    return [e["result"]["structuredContent"] for e in lines if "structuredContent" in e.get("result", {})]


def _check_answers(scenario: Scenario, struck: Struck) -> None:
    """Checks that a command that was not killed answered, with the result or a typed error."""
    answers = _answers(scenario, struck)
    wanted = 1 if scenario.stdin is None else 2
    assert struck.killed or len(answers) == wanted, struck
    for envelope in answers:
        if not envelope["ok"]:
            error = envelope["error"]
            assert error["code"] in TYPED and error["hint"], envelope
            assert scenario.stdin is not None or struck.code == error["exit"], (struck.code, envelope)


def _check_after(scenario: Scenario, made: Template, folder: Path, struck: Struck) -> None:
    answers = _answers(scenario, struck)
    if answers and all(e["ok"] for e in answers) and (len(answers) == 2 or scenario.stdin is None):
        assert scenario.done(folder, made.ids), f"the result was acknowledged and is not there: {struck}"
    if (folder / "store" / "poisoned").exists():
        # a sync that failed is not tried again: nobody writes until a repair
        refused = ask(folder, "commit", agent=OTHER, message="try", changes=put("try.txt", "t\n"))
        assert not refused["ok"] and refused["error"]["code"] == "E_IO", refused
        assert "repair" in refused["error"]["hint"], refused
        assert must(folder, "repair")["left"] == []
    else:
        scenario.done(folder, made.ids)
    if not scenario.first:
        next_command(folder)
    _run_again(scenario, made, folder)
    if scenario.first:
        next_command(folder)
    sound(folder)
    left = [str(p) for p in (folder / "store" / "repo.git").rglob("*.lock")]
    assert not left, left


def _run_again(scenario: Scenario, made: Template, folder: Path) -> None:
    done = scenario.done(folder, made.ids)
    stdin = scenario.stdin(folder, made.ids) if scenario.stdin else None
    words = words_of(scenario, folder, made.ids)
    for lock in (folder / "dest.git").rglob("*.lock"):
        # somebody else's repository, in which a git was killed: its lock is named, and is its owner's to remove
        answer = run_words(folder, words)[-1]
        named = answer["ok"] or (answer["error"]["code"], answer["error"]["details"]["reason"]) == (
            "E_REMOTE",
            "locked",
        )
        assert named, answer
        lock.unlink()
    for envelope in run_words(folder, words, stdin):
        ok = envelope.get("ok", "result" in envelope)
        assert ok or (done and envelope["error"]["code"] in scenario.again), envelope
    assert scenario.done(folder, made.ids), "the work was not done by the same command, sent again"


def next_command(folder: Path) -> None:
    """Lets somebody else write, and checks that it works at once, and that nothing acknowledged before is lost."""
    must(folder, "commit", agent=OTHER, message="next", changes=put("d/next.txt", "next\n"), advance="main")
    assert must(folder, "cat", rev="main", path="d/first.txt")["content"] == "1\n"
    assert must(folder, "cat", rev="main", path="d/next.txt")["content"] == "next\n"
    shown = git(folder, "--git-dir=store/repo.git", "rev-parse", "refs/heads/main").strip()
    assert shown == refs_of(folder)["main"], "repo.git does not show what is true"
    sound(folder)


def main(argv: list[str]) -> int:
    """Runs a part of the sweep and gives 1 when something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.sweep", description="a part of the sweep")
    parser.add_argument("operation", help="its name, or all")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="what happens at the points")
    parser.add_argument("--most", type=int, default=1000, help="how many points of an operation at most")
    parser.add_argument("--point", action="append", help="one point, as rw:fdatasync:1")
    parser.add_argument("--children", action="store_true", help="the points of git processes alone")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the last point")
    asked = parser.parse_args(argv)
    base = Path(tempfile.mkdtemp(prefix="sweep-"))
    failed = 0
    try:
        for scenario in ALL:
            if asked.operation not in ("all", scenario.name):
                continue
            made = template(base, scenario)
            by = Counter(p.process for p in made.points)
            print(f"{scenario.name}: {len(made.points)} points: {dict(by)}", flush=True)
            wanted = [p for p in made.points if not asked.point or str(p) in asked.point]
            wanted = [p for p in wanted if p.process != "rw" or not asked.children]
            for kind in asked.kind or ():
                found = sample(wanted, asked.most, SEED)
                started = time.monotonic()
                failures = [tried(scenario, made, kind, p, base / "work") for p in found]
                bad = [f for f in failures if f is not None]
                spent = time.monotonic() - started
                print(f"  {kind}: {len(found)} tried, {len(bad)} failed, {spent / max(1, len(found)):.2f} s each")
                for failure in bad:
                    print(f"    {failure.point}: {failure.words}", flush=True)
                failed += len(bad)
    finally:
        if asked.keep:
            print(f"kept: {base}/work")
        else:
            shutil.rmtree(base)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
