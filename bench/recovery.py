"""What the first command after a power loss spends, by the store's size, and what `verify --deep` does.

The boot id in the database is changed, which is what tells ropewalk of a boot. Objects are small blobs: loose files,
rows of the journal that git was shown as packs of ours, or one lasting pack.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import common

KINDS = ("loose", "journal", "packed")


def fill(store: Any, kind: str, count: int) -> None:
    """Puts small objects into a store."""
    from ropewalk.store import maintain

    blobs = [common.text(number, 300, kind).encode() for number in range(count)]
    if kind == "loose":
        for blob in blobs:
            store.objects.loose.write("blob", blob)
        return
    for start in range(0, count, 500):
        with store.transaction() as tx:
            for blob in blobs[start : start + 500]:
                store.objects.write("blob", blob)
            tx.journal(store.objects.take_new())
    if kind == "packed":
        with maintain.maintenance(store, wait=True):
            maintain.checkpoint(store)


def measure(root: Path, kind: str, count: int) -> dict[str, Any]:
    """Gives the seconds of a first and of a second opening after a boot, and of a deep verification."""
    from ropewalk.store import verify
    from ropewalk.store.store import Store

    with Store(str(root)) as store:
        fill(store, kind, count)
    seconds = []
    for boot in ("another", None):
        with Store(str(root)) as store:
            if boot:
                store.db.set_meta("boot_id", boot)
        began = time.perf_counter()
        with Store(str(root)) as store:
            recovered = dict(store.recovered)
        seconds.append(time.perf_counter() - began)
        if boot:
            first = recovered
    began = time.perf_counter()
    with Store(str(root)) as store:
        found = verify.verify(store, deep=True, progress=lambda line: None)
    deep = time.perf_counter() - began
    assert not found.problems, found.problems[:3]
    return {
        "kind": kind, "objects": count, "after_boot_s": seconds[0], "opened_s": seconds[1], "verify_deep_s": deep,
        "checked": first.get("loose_checked", 0), "restored": first.get("restored", 0),
    }  # fmt: skip


def main() -> int:
    """Runs what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", help="objects (default 1000 10000 50000; quick 1000)")
    asked = parser.parse_args()
    counts = asked.counts or ([1000] if asked.quick else [1000, 10_000, 50_000])
    rows = []
    with common.folder() as at:
        for kind in KINDS:
            for count in counts:
                root = at / f"{kind}-{count}"
                common.make_store(root, files=50, commits=5)
                rows.append(measure(root, kind, count))
    common.table(
        "the first command after a boot, and verify --deep, in seconds",
        ("objects", "kind", "first", "second", "verify --deep", "restored"),
        [(r["objects"], r["kind"], r["after_boot_s"], r["opened_s"], r["verify_deep_s"], r["restored"]) for r in rows],
    )
    common.finish("recovery", {"stores": rows}, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
