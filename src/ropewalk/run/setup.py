"""What `rw setup` makes a configuration of: endpoints as they are typed, a file with all of it, and the project's size.

A file for a machine without a person, all of it optional:

```toml
[run]                       # as in run.toml of the store
harness = "claude"
workers = 3                 # without it as many as are worth having

[endpoints.anthropic]       # as in endpoints.toml
url = "https://api.anthropic.com"
key_env = "ANTHROPIC_API_KEY"
auth = "x-api-key"

[probe]
on_failure = "stop"         # or "use": take an endpoint that does not answer as agents need it
```
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec

from ropewalk.core.errors import InvalidError, RopewalkError
from ropewalk.gateway.endpoints import Endpoint
from ropewalk.gateway.settings import Upstream
from ropewalk.plan import mapping, overview
from ropewalk.plan.plan import Module, Plan, form, loads
from ropewalk.plan.task import Task
from ropewalk.run.usual import Usual

_MOST = 1 << 20
_KEY = re.compile(r"[\x21-\x7e]+\Z")
_URL = re.compile(r"https?://[\x21-\x7e]+\Z")
_SHOWN = 100


# endpoints


class Typed(NamedTuple):
    """Is an endpoint as a person types it: its base URL, and its key, empty without one."""

    url: str
    key: str = ""

    def __str__(self) -> str:
        """Gives it as it may be shown."""
        return f"{self.url} (with a key)" if self.key else self.url


def typed(line: str) -> Typed:
    """Gives the endpoint of a line `URL`, `URL KEY` or `URL|KEY`; `E_INVALID`, whose words hold nothing of the line."""
    parts = [part for part in re.split(r"[\s|]+", line.strip()) if part]
    if not parts or len(parts) > 2:
        raise InvalidError("that is no endpoint", hint="one line: URL, URL KEY or URL|KEY")
    key = parts[1] if len(parts) == 2 else ""
    if fault := url_fault(parts[0]) or key_fault(key):
        raise InvalidError(fault, hint="one line: URL, URL KEY or URL|KEY")
    return Typed(plain(parts[0]), key)


def plain(url: str) -> str:
    """Gives a base URL in one form: programs ask for paths that begin with /v1."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def url_fault(url: str) -> str:
    """Gives what is wrong with a base URL, empty where nothing is; its words hold nothing of the URL, nor of a key."""
    from urllib.parse import urlsplit

    try:
        found = urlsplit(url)
        if not _URL.match(url) or not found.hostname or (found.port is not None and not 0 < found.port < 65_536):
            return "the URL is none: it begins with http:// or https://, and has a host"
    except ValueError:
        return "the URL is none: it begins with http:// or https://, and has a host"
    if found.username is not None or found.password is not None or found.query or found.fragment:
        return "the URL has more in it than an address; a key stands behind it, or in its own field"
    return ""


def key_fault(key: str) -> str:
    """Gives what is wrong with a key, empty where nothing is; its words hold nothing of it."""
    return "" if not key or _KEY.match(key) else "the key has characters that no key has"


def name_of(url: str, taken: Collection[str]) -> str:
    """Gives a name for an endpoint that has none, by its host."""
    from urllib.parse import urlsplit

    found = urlsplit(url)
    base = re.sub(r"[^a-z0-9]+", "-", f"{found.hostname}-{found.port or ''}".lower()).strip("-") or "endpoint"
    return next(name for n in range(1, len(taken) + 2) if (name := base if n == 1 else f"{base}-{n}") not in taken)


# the project's size


class Size(msgspec.Struct, frozen=True):
    """Is how many agents a project can use.

    `most` is how many could work at once, `workers` how many are worth having, with its range; `counted` says of what
    that was told.
    """

    modules: int
    most: int
    workers: int
    low: int
    high: int
    counted: str


def of_plan(plan: Plan, counted: str) -> Size:
    """Gives the size of a plan."""
    found = overview.advise(plan, loads(plan))
    return Size(max(1, len(plan.modules)), found.ceiling, found.workers, found.low, found.high, counted)


def of_files(files: Sequence[tuple[str, int]], read: Callable[[str], str], counted: str) -> Size:
    """Gives the size of a project that nobody has planned: as though each part that the map has were one task."""
    parts = mapping.survey(files, read).parts
    if not parts:
        return Size(1, 1, 1, 1, 1, f"{counted}: there are no parts yet")
    modules = tuple(Module(part.name, part.path, max(1.0, min(1e6, part.bytes / 1024))) for part in parts)
    tasks = tuple(Task(part.name, "test -e .", module=part.name, owns=(f"{part.path}/**",)) for part in parts)
    return of_plan(Plan("", modules, tasks), counted)


# a file


