"""Routing: which harness and model a task gets, by the names and classes of a table that the user edits."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal, NamedTuple

import msgspec

from ropewalk.core.errors import InvalidError, os_error

FILE = "routing.toml"
Effort = Literal["", "low", "medium", "high", "max"]


class Rule(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is what an alias or a class means: another alias (`use`), or a harness and a model; and an effort."""

    use: str = ""
    harness: str = ""
    model: str = ""
    effort: Effort = ""


class Table(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Is a table: aliases, classes of tasks, harnesses by pattern of a model's name, and what is meant by nothing."""

    default: Rule | None = None
    aliases: dict[str, Rule] = {}
    classes: dict[str, Rule] = {}
    models: dict[str, str] = {}

    def over(self, other: Table) -> Table:
        """Gives this table with what another says where it says nothing."""
        return Table(
            self.default or other.default, {**other.aliases, **self.aliases}, {**other.classes, **self.classes},
            {**other.models, **self.models},
        )  # fmt: skip


class Route(NamedTuple):
    """Is what a task gets; an empty model or effort is the harness's own default."""

    harness: str
    model: str = ""
    effort: str = ""


def read(path: str | None = None) -> Table:
    """Gives the table of a file over the package's own; `E_INVALID` for a file that is none."""
    table = _own() if path is None or not os.path.exists(path) else _parsed(path).over(_own())
    for name in table.aliases:
        _alias(table, name)
    for where, rule in [*table.classes.items(), ("default", table.default or Rule())]:
        if rule.use:
            _alias(table, rule.use, where)
    return table


def route(table: Table, *, harness: str = "", model: str = "", task_class: str = "", effort: str = "") -> Route:
    """Gives harness and model of a task that names any of them.

    What a task names itself counts before its class. A class's model is another harness's matter when the task names a
    harness: it gets its own default then. `E_INVALID` for a class that the table lacks, and where nothing names a
    harness.
    """
    by_class = Rule()
    if task_class:
        if task_class not in table.classes:
            raise InvalidError(f"there is no class of tasks {task_class!r}", hint=", ".join(sorted(table.classes)))
        by_class = _flat(table, table.classes[task_class])
    effort = effort or by_class.effort
    if model in table.aliases:
        found = _alias(table, model)
        return Route(harness or found.harness, found.model, effort or found.effort)
    if model:
        name = harness or _owner(table, model) or by_class.harness or _default(table).harness
        return Route(_known(name), model, effort)
    rule = by_class if by_class.harness else _default(table)
    if harness and harness != rule.harness:
        return Route(harness, "", effort)
    return Route(_known(rule.harness), rule.model, effort or rule.effort)


def harnesses(table: Table) -> list[str]:
    """Gives the harnesses that a table leads to, that of its default first."""
    found = [name for name in (_default(table).harness,) if name]
    found += [_alias(table, name).harness for name in table.aliases]
    found += [name for rule in table.classes.values() if (name := _flat(table, rule).harness)]
    return list(dict.fromkeys([*found, *table.models.values()]))


def leading(table: Table) -> dict[str, list[str]]:
    """Gives, by harness, the routes that lead to it, as people name them."""
    found: dict[str, list[str]] = {name: [] for name in harnesses(table)}
    if name := _default(table).harness:
        found[name].append("default")
    for alias in table.aliases:
        found[_alias(table, alias).harness].append(alias)
    for kind, rule in table.classes.items():
        if name := _flat(table, rule).harness:
            found[name].append(f"class {kind}")
    for pattern, name in table.models.items():
        found[name].append(pattern)
    return found


def _default(table: Table) -> Rule:
    return _flat(table, table.default) if table.default is not None else Rule()


def _known(harness: str) -> str:
    if not harness:
        raise InvalidError("nothing says which harness this task gets", hint="name one, or [default] in the table")
    return harness


def _owner(table: Table, model: str) -> str:
    name = model.rsplit("/", 1)[-1].lower()
    fits = [pattern for pattern in table.models if fnmatchcase(name, pattern.lower())]
    return table.models[max(fits, key=len)] if fits else ""


def _flat(table: Table, rule: Rule) -> Rule:
    """Gives a rule with the alias it uses put in."""
    if not rule.use:
        return rule
    below = _alias(table, rule.use)
    return Rule("", rule.harness or below.harness, rule.model or below.model, rule.effort or below.effort)


def _alias(table: Table, name: str, where: str = "") -> Rule:
    """Gives what an alias means in the end; `E_INVALID` for one that is not there, or means itself."""
    seen = [name]
    rule = table.aliases.get(name)
    while rule is not None and rule.use:
        if rule.use in seen:
            raise InvalidError(f"the alias {name!r} means itself: {' → '.join([*seen, rule.use])}")
        seen.append(rule.use)
        below = table.aliases.get(rule.use)
        if below is None:
            break
        rule = Rule(
            below.use, rule.harness or below.harness, rule.model or below.model, rule.effort or below.effort
        )  # fmt: skip
    if rule is None or rule.use:
        raise InvalidError(f"there is no alias {seen[-1]!r}{f', which {where} uses' if where else ''}")
    if not rule.harness:
        raise InvalidError(f"the alias {name!r} names no harness")
    return rule


@cache
def _own() -> Table:
    return _parsed(os.path.join(os.path.dirname(os.path.abspath(__file__)), FILE))


def _parsed(path: str) -> Table:
    import tomllib

    try:
        with open(path, "rb") as file:
            return msgspec.convert(tomllib.load(file), Table)
    except OSError as error:
        raise os_error(error, f"read of {FILE}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidError(
            f"{os.path.basename(path)} can't be used: {error}", file=path,
            hint='[aliases] has lines such as quick = { harness = "claude", model = "haiku" }',
        ) from None  # fmt: skip
