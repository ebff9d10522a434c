"""The runner: starts each task when what it needs is landed, as many at once as there are jobs, and reports.

Tasks are done by threads, each with a store of its own; agents, checks and landing children are processes. A
task that fails blocks those that need it, and no other. An interrupt ends the agents, keeps all work, and the
summary says what was stopped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from ropewalk.core import clock, durable
from ropewalk.core.errors import InvalidError, NotFoundError
from ropewalk.core.events import Event, EventLog
from ropewalk.core.ids import short_ref
from ropewalk.lane.adapter import Adapter
from ropewalk.run import publish, report
from ropewalk.run.interrupts import Interrupts
from ropewalk.run.lander import Here, Lander
from ropewalk.run.report import Summary, TaskReport
from ropewalk.run.tasks import Task
from ropewalk.run.turn import Ways
from ropewalk.run.worker import Settings, Worker
from ropewalk.store import refs, revisions
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store


class Options(NamedTuple):
    """Is how a run is done: `onto` is the full name of the ref to land on (None: a new `run/ID`)."""

    harness: Adapter
    caller: Mapping[str, str]
    data_home: str
    onto: str | None = None
    jobs: int = 4
    check: str | None = None
    seconds: float = 3600.0
    check_seconds: float = 1800.0
    lander: Lander = Here()
    keep: bool = False
    export: bool = True
    ways: Ways = Ways()
    replay: bool = False
    sample: int = 0


def new_id() -> str:
    """Gives an id for a run: the time it starts and a few random digits."""
    import time

    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(2).hex()}"


def run(
    store: Store,
    actor: str,
    tasks: Sequence[Task],
    options: Options,
    interrupts: Interrupts,
    watch: Callable[[Event], None] | None = None,
) -> Summary:
    """Runs tasks to their end, or until an interrupt, and gives the summary, which is also in the run's folder.

    Raises `E_INVALID` or `E_NOT_FOUND` before anything is started.
    """
    if options.jobs < 1:
        raise InvalidError("a run needs at least one job", jobs=options.jobs)
    run_id = new_id()
    branch = options.onto or revisions.default_branch(store)
    base = store.ref(branch)
    if base is None:
        raise NotFoundError(f"there is no ref {short_ref(branch)!r}", hint="import or commit something first")
    ref = options.onto or f"refs/heads/run/{run_id}"
    folder = report.folder(store.layout, run_id)
    durable.make_folders(folder)
    lock = report.hold(store.layout, run_id)
    log = EventLog(os.path.join(folder, "events.jsonl"), watch)
    began = clock.monotonic()
    try:
        if options.onto is None:
            refs.move(store, actor, [Move(ref, None, base)], "run_start")
        report.write(store.layout, run_id, "tasks.json", {"tasks": list(tasks)})
        at = clock.now()
        log.emit("run_started", run=run_id, ref=short_ref(ref), base=base, tasks=[t.id for t in tasks],
                 harness=options.harness.name, jobs=options.jobs)  # fmt: skip
        from ropewalk.run import tools

        with tools.equipped(
            options.ways, options.harness, store.layout.root, folder,
            tell=lambda who, text, percent: log.emit(
                "progress", task=who.task, lane=who.lane, text=text, percent=percent
            ),
        ) as ways:  # fmt: skip
            settings = Settings(
                run_id, ref, folder, options.data_home, options.caller, options.harness, options.lander, options.check,
                options.seconds, options.check_seconds, options.keep, ways,
                options.replay, options.sample,
            )  # fmt: skip
            done, stopped = _Schedule(store.layout.root, tasks, settings, options.jobs, log).run(interrupts)
        seconds = clock.monotonic() - began
        head = store.ref(ref) or base
        shown = None
        if options.export and options.onto is None and head != base:
            shown = publish.show_branch(store, ref, run_id)
        order = {task.id: number for number, task in enumerate(tasks)}
        result = report.summary(
            run_id, short_ref(ref), base, head, "stopped" if stopped else "done", seconds,
            sorted(done, key=lambda r: order[r.id]), at, options.harness.name, shown,
        )  # fmt: skip
        report.write(store.layout, run_id, "summary.json", result)
        log.emit("run_ended", run=run_id, state=result.state, landed=result.landed, failed=result.failed,
                 blocked=result.blocked, stopped=result.stopped, seconds=result.seconds)  # fmt: skip
        durable.sync(log.path)
        return result
    finally:
        log.close()
        os.close(lock)


class _Schedule:
    """Gives tasks to threads as their needs are landed, and collects the reports."""

    def __init__(self, root: str, tasks: Sequence[Task], settings: Settings, jobs: int, log: EventLog) -> None:
        self.root, self.settings, self.log = root, settings, log
        self.waiting = {task.id: task for task in tasks}
        self.missing = {task.id: set(task.needs) for task in tasks}
        self.todo: SimpleQueue[Task | None] = SimpleQueue()
        self.done: SimpleQueue[TaskReport | BaseException | None] = SimpleQueue()
        self.stop = threading.Event()
        self.reports: list[TaskReport] = []
        self.flying = 0
        self.threads = [
            threading.Thread(target=self._thread, name=f"ropewalk-worker-{n}", daemon=True)
            for n in range(min(jobs, len(tasks)))
        ]

    def run(self, interrupts: Interrupts) -> tuple[list[TaskReport], bool]:
        """Gives (reports of all tasks, whether the run was stopped)."""
        interrupts.subscribe(lambda: self.done.put(None))
        for thread in self.threads:
            thread.start()
        stopped = False
        try:
            self._start_ready()
            while self.flying:
                result = self.done.get()
                if result is not None:
                    self._take(result, start=not stopped)
                elif not stopped:
                    stopped = True
                    self.stop.set()
                    self.log.emit("stopping")
                    self._call_back()
        except BaseException:
            self.stop.set()
            raise
        finally:
            for _ in self.threads:
                self.todo.put(None)
            for thread in self.threads:
                thread.join()
        for task in self.waiting.values():
            how, why = ("stopped", "the run was stopped") if stopped else ("blocked", self._why(task))
            self._note(TaskReport(task.id, how, reason=why))
        return self.reports, stopped

    def _call_back(self) -> None:
        """Takes back the tasks that no thread has begun."""
        while True:
            try:
                task = self.todo.get_nowait()
            except Empty:
                return
            if task is not None:
                self.flying -= 1
                self.waiting[task.id] = task

    def _thread(self) -> None:
        worker: Worker | None = None
        try:
            while (task := self.todo.get()) is not None:
                try:
                    worker = worker or Worker(self.root, self.settings, self.stop, self.log.emit)
                    self.done.put(worker.work(task))
                except BaseException as error:  # it is raised again by the thread that waits for it
                    self.done.put(error)
        finally:
            if worker is not None:
                worker.close()

    def _start_ready(self) -> None:
        for name in [name for name in self.waiting if not self.missing[name]]:
            self.flying += 1
            self.todo.put(self.waiting.pop(name))

    def _take(self, result: TaskReport | BaseException, *, start: bool) -> None:
        self.flying -= 1
        if isinstance(result, BaseException):
            raise result
        self._note(result)
        if result.state == "landed":
            for missing in self.missing.values():
                missing.discard(result.id)
            if start:
                self._start_ready()

    def _note(self, one: TaskReport) -> None:
        self.reports.append(one)
        self.log.emit("task_ended", task=one.id, report=one)

    def _why(self, task: Task) -> str:
        ended = {r.id: r.state for r in self.reports}
        parts = [f"{need} {ended.get(need, 'did not land')}" for need in task.needs if ended.get(need) != "landed"]
        return f"it needs what did not land: {', '.join(parts)}"
