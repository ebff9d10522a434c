"""Lets two landers wait for the lock of a store together, and prints what the second one printed.

With `--no-projection` another holds the projector's lock until both have ended.
"""

from __future__ import annotations

import json
import os
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

    def wait_for(places: int, child: subprocess.Popen[bytes]) -> None:
        """Waits until so many are in the kernel's queue for the lock."""
        end = f":{os.stat(layout.lock).st_ino}"
        while child.poll() is None:
            with open("/proc/locks", encoding="ascii") as table:
                rows = [line.split() for line in table]
            if sum(row[1] == "->" and row[6].endswith(end) for row in rows) >= places:
                return
            time.sleep(0.01)

    first = subprocess.Popen(leader, stdout=subprocess.DEVNULL)
    wait_for(1, first)
    second = subprocess.Popen(waiter, stdout=subprocess.PIPE)
    wait_for(2, second)
    lock.release()
    sys.stdout.buffer.write(second.communicate()[0])
    first.wait()
