"""The worker's loop: look, recover what the dead left, choose, claim, attempt, and again, until told otherwise.

Losing a race is healthy and costs one step. A board that is out of reach is waited for with growing pauses, one that
refuses claims is given up, and so is a host on which agents can't work; each end has its reason.
"""

from __future__ import annotations

import os
import random
import threading
from typing import NamedTuple

from ropewalk.board import claim, compact, holder, names, recover, reserve, runs, state, takeover
from ropewalk.board.base import Board
from ropewalk.board.claim import As, Held
from ropewalk.board.state import Status
from ropewalk.board.wire import Outcome
from ropewalk.core import clock
from ropewalk.core.errors import (
    BusyError,
    ClaimedError,
    FencedError,
    InvalidError,
    RemoteError,
    RopewalkError,
    StoreCorruptError,
    UnsupportedError,
    os_error,
)
from ropewalk.lane.processes import sweep
from ropewalk.plan.task import Task
from ropewalk.run.staff import Pick
from ropewalk.run.work import leftovers, progress, quota
from ropewalk.run.work.admission import Admission
from ropewalk.run.work.attempt import Attempt
from ropewalk.run.work.bell import Bell
from ropewalk.run.work.bench import Bench, Ending, Exhausted
from ropewalk.run.work.choice import Choice
from ropewalk.run.work.landing import LocalLanding
from ropewalk.run.work.lease import Heart
from ropewalk.run.work.options import Ended, Left, Options, Report, TaskEnd
from ropewalk.run.work.patience import Patience
from ropewalk.run.work.presence import Presence
from ropewalk.run.work.sessions import Sessions
from ropewalk.store.store import Store

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_OBSERVE_SECONDS = 5.0
_COMPACT_SECONDS = 3600.0
_LOOKS, _STALE = 8, 4
"""Are how often a worker looks anew in one turn, and after how many tasks that others took it does."""

_SHARE = 10
"""Is how many times as long as a look takes an idle worker pauses at least, so that a large board is no load."""

_REFUSED = ("rejected", "forbidden", "authentication", "host_key", "owner", "not_a_repository")
"""Are the reasons of a server that is in reach and does not want this worker."""

_ORDER: tuple[Ended, ...] = ("gave_up", "stopped", "claims_left", "once", "empty")


def work(board: Board, store: Store, options: Options) -> Report:
    """Works on a board until it ends as the options say; gives what was done, and why it ended.

    `store` is where workspaces are made; a local board is its own. Raises `E_INVALID` before anything is done.
    """
    names.check_person(options.worker)
    if options.jobs < 1:
        raise InvalidError("a worker needs at least one job", jobs=options.jobs)
    from ropewalk.run import tools

    folder = os.path.join(leftovers.Places(store, options.data_home).home, "doors", options.worker)
    adapter = next((one for one in options.team.adapters if one.offers_tools), options.harness)
    # what it may spend is counted anew each time that a worker of this name begins
    ways = options.ways._replace(account=options.within or f"{options.worker}/{runs.new_id()}")
    with tools.equipped(
        ways, adapter, store.layout.root, folder, lambda own: _opened(own, options),
        lambda who, text, percent: options.emit(
            "progress", worker=options.worker, task=who.task, lane=who.lane, text=text, percent=percent
        ),
    ) as equipped:  # fmt: skip
        return _Worker(board, store, options._replace(ways=equipped)).run()


def _opened(store: Store, options: Options) -> Board:
    """Opens the board for another thread."""
    if options.another is not None:
        return options.another(store)
    from ropewalk.board.local import LocalBoard

    return LocalBoard(store)


