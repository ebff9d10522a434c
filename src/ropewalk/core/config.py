"""The settings: one table of what can be set, from which values and their origins come.

A flag goes before an environment variable, that before what `run.toml` of the store says of runs, and that before the
default. `rw config show --origin` and docs/configuration.md are made from the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ropewalk.core.errors import InvalidError


class Setting(NamedTuple):
    """Is one setting of type `text`, `path`, `seconds`, `switch` or `count`.

    `flag` is None where only a variable sets it, `second` is a variable of another program that counts where its own is
    not set; a text is one of `choices` where there are some.
    """

    name: str
    type: str
    default: str | float | bool | None
    variable: str
    flag: str | None
    purpose: str
    second: str | None = None
    choices: tuple[str, ...] = ()


class Value(NamedTuple):
    """Is a setting's value and where it came from: `flag`, `environment`, `file` or `default`."""

    value: str | float | bool | None
    origin: str


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "store",
        "path",
        None,
        "ROPEWALK_STORE",
        "--store",
        "the store's folder; without it the store is found from the working folder",
    ),
    Setting("agent", "text", None, "ROPEWALK_AGENT", "--as", "who makes a write, as family/instance"),
    Setting(
        "lock_wait",
        "seconds",
        10.0,
        "ROPEWALK_LOCK_WAIT",
        None,
        "how long a writer waits for the writer lock before it answers E_BUSY",
    ),
    Setting(
        "remote_wait",
        "seconds",
        60.0,
        "ROPEWALK_REMOTE_WAIT",
        None,
        "how long another repository may be silent before a command answers E_REMOTE (0: an hour)",
    ),
    Setting(
        "merge.structural",
        "switch",
        True,
        "ROPEWALK_MERGE_STRUCTURAL",
        None,
        "whether files in conflict get a second chance by their syntax trees (needs the extra `structural`)",
    ),
    Setting(
        "board",
        "text",
        None,
        "ROPEWALK_BOARD",
        "--board",
        "the board of tasks: a store's folder or a repository's URL; without it the board of the store",
        "SWARM_ORIGIN",
    ),
    Setting(
        "cage",
        "text",
        None,
        "ROPEWALK_CAGE",
        "--cage",
        "what holds an agent: full, files or none; without it full, and none for the scripted agent",
    ),
    Setting(
        "check.cage",
        "text",
        None,
        "ROPEWALK_CHECK_CAGE",
        None,
        "what holds a check: full, files or none; without it what held the agent that wrote the tree",
    ),
    Setting("check.network", "text", "none", "ROPEWALK_CHECK_NETWORK", None, "the network in it: none or open"),
    Setting(
        "tripwire",
        "switch",
        True,
        "ROPEWALK_TRIPWIRE",
        None,
        "whether your checkout is compared before and after agents that could write there",
    ),
    Setting("run.harness", "text", None, "ROPEWALK_RUN_HARNESS", "--harness", "who does tasks of runs, see `rw setup`"),
    Setting("run.model", "text", None, "ROPEWALK_RUN_MODEL", "--model", "their model, where that harness does them"),
    Setting("run.workers", "count", None, "ROPEWALK_RUN_WORKERS", "--jobs", "how many agents of a run work at once"),
    Setting(
        "run.endpoints",
        "text",
        None,
        "ROPEWALK_RUN_ENDPOINTS",
        None,
        "the endpoints that agents of runs use, with commas between; without it the manager's",
    ),
    Setting("run.manager", "text", None, "ROPEWALK_RUN_MANAGER", None, "those of who plans; without it all endpoints"),
    Setting(
        "run.dirty",
        "text",
        "ask",
        "ROPEWALK_RUN_DIRTY",
        None,
        "what a run does where you have uncommitted work: ask, start without it, or stop",
        choices=("ask", "start", "stop"),
    ),
    Setting("config_home", "path", "~/.config", "XDG_CONFIG_HOME", None, "below it is endpoints.toml"),
    Setting("cache_home", "path", "~/.cache", "XDG_CACHE_HOME", None, "below it is what is known of boards elsewhere"),
    Setting("data_home", "path", "~/.local/share", "XDG_DATA_HOME", None, "below it are workspaces made without --dir"),
)

