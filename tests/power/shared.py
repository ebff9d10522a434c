"""Builds a shared tree of a store's main, as making a workspace does: `python -m tests.power.shared SITE STORE FOLDER`.

Whether workspaces can stand on it depends on the file system; what is on disk of it does not.
"""

from __future__ import annotations

import sys

from .without import leave_out, tell

if __name__ == "__main__":
    if sys.argv[1] == "--tell":
        tell()
    else:
        leave_out(sys.argv[1])
    from ropewalk.store.store import Store
    from ropewalk.workspace import shared

    with Store(sys.argv[2]) as store:
        print(shared.get(store, sys.argv[3], store.ref("refs/heads/main") or "").place)
