"""Task files: tasks as JSON, JSON lines, TOML or Markdown, read strictly, with every problem named by its place.

```
{"tasks": [{"id": "a", "check": "make test", "description": "…"}]}    also the list alone, or {"a": "brief"}
{"id": "a", "check": "make test"}                                     one task, or one a line
## a: Title                                                           Markdown: headings, `key: value` lines, text
```
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import InvalidError
from ropewalk.plan.task import MAX_TASKS, Limits, Task, problems

MAX_FILE = 256 << 20
SHOWN = 100
"""Is how many problems an error lists."""

Format = Literal["json", "lines", "toml", "markdown"]
_BY_NAME: dict[str, Format] = {
    ".json": "json", ".jsonl": "lines", ".ndjson": "lines", ".toml": "toml", ".md": "markdown", ".markdown": "markdown",
}  # fmt: skip
_ALIASES = {"verify": "check", "brief": "description", "prompt": "description", "message": "title"}
_FIELDS = frozenset(f.encode_name for f in msgspec.structs.fields(Task))
_LIMITS = frozenset(f"limit_{f.encode_name}" for f in msgspec.structs.fields(Limits))
_HINT = 'a task is {"id": "one", "check": "make test", "description": "…"}; `rw help task add` names the forms'
_HEADING = re.compile(r"##[ \t]+(\S.*?)[ \t]*#*\Z")
_KEY = re.compile(r"(?:[-*][ \t]+)?([A-Za-z][A-Za-z0-9_-]*):(?:[ \t]+(.*))?\Z")
_FENCE = re.compile(r" {0,3}(```|~~~)")


class _Given(NamedTuple):
    """Is a task as a file has it, before its form is looked at, and where it stands there."""

    place: str
    values: dict[str, Any]


class _Faults:
    """Collects what is wrong, each with its place, so that one try names all of it."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, place: str, words: str) -> None:
        self.found.append(f"{place}: {' '.join(words.split())[:500]}")


def parse(data: bytes, name: str, check: str = "") -> list[Task]:
    """Gives the tasks of a file, or `E_INVALID` with every problem in `details.problems`; `name` tells its form.

    A task without a check of its own gets `check`, as a guard: it may pass before anything is done.
    """
    shown = name if name != "-" else "standard input"
    if len(data) > MAX_FILE:
        raise InvalidError(f"{shown} is longer than {MAX_FILE >> 20} MiB", hint="add the tasks in parts", file=name)
    text = _text(data, shown, name)
    faults = _Faults()
    tasks: list[Task] = []
    given = list(_read(text, name, shown, faults))
    if len(given) > MAX_TASKS:
        raise InvalidError(
            f"{shown} has {len(given)} tasks, more than {MAX_TASKS}", hint="add them in parts", file=name
        )
    places: dict[str, str] = {}
    for place, values in given:
        if (task := _task(place, values, check, faults)) is None:
            continue
        if task.id in places:
            faults.add(place, f"{task.id!r} is a task already, at {places[task.id]}")
        places.setdefault(task.id, place)
        for words in problems(task):
            faults.add(place, words.removeprefix(f"{task.id[:120]}: "))
        tasks.append(task)
    if not given and not faults.found:
        faults.add(shown, "there is no task in it")
    if faults.found:
        more = f" (and {len(faults.found) - 1} more)" if len(faults.found) > 1 else ""
        raise InvalidError(
            f"the tasks can't be taken: {faults.found[0]}{more}", hint=_HINT, problems=faults.found[:SHOWN], file=name
        )
    return tasks


def _text(data: bytes, shown: str, name: str) -> str:
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidError(f"{shown} is not UTF-8 in line {line}", hint="save it as UTF-8", file=name) from None
    if (at := text.find("\0")) >= 0:
        line = text.count("\n", 0, at) + 1
        raise InvalidError(f"{shown} holds a NUL byte in line {line}", hint="take it out", file=name)
    return text.replace("\r\n", "\n")


def form(text: str, name: str) -> Format:
    """Gives the form of a file by its name, else by how it begins."""
    for end, found in _BY_NAME.items():
        if name.lower().endswith(end):
            return found
    start = text.lstrip()
    if start.startswith("{") and "\n{" in start:
        return "lines"
    if re.match(r"\[+[ \t]*[A-Za-z\"']", start) and "=" in start:
        return "toml"
    if start.startswith(("{", "[")):
        return "json"
    if start.startswith(("#", "---")):
        return "markdown"
    raise InvalidError(
        "the tasks are neither JSON, TOML nor Markdown", hint="name the file .json, .jsonl, .toml or .md", file=name
    )


