"""Driving the queue: whoever waits for a checked land runs checks, publishes what passed, and drops what failed.

Any driver may end at any moment: its checks are run again by another, its own changes lose their places, and
nothing else changes. A driver holds a slot while it plans and runs checks, so that no more than `jobs` run.
"""

from __future__ import annotations

import os
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import CheckFailedError, InternalError, RopewalkError
from ropewalk.core.ids import short_ref
from ropewalk.core.policy import Policy
from ropewalk.core.process import until_one_ended
from ropewalk.store import land
from ropewalk.store.changes import Content
from ropewalk.store.land import Answering, Landed, Settled
from ropewalk.store.report import Resolution
from ropewalk.store.spool import LandRequest, new_id
from ropewalk.store.store import Store
from ropewalk.workspace import check, queue
from ropewalk.workspace.check import Cage, Running
from ropewalk.workspace.hold import Hold
from ropewalk.workspace.queue import Entry, Failure, Wanted
from ropewalk.workspace.speculate import Plan, Speculation, Step
from ropewalk.workspace.verdict import Checked, Command, Verdict

_TICK, _LONG_TICK, _LOOK_AGAIN, _IDLE = 0.02, 0.1, 1.0, 0.2


class Orders(NamedTuple):
    """Is how changes are to be checked: the command, its environment, where, how many at once, and when to stop."""

    command: Command
    env: Mapping[str, str]
    folder: str
    jobs: int
    stop: threading.Event | None = None
    policy: Policy = Policy()
    cage: Cage | None = None

    @property
    def held(self) -> str:
        """Gives what holds the checks; empty for nothing."""
        return "" if self.cage is None else self.cage.mark


class Outcome(NamedTuple):
    """Is what became of one change: its land or an error, and the checks that were run for it."""

    result: Landed | RopewalkError
    checks: list[Checked]


class _Job(NamedTuple):
    step: Step
    running: Running
    hold: Hold
    slot: Hold


def orders(
    argv: Sequence[str], seconds: float, folder: str, *, jobs: int = 0, policy: Policy = Policy(),
    stop: threading.Event | None = None, cage: Cage | None = None,
) -> Orders:  # fmt: skip
    """Gives the orders for a check; without `jobs` as many run at once as there are processors."""
    env = check.environment() | policy.workspace.env
    command = check.command(argv, seconds, env, policy, cage)
    return Orders(command, env, folder, jobs or os.cpu_count() or 1, stop, policy, cage)


def land_checked(
    store: Store,
    ref: str,
    requests: Sequence[LandRequest],
    how: Orders,
    *,
    answering: Answering | None = None,
    commands: Sequence[Command] | None = None,
    tell: Callable[[str], None] = lambda line: None,
    ended: Callable[[int, Outcome], None] = lambda number, outcome: None,
) -> list[Outcome]:
    """Lands changes in order, each once the check passed on the very tree that it makes; gives an outcome for each.

    A change in conflict with the target, or that can't land for another reason, gives the error at once; it
    does not keep back the others. `commands` has a check for each, of the same environment; without it all have that
    of the orders. `ended` hears of each outcome, by the change's place, as soon as it stands.
    """
    outcomes: dict[int, Outcome] = {}
    wanted: dict[int, Wanted] = {}

    def end(number: int, outcome: Outcome) -> None:
        outcomes[number] = outcome
        ended(number, outcome)

    for number, req in enumerate(requests):
        try:
            ready = land.preview(store, req, answering)
        except RopewalkError as error:
            end(number, Outcome(error, []))
            continue
        if isinstance(ready, Landed):
            end(number, Outcome(ready, []))
        else:
            resolution = None if answering is None else _portable(answering)
            wanted[number] = Wanted(req, how.command if commands is None else commands[number], resolution)
    store.objects.take_new()
    if wanted:
        places = list(wanted)
        driver = _Driver(store, ref, how, tell, lambda place, outcome: end(places[place], outcome))
        driver.run(list(wanted.values()))
    return [outcomes[number] for number in range(len(requests))]


def _portable(answering: Answering) -> Resolution:
    """Gives a resolution that any process can apply: files that it names are read into it."""
    files = {}
    for path, answer in answering.resolution.files.items():
        if answer.content is not None and answer.content.file is not None:
            with answering.read_file(answer.content.file) as file:
                data = file.read()
            answer = msgspec.structs.replace(answer, content=Content(base64=b64encode(data).decode("ascii")))
        files[path] = answer
    return Resolution(answering.resolution.against, files)


