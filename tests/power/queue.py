"""Lets two landers wait for the lock of a store together, and prints what the second one printed."""

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
    lock = WriterLock(layout.lock)
    lock.acquire(10)

    def wait_for(requests: int) -> None:
        while sum(name.endswith(".req") for name in os.listdir(layout.spool)) < requests:
            time.sleep(0.01)

    first = subprocess.Popen(leader, stdout=subprocess.DEVNULL)
    wait_for(1)
    second = subprocess.Popen(waiter, stdout=subprocess.PIPE)
    wait_for(2)
    lock.release()
    sys.stdout.buffer.write(second.communicate()[0])
    first.wait()
