"""Real commits of a stranger's project as tasks of a run: Django, as its source package has it, and its security fixes.

The source comes from the registry by version and hash, and with it what its tests import; the commits stand beside this
file as patches, each with the tests that it brought. A task's check is those tests, by Django's own runner: they have
to fail before the commit, also where only its tests are there, and to pass after it.
"""

from __future__ import annotations

import ast
import email
import email.policy
import email.utils
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

from tests.strangers import build

PATCHES = Path(__file__).with_name("commits")
ARCHIVE = "Django-3.2.25.tar.gz"
PINNED = (
    "Django==3.2.25 --hash=sha256:7ca38a78654aee72378594d63e51636c04b8e28574f5505dff630895b5472777",
    "asgiref==3.8.1 --hash=sha256:3e1e3ecc849832fe52ccf2cb6686b7a55f82bb1d6aee72a58826471390335e47",
    "pytz==2025.2 --hash=sha256:5ddf76296dd8c44c26eb8f4b6f35488f3ccbf6fbbd7adee0b7262d43f0ec2f00",
    "sqlparse==0.5.3 --hash=sha256:cf2196ed3418f3ba5de6af7e82c694a9fbdbfecccdfc72e281548517081f16ca",
)
TRIES = 3
GIVEN = ("0018",)
"""Are commits that the user's repository has already: others build on them, and their tests were there before them."""
KIT = "vendored"
"""Is the folder of the repository with what the project's tests import, and with the line that runs them."""

RUNNER = """#!/bin/sh
cd "$(dirname "$0")/.." || exit 2
for one in "$PWD"/{kit}/*.whl; do path="$path:$one"; done
PYTHONPATH="$PWD$path" exec python3 -B -W ignore tests/runtests.py --parallel 1 -v 0 "$@"
"""
SUITES = (
    "admin_scripts", "asgi", "auth_tests", "file_storage", "forms_tests", "logging_tests", "ordering",
    "queries", "template_tests", "utils_tests",
)  # fmt: skip
"""Are the folders of tests that the small form of the repository has, beside the package itself."""


class Commit(NamedTuple):
    """Is a commit: its task's name, what it says, who made it, the tests it brought, and each file before and after."""

    id: str
    subject: str
    message: str
    author: str
    tests: tuple[str, ...]
    files: dict[str, tuple[str, str]]

    @property
    def check(self) -> str:
        """Is the line that has to fail before the commit and to pass after it."""
        return f"sh {KIT}/check {' '.join(self.tests)}"

    @property
    def part(self) -> str:
        """Is the part of the package that it changes."""
        inner = next(name for name in self.files if name.startswith("django/")).split("/")
        return inner[2] if inner[1] == "contrib" else inner[1]


class Edit(NamedTuple):
    """Is one replacement in a file, of words that stand there once; a new file has no old words."""

    path: str
    old: str
    new: str


def fetch(folder: Path) -> Path:
    """Gives a folder with the pinned archives, tried again where a registry did not answer; raises `Unreachable`."""
    folder.mkdir(parents=True)
    wanted = folder / "pinned.txt"
    wanted.write_text("".join(f"{line}\n" for line in PINNED))
    last = build.Unreachable("not tried")
    for _ in range(TRIES):
        try:
            build.download(folder, build.online(os.environ, folder),
                           "--require-hashes", "--no-binary=Django", "--requirement", str(wanted))  # fmt: skip
        except build.Unreachable as error:
            last = error
        else:
            return folder
    raise last


