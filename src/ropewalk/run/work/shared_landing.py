"""Landing on a board that many hosts share: finished changes wait in the board's queue, and one worker lands for all.

Whoever finds the landing lease free takes it and lands what waits until its own change is settled (shared_holder);
the others look at the board now and then, and learn from it what became of theirs. No check runs without the lease,
because a check on a head that another moves meanwhile has to be run again, and many workers would never end (F7).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from ropewalk.board import holder, names, queue, state, wire
from ropewalk.board import lease as leases
from ropewalk.board.base import Board, words
from ropewalk.board.queue import Entry, Wanted
from ropewalk.board.remote import RemoteBoard
from ropewalk.core import clock
from ropewalk.core.errors import FencedError, InternalError, NotFoundError, RemoteError
from ropewalk.run.work import shared_pending, shared_refs
from ropewalk.run.work.landing import Change, Result
from ropewalk.run.work.patience import PASSING
from ropewalk.run.work.shared_bell import Bell, ring
from ropewalk.run.work.shared_holder import Holder, Protected, Settings
from ropewalk.store.store import Store

_TICK = 0.1
_FIRST_POLL, _LAST_POLL, _SLOWER = 0.5, 5.0, 1.3
_OUTAGE_SECONDS = 300.0
_TRIES = 20


class SharedLanding:
    """Lands through the queue of a board on a git server; one object serves all workers of a process.

    `jobs` checks run at once, as many as there are processors without it. `tell` hears of events: their kind and facts.
    """

    def __init__(self, *, jobs: int = 0, tell: Callable[..., object] = lambda kind, **facts: None) -> None:
        self._jobs, self._tell = jobs, tell
        self._protected: set[str] = set()
        self._prefixes: dict[str, str] = {}
        self._looked: dict[str, str] = {}

    def head(self, board: Board, store: Store, target: str) -> str:
        """Gives the head of a target branch, and brings it into the store."""
        remote = _remote(board)
        remote.refresh()
        found = remote.ref(names.branch(target))
        if found is None:
            raise NotFoundError(
                f"there is no branch {target} on {board.name}", hint="a task lands on a branch that is there"
            )
        self._prefixes[target] = shared_refs.prefix(remote)
        shared_refs.bring(remote, store, {self.ref(target): found}, "ropewalk/board")
        return found

    def ref(self, target: str) -> str:
        """Gives the ref of the store that shows the board's target; `head` was called for it before."""
        return f"{self._prefixes[target]}heads/{target}"

    def land(self, board: Board, store: Store, change: Change) -> Result:
        """Lands a change once its check passed on the very tree that it makes, whichever worker does it."""
        remote = _remote(board)
        remote.refresh()
        state.law(remote)
        target = change.lease.held.task.target
        if target in self._protected or shared_pending.is_protected(remote, target):
            return shared_pending.land(remote, store, change, self._jobs)
        settings = Settings(change.checks, self._jobs, self._tell, change.cage)
        return _Wait(remote, store, change, settings, self._protected).run()

    def settle(self, board: Board, store: Store, actor: str) -> list[str]:
        """Closes the tasks whose change others have merged, as far as the last look shows; gives them."""
        return shared_pending.settle(_remote(board), store, actor, self._looked)


def _remote(board: Board) -> RemoteBoard:
    if not isinstance(board, RemoteBoard):
        raise InternalError("a shared landing is for a board on a git server")
    return board


