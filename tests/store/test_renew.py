"""What was journalled while a checkpoint packed what was before it stays where git sees it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.store import maintain, projection
from storekit import Kit, put


def test_a_pack_that_is_written_again_under_its_name_is_not_removed(tmp_path: Path) -> None:
    kit = Kit(str(tmp_path / "store"))
    kit.first(*(put(f"a{n}.txt", f"{n}\n") for n in range(20)))
    kit.store.expose()
    row = kit.store.db.row("SELECT max(seq), count(DISTINCT id) FROM object_journal")
    assert row is not None
    kit.change(*(put(f"b{n}.txt", f"b{n}\n") for n in range(20)))
    kit.store.expose()
    with maintain.maintenance(kit.store, wait=True):
        maintain._pack_journal(kit.store, row[0], row[1])
        kit.store.db.run("DELETE FROM object_journal WHERE seq <= ?", (row[0],))
        projection.renew(kit.store, row[0])
    assert kit.stock("rev-parse", "main") == kit.main()
    kit.fsck()
    kit.close()
