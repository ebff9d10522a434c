"""Recovery after a power loss: every loose object and every projected ref is checked by our own reader.

After a mere kill the page cache is whole and nothing needs to be looked at. Only when the kernel's boot id
differs from the one in the database may unsynced data be gone: then damaged loose files are unlinked and
written again from the journal, and refs are projected anew from the database, which is the truth.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from ropewalk.core import clock
from ropewalk.core.errors import RopewalkError
from ropewalk.store import packs, projection
from ropewalk.store.loose import Damaged, inflate, object_id

if TYPE_CHECKING:
    from ropewalk.store.store import Store


def after_boot(store: Store) -> None:
    """Recovers the store once after a boot, by whichever process comes first; says so in `store.recovered`."""
    try:
        with store.lock_held():
            if store.db.meta("boot_id") == clock.boot_id():
                return
            folder = os.path.join(store.layout.repo, "objects", "pack")
            packs.remove(folder, packs.present(folder))  # never synced, and all of it is in the journal
            store.recovered = check_loose(store)
            projection.forget(store)
            _lift_ban(store)
            store.db.run("BEGIN IMMEDIATE")
            store.db.set_meta("boot_id", clock.boot_id())
            store.db.run("COMMIT")
        projection.project(store)
    except RopewalkError as error:
        # a read-only disk can still be read; writers meet the same error again and report it
        store.warnings.append(f"the store was not recovered after the last boot: {error.message}")


def _lift_ban(store: Store) -> None:
    """Ends the ban on writes that a failed sync brought: what the log lost then is not in it any more after a boot."""
    try:
        os.unlink(os.path.join(store.layout.root, "poisoned"))
    except FileNotFoundError:
        pass


def check_loose(store: Store, *, shown: Collection[str] = ()) -> dict[str, int]:
    """Checks every loose object, puts damaged or lost ones back from the journal, and counts what it did.

    A damaged one that is nowhere else goes into the store's folder `damaged`: a merge or a commit that was never
    answered leaves such, and of what is needed `verify` says that it is missing.

    `shown` are ids that git sees elsewhere and that need no loose file.
    """
    loose = store.objects.loose
    counts = {"loose_checked": 0, "restored": 0, "damaged": 0}
    bad: set[str] = set()
    for name in os.listdir(loose.folder):
        if name.startswith("tmp_"):
            os.unlink(os.path.join(loose.folder, name))
    for oid in loose.ids():
        counts["loose_checked"] += 1
        try:
            loose.check(oid)
        except Damaged:
            bad.add(oid)
    last, back = 0, set[str]()
    while rows := store.db.rows(
        "SELECT seq, id, packed FROM object_journal WHERE seq > ? ORDER BY seq LIMIT 5000", (last,)
    ):
        last = rows[-1][0]
        lost: dict[str, bytes] = {}
        for _, oid, packed in rows:
            if oid in bad or (oid not in shown and oid not in back and not os.path.exists(loose.path(oid))):
                try:
                    inflate(packed, oid)
                except Damaged:
                    continue  # verify tells of it, and repair looks for another copy
                if oid in bad:
                    loose.put(oid, packed)
                    bad.discard(oid)
                else:
                    lost[oid] = packed
                counts["restored"] += 1
        if lost:
            projection.restore(store, list(lost.items()))
            back |= lost.keys()
    for oid in bad:
        # git prefers a pack, our reader falls back to it; what is nowhere else was never answered for, or was large
        # and git gives a loose file's content without hashing it, so what it gives may be the damage itself
        there = store.objects.packed(oid)
        if (there is None or object_id(*there) != oid) and os.path.getsize(loose.path(oid)):
            counts["damaged"] += 1
            os.makedirs(os.path.join(store.layout.root, "damaged"), exist_ok=True)
            os.rename(loose.path(oid), os.path.join(store.layout.root, "damaged", f"loose-{oid}"))
        else:
            loose.unlink(oid)
    return counts
