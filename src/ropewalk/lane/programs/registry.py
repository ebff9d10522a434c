"""The harnesses by name: those that come with ropewalk, commands, agents by protocol, and those of third parties."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from ropewalk.core.errors import HarnessError, InvalidError
from ropewalk.lane.adapter import Adapter

GROUP = "ropewalk.harnesses"
"""Is the group of entry points by which a package adds harnesses: each names a class or function without arguments."""

_OURS = {
    "claude": ("claude", "Claude"),
    "glm": ("claude", "Glm"),
    "codex": ("codex", "Codex"),
    "opencode": ("opencode", "Opencode"),
    "pi": ("pi", "Pi"),
    "gemini": ("gemini", "Gemini"),
    "qwen": ("gemini", "Qwen"),
    "grok": ("grok", "Grok"),
    "copilot": ("copilot", "Copilot"),
    "scripted": ("plain", "Scripted"),
}
_WITH_WORDS = {"acp": ("acp", "Acp"), "command": ("plain", "Command")}
"""Are those whose name goes on with a command line: `acp:gemini --acp`, `command:./agent.sh`."""

PROGRAMS = tuple(name for name in _OURS if name != "scripted")
"""Are the names of the agent programs that ropewalk knows."""


def names() -> list[str]:
    """Gives the names of all harnesses, third parties' among them."""
    return sorted({*_OURS, *(f"{name}:…" for name in _WITH_WORDS), *_others()})


def get(name: str) -> Adapter:
    """Gives the adapter of a name.

    `acp:COMMAND` and `command:COMMAND` hold a command line. Raises `E_INVALID` for a name that nothing has, and
    `E_HARNESS` for a third party's that can't be loaded.
    """
    kind, colon, line = name.partition(":")
    if kind in _WITH_WORDS:
        if not line.strip():
            raise InvalidError(f"the harness {kind!r} needs a command line", hint=f"{kind}:PROGRAM [WORDS]", name=name)
        return _made(*_WITH_WORDS[kind])(line)
    if not colon and name in _OURS:
        return _made(*_OURS[name])()
    others = _others()
    if name not in others:
        raise InvalidError(f"there is no harness {name!r}", hint=", ".join(names()), name=name)
    return _loaded(name, others[name])


def reading(name: str) -> Adapter:
    """Gives the adapter by which a lane that runs is read on; of one with a command line the name is enough."""
    return get(f"{name}:{name}" if name in _WITH_WORDS else name)


def _made(module: str, name: str) -> Callable[..., Adapter]:
    found: Callable[..., Adapter] = getattr(importlib.import_module(f"ropewalk.lane.programs.{module}"), name)
    return found


def _others() -> dict[str, str]:
    """Gives what third parties add: `module:attribute` by name; ours can't be put in the place of."""
    from importlib.metadata import entry_points

    found = {one.name: one.value for one in entry_points(group=GROUP)}
    return {name: value for name, value in found.items() if name not in _OURS and name.split(":")[0] not in _WITH_WORDS}


def _loaded(name: str, value: str) -> Adapter:
    from importlib.metadata import EntryPoint

    try:
        made = EntryPoint(name, value, GROUP).load()()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise HarnessError(f"the harness {name!r} can't be loaded: {error}", entry=value) from None
    lacking = [one for one in _NEEDED if not hasattr(made, one)]
    if lacking:
        raise HarnessError(f"the harness {name!r} has no {', '.join(lacking)}", entry=value)
    adapter: Adapter = made
    return adapter


_NEEDED = (
    "name", "family", "program", "install", "tested", "memory", "node", "wires", "prompt_max", "offers_tools",
    "volatile", "version", "launch", "reader", "steer", "interrupt", "explain",
)  # fmt: skip
