"""Limits: what a forge is known to refuse, found before anything is sent to it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ropewalk.core.errors import RemoteError
from ropewalk.remote import transport
from ropewalk.remote.transport import Place
from ropewalk.store.store import Store

LARGEST = {"github.com": 100 << 20}
"""Is how many bytes a file may have at most, by host and its subdomains."""

_HOST = re.compile(r"(?:[a-z][a-z0-9+.-]*://)?(?:[^@/]*@)?([^/:@]+)[:/]", re.IGNORECASE)


def largest(there: Place) -> int | None:
    """Gives how many bytes a file may have there at most; None where no limit is known."""
    found = _HOST.match(there.address) if there.path is None else None
    host = f".{found[1].lower()}" if found else ""
    return next((limit for name, limit in LARGEST.items() if host.endswith(f".{name}")), None)


def check(store: Store, there: Place, head: str, have: Sequence[str]) -> None:
    """Refuses to send what the other side is known to refuse: `E_REMOTE` with the files and their sizes."""
    limit = largest(there)
    found = larger(store, head, have, limit) if limit is not None else []
    if found and limit is not None:
        files = ", ".join(f"{path} ({size >> 20} MiB)" for path, size in found[:5])
        raise RemoteError(
            f"{transport.shown(there)} takes no file over {limit >> 20} MiB, and the history has {files}",
            hint="land the change without them, or keep them in Git LFS; what is in a pushed history stays in it",
            repository=transport.shown(there), reason="too_large", files=[path for path, _ in found[:100]],
        )  # fmt: skip


def larger(store: Store, head: str, have: Sequence[str], limit: int) -> list[tuple[str, int]]:
    """Gives (path, size) of each blob over a limit that a head reaches and some commits do not."""
    asked = "".join([f"{head}\n", *(f"^{oid}\n" for oid in have)]).encode("ascii")
    walk = ["rev-list", "--objects", "--stdin"]
    omitted = store.git(*walk, f"--filter=blob:limit={limit + 1}", "--filter-print-omitted", stdin=asked, timeout=600)
    large = {line[1:41] for line in omitted.text().split("\n") if line.startswith("~")}
    if not large:
        return []
    named = (line.partition(" ") for line in store.git(*walk, stdin=asked, timeout=600).text().split("\n"))
    paths = {oid: path for oid, _, path in named if oid in large}
    asked = "".join(f"{oid}\n" for oid in sorted(paths)).encode("ascii")
    sizes = store.git("cat-file", "--batch-check=%(objectname) %(objectsize)", stdin=asked, timeout=60).text()
    return [(paths[oid], int(size)) for oid, size in (line.split() for line in sizes.split("\n"))]
