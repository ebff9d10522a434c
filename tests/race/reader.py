"""A process that reads a store again and again until its standard input ends; any failure ends it with a traceback.

Usage: reader.py STORE [once]. It prints how often it read.
"""

from __future__ import annotations

import os
import select
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.store import oplog
from storekit import Kit


def main(root: str, once: bool) -> None:
    """Reads all files of `main` and the newest operations, each time with a fresh hold on the store."""
    count = last = 0
    print("ready", flush=True)
    while True:
        kit = Kit(root)
        files = kit.files()
        assert files[b"clash.txt"][1].endswith(b"\n")
        newest = oplog.page(kit.store.db, None, 5)[0].op
        assert newest >= last
        last = newest
        count += 1
        kit.close()
        if once or select.select([sys.stdin], [], [], 0)[0]:
            break
    print(count, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], len(sys.argv) > 2)
