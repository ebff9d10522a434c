"""Several holds on a store in threads of one process, as a run has them: merges that need git's own, at once."""

from __future__ import annotations

import threading
from pathlib import Path

from ropewalk.store.store import Store
from workspace.conftest import Bench


def test_merges_of_one_base_at_once_do_not_take_each_others_commits_away(store: Store, tmp_path: Path) -> None:
    bench = Bench(store, tmp_path, {})
    lines = [f"a = {n}" for n in range(20)]
    for n in range(8):
        path = bench.create(f"w{n}", agent=f"a/w{n}")
        (path / "src" / "a.py").write_text("\n".join([*lines[: 2 * n], f"edited by {n}", *lines[2 * n + 1 :]]) + "\n")
    failures: list[BaseException] = []
    ready = threading.Barrier(8)

    def land(n: int) -> None:
        try:
            with Store(store.layout.root) as own:
                ready.wait(30)
                Bench(own, tmp_path, {}).land(f"w{n}", agent=f"a/w{n}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=land, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    text = bench.tree()["src/a.py"][1].decode()
    assert all(f"edited by {n}\n" in text for n in range(8))
