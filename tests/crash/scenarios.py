"""The operations that are struck: each with the store it starts from, its command, and what must hold afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ropewalk.operations import registry
from ropewalk.operations.context import Context
from ropewalk.operations.envelope import answer

from .tracing import command, environment

AGENT = "crash/one"
KEY = str(uuid.UUID(int=7))
GIT_ENV = {
    "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "stock", "GIT_AUTHOR_EMAIL": "stock@example.com", "GIT_COMMITTER_NAME": "stock",
    "GIT_COMMITTER_EMAIL": "stock@example.com",
}  # fmt: skip


def ask(folder: Path, operation: str, /, *, agent: str = AGENT, **request: Any) -> dict[str, Any]:
    """Runs an operation in this process on the folder's store and gives its envelope."""
    context = Context(
        cwd=str(folder), store=str(folder / "store"), agent=agent, data_home=str(folder / "home" / "data")
    )
    try:
        return answer(registry.load(operation), context, request).envelope
    finally:
        context.close()


def must(folder: Path, operation: str, /, **request: Any) -> dict[str, Any]:
    """Runs an operation that has to work and gives its result."""
    envelope = ask(folder, operation, **request)
    assert envelope["ok"], envelope
    result: dict[str, Any] = envelope["result"]
    return result


def git(folder: Path, *words: str) -> str:
    """Runs stock git in a folder and gives what it printed."""
    done = subprocess.run(["git", *words], cwd=folder, env=GIT_ENV, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def put(path: str, text: str) -> list[dict[str, Any]]:
    """Gives a change list of one file."""
    return [{"path": path, "op": "put", "content": {"inline": text}}]


def prepare(folder: Path) -> None:
    """Makes the store that every operation starts from, and what stands beside it."""
    (folder / "home").mkdir()
    (folder / "files").mkdir()
    must(folder, "init", dir=str(folder / "files"))
    base = must(folder, "commit", message="base", changes=put("a.txt", "a\n") + put("d/b.txt", "b\n"), advance="main")
    first = must(folder, "commit", message="first", changes=put("d/first.txt", "1\n"), parent=base["changeset"])
    must(folder, "land", head=first["changeset"])
    ids = {"base": base["changeset"]}
    for name in ("x", "y"):
        change = must(
            folder, "commit", message=name, changes=put(f"d/{name}.txt", f"{name}\n"), parent=base["changeset"]
        )
        ids[name] = change["changeset"]
    landed = must(folder, "land", head=ids["y"])
    ids["landed_y"] = landed["landed"]
    ids["undo"] = must(folder, "op log", limit=1)["ops"][0]["op"]
    (folder / "ids.json").write_text(json.dumps(ids))
    (folder / "changes.json").write_text(json.dumps(put("d/new.txt", "new\n")))
    (folder / "moves.json").write_text(
        json.dumps([{"name": "one", "target": ids["x"]}, {"name": "two/deep", "target": ids["base"]}])
    )
    source = folder / "source"
    source.mkdir()
    git(source, "init", "-q", "-b", "trunk")
    for number in range(3):
        (source / f"f{number}").write_text(f"{number}\n")
        git(source, "add", ".")
        git(source, "commit", "-q", "-m", f"c{number}")


class Scenario(NamedTuple):
    """Is one struck operation.

    `argv` gives the words of the command, `more` prepares what this one needs beside the common store, `check`
    looks at the outcome after the command was run again, `stdin` is fed to it, `children` says that processes of
    git do part of the work.
    """

    name: str
    argv: Callable[[Path, dict[str, str]], list[str]]
    check: Callable[[Path, dict[str, str]], None]
    more: Callable[[Path, dict[str, str]], None] | None = None
    stdin: Callable[[Path, dict[str, str]], bytes] | None = None
    children: bool = False
    rerun: bool = True


def main_trailers(folder: Path) -> list[str]:
    """Gives the source changesets of the lands on main."""
    out = git(
        folder, "--git-dir=store/repo.git", "log", "--format=%(trailers:key=Ropewalk-Changeset,valueonly)", "main"
    )
    return out.split()


def _landed_once(folder: Path, ids: dict[str, str]) -> None:
    assert main_trailers(folder).count(ids["x"]) == 1


def _committed(folder: Path, ids: dict[str, str]) -> None:
    log = must(folder, "log", rev="topic")
    assert [e["title"] for e in log["entries"]].count("new") == 1, log


def _undone(folder: Path, ids: dict[str, str]) -> None:
    assert ids["y"] not in main_trailers(folder)


def _moved(folder: Path, ids: dict[str, str]) -> None:
    refs = {r["name"]: r["target"] for r in must(folder, "ref list")["refs"]}
    assert refs["two/deep"] == ids["base"] and refs["one"] == ids["x"]


def _imported(folder: Path, ids: dict[str, str]) -> None:
    head = git(folder / "source", "rev-parse", "trunk").strip()
    assert git(folder, "--git-dir=store/repo.git", "rev-parse", "refs/heads/trunk").strip() == head


def _exported(folder: Path, ids: dict[str, str]) -> None:
    there = git(folder, "--git-dir=dest.git", "rev-parse", "refs/heads/main").strip()
    assert there == git(folder, "--git-dir=store/repo.git", "rev-parse", "refs/heads/main").strip()
    git(folder, "--git-dir=dest.git", "fsck", "--strict")


def _journal_empty(folder: Path, ids: dict[str, str]) -> None:
    assert must(folder, "info")["packs"] == 1
    assert must(folder, "cat", rev="main", path="d/y.txt")["content"] == "y\n"


def _damage(folder: Path, ids: dict[str, str]) -> None:
    objects = folder / "store" / "repo.git" / "objects"
    for number, path in enumerate(sorted(p for p in objects.glob("??/*") if p.is_file())[:6]):
        path.chmod(0o644)
        if number % 2:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        else:
            path.unlink()
    (folder / "store" / "repo.git" / "refs" / "heads" / "main").write_bytes(b"")


def _sound(folder: Path, ids: dict[str, str]) -> None:
    assert must(folder, "repair")["left"] == []


def _backed_up(folder: Path, ids: dict[str, str]) -> None:
    copy = Context(cwd=str(folder), store=str(folder / "copy"), agent=AGENT)
    try:
        envelope = answer(registry.load("verify"), copy, {"deep": True}).envelope
        assert envelope["ok"] and envelope["result"]["findings"] == [], envelope
        assert answer(registry.load("cat"), copy, {"rev": "main", "path": "d/y.txt"}).envelope["ok"]
    finally:
        copy.close()


def _workspace(folder: Path, ids: dict[str, str]) -> None:
    context = Context(
        cwd=str(folder), store=str(folder / "store"), agent=AGENT, data_home=str(folder / "home" / "data")
    )
    try:
        envelope = answer(registry.load("ws create"), context, {"name": "w", "dir": str(folder / "w")}).envelope
        assert envelope["ok"], envelope
    finally:
        context.close()
    (folder / "w" / "d" / "left.txt").write_text("left by an agent\n")
    (folder / "w" / "a.txt").write_text("changed\n")


def _workspace_landed(folder: Path, ids: dict[str, str]) -> None:
    assert must(folder, "cat", rev="main", path="d/left.txt")["content"] == "left by an agent\n"
    titles = [e["title"] for e in must(folder, "log", rev="main", limit=50)["entries"]]
    assert titles.count("from the workspace") == 1, titles
    assert (folder / "w" / "d" / "left.txt").read_text() == "left by an agent\n"


def _session(folder: Path, ids: dict[str, str]) -> bytes:
    def call(number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {
            "jsonrpc": "2.0",
            "id": number,
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments},
        }

    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize",
         "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        call(2, "commit", {"message": "by mcp", "changes": put("d/mcp.txt", "mcp\n"), "idempotency_key": KEY}),
        call(3, "land", {"head": ids["x"], "onto": "main", "idempotency_key": KEY}),
    ]  # fmt: skip
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


