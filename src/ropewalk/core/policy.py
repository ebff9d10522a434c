"""Policy: what a `ropewalk.toml` says of the work in its repository. It is the operator's copy that counts.

```toml
[workspace]
copy = [".env"]              # files and folders that git does not track, copied into each workspace
link = ["node_modules"]      # the same, as a symbolic link to the operator's own
setup = "npm ci"             # a line for the shell, run in each new workspace and before each check
env = { NODE_ENV = "test" }  # variables for the setup, for checks, and for agents
ports = 10                   # how many ports each workspace has to itself, from ROPEWALK_PORT_BASE on
setup_seconds = 600
filters = ["lfs"]            # attributes' filters whose files may land as they are; no filter runs

[merge]
structural = false           # no second chance by syntax trees for files in conflict

[rules]
files = ["AGENTS.md"]        # what every agent is told, whoever's it is
decisions = "docs/decisions" # the folder of standing decisions; each agent gets those that govern what it writes
```
"""

from __future__ import annotations

import os
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from ropewalk.core.errors import InvalidError, os_error
from ropewalk.core.ids import check_path, path_bytes

FILE = "ropewalk.toml"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MOST = 1 << 20


class WorkspacePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Is the table `[workspace]`."""

    copy: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    setup: str = ""
    setup_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    env: dict[str, str] = {}
    ports: Annotated[int, Meta(ge=0, le=1000)] = 0
    filters: tuple[str, ...] = ("lfs",)


class MergePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Is the table `[merge]`."""

    structural: bool = True


class RulesPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Is the table `[rules]`: the files of rules, relative to the policy's own, and the folder of decisions."""

    files: tuple[str, ...] = ()
    decisions: str = "docs/decisions"


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what a file says; `folder` is where it is, and what `copy`, `link` and the files of rules are relative to."""

    folder: str = ""
    workspace: WorkspacePolicy = WorkspacePolicy()
    rules: RulesPolicy = RulesPolicy()
    merge: MergePolicy = MergePolicy()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workspace: WorkspacePolicy = WorkspacePolicy()
    rules: RulesPolicy = RulesPolicy()
    merge: MergePolicy = MergePolicy()


def operator_folder(root: str) -> str:
    """Gives the work tree that a store was made in; the store's own folder when it stands by itself."""
    above, name = os.path.split(root)
    if name == "ropewalk" and os.path.basename(above) == ".git":
        return os.path.dirname(above)
    return above if name == ".ropewalk" else root


def read(folder: str) -> Policy:
    """Gives the policy of a folder's `ropewalk.toml`, that of defaults without one; `E_INVALID` names what is wrong."""
    path = os.path.join(folder, FILE)
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Policy(folder)
    except OSError as error:
        raise os_error(error, f"read of {FILE}") from None
    return parse(data, folder)


def parse(data: bytes, folder: str = "") -> Policy:
    """Gives what the bytes of a `ropewalk.toml` say."""
    import tomllib

    try:
        if len(data) > _MOST:
            raise ValueError("it is larger than 1 MiB")
        whole = msgspec.convert(tomllib.loads(data.decode("utf-8")), _File)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{FILE} can't be used: {error}", hint="see docs/workspaces.md", file=FILE) from None
    found = whole.workspace
    for name in (*found.copy, *found.link, *whole.rules.files, whole.rules.decisions):
        check_path(path_bytes(name))
    for name, value in found.env.items():
        if not _VARIABLE.match(name) or "\0" in value:
            raise InvalidError(f"{FILE}: {name!r} is not a variable", file=FILE, name=name)
    return Policy(folder, found, whole.rules, whole.merge)
