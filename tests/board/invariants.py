"""Says whether the laws of a board hold, from nothing but what stock git says of a repository.

It shares no code with what it judges. By hand: `python tests/board/invariants.py REPOSITORY`; it prints each law that
is broken and ends with 1, or nothing and ends with 0.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SWARM = "refs/swarm/"
_ATTEMPT = re.compile(r"att-\S+\Z")


class Landing(NamedTuple):
    """Is a commit on a target that names the attempt which landed it."""

    commit: str
    subject: str
    attempt: str


class Board:
    """Is a board as git shows it: refs, the messages of its objects, and the lines of its targets."""

    def __init__(self, repository: Path | str) -> None:
        self.repository = str(repository)
        listed = self.git("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        self.refs = dict(line.rsplit(" ", 1) for line in listed)
        wanted = {oid for name, oid in self.refs.items() if name.startswith(SWARM)}
        self.commits = self._commits(wanted)
        self._lines: dict[str, list[str]] = {}

    def git(self, *words: str, stdin: bytes | None = None) -> str:
        """Gives what git prints; its failure is an error."""
        done = subprocess.run(["git", "--git-dir", self.repository, *words], input=stdin, capture_output=True,
                              timeout=600, check=False)  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"git {' '.join(words)}: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode("utf-8", "replace")

    def _commits(self, ids: Iterable[str]) -> dict[str, str]:
        listed = sorted(ids)
        feed = "".join(f"{oid}\n" for oid in listed).encode()
        done = subprocess.run(["git", "--git-dir", self.repository, "cat-file", "--batch"], input=feed,
                              capture_output=True, timeout=600, check=True)  # fmt: skip
        out, at, found = done.stdout, 0, {}
        for oid in listed:
            end = out.index(b"\n", at)
            words = out[at:end].split()
            at = end + 1
            if len(words) == 3:
                size = int(words[2])
                if words[1] == b"commit":
                    found[oid] = out[at : at + size].decode("utf-8", "replace")
                at += size + 1
        return found

    def below(self, kind: str) -> dict[str, str]:
        """Gives the ids of the refs of a kind, by what their names have behind it."""
        prefix = f"{SWARM}{kind}/"
        return {name[len(prefix) :]: oid for name, oid in self.refs.items() if name.startswith(prefix)}

    def message(self, oid: str | None) -> str:
        """Gives the message of an object, empty where there is none."""
        return self.commits.get(oid or "", "").partition("\n\n")[2]

    def field(self, oid: str | None, key: str) -> str:
        """Gives a field of an object's message, empty where there is none."""
        for line in self.message(oid).split("\n")[1:]:
            if line.startswith(f"{key}:"):
                return line[len(key) + 1 :].strip()
        return ""

    def attempt(self, claim: str | None) -> str:
        """Gives the attempt that a claim names by its last word."""
        words = self.message(claim).split()
        return words[-1] if words and _ATTEMPT.match(words[-1]) else ""

    def line(self, target: str) -> list[str]:
        """Gives the commits of a target, newest first; none where the branch is missing."""
        if target not in self._lines:
            head = self.refs.get(f"refs/heads/{target}")
            self._lines[target] = self.git("rev-list", head, "--").split() if head else []
        return self._lines[target]

    def landings(self, target: str) -> list[Landing]:
        """Gives the commits of a target that name an attempt."""
        head = self.refs.get(f"refs/heads/{target}")
        if not head:
            return []
        said = self.git("rev-list", "--format=%H%x00%s%x00%(trailers:key=Attempt,valueonly,separator=%x20)", head, "--")
        rows = [row.split("\0") for row in said.splitlines() if "\0" in row]
        return [Landing(*row) for row in rows if row[2].strip()]

    def changes(self, commit: str) -> bool:
        """Says whether a commit differs from the one before."""
        parents = self.git("rev-list", "--parents", "-1", commit, "--").split()[1:]
        if not parents:
            return True
        trees = self.git("rev-parse", f"{commit}^{{tree}}", f"{parents[0]}^{{tree}}").split()
        return trees[0] != trees[1]


def broken(repository: Path | str) -> list[str]:
    """Gives each law that does not hold, as a sentence that names the task; none when all is well."""
    board = Board(repository)
    found: list[str] = []
    for law in (_done, _once, _claims, _archives, _index, _regions, _paths):
        found += law(board)
    return found


def _tasks(board: Board) -> dict[str, str]:
    specs = {**board.below("held"), **board.below("specs")}
    return {task: oid for task, oid in specs.items() if "@" not in task}


