"""The map of a project: its folders, languages, sizes and test commands, told from its files; a model adds to it.

What is told from the files is certain and costs nothing. A model that looked at the code may say what parts are for,
join or split them, and name checks; it can't make up a folder that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.plan import checks
from ropewalk.plan.replies import find

LANGUAGES: Mapping[str, str] = {
    "py": "Python", "pyi": "Python", "js": "JavaScript", "mjs": "JavaScript", "cjs": "JavaScript", "jsx": "JavaScript",
    "ts": "TypeScript", "tsx": "TypeScript", "go": "Go", "rs": "Rust", "c": "C", "h": "C", "cc": "C++", "cpp": "C++",
    "hpp": "C++", "hh": "C++", "java": "Java", "kt": "Kotlin", "scala": "Scala", "rb": "Ruby", "php": "PHP",
    "cs": "C#", "swift": "Swift", "m": "Objective-C", "pl": "Perl", "pm": "Perl", "sh": "Shell", "bash": "Shell",
    "lua": "Lua", "ex": "Elixir", "exs": "Elixir", "erl": "Erlang", "hs": "Haskell", "ml": "OCaml", "clj": "Clojure",
    "dart": "Dart", "r": "R", "jl": "Julia", "sql": "SQL", "vue": "Vue", "svelte": "Svelte", "css": "CSS",
    "scss": "CSS", "html": "HTML", "zig": "Zig", "md": "Markdown", "rst": "reStructuredText",
}  # fmt: skip
"""Are languages by the end of a file's name."""

_TEXTS = ("Markdown", "reStructuredText")
_PASSED = frozenset(
    ("node_modules", "vendor", "third_party", ".git", ".github", ".gitlab", ".vscode", ".idea", "__pycache__", "dist",
     "build", "target", ".venv", "venv")
)  # fmt: skip
"""Are folders that hold nobody's work."""

_MANIFESTS = ("pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "package.json", "Makefile", "makefile",
              "GNUmakefile", "go.mod", "Cargo.toml", "pom.xml", "build.gradle", "build.gradle.kts", "Gemfile",
              "composer.json")  # fmt: skip
_PARTS, _DEPTH, _READ = 200, 6, 200
_MOST = 256 << 10
_ABOUT = 400


class Test(msgspec.Struct, frozen=True):
    """Is a command that tests a folder, and the file that says so."""

    command: str
    folder: str = ""
    source: str = ""


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a part of the code: a folder, how much is below it, in which languages, and what a model said of it."""

    name: str
    path: str
    files: int = 0
    bytes: int = 0
    languages: dict[str, int] = {}
    depends_on: tuple[str, ...] = ()
    about: str = ""


class Map(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is the map; `languages` are bytes, `loose` counts files that lie in no part, `notes` are a model's."""

    parts: tuple[Part, ...] = ()
    tests: tuple[Test, ...] = ()
    languages: dict[str, int] = {}
    files: int = 0
    bytes: int = 0
    loose: int = 0
    notes: tuple[str, ...] = ()
    by: Literal["files", "files and model"] = "files"

    def text(self) -> str:
        """Gives the map as a manager reads it."""
        spoken = ", ".join(f"{name} {size >> 10} KiB" for name, size in _ranked(self.languages)[:8]) or "none"
        lines = [f"{self.files} files, {self.bytes >> 10} KiB; languages: {spoken}", "", "Parts:"]
        for part in self.parts:
            langs = ", ".join(name for name, _ in _ranked(part.languages)[:3])
            needs = f"; builds on {', '.join(part.depends_on)}" if part.depends_on else ""
            about = f": {part.about}" if part.about else ""
            lines.append(f"- {part.name} (`{part.path or '.'}`, {part.files} files, {part.bytes >> 10} KiB"
                         f"{f', {langs}' if langs else ''}{needs}){about}")  # fmt: skip
        lines += [] if self.parts else ["- none: there is no code yet"]
        lines += ["", "Commands that test it, at the top of the tree:"]
        lines += [f"- `{test.command}`{f' ({test.source})' if test.source else ''}" for test in self.tests]
        lines += [] if self.tests else ["- none was found"]
        return "\n".join([*lines, *(["", "Notes:", *(f"- {note}" for note in self.notes)] if self.notes else [])])