class Apart:
    """Is a check outside the queue; should its process die, whoever sweeps jobs ends it and removes its folder."""

    def __init__(self, store: Store, tree: str, how: Orders) -> None:
        place = check.new_place(how.folder)
        hold = Hold.take(os.path.join(queue.folder(store), f"job-{os.path.basename(place)}"))
        assert hold is not None  # nobody else has a place of this name
        self._hold: Hold | None = hold
        started = False
        try:
            hold.write(msgspec.json.encode(_Left(0, "", place)))
            self._running = Running(store, tree, how.command, how.env, place, how.policy, how.cage)
            hold.write(msgspec.json.encode(_Left(self._running.pid, _started(self._running.pid), place)))
            started = True
        finally:
            if not started:
                hold.drop()

    def poll(self) -> Verdict | None:
        """Gives what it found once it has ended; nothing of it is left then."""
        verdict = self._running.poll()
        if verdict is not None:
            self._over()
        return verdict

    def stop(self) -> None:
        """Ends it, if it goes on, and removes its folder."""
        if self._hold is not None:
            self._running.stop()
            self._over()

    def _over(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.drop()


def sweep_jobs(store: Store) -> None:
    """Ends the checks of processes that died, and removes what they left."""
    folder = queue.folder(store)
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        if name.startswith("job-") and (hold := Hold.take(os.path.join(folder, name))) is not None:
            _sweep(hold)
            hold.drop()


class _Driver:
    def __init__(
        self, store: Store, ref: str, how: Orders, tell: Callable[[str], None], ended: Callable[[int, Outcome], None]
    ) -> None:
        self.store, self.ref, self.how, self.tell, self.ended = store, ref, how, tell, ended
        self.speculation = Speculation(store, ref)
        self.running: list[_Job] = []
        self.mine: dict[int, Wanted] = {}
        self.done: dict[int, Outcome] = {}
        self._pause = how.stop or threading.Event()
        self._seen = self._tried = self._collected = -1
        self._stale = True
        self._began = clock.monotonic()
        self._planned_at = self._tried_at = 0.0
        self._idle_since: dict[str, float] = {}

    def run(self, wanted: Sequence[Wanted]) -> None:
        """Waits in the queue with changes, drives it meanwhile, and tells what became of each by its place."""
        owner = f"{os.getpid()}-{new_id()[:12]}"
        life = Hold.take(queue.owner_path(self.store, owner))
        assert life is not None, "an owner's name is new"
        ids: list[int] = []
        try:
            sweep_jobs(self.store)
            ids = queue.add(self.store, owner, self.ref, wanted)
            self.mine = dict(zip(ids, wanted, strict=True))
            while len(self.done) < len(ids) or self.running:
                self._check_stop()
                self._turn()
        finally:
            for job in list(self.running):
                job.running.stop()
                self._end(job)
            if ids:
                queue.remove(self.store, ids)
            life.drop()

    def _check_stop(self) -> None:
        if self.how.stop is not None and self.how.stop.is_set():
            raise CheckFailedError(
                "the check was stopped", command=list(self.how.command.argv), reason="stopped"
            ) from None

    def _turn(self) -> None:
        """Does what there is to do, or waits a moment."""
        ended, drove = self._reap(), False
        now, version = clock.monotonic(), self._version()
        if ended or self._stale or version != self._collected or now - self._planned_at > _LOOK_AGAIN:
            self._collected = version
            self._collect()
        if ended or self._stale or version != self._seen or now - self._planned_at > _LOOK_AGAIN:
            slot = self._slot(version, now)
            if slot is not None or self.running:
                # what is written from here on is looked at in the next turn
                self._planned_at, self._seen, self._stale, drove = now, version, False, True
                slot = self._drive(slot)
            if slot is not None:
                slot.drop(remove=False)
        if not ended and not (drove and self._stale):
            self._wait(now)

    def _wait(self, now: float) -> None:
        """Waits a moment, or until one of its checks has ended."""
        # many that wait for long must not be a load for those who work
        tick = min(max(_TICK, (now - self._began) / 20), _LONG_TICK)
        if self.running:
            until_one_ended([job.running.pid for job in self.running if job.running.pid], tick)
        else:
            self._pause.wait(tick)

    def _version(self) -> int:
        """Gives a number that changes when another process wrote to the database; see `_wrote` for one's own writes."""
        row = self.store.db.row("PRAGMA data_version")
        return int(row[0]) if row else 0

    def _wrote(self) -> None:
        """Notes that this driver wrote something, which is to be looked at at once."""
        self._stale, self._tried = True, -1

    def _slot(self, version: int = -1, now: float = 0.0) -> Hold | None:
        """Takes a free slot; one that waits tries again when something was written, and now and then."""
        if version == self._tried != -1 and now - self._tried_at < _IDLE and not self.running:
            return None
        self._tried, self._tried_at = version, now
        for number in range(self.how.jobs):
            slot = Hold.take(os.path.join(queue.folder(self.store), f"slot-{number}"))
            if slot is not None:
                return slot
        return None

    def _drive(self, slot: Hold | None) -> Hold | None:
        """Plans, publishes, drops, and starts checks; gives back the slot unless a check took it."""
        while True:
            plan = self.speculation.plan(self.how.jobs)
            if not (self._publish(plan) or self._drop(plan)):
                break
        wanted = {step.key for step in plan.jobs}
        for job in [job for job in self.running if job.step.key not in wanted]:
            self.tell("a check was given up: what it was made on has changed")
            job.running.stop()
            self._end(job)
        most = max(1, min(self.how.jobs, sum(number not in self.done for number in self.mine)))
        for place, step in enumerate(plan.jobs):
            if len(self.running) >= most or len(self.done) == len(self.mine):
                break
            if not self._mine_to_run(step, place):
                continue
            slot = slot or self._slot()
            if slot is None:
                break
            if self._start(step, slot):
                slot = None
        return slot

    def _mine_to_run(self, step: Step, place: int) -> bool:
        """Says whether this driver runs a check: its own, and another's that nobody started for a while."""
        if any(job.step.key == step.key for job in self.running):
            return False
        if step.entry.id in self.mine:
            return place < self.how.jobs
        if step.entry.wanted.command.environment != self.how.command.environment:
            return False
        now = clock.monotonic()
        return now - self._idle_since.setdefault(step.key, now) > _IDLE

    def _start(self, step: Step, slot: Hold) -> bool:
        """Starts a check unless another driver has it, or just ended it."""
        hold = Hold.take(os.path.join(queue.folder(self.store), f"job-{step.key}"))
        if hold is None:
            return False
        _sweep(hold)
        started = False
        try:
            now = queue.standing(self.store, step.key, step.entry.id, clock.now())
            if now != step.standing:
                self._wrote()
                return False
            command = step.entry.wanted.command
            if step.entry.id in self.mine:
                self.tell(f"checking the merged tree {step.tree[:12]}")
            # whoever finds this driver dead finds the folder too, whenever it died
            place = check.new_place(self.how.folder)
            hold.write(msgspec.json.encode(_Left(0, "", place)))
            running = Running(self.store, step.tree, command, self.how.env, place, self.how.policy, self.how.cage)
            hold.write(msgspec.json.encode(_Left(running.pid, _started(running.pid), running.place)))
            self.running.append(_Job(step, running, hold, slot))
            self._idle_since.pop(step.key, None)
            started = True
        finally:
            if not started:
                hold.drop()
        return True

    def _end(self, job: _Job) -> None:
        self.running.remove(job)
        job.hold.drop()
        job.slot.drop(remove=False)

    def _reap(self) -> bool:
        """Notes what checks that ended found."""
        ended = False
        for job in list(self.running):
            verdict = job.running.poll()
            if verdict is not None:
                queue.note(self.store, job.step.key, job.step.entry.id, job.step.tree, verdict)
                self._end(job)
                self._wrote()
                ended = True
        return ended

    def _publish(self, plan: Plan) -> bool:
        """Lands all that is ready, in order and in one transaction, as far as it still waits."""
        if not plan.ready:
            return False
        landed = 0
        store = self.store
        store.lock.acquire(store.lock_wait)
        try:
            with store.begun() as tx:
                if store.ref(self.ref) != plan.root:
                    return True
                alive = {entry.id for entry in queue.entries(store, self.ref) if entry.state == "waiting"}
                for step in plan.ready:
                    if step.entry.id not in alive:
                        break  # those behind it were stacked on it
                    try:
                        with tx.savepoint():
                            one = land.publish_prepared(store, tx, step.entry.wanted.request, step.prepared)
                            queue.settle(tx, step.entry.id, "landed", msgspec.json.encode((tx.last_op, one)))
                    except (RopewalkError, Settled):
                        queue.settle(tx, step.entry.id, "look")
                        break
                    landed += 1
        finally:
            store.lock.release()
        store.finish(tx)
        self._wrote()
        return True

    def _drop(self, plan: Plan) -> bool:
        """Settles the entries to blame, and asks owners to look at what can't be merged without them."""
        if not plan.blamed and not plan.look:
            return False
        with self.store.transaction() as tx:
            for step in plan.blamed:
                last = step.standing.last
                assert last is not None
                failure = Failure(step.tree, last.verdict, step.standing.failures)
                queue.settle(tx, step.entry.id, "failed", msgspec.json.encode(failure))
            for number in plan.look:
                queue.settle(tx, number, "look")
        self._wrote()
        return True

    def _collect(self) -> None:
        """Takes what others decided about one's own changes."""
        waiting = [number for number in self.mine if number not in self.done]
        for number, entry in queue.find(self.store, waiting).items():
            if entry.state == "waiting":
                continue
            outcome = self._outcome(entry)
            if outcome is not None:
                self.done[number] = outcome
                self.ended(list(self.mine).index(number), outcome)

    def _outcome(self, entry: Entry) -> Outcome | None:
        checks = self._checks(entry.id)
        if entry.state == "landed":
            _, landed = msgspec.json.decode(entry.result or b"", type=tuple[int, Landed])
            self.store.show()  # it is synced by the removal of the entry, before the answer leaves
            checks = checks or self._cached(landed, entry)
            return Outcome(msgspec.structs.replace(landed, attempts=max(1, len(checks))), checks)
        if entry.state == "failed":
            return Outcome(_failure(entry), checks)
        if entry.state == "cancelled":
            who = (entry.result or b"").decode("utf-8")
            facts: dict[str, Any] = {"command": list(entry.wanted.command.argv), "reason": "cancelled", "by": who}
            error = CheckFailedError(f"{who} took the land out of the queue", hint="land it again", **facts)
            return Outcome(error, checks)
        try:
            ready = land.preview(self.store, entry.wanted.request, self._answering(entry))
        except RopewalkError as refusal:
            return Outcome(refusal, checks)
        self.store.objects.take_new()
        if isinstance(ready, Landed):
            return Outcome(ready, checks)
        with self.store.transaction() as tx:
            queue.settle(tx, entry.id, "waiting", was="look")
        self._wrote()
        return None

    def _answering(self, entry: Entry) -> Answering | None:
        resolution = entry.wanted.resolution
        return None if resolution is None else Answering(resolution, _no_file)

    def _checks(self, number: int) -> list[Checked]:
        return [
            Checked(record.tree, record.verdict.rc, record.verdict.seconds, flaky=record.flaky, cage=self.how.held)
            for record in queue.records_of(self.store, number)
        ]

    def _cached(self, landed: Landed, entry: Entry) -> list[Checked]:
        """Gives the run of another entry's that a land rested on."""
        tree = self.store.objects.commit(landed.landed).tree
        for record in queue.records(self.store, check.key(tree, entry.wanted.command)):
            if record.passed:
                return [Checked(tree, record.verdict.rc, record.verdict.seconds, cached=True, cage=self.how.held)]
        return []


def _no_file(path: str) -> BinaryIO:
    raise InternalError(f"an answer in the queue names the file {path}")


def _failure(entry: Entry) -> CheckFailedError:
    failure = msgspec.json.decode(entry.result or b"", type=Failure)
    verdict, argv = failure.verdict, entry.wanted.command.argv
    facts: dict[str, Any] = {"tree": failure.tree, "command": list(argv), "rc": verdict.rc, "seconds": verdict.seconds,
             "output": verdict.output, "runs": failure.runs, "kind": verdict.kind}  # fmt: skip
    if verdict.reason:
        facts["reason"] = verdict.reason
    onto = short_ref(entry.ref)
    if verdict.reason == "timeout":
        return CheckFailedError(
            f"the check did not end within {entry.wanted.command.seconds:g} s on the tree that would be {onto}",
            hint="give it longer with --check-seconds, or mend what hangs", **facts,
        )  # fmt: skip
    if verdict.reason == "unstartable":
        return CheckFailedError(verdict.output, hint="a line for the shell goes behind -- as: sh -c '…'", **facts)
    if verdict.kind == "infrastructure":
        return CheckFailedError(
            f"the check could not be ended on the tree that would be {onto}: {verdict.reason or verdict.rc}",
            hint="this says nothing about the change: look at the machine, and land again", **facts,
        )  # fmt: skip
    return CheckFailedError(f"the check ended with {verdict.rc} on the merged tree", **facts)


class _Left(msgspec.Struct, frozen=True):
    """Is what a driver writes into the hold of a job, so that another can tidy up after its death."""

    pid: int
    started: str
    place: str


def _sweep(hold: Hold) -> None:
    """Ends what a dead driver's check left running, and removes its folder."""
    try:
        left = msgspec.json.decode(hold.read(), type=_Left)
    except msgspec.DecodeError:
        return
    # a process group's number is not given out anew while the group lives; its leader's start tells the rest
    if left.pid and _started(left.pid) in ("", left.started):
        check.end_group(left.pid)
    elif not left.pid:
        check.end_inside(left.place)  # it died before it could say which process it had started
    check.remove_place(left.place)


def _started(pid: int) -> str:
    """Gives when a process started, in ticks since boot; empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[19].decode("ascii")
    except (OSError, IndexError):
        return ""
