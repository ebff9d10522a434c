"""Runs, lanes, and the logins that lanes ask with."""

from __future__ import annotations

import json
import signal
import tarfile
from pathlib import Path
from typing import Any

import msgspec
from tests.foreign import spring

from ropewalk.board import grants
from ropewalk.gateway import logins, noting
from ropewalk.gateway.settings import Login
from ropewalk.lane import journal
from ropewalk.run import report, usual
from ropewalk.store import layout
from ropewalk.store.store import Store
from ropewalk.testing.model_server import running

from ..world import TOP, World, stock, there
from .base import MAIN, content, exported, source, started, story, unsynced_land


def project(folder: Path, skip: str) -> tuple[World, Path]:
    """Gives a world with a repository and a store beside it, and the repository."""
    world = World(folder, skip, init=False)
    repository = source(world.top / "project", {"f": "f\n"})
    world.store = repository / ".git" / "ropewalk"
    world.plain("init", str(repository))
    world.promise = world.promise._replace(store=True)
    return world, repository


def tasks(world: World, name: str) -> list[str]:
    """Gives the words of a run with one task, which writes a file."""
    script = f'```script\n[{{"put": "{name}.txt", "text": "1"}}]\n```\n'
    listed = world.folder / f"{name}.json"
    listed.write_text(json.dumps({"tasks": [{"id": name, "prompt": script, "check": f"test -e {name}.txt"}]}))
    return ["run", "--tasks", str(listed), "--harness", "scripted"]


@story
def run(folder: Path, skip: str) -> World:
    """A run in a repository: its report is there, its branch, and a page that was asked for."""
    world, repository = project(folder, skip)
    words = tasks(world, "one")
    world.watch()
    done = world.run(*words)
    name = done["id"]

    def reported(w: World) -> list[str]:
        found = report.load(layout.Layout(str(w.store)), name)
        return [] if found.state == "done" and found.landed == 1 else [f"the report says {found.state}"]

    branch = f"refs/heads/{done['branch']}"
    world.promises("run", refs={f"refs/heads/run/{name}": done["head"]},
                   checks=[reported, exported(repository / ".git", done["head"], branch)])  # fmt: skip
    page = world.top / "page.md"
    world.run("runs", "report", name, "--into", str(page))
    text = page.read_bytes()
    world.promises("report", checks=[lambda w: [] if content(page) == text else ["the page is lost"]])
    return world


@story
def undo_of_runs(folder: Path, skip: str) -> World:
    """Runs are taken back: their branches are gone from the repository, one that git had packed, too."""
    world, repository = project(folder, skip)
    packed = world.plain(*tasks(world, "packed"))
    stock(repository, "pack-refs", "--all")
    loose = world.plain(*tasks(world, "loose"))
    world.watch()
    for done in (loose, packed):
        undone = world.run("runs", "undo", done["id"])
        branch, head = f"refs/heads/{done['branch']}", done["head"]
        assert undone["branch"] == done["branch"], undone

        def gone(w: World, branch: str = branch) -> list[str]:
            left = stock(repository, "for-each-ref", "--format=%(refname)").split()
            wrong = [f"{branch} is there again"] if branch in left else []
            return wrong if "refs/heads/trunk" in left else [*wrong, "the person's own branch is lost"]

        world.promises("undo", refs={f"refs/heads/run/{done['id']}": None, undone["kept"]: head}, checks=[gone])
    return world


@story
def run_on_a_server(folder: Path, skip: str) -> World:
    """A run on a git server starts from what another landed, who was killed before its sync."""
    world, _, old = unsynced_land(folder, skip)
    board = world.folder / "board.git"
    stock(world.folder, "init", "-q", "--bare", str(board))
    base = world.part("seed", str(world.store), str(board), str(world.folder / "seen"))
    shown = stock(board, "for-each-ref", "--format=%(objectname)", "refs/heads/run/")
    assert shown == base != old
    world.promises("run", refs={MAIN: base})
    return world


@story
def brought_run(folder: Path, skip: str) -> World:
    """A run of another program is brought in: its summary, its files, and how its lanes ended."""
    world = started(folder, skip)
    away = spring(world.folder / "shop")
    world.watch()
    (brought,) = world.run("import-run", str(away))["runs"]
    assert brought["new"] == 1, brought
    place = Path(layout.Layout(str(world.store)).runs) / brought["id"] / "source"
    files = {one: one.read_bytes() for one in place.iterdir()}
    assert place / "journal.jsonl" in files

    def whole(w: World) -> list[str]:
        found = report.load(layout.Layout(str(w.store)), brought["id"])
        wrong = [f"the summary tells of {found.imported}"] if found.imported is None else []
        with Store(str(w.store)) as store:
            ended = [one.result for one in journal.lanes(store, limit=10) if one.record.run == brought["id"]]
        wrong += [] if len(ended) == 1 and ended[0] is not None else [f"its lanes are {ended}"]
        return wrong + [f"{one.name} is lost" for one, data in files.items() if content(one) != data]

    world.promises("import of a run", checks=[whole])
    return world


