"""One attempt at a task: a workspace, its agent, the check, the land; each way to end it is told apart.

Deaths that say nothing about the task (out of time, a crash, a provider that fails) end the attempt and leave the task
to an heir. Failures by merit stay with the agent, which gets the check's output and another turn in the same tree.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ropewalk.board import claim, runs, state
from ropewalk.board.claim import Held
from ropewalk.board.state import Status
from ropewalk.board.wire import Outcome
from ropewalk.core import clock
from ropewalk.core.errors import (
    BusyError,
    CassetteMissError,
    ConflictError,
    FencedError,
    RopewalkError,
    UnsupportedError,
)
from ropewalk.lane import collect, journal
from ropewalk.lane.adapter import Event
from ropewalk.lane.collect import Checked, Gate
from ropewalk.lane.lanes import Outcome as Done
from ropewalk.run import gate as gates
from ropewalk.run import limits
from ropewalk.run import turn as turns
from ropewalk.run.limits import Spent
from ropewalk.run.staff import Pick
from ropewalk.run.turn import Before, Turn
from ropewalk.run.work import evidence, memories, patience, progress, prompt, quota, replay
from ropewalk.run.work.bench import Bench, Dead, Ending, Exhausted, Lost, Stopped, Unstartable, words_of
from ropewalk.run.work.landing import Change, Result
from ropewalk.run.work.lease import Lease
from ropewalk.run.work.leftovers import drop
from ropewalk.run.work.options import TaskEnd
from ropewalk.run.work.progress import Progress
from ropewalk.workspace import checkout, landing, move
from ropewalk.workspace import state as workspaces
from ropewalk.workspace.landing import Wish

CONFLICTS, RETRIES, CUTS = 3, 5, 2
"""Are how often an attempt settles conflicts, tries to land, and begins a turn anew that its lane's shim cut off."""

_NOTE = 1000
_T = TypeVar("_T")


