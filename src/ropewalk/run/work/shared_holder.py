"""The holder of a landing lease: it lands what waits in a board's queue, for all workers, while its own waits there.

The store's queue does the work on a ref of its own that begins at the target's head: checks run at once on the trees
that the changes would make on top of one another, and what is to blame is dropped. What has passed goes to the board
in order, each prefix as one push with every ref that rests on it. A push that is refused says that something is not
as it was looked at: the rest is done again on what is there now, and checks that passed on the same tree stay passed.
"""

from __future__ import annotations

import os
import queue as queues
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from ropewalk.board import lease, names, queue, state
from ropewalk.board.base import Step, attempt
from ropewalk.board.lease import Lease
from ropewalk.board.queue import Entry, Gone, Place, Wanted
from ropewalk.board.remote import RemoteBoard
from ropewalk.board.wire import Object
from ropewalk.core import clock
from ropewalk.core.errors import CasMismatchError, InternalError, RemoteError, RopewalkError
from ropewalk.core.ids import short_ref
from ropewalk.run.work import shared_refs
from ropewalk.run.work.evidence import SHELL
from ropewalk.run.work.landing import Result, refused
from ropewalk.run.work.lease import Lease as Own
from ropewalk.run.work.shared_bell import ring
from ropewalk.store import land
from ropewalk.store.land import Landed
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store
from ropewalk.workspace import drive, setup
from ropewalk.workspace.check import Cage
from ropewalk.workspace.drive import Outcome
from ropewalk.workspace.verdict import Command

BEHIND = 16
"""Is how many changes behind its own a holder takes along in one go, so that its own worker goes on some time."""

_LOOK_SECONDS, _TICK = 3.0, 0.1
_REBUILDS = 20


class Again(Exception):
    """What was landed here can't be pushed: the rest is to be done anew on the board as it is now."""


class Protected(Exception):
    """The server lets nobody push the target."""


class Settings(NamedTuple):
    """Is how a holder works: the folder that checks run in, how many at once (0: as many as processors), and who hears.

    `tell` gets events: their kind and their facts. `cage` holds the checks.
    """

    checks: str
    jobs: int
    tell: Callable[..., object]
    cage: Cage | None = None