@story
def swept_lane(folder: Path, skip: str) -> World:
    """What an ended lane left is packed before it is removed."""
    world = started(folder, skip)
    world.env |= {"ROPEWALK_CAGE": "none"}
    agent = world.folder / "agent.sh"
    agent.write_text("cat > /dev/null\necho what it said\n")
    lane = world.plain("lane", "start", "tell", "tell", "--command", f"sh {agent}", "--wait")["lane"]["lane"]
    with Store(str(world.store)) as store:
        left = Path(journal.need(store, lane).record.folder)
    said = (left / "stdout").read_bytes()
    assert b"what it said" in said and left.is_relative_to(world.top)
    world.watch()
    (one,) = [row for row in world.run("sweep", "--reclaim")["lanes"] if row["lane"] == lane]
    archive = Path(one["archive"])
    assert one["removed"] and not there(left) and archive.is_relative_to(world.top)

    def packed(w: World) -> list[str]:
        with tarfile.open(archive) as file:
            found = file.extractfile("stdout")
            return [] if found is not None and found.read() == said else ["what the lane said is lost"]

    world.promises("sweep", checks=[packed])
    return world


class _Person:
    """Is a login whose access token is over, on the model disk, and what renews it."""

    def __init__(self, world: World, server: Any) -> None:
        self.world = world
        granted = server.logins.grant("codex", "somebody", -5.0)
        folder = world.top / "codex"
        folder.mkdir()
        self.login: Login = logins.located("codex", str(folder), server.refresh_url)
        Path(self.login.file).write_bytes(msgspec.json.encode(granted.file()))
        self.words = (
            "renew", "codex", self.login.file, server.refresh_url, granted.access, str(world.folder / "marks"),
        )  # fmt: skip

    def promised(self, server: Any) -> None:
        """Ends the story: the tokens that the provider gave last are there, for all others are spent."""
        last = server.logins.last("somebody").refresh
        assert len(server.logins.renewed) == 1 and logins.read(self.login).refresh == last

        def is_good(w: World) -> list[str]:
            return [] if logins.read(self.login).refresh == last else ["the login has a refresh token that is spent"]

        self.world.promises("renewal", checks=[is_good])


@story
def renewed_login(folder: Path, skip: str) -> World:
    """A login is renewed: the only good refresh token is the new one."""
    world = started(folder, skip, init=False)
    with running() as server:
        person = _Person(world, server)
        world.part(*person.words)
        person.promised(server)
    return world


@story
def login_taken_up(folder: Path, skip: str) -> World:
    """Who renewed a login was killed before the new tokens were durable; the next one puts them in place."""
    world = started(folder, skip, init=False)
    with running() as server:
        person = _Person(world, server)
        world.trace(world.played(*person.words), "fsync:signal=KILL:when=1", [-signal.SIGKILL])
        world.part(*person.words)
        person.promised(server)
    return world


@story
def usual_runs(folder: Path, skip: str) -> World:
    """What a store's runs do was set."""
    world = started(folder, skip)
    world.part("usual", str(world.store), "codex")
    world.part("usual", str(world.store), "claude")

    def said(w: World) -> list[str]:
        found = usual.read(str(w.store)).harness
        return [] if found == "claude" else [f"runs are done by {found!r}"]

    world.promises("setup", checks=[said])
    return world


@story
def noted_endpoints(folder: Path, skip: str) -> World:
    """A user's endpoints were set."""
    world = started(folder, skip, init=False)
    place = world.top / "config" / "ropewalk"
    world.part("endpoint", str(place), "http://one")
    world.part("endpoint", str(place), "http://two")

    def noted(w: World) -> list[str]:
        found = [one.url for one in noting.raw(str(w.top / "config" / "ropewalk")).values()]
        return [] if found == ["http://two"] else [f"the endpoints are {found}"]

    world.promises("setup", checks=[noted])
    return world


@story
def granted(folder: Path, skip: str) -> World:
    """An attempt was granted to land: the key that its words are signed with is the same."""
    world = started(folder, skip)
    world.watch()
    words = world.run("board", "grant", "one", "att-power-one-123456")["grant"]

    def good(w: World) -> list[str]:
        with Store(str(w.store)) as store:
            return [] if grants.check(store, words, "", "one", "att-power-one-123456") else ["the grant says nothing"]

    world.promises("grant", checks=[good])
    return world


@story
def planned(folder: Path, skip: str) -> World:
    """A plan was made, and a decision, in folders that were not there."""
    world = started(folder, skip, init=False)
    place = world.top / "project"
    place.mkdir()
    (place / "ropewalk.toml").touch()
    spec = world.folder / "spec.md"
    spec.write_text("# A shop\n\nIt sells.\n")
    inside = ["env", "-C", str(place), f"PYTHONPATH={TOP}:{TOP / 'src'}"]
    for words in (["plan", "draft", "--spec", str(spec), "--into", "deep/plan"], ["adr", "new", "Shops sell"]):
        world.trace([*inside, *world.command(*words)])
        files = {path: path.read_bytes() for path in place.rglob("*.md")}
        assert files

        def whole(w: World, files: dict[Path, bytes] = files) -> list[str]:
            return [f"{path.name} is lost" for path, data in files.items() if content(path) != data]

        world.promises(words[0], checks=[whole])
    assert place / "deep/plan/plan.md" in files and len(files) > 2, files
    return world
