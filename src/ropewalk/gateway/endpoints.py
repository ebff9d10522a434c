"""Endpoints: where the user's models are, with their keys, in one file that only he may read.

```toml
[endpoints.anthropic]
url = "https://api.anthropic.com"
key = "…"                       # or key_env = "ANTHROPIC_API_KEY"
auth = "x-api-key"              # bearer (default), x-api-key, x-goog-api-key, none
wires = ["anthropic"]
slots = 8

[endpoints.mine]
auth = "login"                  # the login that a program keeps itself: claude, codex
program = "claude"

[profiles.work]                 # another folder of such a program; an endpoint takes it by auth = "profile:work"
program = "codex"
folder = "~/.codex-work"
```
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ropewalk.core.errors import InvalidError, os_error
from ropewalk.gateway import logins
from ropewalk.gateway.settings import Login, Upstream
from ropewalk.gateway.spending import Bounds
from ropewalk.gateway.tokens import Wire

FILE = "endpoints.toml"


class Endpoint(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is one endpoint of the file: an upstream, whose key may also be in a variable."""

    url: str = ""
    key: str = ""
    key_env: str = ""
    auth: str = "bearer"
    wires: tuple[Wire, ...] = ()
    account: str = ""
    slots: int = 16
    per_minute: int = 0
    models: dict[str, str] = {}
    headers: dict[str, str] = {}
    rewrites: tuple[str, ...] = ()
    price: dict[str, float] | None = None
    window: int = 0
    program: str = ""
    refresh_url: str = ""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is a folder in which a program keeps a login."""

    program: str
    folder: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    endpoints: dict[str, Endpoint] = {}
    profiles: dict[str, Profile] = {}
    budget: Bounds = Bounds()


def read(folder: str, env: Mapping[str, str]) -> dict[str, Upstream]:
    """Gives the endpoints of a configuration folder by name, in the file's order; none without the file.

    Raises `E_INVALID` for a file that others may read, and for what is wrong in it.
    """
    found = _read(folder)
    known = _profiles(found, env)
    return {name: _upstream(name, one, env, known) for name, one in found.endpoints.items()}


def resolved(folder: str, env: Mapping[str, str], name: str, one: Endpoint) -> Upstream:
    """Gives the upstream of an endpoint that need not be in the file; `E_INVALID` for what is wrong with it."""
    return _upstream(name, one, env, _profiles(_read(folder), env))


def profiles(folder: str, env: Mapping[str, str]) -> dict[str, Login]:
    """Gives the logins that there may be: those of the file's profiles by name, and each program's own by its name."""
    known = _profiles(_read(folder), env)
    return known | {name: logins.located(name, logins.default_folder(name, env)) for name in logins.PROGRAMS}


def bounds(folder: str) -> Bounds:
    """Gives what the user lets runs, days and providers cost; `E_INVALID` for a provider that is no endpoint."""
    found = _read(folder)
    strange = [name for name in found.budget.provider if name not in found.endpoints]
    if strange:
        raise InvalidError(f"{FILE}: the budget names {strange[0]!r}, which is no endpoint", hint="see docs/gateway.md")
    return found.budget


def _profiles(found: _File, env: Mapping[str, str]) -> dict[str, Login]:
    made = {}
    for name, one in found.profiles.items():
        _known(f"profile {name}", one.program)
        home = env.get("HOME") or os.path.expanduser("~")
        place = home + one.folder[1:] if one.folder == "~" or one.folder.startswith("~/") else one.folder
        if not os.path.isabs(place):
            raise InvalidError(f"profile {name}: {one.folder!r} is no whole path", hint="it begins with / or ~/")
        made[f"profile:{name}"] = logins.located(one.program, place)
    return made


def _known(where: str, program: str) -> None:
    if program not in logins.PROGRAMS:
        raise InvalidError(
            f"{where}: the login of {program!r} can't be used"
            if program
            else f"{where}: whose login? It names no program",
            hint=f"program = {' or '.join(logins.PROGRAMS)}",
        )


def _read(folder: str) -> _File:
    import tomllib

    path = os.path.join(folder, FILE)
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            found = msgspec.convert(tomllib.load(file), _File)
    except (FileNotFoundError, NotADirectoryError):
        return _File()
    except OSError as error:
        raise os_error(error, f"read of {FILE}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{FILE} can't be used: {error}", hint="see docs/gateway.md", file=path) from None
    if stat.S_IMODE(mode) & 0o077:
        raise InvalidError(f"{FILE} holds keys, and others may read it", hint=f"chmod 600 {path}", file=path)
    return found


def _upstream(name: str, one: Endpoint, env: Mapping[str, str], known: Mapping[str, Login]) -> Upstream:
    login = None
    if one.auth == "login" or one.auth.startswith("profile:"):
        login = _login(name, one, env, known)
        wire: Wire = "anthropic" if login.program == "claude" else "responses"
        url = one.url or logins.PROGRAMS[login.program].url
        one = msgspec.structs.replace(one, url=url, auth="bearer", wires=(wire,))
    key = one.key or (env.get(one.key_env, "") if one.key_env else "")
    if one.key_env and not key:
        raise InvalidError(
            f"endpoint {name}: the variable {one.key_env} is not set", hint=f"set it, or give key in {FILE}"
        )
    if not one.url.startswith(("http://", "https://")):
        raise InvalidError(f"endpoint {name}: {one.url!r} is no URL", hint="it begins with http:// or https://")
    values = msgspec.to_builtins(one)
    for name_of_ours in ("key_env", "program", "refresh_url"):
        values.pop(name_of_ours, None)
    try:
        made = msgspec.convert({**values, "key": key}, Upstream)
    except msgspec.ValidationError as error:
        raise InvalidError(f"endpoint {name}: {error}", hint="see docs/gateway.md") from None
    return msgspec.structs.replace(made, login=login)


def _login(name: str, one: Endpoint, env: Mapping[str, str], known: Mapping[str, Login]) -> Login:
    if one.key or one.key_env:
        raise InvalidError(f"endpoint {name}: a key or a login, not both", hint="see docs/gateway.md")
    if one.auth == "login":
        _known(f"endpoint {name}", one.program)
        return logins.located(one.program, logins.default_folder(one.program, env), one.refresh_url)
    found = known.get(one.auth)
    if found is None:
        words = ", ".join(known) or f"{FILE} has none"
        raise InvalidError(f"endpoint {name}: there is no {one.auth!r}", hint=words)
    return msgspec.structs.replace(found, refresh_url=one.refresh_url)


def window(upstreams: Mapping[str, Upstream], names: Iterable[str]) -> int:
    """Gives how many tokens of context each of some endpoints bears, 0 where none says so."""
    return min((upstreams[name].window for name in names if name in upstreams and upstreams[name].window), default=0)


def fitting(
    upstreams: Mapping[str, Upstream], wires: Sequence[Wire], named: Sequence[str] = (), harness: str = ""
) -> list[str]:
    """Gives the endpoints that a program can use, in order: the named ones, else all that speak a format of its.

    A login is its own program's alone.
    """
    return [name for name in (list(named) or list(upstreams)) if _fits(upstreams.get(name), wires, harness)]


def _fits(one: Upstream | None, wires: Sequence[Wire], harness: str) -> bool:
    if one is None or (one.login is not None and one.login.program != harness):
        return False
    return not one.wires or bool(set(one.wires) & set(wires))
