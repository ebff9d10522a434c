"""The operations that are struck: each with the store it starts from, its command, and how to tell that it is done."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .kit import LONG, Ids, change, git, keep, must, put, refs_of, sound, trailers

KEY = str(uuid.UUID(int=7))


class Scenario(NamedTuple):
    """Is one struck operation.

    `words` gives its command line but for store and agent, `done` says whether its work is there, and fails when it
    is there in part or twice. `more` prepares what it needs beside the common store, `stdin` is fed to it. `again`
    are the codes with which it may answer when its work was done before; `first` says that others' writes would keep
    it from being run again.
    """

    name: str
    words: Callable[[Path, Ids], list[str]]
    done: Callable[[Path, Ids], bool]
    more: Callable[[Path, Ids], None] | None = None
    stdin: Callable[[Path, Ids], bytes] | None = None
    store: str = "store"
    again: frozenset[str] = frozenset()
    first: bool = False


def all_or_none(found: list[bool]) -> bool:
    """Says whether all is so, and fails when only some is."""
    assert all(found) or not any(found), found
    return all(found)


def _once(folder: Path, *changes: str) -> bool:
    there = trailers(folder)
    counts = [there.count(one) for one in changes]
    assert max(counts) <= 1, counts
    return min(counts) == 1


def _committed(folder: Path, ids: Ids) -> bool:
    titles = [e["title"] for e in must(folder, "log", rev="topic")["entries"]]
    assert titles.count("new") <= 1, titles
    return "new" in titles


def _topic(folder: Path, ids: Ids) -> None:
    must(folder, "ref set", name="topic", target=ids["base"], create=True)


def _large(folder: Path, ids: Ids) -> None:
    _topic(folder, ids)
    big = put("big.bin", "".join(f"{n:07}\n" for n in range(160_000)))
    (folder / "changes.json").write_text(json.dumps(big + [e for n in range(12) for e in put(f"m/{n}.txt", f"{n}\n")]))


def _renamed(folder: Path, ids: Ids) -> None:
    """Makes a change that only git's own merge can land: a file renamed on one side and edited on the other."""
    moved = [{"path": "d/moved.txt", "op": "move", "from": "d/long.txt"}]
    made = must(folder, "commit", message="move", changes=moved, parent=ids["base"])
    keep(folder, ids, renamed=made["changeset"])
    must(folder, "land", head=change(folder, ids["base"], "d/long.txt", LONG.replace("line 7\n", "line seven\n")))


def _undone(folder: Path, ids: Ids) -> bool:
    return ids["y"] not in trailers(folder)


def _moves(folder: Path, ids: Ids) -> None:
    rows = [{"name": "one", "target": ids["x"]}, {"name": "two/deep", "target": ids["base"]}]
    (folder / "moves.json").write_text(json.dumps(rows))


def _moved(folder: Path, ids: Ids) -> bool:
    refs = refs_of(folder)
    return all_or_none([refs.get("one") == ids["x"], refs.get("two/deep") == ids["base"]])


def _moved_before(folder: Path, ids: Ids) -> None:
    must(folder, "ref set", name="old", target=ids["base"], create=True)
    rows: list[dict[str, Any]] = [{"name": f"many/{n}", "target": ids["x"]} for n in range(4)]
    rows.append({"name": "old", "target": None, "expect": ids["base"]})
    must(folder, "ref move", moves=rows)
    keep(folder, ids, undo_many=str(must(folder, "op log", limit=1)["ops"][0]["op"]))


def _all_back(folder: Path, ids: Ids) -> bool:
    refs = refs_of(folder)
    return all_or_none([*(f"many/{n}" not in refs for n in range(4)), refs.get("old") == ids["base"]])


def _packed_topic(folder: Path, ids: Ids) -> None:
    _topic(folder, ids)
    git(folder, "--git-dir=store/repo.git", "-c", "core.hooksPath=/dev/null", "pack-refs", "--all")


def _topic_gone(folder: Path, ids: Ids) -> bool:
    return "topic" not in refs_of(folder)


def _imported(folder: Path, ids: Ids) -> bool:
    head = git(folder / "source", "rev-parse", "trunk").strip()
    found = refs_of(folder).get("trunk")
    assert found in (None, head)
    return found is not None


def _big_source(folder: Path, ids: Ids) -> None:
    """Gives the source so many objects that they stay a pack."""
    lines = ["commit refs/heads/trunk", "committer s <s@example.com> 1 +0000", "data 3\nbig", "from refs/heads/trunk^0"]
    lines += [f"M 100644 inline n/{n}.txt\ndata {len(str(n))}\n{n}" for n in range(600)]
    git(folder / "source", "fast-import", "--quiet", stdin="\n".join(lines) + "\n")


