"""Traffic rules of an account: slots, a rate, the pauses a provider asks for, and a breaker that keeps off trouble."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_FAILURES = 5
_PAUSE, _LONGEST = 10.0, 120.0
_BUSY = 5.0
_DICE = random.Random()


class Full(Exception):
    """No slot came free, or no request is allowed, within the time to wait; says when to try again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"try again in {seconds:.0f} s")
        self.seconds = max(1.0, seconds)


class Account:
    """Is what all requests with one account share."""

    def __init__(self, slots: int, per_minute: int) -> None:
        self.slots, self.per_minute = slots, per_minute
        self.busy = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.limited_until: dict[str, float] = {}
        self._sent: deque[float] = deque()
        self._failures = 0
        self._pause = _PAUSE
        self._open_until = 0.0
        self._probing = False

    def allow(self, slots: int, per_minute: int) -> None:
        """Sets how much is allowed from now on; whoever waits for a slot gets one that is new."""
        self.slots, self.per_minute = slots, per_minute
        self._wake()

    @asynccontextmanager
    async def slot(self, until: float) -> AsyncIterator[None]:
        """Gives a slot once one is free; `Full` at the moment `until` of the monotonic clock."""
        await self._take(until)
        try:
            yield
        finally:
            self.busy -= 1
            self._wake()

    async def _take(self, until: float) -> None:
        if self.busy < self.slots and not self.waiting:
            self.busy += 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(mine)
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await mine
        except BaseException as end:
            if mine.done() and not mine.cancelled():
                self.busy -= 1  # it came in the same moment
                self._wake()
            elif mine in self.waiting:
                self.waiting.remove(mine)
            if isinstance(end, TimeoutError):
                raise Full(_BUSY) from None
            raise

    def _wake(self) -> None:
        """Gives free slots to those who wait longest."""
        while self.waiting and self.busy < self.slots:
            heir = self.waiting.popleft()
            if not heir.done():
                self.busy += 1
                heir.set_result(None)

    async def turn(self, until: float, model: str = "") -> None:
        """Waits until the provider's own pause is over and the rate allows a request; `Full` when that is too late."""
        while True:
            now = time.monotonic()
            while self._sent and self._sent[0] < now - 60:
                self._sent.popleft()
            wait = self.limited(model)
            if self.per_minute and len(self._sent) >= self.per_minute:
                wait = max(wait, self._sent[0] + 60 - now)
            if not wait:
                if self.per_minute:
                    self._sent.append(now)
                return
            if now + wait > until:
                raise Full(wait)
            await asyncio.sleep(wait + _DICE.uniform(0, min(0.25, wait / 10)))  # all at once would be refused again

    def is_open(self) -> float:
        """Gives for how many seconds the breaker keeps requests off; 0 when it lets one through."""
        left = self._open_until - time.monotonic()
        return left if left > 0 else 1.0 if self._probing else 0.0

    def begin(self) -> bool:
        """Notes that a request sets out; says whether it is the one whose end decides about an open breaker."""
        if self._failures < _FAILURES or self._probing:
            return False
        self._probing = True
        return True

    def end(self, probe: bool) -> None:
        """Notes that a request for which `begin` said so is over, however it ended."""
        if probe:
            self._probing = False

    def failed(self) -> None:
        """Notes a request that the provider failed; after some in a row the breaker opens, longer each time."""
        self._failures += 1
        if self._failures >= _FAILURES and self._open_until <= time.monotonic():
            self._open_until = time.monotonic() + self._pause
            self._pause = min(_LONGEST, self._pause * 2)

    def limit(self, seconds: float, model: str = "") -> None:
        """Notes that the provider asked for a pause, which is of one model: others have limits of their own."""
        now = time.monotonic()
        self.limited_until = {name: until for name, until in self.limited_until.items() if until > now}
        self.limited_until[model] = max(self.limited_until.get(model, 0.0), now + seconds)

    def limited(self, model: str = "") -> float:
        """Gives for how many seconds more the provider asked to be left alone with requests to a model."""
        return max(0.0, self.limited_until.get(model, 0.0) - time.monotonic())

    def worked(self) -> None:
        """Notes a request that the provider answered."""
        self._failures = 0
        self._pause = _PAUSE
        self._open_until = 0.0
