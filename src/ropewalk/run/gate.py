"""The collect gate in use: what a lane left in a tree, judged before it lands, and the verdict in the journal."""

from __future__ import annotations

from functools import partial

from ropewalk.core.ids import path_text
from ropewalk.lane import collect, journal
from ropewalk.lane.adapter import Ending
from ropewalk.lane.collect import Changed, Checked, Gate
from ropewalk.plan.task import Task
from ropewalk.store import trees
from ropewalk.store.store import Store


def changed(store: Store, base: str, tree: str) -> list[Changed]:
    """Gives the files that differ between two trees, as the gate looks at them."""
    found = []
    for one in trees.diff(store.objects, base, tree):
        if one.new is None:
            found.append(Changed(path_text(one.path), None, bytes))
        elif trees.kind(one.new) in ("file", "exec", "symlink"):
            oid = one.new[1].hex()
            size = len(store.objects.read(oid, "blob"))
            found.append(Changed(path_text(one.path), size, partial(store.objects.read, oid, "blob")))
    return found


def judge(store: Store, task: Task, ending: Ending, base: str, tree: str, checked: Checked, tools: int) -> Gate:
    """Gives what the gate says of a tree that a lane left on the tree it began with."""
    return collect.decide(task, ending, changed(store, base, tree), checked, tools=tools, tree=tree)


def note(store: Store, lane: str, gate: Gate, *, changeset: str = "", landed: str = "", reply: object = None) -> None:
    """Writes the gate's verdict into the journal, where it is of that tree and no other."""
    journal.set_verdict(
        store, lane, gate.passed, "; ".join(gate.reasons), tree=gate.tree, changeset=changeset, landed=landed,
        reply=reply if isinstance(reply, dict) else None,
    )  # fmt: skip