def _exported(folder: Path, ids: Ids) -> bool:
    if not (folder / "dest.git").exists():
        return False
    git(folder, "--git-dir=dest.git", "fsck", "--strict")
    shown = git(folder, "--git-dir=dest.git", "for-each-ref", "--format=%(objectname)", "refs/heads/main").strip()
    assert shown in ("", ids["base"], refs_of(folder)["main"]) or ids["landed_y"] == shown, shown
    return shown not in ("", ids["base"])


def _old_destination(folder: Path, ids: Ids) -> None:
    must(folder, "ref set", name="past", target=ids["base"], create=True)
    must(folder, "git export", destination=str(folder / "dest.git"), ref="past", branch="main")


def _packed(folder: Path, ids: Ids) -> bool:
    assert must(folder, "cat", rev="main", path="d/y.txt")["content"] == "y\n"
    info = must(folder, "info")
    return bool(info["packs"] == 1 and info["journal_objects"] <= 8)


def _two_packs(folder: Path, ids: Ids) -> None:
    must(folder, "gc")
    must(folder, "land", head=ids["x"])


def _damage(folder: Path, ids: Ids) -> None:
    objects = folder / "store" / "repo.git" / "objects"
    for number, path in enumerate(sorted(p for p in objects.glob("??/*") if p.is_file())[:6]):
        path.chmod(0o644)
        if number % 2:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        else:
            path.unlink()
    (folder / "store" / "repo.git" / "refs" / "heads" / "main").write_bytes(b"")


def _mended(folder: Path, ids: Ids) -> bool:
    return must(folder, "verify", deep=True)["findings"] == []


def _store_beside(name: str) -> Callable[[Path, Ids], bool]:
    def there(folder: Path, ids: Ids) -> bool:
        if not (folder / name).exists():
            return False
        if (folder / name / "poisoned").exists():
            # its first sync failed, and the command said so: as in any store a repair is asked for
            assert must(folder, "repair", store=name)["left"] == []
        sound(folder, name)
        return bool(must(folder, "cat", rev="main", path="d/y.txt", store=name)["content"] == "y\n")

    return there


def _backup(folder: Path, ids: Ids) -> None:
    must(folder, "backup", dir=str(folder / "saved"))


def _made(folder: Path, ids: Ids) -> bool:
    if not (folder / "second").exists():
        return False
    sound(folder, "second")
    assert refs_of(folder, "second") == {"trunk": git(folder / "source", "rev-parse", "trunk").strip()}
    return True


def _workspace(folder: Path, ids: Ids) -> None:
    must(folder, "ws create", name="w", dir=str(folder / "w"))
    (folder / "w" / "d" / "left.txt").write_text("left by an agent\n")
    (folder / "w" / "a.txt").write_text("changed\n")


def _workspace_landed(folder: Path, ids: Ids) -> bool:
    titles = [e["title"] for e in must(folder, "log", rev="main", limit=50)["entries"]]
    assert titles.count("from the workspace") <= 1, titles
    assert (folder / "w" / "d" / "left.txt").read_text() == "left by an agent\n"
    if "from the workspace" not in titles:
        return False
    assert must(folder, "cat", rev="main", path="d/left.txt")["content"] == "left by an agent\n"
    return True


def _workspace_made(folder: Path, ids: Ids) -> bool:
    found = {w["name"]: w for w in must(folder, "ws list")["workspaces"]}
    if not (folder / "w2").exists():
        assert found.get("w2", {"state": "making"})["state"] != "ready", found
        return False
    assert (folder / "w2" / "d" / "y.txt").read_text() == "y\n"
    if found["w2"]["state"] != "ready":
        return False
    assert must(folder, "ws status", name="w2")["changes"] == []
    return git(folder / "w2", "status", "--porcelain") == ""


def _workspace_gone(folder: Path, ids: Ids) -> bool:
    rows = must(folder, "ws list")["workspaces"]
    kept = [n for n in must(folder, "ref list", prefix="refs/archive/")["refs"]]
    there = (folder / "w" / "d" / "left.txt").exists()
    # what the workspace held is in its folder or in the archive
    assert there or kept, (rows, kept)
    if kept:
        assert must(folder, "cat", rev=kept[0]["target"], path="d/left.txt")["content"] == "left by an agent\n"
    return not rows and not there


def _rebased(folder: Path, ids: Ids) -> bool:
    assert (folder / "w" / "d" / "left.txt").read_text() == "left by an agent\n"
    status = must(folder, "ws status", name="w")
    changed = {c["path"] for c in status["changes"]}
    assert changed - {"d/x.txt"} == {"a.txt", "d/left.txt"}, status
    # the files come before the base: what is half moved is moved again
    return (folder / "w" / "d" / "x.txt").exists() and bool(status["behind"] == 0) and "d/x.txt" not in changed


