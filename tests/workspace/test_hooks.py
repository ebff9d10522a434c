"""What agent programs' hooks call, and the answer to conflicts that are in the files."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.workspace import snapshot

from .conftest import Bench


def hook(bench: Bench, line: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
    """Runs a hook's command as the agent program does: JSON on standard input, no name of an agent."""
    env = {k: v for k, v in bench.env.items() if k != "ROPEWALK_AGENT"}
    given = {"session_id": "s", "transcript_path": "/t", "cwd": str(bench.folder), **given}
    return subprocess.run(line, input=msgspec.json.encode(given).decode(), env=env, cwd=bench.folder,
                          capture_output=True, text=True, timeout=60)  # fmt: skip


def lines(bench: Bench) -> dict[str, list[str]]:
    """Gives the commands of the settings, with this package in the place of an installed `rw`."""
    import shlex

    printed = subprocess.run(
        bench.argv("ws", "hook", "config", "--human", "--store", bench.store.layout.root), cwd=bench.folder,
        env=bench.env, capture_output=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    settings = msgspec.json.decode(printed)["hooks"]
    assert set(settings) == {"WorktreeCreate", "WorktreeRemove"}
    found = {}
    for event, groups in settings.items():
        (entry,) = groups[0]["hooks"]
        assert entry["type"] == "command" and "matcher" not in groups[0]
        words = shlex.split(entry["command"])
        assert words[0] == "rw"
        found[event] = bench.argv(*words[1:])
    return found


@pytest.mark.parametrize("key", ["name", "worktree_name"])
def test_its_hooks_make_and_remove_workspaces(bench: Bench, key: str, in_ws: Any) -> None:
    commands = lines(bench)
    made = hook(bench, commands["WorktreeCreate"], hook_event_name="WorktreeCreate", **{key: "feat/Log in"})
    assert made.returncode == 0, made.stderr
    path = Path(made.stdout.splitlines()[-1])
    assert made.stdout.count("\n") == 1 and (path / "README.md").exists() and path.name == "feat-Log-in"
    assert bench.ws("feat-Log-in").agent == "claude/feat-log-in"
    again = hook(bench, commands["WorktreeCreate"], hook_event_name="WorktreeCreate", **{key: "feat/Log in"})
    assert again.stdout == made.stdout
    (path / "work").write_text("hours\n")
    kept = hook(bench, commands["WorktreeRemove"], hook_event_name="WorktreeRemove", worktree_path=str(path))
    # any other end is taken for a removal
    assert kept.returncode == 3 and kept.stdout == "" and "E_UNLANDED" in kept.stderr and (path / "work").exists()
    bench.land("feat-Log-in", agent="claude/feat-log-in")
    gone = hook(bench, commands["WorktreeRemove"], hook_event_name="WorktreeRemove", worktree_path=str(path))
    assert gone.returncode == 0 and not path.exists(), gone.stderr


def test_what_is_said_beside_the_folder_is_not_taken_for_it(bench: Bench) -> None:
    """The program reads the last line of the output (a repository with a submodule or LFS pointers has warnings)."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
    bench.publish({".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "big.bin": pointer})
    done = hook(bench, lines(bench)["WorktreeCreate"], hook_event_name="WorktreeCreate", name="large")
    assert done.returncode == 0 and Path(done.stdout.rstrip("\n")).is_dir(), (done.stdout, done.stderr)
    assert "warning: " in done.stderr and "big.bin" in done.stderr


def test_whoever_asks_does_not_keep_the_workspace(bench: Bench) -> None:
    """An agent program works in it, and runs its hook through a shell that waits."""
    import shlex

    commands = lines(bench)
    made = hook(bench, commands["WorktreeCreate"], hook_event_name="WorktreeCreate", name="left")
    path = made.stdout.rstrip("\n")
    inner = f"sh -c '{shlex.join(commands['WorktreeRemove'])}; exit $?'"
    shell = ["sh", "-c", f"cd {shlex.quote(path)} && {inner}; exit $?"]
    gone = hook(bench, shell, hook_event_name="WorktreeRemove", worktree_path=path)
    assert gone.returncode == 0 and not Path(path).exists(), gone.stderr


@pytest.mark.parametrize(
    "given", [{}, {"name": 7}, {"name": ""}, {"worktree_path": "/etc"}, {"name": "x", "base_ref": "no"}]
)
def test_a_hook_that_can_not_be_answered_fails(bench: Bench, given: dict[str, Any]) -> None:
    line = lines(bench)["WorktreeRemove" if "worktree_path" in given else "WorktreeCreate"]
    done = hook(bench, line, **given)
    assert done.returncode not in (0, 1) and done.stdout == "" and "error: E_" in done.stderr


def conflict(bench: Bench) -> tuple[Path, dict[str, Any]]:
    path = bench.create()
    (path / "src/a.py").write_text("".join(f"a = {n}\n" for n in range(19)) + "ours\n")
    (path / "src/b.py").write_text("b = 'ours'\n")
    (path / "README.md").unlink()
    (path / "mine").write_text("m\n")
    bench.publish({"src/a.py": "theirs\n" + "".join(f"a = {n}\n" for n in range(1, 19)) + "theirs\n",
                   "src/b.py": "b = 'theirs'\n", "README.md": "# Theirs\n"})  # fmt: skip
    found = bench.rw("ws", "rebase", "one", "--store", bench.store.layout.root, agent="claude/one")
    assert found["rc"] == 10 and sorted(found["result"]["conflicts"]) == ["README.md", "src/a.py", "src/b.py"]
    return path, found["result"]["report"]


def resolve(bench: Bench, against: str, **files: Any) -> dict[str, Any]:
    answer = bench.folder / "answer.json"
    answer.write_bytes(
        msgspec.json.encode({"against": against, "files": {k.replace("__", "/"): v for k, v in files.items()}})
    )
    return bench.rw("ws", "resolve", str(answer), "--workspace", "one", "--store", bench.store.layout.root,
                    agent="claude/one")  # fmt: skip


def test_conflicts_in_the_files_are_answered_one_by_one(bench: Bench, in_ws: Any) -> None:
    path, report = conflict(bench)
    first = resolve(bench, report["theirs"], **{"src__a.py": {"hunks": [{"text": "both\n"}]}})
    assert first["rc"] == 10 and first["result"]["conflicts"] == ["src/b.py"], first
    text = (path / "src/a.py").read_text()
    assert text.startswith("theirs\n") and text.endswith("both\n") and "<<<" not in text
    (path / "mine").write_text("more\n")
    second = resolve(bench, report["theirs"], **{"src__b.py": {"take": "ours"}, "README.md": {"delete": True}})
    assert second["rc"] == 0 and second["result"]["conflicts"] == []
    assert (path / "src/b.py").read_text() == "b = 'ours'\n" and not (path / "README.md").exists()
    bench.land()
    tree = bench.tree()
    assert "README.md" not in tree and tree["mine"][1] == b"more\n" and tree["src/b.py"][1] == b"b = 'ours'\n"
    assert in_ws(path, "status", "--porcelain") == ""
    assert any("before a resolution" in one.why for one in snapshot.listed(bench.store, "one"))


def test_an_answer_that_does_not_fit_changes_nothing(bench: Bench) -> None:
    path, report = conflict(bench)
    before = {p: p.read_bytes() for p in path.rglob("*.py")}
    wrong: list[tuple[str, dict[str, Any]]] = [
        (report["base"], {"src__b.py": {"take": "ours"}}),
        (report["theirs"], {"nope": {"take": "ours"}}),
        (report["theirs"], {"src__a.py": {"hunks": []}}),
    ]
    for against, files in wrong:
        assert resolve(bench, against, **files)["error"]["code"] == "E_INVALID"
    assert {p: p.read_bytes() for p in path.rglob("*.py")} == before
    bench.create("two")
    (bench.folder / "answer.json").write_bytes(msgspec.json.encode({"against": report["theirs"], "files": {}}))
    none = bench.rw("ws", "resolve", str(bench.folder / "answer.json"), "--workspace", "two", "--store",
                    bench.store.layout.root, agent="a/b")  # fmt: skip
    assert none["error"]["code"] == "E_INVALID" and "nothing is in conflict" in none["error"]["message"]