class _Worker:
    """Is what the threads of one worker share."""

    def __init__(self, board: Board, store: Store, options: Options) -> None:
        self.board, self.store, self.options = board, store, options
        self.heart = Heart(self._for_heart, board.beat_seconds, self.actor, None, self.tell)
        self.tasks: list[TaskEnd] = []
        self.left: list[Left] = []
        self.evicted: list[str] = []
        self.races = 0
        self.over = threading.Event()
        self.bell = Bell()
        self.flying = 0
        places = leftovers.Places(store, options.data_home)
        self.admission = Admission(places.home, options.spare_memory, options.spare_disk)
        self._ends: list[tuple[Ended, str]] = []

    @property
    def actor(self) -> str:
        """Gives who does all this, as family/instance."""
        return self.options.actor()

    def run(self) -> Report:
        """Gives the report, once all threads have ended."""
        began = clock.monotonic()
        try:
            if self.options.jobs == 1:
                self._ends.append(_Loop(self, self.board, self.store).run())
            else:
                self._run_threads()
        finally:
            self.over.set()
            self.heart.close()
        ended, reason = min(self._ends, key=lambda end: _ORDER.index(end[0]))
        left = self.left if ended in ("empty", "claims_left") else []
        kind = "worker_gave_up" if ended == "gave_up" else "worker_done"
        self.tell(kind, reason=reason or ended, completed=len(self.tasks))
        seconds = round(clock.monotonic() - began, 3)
        return Report(self.options.worker, ended, reason, self.tasks, left, self.races, self.evicted, seconds)

    def _run_threads(self) -> None:
        from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

        with ThreadPoolExecutor(self.options.jobs, "ropewalk-work") as pool:
            jobs = [pool.submit(self._thread) for _ in range(self.options.jobs)]
            wait(jobs, return_when=FIRST_EXCEPTION)
            if any(job.done() and job.exception() is not None for job in jobs):
                self.over.set()
        self._ends += [job.result() for job in jobs]

    def _thread(self) -> tuple[Ended, str]:
        with Store(self.store.layout.root) as store:
            board = self._board(store)
            try:
                return _Loop(self, board, store).run()
            finally:
                board.close()

    def _board(self, store: Store) -> Board:
        return _opened(store, self.options)

    def _for_heart(self) -> tuple[Board, Store]:
        store = Store(self.store.layout.root)
        return self._board(store), store

    def tell(self, kind: str, **facts: object) -> None:
        """Emits an event."""
        self.options.emit(kind, **{"worker": self.options.worker, **facts})


class _Seen(NamedTuple):
    """Is a look at a board: its open tasks, and the ready ones in groups of equal standing."""

    statuses: dict[str, Status]
    groups: list[list[Status]]
    at: float
    took: float


