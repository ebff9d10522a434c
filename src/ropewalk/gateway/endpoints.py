"""Endpoints: where the user's models are, with their keys, in one file that only he may read.

```toml
[endpoints.anthropic]
url = "https://api.anthropic.com"
key = "…"                       # or key_env = "ANTHROPIC_API_KEY"
auth = "x-api-key"              # bearer (default), x-api-key, x-goog-api-key, none
wires = ["anthropic"]
slots = 8
```
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence

import msgspec

from ropewalk.core.errors import InvalidError, os_error
from ropewalk.gateway.settings import Upstream
from ropewalk.gateway.tokens import Wire

FILE = "endpoints.toml"


class Endpoint(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is one endpoint of the file: an upstream, whose key may also be in a variable."""

    url: str
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


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    endpoints: dict[str, Endpoint] = {}


def read(folder: str, env: Mapping[str, str]) -> dict[str, Upstream]:
    """Gives the endpoints of a configuration folder by name, in the file's order; none without the file.

    Raises `E_INVALID` for a file that others may read, and for what is wrong in it.
    """
    import tomllib

    path = os.path.join(folder, FILE)
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            found = msgspec.convert(tomllib.load(file), _File).endpoints
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise os_error(error, f"read of {FILE}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{FILE} can't be used: {error}", hint="see docs/gateway.md", file=path) from None
    if stat.S_IMODE(mode) & 0o077:
        raise InvalidError(f"{FILE} holds keys, and others may read it", hint=f"chmod 600 {path}", file=path)
    return {name: _upstream(name, one, env) for name, one in found.items()}


def _upstream(name: str, one: Endpoint, env: Mapping[str, str]) -> Upstream:
    key = one.key or (env.get(one.key_env, "") if one.key_env else "")
    if one.key_env and not key:
        raise InvalidError(
            f"endpoint {name}: the variable {one.key_env} is not set", hint=f"set it, or give key in {FILE}"
        )
    if not one.url.startswith(("http://", "https://")):
        raise InvalidError(f"endpoint {name}: {one.url!r} is no URL", hint="it begins with http:// or https://")
    values = msgspec.to_builtins(one)
    values.pop("key_env", None)
    try:
        return msgspec.convert({**values, "key": key}, Upstream)
    except msgspec.ValidationError as error:
        raise InvalidError(f"endpoint {name}: {error}", hint="see docs/gateway.md") from None


def fitting(upstreams: Mapping[str, Upstream], wires: Sequence[Wire], named: Sequence[str] = ()) -> list[str]:
    """Gives the endpoints that a program can use, in order: the named ones, else all that speak a format of its."""
    listed = list(named) or list(upstreams)
    return [n for n in listed if n in upstreams and (not upstreams[n].wires or set(upstreams[n].wires) & set(wires))]
