"""A whole run: forty tasks over sixteen modules by scripted agents, beside the simulator and a shell loop.

The graph, the lengths of the agents' turns and what they write are drawn once. Each run is the command `rw run`, in a
store of its own; a task's length is what its events say, from claim to end, and the simulator runs the same graph with
the same regions and those lengths. Overhead is that length without the agent's own turn, and without what a conflict or
a failed check made it do again. The peer is a shell loop over `git worktree` with the same agents and as many at once:
once with all merges at the end, once in waves, each from the merge of the one before. What does not merge is lost.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

import common
from ropewalk.core import events
from ropewalk.plan import document
from ropewalk.plan.packer import frame_of, pack
from ropewalk.plan.plan import Module, Plan, loads
from ropewalk.plan.simulate import simulate
from ropewalk.plan.task import Task
from ropewalk.run.planner import folders

MODULES, NOTES = 16, 6


def drawn(tasks: int, seed: int, scale: float) -> tuple[Plan, dict[str, float]]:
    """Gives a plan and the seconds of each agent's turn; six tasks write a line at the same place of one file."""
    source = random.Random(seed)
    made: list[Task] = []
    seconds: dict[str, float] = {}
    for n in range(tasks):
        name, module = f"t{n}", n % MODULES
        near = range(max(0, n - 20), n)
        needs = tuple(sorted({f"t{source.choice(near)}" for _ in range(source.choice((0, 0, 1, 1, 2))) if near}))
        seconds[name] = round(scale * source.uniform(0.5, 1.5), 2)
        path = f"m{module}/{name}.txt"
        read = "".join(f"test -s m{int(need[1:]) % MODULES}/{need}.txt && " for need in needs)
        steps: list[dict[str, str]] = [{"run": f"sleep {seconds[name]}"}, {"run": f"{read}echo {name} > {path}"}]
        if n % (tasks // NOTES) == 0:
            steps.insert(1, {"replace": "NOTES.md", "old": "# Notes\n", "new": f"# Notes\n- {name}\n"})
        script = msgspec.json.encode({"on_conflict": "both", "steps": steps}).decode()
        made.append(Task(name, f"{read}grep -qx {name} {path}", f"Do {name}.\n\n```script\n{script}\n```", needs=needs,
                         module=f"m{module}"))  # fmt: skip
    listed = tuple(Module(f"m{n}", f"m{n}") for n in range(MODULES))
    return Plan("forty tasks", listed, tuple(made)), seconds


def repository(folder: Path) -> None:
    """Makes the project that all of them work on."""
    folder.mkdir(parents=True)
    common.git(folder, "init", "-q", "-b", "main")
    for n in range(MODULES):
        (folder / f"m{n}").mkdir()
        (folder / f"m{n}" / "README").write_text(f"Module {n}\n")
    (folder / "NOTES.md").write_text("# Notes\n")
    common.git(folder, "add", ".")
    common.git(folder, "commit", "-qm", "Start")


def run(place: Path, plan: Plan, turns: dict[str, float], workers: int) -> dict[str, float]:
    """Runs the plan by the command, and gives its figures beside the simulator's."""
    repository(place / "project")
    written = document.of_plan(plan, document.Document(goal="forty tasks"))
    folders.save(str(place / "plan"), written)
    env = common.environment(XDG_DATA_HOME=str(place / "data"), ROPEWALK_AGENT="bench/run", ROPEWALK_CAGE="none")
    argv = [*common.rw_command(), "run", "--plan", str(place / "plan"), "--jobs", str(workers), "--yes", "--json"]
    began = time.time()
    done = subprocess.run(argv, cwd=place / "project", env=env, capture_output=True)
    wall = time.time() - began
    if done.returncode:
        raise SystemExit(f"the run ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    result = msgspec.json.decode(done.stdout)["result"]
    (log,) = place.glob("**/runs/*/events.jsonl")
    told = events.read(str(log))[0]
    starts = {e["task"]: e["at"] for e in reversed(told) if e["event"] == "task_started"}
    ends = {e["task"]: e["at"] for e in told if e["event"] == "task_ended"}
    took = {name: ends[name] - starts[name] for name in turns}
    again = {e["task"] for e in told if e["event"] == "attempted" and e.get("conflicts")}
    thought = loads(plan, None)
    packing = pack(plan, workers, thought)
    ideal = simulate(frame_of(plan, packing), took, workers, thought).makespan
    inside = max(ends.values()) - min(starts.values())
    extra = [took[name] - turns[name] for name in turns if name not in again]
    return {
        "wall": wall, "inside": inside, "simulated": ideal, "ratio": inside / ideal, "ratio_whole": wall / ideal,
        "overhead": common.median(extra), "overhead_p90": common.percentile(extra, 0.9), "landed": result["landed"],
        "conflicts": sum(task.get("conflicts", 0) for task in result["tasks"]), "turns": sum(turns.values()),
    }  # fmt: skip


LOOP = """\
work() {
  git worktree add -q -b "work/$1" "../trees/$1" main 2>/dev/null || return 0
  cd "../trees/$1" || return 1
  "$PYTHON" -m ropewalk.testing.agent --prompt "../../prompts/$1" >/dev/null 2>&1
  git add -A && git commit -qm "$1" >/dev/null
}
export -f work
for wave in "$@"; do
  printf '%s\\n' $wave | xargs -P "$JOBS" -I{} bash -c 'work {}'
  for name in $wave; do
    git merge -q --no-edit "work/$name" >/dev/null 2>&1 || { git merge --abort; echo "$name" >> ../lost; }
  done
done
"""


def waves(plan: Plan) -> list[str]:
    """Gives the tasks in waves: each only needs those of waves before it."""
    level: dict[str, int] = {}
    for task in plan.tasks:
        level[task.id] = 1 + max((level[need] for need in task.needs), default=-1)
    return [" ".join(name for name, at in level.items() if at == n) for n in range(max(level.values()) + 1)]


def shell(place: Path, plan: Plan, workers: int, rounds: list[str]) -> dict[str, float]:
    """Does the same by a shell loop, and gives how long it took, what did not merge, and which checks are red."""
    repository(place / "project")
    (place / "prompts").mkdir()
    (place / "trees").mkdir()
    for task in plan.tasks:
        (place / "prompts" / task.id).write_text(task.description)
    env = common.environment(PYTHON=sys.executable, JOBS=str(workers))
    began = time.time()
    subprocess.run(["bash", "-c", LOOP, "loop", *rounds], cwd=place / "project", env=env, check=True)
    wall = time.time() - began
    lost = (place / "lost").read_text().split() if (place / "lost").exists() else []
    checked = {
        task.id: subprocess.run(["sh", "-c", task.check], cwd=place / "project", capture_output=True)
        for task in plan.tasks
    }
    red = [name for name, done in checked.items() if done.returncode]
    noted = (place / "project" / "NOTES.md").read_text().count("- t")
    return {"wall": wall, "lost": len(lost), "red": len(red), "notes": noted}


def main() -> int:
    """Runs what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--scale", type=float, default=2.0, help="seconds of a middling turn (default: 2)")
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    counts = (2, 8) if asked.quick else (1, 2, 4, 8, 16)
    plan, turns = drawn(40, asked.seed, 0.4 if asked.quick else asked.scale)
    figures: dict[str, Any] = {"turns": sum(turns.values())}
    rows = []
    with common.folder() as folder:
        for workers in counts:
            common.progress(f"rw run with {workers} workers")
            found = run(folder / f"run{workers}", plan, turns, workers)
            figures[f"run_{workers}"] = found
            rows.append([workers, found["wall"], found["inside"], found["simulated"], found["ratio"],
                         found["ratio_whole"], found["overhead"], found["overhead_p90"], int(found["landed"]),
                         int(found["conflicts"])])  # fmt: skip
        common.table(
            f"Forty tasks, {sum(turns.values()):.0f} s of agents' turns",
            ["workers", "wall s", "first claim to last end", "simulator", "ratio", "ratio of the wall", "overhead s",
             "p90", "landed", "conflicts"], rows)  # fmt: skip
        peers = []
        for workers in (8,) if asked.quick else (4, 8, 16):
            for name, rounds in (("merges at the end", [" ".join(task.id for task in plan.tasks)]),
                                 ("in waves", waves(plan))):  # fmt: skip
                common.progress(f"shell loop, {name}, {workers} at once")
                got = shell(folder / f"shell{workers}-{len(rounds)}", plan, workers, rounds)
                figures[f"shell_{name.replace(' ', '_')}_{workers}"] = got
                peers.append([f"{workers}, {name}", got["wall"], int(got["lost"]), int(got["red"]),
                              f"{int(got['notes'])} of {NOTES + 1}"])  # fmt: skip
        common.table("The same by a shell loop over git worktree", ["at once", "wall s", "not merged", "checks red",
                     "notes kept"], peers)  # fmt: skip
    common.finish("run", figures, asked.json)
    return 0


if __name__ == "__main__":
    os.environ.pop("ROPEWALK_AGENT", None)
    sys.exit(main())
