"""Workspaces."""

from __future__ import annotations

from pathlib import Path

from ropewalk.core.errors import WorkspaceDamagedError, WorkspaceGoneError
from ropewalk.store.store import Store

from ..world import AGENT, Promise, World
from .base import MAIN, content, key, started, story


@story
def workspace(folder: Path, skip: str) -> World:
    """What the store knows of a workspace is there, and what was landed from it; what nobody wrote does not land."""
    world = started(folder, skip)
    pages = "".join(f"{n}\n" for n in range(3000))
    world.promises("start", refs={MAIN: world.commit("deep/er/pages.txt", pages, "--advance", "main",
                                                     run=world.plain)})  # fmt: skip
    world.watch()
    world.run("ws", "create", "w", "--dir", str(world.top / "w"))

    def known(w: World) -> list[str]:
        from ropewalk.workspace import state

        with Store(str(w.store)) as store:
            found = state.find(store, "w")
            return [] if found is not None and found.state == "ready" else [f"the workspace is {found}"]

    world.promises("create", checks=[known, _lands_nothing])
    (world.top / "w" / "new.txt").write_text("new\n")
    world.run("ws", "land", "w", "-m", "new")
    world.promises("land", refs={MAIN: (world.store / "repo.git" / MAIN).read_text().strip()})
    return world


def _lands_nothing(world: World) -> list[str]:
    """Lands a workspace that nobody edited; gives what is wrong with the outcome."""
    from ropewalk.workspace import landing, state

    with Store(str(world.store)) as store:
        before = store.ref(MAIN)
        found = state.need(store, "w")
        try:
            status = landing.land_workspace(store, found, landing.Wish(AGENT, "nothing")).landed.status
        except (WorkspaceDamagedError, WorkspaceGoneError):
            status = "refused"
        wrong = [] if store.ref(MAIN) == before else [f"a land of nothing {status} what nobody wrote"]
    return wrong + world.opened(world.store, Promise({}, (), 0, (), True))


@story
def workspace_again(folder: Path, skip: str) -> World:
    """A land of a workspace was killed before its sync, and so was the next try."""
    world = started(folder, skip)
    world.plain("ws", "create", "w", "--dir", str(world.top / "w"))
    (world.top / "w" / "new.txt").write_text("new\n")
    world.watch()
    words = ["ws", "land", "w", "-m", "new", "--key", key()]
    world.killed(*words, at="fdatasync:when=3")  # two are the capture's
    world.promise = world.promise._replace(refs={})
    world.killed(*words, at="fdatasync:when=1")  # it has seen the land, and moved the workspace along
    done = world.run(*words)
    assert done["land"]["status"] == "replayed", done
    world.promises("replayed land", refs={MAIN: done["land"]["landed"]})
    return world


@story
def shared_tree(folder: Path, skip: str) -> World:
    """A tree that many workspaces stand on is whole once it has its name."""
    world = started(folder, skip)
    text = "".join(f"{n}\n" for n in range(3000))
    world.promises("start", refs={MAIN: world.commit("deep/er/pages.txt", text, "--advance", "main",
                                                     run=world.plain)})  # fmt: skip
    world.watch()
    place = Path(world.part("shared_tree", str(world.store), str(world.top / "shared")))
    files = {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert Path("tree/deep/er/pages.txt") in files

    def is_whole(w: World) -> list[str]:
        torn = [str(name) for name, data in files.items() if content(place / name) != data]
        return [f"the shared tree lacks {name}" for name in torn] if place.exists() else []

    world.promises("shared tree", checks=[is_whole])
    return world
