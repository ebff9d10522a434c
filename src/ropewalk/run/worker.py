"""One task of a run: a workspace, an agent in it, its check, its land; conflicts go back to the same agent."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import CheckFailedError, ConflictError, RopewalkError
from ropewalk.lane import journal, lanes
from ropewalk.lane.adapter import Adapter, Event
from ropewalk.lane.lanes import Outcome
from ropewalk.run import turn as turns
from ropewalk.run.lander import Lander
from ropewalk.run.report import TaskReport
from ropewalk.run.tasks import Task
from ropewalk.run.turn import Before, Turn, Ways
from ropewalk.store.store import Store
from ropewalk.workspace import capture, checkout, landing, move, removal, snapshot, state
from ropewalk.workspace.landing import Wish

MAX_TURNS, MAX_DEATHS = 3, 2
SNAPSHOT_SECONDS = 300.0
"""How often what an agent has done so far is kept while it works."""


class Settings(NamedTuple):
    """Is what all tasks of a run share: `ref` is the full name of the ref they land on, `folder` the run's."""

    run: str
    ref: str
    folder: str
    data_home: str
    caller: Mapping[str, str]
    harness: Adapter
    lander: Lander
    check: str | None
    seconds: float
    check_seconds: float
    keep: bool = False
    ways: Ways = Ways()
    replay: bool = False
    sample: int = 0


class _Failed(Exception):
    """The task failed by merit, or can't go on; says why."""


class _Stopped(Exception):
    pass


class Worker:
    """Does tasks one after the other with a store of its own; used by one thread."""

    def __init__(self, root: str, settings: Settings, stop: threading.Event, tell: Callable[..., object]) -> None:
        self.store = Store(root)
        self.settings, self.stop, self.tell = settings, stop, tell

    def close(self) -> None:
        """Closes the store."""
        self.store.close()

    def work(self, task: Task) -> TaskReport:
        """Does a task and gives what became of it; every failure that is typed is in the report."""
        began = clock.monotonic()
        job = _Job(self, task)
        landed: str | None = None
        try:
            landed = job.run()
            how, reason = "landed", ""
        except _Stopped:
            how, reason = "stopped", "the run was stopped"
        except _Failed as failure:
            how, reason = "failed", str(failure)
        except RopewalkError as error:
            how, reason = "failed", f"{error.code} {error.message}"
        kept = job.tidy(how == "landed")
        self.store.warnings.clear()
        return TaskReport(
            task.id, how, job.agent, reason, landed, job.turns, job.deaths, job.conflicts,
            round(clock.monotonic() - began, 3), job.usage, kept, job.cached,
        )  # fmt: skip


