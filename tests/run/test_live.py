"""The live view: drawn in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess

from .conftest import Runs, task


def test_on_a_terminal_what_runs_is_drawn_in_place(runs: Runs) -> None:
    argv = runs.argv([task("one", {"put": "one", "text": "1\n"}), task("bad", {"exit": 3})], "--json")
    main, side = pty.openpty()
    child = subprocess.Popen(
        argv,
        cwd=runs.folder,
        env=runs.env | {"TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=side,
        stdin=subprocess.DEVNULL,
    )
    os.close(side)
    shown = b""
    try:
        while part := os.read(main, 65_536):
            shown += part
    except OSError:
        pass  # the other end is closed
    os.close(main)
    out, _ = child.communicate(timeout=30)
    assert child.returncode == 10 and out.count(b"\n") == 1
    assert b"\x1b[2F\x1b[J" in shown and b"1 landed" in shown
    assert b"one: landed" in shown and b"the agent ended with 3" in shown
    last = shown.rpartition(b"\x1b[J")[2]
    assert b"running" not in last


def test_elsewhere_it_is_plain_lines(runs: Runs) -> None:
    argv = runs.argv([task("one", {"put": "one", "text": "1\n"})])
    done = subprocess.run(argv, cwd=runs.folder, env=runs.env | {"TERM": "xterm"}, capture_output=True, timeout=60)
    assert b"\x1b" not in done.stderr and b"one: landed" in done.stderr
