"""Names on a board: which refs stand for a task, and what workers, attempts and reviewers are called."""

from __future__ import annotations

import os
import re

from ropewalk.core.errors import InvalidError

ROOT = "refs/swarm/"
SPECS, CLAIMS, RETURNS, VERDICTS = (ROOT + kind for kind in ("specs/", "claims/", "tasks/", "verdicts/"))
INTEGRATED, ARCHIVE = ROOT + "integrated/", ROOT + "archive/"
LAW, LOG = ROOT + "law", ROOT + "log"
OPEN, HELD, QUEUE, LOCKS = (ROOT + kind for kind in ("open/", "held/", "queue/", "locks/"))
RUNS, MEMORY = ROOT + "runs/", ROOT + "memory/"
WRITES = LOCKS + "writes/"

ARCHIVED = {CLAIMS: "claims", RETURNS: "tasks", VERDICTS: "verdicts", SPECS: "specs", INTEGRATED: "integrated"}
"""Are the kinds of refs that an archive keeps, with their folder in it."""

HEADS = "refs/heads/"

_PERSON = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_READABLE = re.compile(r"[^\x00-\x20\x7f~^:?*\[\\@\ud800-\udfff]{1,240}\Z")
_ATTEMPT = re.compile(r"att-[^\s\ud800-\udfff]+\Z")


def spec(task: str) -> str:
    """Gives the ref of a task's spec."""
    return SPECS + task


def claim(task: str) -> str:
    """Gives the ref of a task's claim."""
    return CLAIMS + task


def returned(task: str) -> str:
    """Gives the ref of a task's return."""
    return RETURNS + task


def verdict(task: str) -> str:
    """Gives the ref of a task's verdict."""
    return VERDICTS + task


def review(task: str, reviewer: str) -> str:
    """Gives the ref of a review."""
    return f"{VERDICTS}{task}@{reviewer}"


def integrated(task: str) -> str:
    """Gives the ref of a gate that fired."""
    return INTEGRATED + task


def opened(task: str) -> str:
    """Gives the ref by which an open task is found."""
    return OPEN + task


def run(name: str) -> str:
    """Gives the ref of a run's record."""
    return RUNS + name


def memory(module: str, run: str) -> str:
    """Gives the ref of what is remembered of a module since a run; without one what those of all runs begin with."""
    return f"{MEMORY}{module}/{run}"


def held(task: str) -> str:
    """Gives the ref under which a task's spec is held back from flockwork's workers."""
    return HELD + task


def lock(region: str) -> str:
    """Gives the ref of a busy region."""
    return f"{LOCKS}region/{region}"


def writes(task: str) -> str:
    """Gives the ref by which what a task writes is locked."""
    return WRITES + task


def landing_lock(target: str) -> str:
    """Gives the ref of the lease under which one worker lands on a target."""
    return f"{LOCKS}landing/{target}"


def archived(ref: str, attempt: str) -> str:
    """Gives where a live ref goes when its attempt is over and did not count."""
    for prefix, folder in ARCHIVED.items():
        if ref.startswith(prefix):
            return f"{ARCHIVE}{folder}/{ref[len(prefix) :]}@{attempt}"
    raise InvalidError(f"{ref!r} is not archived", ref=ref)


def archive_of(kind: str, task: str) -> str:
    """Gives the prefix of what an archive keeps of a task: `kind` is claims, tasks, verdicts, specs or integrated."""
    return f"{ARCHIVE}{kind}/{task}@"


def branch(target: str) -> str:
    """Gives the full name of a target branch."""
    return HEADS + target


def is_readable(task: str) -> bool:
    """Says whether a name on a board can be a task's: what flockwork takes, slashes among it, and no review."""
    return bool(_READABLE.match(task)) and not task.startswith(("/", "-")) and ".." not in task


def check_person(name: str, what: str = "a worker's name") -> str:
    """Gives a worker's or a reviewer's name back; `E_INVALID` unless it fits into a ref and an attempt's id."""
    if not _PERSON.match(name) or ".." in name or name.endswith((".", ".lock")):
        raise InvalidError(
            f"{name[:120]!r} is not {what}", hint="use letters, digits, '.', '_' and '-', at most 64", name=name[:200]
        )
    return name


def new_attempt(worker: str) -> str:
    """Gives a new attempt's id."""
    return f"att-{check_person(worker)}-{os.urandom(3).hex()}"


def is_attempt(text: str) -> bool:
    """Says whether a word is an attempt's id."""
    return bool(_ATTEMPT.match(text))


def worker_of(attempt: str) -> str:
    """Gives the worker of an attempt's id."""
    return attempt.removeprefix("att-").rsplit("-", 1)[0]