HANDED_ON: dict[str, str] = {
    "ROPEWALK_PUSHER": "whose token a push came with, from `rw serve` to the hooks",
    "ROPEWALK_RIGHTS": "what that token's holder may do",
    "ROPEWALK_LANE_TOKEN": "a lane's token for the gateway, to its agent program",
    "ROPEWALK_MODEL": "the model that a task names, to an agent that is any command",
    "ROPEWALK_DOOR": "where a lane's own tools are, to its agent",
    "ROPEWALK_DOOR_TOKEN": "by which they know the lane",
}
"""Variables that ropewalk's own processes give each other, and their purposes; nobody sets them by hand."""

MAX_SECONDS = 86_400.0
MAX_COUNT = 256
_ON, _OFF = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


def resolve(flags: Mapping[str, str | None], env: Mapping[str, str]) -> dict[str, Value]:
    """Gives the value of every setting by name; an empty flag or variable counts as not given.

    Raises `E_INVALID` for a value that does not fit its type.
    """
    found: dict[str, Value] = {}
    for setting in SETTINGS:
        flag, variable, given_as = flags.get(setting.name), env.get(setting.variable), setting.variable
        if not variable and setting.second is not None:
            variable, given_as = env.get(setting.second), setting.second
        if flag:
            found[setting.name] = Value(_typed(setting, flag, setting.flag or setting.name), "flag")
        elif variable:
            found[setting.name] = Value(_typed(setting, variable, given_as), "environment")
        else:
            found[setting.name] = Value(setting.default, "default")
    return found


def over_file(found: Mapping[str, Value], file: Mapping[str, str | float]) -> dict[str, Value]:
    """Gives settings with what a file says where neither a flag nor a variable does."""
    said = {name: Value(value, "file") for name, value in file.items() if found[name].origin == "default"}
    return {**found, **said}


def folder(value: Value, home: str) -> str:
    """Gives a path setting as a path, with `~` as the home folder."""
    text = str(value.value or "")
    return home.rstrip("/") + text[1:] if text.startswith("~/") else text


def _typed(setting: Setting, text: str, given_as: str) -> str | float | bool:
    if setting.type == "switch":
        return _switched(setting, text, given_as)
    if setting.type == "count":
        return _counted(setting, text, given_as)
    if setting.type != "seconds":
        return _chosen(setting, text, given_as)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_SECONDS:
        raise InvalidError(
            f"{given_as} is {text!r}, not a number of seconds from 0 to {MAX_SECONDS:g}",
            hint=f"unset {given_as}, or set it to a number, as in 10",
            setting=setting.name,
        )
    return seconds


def _counted(setting: Setting, text: str, given_as: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MAX_COUNT:
        return int(text)
    raise InvalidError(
        f"{given_as} is {text!r}, not a number from 1 to {MAX_COUNT}",
        hint=f"unset {given_as}, or set it to a number, as in 4",
        setting=setting.name,
    )


def _chosen(setting: Setting, text: str, given_as: str) -> str:
    if setting.choices and text not in setting.choices:
        listed = ", ".join(setting.choices)
        raise InvalidError(
            f"{given_as} is {text!r}, none of {listed}",
            hint=f"unset {given_as}, or set it to one of them",
            setting=setting.name,
        )
    return text


def _switched(setting: Setting, text: str, given_as: str) -> bool:
    word = text.strip().lower()
    if word not in (*_ON, *_OFF):
        raise InvalidError(
            f"{given_as} is {text!r}, neither true nor false",
            hint=f"unset {given_as}, or set it to true or false",
            setting=setting.name,
        )
    return word in _ON
