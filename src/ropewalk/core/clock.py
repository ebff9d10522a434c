"""The clock: seconds since 1970 for records, a monotonic one for waits."""

from __future__ import annotations

import time
from functools import cache


def now() -> int:
    """Gives whole seconds since 1970, UTC."""
    return int(time.time())


def monotonic() -> float:
    """Gives seconds of a clock that never goes back; for durations and deadlines only."""
    return time.monotonic()


@cache
def boot_id() -> str:
    """Gives an id that the kernel draws anew at each boot; on macOS the time of the boot.

    Two different ids mean that unsynced data may have been lost between them.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        from ropewalk.core.process import run

        return run(["sysctl", "-n", "kern.bootsessionuuid"], timeout=5).out.decode("ascii", "replace").strip()
