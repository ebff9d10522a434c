"""Lets two landers wait for the lock of a store together, and prints what the second one printed.

With `--no-projection` another holds the projector's lock until both have ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from ropewalk.store.layout import Layout
from ropewalk.store.lock import WriterLock

if __name__ == "__main__":
    layout = Layout(sys.argv[1])
    leader, waiter = json.loads(sys.argv[2])
    lock, projector = WriterLock(layout.lock), WriterLock(os.path.join(layout.root, "projector.lock"))
    lock.acquire(10)
    if sys.argv[3:] == ["--no-projection"]:
        projector.acquire(10)

    def wait_for(processes: int, child: subprocess.Popen[bytes]) -> None:
        """Waits until so many are in the kernel's queue for the lock."""
        end = f":{os.stat(layout.lock).st_ino}"
        while child.poll() is None:
            with open("/proc/locks", encoding="ascii") as table:
                rows = [line.split() for line in table]
            # a table that changes while it is read may have a row twice
            if len({row[5] for row in rows if row[1] == "->" and row[6].endswith(end)}) >= processes:
                return
            time.sleep(0.01)

    patient = os.environ | {"ROPEWALK_LOCK_WAIT": "100"}
    first = subprocess.Popen(leader, stdout=subprocess.DEVNULL, env=patient)
    wait_for(1, first)
    second = subprocess.Popen(waiter, stdout=subprocess.PIPE)
    wait_for(2, second)
    lock.release()
    sys.stdout.buffer.write(second.communicate()[0])
    assert first.wait() == -signal.SIGKILL, "the first one was to be killed before its sync"
