"""The journal: what lanes were started, with what, and how each ended; in the store's database.

A result is written once and never changed. It is addressed by its key, the hash of everything that it could depend on:
a task that is the same in all of that is answered from the journal, and a changed one runs by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from blake3 import blake3

from ropewalk.core import clock
from ropewalk.core.errors import InvalidError, NotFoundError
from ropewalk.gateway.prices import Mark
from ropewalk.gateway.tokens import Tokens
from ropewalk.lane.cage.room import Level
from ropewalk.lane.waits import FINAL, State
from ropewalk.store.store import Store


class Ingredients(msgspec.Struct, frozen=True):
    """Is all that a lane's result depends on (G24).

    `prompt` is the whole of it with rules and role card, `endpoint` the URL behind the gateway without a key, `tools`
    the tool servers and what they offer, `environment` the key of the environment that checks run in, `sample` the
    number of an attempt that is to be independent of the others.
    """

    harness: str
    adapter: str
    version: str
    model: str
    endpoint: str
    effort: str
    prompt: str
    base: str
    cage: Level
    network: str
    permission: str = "all"
    schema: str = ""
    check: str = ""
    environment: str = ""
    tools: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    sample: int = 0
    cassette: str = ""


def key(what: Ingredients) -> str:
    """Gives the key of a lane's result."""
    return blake3(msgspec.json.encode(what, order="deterministic")).hexdigest()[:40]


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is how a lane was started: its key and what went into it, who it is, and where its files are.

    `began_monotonic` is of the boot `boot`; `pid` and `start` are its shim's. `imported` names the kind of run that it
    was brought from; such a lane has no files, and what is 0 or empty of it is not known.
    """

    lane: str
    key: str
    run: str
    task: str
    attempt: int
    agent: str
    ingredients: Ingredients
    folder: str
    workspace: str
    began: int
    began_monotonic: float
    boot: str
    pid: int = 0
    start: str = ""
    session: str | None = None
    imported: str = ""


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is how a lane ended.

    `reply` are the fields of its structured reply, `tree` what it left, `passed` what the collect gate decided (None:
    it was not asked), `gate` why. Costs are those of the gateway, with their mark. `context` is how many tokens the
    last request and its answer were, as the gateway counted; 0 where it did not.
    """

    state: State
    reason: str
    text: str
    seconds: float
    tokens: Tokens | None
    dollars: float | None
    mark: Mark
    turns: int
    tools: int
    level: Level
    code: int | None = None
    session: str | None = None
    denied: int = 0
    reply: dict[str, Any] = {}
    tree: str = ""
    changeset: str = ""
    landed: str = ""
    passed: bool | None = None
    gate: str = ""
    cached_from: str = ""
    requests: int = 0
    context: int = 0


class Lane(msgspec.Struct, frozen=True):
    """Is a lane as the journal has it."""

    record: Record
    state: State
    began: int
    ended: int | None
    result: Result | None


def opened(lane: str, run: str, task: str, agent: str, prompt: str, workspace: str, base: str) -> Record:
    """Gives the record of a session that a person drives: there is no process of ours, and no folder."""
    what = Ingredients(run, "", "", "", "", "", prompt, base, "none", "open")
    return Record(lane, key(what), run, task, 1, agent, what, "", workspace, clock.now(), round(clock.monotonic(), 3),
                  clock.boot_id())  # fmt: skip


def cached(lane: str, hashed: str, what: Ingredients, of: Lane, workspace: str, run: str) -> Record:
    """Gives the record of a lane that was not started, because another of the same key stands for it."""
    return Record(lane, hashed, run, of.record.task, 1, of.record.agent, what, "", workspace, clock.now(),
                  round(clock.monotonic(), 3), clock.boot_id())  # fmt: skip


def begin(store: Store, record: Record) -> None:
    """Notes that a lane is about to start; `E_INVALID` when there is one of its name."""
    with store.transaction() as tx:
        if store.db.row("SELECT 1 FROM lanes WHERE lane = ?", (record.lane,)):
            raise InvalidError(
                f"there is a lane {record.lane!r} already", hint="`rw lane list` shows them", lane=record.lane
            )
        tx.db.run(
            "INSERT INTO lanes VALUES (?, ?, ?, ?, 'preparing', ?, NULL, ?, NULL)",
            (record.lane, record.key, record.run, record.task, record.began, msgspec.msgpack.encode(record)),
        )


def enter(store: Store, record: Record, result: Result, ended: int) -> bool:
    """Notes a lane that another program ran, with its end; False where it is there, and stays as it is."""
    with store.transaction() as tx:
        if store.db.row("SELECT 1 FROM lanes WHERE lane = ?", (record.lane,)):
            return False
        tx.db.run(
            "INSERT INTO lanes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (record.lane, record.key, record.run, record.task, result.state, record.began, ended,
             msgspec.msgpack.encode(record), msgspec.msgpack.encode(result)),
        )  # fmt: skip
    return True


def set_process(store: Store, lane: str, pid: int, start: str, boot: str) -> None:
    """Notes a lane's shim, once it runs."""
    with store.transaction() as tx:
        found = _need(store, lane)
        record = msgspec.structs.replace(found.record, pid=pid, start=start, boot=boot)
        tx.db.run(
            "UPDATE lanes SET record = ?, state = 'running' WHERE lane = ?", (msgspec.msgpack.encode(record), lane)
        )