class _Wait:
    """Is one change on its way through the queue."""

    def __init__(
        self, board: RemoteBoard, store: Store, change: Change, settings: Settings, protected: set[str]
    ) -> None:
        self.board, self.store, self.change, self.settings = board, store, change, settings
        self.protected = protected
        self.lease, self.target = change.lease, change.lease.held.task.target
        self._poll = _FIRST_POLL
        self._free = 0

    def run(self) -> Result:
        """Puts the change into the queue and waits for what becomes of it, landing for all when it is its turn."""
        board, change = self.board, self.change
        if (before := self._sure(self._ended)) is not None:
            return before
        tree = self.store.objects.commit(change.change).tree
        wanted = Wanted(change.change, tree, change.base, change.command, change.seconds, change.outcome)
        self.store.expose()  # without a sync: who lands it takes it from the server
        board.lend(os.path.join(self.store.layout.repo, "objects"))
        try:
            with self.lease.still() as held:
                entry, held = queue.put(board, held, wanted)
                self.lease.set(held)
        except FencedError as error:
            return Result("fenced", words=error.message)
        self.settings.tell("landing_queued", task=entry.task, target=self.target, place=entry.ref.rsplit("/", 1)[1])
        with Bell(self.board.folder, entry.attempt) as bell:
            return self._wait(entry, bell)

    def _wait(self, entry: Entry, bell: Bell) -> Result:
        since: float | None = None
        lost = 0
        while True:
            try:
                self.board.refresh()
                if (done := self._sure(lambda: self._outcome(entry))) is not None:
                    return done
                if self.lease.stop.is_set():
                    if self._leave():
                        return Result("stopped")
                    # it landed a moment ago, which the next look tells; or the claim was changed by who knows whom
                    lost += 1
                    if lost > _TRIES:
                        return Result("fenced", words=f"{entry.task} is not claimed as {entry.attempt} left it")
                elif self._serve(entry):
                    since = None
                    continue
                since = None
            except RemoteError as error:
                now = clock.monotonic()
                since = since or now
                if error.details.get("reason") not in PASSING or now - since > _OUTAGE_SECONDS:
                    raise
                if self.lease.stop.is_set():
                    return Result("stopped", words=error.message)
            self._pause(bell)

    def _pause(self, bell: Bell) -> None:
        """Waits until it is time to look again, who lands says so, or the attempt is to end; the times drift apart."""
        until = clock.monotonic() + self._poll * random.uniform(0.7, 1.3)
        self._poll = min(self._poll * _SLOWER, _LAST_POLL)
        # an event that counts as set when another is does not wake who waits for it
        while not self.lease.stop.is_set() and (left := until - clock.monotonic()) > 0 and not bell.heard():
            self.lease.stop.wait(min(left, _TICK))

    def _ended(self) -> Result | None:
        """Gives how the attempt ended, where the board says that it did.

        A server's refs are listed while a push moves them one after the other, so a claim may be seen closed before
        its verdict is there.
        """
        held = self.lease.held
        text = words(self.board, names.verdict(held.task.id))
        verdict = wire.read_verdict(text) if text is not None else None
        if verdict is not None and verdict.attempt == held.attempt:
            commit = self.board.ref(names.returned(held.task.id)) or ""
            pending = verdict.values.get("landed") == "pending"
            return Result("pending" if pending else "landed", commit, verdict.values.get("tree", ""))
        claim = wire.read_claim(words(self.board, names.claim(held.task.id)) or "")
        if claim is None or claim.attempt != held.attempt:
            return Result("fenced", words=f"{held.task.id} is not claimed by {held.attempt} any more")
        return None

    def _sure(self, look: Callable[[], Result | None]) -> Result | None:
        """Gives what a look at the board says became of the change; a loss is believed when a second one says so."""
        done = look()
        if done is not None and done.how in ("fenced", "retry"):
            self.board.refresh()
            done = look()
        if done is not None and done.how == "fenced":
            self.lease.lose()
        return done

    def _outcome(self, entry: Entry) -> Result | None:
        """Gives what became of the change, where that stands."""
        if (ended := self._ended()) is not None:
            return ended
        told = queue.result(self.board, entry)
        if told is None:
            closed = queue.holder_of(self.board, entry.task) is None
            if closed or self.board.ref(entry.ref) == entry.id:
                return None
            return Result("retry", words="its place in the landing queue is gone")
        if not self._leave():
            return None
        if told.state == "protected":
            self.protected.add(self.target)
            return shared_pending.land(self.board, self.store, self.change, self.settings.jobs)
        facts = {name: value for name, value in told.facts.items() if name in Result._fields and name != "how"}
        return Result(told.state, **facts)  # type: ignore[arg-type]

    def _leave(self) -> bool:
        """Takes the change out of the queue, or what is told of it; says whether the claim still stood."""
        try:
            with self.lease.still() as held:
                self.lease.set(queue.leave(self.board, held))
            return True
        except FencedError:
            return False

    def _serve(self, entry: Entry) -> bool:
        """Lands for all when the lease is to be had; says whether it did."""
        held = self.lease.held
        ref = names.landing_lock(self.target)
        if self.board.ref(ref) is not None:
            self._free = 0
            if not leases.may_take(self.board, self.target, held.attempt, self._poll):
                return False
        else:
            # whose change is the first takes it at once, the others when nobody does
            self._free, self._poll = self._free + 1, _FIRST_POLL
            entries, _ = queue.waiting(self.board, self.target)
            if entries and entries[0].ref != entry.ref and self._free < 3:
                return False
        got = leases.take(self.board, self.target, held.attempt, holder.mine(), held.actor, self._poll)
        if got is None:
            return False
        self._free, self._poll = 0, _FIRST_POLL
        self.settings.tell("landing_lease", target=self.target)
        serving = Holder(self.board, self.store, got, entry, self.lease, self.settings)
        try:
            serving.serve()
        except Protected:
            self.protected.add(self.target)
        except FencedError:
            pass  # thought dead, and another lands now
        finally:
            self._release(serving)
        return True

    def _release(self, serving: Holder) -> None:
        try:
            if not serving.is_over:
                leases.release(self.board, serving.lease)
        except RemoteError:
            return  # the board is out of reach; this process ends or beats no more, so that the lease ends by itself
        entries, _ = queue.waiting(self.board, self.target)
        for entry in entries[:1]:
            ring(self.board.folder, entry.attempt)