SCENARIOS = [
    Scenario("commit", lambda f, i: ["commit", "-m", "new", "--changes", str(f / "changes.json"), "--parent", i["base"],
                                     "--advance", "topic", "--key", KEY], _committed,
             more=lambda f, i: void(must(f, "ref set", name="topic", target=i["base"], create=True))),
    Scenario("land", lambda f, i: ["land", i["x"], "--onto", "main", "--key", KEY], _landed_once),
    Scenario("undo", lambda f, i: ["op", "undo", str(i["undo"])], _undone),
    Scenario("ref move", lambda f, i: ["ref", "move", str(f / "moves.json")], _moved),
    Scenario("import", lambda f, i: ["git", "import", str(f / "source"), "--ref", "trunk"], _imported, children=True),
    Scenario("export", lambda f, i: ["git", "export", str(f / "dest.git"), "--ref", "main", "--branch", "main"],
             _exported, children=True),
    Scenario("gc (checkpoint)", lambda f, i: ["gc"], _journal_empty, children=True),
    Scenario("gc (consolidate)", lambda f, i: ["gc"], _journal_empty, children=True,
             more=lambda f, i: void(must(f, "gc"), must(f, "land", head=i["x"]))),
    Scenario("repair", lambda f, i: ["repair"], _sound, more=_damage, children=True),
    Scenario("backup", lambda f, i: ["backup", str(f / "copy")], _backed_up, rerun=False),
    Scenario("workspace land", lambda f, i: ["ws", "land", "w", "-m", "from the workspace", "--key", KEY],
             _workspace_landed, more=_workspace, children=True),
    Scenario("mcp session", lambda f, i: ["mcp", "--profile", "core"], _landed_once, stdin=_session),
]  # fmt: skip


def void(*_: object) -> None:
    """Takes values that nobody needs."""


def argv(scenario: Scenario, folder: Path, ids: dict[str, str]) -> list[str]:
    """Gives a scenario's command line."""
    words = scenario.argv(folder, ids)
    return (
        command(words[0], *words[1:], "--store", str(folder / "store"), "--as", AGENT)
        if words[0] != "mcp"
        else command("mcp", "--store", str(folder / "store"), "--as", AGENT, *words[1:])
    )


def run_again(scenario: Scenario, folder: Path, ids: dict[str, str]) -> dict[str, Any]:
    """Runs a scenario's command once more, unharmed, and gives its last line."""
    stdin = scenario.stdin(folder, ids) if scenario.stdin else None
    done = subprocess.run(argv(scenario, folder, ids), cwd=folder, env=environment(folder / "home"),
                          capture_output=True, input=stdin, timeout=300)  # fmt: skip
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
