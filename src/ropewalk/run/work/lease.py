"""Leases: the claims that a worker holds, kept alive by one thread for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ropewalk.board import names, observe, wire
from ropewalk.board.base import Board
from ropewalk.board.base import words as words_of
from ropewalk.board.claim import Held
from ropewalk.core import clock
from ropewalk.core.errors import RemoteError, RopewalkError
from ropewalk.store.store import Store


class Stop(threading.Event):
    """Is an event that counts as set when another one is: the end of one attempt, or of the whole worker."""

    def __init__(self, above: threading.Event) -> None:
        super().__init__()
        self._above = above

    def is_set(self) -> bool:
        """Says whether it, or the one above it, is set."""
        return super().is_set() or self._above.is_set()

    @property
    def ends_worker(self) -> bool:
        """Says whether the one above it is set."""
        return self._above.is_set()


class Lease:
    """Is a claim in use: `stop` is set when it is lost, or when the worker is to end."""

    def __init__(self, held: Held, stop: threading.Event) -> None:
        self._guard = threading.RLock()
        self._held = held
        self.stop = Stop(stop)
        self.lost = False

    @property
    def held(self) -> Held:
        """Gives the attempt with its claim as it is now."""
        with self._guard:
            return self._held

    @contextmanager
    def still(self) -> Iterator[Held]:
        """Keeps heartbeats off meanwhile, so that a step can rest on the claim as it is."""
        with self._guard:
            yield self._held

    def set(self, held: Held) -> None:
        """Notes the claim's new object; the caller has it in `still`."""
        with self._guard:
            self._held = held

    def adopt(self, board: Board) -> None:
        """Takes the claim as it is on the board, where a step of ours changed it whose end was not heard.

        Whoever takes an attempt over or ends it says so in the claim, and then it is not ours. A board that is out of
        reach still tells nothing.
        """
        with self._guard:
            try:
                board.refresh()
            except RemoteError:
                return
            ref = names.claim(self._held.task.id)
            oid, text = board.ref(ref), words_of(board, ref)
            seen = None if text is None else wire.read_claim(text)
            mine = wire.read_claim(self._held.words)
            if oid is None or text is None or seen is None or mine is None or seen.closed or seen.values_of("ended"):
                return
            if (seen.attempt, seen.host) == (mine.attempt, mine.host):
                self._held = self._held._replace(claim=oid, words=text)

    def lose(self) -> None:
        """Notes that the claim is another's, or gone, which ends what rests on it."""
        self.lost = True
        self.stop.set()


class Heart:
    """Beats for all claims of a process, with a board of its own that is opened for the first beat."""

    def __init__(self, open_board: Callable[[], tuple[Board, Store]], seconds: float, actor: str,
                 lease: float | None, tell: Callable[..., object]) -> None:  # fmt: skip
        self._open, self._seconds, self._actor, self._tell = open_board, seconds, actor, tell
        self._lease = lease or observe.lease(True, seconds)
        self._leases: list[Lease] = []
        self._guard = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ropewalk-heart", daemon=True)
        self._started = False

    def add(self, lease: Lease) -> None:
        """Begins to beat for a claim."""
        with self._guard:
            self._leases.append(lease)
            if not self._started:
                self._started = True
                self._thread.start()

    def drop(self, lease: Lease) -> None:
        """Stops to beat for a claim."""
        with self._guard:
            self._leases.remove(lease)

    def close(self) -> None:
        """Ends the thread."""
        self._end.set()
        if self._started:
            self._thread.join()

    def _run(self) -> None:
        board: Board | None = None
        store: Store | None = None
        last = clock.monotonic()
        try:
            while not self._end.wait(self._seconds):
                with self._guard:
                    leases = list(self._leases)
                if not leases:
                    last = clock.monotonic()
                    continue
                try:
                    if board is None:
                        board, store = self._open()
                    if clock.monotonic() - last > self._lease / 2:
                        # this process slept: what it holds may be another's by now (F10)
                        board.refresh()
                        leases = [lease for lease in leases if not self._is_lost(board, lease)]
                    self._beat(board, leases)
                    last = clock.monotonic()
                except RopewalkError as error:
                    # the lease is long enough for some beats that are not heard
                    self._tell("beat_failed", reason=f"{error.code} {error.message}")
        finally:
            if board is not None and store is not None:
                board.close()
                store.close()

    def _is_lost(self, board: Board, lease: Lease) -> bool:
        with lease.still() as held:
            if board.ref(names.claim(held.task.id)) == held.claim:
                return False
        lease.lose()
        return True

    def _beat(self, board: Board, leases: list[Lease]) -> None:
        for lease in leases:
            lease._guard.acquire()
        try:
            by_task = {lease._held.task.id: lease for lease in leases if not lease.lost}
            found = board.beat({task: lease._held.claim for task, lease in by_task.items()}, self._actor)
            for task, lease in by_task.items():
                new = found.get(task)
                if new is None:
                    # it may have been closed by this very worker a moment ago
                    lease.lose()
                elif new != lease._held.claim:
                    words = words_of(board, names.claim(task)) or lease._held.words
                    lease._held = lease._held._replace(claim=new, words=words)
        finally:
            for lease in leases:
                lease._guard.release()
