"""Companions: refs that move with a land in the same operation, or keep it from happening."""

from __future__ import annotations

from ropewalk.core import clock
from ropewalk.core.errors import FencedError, ForbiddenError
from ropewalk.core.ids import short_ref
from ropewalk.store.loose import NewObject
from ropewalk.store.objects import parse_person
from ropewalk.store.oplog import Move
from ropewalk.store.spool import LandRequest
from ropewalk.store.store import Store

GATES = "refs/swarm/integrated/"
"""Is where a gate that fired is kept, by its task; its message names the commit that it let through."""


def check(store: Store, req: LandRequest) -> None:
    """Raises `E_FENCED` unless what must not have moved meanwhile is where the request has it.

    `E_FORBIDDEN` when the gate that the request names did not let this change through.
    """
    if req.gate:
        _check_gate(store, req)
    expected = [(one.ref, one.old) for one in req.companions]
    for ref, value in expected if req.fence is None else [req.fence, *expected]:
        if (present := store.ref(ref)) != value:
            raise FencedError(f"{short_ref(ref)} is at {present or 'nothing'}, not at {value or 'nothing'}", ref=ref,
                              expected=value, actual=present)  # fmt: skip


def _check_gate(store: Store, req: LandRequest) -> None:
    fired = store.ref(GATES + req.gate)
    found = store.objects.find(fired) if fired is not None else None
    lines = found[1].partition(b"\n\n")[2].split(b"\n") if found is not None and found[0] == "commit" else []
    let = [line[8:].strip().decode("ascii", "replace") for line in lines if line.startswith(b"commit: ")]
    # the reviewers saw what landed; its change may be named too
    if let and (let[0] == req.change or store.db.row(
        "SELECT 1 FROM landed WHERE landed = ? AND change = ?", (let[0], req.change)
    )):  # fmt: skip
        return
    raise ForbiddenError(
        f"the gate of {req.gate} did not let {req.change} through", task=req.gate, change=req.change,
        passed=let[0] if let else None, hint=f"`rw board gate {req.gate}` says what is missing",
    )  # fmt: skip


def moves(store: Store, req: LandRequest, commit: str) -> tuple[list[Move], list[NewObject]]:
    """Gives the moves of what goes with a land, and the objects they need."""
    if not req.companions:
        return [], []
    objects = store.objects
    tree = objects.commit(commit).tree
    found = []
    for one in req.companions:
        new: str | None = commit
        if one.words == "":
            new = None
        elif one.words is not None:
            text = one.words.replace("{landed}", commit).replace("{tree}", tree)
            who = parse_person(f"{one.who} {clock.now()} +0000".encode())
            new = objects.write_commit(objects.write_tree({}), [], who, who, text.encode("utf-8") + b"\n")
        found.append(Move(one.ref, one.old, new))
    return found, objects.take_new()
