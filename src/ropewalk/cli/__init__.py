"""The command line: parse, run one operation, print one envelope. Only faces read the environment or print."""

from __future__ import annotations

import sys


def _import_msgspec() -> None:
    """Imports msgspec without typing_extensions, which it uses when it can and does not need from Python 3.11 on.

    typing_extensions brings inspect, dis and sockets with it: 20 ms of each command (docs/decisions/007).
    """
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


_import_msgspec()
