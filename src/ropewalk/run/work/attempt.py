"""One attempt at a task: a workspace, its agent, the check, the land; each way to end it is told apart.

Deaths that say nothing about the task (out of time, a crash, a provider that fails) end the attempt and leave the task
to an heir. Failures by merit stay with the agent, which gets the check's output and another turn in the same tree.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from ropewalk.board import claim, state
from ropewalk.board.base import Board
from ropewalk.board.claim import Held
from ropewalk.board.state import Status
from ropewalk.board.wire import Outcome
from ropewalk.core import clock
from ropewalk.core.errors import BusyError, FencedError, RopewalkError, UnsupportedError, os_error
from ropewalk.lane import collect
from ropewalk.lane.adapter import Event
from ropewalk.lane.collect import Checked, Gate
from ropewalk.lane.lanes import Outcome as Done
from ropewalk.run import gate as gates
from ropewalk.run import turn as turns
from ropewalk.run.turn import Before, Turn
from ropewalk.run.work import evidence, prompt
from ropewalk.run.work.landing import Change, Landing, Result
from ropewalk.run.work.lease import Heart, Lease
from ropewalk.run.work.leftovers import Places, drop
from ropewalk.run.work.options import Options, TaskEnd
from ropewalk.run.work.patience import Patience
from ropewalk.store.store import Store
from ropewalk.workspace import checkout, landing, move
from ropewalk.workspace import state as workspaces
from ropewalk.workspace.landing import Wish

CONFLICTS, RETRIES = 3, 5
_NOTE = 1000
_T = TypeVar("_T")


class Bench(NamedTuple):
    """Is what a thread of a worker works with."""

    board: Board
    store: Store
    options: Options
    landing: Landing
    heart: Heart
    places: Places
    actor: str
    tell: Callable[..., object]
    patience: Patience


class Ending(NamedTuple):
    """Is how an attempt ended; with `structural` the fault is this host's, or the board's, and not the task's."""

    end: TaskEnd
    structural: str = ""
    unreleased: Held | None = None


class _Stopped(Exception):
    """The worker is to end."""


class _Lost(Exception):
    """The claim is another's."""


class _Dead(Exception):
    """The attempt's surroundings failed: the exit code of its agent, and why."""

    def __init__(self, rc: int, why: str, *, structural: bool = True) -> None:
        super().__init__(why)
        self.rc, self.why, self.structural = rc, why, structural


class _Unstartable(Exception):
    """The attempt could not even begin, so that it does not count as one."""