class _Job:
    def __init__(self, worker: Worker, task: Task) -> None:
        self.worker, self.task = worker, task
        self.store, self.settings = worker.store, worker.settings
        self.agent = f"{self.settings.harness.family}/{task.id.lower()}"
        self.name = f"{self.settings.run}-{task.id}"[:100]
        self.turns = self.deaths = self.conflicts = 0
        self.usage: dict[str, int] = {}
        # one key for all tries of the task's land: however a try ends, the task lands once
        self.key = str(uuid.uuid4())
        self._before: Before | None = None
        self._last = ""
        self.cached = ""

    def run(self) -> str:
        if self.worker.stop.is_set():
            raise _Stopped
        self._tell("task_started", agent=self.agent)
        self._create()
        if self.settings.replay and self._replayed():
            try:
                return self._land()
            except ConflictError:
                self._create_anew()  # others landed on the same lines: the agent does it itself
        report: dict[str, Any] | None = None
        while True:
            self.turns += 1
            self._agent(report)
            try:
                return self._land()
            except ConflictError as error:
                self.conflicts += 1
                paths = [f["path"] for f in error.details.get("report", {}).get("files", [])]
                self._tell("conflict", paths=paths or error.details.get("unresolved", []), turn=self.turns)
                if self.turns >= MAX_TURNS:
                    raise _Failed(f"still in conflict after {self.turns} turns: {error.message}") from None
                report = self._show_conflict(error)

    def _create(self) -> None:
        head = self.store.ref(self.settings.ref)
        assert head is not None
        path = checkout.default_path(self.store, self.settings.data_home, self.name)
        asked = checkout.Asked(self.name, self.agent, head, self.settings.ref, path, shared=self._folder())
        checkout.create(self.store, asked)

    def _create_anew(self) -> None:
        ws = state.need(self.store, self.name)
        with state.held(self.store, self.name):
            removal.delete(self.store, ws, self.agent, force=True, bin=self._folder("trash"))
        self._create()

    def _replayed(self) -> bool:
        """Puts the result of an unchanged task into the workspace, if the journal has one that passed; says so."""
        settings = self.settings
        one = self._turn(0, self.task.prompt, None)
        hashed, what = lanes.key(turns.wish(self.store, settings.harness, settings.caller, settings.ways, one))
        found = journal.replay(self.store, hashed)
        if found is None or found.result is None or not found.result.changeset:
            return False
        tree = self.store.objects.commit(found.result.changeset).tree
        ws = state.need(self.store, self.name)
        with state.held(self.store, self.name):
            self.store.objects.take_new()
            move.bring(self.store, ws, capture.capture(self.store, ws), tree, ws.base)
        journal.begin(self.store, journal.cached(one.id, hashed, what, found, ws.path, settings.run))
        journal.finish(self.store, one.id, msgspec.structs.replace(found.result, cached_from=found.record.lane))
        self.cached = found.record.lane
        self._tell("cached", lane=found.record.lane)
        return True

    def _folder(self, *parts: str) -> str:
        """Gives a folder of what belongs to workspaces of the store."""
        return os.path.join(self.settings.data_home, "ropewalk", self.store.format.id, *parts)

    def _keep(self, why: str) -> None:
        """Keeps what the workspace holds, in whatever state it is."""
        try:
            snapshot.take_held(self.store, self.name, self.agent, why)
        except RopewalkError as error:
            self._tell("snapshot_failed", reason=f"{error.code} {error.message}")

    def _keep_now_and_then(self, interval: snapshot.Interval) -> None:
        """Keeps what the workspace holds while its agent works, when it is time again."""
        try:
            interval.take(self.store)
        except RopewalkError as error:
            self._tell("snapshot_failed", reason=f"{error.code} {error.message}")

    def _agent(self, report: dict[str, Any] | None) -> None:
        """Runs one turn of the agent, again when its process was killed; `_Failed` when it says no."""
        while True:
            result = self._lane(report)
            self._keep("when its agent ended")
            for name, count in turns.counted(result.result.tokens).items():
                self.usage[name] = self.usage.get(name, 0) + count
            how, code = turns.how(result), turns.code(result)
            self._tell("agent_ended", how=how, code=code, seconds=result.result.seconds, tools=result.lane.tools,
                       cage=result.lane.level)  # fmt: skip
            if how == "stopped" or self.worker.stop.is_set():
                raise _Stopped
            if how == "timeout":
                raise _Failed(f"the agent did not end within {self.settings.seconds:g} s")
            if how == "done":
                if not result.lane.ending.ok:
                    raise _Failed(f"the agent ended with {code}: {turns.words(result)[:500]}")
                return
            if how != "died":
                raise _Failed(f"the agent was {how}: {result.lane.reason}")
            self.deaths += 1
            if self.deaths > MAX_DEATHS:
                raise _Failed(f"the agent was killed {self.deaths} times, last by signal {-code}")
            if report is None:
                # what a killed agent left half done is archived, and it starts anew
                self._create_anew()

    def _lane(self, report: dict[str, Any] | None) -> Outcome:
        settings = self.settings
        number = self.turns + self.deaths
        text = self.task.prompt
        if report is not None:
            text = f"{conflict_words(report)}\n\nThe task was:\n\n{text}"
        one = self._turn(number, text, report)
        interval = snapshot.Interval(self.name, self.agent, SNAPSHOT_SECONDS)
        done = turns.take(
            self.store, settings.harness, settings.caller, settings.ways, one, stop=self.worker.stop.is_set,
            tell=self._event, meanwhile=lambda: self._keep_now_and_then(interval),
        )  # fmt: skip
        self._last = done.id
        session = done.lane.ending.session
        self._before = Before(one.folder, session) if session else None
        return done

    def _turn(self, number: int, text: str, report: dict[str, Any] | None) -> Turn:
        settings = self.settings
        ws = state.need(self.store, self.name)
        return Turn(
            f"{settings.run}/{self.task.id}/{number}", self.agent,
            os.path.join(settings.folder, "lanes", self.task.id, str(number)), ws.path,
            self.store.objects.commit(ws.base).tree, text, settings.run, self.task.id, number, settings.seconds,
            self.task.script, report, {"ROPEWALK_STORE": self.store.layout.root},
            self._before if report is not None else None, check=self.task.check or settings.check or "",
            sample=settings.sample,
        )  # fmt: skip

    def _event(self, event: Event) -> None:
        if event.kind in ("message", "error"):
            self._tell(f"agent_{event.kind}", **event.facts)
        elif event.kind == "tool":
            words = event.facts.get("path") or event.facts.get("command") or ""
            self._tell("agent_tool", name=str(event.facts.get("name", "")), on=str(words)[:200])

    def _land(self) -> str:
        command = self.task.check or self.settings.check
        wish = Wish(
            agent=self.agent,
            message=self.task.title(),
            key=self.key,
            check=["/bin/sh", "-c", command] if command else [],
            checks=self._folder("checks"),
            check_seconds=self.settings.check_seconds,
            stop=self.worker.stop,
        )
        began = clock.monotonic()
        self._tell("landing")
        change = self._changeset(wish)
        try:
            how, landed = self.settings.lander.land(self.store, self.name, wish)
        except CheckFailedError as error:
            if self.worker.stop.is_set():
                raise _Stopped from None
            words = str(error.details.get("output", "")).strip().splitlines()
            self._judged(False, error.message, change)
            raise _Failed(f"{error.message}{': ' + words[-1][:300] if words else ''}") from None
        if how == "up_to_date":
            raise _Failed("the agent changed nothing that is not on the target already")
        self._judged(True, "", change, landed)
        self._tell("landed", id=landed, status=how, seconds=round(clock.monotonic() - began, 4))
        return landed

    def _changeset(self, wish: Wish) -> str | None:
        """Gives the changeset of what the agent left, which the land takes up again; None for nothing."""
        try:
            with state.held(self.store, self.name):
                return landing.commit_workspace(self.store, state.need(self.store, self.name), wish)[0]
        except RopewalkError:
            return None  # the land says why

    def _judged(self, passed: bool, words: str, change: str | None, landed: str = "") -> None:
        """Notes the verdict on the last lane's tree in the journal."""
        if self._last and change is not None:
            journal.set_verdict(
                self.store, self._last, passed, words, tree=self.store.objects.commit(change).tree, changeset=change,
                landed=landed,
            )  # fmt: skip

    def _show_conflict(self, error: ConflictError) -> dict[str, Any] | None:
        """Brings the target into the workspace, so that the agent sees both sides; gives the report."""
        if "unresolved" in error.details:
            return {"files": [{"path": path, "kinds": ["content"]} for path in error.details["unresolved"]]}
        with state.held(self.store, self.name):
            done = move.rebase(self.store, state.need(self.store, self.name), self.settings.ref, self.agent)
        return None if done.report is None else msgspec.to_builtins(done.report)

    def tidy(self, landed: bool) -> str | None:
        """Deletes the workspace of a landed task; gives the folder when it was kept."""
        ws = state.find(self.store, self.name)
        if ws is None:
            return None
        if landed and not self.settings.keep:
            try:
                with state.held(self.store, self.name):
                    removal.delete(self.store, ws, self.agent, force=False)
                return None
            except RopewalkError as error:
                # it holds something that did not land, so it stays
                self._tell("workspace_kept", path=ws.path, reason=f"{error.code} {error.message}")
        return ws.path

    def _tell(self, kind: str, **facts: object) -> None:
        self.worker.tell(kind, task=self.task.id, **facts)


def conflict_words(report: dict[str, Any]) -> str:
    """Gives what an agent is told of a conflict."""
    lines = ["Your change conflicts with what others landed meanwhile. Their work is now in your tree, and these",
             "files hold both sides between conflict markers. Edit each so that the intent of both is kept and no",
             "marker is left; then end.", ""]  # fmt: skip
    for file in report["files"]:
        last = file.get("last_changed") or {}
        who = f", last changed by {last['agent']}" if last.get("agent") else ""
        lines.append(f"- {file['path']} ({', '.join(file['kinds'])}{who}) {file.get('note', '')}".rstrip())
    return "\n".join(lines)
