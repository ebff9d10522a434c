"""A whole run on a stranger's repository: its tasks are real commits, its checks the tests that they brought.

Every check fails before the commit, also where only its tests are there (the agent's script says so, and fails
otherwise), and passes on the tree that lands. What the run makes is the tree that the project's own history has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.strangers import build, commits
from tests.strangers.commits import Stranger

FULL = bool(os.environ.get("RWTEST_FULL"))


@pytest.mark.compat
def test_a_run_makes_the_real_commits_of_a_stranger_s_repository(clean: dict[str, str], tmp_path: Path) -> None:
    one = strange(clean, tmp_path)
    todo = [{**task, "script": {"steps": commits.script(commit)}}
            for task, commit in zip(commits.tasks(one.commits), one.commits, strict=True)]  # fmt: skip
    begun = time.monotonic()
    result = run(one, clean, tmp_path, todo, {"ROPEWALK_CAGE": "none"})
    holds(one, result)
    whole_suite(one, result["branch"], tmp_path)
    noted(result, "scripted", time.monotonic() - begun)


def strange(clean: dict[str, str], folder: Path) -> Stranger:
    """Gives the stranger's repository, with work of its user's in it that is in no commit."""
    try:
        archives = commits.fetch(folder / "fetched")
    except build.Unreachable as error:
        if FULL or os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no registry in reach: {error}")
    made = Stranger(folder, archives, clean, whole=FULL)
    assert len(made.commits) >= 12 and all(one.tests for one in made.commits)
    (made.home / "README.rst").write_text("half a thought\n")
    (made.home / "notes.txt").write_text("of its user\n")
    return made


def run(one: Stranger, env: dict[str, str], folder: Path, todo: list[dict[str, Any]], more: dict[str, str],
        *words: str) -> dict[str, Any]:  # fmt: skip
    """Runs tasks on the repository by the real command, gives what came of it, and holds the user's checkout."""
    (folder / "tasks.json").write_bytes(msgspec.json.encode({"tasks": todo}))
    before = commits.snapshot(one.home)
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk.cli.main", "run", "--tasks", str(folder / "tasks.json"), "--jobs", "4",
         "--json", *words], cwd=one.home, capture_output=True, timeout=900, stdin=subprocess.DEVNULL,
        env={**{k: v for k, v in env.items() if not k.startswith("GIT_")}, "XDG_DATA_HOME": str(folder / "data"),
             "ROPEWALK_AGENT": "person/me", **more},
    )  # fmt: skip
    assert b"Traceback" not in done.stderr, done.stderr.decode()[-3000:]
    envelope = msgspec.json.decode(done.stdout)
    assert done.returncode == 0, (envelope.get("error"), envelope.get("result"), done.stderr.decode()[-2000:])
    assert commits.snapshot(one.home) == before
    result: dict[str, Any] = envelope["result"]
    return result


def holds(one: Stranger, result: dict[str, Any]) -> None:
    """Holds what a run made against the project's own history: its tree, and a commit for each of its commits."""
    branch = result["branch"]
    assert (result["state"], result["landed"], result["failed"]) == ("done", len(one.commits), 0)
    assert one.git("rev-parse", f"{branch}^{{tree}}").strip() == one.tree, one.git(
        "diff", "--stat", one.tree, branch, folder=one.home, GIT_ALTERNATE_OBJECT_DIRECTORIES=f"{one.history}/objects"
    )
    told = one.git("log", "--first-parent", "--format=%an%x00%ae%x00%s%x00%B%x01", f"{one.base}..{branch}")
    rows = [row.strip("\n").split("\0") for row in told.split("\1") if row.strip()]
    assert sorted(row[2] for row in rows) == sorted(commit.subject for commit in one.commits)
    place = {row[2]: number for number, row in enumerate(reversed(rows))}
    waits = commits.needs(one.commits)
    by_id = {commit.id: commit for commit in one.commits}
    for name, earlier in waits.items():
        assert all(place[by_id[need].subject] < place[by_id[name].subject] for need in earlier)
    for author, address, subject, body in rows:
        (commit,) = [c for c in one.commits if c.subject == subject]
        assert f"\nTask: {result['id']}.{commit.id}\n" in f"{body}\n" and "\nAttempt: " in body, body
        assert author and author != "me" and "@" in address, (author, address)


def whole_suite(one: Stranger, branch: str, folder: Path) -> None:
    """Runs all tests of the files that the commits touched, or the whole project's, as it was and on a branch.

    What failed before for want of the parts that the small form leaves out may fail again, and nothing else.
    """
    modules = sorted({name.rpartition(".")[0].rpartition(".")[0] for c in one.commits for name in c.tests})
    before, ran_before = suite(one, one.base, folder / "before", modules)
    after, ran = suite(one, branch, folder / "after", modules)
    assert after <= before and ran >= ran_before > 150, (after - before, ran, ran_before)


def suite(one: Stranger, rev: str, there: Path, modules: list[str]) -> tuple[set[str], int]:
    """Gives which tests fail on a revision, and how many there were."""
    one.git("clone", "-q", "--no-checkout", ".", str(there))
    one.git("checkout", "-q", rev, folder=there)
    done = subprocess.run(["sh", f"{commits.KIT}/check", *([] if FULL else modules)], cwd=there, env=one.env,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=3600)  # fmt: skip
    said = done.stderr.decode("utf-8", "replace")
    ran = re.search(r"^Ran (\d+) tests", said, re.MULTILINE)
    assert ran is not None, said[-3000:]
    return set(re.findall(r"^(?:FAIL|ERROR): (\S+ \(\S+\))", said, re.MULTILINE)), int(ran[1])


def noted(result: dict[str, Any], how: str, seconds: float) -> None:
    """Writes a run's figures down where the caller asked for them."""
    if record := os.environ.get("RWTEST_STRANGE"):
        turns = sum(task.get("turns", 0) for task in result["tasks"])
        row = {"how": how, "tasks": len(result["tasks"]), "seconds": round(seconds, 1), "run": result.get("seconds"),
               "turns": turns, "repairs": turns - len(result["tasks"])}  # fmt: skip
        with open(record, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
