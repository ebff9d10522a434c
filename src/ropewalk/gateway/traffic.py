"""Traffic rules of an account: slots, a rate, and a breaker that keeps off a provider in trouble."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_FAILURES = 5
_PAUSE, _LONGEST = 10.0, 120.0


class Full(Exception):
    """No slot came free, or the rate allows no request, within the time to wait; says when to try again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"try again in {seconds:.0f} s")
        self.seconds = max(1.0, seconds)


class Account:
    """Is what all requests with one account share."""

    def __init__(self, slots: int, per_minute: int) -> None:
        self.slots, self.per_minute = slots, per_minute
        self.busy = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.limited_until = 0.0
        self._sent: deque[float] = deque()
        self._failures = 0
        self._pause = _PAUSE
        self._open_until = 0.0

    @asynccontextmanager
    async def slot(self, seconds: float) -> AsyncIterator[None]:
        """Gives a slot once one is free and the rate allows it; `Full` after `seconds`."""
        until = time.monotonic() + seconds
        await self._take(until)
        try:
            await self._pace(until)
            yield
        finally:
            self._give()

    async def _take(self, until: float) -> None:
        if self.busy < self.slots and not self.waiting:
            self.busy += 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(mine)
        try:
            await asyncio.wait_for(asyncio.shield(mine), max(0.0, until - time.monotonic()))
        except (TimeoutError, asyncio.CancelledError) as end:
            if mine.done() and not mine.cancelled():
                self._give()  # it came in the same moment
            else:
                mine.cancel()
                if mine in self.waiting:
                    self.waiting.remove(mine)
            if isinstance(end, asyncio.CancelledError):
                raise
            raise Full(5.0) from None

    def _give(self) -> None:
        while self.waiting:
            heir = self.waiting.popleft()
            if not heir.done():
                heir.set_result(None)  # the slot goes to whoever waits longest
                return
        self.busy -= 1

    async def _pace(self, until: float) -> None:
        if not self.per_minute:
            return
        while True:
            now = time.monotonic()
            while self._sent and self._sent[0] < now - 60:
                self._sent.popleft()
            if len(self._sent) < self.per_minute:
                self._sent.append(now)
                return
            wait = self._sent[0] + 60 - now
            if now + wait > until:
                raise Full(wait)
            await asyncio.sleep(wait)

    def is_open(self) -> float:
        """Gives for how many seconds the breaker keeps requests off; 0 when it lets them through."""
        return max(0.0, self._open_until - time.monotonic())

    def failed(self) -> None:
        """Notes a request that the provider failed; after some in a row the breaker opens, longer each time."""
        self._failures += 1
        if self._failures >= _FAILURES:
            self._open_until = time.monotonic() + self._pause
            self._pause = min(_LONGEST, self._pause * 2)
            self._failures = _FAILURES - 1  # one try when it closes decides

    def limit(self, seconds: float) -> None:
        """Notes that the provider asked for a pause."""
        self.limited_until = max(self.limited_until, time.monotonic() + seconds)

    def limited(self) -> float:
        """Gives for how many seconds more the provider asked to be left alone."""
        return max(0.0, self.limited_until - time.monotonic())

    def worked(self) -> None:
        """Notes a request that the provider answered."""
        self._failures = 0
        self._pause = _PAUSE