class Holder:
    """Lands for everybody as long as the lease is held; used by one thread."""

    def __init__(
        self, board: RemoteBoard, store: Store, held: Lease, mine: Entry, own: Own, settings: Settings
    ) -> None:
        self.board, self.store, self.lease, self.mine, self.own = board, store, held, mine, own
        self.settings = settings
        self.branch = names.branch(held.target)
        self.is_over = False
        self._beaten = clock.monotonic()
        self._command = drive.orders(
            [*SHELL, "true"], 1.0, settings.checks, policy=setup.policy_of(store), cage=settings.cage
        )

    def serve(self) -> None:
        """Lands what waits until one's own change is settled. Raises `E_FENCED` when the lease is another's."""
        board = self.board
        board.lend(os.path.join(self.store.layout.repo, "objects"))
        shared_refs.sweep(board, self.store, self.lease.actor)
        while not self.is_over and not self._ends():
            board.refresh()
            if not lease.is_held(board, self.lease):
                raise lease.lost(self.lease)
            state.law(board)
            entries, stale = queue.waiting(board, self.lease.target)
            if stale:
                self._drop(stale)
            place = next((n for n, entry in enumerate(entries) if entry.ref == self.mine.ref), None)
            if place is None or entries[place].id != self.mine.id:
                return
            try:
                self._land(entries[: place + 1 + BEHIND])
            except Again:
                continue
            except Protected:
                self._tell("protected")  # so that each has its change merged by others (F13)
                raise

    def _ends(self) -> bool:
        return self.own.stop.ends_worker

    def _drop(self, stale: Sequence[Move]) -> None:
        attempt(self.board, Step("queue_tidy", self.lease.actor, stale))  # others tidy too

    def _tell(self, how: str, words: str = "", only: Callable[[Entry], bool] = lambda entry: True) -> None:
        """Tells all who wait, or some of them, that the holder can do nothing for their changes, and why."""
        board = self.board
        for _ in range(_REBUILDS):
            board.refresh()
            entries = [entry for entry in queue.waiting(board, self.lease.target)[0] if only(entry)]
            told = [queue.told(entry, how, {"words": words}) for entry in entries]
            step = Step("queue_tell", self.lease.actor, [move for move, _ in told], [one for _, one in told])
            if not told or attempt(board, step) is None:
                for entry in entries:
                    ring(board.folder, entry.attempt)
                return

    # one batch

    def _land(self, entries: Sequence[Entry]) -> None:
        """Lands a batch and pushes it as it comes, until all of it is settled; `Again` when the board is another."""
        head = self.board.ref(self.branch)
        if head is None:
            return self._tell("refused", f"there is no branch {self.lease.target} to land on")
        self.settings.tell("landing_batch", target=self.lease.target, waiting=len(entries))
        changes = {f"change-{number}": entry.id for number, entry in enumerate(entries)}
        with shared_refs.brought(self.board, self.store, {"head": head, **changes}, self.lease.actor) as folder:
            ref = f"{folder}head"
            run = _Run(self.store.layout.root, ref, entries, self._command, self.settings)
            batch = _Batch(head, entries)
            try:
                looked = clock.monotonic()
                while not batch.is_done:
                    batch.add(run.take(_TICK))
                    if self._ends():
                        return
                    self._push(batch)
                    if clock.monotonic() - looked > _LOOK_SECONDS:
                        self._look(batch)
                        looked = clock.monotonic()
            finally:
                run.end()

    def _look(self, batch: _Batch) -> None:
        """Sees whether the board is still what the batch is made on, and shows that the holder lives."""
        board = self.board
        board.refresh()
        if not lease.is_held(board, self.lease):
            raise lease.lost(self.lease)
        if board.ref(self.branch) != batch.head or any(not _waits(board, entry) for entry in batch.left()):
            raise Again
        if clock.monotonic() - self._beaten > lease.BEAT_SECONDS:
            self.lease = lease.beat(board, self.lease)
            self._beaten = clock.monotonic()

    def _push(self, batch: _Batch) -> None:
        """Pushes what is settled, in order, as one step."""
        ready = batch.ready()
        if not ready:
            return
        self.store.expose()  # without a sync: what it says is the server's to keep, and nothing was promised here
        why: CasMismatchError | None = None
        for _ in range(_REBUILDS):
            if any(entry.ref == self.mine.ref for entry, _ in ready):
                with self.own.still():
                    why = self._try(batch, ready)
            else:
                why = self._try(batch, ready)
            if why is None:
                return
        # a ref is where no look has it: something of that task is there that is not to be there
        stuck = why.details.get("ref") if why is not None else None
        self._tell("refused", why.message if why is not None else "", lambda entry: stuck in _refs_of(entry))
        raise Again

    def _try(self, batch: _Batch, ready: Sequence[tuple[Entry, Outcome]]) -> CasMismatchError | None:
        """Pushes once; gives what was not as it has to be. `Again` when it can't be taken like this any more."""
        board = self.board
        # the last push lets the lease go; one's own is in every batch
        is_last = len(ready) == len(batch.left())
        new_lease, beat, made = lease.beaten(self.lease)
        try:
            moves, objects, head = self._moves(batch, ready)
        except Gone:
            raise Again from None
        moves.append(Move(beat.name, beat.old, None) if is_last else beat)
        try:
            board.push(Step("land", self.lease.actor, moves, objects if is_last else [*objects, made]))
        except CasMismatchError as error:
            board.refresh()
            if not lease.is_held(board, self.lease):
                raise lease.lost(self.lease) from None
            if board.ref(self.branch) != batch.head:
                self.settings.tell("landing_head_moved", target=self.lease.target)
                raise Again from None
            return error  # a heartbeat came between
        except RemoteError as error:
            if error.details.get("reason") == "rejected" and error.details.get("ref") == self.lease.target:
                raise Protected from None
            raise
        self.lease, self._beaten, self.is_over = new_lease, clock.monotonic(), is_last
        batch.pushed(ready, head)
        for entry, _ in ready:
            ring(board.folder, entry.attempt)
        landed = [entry.task for entry, outcome in ready if isinstance(outcome.result, Landed)]
        self.settings.tell("landing_pushed", target=self.lease.target, tasks=landed, head=head)
        return None

    def _moves(self, batch: _Batch, ready: Sequence[tuple[Entry, Outcome]]) -> tuple[list[Move], list[Object], str]:
        moves: list[Move] = []
        objects: list[Object] = []
        head = batch.head
        for entry, outcome in ready:
            if not _waits(self.board, entry):
                raise Gone(entry)
            result = outcome.result
            if isinstance(result, Landed) and result.status == "landed":
                head = result.landed
                at = Place(head, self.store.objects.commit(head).tree, self._command.command.environment)
                its, new = queue.landed(self.board, entry, at)
                moves += its
                objects += new
            else:
                told = refused(result) if isinstance(result, RopewalkError) else Result("unchanged")
                move, said = queue.told(entry, told.how, told._asdict())
                moves.append(move)
                objects.append(said)
        if head != batch.head:
            moves.append(Move(self.branch, batch.head, head))
        return moves, objects, head


