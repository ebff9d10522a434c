"""What the attacks on commands stand on: operations run in this process, stock git, and the store they start from."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from ropewalk.cli import main as command_line
from ropewalk.operations import registry
from ropewalk.operations.context import Context
from ropewalk.operations.envelope import answer
from ropewalk.store.database import Database

from .tracing import SECONDS, command, environment

AGENT, OTHER = "crash/one", "crash/two"
GIT_ENV = {
    "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "stock", "GIT_AUTHOR_EMAIL": "stock@example.com", "GIT_COMMITTER_NAME": "stock",
    "GIT_COMMITTER_EMAIL": "stock@example.com",
}  # fmt: skip
LONG = "".join(f"line {n}\n" for n in range(40))

Ids = dict[str, str]


def ask(folder: Path, operation: str, /, *, agent: str = AGENT, store: str = "store", **request: Any) -> dict[str, Any]:
    """Runs an operation in this process on a store of the folder and gives its envelope."""
    context = Context(cwd=str(folder), store=str(folder / store), agent=agent, data_home=str(folder / "home" / "data"))
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


class _Output(io.TextIOWrapper):
    """Is a standard output that is kept."""

    def __init__(self) -> None:
        self.kept = io.BytesIO()
        super().__init__(self.kept, encoding="utf-8", write_through=True)


@contextmanager
def _as_process(home: Path) -> Iterator[_Output]:
    before, output = dict(os.environ), sys.stdout
    kept = _Output()
    os.environ |= {k: v for k, v in environment(home).items() if k in ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")}
    sys.stdout = kept
    try:
        with redirect_stderr(io.StringIO()):
            yield kept
    finally:
        sys.stdout = output
        os.environ.clear()
        os.environ.update(before)


def run_words(folder: Path, words: list[str], stdin: bytes | None = None) -> list[dict[str, Any]]:
    """Runs a command line once more, unharmed, and gives what it printed; a server runs as a process."""
    if stdin is not None:
        done = subprocess.run(command(*words), cwd=folder, env=environment(folder / "home"), capture_output=True,
                              input=stdin, timeout=SECONDS)  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return lines_of(done.stdout)
    with _as_process(folder / "home") as output:
        command_line.main(words)
    return lines_of(output.kept.getvalue())


def lines_of(out: bytes) -> list[dict[str, Any]]:
    """Gives the whole lines of JSON in an output; one that a kill cut is no answer."""
    return [json.loads(line) for line in out.splitlines(keepends=True) if line.endswith(b"\n")]


def git(folder: Path, *words: str, stdin: str | None = None) -> str:
    """Runs stock git in a folder and gives what it printed."""
    done = subprocess.run(["git", *words], cwd=folder, env=GIT_ENV, capture_output=True, text=True, timeout=120,
                          input=stdin)  # fmt: skip
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def put(path: str, text: str) -> list[dict[str, Any]]:
    """Gives a change list of one file."""
    return [{"path": path, "op": "put", "content": {"inline": text}}]


def change(folder: Path, base: str, path: str, text: str) -> str:
    """Makes a changeset of one file and gives its id."""
    made = must(folder, "commit", message=f"write {path}", changes=put(path, text), parent=base)
    return str(made["changeset"])


def prepare(folder: Path) -> None:
    """Makes the store that every operation starts from, and what stands beside it."""
    (folder / "home").mkdir()
    (folder / "files").mkdir()
    must(folder, "init", dir=str(folder / "files"))
    files = put("a.txt", "a\n") + put("d/b.txt", "b\n") + put("d/long.txt", LONG)
    base = must(folder, "commit", message="base", changes=files, advance="main")["changeset"]
    must(folder, "land", head=change(folder, base, "d/first.txt", "1\n"))
    ids = {"base": base, **{name: change(folder, base, f"d/{name}.txt", f"{name}\n") for name in "wxyz"}}
    ids["landed_y"] = must(folder, "land", head=ids["y"])["landed"]
    ids["undo"] = str(must(folder, "op log", limit=1)["ops"][0]["op"])
    (folder / "ids.json").write_text(json.dumps(ids))
    (folder / "changes.json").write_text(json.dumps(put("d/new.txt", "new\n")))
    source = folder / "source"
    source.mkdir()
    git(source, "init", "-q", "-b", "trunk")
    for number in range(3):
        (source / f"f{number}").write_text(f"{number}\n")
        git(source, "add", ".")
        git(source, "commit", "-q", "-m", f"c{number}")


def keep(folder: Path, ids: Ids, **more: str) -> None:
    """Adds to what a scenario's commands are told of a folder."""
    ids.update(more)
    (folder / "ids.json").write_text(json.dumps(ids))


def place(source: Path, folder: Path) -> Path:
    """Copies a prepared folder; what names its own place in it is made to name the new one."""
    shutil.copytree(source, folder, symlinks=True, copy_function=_copy)
    old, new = str(source), str(folder)
    workspace = folder / "w" / ".git"
    if workspace.is_dir():
        for name in ("ropewalk.json", "objects/info/alternates", "config"):
            path = workspace / name
            if path.exists():
                path.write_text(path.read_text().replace(old, new))
        database = Database(str(folder / "store" / "store.db"))
        database.run("UPDATE workspaces SET path = replace(path, ?, ?)", (old, new))
        database.close()
    return folder


def _copy(source: str, target: str) -> str:
    """Copies a file; the zeros with which a database's log was filled beforehand get their blocks and no bytes."""
    if not source.endswith(".db-wal"):
        return str(shutil.copy2(source, target))
    with open(source, "rb") as file:
        data = file.read()
    with open(target, "wb") as file:
        file.write(data.rstrip(b"\0"))
        os.posix_fallocate(file.fileno(), 0, len(data))
    return target


def trailers(folder: Path, ref: str = "main", store: str = "store") -> list[str]:
    """Gives the source changesets of the lands on a ref, by what the store says of it."""
    refs = {r["name"]: r["target"] for r in must(folder, "ref list", store=store)["refs"]}
    must(folder, "verify", store=store)
    pattern = "--format=%(trailers:key=Ropewalk-Changeset,valueonly)"
    return git(folder, f"--git-dir={store}/repo.git", "log", pattern, refs[ref]).split()


def refs_of(folder: Path, store: str = "store") -> dict[str, str]:
    """Gives the targets of a store's refs by short name."""
    return {r["name"]: r["target"] for r in must(folder, "ref list", store=store, all=True)["refs"]}


def sound(folder: Path, store: str = "store") -> None:
    """Checks that a store holds nothing damaged or missing."""
    found = must(folder, "verify", deep=True, store=store)
    assert found["findings"] == [], found