def _target(board: Board, task: str, spec: str | None) -> str:
    head = board.message(spec).partition("\n\n")[2].partition("\n\n")[0]
    named = [line[7:].strip() for line in head.split("\n") if line.startswith("target:")]
    return named[0] if named else "main"


def _is_ours(board: Board, claim: str | None) -> bool:
    return bool(board.field(claim, "law"))


def _is_mixed(board: Board) -> bool:
    law = board.refs.get(f"{SWARM}law")
    return law is None or board.field(law, "mixed") == "yes"


def _verdicts(board: Board) -> dict[str, str]:
    return {task: oid for task, oid in board.below("verdicts").items() if "@" not in task}


def _done(board: Board) -> list[str]:
    """A task that is done has a claim, a return on the target that changes something, and a verdict of the claim's."""
    found = []
    claims, returns, specs = board.below("claims"), board.below("tasks"), _tasks(board)
    for task, verdict in _verdicts(board).items():
        fixed, attempt, claim = board.field(verdict, "fixed"), board.field(verdict, "attempt"), claims.get(task)
        if fixed not in ("true", "false"):
            found.append(f"{task}: its verdict says neither true nor false")
        if claim is None:
            found.append(f"{task}: it has a verdict and no claim")
        elif board.attempt(claim) != attempt:
            found.append(f"{task}: its verdict is of {attempt}, its claim of {board.attempt(claim)}")
        elif _is_ours(board, claim) and not board.field(claim, "closed"):
            found.append(f"{task}: it has a verdict, and its claim is not closed")
        returned = returns.get(task)
        if board.field(verdict, "landed") == "pending":
            continue
        if fixed == "false" and returned is not None and _is_ours(board, claim):
            found.append(f"{task}: it failed and has a return")
        if fixed != "true":
            continue
        if returned is None:
            found.append(f"{task}: it is done and has no return")
            continue
        target = _target(board, task, specs.get(task))
        if returned not in board.line(target):
            found.append(f"{task}: its return {returned} is not on {target}")
        elif board.field(verdict, "already") != "satisfied":
            if not board.changes(returned):
                found.append(f"{task}: its return {returned} changes nothing")
            # what others merged may have lost its trailers on the way
            merged = bool(board.field(verdict, "branch"))
            if _is_ours(board, claim) and not merged and attempt not in {o.attempt for o in board.landings(target)}:
                found.append(f"{task}: no commit on {target} is of {attempt}")
    for task in returns.keys() - _verdicts(board).keys():
        if _is_ours(board, claims.get(task)):
            found.append(f"{task}: it has a return and no verdict")
    return found


def _once(board: Board) -> list[str]:
    """A target has one commit of a task, and one more for each time that a done task was opened again."""
    found = []
    claims, verdicts = board.below("claims"), _verdicts(board)
    again: dict[str, int] = defaultdict(int)
    over = set()
    for name in board.below("archive/tasks"):
        task, _, attempt = name.rpartition("@")
        again[task] += 1
        over.add(attempt)
    true = {board.field(oid, "attempt") for oid in verdicts.values() if board.field(oid, "fixed") == "true"}
    targets = {_target(board, task, spec) for task, spec in _tasks(board).items()} | {"main"}
    for target in sorted(targets):
        landings = board.landings(target)
        by_task: dict[str, set[str]] = defaultdict(set)
        by_attempt: dict[str, int] = defaultdict(int)
        for one in landings:
            by_attempt[one.attempt] += 1
            if one.subject.startswith("fix "):
                by_task[one.subject[4:].strip()].add(one.commit)
        for task, commits in by_task.items():
            if len(commits) > 1 + again[task]:
                found.append(f"{task}: {target} has {len(commits)} commits of it")
        for attempt, count in by_attempt.items():
            if count > 1:
                found.append(f"{attempt}: {target} has {count} commits of it")
            holder = next((t for t, claim in claims.items() if board.attempt(claim) == attempt), None)
            ours = holder is not None and _is_ours(board, claims[holder])
            if attempt not in true and attempt not in over and (ours or not _is_mixed(board)):
                found.append(f"{attempt}: it landed on {target}, and no task is done by it")
    return found


