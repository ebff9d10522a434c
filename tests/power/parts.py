"""Parts that are played without the command around them: `python -m tests.power.parts SITE PART WORDS…`.

Each prints what it answered. What a command does besides would sync, or would not be done here: see each part.
"""

from __future__ import annotations

import sys

from .without import begin


def shared_tree(root: str, folder: str) -> str:
    """Builds a shared tree of a store's main, as making a workspace does, and gives its place.

    Whether workspaces can stand on it depends on the file system; what is on disk of it does not.
    """
    from ropewalk.store.store import Store
    from ropewalk.workspace import shared

    with Store(root) as store:
        return shared.get(store, folder, store.ref("refs/heads/main") or "").place


def seed(root: str, address: str, folder: str) -> str:
    """Puts a run on a board of a git server, from a store's main, and gives where it starts.

    Whoever goes on with it syncs the store later; whoever looks at the board in between has seen the run.
    """
    from ropewalk.board.remote import RemoteBoard
    from ropewalk.plan.task import Task
    from ropewalk.run import seeding
    from ropewalk.store.store import Store

    with Store(root) as store:
        asked = seeding.Asked("a goal", [Task("one", "true")], store.ref("refs/heads/main") or "")
        return seeding.seed(RemoteBoard(address, folder), store, asked, "power/one").base


def renew(program: str, file: str, address: str, spent: str, marks: str) -> str:
    """Renews a login, as a gateway does on a request, and gives its access token."""
    from ropewalk.gateway import renewal
    from ropewalk.gateway.settings import Login

    return renewal.renew(Login(program, file, address), spent, marks).access


def usual(root: str, harness: str) -> str:
    """Writes down what a store's runs do, as the questions of `rw setup` end."""
    from ropewalk.run import usual as of_store

    return str(of_store.write(root, of_store.Usual(harness)))


def endpoint(folder: str, url: str) -> str:
    """Notes a user's endpoint, as the questions of `rw setup` end."""
    from ropewalk.gateway import noting
    from ropewalk.gateway.endpoints import Endpoint

    return str(noting.note(folder, {"mine": Endpoint(url, "a-key")}))


PARTS = {"shared_tree": shared_tree, "seed": seed, "renew": renew, "usual": usual, "endpoint": endpoint}

if __name__ == "__main__":
    begin(sys.argv[1])
    print(PARTS[sys.argv[2]](*sys.argv[3:]))
