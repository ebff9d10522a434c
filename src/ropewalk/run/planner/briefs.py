"""Briefs: what an agent is told of its task, with its role's card, the rules of all, and the decisions that govern it.

The prompt hangs on the task, the base and the operator's copy of the rules alone, so that every provider gets the same,
and its hash says which it was.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ropewalk.core.errors import os_error
from ropewalk.core.ids import path_bytes, path_text
from ropewalk.core.policy import Policy
from ropewalk.plan import decisions, packets, rolecards
from ropewalk.plan.decisions import Decision
from ropewalk.plan.rolecards import Prompt
from ropewalk.plan.task import Task
from ropewalk.store import trees
from ropewalk.store.store import Store
from ropewalk.workspace import setup

_MOST = 1 << 20
_FILES = 2_000


class Rules(NamedTuple):
    """Is what every agent of a run is told: the files of rules by name, None for one that is missing."""

    texts: dict[str, str | None]

    @property
    def held(self) -> dict[str, str]:
        """Gives those that are there."""
        return {name: text for name, text in self.texts.items() if text is not None}


def rules(policy: Policy) -> Rules:
    """Gives the rules that a policy names, as the operator has them now."""
    found: dict[str, str | None] = {}
    for name in policy.rules.files:
        try:
            with open(os.path.join(policy.folder, name), "rb") as file:
                found[name] = file.read(_MOST).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            found[name] = None
        except OSError as error:
            raise os_error(error, f"read of {name}") from None
    return Rules(found)


def decided(store: Store, tree: str, policy: Policy | None = None) -> tuple[Decision, ...]:
    """Gives the standing decisions that a tree holds, in the folder that the policy names."""
    folder = (policy or setup.policy_of(store)).rules.decisions
    entry = trees.lookup(store.objects, tree, path_bytes(folder))
    if entry is None or trees.kind(entry) != "dir":
        return ()
    return _decided(store, entry[1].hex(), folder)


_KEPT: dict[tuple[str, str], tuple[Decision, ...]] = {}


def _decided(store: Store, oid: str, folder: str) -> tuple[Decision, ...]:
    """Gives the decisions of a folder's tree; it is read once, because each task of a run asks for the same."""
    key = (oid, folder)
    if key not in _KEPT:
        files: dict[str, str] = {}
        for path, entry in trees.walk(store.objects, oid):
            if path.endswith(b".md") and trees.kind(entry) in ("file", "exec") and len(files) < _FILES:
                raw = store.objects.read(entry[1].hex(), "blob")[:_MOST]
                files[f"{folder}/{path_text(path)}"] = raw.decode("utf-8", "replace")
        while len(_KEPT) > 8:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[key] = tuple(decisions.standing(decisions.read(files)))
    return _KEPT[key]


@lru_cache(maxsize=1)
def _role_names() -> frozenset[str]:
    return frozenset(one.casefold() for one in packets.ROLES)


def is_role(name: str) -> bool:
    """Says whether there is a card for a role."""
    return bool(name) and name.casefold() in _role_names()


def brief(task: Task, told: Rules = Rules({}), decisions: Sequence[Decision] = ()) -> Prompt:
    """Gives what an agent is told of a task, and its hash; pure.

    A role that is none of the cards' stands for itself and has no card.
    """
    packet = packets.from_task(task)
    if task.role and not is_role(task.role):
        packet = packets.from_task(_without_role(task))
    governing = [one.governing for one in decisions if one.stands]
    return rolecards.compose(packet, rules=told.held, decisions=governing)


def _without_role(task: Task) -> Task:
    import msgspec

    return msgspec.structs.replace(task, role="")


def briefing(store: Store, base_tree: str, task: Task, policy: Policy | None = None) -> Prompt:
    """Gives what an agent is told of a task on a base: with the operator's rules, and the decisions that govern it."""
    policy = policy or setup.policy_of(store)
    return brief(task, rules(policy), decided(store, base_tree, policy))