def _claims(board: Board) -> list[str]:
    """A claim names its attempt and belongs to a task; no attempt has two, and none is closed without a verdict."""
    found = []
    tasks, verdicts = _tasks(board), _verdicts(board)
    holders: dict[str, list[str]] = defaultdict(list)
    for task, claim in board.below("claims").items():
        if not (attempt := board.attempt(claim)):
            found.append(f"{task}: its claim names no attempt")
            continue
        holders[attempt].append(task)
        if task not in tasks:
            found.append(f"{task}: it is claimed, and there is no such task")
        if board.field(claim, "closed") and task not in verdicts:
            found.append(f"{task}: its claim is closed, and it has no verdict")
        if task in board.below("held") and task not in board.below("specs"):
            found.append(f"{task}: it is claimed and held back")
    found += [f"{attempt}: it holds {' and '.join(sorted(held))}" for attempt, held in holders.items() if len(held) > 1]
    both = board.below("held").keys() & board.below("specs").keys()
    return found + [f"{task}: it is on the board and held back, too" for task in sorted(both)]


def _archives(board: Board) -> list[str]:
    """What is archived bears the attempt that it was of; an attempt is not both over and alive."""
    found = []
    for name, oid in board.below("archive/claims").items():
        task, _, attempt = name.rpartition("@")
        if not task or not _ATTEMPT.match(attempt):
            found.append(f"{name}: it is archived without its attempt")
        elif board.attempt(oid) != attempt:
            found.append(f"{name}: the archived claim is of {board.attempt(oid) or 'nobody'}")
    live = {board.attempt(claim) for claim in board.below("claims").values()}
    over = {name.rpartition("@")[2] for name in board.below("archive/claims")}
    return found + [f"{attempt}: it is archived and holds a claim" for attempt in sorted(live & over)]


def _index(board: Board) -> list[str]:
    """The index of open tasks has those that have no verdict, or wait to be merged by others, and each with its spec.

    Where flockwork's workers may run it can lag behind them: a task that they added or closed is no break.
    """
    found = []
    tasks, opened, claims = _tasks(board), board.below("open"), board.below("claims")
    verdicts = {task: oid for task, oid in _verdicts(board).items() if board.field(oid, "landed") != "pending"}
    for task, spec in opened.items():
        if task not in tasks:
            found.append(f"{task}: the index has it, and there is no such task")
        elif spec != tasks[task]:
            found.append(f"{task}: the index has another spec of it")
        elif task in verdicts and (_is_ours(board, claims.get(task)) or not _is_mixed(board)):
            found.append(f"{task}: the index has it, and it is closed")
    if not _is_mixed(board):
        missing = tasks.keys() - verdicts.keys() - opened.keys()
        found += [f"{task}: it is open, and the index does not have it" for task in sorted(missing)]
    return found


def _regions(board: Board) -> list[str]:
    """A region is locked by a claim that is held, and a task that we hold has its region locked."""
    found = []
    claims, verdicts, locks = board.below("claims"), _verdicts(board), board.below("locks/region")
    for region, oid in locks.items():
        task, attempt = board.field(oid, "task"), board.field(oid, "attempt")
        if task in verdicts or task not in claims or board.attempt(claims[task]) != attempt:
            found.append(f"region {region}: it is locked by {attempt} for {task}, which does not hold it")
    for task, spec in _tasks(board).items():
        head = board.message(spec).partition("\n\n")[2].partition("\n\n")[0]
        region = next((line[7:].strip() for line in head.split("\n") if line.startswith("region:")), "")
        claim = claims.get(task)
        if not region or claim is None or task in verdicts or not _is_ours(board, claim):
            continue
        if board.field(locks.get(region), "attempt") != board.attempt(claim):
            found.append(f"{task}: it is held, and its region {region} is not locked for it")
    return found


def _paths(board: Board) -> list[str]:
    """What a task writes is locked by the claim that holds it, and no glob of one branch by two of them."""
    found, seen = [], dict[str, str]()
    claims, verdicts, locks = board.below("claims"), _verdicts(board), board.below("locks/writes")
    for task, oid in locks.items():
        attempt, target = board.field(oid, "attempt"), board.field(oid, "target")
        if task in verdicts or task not in claims or board.attempt(claims[task]) != attempt:
            found.append(f"{task}: its paths are locked by {attempt}, which does not hold it")
        for line in board.message(oid).split("\n"):
            if line.startswith("writes: ") and seen.setdefault(f"{target} {line}", task) != task:
                found.append(f"{task}: {line[8:]} is locked for {seen[f'{target} {line}']}, too")
    for task, spec in _tasks(board).items():
        head = board.message(spec).partition("\n\n")[2].partition("\n\n")[0]
        says = any(line.startswith(("owns:", "modifies:")) for line in head.split("\n"))
        claim = claims.get(task)
        if says and claim is not None and task not in verdicts and _is_ours(board, claim) and task not in locks:
            found.append(f"{task}: it is held, and what it writes is not locked")
    return found


if __name__ == "__main__":
    problems = broken(sys.argv[1])
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)