def _refs_of(entry: Entry) -> list[str]:
    """Gives the refs that are made for a task when it has landed, as errors name them."""
    return [short_ref(name) for name in (names.returned(entry.task), names.verdict(entry.task))]


def _waits(board: RemoteBoard, entry: Entry) -> bool:
    """Says whether a change still waits, and its attempt holds the claim."""
    return board.ref(entry.ref) == entry.id and queue.holder_of(board, entry.task) == entry.attempt


class _Batch:
    """Is what became of a batch so far: what is pushed, and what is settled in the store and still to be pushed."""

    def __init__(self, head: str, entries: Sequence[Entry]) -> None:
        self.head = head
        self._left = dict(enumerate(entries))
        self._settled: dict[int, Outcome] = {}

    def add(self, outcomes: Sequence[tuple[int, Outcome]]) -> None:
        """Notes what the store decided."""
        self._settled.update(outcomes)

    @property
    def is_done(self) -> bool:
        """Says whether all is pushed."""
        return not self._left

    def left(self) -> list[Entry]:
        """Gives what is not pushed yet."""
        return list(self._left.values())

    def ready(self) -> list[tuple[Entry, Outcome]]:
        """Gives what can be pushed: lands, each on the one before, and then what the head they make has decided."""
        lands = {}
        others = []
        for number, outcome in sorted(self._settled.items()):
            result = outcome.result
            if isinstance(result, Landed) and result.status == "landed":
                lands[result.merged_onto] = number
            else:
                others.append(number)
        order = []
        at = self.head
        while (number := lands.pop(at, -1)) >= 0:
            order.append(number)
            landed = self._settled[number].result
            assert isinstance(landed, Landed)
            at = landed.landed
        if not lands:
            order += others
        return [(self._left[number], self._settled[number]) for number in order]

    def pushed(self, ready: Sequence[tuple[Entry, Outcome]], head: str) -> None:
        """Notes what was pushed."""
        gone = {entry.ref for entry, _ in ready}
        for number in [n for n, entry in self._left.items() if entry.ref in gone]:
            del self._left[number]
            del self._settled[number]
        self.head = head


class _Run:
    """Is the store's queue at work on a batch, in a thread with a store of its own."""

    def __init__(self, root: str, ref: str, entries: Sequence[Entry], orders: drive.Orders, settings: Settings) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._root, self._ref, self._entries = root, ref, entries
        self._stop = threading.Event()
        self._how = orders._replace(stop=self._stop, jobs=settings.jobs or os.cpu_count() or 1)
        self._out: queues.SimpleQueue[tuple[int, Outcome]] = queues.SimpleQueue()
        self._threads = ThreadPoolExecutor(1, "ropewalk-landing")
        self._work = self._threads.submit(self._land)

    def _land(self) -> None:
        with Store(self._root) as store:
            requests = [
                land.request(agent=entry.actor, change=entry.wanted.candidate, ref=self._ref) for entry in self._entries
            ]
            commands = [self._command(entry.wanted) for entry in self._entries]
            drive.land_checked(
                store, self._ref, requests, self._how, commands=commands,
                ended=lambda number, outcome: self._out.put((number, outcome)),
            )  # fmt: skip

    def _command(self, wanted: Wanted) -> Command:
        words = (*SHELL, wanted.check)
        return msgspec.structs.replace(self._how.command, argv=words, seconds=wanted.check_seconds)

    def take(self, seconds: float) -> list[tuple[int, Outcome]]:
        """Gives what was decided since the last call, after a wait when there is nothing; raises the work's failure."""
        found: list[tuple[int, Outcome]] = []
        is_over = self._work.done()
        try:
            found.append(self._out.get(timeout=seconds))
            while True:
                found.append(self._out.get_nowait())
        except queues.Empty:
            pass
        if is_over and not found:
            self._work.result()
            raise InternalError("the store's queue has ended, and left changes of the batch undecided")
        return found

    def end(self) -> None:
        """Ends the checks and waits until nothing of them is left."""
        self._stop.set()
        self._threads.shutdown()
