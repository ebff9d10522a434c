"""Asking the person at the terminal for a line, shown or not shown while it is typed."""

from __future__ import annotations

import sys


def line(prompt: str, hidden: bool = False) -> str | None:
    """Gives what is typed, without its line end; None at the end of input.

    What is `hidden` is on the screen at no time: the echo is off before the prompt appears, and what was typed before
    that is thrown away. Whatever ends it, an interrupt too, the terminal is as it was.
    """
    if not hidden:
        return _read(prompt)
    import termios

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    silent = before.copy()
    silent[3] = before[3] & ~(termios.ECHO | termios.ECHONL)
    try:
        termios.tcsetattr(fd, termios.TCSAFLUSH, silent)
        return _read(prompt)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        print(file=sys.stderr, flush=True)


def _read(prompt: str) -> str | None:
    print(prompt, end="", file=sys.stderr, flush=True)
    data = sys.stdin.buffer.readline()
    return data.decode("utf-8", "replace").rstrip("\r\n") if data else None