def _read(text: str, name: str, shown: str, faults: _Faults) -> Iterable[_Given]:
    kind = form(text, name)
    if kind == "markdown":
        return _markdown(text, faults)
    if kind == "lines":
        return _lines(text, shown, faults)
    if kind == "json":
        return _listed(_json(text, shown), shown, faults)
    try:
        return _listed(msgspec.toml.decode(text), shown, faults)
    except UNREADABLE as error:
        raise InvalidError(f"{shown}: {_one_line(error)}", hint=_HINT, file=name) from None


# JSON


class _Twice(ValueError):
    """A key stands twice in an object."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Twice(f"the key {twice[:100]!r} stands twice in an object")
    return found


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _json(text: str, shown: str) -> Any:
    """Gives the value of a JSON text; a key that stands twice in an object is an error, as msgspec would not tell."""
    import json

    try:
        return json.loads(text, object_pairs_hook=_pairs, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{shown}: {_one_line(error)}", hint=_HINT) from None


def _lines(text: str, shown: str, faults: _Faults) -> Iterator[_Given]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = _json(line, f"line {number}")
        except InvalidError as error:
            faults.add(shown, error.message)
            continue
        yield from _one(f"line {number}", value, faults)


def _listed(value: Any, shown: str, faults: _Faults) -> Iterator[_Given]:
    """Yields the tasks of a decoded file: a list, an object with `tasks`, or a map from names to tasks or briefs."""
    where = shown
    if isinstance(value, dict) and isinstance(value.get("tasks"), (list, dict)):
        for key in value:
            if key != "tasks":
                faults.add(shown, f"there is no key {key[:100]!r} beside tasks")
        value, where = value["tasks"], "tasks"
    if isinstance(value, dict) and isinstance(value.get("id"), str) and ("check" in value or "verify" in value):
        yield from _one(shown, value, faults)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _one(f"tasks[{number}]", one, faults)
    elif isinstance(value, dict):
        for key, one in value.items():
            place = f"task {key[:100]!r}"
            if isinstance(one, str):
                yield _Given(place, {**from_brief(one), "id": key})
            elif isinstance(one, dict) and one.get("id", key) == key:
                yield _Given(place, {**one, "id": key})
            else:
                faults.add(place, "it is neither a brief nor an object of that id")
    else:
        faults.add(where, "it is neither a list of tasks nor an object")


def _one(place: str, value: Any, faults: _Faults) -> Iterator[_Given]:
    if isinstance(value, dict):
        name = value.get("id")
        yield _Given(f"{place} ({name[:100]})" if isinstance(name, str) and name.isprintable() else place, value)
    else:
        faults.add(place, "a task is an object")


# briefs and Markdown


def from_brief(text: str) -> dict[str, Any]:
    """Gives a task's fields as a brief has them: known `key: value` lines first, then text.

    `verify`, `n` and `m` count wherever a line begins with them, as flockwork has it.
    """
    lines = text.strip("\n").split("\n")
    values: dict[str, Any] = {}
    at = 0
    while at < len(lines) and (found := _key(lines[at])) is not None and found[0] not in values:
        values[found[0]] = found[1]
        at += 1
    rest = lines[at:]
    for line in rest:
        found = _key(line)
        if found is None or found[0] not in ("verify", "n", "m") or not line.startswith(found[0]):
            continue
        if found[0] != "verify" or "verify" not in values:
            values[found[0]] = found[1]
    values["description"] = "\n".join(rest).strip("\n")
    return _typed(values)


def _key(line: str) -> tuple[str, str] | None:
    match = _KEY.match(line.rstrip())
    if match is None:
        return None
    key = match[1].lower()
    known = key in _FIELDS or key in _LIMITS or key in _ALIASES or key in ("n", "m", "providers")
    return (key, (match[2] or "").strip()) if known and key not in ("id", "description", "limits") else None


_LISTS = ("needs", "owns", "modifies")
_INTS = ("priority", "n", "m", "limit_turns", "limit_tokens", "limit_heirs", "limit_attempts")
_FLOATS = ("limit_seconds", "limit_check_seconds", "limit_money")


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Gives the fields of text lines with numbers, lists and switches as such; what is none stays text and is told."""
    made: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    gate: dict[str, Any] = {}
    for key, text in values.items():
        value: Any = text
        if key in _LISTS:
            value = _words(text)
        elif key in _INTS or key in _FLOATS:
            value = _number(text, float if key in _FLOATS else int)
        elif key in ("guard", "providers"):
            value = {"yes": True, "true": True, "no": False, "false": False}.get(text.lower(), text)
        elif key in ("reply", "gate"):
            value = _object(text)
        if key.startswith("limit_"):
            limits[key.removeprefix("limit_")] = value
        elif key in ("n", "m", "providers"):
            gate[key] = value
        else:
            made[key] = value
    if limits:
        made["limits"] = limits
    if gate:
        made["gate"] = {"n": 1, "m": gate.get("n", 1), **gate}
    return made