class Probing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is the table `[probe]`."""

    on_failure: Literal["stop", "use"] = "stop"


class Wanted(NamedTuple):
    """Is all that a file asks for."""

    run: Usual
    endpoints: dict[str, Endpoint]
    upstreams: dict[str, Upstream]
    probe: Probing


class Around(NamedTuple):
    """Is what a file is held against.

    `known` are endpoints that there are already, `modules` how many agents a project can use at most; `harness` gives
    what is wrong with a harness, `upstream` the upstream of an endpoint, or raises.
    """

    known: Collection[str]
    modules: int
    harness: Callable[[str], str]
    upstream: Callable[[str, Endpoint], Upstream]


def read(file: BinaryIO, name: str, around: Around) -> Wanted:
    """Gives what a file asks for; `E_INVALID` with everything that is wrong with it in `details.problems`.

    No word of it holds a key. A file that others may read has none.
    """
    import tomllib

    mode = os.fstat(file.fileno()).st_mode
    data = file.read(_MOST + 1)
    try:
        if len(data) > _MOST:
            raise ValueError("it is larger than 1 MiB")
        given: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{name} can't be read: {error}", hint="it is TOML: see docs/setup.md", file=name) from None
    faults: list[str] = []
    found = _parsed(given, faults, around)
    if any(isinstance(one, dict) and one.get("key") for one in _tables(given).values()) and stat.S_IMODE(mode) & 0o077:
        faults.append(f"it holds keys, and others may read it: chmod 600 {name}, or give key_env")
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise InvalidError(
            f"{name} can't be used: {faults[0]}{more}", hint="nothing was changed; see docs/setup.md for what it holds",
            file=name, problems=faults[:_SHOWN],
        )  # fmt: skip
    return found


def _parsed(given: Mapping[str, Any], faults: list[str], around: Around) -> Wanted:
    from difflib import get_close_matches

    tables = ("run", "endpoints", "probe")
    for key in given:
        if key not in tables:
            close = get_close_matches(key.lower()[:80], tables, 1, 0.6)
            faults.append(f"there is no table {key[:80]!r}{f'; is it {close[0]!r}?' if close else ''}")
    run, wrong = form(given.get("run", {}), Usual, "[run]")
    faults += wrong
    probe, wrong = form(given.get("probe", {}), Probing, "[probe]")
    faults += wrong
    made: dict[str, Endpoint] = {}
    ups: dict[str, Upstream] = {}
    if not isinstance(given.get("endpoints", {}), dict):
        faults.append("endpoints: it is no table of tables, as in [endpoints.NAME]")
    for name, value in _tables(given).items():
        _endpoint(name, value, faults, around, made, ups)
    _run_faults(given.get("run"), {*around.known, *_tables(given)}, faults, around)
    return Wanted(run or Usual(), made, ups, probe or Probing())


def _tables(given: Mapping[str, Any]) -> dict[str, Any]:
    found = given.get("endpoints", {})
    return found if isinstance(found, dict) else {}


def _endpoint(
    name: str, value: Any, faults: list[str], around: Around, made: dict[str, Endpoint], ups: dict[str, Upstream]
) -> None:
    place = f"[endpoints.{name[:80]}]"
    one, wrong = form(value, Endpoint, place)
    faults += wrong
    if isinstance(value, dict) and value.get("key") and value.get("key_env"):
        faults.append(f"{place}: a key, or the variable that holds it, not both")
    # what is wrong with one field hides nothing of the others
    for field, look, other in (("url", url_fault, "http://localhost"), ("key", key_fault, "")):
        text = value.get(field) if isinstance(value, dict) else None
        if isinstance(text, str) and (fault := look(text)):
            faults.append(f"{place}: {fault}")
            one = None if one is None else msgspec.structs.replace(one, **{field: other})
    if one is None:
        return
    try:
        ups[name] = around.upstream(name, one)
        made[name] = msgspec.structs.replace(one, url=plain(one.url)) if one.url else one
    except RopewalkError as error:
        faults.append(f"{place}: {error.message.removeprefix(f'endpoint {name}: ')}")


def _run_faults(value: Any, names: Collection[str], faults: list[str], around: Around) -> None:
    """Adds what the fields of `[run]` can't mean here, of those whose form is right."""
    if not isinstance(value, dict):
        return
    for field in ("manager", "endpoints"):
        named = value.get(field)
        for name in named if isinstance(named, list) else ():
            if isinstance(name, str) and name not in names:
                listed = ", ".join(sorted(names)) or "none"
                faults.append(f"[run]: {field}: there is no endpoint {name[:80]!r}; known: {listed}")
    workers = value.get("workers")
    if isinstance(workers, int) and workers > around.modules:
        faults.append(f"[run]: workers: {workers} are more than the {around.modules} modules there are")
    harness = value.get("harness")
    if isinstance(harness, str) and harness and (fault := around.harness(harness)):
        faults.append(f"[run]: harness: {fault}")
