"""A `rw` command that waits: `python -m tests.crash.held READY GO WORD…`.

It imports what its operation needs, says so by a byte on the descriptor READY, and runs the command's words once a
byte comes on GO. So a tracer sees the command's own steps alone.
"""

from __future__ import annotations

import os
import sys

from ropewalk.cli import main, parse, special
from ropewalk.operations import envelope, registry


def wait(ready: int, go: int) -> None:
    """Says that all is imported, and waits for the word to go."""
    if os.geteuid():
        import ctypes

        # PR_SET_PTRACER, PR_SET_PTRACER_ANY: where only descendants may be traced
        ctypes.CDLL(None).prctl(0x59616D61, -1, 0, 0, 0)
    os.write(ready, b".")
    os.close(ready)
    if not os.read(go, 1):
        sys.exit("nobody let the command go")
    os.close(go)


if __name__ == "__main__":
    words = sys.argv[3:]
    assert main and parse and special and envelope
    name = " ".join(words[:2]) if words[0] in registry.GROUPS else words[0]
    if name not in main.SPECIAL:
        registry.load(name)
    wait(int(sys.argv[1]), int(sys.argv[2]))
    sys.argv = ["rw", *words]
    sys.exit(main.main())