def set_state(store: Store, lane: str, state: State) -> None:
    """Notes how a running lane stands; one that ended keeps its state."""
    with store.transaction() as tx:
        tx.db.run("UPDATE lanes SET state = ? WHERE lane = ? AND ended IS NULL", (state, lane))


def finish(store: Store, lane: str, result: Result) -> Result:
    """Writes a lane's result, once; gives the one that is there, which is the first."""
    if result.state not in FINAL:
        raise InvalidError(f"{result.state} is no end of a lane", lane=lane)
    with store.transaction() as tx:
        found = _need(store, lane)
        if found.result is not None:
            return found.result
        tx.db.run(
            "UPDATE lanes SET state = ?, ended = ?, result = ? WHERE lane = ?",
            (result.state, clock.now(), msgspec.msgpack.encode(result), lane),
        )
    return result


def set_verdict(
    store: Store, lane: str, passed: bool, gate: str = "", *, tree: str = "", changeset: str = "", landed: str = "",
    reply: dict[str, Any] | None = None,
) -> Result | None:  # fmt: skip
    """Adds what the collect gate decided to a lane's result, once; gives the result as it is now (None: it has none).

    What the lane did is not touched by it. A verdict is of its tree alone.
    """
    with store.transaction() as tx:
        found = _need(store, lane)
        if found.result is None or found.result.passed is not None:
            return found.result
        made = msgspec.structs.replace(
            found.result, passed=passed, gate=gate, tree=tree, changeset=changeset, landed=landed, reply=reply or {},
        )  # fmt: skip
        tx.db.run("UPDATE lanes SET result = ? WHERE lane = ?", (msgspec.msgpack.encode(made), lane))
    return made


def replay(store: Store, wanted: str) -> Lane | None:
    """Gives the newest lane with a key whose result may stand for another: done, and passed by the collect gate."""
    rows = store.db.rows(
        f"SELECT {_COLUMNS} FROM lanes WHERE key = ? AND result IS NOT NULL ORDER BY began DESC", (wanted,)
    )
    for row in rows:
        lane = _lane(row)
        if (
            lane.result is not None
            and lane.result.state == "done"
            and lane.result.passed
            and not lane.result.cached_from
        ):
            return lane
    return None


def find(store: Store, lane: str) -> Lane | None:
    """Gives a lane, or None."""
    row = store.db.row(f"SELECT {_COLUMNS} FROM lanes WHERE lane = ?", (lane,))
    return None if row is None else _lane(row)


def need(store: Store, lane: str) -> Lane:
    """Gives a lane; `E_NOT_FOUND` when there is none."""
    return _need(store, lane)


def lanes(store: Store, run: str | None = None, *, only_open: bool = False, limit: int = 1000) -> list[Lane]:
    """Gives lanes, newest first: of a run, or of all; only those that have not ended."""
    rows = store.db.rows(
        f"SELECT {_COLUMNS} FROM lanes WHERE (?1 IS NULL OR run = ?1) AND (NOT ?2 OR ended IS NULL)"
        " ORDER BY began DESC, lane DESC LIMIT ?3",
        (run, int(only_open), limit),
    )
    return [_lane(row) for row in rows]


def of_attempt(store: Store, attempt: str) -> list[Lane]:
    """Gives the lanes of an attempt at a task of a board, in the order in which they were started."""
    rows = store.db.rows(
        f"SELECT {_COLUMNS} FROM lanes WHERE lane > ?1 || '/' AND lane < ?1 || '0' ORDER BY began, lane", (attempt,)
    )
    return [_lane(row) for row in rows]


def levels_at(store: Store, workspace: str) -> frozenset[Level]:
    """Gives the levels of the lanes that worked in a workspace."""
    rows = store.db.rows("SELECT record FROM lanes")
    found = (msgspec.msgpack.decode(row[0], type=_Where) for row in rows)
    return frozenset(one.ingredients.cage for one in found if one.workspace == workspace)


class _Caged(msgspec.Struct, frozen=True):
    cage: Level


class _Where(msgspec.Struct, frozen=True):
    """Is as much of a record as says where a lane worked, and how it was held."""

    workspace: str
    ingredients: _Caged


def totals(found: Sequence[Lane]) -> Mapping[str, int]:
    """Gives how many lanes are in each state."""
    counts: dict[str, int] = {}
    for lane in found:
        counts[lane.state] = counts.get(lane.state, 0) + 1
    return counts


_COLUMNS = "record, state, began, ended, result"


def _need(store: Store, lane: str) -> Lane:
    found = find(store, lane)
    if found is None:
        raise NotFoundError(f"there is no lane {lane!r}", hint="`rw lane list` shows them", lane=lane)
    return found


def _lane(row: tuple[Any, ...]) -> Lane:
    record, state, began, ended, result = row
    return Lane(
        msgspec.msgpack.decode(record, type=Record), state, began, ended,
        None if result is None else msgspec.msgpack.decode(result, type=Result),
    )  # fmt: skip
