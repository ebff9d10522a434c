"""Histories of real projects, built from the archives that registries give.

Versions come one after another: each archive is a commit on `upstream` with the author it names and the date of
its newest file, and a tag; `main` merges each of them. Of a Debian package each patch of its series is a commit
with the author, date and text of the patch's own header. pip, npm and apt check what they fetch.
"""

from __future__ import annotations

import email.utils
import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
Files = dict[bytes, tuple[bytes, bytes]]
"""Is what an archive holds: from path to (mode, content)."""


class Project(NamedTuple):
    """Is a project: the registry that has it, its name there, and the versions of its history."""

    registry: str
    name: str
    versions: tuple[str, ...]


class Archive(NamedTuple):
    """Is one version's files, who made it (as git writes a person), and when."""

    files: Files
    author: bytes
    at: int


SMALL = (
    Project("wheels", "six", ("1.9.0", "1.13.0", "1.17.0")),
    Project("wheels", "tomli", ("0.2.10", "1.2.3", "2.0.1")),
)
LARGE = (
    Project("wheels", "attrs", ("16.0.0", "17.4.0", "18.2.0", "19.3.0", "20.3.0", "21.4.0", "22.2.0", "24.3.0")),
    Project("sdists", "simplejson", ("3.8.2", "3.11.1", "3.13.2", "3.16.0", "3.17.6", "3.19.3")),
    Project("npm", "semver", ("1.0.14", "2.3.0", "3.0.1", "4.3.6", "5.0.0", "5.7.2", "6.3.1", "7.0.0", "7.7.0")),
    Project("npm", "minimist", ("0.0.0", "0.0.5", "0.0.10", "0.2.4", "1.0.0", "1.1.3", "1.2.0", "1.2.5", "1.2.8")),
    Project("debian", "unzip", ("bookworm",)),
    Project("debian", "patch", ("bookworm",)),
    Project("debian", "dash", ("bookworm",)),
)  # fmt: skip


class Unreachable(Exception):
    """A registry did not give what was asked for."""


