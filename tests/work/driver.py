"""A worker as a process of its own: `python -m tests.work.driver STORE JSON` prints its events and its report as lines.

The JSON names options of the worker; `command` is the agent's command line, `harness` its program's name, without both
the scripted agent works. `gateway` is a gateway's folder, with `upstreams` as URLs by name.
`beat` sets the seconds between heartbeats, `die_at` an event at which the process kills itself, `lock_wait` for how
long a lock of the store is waited for. `remote` is the address of a board on a git server, and `cache` what this host
keeps of it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgspec

from ropewalk.board.base import Board
from ropewalk.board.local import LocalBoard
from ropewalk.core.errors import RopewalkError
from ropewalk.gateway.settings import Upstream
from ropewalk.lane.adapter import Adapter
from ropewalk.lane.programs import registry
from ropewalk.lane.programs.plain import Command, Scripted
from ropewalk.run.interrupts import Interrupts
from ropewalk.run.turn import Ways
from ropewalk.run.work.loop import work
from ropewalk.run.work.options import Options
from ropewalk.store.store import Store


def main() -> int:
    """Works, and gives the report's exit code."""
    root, asked = sys.argv[1], msgspec.json.decode(sys.argv[2], type=dict[str, Any])
    command, named, beat, die_at, remote, cache = (
        asked.pop(name, None) for name in ("command", "harness", "beat", "die_at", "remote", "cache")
    )
    lock_wait = asked.pop("lock_wait", 10.0)
    harness: Adapter = Scripted() if command is None else Command(command)
    if named is not None:
        harness = registry.get(named)
    if "gateway" in asked:
        ups = {name: Upstream(url, key="k") for name, url in asked.pop("upstreams").items()}
        asked["ways"] = Ways(gateway=asked.pop("gateway"), upstreams=ups)

    def emit(kind: str, **facts: object) -> None:
        line = msgspec.json.encode({"event": kind, **facts}).decode("utf-8")
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if kind == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with Store(root, lock_wait=lock_wait) as store, Interrupts() as interrupts:
        board: Board = LocalBoard(store)
        if remote is not None:
            from ropewalk.board.remote import RemoteBoard
            from ropewalk.run.work.shared_landing import SharedLanding

            board = RemoteBoard(remote, cache)
            asked["another"] = lambda store: RemoteBoard(remote, cache)
            asked["landing"] = SharedLanding()
        if beat is not None:
            setattr(board, "beat_seconds", beat)  # noqa: B010
        try:
            report = work(
                board, store,
                Options(harness=harness, caller=dict(os.environ), stop=interrupts.stopped, emit=emit,
                        **{"worker": "w", **asked}),
            )  # fmt: skip
        except RopewalkError as error:
            emit("error", code=error.code, message=error.message)
            return 2
        emit("report", report=report)
        return report.exit


if __name__ == "__main__":
    sys.exit(main())