class Stranger:
    """Is the project's repository as its user has it, and the history that its commits make of it."""

    def __init__(self, folder: Path, archives: Path, env: Mapping[str, str], *, whole: bool = False) -> None:
        self.home, self.env = folder / "project", dict(env)
        self.home.mkdir(parents=True)
        wheels = sorted(archives.glob("*.whl"))
        assert len(wheels) == len(PINNED) - 1
        kept = [name for one in _patches() for name in _named(one)]
        files, at = build.unpack(archives / ARCHIVE, strip=1)
        files = {name: file for name, file in files.items() if whole or _is_kept(os.fsdecode(name), kept)}
        for name, (mode, content) in files.items():
            self._write(os.fsdecode(name), content, executable=mode == b"100755")
        for wheel in wheels:
            self._write(f"{KIT}/{wheel.name}", wheel.read_bytes())
        self._write(f"{KIT}/check", RUNNER.format(kit=KIT).encode(), executable=True)
        self.git("init", "-q", "-b", "main")
        self.git("add", "--all", "--force")
        self.git("commit", "-q", "-m", "Django 3.2.25", "--date", f"@{at} +0000")
        for path in (one for one in _patches() if one.name.startswith(GIVEN)):
            self.git("apply", "--index", "--whitespace=nowarn", "-p1", stdin=path.read_bytes())
            self.git("commit", "-q", "-m", path.stem)
        self.base = self.git("rev-parse", "HEAD").strip()
        self.history = folder / "history.git"
        self.git("clone", "-q", "--bare", ".", str(self.history))
        self.commits = list(self._apply())
        self.tree = self._past("rev-parse", "main^{tree}").strip()

    def _write(self, name: str, content: bytes, *, executable: bool = False) -> None:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if executable:
            path.chmod(0o755)

    def git(self, *words: str, stdin: bytes = b"", folder: Path | None = None, **more: str) -> str:
        """Gives what git prints in the project's repository, or in another one."""
        done = subprocess.run(["git", *words], cwd=folder or self.home, env={**self.env, **more}, input=stdin,
                              capture_output=True, timeout=300)  # fmt: skip
        assert done.returncode == 0, (words, done.stderr.decode("utf-8", "replace")[-800:])
        return done.stdout.decode("utf-8")

    def _past(self, *words: str, stdin: bytes = b"", **more: str) -> str:
        return self.git(*words, stdin=stdin, folder=self.history, GIT_INDEX_FILE=str(self.history / "index"), **more)

    def _apply(self) -> Iterator[Commit]:
        """Makes the history of the patches, through an index that no work tree belongs to."""
        self._past("read-tree", "main")
        for path in (one for one in _patches() if not one.name.startswith(GIVEN)):
            raw = path.read_bytes()
            self._past("apply", "--cached", "--whitespace=nowarn", "-p1", stdin=raw)
            head = email.message_from_bytes(raw.partition(b"\ndiff ")[0], policy=email.policy.default)
            subject = re.sub(r"^(\[[^\]]*\]\s*)+", "", " ".join(str(head["Subject"]).split()))
            subject = subject.partition(" MIME-Version:")[0]  # some were folded with the header behind it
            body = str(head.get_payload()).partition("\n---\n")[0].strip()
            name, address = email.utils.parseaddr(str(head["From"]))
            author = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": address, "GIT_AUTHOR_DATE": str(head["Date"])}
            text = f"{subject}\n\n{body}\n".encode()
            tree = self._past("write-tree").strip()
            new = self._past("commit-tree", tree, "-p", "main", stdin=text, **author).strip()
            changed = self._past("diff-tree", "-r", "--name-only", "main", new).split()
            files = {one: (self._text("main", one), self._text(new, one)) for one in changed}
            self._past("update-ref", "refs/heads/main", new)
            yield Commit(f"p{path.name[:4]}", subject, body, f"{name} <{address}>", tuple(_tests(files)), files)

    def _text(self, commit: str, path: str) -> str:
        there = self._past("ls-tree", "--name-only", commit, "--", path)
        return self._past("cat-file", "blob", f"{commit}:{path}") if there else ""


def _patches() -> list[Path]:
    return sorted(PATCHES.glob("*.patch"))


def _named(patch: Path) -> list[str]:
    return re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(encoding="utf-8"), re.MULTILINE)


