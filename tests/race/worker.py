"""One process of a race: commits and lands as it is told, and prints what became of each change as JSON lines.

Usage: worker.py STORE NUMBER ROUNDS KINDS, with kinds from `own` (a file of its own), `region` (its lines of a
shared file), `line` (the same line as all others). It says `ready`, waits for a line on standard input, and starts.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import msgspec

from ropewalk.core.errors import ConflictError
from storekit import Kit, put

SPACE = 6


def main(root: str, number: int, rounds: int, kinds: list[str]) -> None:
    """Runs the rounds."""
    kit = Kit(root, lock_wait=120)
    agent = f"race/w{number}"
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(rounds):
        for kind in kinds:
            head = kit.main()
            if kind == "own":
                entry = put(f"own/w{number}/{n}.txt", f"{number} {n}\n")
            else:
                path = "shared.txt" if kind == "region" else "clash.txt"
                rows = kit.text(path, head).splitlines()
                rows[number * SPACE if kind == "region" else 0] = f"{number} {n}"
                entry = put(path, "\n".join(rows) + "\n")
            change = kit.commit(entry, parent=head, agent=agent).changeset
            row = {
                "kind": kind,
                "worker": number,
                "round": n,
                "change": change,
                "status": "",
                "landed": "",
                "attempts": 0,
            }
            try:
                done = kit.land(change, agent=agent)
                row.update(status=done.status, landed=done.landed, attempts=done.attempts)
            except ConflictError as error:
                paths = [f["path"] for f in error.details["report"]["files"]]
                row.update(status="conflict" if paths == ["clash.txt"] else f"conflict in {paths}")
            print(msgspec.json.encode(row).decode(), flush=True)
    kit.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","))