def online(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Gives the environment of a registry's client: the person's proxy, and caches below `home`."""
    kept = {k: v for k, v in environment.items() if not k.lower().endswith("_proxy")}
    proxy = kept.get("RWTEST_PROXY", "")
    return {
        **kept,
        **({"http_proxy": proxy, "https_proxy": proxy} if proxy else {}),
        "HOME": str(home),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "npm_config_cache": str(home / "npm"),
        "npm_config_update_notifier": "false",
    }


def _client(*words: str | Path, folder: Path, env: Mapping[str, str]) -> None:
    done = subprocess.run([str(w) for w in words], cwd=folder, env=dict(env), stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=600, check=False)  # fmt: skip
    if done.returncode:
        raise Unreachable(f"{' '.join(map(str, words))}: {done.stderr.decode('utf-8', 'replace')[-1500:]}")


def fetch(project: Project, folder: Path, env: Mapping[str, str]) -> dict[str, Path]:
    """Gives each version's folder of archives, fetched by the registry's own client; raises `Unreachable`."""

    def one(version: str) -> Path:
        there = folder / f"{project.name}-{version}"
        there.mkdir(parents=True)
        if project.registry in ("wheels", "sdists"):
            form = "--only-binary=:all:" if project.registry == "wheels" else "--no-binary=:all:"
            download(there, env, form, f"{project.name}=={version}")
        elif project.registry == "npm":
            _client("npm", "pack", "--silent", f"{project.name}@{version}", folder=there, env=env)
        else:
            _debian(project.name, version, there, env)
        return there

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(project.versions, pool.map(one, project.versions), strict=True))


def download(folder: Path, env: Mapping[str, str], *words: str) -> None:
    """Has pip put archives into a folder, without what they need; raises `Unreachable`."""
    _client(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *words,
            folder=folder, env=env)  # fmt: skip


def _debian(name: str, suite: str, folder: Path, env: Mapping[str, str]) -> None:
    """Fetches a source package by an apt whose lists and cache lie in the folder, so that the system stays as it is."""
    etc = folder / "etc"
    for inner in ("lists/partial", "cache/archives/partial", "etc"):
        (folder / inner).mkdir(parents=True)
    (etc / "one.sources").write_text(
        f"Types: deb-src\nURIs: http://deb.debian.org/debian\nSuites: {suite}\nComponents: main\nSigned-By: {KEYRING}\n"
    )
    options = [
        "-qq", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={etc}",
        "-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}",
        "-o", "APT::Sandbox::User=root",
    ]  # fmt: skip
    _client("apt-get", *options, "update", folder=folder, env=env)
    _client("apt-get", *options, "source", "--download-only", name, folder=folder, env=env)


def unpack(path: Path, *, strip: int) -> tuple[Files, int]:
    """Gives what an archive holds, without the first `strip` parts of each path, and its newest file's time."""
    files: Files = {}
    newest = 0
    for name, mode, content, at in _members(path):
        inner = "/".join(name.split("/")[strip:])
        if inner and not inner.startswith("/") and ".." not in inner.split("/"):
            files[inner.encode("utf-8", "surrogateescape")] = (mode, content)
            newest = max(newest, at)
    return files, newest


def _members(path: Path) -> Iterator[tuple[str, bytes, bytes, int]]:
    if path.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(path) as whole:
            for info in whole.infolist():
                if not info.is_dir():
                    at = int(email.utils.mktime_tz((*info.date_time, 0, 0, 0, 0)))
                    yield info.filename, b"100644", whole.read(info), at
        return
    with tarfile.open(path) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if member.issym():
                yield name, b"120000", os.fsencode(member.linkname), int(member.mtime)
            elif member.isfile() and (file := tar.extractfile(member)) is not None:
                yield name, b"100755" if member.mode & 0o100 else b"100644", file.read(), int(member.mtime)


def archive(project: Project, folder: Path) -> Archive:
    """Gives one version of a project that is no Debian package."""
    (path,) = [p for p in folder.iterdir() if p.suffix in (".whl", ".gz", ".tgz", ".zip")]
    files, at = unpack(path, strip=0 if project.registry == "wheels" else 1)
    author = b"nobody <nobody@example.org>"
    for name, (_, content) in files.items():
        if name.endswith((b".dist-info/METADATA", b"PKG-INFO")):
            head = email.message_from_bytes(content)
            author = person(str(head.get("Author", "")), str(head.get("Author-email", "")))
        elif name == b"package.json":
            found = msgspec.json.decode(content.decode("utf-8", "replace")).get("author", "")
            author = (
                person(found.get("name", ""), found.get("email", "")) if isinstance(found, dict) else person(found, "")
            )
    return Archive(files, author, max(at, 1))


def person(name: str, mail: str) -> bytes:
    """Gives a name and an address as git writes them; the address may stand in either."""
    for text in (name, mail):
        found = re.match(r"\s*([^<]*)<([^>]*)>", text)
        if found:
            name, mail = found[1] or name, found[2]
    clean = [re.sub(r"[<>\n\0]", "", part).strip() for part in (name, mail)]
    return f"{clean[0] or 'nobody'} <{clean[1] or 'nobody@example.org'}>".encode("utf-8", "surrogateescape")


class History:
    """Is a history that grows in a bare repository."""

    def __init__(self, project: Project, folders: Mapping[str, Path], git: Callable[..., Any], repo: Path) -> None:
        self.project, self.folders, self.git, self.repo = project, folders, git, repo
        self._left = list(project.versions)
        self._when = 0
        git("init", "--quiet", "--bare", str(repo))

    def grow(self, versions: int | None = None) -> None:
        """Adds so many versions (None: all that are left); of a Debian package so many patches."""
        if self.project.registry == "debian":
            self._grow_debian(versions)
            return
        for version in self._next(versions):
            made = archive(self.project, self.folders[version])
            stream = self._commit(
                "upstream", made.author, made.at, f"{self.project.name} {version}\n", files=made.files
            )
            self._import(stream)
            self._tag(version, made.author, made.at)
            self._merge("upstream", made.author, made.at + 60, f"Merge version {version}\n")

    def _next(self, count: int | None) -> list[str]:
        taken = self._left[:count]
        self._left = self._left[len(taken) :]
        return taken

    def _import(self, stream: bytes) -> None:
        self.git("fast-import", "--quiet", "--date-format=raw", folder=self.repo, stdin=stream)

    def head(self, branch: str) -> str:
        """Gives a branch's head, empty when there is none."""
        return str(self.git("rev-parse", "--quiet", "--verify", f"refs/heads/{branch}", folder=self.repo, ok=False))

    def _commit(
        self, branch: str, author: bytes, at: int, message: str, *, files: Files | None = None, more: Sequence[str] = ()
    ) -> bytes:
        """Gives a commit as a stream: on the branch's head, its tree made of `files` alone."""
        text = message.encode("utf-8", "surrogateescape")
        when = b"%d +0000" % at
        out = io.BytesIO()
        out.write(b"commit refs/heads/%s\n" % branch.encode())
        out.write(b"author %s %s\ncommitter Builder <builder@example.org> %s\n" % (author, when, when))
        out.write(b"data %d\n%s\n" % (len(text), text))
        head = self.head(branch)
        if head:
            out.write(b"from %s\n" % head.encode())
        for parent in more:
            out.write(b"%s %s\n" % (b"merge" if head else b"from", parent.encode()))
        if files is not None:
            out.write(b"deleteall\n")
            for path, (mode, content) in sorted(files.items()):
                quoted = b'"' + b"".join(b"\\%03o" % c for c in path) + b'"'
                out.write(b"M %s inline %s\ndata %d\n%s\n" % (mode, quoted, len(content), content))
        return out.getvalue()

    def _merge(self, other: str, author: bytes, at: int, message: str) -> None:
        """Merges a branch into main, whose tree becomes that branch's with a note of ours beside it."""
        there = self.head(other)
        tree = b'M 040000 %s ""\n' % str(self.git("rev-parse", f"{there}^{{tree}}", folder=self.repo)).encode()
        note = message.encode()
        stream = self._commit("main", author, at, message, more=[there])
        self._import(stream + tree + b"M 100644 inline packaging/notes.txt\ndata %d\n%s\n" % (len(note), note))

    def _tag(self, version: str, author: bytes, at: int) -> None:
        text = f"version {version}\n".encode()
        self._import(
            b"tag v%s\nfrom refs/heads/upstream^0\ntagger %s %d +0000\ndata %d\n%s\n"
            % (version.encode(), author, at, len(text), text)
        )

    def _grow_debian(self, count: int | None) -> None:
        (folder,) = self.folders.values()
        if not self.head("main"):
            original = next(p for p in sorted(folder.iterdir()) if ".orig.tar." in p.name and p.suffix != ".asc")
            files, at = unpack(original, strip=1)
            name = person(self.project.name + " authors", "")
            self._import(self._commit("upstream", name, at, f"{original.name}\n", files=files))
            self._tag("upstream", name, at)
            own, when = unpack(next(folder.glob("*.debian.tar.*")), strip=0)
            self._import(
                self._commit("main", name, when, "Packaging\n", files={**files, **own}, more=[self.head("upstream")])
            )
            series = own.get(b"debian/patches/series", (b"", b""))[1].decode()
            self._left = [line.split()[0] for line in series.splitlines() if line.strip() and not line.startswith("#")]
            self._patches = {n: own[b"debian/patches/" + n.encode()][1] for n in self._left}
            self._when = when
        for patch in self._next(count):
            self._apply(patch, self._patches[patch])

    def _apply(self, name: str, patch: bytes) -> None:
        """Makes a commit of one patch, through an index that no work tree belongs to."""
        index = {"GIT_INDEX_FILE": str(self.repo / "patch-index"), "GIT_DIR": str(self.repo)}
        env = {**self.git.env, **index}  # type: ignore[attr-defined]
        parent = self.head("main")

        def git(*words: str, stdin: bytes = b"", more: Mapping[str, str] | None = None) -> str:
            done = subprocess.run(
                ["git", *words], env={**env, **(more or {})}, input=stdin, capture_output=True, timeout=120
            )
            assert done.returncode == 0, (name, words, done.stderr.decode("utf-8", "replace")[-500:])
            return done.stdout.decode().strip()

        git("read-tree", parent)
        git("apply", "--cached", "--whitespace=nowarn", "-p1", stdin=patch)
        fields = dep3(patch.decode("utf-8", "surrogateescape"))
        self._when += 1
        date = email.utils.parsedate_tz(fields.get("date", "")) or email.utils.parsedate_tz(
            fields.get("last-update", "")
        )
        at = max(0, int(email.utils.mktime_tz(date))) if date else self._when
        author = person(fields.get("from", "") or fields.get("author", "") or "nobody", "")
        who, _, mail = author.partition(b" <")
        env_author = {
            "GIT_AUTHOR_NAME": os.fsdecode(who), "GIT_AUTHOR_EMAIL": os.fsdecode(mail[:-1]),
            "GIT_AUTHOR_DATE": f"@{at} +0000", "GIT_COMMITTER_DATE": f"@{self._when} +0000",
        }  # fmt: skip
        text = (fields.get("subject") or fields.get("description") or name) + f"\n\nPatch: {name}\n"
        made = git(
            "commit-tree",
            "-p",
            parent,
            git("write-tree"),
            stdin=text.encode("utf-8", "surrogateescape"),
            more=env_author,
        )
        git("update-ref", "refs/heads/main", made, parent)


def dep3(patch: str) -> dict[str, str]:
    """Gives the fields of a patch's header, by lower-case name; texts go on in lines that begin with a blank."""
    fields: dict[str, str] = {}
    last = ""
    for line in patch.splitlines():
        if line.startswith(("--- ", "diff ", "Index: ", "+++ ")):
            break
        found = re.match(r"([A-Za-z-]+):\s*(.*)\Z", line)
        if found:
            last = found[1].lower()
            fields.setdefault(last, found[2])
        elif last and line.startswith(" "):
            fields[last] += "\n" + line.strip()
    return fields