class Attempt:
    """Does one claimed task to its end."""

    def __init__(self, bench: Bench, status: Status, held: Held) -> None:
        self.bench, self.spec, self.task = bench, status.spec, status.spec.task
        self.board, self.store, self.options = bench.board, bench.store, bench.options
        self.lease = Lease(held, bench.options.stop)
        self.attempt = held.attempt
        self.turns, self.seconds = 0, 0.0
        self.usage: dict[str, int] = {}
        self._began = clock.monotonic()
        self._tree = ""
        self._agent_rc = 0
        self._landed = False
        self._before: Before | None = None
        self._done: Done | None = None
        self._lane_id = ""
        self._replies = 0  # a reply of another shape than was agreed is asked for once more, and no more
        # one key for all tries of the attempt's land: however a try ends, it lands once
        self._key = str(uuid.uuid4())

    def run(self) -> Ending:
        """Does the task and gives how the attempt ended; a law that is too new is raised when all is given back."""
        bench = self.bench
        bench.heart.add(self.lease)
        try:
            try:
                self._patiently(self._begin)
                ending = self._turns()
            except _Stopped:
                ending = self._give_back("the worker was stopped")
            except _Lost:
                ending = self._ending("fenced", "the claim is another's")
            except _Unstartable as error:
                ending = self._give_back(str(error), structural=str(error))
            except _Dead as death:
                ending = self._die(death)
            except UnsupportedError as error:
                self._give_back(f"{error.code} {error.message}")
                raise
            except FencedError as error:
                ending = self._fenced(error)
            except BusyError as error:
                why = f"{error.code} {error.message}"
                ending = self._give_back(why, structural=why)
            except RopewalkError as error:
                ending = self._die(_Dead(1, f"{error.code} {error.message}"))
            except OSError as error:
                # what the agent did to our files, or another process to folders that both use, ends this attempt alone
                ending = self._die(_Dead(1, _words_of(error)))
        finally:
            bench.heart.drop(self.lease)
            self._tidy()
        return ending

    # from the workspace to the land

    def _begin(self) -> None:
        """Makes the folder and the workspace, and says in the claim that the agent is about to start."""
        self._check_stop()
        try:
            self.bench.places.make(self.attempt)
            head = self.bench.landing.head(self.board, self.store, self.task.target)
            with self.lease.still() as held:
                base = claim_base(held) or head
            ref = self.bench.landing.ref(self.task.target)
            asked = checkout.Asked(
                self.attempt, self.bench.actor, base, ref, self.bench.places.workspace(self.attempt),
                shared=self.bench.places.home,
            )  # fmt: skip
            checkout.create(self.store, asked)
            self._tree = self.store.objects.commit(base).tree
        except RopewalkError as error:
            if isinstance(error, (FencedError, UnsupportedError, BusyError)):
                raise
            raise _Unstartable(f"{error.code} {error.message}") from None
        with self.lease.still() as held:
            self.lease.set(claim.mark(self.board, held, "dispatch_started"))
        self._tell("dispatch_started")

    def _turns(self) -> Ending:
        limit = self.task.limits.attempts or self.options.attempts
        text = prompt.of_task(self.spec)
        report: dict[str, Any] | None = None
        merits, conflicts, asks = 1, 0, True
        while True:
            if asks:
                self._dispatch(text, report)
            report, asks = None, True
            change = self._patiently(self._capture)
            result = self._refused(change) if change is not None else None
            if result is None:
                result = self._land(change) if change is not None else Result("unchanged")
            self._judged(result, change)
            if result.how == "unchanged":
                found = self._patiently(self._satisfied)
                if isinstance(found, Ending):
                    return found
                result = found
            if result.how in ("landed", "pending"):
                self._landed = True
                self._told(True, landed=result.commit, pending=result.how == "pending")
                return self._ending(result.how, landed=result.commit)
            if result.how == "conflict":
                conflicts += 1
                if conflicts > CONFLICTS:
                    return self._fail(result, f"still in conflict after {CONFLICTS} turns: {result.words}")
                report = self._patiently(self._rebase)
                self._tell("conflict", paths=[f["path"] for f in (report or {}).get("files", [])], turn=conflicts)
                if report is not None:
                    text = prompt.after_conflict(report, self.spec)
                asks = report is not None  # what fits by now needs nobody's word
                continue
            if merits >= limit or self._replies > 1:
                return self._fail(result)
            merits += 1
            text = self._next_prompt(result, merits, limit)
            report = self._patiently(self._rebase)
            if report is not None:
                text = f"{prompt.conflict_words(report)}\n\n{text}"
            self._tell("attempt_failed", rc=result.rc, reason=result.how, turn=merits - 1)

    def _refused(self, change: str) -> Result | None:
        """Gives why the collect gate refuses what the agent left; None for what lands once its check passes.

        The check is run on the tree that lands, with what others landed in it, so that it is taken for passed here.
        """
        assert self._done is not None
        base = self.store.objects.commit(workspaces.need(self.store, self.attempt).base).tree
        lane = self._done.lane
        gate = gates.judge(self.store, self.task, lane.ending, base, self._tree, Checked(self._tree, 0), lane.tools)
        if gate.passed:
            return None
        self._replies += all(reason.startswith("reply:") for reason in gate.reasons)
        return Result("refused", tree=self._tree, rc=1, words=gate.repair or "; ".join(gate.reasons))

    def _judged(self, result: Result, change: str | None) -> None:
        """Notes the verdict on the last lane's tree in the journal: of what landed, and of what fails by merit."""
        if result.how not in ("landed", "pending", "failed", "refused"):
            return
        passed = result.how in ("landed", "pending")
        words = "" if passed else f"{result.how}: {(result.words.strip().splitlines() or [str(result.rc)])[-1]}"[:_NOTE]
        gates.note(self.store, self._lane_id, Gate(passed, (words,) if words else (), tree=self._tree),
                   changeset=change or "", landed=result.commit, reply=self._reply())  # fmt: skip

    def _reply(self) -> Any:
        text = self._done.lane.ending.text if self._done is not None else ""
        if self.task.reply is not None:
            return collect.check_reply(text, self.task.reply)[0]
        return collect.fields_of(text)

    def _next_prompt(self, result: Result, turn: int, of: int) -> str:
        if result.how == "refused":
            return prompt.after_refusal(result.words, self.spec, turn, of)
        if result.how == "unchanged":
            return prompt.after_nothing(result.rc, result.words, self.spec, turn, of)
        return prompt.after_failure(result.rc, result.words, self.spec, turn, of)

    def _dispatch(self, text: str, report: dict[str, Any] | None) -> None:
        """Runs one turn of the agent; raises unless it came to an end of its own that says something."""
        self._check_stop()
        self.turns += 1
        result = self._lane(text, report)
        self.seconds += result.result.seconds
        for name, count in turns.counted(result.result.tokens).items():
            self.usage[name] = self.usage.get(name, 0) + count
        how, self._agent_rc = turns.how(result), turns.code(result)
        self._tell("agent_ended", how=how, code=self._agent_rc, seconds=result.result.seconds)
        self._check_stop()
        if how == "timeout":
            raise _Dead(124, f"timeout: the agent did not end within {self._limit:g} s", structural=False)
        if how == "died" and result.lane.reason.startswith("tools_missing"):
            raise _Dead(self._agent_rc, result.lane.reason)
        if how == "died":
            raise _Dead(self._agent_rc, f"crash: the agent was ended by signal {-self._agent_rc}")
        if how == "stalled":
            raise _Dead(self._agent_rc, f"stalled: {result.lane.reason}")
        if not result.lane.ending.ok and self._present() == self._tree:
            words = turns.words(result)
            raise _Dead(self._agent_rc, f"provider: the agent ended with {self._agent_rc} and changed nothing: {words}")

    def _lane(self, text: str, report: dict[str, Any] | None) -> Done:
        options = self.options
        folder = os.path.join(self.bench.places.of(self.attempt), str(self.turns))
        extra = {"ROPEWALK_TASK": self.task.id, "ROPEWALK_ATTEMPT": self.attempt}
        ws = workspaces.need(self.store, self.attempt)
        one = Turn(
            f"{self.attempt}/{self.turns}", self.bench.actor, folder, ws.path,
            self.store.objects.commit(ws.base).tree, text, options.worker, self.task.id, self.turns, self._limit, None,
            report, extra, self._before, self._model, self.task.effort, self._shape, self.task.check,
            region=self.task.region, target=self.task.target,
        )  # fmt: skip
        try:
            done = turns.take(self.store, options.harness, options.caller, options.ways, one,
                              stop=self.lease.stop.is_set, tell=self._event, busy=self._waits)  # fmt: skip
        except RopewalkError as error:
            if self.turns == 1:
                raise _Unstartable(f"{error.code} {error.message}") from None
            raise
        self._done, self._lane_id = done, done.id
        session = done.lane.ending.session
        self._before = Before(folder, session) if session else None
        return done

    def _waits(self, error: BusyError) -> bool:
        """Waits while another process holds a lock that the lane's journal needs; says whether to try again."""
        return not self.lease.stop.is_set() and self.bench.patience.wait(error, self.lease.stop) is None

    def _event(self, event: Event) -> None:
        if event.kind in ("message", "error"):
            self._tell(f"agent_{event.kind}", **event.facts)

    def _present(self) -> str:
        """Gives the tree that is in the workspace."""
        from ropewalk.workspace import capture

        self.store.objects.take_new()
        return capture.capture(self.store, workspaces.need(self.store, self.attempt)).tree

    def _capture(self) -> str | None:
        """Gives the changeset of what the agent left, None for nothing; its processes are gone by now (B16)."""
        subject = f"fix {self.task.id}"
        message = f"{subject}\n\n{self.task.name}\n\nAttempt: {self.attempt}\n"
        with workspaces.held(self.store, self.attempt):
            ws = workspaces.need(self.store, self.attempt)
            change, _ = landing.commit_workspace(self.store, ws, Wish(self.bench.actor, message))
        if change is not None:
            self._tree = self.store.objects.commit(change).tree
        return change

    def _land(self, change: str) -> Result:
        ws = workspaces.need(self.store, self.attempt)
        wanted = Change(
            self.lease, change, ws.base, self._outcome(True, 0, more={"tree": "{tree}", "landed": "{landed}"}),
            self._key, self.task.check, self._check_limit, self.bench.places.checks,
        )  # fmt: skip
        self._tell("landing")
        result = Result("retry")
        for number in range(RETRIES):
            self._check_stop()
            result = self._patiently(lambda: self.bench.landing.land(self.board, self.store, wanted))
            if result.how != "retry":
                break
            self.lease.stop.wait(0.05 * 2**number)
        if result.how == "stopped":
            self._check_stop()
        if result.how == "fenced":
            raise FencedError(result.words, task=self.task.id)
        if result.how in ("broken", "retry", "stopped"):
            raise _Dead(self._agent_rc, f"the land could not be done: {result.words or result.how}")
        return result

    def _satisfied(self) -> Ending | Result:
        """Has the check on the target's head decide about an agent that had nothing to change (B18)."""
        head = self.bench.landing.head(self.board, self.store, self.task.target)
        # in the attempt's own folder, where whoever clears up after a dead worker finds it
        found = evidence.look(self.store, head, self._orders()._replace(folder=self.bench.places.of(self.attempt)))
        self._check_stop()
        assert found is not None
        if found.kind == "infrastructure" and found.reason != "timeout":
            raise _Dead(self._agent_rc, f"the check could not be ended on the head: {found.reason or found.rc}")
        tree = self.store.objects.commit(head).tree
        if found.kind != "passed":
            return Result("unchanged", tree=tree, rc=found.rc, words=found.output)
        self._close(self._outcome(True, 0, more={"already": "satisfied", "tree": tree, "landed": head}), head)
        return self._ending("satisfied", landed=head)

    def _rebase(self) -> dict[str, Any] | None:
        """Brings what others landed into the workspace; gives the report when both sides changed the same lines."""
        self.bench.landing.head(self.board, self.store, self.task.target)
        with workspaces.held(self.store, self.attempt):
            ws = move.settle(self.store, workspaces.need(self.store, self.attempt))
            if move.marked(ws):
                return {"files": [{"path": path, "kinds": ["content"]} for path in move.marked(ws)]}
            done = move.rebase(self.store, ws, ws.target, self.bench.actor)
        self._tree = self._present()
        return None if done.report is None else msgspec.to_builtins(done.report)

    # ways to end

    def _fail(self, result: Result, note: str = "") -> Ending:
        """Publishes that the task failed by merit; it stays closed until it is reopened."""
        reasons = {"unchanged": "no_evidence", "conflict": "conflict", "refused": "refused"}
        reason = "check_timeout" if result.rc == 124 else reasons.get(result.how, "")
        words = note or (result.words.strip().splitlines() or [""])[-1]
        more = {"note": words[:_NOTE], "tree": result.tree or self._tree}
        self._patiently(lambda: self._close(self._outcome(False, result.rc or 1, reason=reason, more=more)))
        return self._ending("failed", reason or words[:_NOTE] or f"the check ended with {result.rc}")

    def _close(self, outcome: Outcome, returned: str | None = None) -> None:
        self.board.refresh()
        state.law(self.board)
        with self.lease.still() as held:
            claim.close(self.board, held, outcome, returned)
            self._landed = outcome.fixed
        self._told(outcome.fixed, reason=outcome.reason, already=outcome.more.get("already", ""))

    def _told(self, fixed: bool | None, **facts: object) -> None:
        """Tells of a verdict that is on the board, in flockwork's words."""
        self._tell("verdict", fixed=fixed, verdict_pushed=True, oc_elapsed=self.seconds, **facts)

    def _die(self, death: _Dead) -> Ending:
        """Leaves the task to an heir, or closes it as `infrastructure` where none is left."""
        why = " ".join(death.why.split())[:_NOTE]
        structural = why if death.structural else ""
        try:
            with self.lease.still() as held:
                outcome = self._outcome(False, 1, rc=death.rc or 1, reason=why)
                requeued = claim.die(self.board, held, outcome, self.options.heirs)
        except FencedError as error:
            return self._fenced(error)
        except RopewalkError as error:
            return Ending(self._ending("infrastructure", why).end, f"{error.code} {error.message}", self.lease.held)
        self._tell("crash", reason=why, rc=death.rc)
        self._tell("heir", requeued=requeued, outcome="requeued" if requeued else "exhausted", reason=why)
        if not requeued:
            self._told(False, reason="infrastructure", heir_exhausted=True)
        return self._ending("requeued" if requeued else "infrastructure", why, structural=structural)

    def _give_back(self, why: str, structural: str = "") -> Ending:
        """Gives the task back as if it had not been claimed."""
        try:
            with self.lease.still() as held:
                claim.release(self.board, held, f"released: {' '.join(why.split())[:_NOTE]}")
        except FencedError as error:
            return self._fenced(error)
        except RopewalkError as error:
            return Ending(self._ending("released", why).end, f"{error.code} {error.message}", self.lease.held)
        return self._ending("released", why, structural=structural)

    def _fenced(self, error: FencedError) -> Ending:
        """Tells a claim that another took from one that was closed by this very attempt (F12)."""
        try:
            self.board.refresh()
            found = state.need(self.board, self.task.id)
        except RopewalkError:
            found = None
        verdict = found.verdict if found is not None else None
        if found is not None and verdict is not None and verdict.attempt == self.attempt:
            self._landed = bool(verdict.fixed)
            self._told(verdict.fixed, reason=verdict.reason, already=verdict.values.get("already", ""))
            return self._ending("landed" if verdict.fixed else "failed", verdict.reason, landed=found.returned)
        return self._ending("fenced", error.message)

    def _ending(self, how: Any, reason: str = "", landed: str | None = None, structural: str = "") -> Ending:
        seconds = round(clock.monotonic() - self._began, 3)
        end = TaskEnd(self.task.id, self.attempt, how, reason, landed, self.turns, seconds, self.usage)
        return Ending(end, structural)

    def _tidy(self) -> None:
        """Removes the workspace and the folder; what did not land is archived."""
        try:
            drop(self.store, self.attempt, self.bench.actor, keep=not self._landed)
            self.bench.places.remove(self.attempt)
        except RopewalkError as error:
            self._tell("workspace_kept", reason=f"{error.code} {error.message}")
        except OSError as error:
            self._tell("workspace_kept", reason=_words_of(error))
        self.store.warnings.clear()

    # small things

    def _patiently(self, step: Callable[[], _T]) -> _T:
        """Does a step again while another process holds a lock that it needs: what an agent did is not thrown away."""
        while True:
            try:
                done = step()
            except BusyError as error:
                self._check_stop()
                if self.bench.patience.wait(error, self.lease.stop) is not None:
                    raise
            else:
                self.bench.patience.over()
                return done

    def _check_stop(self) -> None:
        if self.lease.lost:
            raise _Lost
        if self.lease.stop.is_set():
            raise _Stopped

    def _orders(self) -> Any:
        return evidence.orders(
            self.store, self.task.check, self._check_limit, self.bench.places.checks, self.lease.stop
        )

    def _outcome(
        self, fixed: bool, check_rc: int, *, rc: int | None = None, reason: str = "", more: dict[str, str] | None = None
    ) -> Outcome:
        facts = {**(more or {}), "check": self.task.check, "environment": self._orders().command.environment[:40]}
        if self.usage:
            facts["tokens"] = " ".join(f"{name}={count}" for name, count in sorted(self.usage.items()))
        if self.turns > 1:
            facts["turns"] = str(self.turns)
        return Outcome(
            fixed, self._agent_rc if rc is None else rc, check_rc, self.options.harness.name, self._model,
            self.options.kind, round(self.seconds, 3), reason, facts,
        )  # fmt: skip

    @property
    def _shape(self) -> str:
        return "" if self.task.reply is None else msgspec.json.encode(self.task.reply).decode("utf-8")

    @property
    def _model(self) -> str:
        return self.options.model or self.task.model

    @property
    def _limit(self) -> float:
        return self.task.limits.seconds or self.options.seconds

    @property
    def _check_limit(self) -> float:
        return self.task.limits.check_seconds or self.options.check_seconds

    def _tell(self, kind: str, **facts: object) -> None:
        self.bench.tell(
            kind, task=self.task.id, att=self.attempt, worker=self.options.worker, model=self._model,
            harness=self.options.harness.name, **facts,
        )  # fmt: skip


def _words_of(error: OSError) -> str:
    typed = os_error(error, "the attempt")
    return f"{typed.code} {typed.message}" + (f" ({os.path.basename(str(error.filename))})" if error.filename else "")


def claim_base(held: Held) -> str:
    """Gives the commit that a claim names as its base; empty where it names none."""
    from ropewalk.board import wire

    return wire.fields(held.words).get("base")