def _behind(folder: Path, ids: Ids) -> None:
    _workspace(folder, ids)
    must(folder, "land", head=ids["x"])


def _session(folder: Path, ids: Ids) -> bytes:
    def call(number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}

    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize",
         "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        call(2, "commit", {"message": "by mcp", "changes": put("d/mcp.txt", "mcp\n"), "advance": "topic",
                           "parent": ids["base"], "idempotency_key": KEY}),
        call(3, "land", {"head": ids["x"], "onto": "main", "idempotency_key": KEY}),
    ]  # fmt: skip
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _session_done(folder: Path, ids: Ids) -> bool:
    titles = [e["title"] for e in must(folder, "log", rev="topic")["entries"]]
    assert titles.count("by mcp") <= 1, titles
    return _once(folder, ids["x"]) and "by mcp" in titles


SCENARIOS = [
    Scenario("commit", lambda f, i: ["commit", "-m", "new", "--changes", str(f / "changes.json"), "--parent", i["base"],
                                     "--advance", "topic", "--key", KEY], _committed, _topic),
    Scenario("commit (large file)", lambda f, i: ["commit", "-m", "new", "--changes", str(f / "changes.json"),
             "--parent", i["base"], "--advance", "topic", "--key", KEY], _committed, _large),
    Scenario("land", lambda f, i: ["land", i["x"], "--onto", "main", "--key", KEY], lambda f, i: _once(f, i["x"])),
    Scenario("land (two changes)", lambda f, i: ["land", i["x"], i["z"], "--onto", "main"],
             lambda f, i: _once(f, i["x"], i["z"])),
    Scenario("land (git merges)", lambda f, i: ["land", i["renamed"], "--onto", "main", "--key", KEY],
             lambda f, i: _once(f, i["renamed"]), _renamed),
    Scenario("undo", lambda f, i: ["op", "undo", i["undo"]], _undone, first=True),
    Scenario("undo (five refs)", lambda f, i: ["op", "undo", i["undo_many"]], _all_back, _moved_before),
    Scenario("ref move", lambda f, i: ["ref", "move", str(f / "moves.json")], _moved, _moves),
    Scenario("ref set", lambda f, i: ["ref", "set", "one", i["x"], "--create"],
             lambda f, i: refs_of(f).get("one") == i["x"]),
    Scenario("ref delete", lambda f, i: ["ref", "delete", "topic", "--expect", i["base"]],
             _topic_gone, _topic, again=frozenset({"E_NOT_FOUND"})),
    Scenario("ref delete (packed)", lambda f, i: ["ref", "delete", "topic", "--expect", i["base"]],
             _topic_gone, _packed_topic, again=frozenset({"E_NOT_FOUND"})),
    Scenario("import", lambda f, i: ["git", "import", str(f / "source"), "--ref", "trunk"], _imported),
    Scenario("import (a pack)", lambda f, i: ["git", "import", str(f / "source"), "--ref", "trunk"], _imported,
             _big_source),
    Scenario("export", lambda f, i: ["git", "export", str(f / "dest.git"), "--ref", "main", "--branch", "main"],
             _exported, first=True),
    Scenario("export (a push)", lambda f, i: ["git", "export", str(f / "dest.git"), "--ref", "main", "--branch",
             "main"], _exported, _old_destination, first=True),
    Scenario("gc (checkpoint)", lambda f, i: ["gc"], _packed),
    Scenario("gc (consolidate)", lambda f, i: ["gc"], _packed, _two_packs),
    Scenario("repair", lambda f, i: ["repair"], _mended, _damage, first=True),
    Scenario("backup", lambda f, i: ["backup", str(f / "copy")], _store_beside("copy"),
             again=frozenset({"E_INVALID"})),
    Scenario("restore", lambda f, i: ["restore", str(f / "saved")], _store_beside("second"), _backup, store="second",
             again=frozenset({"E_INVALID"})),
    Scenario("init", lambda f, i: ["init", str(f / "source")], _made, store="second", again=frozenset({"E_INVALID"})),
    Scenario("workspace create", lambda f, i: ["ws", "create", "w2", "--dir", str(f / "w2")], _workspace_made),
    Scenario("workspace land", lambda f, i: ["ws", "land", "w", "-m", "from the workspace", "--key", KEY],
             _workspace_landed, _workspace),
    Scenario("workspace rebase", lambda f, i: ["ws", "rebase", "w"], _rebased, _behind, first=True),
    Scenario("workspace delete", lambda f, i: ["ws", "delete", "w", "--force"], _workspace_gone, _workspace,
             again=frozenset({"E_NOT_FOUND"})),
    Scenario("mcp session", lambda f, i: ["mcp", "--profile", "core"], _session_done, _topic, _session),
]  # fmt: skip
