"""A lander that is killed once, with SIGKILL, at a random moment in the middle of its land, and run again.

The child says on standard error when its land begins. How long lands take from there to their answer is
measured on those that are let live; the victim gets a random part of that. One that answers first was missed,
and the next one is tried. After the kill the same command runs again under the same key.
"""

from __future__ import annotations

import os
import random
import select
import signal
import statistics
import subprocess
import threading

import msgspec

from ropewalk.core import clock
from ropewalk.run import lander
from ropewalk.store.store import Store
from ropewalk.workspace.landing import Wish

_SECONDS = 300.0


class Kill(msgspec.Struct, frozen=True):
    """Is one kill that hit: whose land, how far into it (ms, and as a part of what a land takes), and what came of it.

    `recorded` says whether the killed process had published its land before it died; `again` is what the same
    command answered afterwards, `lands` how many commits of the ref carry its key.
    """

    workspace: str
    agent: str
    key: str
    pid: int
    signal: int
    after_ms: float
    part: float
    recorded: bool
    again: str
    landed: str
    lands: int
    missed: int


class KillingLander:
    """Lands by child processes and kills one of them; used by several threads."""

    def __init__(self, seed: int, warm_up: int = 3) -> None:
        self._random = random.Random(seed)
        self._warm_up = warm_up
        self._guard = threading.Lock()
        self._aiming = False
        self.durations: list[float] = []
        self.missed = 0
        self.kill: Kill | None = None

    def land(self, store: Store, name: str, wish: Wish) -> tuple[str, str]:
        """Gives (status, landed id); the child's error is raised here."""
        part = self._aim(wish)
        child = subprocess.Popen(
            lander.command(store, name, wish),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=lander.package_env(wish),
            start_new_session=True,
        )
        try:
            return self._follow(store, name, wish, child, part)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
            if part is not None:
                with self._guard:
                    self._aiming = False

    def _aim(self, wish: Wish) -> float | None:
        """Gives the part of a land after which this one is to be killed; None: let it live."""
        with self._guard:
            if self.kill or self._aiming or wish.check or len(self.durations) < self._warm_up:
                return None
            self._aiming = True
            # most of a land is over before its workspace has moved along, so early moments count more
            return 0.01 + 0.75 * self._random.random() ** 2

    def _follow(
        self, store: Store, name: str, wish: Wish, child: subprocess.Popen[bytes], part: float | None
    ) -> tuple[str, str]:
        assert child.stdout is not None and child.stderr is not None
        said = child.stderr.readline()  # the child says when its land begins; nothing when it fails before
        began = clock.monotonic()
        if part is not None and said:
            with self._guard:
                delay = part * statistics.median(self.durations)
            answered = bool(select.select([child.stdout], [], [], delay)[0])
            if not answered:
                os.killpg(child.pid, signal.SIGKILL)
            spent = clock.monotonic() - began
            out, err = child.communicate(timeout=_SECONDS)
            if child.returncode == -signal.SIGKILL and not out:
                return self._again(store, name, wish, child.pid, spent, part)
            with self._guard:
                self.missed += 1
            return lander.answer_of(child.returncode, out, said + err)
        out, err = child.communicate(timeout=_SECONDS)
        if said and not wish.check and child.returncode == 0:
            with self._guard:
                self.durations.append(clock.monotonic() - began)
        return lander.answer_of(child.returncode, out, said + err)

    def _again(self, store: Store, name: str, wish: Wish, pid: int, spent: float, part: float) -> tuple[str, str]:
        recorded = store.db.row("SELECT 1 FROM keys WHERE scope = 'land' AND key = ?", (wish.key,)) is not None
        how, landed = lander.Child().land(store, name, wish)
        with self._guard:
            self.kill = Kill(
                name, wish.agent, str(wish.key), pid, int(signal.SIGKILL), round(spent * 1000, 1), round(part, 3),
                recorded, how, landed, 0, self.missed,
            )  # fmt: skip
        return how, landed