def _words(text: str) -> Any:
    return _object(text) if text.startswith("[") else text.replace(",", " ").split()


def _object(text: str) -> Any:
    try:
        return _json(text, "")
    except InvalidError:
        return text


def _number(text: str, kind: type[int] | type[float]) -> Any:
    try:
        return kind(text.replace("_", "")) if len(text) < 30 else text
    except ValueError:
        return text


def _markdown(text: str, faults: _Faults) -> Iterator[_Given]:
    """Yields the tasks of a Markdown file: one from front matter, else one for each heading of the second rank."""
    lines = text.split("\n")
    if lines[0].rstrip() == "---":
        yield from _front(lines, faults)
        return
    start: int | None = None
    fence = ""
    for number, line in enumerate(lines):
        mark = _FENCE.match(line)
        if mark is not None and (not fence or mark[1] == fence):
            fence = "" if fence else mark[1]
        elif not fence and (line.startswith("## ") or line.rstrip() == "##"):
            if start is not None:
                yield from _section(lines, start, number, faults)
            start = number
        elif start is None and line.strip() and not line.startswith("#") and _key(line) is not None:
            faults.add(f"line {number + 1}", "a field stands before the first `## id`")
    if fence:
        faults.add(f"line {len(lines)}", f"the block of {fence} has no end")
    if start is not None:
        yield from _section(lines, start, len(lines), faults)


def _section(lines: Sequence[str], start: int, end: int, faults: _Faults) -> Iterator[_Given]:
    place = f"line {start + 1}"
    heading = _HEADING.match(lines[start].rstrip())
    if heading is None:
        return faults.add(place, "the heading has no id")
    name, colon, title = heading[1].partition(":")
    values = {"id": name.strip().strip("`")} | ({"title": title.strip()} if colon and title.strip() else {})
    yield _Given(f"{place} ({name.strip()[:100]})", {**_fields(lines, start + 1, end, faults), **values})


def _front(lines: Sequence[str], faults: _Faults) -> Iterator[_Given]:
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        return faults.add("line 1", "the front matter has no end")
    values: dict[str, Any] = {}
    for number in range(1, end):
        line = lines[number].rstrip()
        match = _KEY.match(line)
        if match is not None and match[1].lower() == "id":
            values["id"] = (match[2] or "").strip()
        elif line and (found := _key(line)) is not None and found[0] not in values:
            values[found[0]] = found[1]
        elif line:
            faults.add(f"line {number + 1}", f"{line[:100]!r} is no field of a task, or stands twice")
    made = _typed(values) | {"description": "\n".join(lines[end + 1 :]).strip("\n")}
    yield _Given("line 1", made)


def _fields(lines: Sequence[str], start: int, end: int, faults: _Faults) -> dict[str, Any]:
    """Gives the fields below a heading: `key: value` lines first, then the text; a key mistyped is told."""
    from difflib import get_close_matches

    values: dict[str, Any] = {}
    while start < end and not lines[start].strip():
        start += 1
    while start < end:
        found = _key(lines[start])
        if found is None:
            match = _KEY.match(lines[start].rstrip())
            known = [*_FIELDS, *_LIMITS, *_ALIASES]
            if match is not None and (close := get_close_matches(match[1].lower(), known, 1, 0.8)):
                faults.add(f"line {start + 1}", f"there is no key {match[1]!r}; is it {close[0]!r}?")
            break
        if found[0] in values:
            faults.add(f"line {start + 1}", f"the key {found[0]!r} stands twice")
        values[found[0]] = found[1]
        start += 1
    return _typed(values) | {"description": "\n".join(lines[start:end]).strip("\n")}


# the form of a task


def _task(place: str, values: Mapping[str, Any], check: str, faults: _Faults) -> Task | None:
    made: dict[str, Any] = {}
    script = values.get("script")
    for key, value in values.items():
        if key == "script":
            continue
        name = _ALIASES.get(key, key)
        if name in made or (name != key and name in values and values[name]):
            faults.add(place, f"{key!r} is another name of {name!r}, and both are given")
            return None
        made[name] = value
    if check and not made.get("check"):
        made |= {"check": check, "guard": True}
    if script is not None:
        # the scripted agent finds it at the end of what it is told
        block = msgspec.json.encode(script).decode("utf-8")
        made["description"] = f"{made.get('description', '')}\n\n```script\n{block}\n```".strip("\n")
    for needed in ("id", "check"):
        if needed not in made:
            words = "it has no check, so nobody could say whether it is done" if needed == "check" else "it has no id"
            faults.add(place, words)
            return None
    try:
        return msgspec.convert(made, Task)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        faults.add(place, str(error).replace("`$.", "`").replace("Object contains", "a task has"))
        return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