def _is_kept(name: str, touched: Sequence[str]) -> bool:
    """Says whether the small form has a file: the package in English and without maps, and some of its tests."""
    if name in touched:
        return True
    parts = name.split("/")
    if parts[0] == "tests":
        return len(parts) == 2 or parts[1] in ("templates", *SUITES)
    if parts[0] != "django":
        return name in ("LICENSE", "AUTHORS", "README.rst", "setup.py", "setup.cfg")
    is_foreign = name.endswith((".po", ".mo")) and "en" not in parts
    return not is_foreign and parts[1:3] != ["contrib", "gis"] and "static" not in parts


def _tests(files: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Gives the tests that are new or other in these files, as the project's runner names them."""
    for path, (before, after) in sorted(files.items()):
        if re.match(r"tests/.*/test[^/]*\.py\Z", path):
            old = _methods(before)
            module = path.removeprefix("tests/").removesuffix(".py").replace("/", ".")
            yield from (f"{module}.{name}" for name, code in _methods(after).items() if old.get(name) != code)


def _methods(source: str) -> dict[str, str]:
    return {
        f"{one.name}.{inner.name}": ast.dump(inner)
        for one in ast.parse(source).body
        if isinstance(one, ast.ClassDef)
        for inner in one.body
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name.startswith("test")
    }


def edits(commit: Commit, *, tests: bool) -> list[Edit]:
    """Gives the replacements that make a commit's tests, or all the rest of it, one after the other."""
    found = []
    for path, (before, after) in commit.files.items():
        if path.startswith("tests/") == tests:
            found += _edits(path, before, after)
    return found


def _edits(path: str, before: str, after: str) -> list[Edit]:
    if not before:
        return [Edit(path, "", after)]
    a, b = before.splitlines(keepends=True), after.splitlines(keepends=True)
    context = 1
    while True:
        found, text, is_clear = [], before, True
        for group in SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(context):
            old, new = "".join(a[group[0][1] : group[-1][2]]), "".join(b[group[0][3] : group[-1][4]])
            is_clear = is_clear and text.count(old) == 1
            text = text.replace(old, new, 1)
            found.append(Edit(path, old, new))
        if is_clear:
            assert text == after
            return found
        context *= 2


def needs(commits: Sequence[Commit]) -> dict[str, list[str]]:
    """Gives, for each commit, the last one before it that changed one of its files, a file each."""
    last: dict[str, str] = {}
    found = {}
    for one in commits:
        found[one.id] = sorted({last[path] for path in one.files if path in last})
        last |= dict.fromkeys(one.files, one.id)
    return found


def tasks(commits: Sequence[Commit]) -> list[dict[str, Any]]:
    """Gives the commits as tasks: what waits for what, and what may write where, follow from the files they change."""
    waits = needs(commits)
    return [
        {
            "id": one.id, "title": one.subject[:200], "check": one.check, "needs": waits[one.id], "region": one.part,
            "description": f"Commit {one.id}: {one.subject}\n\n{one.message}\n",
            "modifies": [path for path, (before, _) in one.files.items() if before],
            "owns": [path for path, (before, _) in one.files.items() if not before],
        }
        for one in commits
    ]  # fmt: skip


def script(commit: Commit) -> list[dict[str, Any]]:
    """Gives what the scripted agent does: the tests, which have to fail then, and the rest."""
    steps = [*map(_step, edits(commit, tests=True)), {"run": commit.check, "ok": [1]}]
    return [*steps, *map(_step, edits(commit, tests=False))]


def _step(edit: Edit) -> dict[str, Any]:
    if not edit.old:
        return {"put": edit.path, "text": edit.new}
    return {"replace": edit.path, "old": edit.old, "new": edit.new}


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Gives mode and content of every file of a repository but objects, the store, and a run's own branch."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith((".git/objects", ".git/ropewalk", ".git/refs/heads/ropewalk")):
            found[name] = (path.stat().st_mode, path.read_bytes())
    return found
