"""Landing a workspace: capture, changeset, three-way merge onto the target, and the workspace moves along.

With a check the change waits in the landing queue, and the tree that lands is one on which it passed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from ropewalk.core.errors import ConflictError, InvalidError, RopewalkError
from ropewalk.store import changes, guard, land
from ropewalk.store.land import Answering, Landed
from ropewalk.store.spool import LandRequest
from ropewalk.store.store import Store
from ropewalk.workspace import capture, drive, foreign, move, setup, special, state
from ropewalk.workspace.capture import Captured
from ropewalk.workspace.check import Cage
from ropewalk.workspace.files import Files
from ropewalk.workspace.state import Pending, Workspace
from ropewalk.workspace.verdict import Checked


class Wish(NamedTuple):
    """Is what a land of a workspace is asked: `check` runs in a folder below `checks`, in a `cage`; `key` is a UUID."""

    agent: str
    message: str | None = None
    key: str | None = None
    check: Sequence[str] = ()
    checks: str = ""
    check_seconds: float = 1800.0
    cage: Cage | None = None
    jobs: int = 0
    stop: threading.Event | None = None
    answering: Answering | None = None
    allow: Collection[bytes] = ()
    allow_revert: bool = False
    allow_reland: bool = False
    allow_mass_delete: bool = False


class Outcome(NamedTuple):
    """Is what a land of a workspace did; `changeset` is None when there was nothing to land."""

    landed: Landed
    changeset: str | None
    checks: list[Checked]
    workspace: Workspace
    warnings: list[str]


def land_workspace(store: Store, ws: Workspace, wish: Wish, tell: Callable[[str], None] = lambda line: None) -> Outcome:
    """Lands what a workspace holds on its target; the caller holds the workspace.

    The same key again answers with the first land, however the process that made it ended. Raises
    `E_CONFLICT` with a report, `E_CHECK_FAILED`, `E_INVALID` without a message, and what `land` raises; the
    workspace keeps its edits then.
    """
    ws = move.settle(store, ws)
    digest = changes.digest("ws_land", ws.name, ws.created_at, wish.agent)
    again = store.replay("land", wish.key, digest)
    if again is not None:
        store.vouch(again.op)
        first = msgspec.json.decode(again.result, type=Landed)
        return Outcome(msgspec.structs.replace(first, status="replayed"), None, [], ws, [])
    if left := move.marked(ws):
        raise move.unresolved(ws, left)
    store.objects.take_new()
    now = capture.capture(store, ws, allow=wish.allow, meant=wish.allow_mass_delete)
    capture.check_lost(ws, now)
    if not now.changes:
        head = store.ref(ws.target) or ws.base
        return Outcome(Landed(head, "up_to_date", _short(ws), 0, head, [], 0, "same"), None, [], ws, now.warnings)
    tell(f"{ws.name}: {len(now.changes)} path{'s' * (len(now.changes) != 1)} changed; landing on {_short(ws)}")
    ws = _pending(store, ws, wish, now)
    assert ws.note.pending is not None
    change = ws.note.pending.change
    req = land.request(
        agent=wish.agent, change=change, ref=ws.target, key=wish.key, allow_revert=wish.allow_revert,
        allow_reland=wish.allow_reland, allow_mass_delete=wish.allow_mass_delete,
        since=guard.op_of(store, ws.target, ws.created_base),
    )  # fmt: skip
    req = msgspec.structs.replace(req, digest=digest)
    checks: list[Checked] = []
    try:
        if wish.check:
            landed = _land_checked(store, req, wish, checks, tell)
        else:
            landed = land.land(store, req, answering=wish.answering)
    except ConflictError as error:
        error.details["changeset"] = change
        error.hint = f"answer with --resolve FILE, or run `rw ws rebase {ws.name}` to see both sides in the files"
        raise
    at = landed.landed if landed.status != "up_to_date" else landed.merged_onto
    ws = move.after_land(store, ws, at, now)
    return Outcome(landed, change, checks, ws, now.warnings)


def commit_workspace(store: Store, ws: Workspace, wish: Wish) -> tuple[str | None, list[str]]:
    """Makes a changeset of what a workspace holds; gives it (None: nothing) and warnings. The caller holds it."""
    ws = move.settle(store, ws)
    if left := move.marked(ws):
        raise move.unresolved(ws, left)
    store.objects.take_new()
    now = capture.capture(store, ws, allow=wish.allow)
    capture.check_lost(ws, now)
    if not now.changes:
        return None, now.warnings
    pending = _pending(store, ws, wish, now).note.pending
    assert pending is not None
    return pending.change, now.warnings


def _short(ws: Workspace) -> str:
    return ws.target.removeprefix("refs/heads/")


def _pending(store: Store, ws: Workspace, wish: Wish, now: Captured) -> Workspace:
    """Gives the workspace with a changeset of what was captured; the one of an earlier try serves again."""
    message = _message(store, ws, wish.message)
    allowed = setup.policy_of(store).workspace.filters
    now.warnings.extend(special.check_filters(store, ws, now.entries, now.changes, allowed))
    pending = ws.note.pending
    if pending is not None and (pending.tree, pending.parent, pending.message) == (now.tree, ws.base, message.decode()):
        store.objects.take_new()
        return ws
    made = changes.write_changeset(
        store, agent=wish.agent, message=message, tree=now.tree, parents=[ws.base], root=now.base_tree, advance=None,
        key=None, request=b"", kind="ws_commit",
    )  # fmt: skip
    pending = Pending(made.changeset, now.tree, ws.base, message.decode())
    return state.save(store, msgspec.structs.replace(ws, note=msgspec.structs.replace(ws.note, pending=pending)))


def _message(store: Store, ws: Workspace, given: str | None) -> bytes:
    """Gives the message asked for, else that of the agent's own last commit."""
    if given is not None:
        return changes.check_message(given)
    with Files(ws.path) as files:
        head = foreign.head(files)
    if head is not None and head != ws.base and store.objects.kind(head) is None:
        own = foreign.commit(store, ws, head)
        if own is not None and own.message.strip():
            return changes.check_message(own.message.decode("utf-8", "replace").replace("\0", ""))
    raise InvalidError("the change needs a message", hint="give one with -m, or commit in the workspace first")


def _land_checked(
    store: Store, req: LandRequest, wish: Wish, checks: list[Checked], tell: Callable[[str], None]
) -> Landed:
    policy = setup.policy_of(store)
    how = drive.orders(
        wish.check, wish.check_seconds, wish.checks, jobs=wish.jobs, policy=policy, stop=wish.stop, cage=wish.cage
    )  # fmt: skip
    (outcome,) = drive.land_checked(store, req.ref, [req], how, answering=wish.answering, tell=tell)
    checks += outcome.checks
    if isinstance(outcome.result, RopewalkError):
        raise outcome.result
    return outcome.result