class _Loop:
    """Is one thread of a worker."""

    def __init__(self, worker: _Worker, board: Board, store: Store) -> None:
        self.worker, self.board, self.store, self.options = worker, board, store, worker.options
        self.places = leftovers.Places(store, self.options.data_home)
        self.patience = Patience(self.options.outage_seconds, self.options.patience, worker.tell)
        self.bench = Bench(
            board, store, self.options, self.options.landing or LocalLanding(), worker.heart, self.places, worker.actor,
            worker.tell, self.patience, Sessions(self.places.sessions),
        )  # fmt: skip
        self.me = holder.mine()
        self.presence = Presence(board.folder)
        self.choice = Choice(self.presence)
        self.failures: list[str] = []
        self.refusals = 0
        self.kept: list[tuple[Held, TaskEnd]] = []
        self._seen: _Seen | None = None
        self._full_at = self._observed_at = self._compacted_at = float("-inf")
        self._pause, self._refreshed = _FIRST_PAUSE, 0.0
        self._waiting_since: float | None = None
        self._short_since: float | None = None
        self._reserve_after = reserve.LEAST
        self._stopped: set[str] = set()
        self._orphans: list[Status] = []
        self._heard = 0

    def run(self) -> tuple[Ended, str]:
        """Gives how this thread ended, and why."""
        try:
            while True:
                if self.options.stop.is_set():
                    return "stopped", "it was told to end"
                if self.worker.over.is_set():
                    return "once" if self.options.once else "stopped", "another of its jobs ended it"
                end = self._turn()
                if end is not None:
                    self.worker.over.set() if end[0] in ("gave_up", "once", "stopped") else None
                    return end
        finally:
            self.presence.close()

    def _turn(self) -> tuple[Ended, str] | None:
        """Does one task, or waits for one; gives the end when there is one."""
        began = clock.monotonic()
        self._heard = self.worker.bell.rung
        try:
            self.board.refresh()
            self._refreshed = clock.monotonic() - began
            state.law(self.board)
            self._settle_kept()
            status = self._next()
            attempt = self._take_over()
        except (UnsupportedError, StoreCorruptError, InvalidError) as error:
            return "gave_up", f"{error.code} {error.message}"
        except RopewalkError as error:
            return self._outage(error)
        except OSError as error:
            return self._outage(os_error(error, "looking for a task"))
        if attempt is None and status is None:
            self.patience.over()
            return self._idle()
        if attempt is None and status is not None:
            pick = self.options.pick(status.spec.task)
            missing = self.worker.admission.ask((pick.adapter if pick is not None else self.options.harness).memory)
            if missing:
                return self._short(missing)
            held = self._claim(status)
            if isinstance(held, str):
                return "gave_up", held
            if held is None:
                return None
            attempt = Attempt(self.bench, status, held)
        assert attempt is not None
        self.patience.over()
        self._waiting_since, self._short_since, self._pause = None, None, _FIRST_PAUSE
        self.worker.flying += 1
        try:
            ending = attempt.run()
        except UnsupportedError as error:
            return "gave_up", f"{error.code} {error.message}"
        finally:
            self.worker.flying -= 1
        return self._take(ending)

    def _take(self, ending: Ending) -> tuple[Ended, str] | None:
        """Notes how an attempt ended; structural failures of three tasks in a row end the worker.

        A task whose attempts die again and again counts once: its heirs come to an end. One that can't even be begun
        is given back and counts each time.
        """
        self.worker.tasks.append(ending.end)
        self.worker.bell.ring()
        if ending.unreleased is not None:
            self.kept.append((ending.unreleased, ending.end))
        end = ending.end
        if not ending.structural:
            self.failures.clear()
        elif end.how == "released" or end.task not in self.failures:
            self.failures.append(end.task)
        self.worker.tell("attempted", task=end.task, att=end.attempt, how=end.how, reason=end.reason,
                         landed=end.landed, seconds=end.seconds)  # fmt: skip
        if len(self.failures) >= self.options.failures:
            return "gave_up", f"{len(self.failures)} attempts in a row failed here: {ending.structural}"
        if ending.spent is not None and (over := self._wait_for_more(end.task, ending.spent)) is not None:
            return "gave_up", over
        if self.options.stop.is_set():
            return "stopped", "it was told to end"
        if self.options.once:
            return "once", ""
        if ending.structural:
            self.options.stop.wait(min(0.2 * 2 ** len(self.failures), 5.0))
        return None

    def _wait_for_more(self, task: str, spent: Exhausted) -> str | None:
        """Has a task's run wait because what it may use is used up; gives why the worker ends where it is of none."""
        self._seen = None
        try:
            pause = quota.pause(self.board, task, spent, self.worker.actor)
        except RopewalkError as error:
            return f"{spent.why} ({error.code} {error.message})"
        if pause is None:
            return spent.why
        self.worker.tell("run_paused", run=runs.of_task(task), reason=pause.why, until=pause.until)
        return None

    def _settle_kept(self) -> None:
        """Gives back claims that could not be given back when their attempts ended."""
        while self.kept:
            held, end = self.kept[-1]
            try:
                if end.how == "released":
                    claim.release(self.board, held, f"released: {' '.join(end.reason.split())[:1000]}")
                else:
                    why = f"its attempt could not be ended at once: {' '.join(end.reason.split())[:900]}"
                    claim.die(self.board, held, Outcome(False, 1, 1, held.harness, reason=why), self.options.heirs)
            except FencedError:
                pass
            self.kept.pop()

    # looking

    def _next(self) -> Status | None:
        """Gives a task to try, None where there is none now."""
        for _ in range(_LOOKS):
            now = clock.monotonic()
            seen = self._seen
            if seen is None or not seen.groups or now - seen.at > min(_SHARE * seen.took, self.options.look_seconds):
                seen = self._look(full=now - self._full_at >= self.options.look_seconds)
                if not seen.groups and self._full_at < now:
                    seen = self._look(full=True)
                if not seen.groups:
                    return None
            busy = sum(1 for s in seen.statuses.values() if s.claim is not None and self._is_here(s.claim.host))
            for _ in range(_STALE):
                if not seen.groups:
                    break
                status = self.choice.pick(seen.groups[0], busy)
                if not seen.groups[0]:
                    seen.groups.pop(0)
                if runs.stopped(self.board, {runs.of_task(status.id)} - {""}):
                    continue  # since that look
                fresh = state.need(self.board, status.id)
                if fresh is not None and fresh.state == "ready":
                    return fresh
            self._seen = None
        return None

    def _is_here(self, host: str) -> bool:
        return host.partition("/")[0] == self.me.partition("/")[0]

    def _look(self, *, full: bool) -> _Seen:
        """Looks at the open tasks and ends attempts whose holders are dead; a full look sees flockwork's tasks too."""
        began = clock.monotonic()
        statuses = self._statuses(full)
        if self._recover(statuses, full) or self._settle_merged(statuses):
            statuses = self._statuses(full)
        if full:
            self._reserve_after = reserve.patience(self.board)
        self._stopped = runs.stopped(self.board, {runs.of_task(task) for task in statuses} - {""})
        later = reserve.passed_over(self.board, statuses.values(), self._reserve_after, clock.now(), self._is_mine)
        ready = [s.id for s in statuses.values() if s.state == "ready" and s.id not in later and self._is_mine(s)]
        took = clock.monotonic() - began
        self._seen = _Seen(statuses, self.choice.ordered(list(statuses.values()), ready), clock.monotonic(), took)
        if full:
            self._full_at = clock.monotonic()
            self._compact()
        return self._seen

    def _compact(self) -> None:
        """Moves old closed tasks of a crowded git server out of the way of every push, now and then (F5).

        Where flockwork's workers may run it is left to people, because they would not see those tasks any more.
        """
        now = clock.monotonic()
        if not self.board.most_moves or now - self._compacted_at < _COMPACT_SECONDS or state.law(self.board).mixed:
            return
        self._compacted_at = now
        if compact.closed_refs(self.board) < compact.MANY:
            return
        try:
            done = compact.compact(self.board, self.worker.actor)
        except RopewalkError as error:
            self.worker.tell("compaction_failed", reason=f"{error.code} {error.message}")
            return
        self.worker.tell("compacted", tasks=len(done.tasks), refs=done.refs)

    def _settle_merged(self, statuses: dict[str, Status]) -> bool:
        """Closes tasks whose change others had to merge and did (F13); says whether there was one."""
        if not any(status.state == "pending" for status in statuses.values()):
            return False
        merged = self.bench.landing.settle(self.board, self.store, self.worker.actor)
        for task in merged:
            self.worker.tell("merged", task=task)
        return bool(merged)

    def _statuses(self, full: bool) -> dict[str, Status]:
        if not full:
            return state.look(self.board)
        closed = {name[len(names.VERDICTS) :] for name, _ in self.board.below(names.VERDICTS)}
        there = {
            name[len(kind) :]
            for kind in (names.SPECS, names.HELD, names.OPEN)
            for name, _ in self.board.below(kind)
            if "@" not in name
        }
        opened = {name[len(names.OPEN) :] for name, _ in self.board.below(names.OPEN)}
        found = state.look(self.board, only=sorted((there - closed) | opened))
        return {task: status for task, status in found.items() if status.state not in state.CLOSED}

    def _is_mine(self, status: Status) -> bool:
        task = status.spec.task
        if not self._is_asked_for(task.id) or runs.of_task(task.id) in self._stopped:
            return False
        return self.options.pick(task) is not None

    def _is_asked_for(self, task: str) -> bool:
        if self.options.within and runs.of_task(task) != self.options.within:
            return False
        return not self.options.only or task in self.options.only

    # recovery

    def _recover(self, statuses: dict[str, Status], full: bool) -> bool:
        """Ends attempts that were left, but for those that go on here; says whether there was one."""
        self._orphans = []
        held = [s for s in statuses.values() if s.state == "claimed" or recover.is_half(s)]
        ages: dict[str, float] = {}
        now = clock.monotonic()
        if held and full and now - self._observed_at >= _OBSERVE_SECONDS:
            self._observed_at = now
            ages = recover.ages(self.board, statuses, self.options.look_seconds)
        found = False
        for status in held:
            if status.claim is not None and status.claim.host == self.me:
                continue
            why = recover.is_left(status, ages.get(status.id, 0.0), self.board.beat_seconds)
            if why is not None and self._goes_on_here(status):
                self._orphans.append(status)
            elif why is not None:
                found = self._evict(status, why) or found
        if full:
            claims = {s.claim.attempt for s in held if s.claim is not None} - set(self.worker.evicted)
            for attempt in leftovers.clear(self.store, self.places, self.worker.actor, claims):
                self.worker.tell("leftovers_cleared", att=attempt)
        return found

    def _evict(self, status: Status, why: str) -> bool:
        """Ends an attempt, after a second look (F10); another may have been faster."""
        seen = recover.mark(self.board, status)
        self.board.refresh()
        now = state.need(self.board, status.id)
        if now is None or now.state != status.state or recover.mark(self.board, now) != seen:
            return False
        attempt = recover.attempt_of(self.board, now)
        dead = status.claim is not None and bool(holder.is_dead(status.claim.host))
        if not dead:
            self.worker.tell("lease_expired", task=status.id, att=attempt)
        try:
            ended = recover.evict(self.board, now, self.worker.actor, why, self.options.heirs)
        except (FencedError, InvalidError):
            return False
        if dead:
            sweep(attempt)
        self.worker.evicted.append(ended.attempt)
        self.worker.tell("eviction", task=ended.task, att=ended.attempt, reason=why)
        self.worker.tell("heir", task=ended.task, att=ended.attempt, reason=why, requeued=ended.requeued,
                         outcome="requeued" if ended.requeued else "exhausted")  # fmt: skip
        return True

    def _goes_on_here(self, status: Status) -> bool:
        """Says whether this worker can go on with a dead one's attempt: its files are here, and its agent is ours."""
        if status.claim is None or not self._is_mine(status):
            return False
        left, who = progress.read(self.places.of(status.claim.attempt)), self.options.pick(status.spec.task)
        if left is None or who is None or left.harness != who.adapter.name:
            return False
        return takeover.is_open(status, left.turn)

    def _take_over(self) -> Attempt | None:
        """Gives an attempt that goes on here, None where there is none; another may have been faster."""
        while self._orphans:
            status = self._orphans.pop(0)
            assert status.claim is not None
            attempt = status.claim.attempt
            with self.places.alone(attempt) as mine:
                now = state.need(self.board, status.id) if mine else None
                left = progress.read(self.places.of(attempt))
                if now is None or now.claim_id != status.claim_id or left is None or not self._goes_on_here(now):
                    continue
                try:
                    held = takeover.take(self.board, now, self._as(now.spec.task), left.turn)
                except FencedError:
                    continue
                self.places.make(attempt)
            self.worker.tell("takeover", task=status.id, att=attempt, turn=left.turn)
            return Attempt(self.bench, now, held, left)
        return None

    # claiming

    def _as(self, task: Task) -> As:
        who = self.options.pick(task) or Pick(self.options.harness, self.options.model)
        return As(self.options.worker, self.options.actor(who), who.adapter.name, who.model, self.options.kind, self.me)

    def _claim(self, status: Status) -> Held | str | None:
        """Claims a task: None when another has it, a text when claims are refused too often."""
        who = self._as(status.spec.task)
        try:
            state.law(self.board)
            held = claim.take(self.board, status, who)
        except ClaimedError:
            self.choice.lost()
            self.worker.races += 1
            self.worker.tell("claim", task=status.id, outcome="race")
            return None
        except UnsupportedError as error:
            return f"{error.code} {error.message}"
        except BusyError as error:
            end = self._outage(error)
            return end[1] if end is not None else None
        except RopewalkError as error:
            self.worker.tell("claim", task=status.id, outcome="structural", reason=f"{error.code} {error.message}")
            return self._refused(error)
        self.choice.won()
        self.refusals = 0
        self.worker.tell("claim", task=status.id, att=held.attempt, outcome="won", harness=who.harness, model=who.model)
        return held

    # waiting

    def _outage(self, error: RopewalkError) -> tuple[Ended, str] | None:
        """Waits for a board that is out of reach, or that another process keeps locked, for a while."""
        self._seen = None
        if isinstance(error, RemoteError) and error.details.get("reason") in _REFUSED:
            self.worker.tell("refused", reason=f"{error.code} {error.message}")
            why = self._refused(error)
        else:
            why = self.patience.wait(error, self.options.stop)
        return None if why is None else ("gave_up", why)

    def _refused(self, error: RopewalkError) -> str | None:
        """Notes that the board refused a step, and waits a while; gives why the worker ends when it did too often."""
        self.refusals += 1
        self._seen = None
        if self.refusals >= self.options.failures:
            return f"{self.refusals} steps in a row were refused: {error.message}"
        self.options.stop.wait(min(0.5 * 2**self.refusals, 10.0))
        return None

    def _short(self, missing: str) -> tuple[Ended, str] | None:
        """Waits for memory or disk; a worker of which no agent runs does so as long as for a board out of reach."""
        now = clock.monotonic()
        if self._short_since is None:
            self._short_since = now
            self.worker.tell("waiting", reason=missing)
        if not self.worker.flying and now - self._short_since >= self.options.outage_seconds:
            return "gave_up", missing
        self._seen = None
        self.worker.bell.wait(self._heard, self._pause, self.options.stop)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return None

    def _idle(self) -> tuple[Ended, str] | None:
        """Waits for something to do; gives the end of a worker that works until the board is empty."""
        seen, self._seen = self._seen, None
        if seen is None:
            return None  # others took what it saw, faster than it could look
        statuses = [s for s in seen.statuses.values() if self._is_asked_for(s.id)]
        claims = [s for s in statuses if s.state == "claimed" or (s.claim_id is not None and recover.is_half(s))]
        foreign = [s for s in claims if s.claim is None or s.claim.host != self.me]
        if self.options.until_empty or self.options.once:
            ready = any(s.state == "ready" and self._is_mine(s) for s in statuses)
            if not claims and not ready:
                self._note(statuses)
                return "empty", ""
            now = clock.monotonic()
            if foreign and not ready:
                self._waiting_since = now if self._waiting_since is None else self._waiting_since
                if self.options.patience is not None and now - self._waiting_since >= self.options.patience:
                    self._note(statuses)
                    held = ", ".join(f"{s.id} ({s.why})" for s in foreign[:20])
                    return "claims_left", f"claims of others are left: {held}"
        pause = max(self._pause, _SHARE * (seen.took + self._refreshed))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self.worker.bell.wait(self._heard, pause * random.uniform(0.75, 1.25), self.options.stop)
        return None

    def _note(self, statuses: list[Status]) -> None:
        self.worker.left = [Left(s.id, s.state, s.why) for s in statuses]
