"""Bringing a run of another program into the store: its summary and files below `runs`, its endings as lanes.

A lane that is there stays as it is, so that the same folder may be brought in again, also when more was added to it.
"""

from __future__ import annotations

import os
import re
from typing import Any

import msgspec
from blake3 import blake3

from ropewalk.core import durable
from ropewalk.core.errors import InvalidError, NotFoundError, os_error
from ropewalk.lane import journal
from ropewalk.lane.collect import fields_of
from ropewalk.lane.journal import Ingredients, Record, Result
from ropewalk.run import foreign, report
from ropewalk.run.figures import Origin, Summary, TaskReport, TaskState
from ropewalk.run.foreign import Attempt, Foreign, Task
from ropewalk.store.store import Store

FOLDER = "source"
"""Is the folder below a run's with the files it was brought from, as they were."""


class Brought(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what was brought in of one run, and how many of its lanes were not there before."""

    id: str
    name: str
    origin: Origin
    tasks: int
    lanes: int
    new: int


def bring(store: Store, path: str, actor: str) -> list[Brought]:
    """Brings in the runs at a place; `E_INVALID` where there is none."""
    if not os.path.isdir(path):
        raise InvalidError(f"there is no folder {path}", path=path)
    found = [one for place in foreign.found_in(path) for one in _read(place)]
    if not found:
        raise InvalidError(
            f"{path} holds no run", path=path,
            hint="a run's folder has manifest.json, journal.jsonl, history.jsonl, or agent-ID.jsonl",
        )  # fmt: skip
    return [_bring(store, one, place, actor) for one, place in found]


def _read(place: str) -> list[tuple[Foreign, str]]:
    try:
        return [(one, place) for one in foreign.read(place)]
    except OSError as error:
        raise os_error(error, "reading a run") from None


def _bring(store: Store, run: Foreign, place: str, actor: str) -> Brought:
    digest = blake3(run.identity.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    name = re.sub(r"[^a-z0-9-]+", "-", run.name.lower()).strip("-")[:60] or "run"
    run_id = f"{name}-{digest}"
    ended = [one for task in run.tasks for one in task.attempts]
    origin = Origin(
        run.source, run.name, os.path.realpath(place), len(ended), list(run.missing), list(run.bad), list(run.notes),
        _by(run.findings, "status"), _by(run.findings, "severity"), run.dollars, run.mark,
    )  # fmt: skip
    if run.source == "history" and _is_told(store, run_id):
        return Brought(run_id, run.name, origin, len(run.tasks), 0, 0)  # its folder told more than the archive does
    summary = Summary(
        run_id, "", run.base, "", "imported", 0, sum(task.state == "failed" for task in run.tasks), 0, 0, run.seconds,
        0.0, [_report(task) for task in run.tasks], run.began, usage=_sum(run.tasks), mode="imported", by=actor,
        imported=origin,
    )  # fmt: skip
    try:
        durable.make_folders(report.folder(store.layout, run_id))
        _keep(run, place, os.path.join(report.folder(store.layout, run_id), FOLDER))
        if run.findings:
            report.write(store.layout, run_id, "findings.json", list(run.findings))
        report.write(store.layout, run_id, "summary.json", summary)
    except OSError as error:
        raise os_error(error, "bringing in a run") from None
    new = sum(_enter(store, run_id, run, task, one) for task in run.tasks for one in task.attempts)
    return Brought(run_id, run.name, origin, len(run.tasks), len(ended), new)


def _is_told(store: Store, run_id: str) -> bool:
    try:
        found = report.load(store.layout, run_id)
    except NotFoundError:
        return False
    return found.imported is not None and found.imported.source != "history"


def _keep(run: Foreign, place: str, folder: str) -> None:
    """Copies the files of a run as they are."""
    for name in run.files:
        with open(os.open(os.path.join(place, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            data = file.read(foreign.LARGEST)
        os.makedirs(folder, exist_ok=True)  # the summary is written beside it, which makes its name durable
        durable.replace(os.path.join(folder, name), data)


def _enter(store: Store, run_id: str, run: Foreign, task: Task, one: Attempt) -> bool:
    """Notes an ending as a lane, unless it is there."""
    what = Ingredients(
        one.harness or "unknown", "", "", one.model, "", task.effort, task.prompt, run.base, "none", "", "unknown",
        options=(run.source, one.key),
    )  # fmt: skip
    lane = f"{run_id}/{task.id}/{one.number}"
    record = Record(lane, journal.key(what), run_id, task.id, one.number, f"{one.harness or 'unknown'}/{task.id}"[:100],
                    what, "", "", one.began, 0.0, "", session=one.session, imported=run.source)  # fmt: skip
    result = Result(
        "done" if one.ok else "failed", one.reason, one.text, one.seconds or 0.0, one.tokens, one.dollars, one.mark,
        one.turns, 0, "none", one.code, one.session, one.denied, reply=fields_of(one.text),
    )  # fmt: skip
    return journal.enter(store, record, result, int(one.began + (one.seconds or 0)) if one.began else 0)


def _report(task: Task) -> TaskReport:
    states: dict[str, TaskState] = {"done": "done", "failed": "failed"}
    return TaskReport(
        task.id, states.get(task.state, "unknown"), reason=task.reason, turns=sum(one.turns for one in task.attempts),
        seconds=task.seconds, usage=task.usage, attempts=len(task.attempts), harness=task.harness, model=task.model,
        needs=task.needs, began=min((one.began for one in task.attempts if one.began), default=0),
    )  # fmt: skip


def _sum(tasks: tuple[Task, ...]) -> dict[str, int]:
    total: dict[str, int] = {}
    for task in tasks:
        for name, count in task.usage.items():
            total[name] = total.get(name, 0) + count
    return total


def _by(findings: tuple[dict[str, Any], ...], key: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in findings:
        name = str(one.get(key) or "unknown")
        counts[name] = counts.get(name, 0) + 1
    return counts