class Attempt:
    """Does one claimed task to its end; with `left` it goes on with what a dead process began."""

    def __init__(self, bench: Bench, status: Status, held: Held, left: Progress | None = None) -> None:
        self.bench, self.spec, self.task = bench, status.spec, status.spec.task
        self.board, self.store, self.options = bench.board, bench.store, bench.options
        self.pick = bench.options.pick(self.task) or Pick(bench.options.harness, bench.options.model)
        self.actor = bench.options.actor(self.pick)
        self.lease = Lease(held, bench.options.stop)
        self.attempt = held.attempt
        self.turns, self.conflicts, self.seconds = 0, 0, 0.0
        self.usage: dict[str, int] = {}
        self.spent = Spent()
        self._uncounted: set[str] = set()
        self._began = clock.monotonic()
        self._tree = ""
        self._agent_rc = 0
        self._landed = False
        self._before: Before | None = None
        self._done: Done | None = None
        self._lane_id = self.cached = ""
        self._replies = 0  # a reply of another shape than was agreed is asked for once more, and no more
        # one key for all tries of the attempt's land: however a try ends, it lands once
        self._key = str(uuid.uuid4()) if left is None else left.key
        self._merits, self._cut = 1, 0
        self._left = left

    def run(self) -> Ending:
        """Does the task and gives how the attempt ended; a law that is too new is raised when all is given back."""
        bench = self.bench
        bench.heart.add(self.lease)
        try:
            try:
                self._patiently(self._begin if self._left is None else self._go_on)
                ending = self._turns()
                memories.note(bench, self.task, ending.end, self._done)
            except Stopped:
                ending = self._give_back("the worker was stopped")
            except Lost:
                ending = self._ending("fenced", "the claim is another's")
            except Exhausted as error:
                ending = self._give_back(error.why)._replace(spent=error)
            except Unstartable as error:
                ending = self._give_back(str(error), structural=str(error))
            except Dead as death:
                ending = self._die(death)
            except CassetteMissError as miss:
                ending = self._fail(Result("failed", rc=1), f"{miss.code} {miss.message}", "cassette_miss")
            except UnsupportedError as error:
                self._give_back(f"{error.code} {error.message}")
                raise
            except FencedError as error:
                ending = self._fenced(error)
            except BusyError as error:
                why = f"{error.code} {error.message}"
                ending = self._give_back(why, structural=why)
            except RopewalkError as error:
                ending = self._die(Dead(1, f"{error.code} {error.message}"))
            except OSError as error:
                # what the agent did to our files, or another process to folders that both use, ends this attempt alone
                ending = self._die(Dead(1, words_of(error)))
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
                base = held.base or head
            ref = self.bench.landing.ref(self.task.target)
            asked = checkout.Asked(
                self.attempt, self.actor, base, ref, self.bench.places.workspace(self.attempt),
                shared=self.bench.places.home,
            )  # fmt: skip
            checkout.create(self.store, asked)
            self._tree = self.store.objects.commit(base).tree
        except RopewalkError as error:
            if isinstance(error, (FencedError, UnsupportedError)) or patience.may_pass(error):
                raise
            raise Unstartable(f"{error.code} {error.message}") from None
        into = os.path.join(self.bench.places.of(self.attempt), "before")
        self._before = self.bench.sessions.take(self.task.region, self.pick.adapter.name, into)
        with self.lease.still() as held:
            self.lease.set(claim.mark(self.board, held, "dispatch_started"))
        self._tell("dispatch_started")

    def _go_on(self) -> None:
        """Takes up what a dead process left: its workspace stands, and the lane of its last turn is followed."""
        assert self._left is not None
        left = self._left
        self._check_stop()
        self.bench.places.end_checks(self.attempt)
        self.bench.landing.head(self.board, self.store, self.task.target)
        workspaces.need(self.store, self.attempt)
        self.turns, self._cut, self._before, self._tree = left.turn, left.cut, left.before, left.tree
        self._merits, self.conflicts, self._replies = left.merits, left.conflicts, left.replies
        self.seconds, self.usage, self.spent = left.seconds, dict(left.usage), left.spent

    def _note(self, text: str, report: dict[str, Any] | None) -> None:
        """Notes how far the attempt is, right before a lane is started."""
        progress.write(self.bench.places.of(self.attempt), Progress(
            self.attempt, self.pick.adapter.name, self._key, self.turns, text, self._tree, self._cut, report,
            self._before, self._merits, self.conflicts, self._replies, self.seconds, self.usage, self.spent,
        ))  # fmt: skip

    def _turns(self) -> Ending:
        limit = self.task.limits.attempts or self.options.attempts
        task = prompt.whole(self.store, self._tree, self.spec)
        text = task if self._left is None else self._left.text
        report = None if self._left is None else self._left.report
        asks = self._left is not None or not (self.options.replay and self._patiently(lambda: self._replayed(text)))
        result: Result | None = None
        while True:
            if asks and (reached := limits.used_up(self.task.limits, self.spent) or self._dispatch(text, report)):
                return self._limited(reached, result)
            report, asks = None, True
            try:
                change = self._patiently(self._capture)
            except ConflictError as error:  # markers of a rebase are left
                change, result = None, Result("conflict", words=error.message)
            else:
                result = self._refused(change) if change is not None else Result("unchanged")
            if result is None:
                assert change is not None
                result = self._land(change)
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
                self.conflicts += 1
                if self.conflicts > CONFLICTS:
                    return self._fail(result, f"still in conflict after {CONFLICTS} turns: {result.words}")
                report = self._patiently(self._rebase)
                self._tell("conflict", paths=[f["path"] for f in (report or {}).get("files", [])], turn=self.conflicts)
                if report is not None:
                    text = prompt.after_conflict(report, task)
                asks = report is not None  # what fits by now needs nobody's word
                continue
            if self._merits >= limit or self._replies > 1:
                return self._fail(result)
            self._merits += 1
            text = prompt.after(result.how, result.rc, result.words, task, self._merits, limit)
            report = self._patiently(self._rebase)
            if report is not None:
                text = f"{prompt.conflict_words(report)}\n\n{text}"
            self._tell("attempt_failed", rc=result.rc, reason=result.how, turn=self._merits - 1)

    def _refused(self, change: str) -> Result | None:
        """Gives why the collect gate refuses what the agent left; None for what lands once its check passes.

        The check is run on the tree that lands, with what others landed in it, so that it is taken for passed here.
        """
        if self._done is None:
            return None  # it was replayed, from a result that had passed on the same tree
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

    def _dispatch(self, text: str, report: dict[str, Any] | None) -> limits.Name | None:
        """Runs one turn of the agent; raises unless it came to an end that says something.

        Gives the limit of the task that ended it, None for one that came to its own end.
        """
        self._check_stop()
        result: Done | None = None
        if self._left is not None:
            result, self._left = self._lane(text, report, turns.go_on), None
        else:
            self.turns, self._cut = self.turns + 1, 0
            result = self._begun(text, report)
        while result is None or self._is_cut_off(result):
            if result is not None:
                self._count(result)
            self._cut += 1
            text = text if result is None else self._anew(result, text)
            result = self._begun(text, report)
        self._count(result)
        how, self._agent_rc = turns.how(result), turns.code(result)
        self._tell("agent_ended", how=how, code=self._agent_rc, seconds=result.result.seconds)
        self._check_stop()
        if how == "timeout":
            raise Dead(124, f"timeout: the agent did not end within {self._limit:g} s", structural=False)
        if how == "died" and result.lane.reason.startswith("tools_missing"):
            raise Dead(self._agent_rc, result.lane.reason)
        if how == "died":
            raise Dead(self._agent_rc, f"crash: the agent was ended by signal {-self._agent_rc}")
        if how == "escaped":
            raise Dead(self._agent_rc or 1, f"escaped: {result.lane.reason}")
        if how == "stalled":
            raise Dead(self._agent_rc, f"stalled: {result.lane.reason}")
        if how == "partial" and (reached := limits.used_up(self.task.limits, self.spent)) is not None:
            return reached
        refused = turns.refusal(result)
        if isinstance(refused, CassetteMissError):
            raise refused
        spent = quota.of(result, self.options.ways.gateway) if runs.of_task(self.task.id) or refused else None
        if (spent or refused) is not None and self._present() == self._tree:
            raise spent or Unstartable(str(refused))
        if not result.lane.ending.ok and self._present() == self._tree:
            words = turns.words(result)
            raise Dead(self._agent_rc, f"provider: the agent ended with {self._agent_rc} and changed nothing: {words}")
        return None

    def _count(self, done: Done) -> None:
        """Adds what a lane used, and tells once of each limit that can't be held because nobody counts that."""
        self.seconds += done.result.seconds
        for kind, count in turns.counted(done.result.tokens).items():
            self.usage[kind] = self.usage.get(kind, 0) + count
        self.spent = self.spent.plus(done.result)
        for name in limits.uncounted(self.task.limits, done.result):
            if name not in self._uncounted:
                self._uncounted.add(name)
                self._tell("limit_uncounted", limit=name)

    def _is_cut_off(self, done: Done) -> bool:
        """Says whether a turn is not over: its lane's shim is gone, or its session is larger than its model bears.

        An agent without sessions whose shim is gone begins anew, as the heir's.
        """
        gone = turns.how(done) == "died" and done.lane.exit is None and self._before is not None
        return (gone or turns.is_full(done)) and self._cut < CUTS and not self.lease.stop.is_set()

    def _anew(self, done: Done, text: str) -> str:
        if not turns.is_full(done):
            return prompt.after_cut(text)
        self._before = None  # what it holds is too much for its model
        self._tell("session_full", turn=self.turns)
        return prompt.after_full(text)

    def _begun(self, text: str, report: dict[str, Any] | None) -> Done:
        self._note(text, report)
        done = self._lane(text, report, turns.take)
        assert done is not None
        return done

    def _lane(self, text: str, report: dict[str, Any] | None, take: Callable[..., Done | None]) -> Done | None:
        """Runs a lane, or goes on with it; None where there is nothing to go on with."""
        options = self.options
        one = self._turn(text, report)
        try:
            done = take(self.store, self.pick.adapter, options.caller, options.ways, one,
                        stop=self.lease.stop.is_set, tell=self._event, busy=self._waits)  # fmt: skip
        except RopewalkError as error:
            if self.turns == 1:
                raise Unstartable(f"{error.code} {error.message}") from None
            raise
        if done is None:
            if self._before is not None and os.path.isdir(os.path.join(one.folder, "home")):
                self._before = Before(one.folder, self._before.session)  # it was handed on
            return None
        self._done, self._lane_id = done, done.id
        session = done.lane.ending.session
        self._before = Before(journal.need(self.store, done.id).record.folder, session) if session else None
        return done

    def _turn(self, text: str, report: dict[str, Any] | None) -> Turn:
        options = self.options
        number = f"{self.turns}-{self._cut}" if self._cut else str(self.turns)
        folder = os.path.join(self.bench.places.of(self.attempt), number)
        extra = {"ROPEWALK_TASK": self.task.id, "ROPEWALK_ATTEMPT": self.attempt, "ROPEWALK_TURN": str(self.turns)}
        ws = workspaces.need(self.store, self.attempt)
        return Turn(
            f"{self.attempt}/{number}", self.actor, folder, ws.path,
            self.store.objects.commit(ws.base).tree, text, options.worker, self.task.id, self.turns, self._limit, None,
            report, extra, self._before, self.pick.model, self.pick.effort, self._shape, self.task.check,
            sample=options.sample, region=self.task.region, target=self.task.target,
            limits=limits.of_task(self.task.limits, options.ways.limits, self._limit, self.spent),
            aside=memories.aside(self.board, self.task, ws.base, self.pick.adapter),
        )  # fmt: skip

    def _replayed(self, text: str) -> bool:
        """Puts what the journal has of an unchanged task into the workspace, if it passed; says so."""
        found = replay.bring(self.store, self.options, self.pick.adapter, self._turn(text, None), self.attempt)
        if found is None:
            return False
        self._lane_id, self.cached = found
        self._tell("replayed", lane=self.cached)
        return True

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
        message = prompt.message(self.task, self.attempt)
        with workspaces.held(self.store, self.attempt):
            ws = workspaces.need(self.store, self.attempt)
            change, _ = landing.commit_workspace(self.store, ws, Wish(self.actor, message))
        if change is not None:
            self._tree = self.store.objects.commit(change).tree
        return change

    def _land(self, change: str) -> Result:
        ws = workspaces.need(self.store, self.attempt)
        wanted = Change(
            self.lease, change, ws.base, self._outcome(True, 0, more={"tree": "{tree}", "landed": "{landed}"}),
            self._key, self.task.check, self._check_limit, self.bench.places.checks, self.options.ways.checks,
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
            raise Dead(self._agent_rc, f"the land could not be done: {result.words or result.how}")
        return result

    def _satisfied(self) -> Ending | Result:
        """Has the check on the target's head decide about an agent that had nothing to change (B18)."""
        head = self.bench.landing.head(self.board, self.store, self.task.target)
        # in the attempt's own folder, where whoever clears up after a dead worker finds it
        found = evidence.look(self.store, head, self._orders()._replace(folder=self.bench.places.of(self.attempt)))
        self._check_stop()
        assert found is not None
        if found.kind == "infrastructure" and found.reason != "timeout":
            raise Dead(self._agent_rc, f"the check could not be ended on the head: {found.reason or found.rc}")
        tree = self.store.objects.commit(head).tree
        if found.kind != "passed" or self.task.guard:
            # a guard's check passed before anybody began, so that it says nothing about this task
            return Result("unchanged", tree=tree, rc=found.rc, words=found.output or "nothing was changed")
        self._close(self._outcome(True, 0, more={"already": "satisfied", "tree": tree, "landed": head}), head)
        return self._ending("satisfied", landed=head)

    def _rebase(self) -> dict[str, Any] | None:
        """Brings what others landed into the workspace; gives the report when both sides changed the same lines."""
        self.bench.landing.head(self.board, self.store, self.task.target)
        with workspaces.held(self.store, self.attempt):
            ws = move.settle(self.store, workspaces.need(self.store, self.attempt))
            if move.marked(ws):
                return {"files": [{"path": path, "kinds": ["content"]} for path in move.marked(ws)]}
            done = move.rebase(self.store, ws, ws.target, self.actor)
        self._tree = self._present()
        return None if done.report is None else msgspec.to_builtins(done.report)

    # ways to end

    def _limited(self, name: limits.Name, last: Result | None) -> Ending:
        """Ends the task because a limit of its own is used up: by merit, since an heir would use up as much again."""
        words = limits.words(name, self.task.limits, self.spent)
        if last is not None and (said := last.words.strip()):
            words = f"{words}; {said.splitlines()[-1]}"
        tree = self._patiently(self._present)
        self._tell("limit_reached", limit=name, turns=self.spent.turns, tokens=self.spent.tokens,
                   dollars=self.spent.dollars)  # fmt: skip
        if self._lane_id:
            gates.note(self.store, self._lane_id, Gate(False, (f"limit: {words}"[:_NOTE],), tree=tree))
        return self._fail(Result("failed", tree=tree, rc=last.rc if last is not None else 0), words, f"limit_{name}")

    def _fail(self, result: Result, note: str = "", reason: str = "") -> Ending:
        """Publishes that the task failed by merit; it stays closed until it is reopened."""
        reasons = {"unchanged": "no_evidence", "conflict": "conflict", "refused": "refused"}
        reason = reason or ("check_timeout" if result.rc == 124 else reasons.get(result.how, ""))
        words = note or (result.words.strip().splitlines() or [""])[-1]
        more = {"note": words[:_NOTE], "tree": result.tree or self._tree, **evidence.output(result.words)}
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

    def _die(self, death: Dead) -> Ending:
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
                tokens = self._outcome(False, 1).more.get("tokens", "")
                claim.release(self.board, held, f"released: {' '.join(why.split())[:_NOTE]}", tokens)
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
        """Removes the workspace and the folder; what did not land is archived, what did may be gone on from."""
        if self._landed and self._before is not None and self._done is not None:
            context = self._done.result.context
            window = self.options.ways.window
            self.bench.sessions.keep(self.task.region, self.pick.adapter.name, self._before, context, window)
        try:
            drop(self.store, self.attempt, self.bench.actor, keep=not self._landed)
            self.bench.places.remove(self.attempt)
        except RopewalkError as error:
            self._tell("workspace_kept", reason=f"{error.code} {error.message}")
        except OSError as error:
            self._tell("workspace_kept", reason=words_of(error))
        self.store.warnings.clear()

    # small things

    def _patiently(self, step: Callable[[], _T]) -> _T:
        """Does a step again while what is in its way may pass: what an agent did is not thrown away."""
        return self.bench.patience.through(step, self.lease.stop, self._once_more)

    def _once_more(self) -> None:
        self._check_stop()
        self.lease.adopt(self.board)

    def _check_stop(self) -> None:
        if self.lease.lost:
            raise Lost
        if self.lease.stop.is_set():
            raise Stopped

    def _orders(self) -> Any:
        return evidence.orders(
            self.store, self.task.check, self._check_limit, self.bench.places.checks, self.lease.stop,
            self.options.ways.checks,
        )  # fmt: skip

    def _outcome(
        self, fixed: bool, check_rc: int, *, rc: int | None = None, reason: str = "", more: dict[str, str] | None = None
    ) -> Outcome:
        facts = {**(more or {}), **evidence.facts(self._orders())}
        if self.usage:
            facts["tokens"] = " ".join(f"{name}={count}" for name, count in sorted(self.usage.items()))
        counts = {"turns": self.turns if self.turns != 1 else 0, "conflicts": self.conflicts}
        facts |= {name: str(count) for name, count in counts.items() if count}
        if self.cached:
            facts |= {"cached": self.cached, "turns": "0"}
        return Outcome(
            fixed, self._agent_rc if rc is None else rc, check_rc, self.pick.adapter.name, self.pick.model,
            self.options.kind, round(self.seconds, 3), reason, facts,
        )  # fmt: skip

    @property
    def _shape(self) -> str:
        return "" if self.task.reply is None else msgspec.json.encode(self.task.reply).decode("utf-8")

    @property
    def _limit(self) -> float:
        return self.task.limits.seconds or self.options.seconds

    @property
    def _check_limit(self) -> float:
        return self.task.limits.check_seconds or self.options.check_seconds

    def _tell(self, kind: str, **facts: object) -> None:
        self.bench.tell(
            kind, task=self.task.id, att=self.attempt, worker=self.options.worker, model=self.pick.model,
            harness=self.pick.adapter.name, **facts,
        )  # fmt: skip