def _ranked(languages: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(languages.items(), key=lambda one: (-one[1], one[0]))


# from the files


def survey(files: Sequence[tuple[str, int]], read: Callable[[str], str]) -> Map:
    """Gives the map of files: their paths with their sizes; `read` gives the text of one, empty when it has none."""
    held = [(path, size) for path, size in files if not _PASSED & set(path.split("/")[:-1])]
    total: dict[str, int] = {}
    code: list[tuple[str, int, str]] = []
    for path, size in held:
        language = LANGUAGES.get(path.rpartition(".")[2].lower(), "") if "." in path.rsplit("/", 1)[-1] else ""
        if language:
            total[language] = total.get(language, 0) + size
        if language and language not in _TEXTS:
            code.append((path, size, language))
    folders = _folders([path for path, _, _ in code])
    parts = _parts(folders, held, code)
    covered = sum(part.files for part in parts)
    return Map(tuple(parts), tuple(_tests({path for path, _ in held}, read)), dict(_ranked(total)), len(held),
               sum(size for _, size in held), len(held) - covered)  # fmt: skip


def _folders(code: Sequence[str]) -> list[str]:
    """Gives the folders that are parts: those at the top, and in the place of one that only holds others, these."""
    count: dict[str, int] = {}
    below: dict[str, set[str]] = {}
    own: dict[str, int] = {}
    for path in code:
        steps = path.split("/")[:-1]
        own["/".join(steps)] = own.get("/".join(steps), 0) + 1
        for n in range(len(steps)):
            upper = "/".join(steps[: n + 1])
            count[upper] = count.get(upper, 0) + 1
            below.setdefault("/".join(steps[:n]), set()).add(upper)
    found = sorted(below.get("", ()))
    for _ in range(_DEPTH):
        split: list[str] = []
        for folder in found:
            inner = sorted(below.get(folder, ()))
            few = own.get(folder, 0) * 3 <= count[folder]
            wide = len(inner) >= 2 or (len(inner) == 1 and not own.get(folder))
            large = count[folder] * 3 > len(code) or not own.get(folder)
            split += inner if inner and few and wide and large else [folder]
        if split == found or len(split) > _PARTS:
            break
        found = split
    return found[:_PARTS]


def _parts(folders: Sequence[str], held: Sequence[tuple[str, int]], code: Sequence[tuple[str, int, str]]) -> list[Part]:
    known = set(folders)
    files: dict[str, int] = dict.fromkeys(folders, 0)
    sizes: dict[str, int] = dict.fromkeys(folders, 0)
    spoken: dict[str, dict[str, int]] = {folder: {} for folder in folders}
    for path, size in held:
        if (of := _above(path, known)) is not None:
            files[of] += 1
            sizes[of] += size
    for path, size, language in code:
        if (of := _above(path, known)) is not None:
            spoken[of][language] = spoken[of].get(language, 0) + size
    names = _names(folders)
    return [Part(names[f], f, files[f], sizes[f], dict(_ranked(spoken[f]))) for f in folders]


def _above(path: str, known: Collection[str]) -> str | None:
    while "/" in path:
        path = path.rpartition("/")[0]
        if path in known:
            return path
    return None


def _names(folders: Sequence[str]) -> dict[str, str]:
    """Gives a short name for each folder: its last step where no other has it, else more of the path."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for folder in folders:
        steps = folder.split("/")
        for n in range(1, len(steps) + 1):
            name = slug("-".join(steps[-n:]))
            if name not in taken:
                break
        while name in taken:
            name = f"{name[:57]}-x"
        taken.add(name)
        found[folder] = name
    return found


def slug(text: str) -> str:
    """Gives a text as the name of a module or a task may be."""
    made = re.sub(r"\.{2,}", ".", re.sub(r"[^a-z0-9._-]+", "-", text.lower())).strip("-._")[:60].strip("-._")
    return made if made and not made.endswith(".lock") else f"{made.removesuffix('.lock')}-part".lstrip("-")


def _tests(paths: set[str], read: Callable[[str], str]) -> list[Test]:
    found: dict[str, Test] = {}
    named = [p for p in sorted(paths, key=lambda p: (p.count("/"), p)) if p.rsplit("/", 1)[-1] in _MANIFESTS]
    for path in [p for p in named if p.count("/") <= 3][:_READ]:
        folder, _, name = path.rpartition("/")
        text = read(path)[:_MOST]
        command = _command(name, text, folder, paths)
        if command and not checks.fault(command):
            line = f"cd {_quoted(folder)} && {command}" if folder else command
            found.setdefault(line, Test(line, folder, path))
    tests = [p for p in paths if re.search(r"(^|/)test_[^/]*\.py$|_test\.py$", p)]
    if tests and not any("pytest" in line or "unittest" in line for line in found):
        found.setdefault("python3 -m unittest", Test("python3 -m unittest", "", min(tests)))
    return list(found.values())


def _quoted(folder: str) -> str:
    import shlex

    return shlex.quote(folder)


def _command(name: str, text: str, folder: str, paths: set[str]) -> str:
    inside = f"{folder}/" if folder else ""
    if name in ("pyproject.toml", "setup.py", "setup.cfg", "tox.ini"):
        if "pytest" in text or any(p.startswith(inside) and p.endswith("conftest.py") for p in paths):
            return "python3 -m pytest -q"
        return ""
    if name == "package.json":
        try:
            scripts = msgspec.json.decode(text.encode("utf-8", "surrogatepass")).get("scripts")
        except (*UNREADABLE, AttributeError):
            return ""
        line = scripts.get("test") if isinstance(scripts, dict) else None
        if not isinstance(line, str) or "no test specified" in line:
            return ""
        locks = (("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn"), ("bun.lockb", "bun run"))
        return next((f"{tool} test" for lock, tool in locks if f"{inside}{lock}" in paths), "npm test")
    if name.lower().endswith("makefile"):
        target = next((t for t in ("test", "check", "tests") if re.search(rf"^{t}\s*:(?!=)", text, re.MULTILINE)), "")
        return f"make {target}" if target else ""
    if name == "Gemfile":
        return "bundle exec rspec" if any(p.startswith(f"{inside}spec/") for p in paths) else ""
    return {"go.mod": "go test ./...", "Cargo.toml": "cargo test -q", "pom.xml": "mvn -q test",
            "build.gradle": "gradle test", "build.gradle.kts": "gradle test",
            "composer.json": "composer test" if '"test"' in text else ""}[name]  # fmt: skip


# what a model adds


class Said(msgspec.Struct, frozen=True):
    """Is what a model's reply adds to a map, or what is wrong with it; `truncated` when its end is missing."""

    map: Map | None
    problems: tuple[str, ...] = ()
    truncated: bool = False

    @property
    def message(self) -> str:
        """Gives what to tell the model; empty when nothing is wrong."""
        if self.map is not None:
            return ""
        if self.truncated:
            return "Your reply broke off before its end. Send a shorter one, whole: fewer parts, and few words on each."
        listed = "\n".join(f"{n}. {words}" for n, words in enumerate(self.problems[:100], 1))
        return f"The map can't be taken; this is wrong with it:\n{listed}\nSend the whole corrected object."


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    path: str
    about: str = ""
    depends_on: tuple[str, ...] = ()
    test: str = ""


def completed(seen: Map, reply: str, files: Sequence[tuple[str, int]]) -> Said:
    """Gives a map with what a model said of it; folders that are not among the files are faults."""
    found = find(reply, ("parts", "tests", "notes"))
    if found.truncated:
        return Said(None, ("the reply broke off before its end",), True)
    if found.value is None:
        return Said(None, (found.fault or "there is no JSON object with parts in the reply",))
    faults = list(found.twice)
    faults += [f"there is no field {key[:80]!r}" for key in found.value if key not in ("parts", "tests", "notes")]
    folders = {"", *(folder for path, _ in files for folder in _all_above(path))}
    made: list[_Part] = []
    for n, one in enumerate(_list(found.value, "parts", faults)):
        try:
            made.append(msgspec.convert(one, _Part))
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            faults.append(f"parts[{n}]: {' '.join(str(error).split())[:300]}")
    names = [one.name for one in made]
    for one in made:
        path = _plain(one.path)
        if slug(one.name) != one.name:
            faults.append(f"part {one.name[:80]!r}: its name is not one of lower case letters, digits, '.', '_', '-'")
        if names.count(one.name) > 1:
            faults.append(f"two parts have the name {one.name[:80]!r}")
        if path not in folders:
            faults.append(f"part {one.name[:80]}: there is no folder {one.path[:80]!r}")
        faults += [f"part {one.name[:80]}: it depends on {need[:80]!r}, which is no part"
                   for need in one.depends_on if need not in names]  # fmt: skip
    tests = [*_texts(found.value, "tests", faults), *(one.test for one in made if one.test.strip())]
    faults += [f"the test {line[:80]!r} is none: {why}" for line in tests if (why := checks.fault(line))]
    notes = _texts(found.value, "notes", faults)
    if faults:
        return Said(None, tuple(dict.fromkeys(faults)))
    known = {part.path: part for part in seen.parts}
    lines = {test.command: test for test in seen.tests}
    for line in tests:
        lines.setdefault(" ".join(line.split("\n")).strip(), Test(" ".join(line.split("\n")).strip()))
    parts = tuple(_joined(one, known.get(_plain(one.path)), files) for one in made) or seen.parts
    # notes are a model's words on a repository that may want to be heard: they are short, and one line each
    said = tuple(" ".join(note.split())[:_ABOUT] for note in notes[:50] if note.strip())
    return Said(msgspec.structs.replace(seen, parts=parts, tests=tuple(lines.values()), notes=said,
                                        by="files and model"))  # fmt: skip


def _joined(one: _Part, known: Part | None, files: Sequence[tuple[str, int]]) -> Part:
    path, about = _plain(one.path), " ".join(one.about.split())[:_ABOUT]
    if known is not None:
        return msgspec.structs.replace(known, name=one.name, about=about, depends_on=one.depends_on)
    inside = [(p, size) for p, size in files if not path or p.startswith(f"{path}/")]
    spoken: dict[str, int] = {}
    for p, size in inside:
        if language := LANGUAGES.get(p.rpartition(".")[2].lower()):
            spoken[language] = spoken.get(language, 0) + size
    return Part(one.name, path, len(inside), sum(size for _, size in inside), dict(_ranked(spoken)), one.depends_on,
                about)  # fmt: skip


def _plain(path: str) -> str:
    return "/".join(step for step in path.split("/") if step not in ("", "."))


def _all_above(path: str) -> list[str]:
    steps = path.split("/")[:-1]
    return ["/".join(steps[: n + 1]) for n in range(len(steps))]


def _list(value: Mapping[str, Any], key: str, faults: list[str]) -> list[Any]:
    given = value.get(key, [])
    if not isinstance(given, list):
        faults.append(f"{key}: it is no list")
        return []
    if len(given) > 1_000:
        faults.append(f"{key}: there are {len(given)}, and at most 1000 are taken")
        return []
    return given


def _texts(value: Mapping[str, Any], key: str, faults: list[str]) -> list[str]:
    given = _list(value, key, faults)
    if any(not isinstance(one, str) for one in given):
        faults.append(f"{key}: one of them is no text")
    return [one for one in given if isinstance(one, str)]
