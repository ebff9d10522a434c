"""Landing: a change becomes one commit on the head of a target, by three-way merge, whoever else lands meanwhile.

Who finds the writer lock free lands at once; who does not leaves the request in the spool and waits for the
lock, and whoever gets it lands all that wait, each in a savepoint and as an operation of its own, in one
transaction and one flush. What only merge-ort can decide is merged outside the lock first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import (
    CasMismatchError,
    CasRetryExhaustedError,
    NotFoundError,
    RopewalkError,
    error_class,
)
from ropewalk.core.ids import path_bytes, path_text, short_ref
from ropewalk.store import adoption, companions, guard, identity, lineage, merge, report, spool, trees
from ropewalk.store.changes import FileReader, digest
from ropewalk.store.loose import NewObject
from ropewalk.store.merge import Merged
from ropewalk.store.oplog import Move
from ropewalk.store.report import Resolution
from ropewalk.store.spool import Answer, Companion, LandRequest
from ropewalk.store.store import Store, Transaction
from ropewalk.store.trees import Change

MAX_ATTEMPTS = 8
_LOCKED_MERGE_SECONDS = 8.0
_WAITED = "waited"
"""Is the scope of the keys under which a leader records, with the land, what it answers to a waiting request (A29)."""
_WAITED_KEPT = 4096
_TRAILER = re.compile(rb"[A-Za-z][A-Za-z0-9-]*: [^\n]")


class Landed(msgspec.Struct, frozen=True, omit_defaults=False):
    """Is the result of a land: the commit on the target, how it came there, and the paths it changed.

    `merged_by` says who decided the merge; a merge in which files got a second chance says it for each such path.
    """

    landed: str
    status: str
    onto: str
    attempts: int
    merged_onto: str
    changed_paths: list[str]
    more_paths: int = 0
    merged_by: str | dict[str, str] = "trees"


class Prepared(NamedTuple):
    """Is a land ready to publish: the new commit on `target`, and what it changes there.

    `base` and `wanted` are the change's own: where it starts and what it does to each path.
    """

    target: str
    commit: str
    done: Sequence[Change]
    by: str | dict[str, str]
    author: str
    new: Sequence[NewObject]
    base: str
    wanted: Sequence[Change]


class Answering(NamedTuple):
    """Is a resolution with the way to read the files it names."""

    resolution: Resolution
    read_file: FileReader


class Conflicted(Exception):
    """The merge is in conflict; carries it, its base and the target's commit."""

    def __init__(self, merged: Merged, base: str, target: str) -> None:
        super().__init__("conflict")
        self.merged, self.base, self.target = merged, base, target


class _NeedsOrt(Exception):
    pass


class Settled(Exception):
    """Nothing is left to publish; carries the answer."""

    def __init__(self, result: Landed, op: int = 0) -> None:
        super().__init__(result.status)
        self.result, self.op = result, op


def request(
    *, agent: str, change: str, ref: str, key: str | None = None, expect_target: str | None = None,
    allow_revert: bool = False, allow_reland: bool = False, allow_mass_delete: bool = False,
    since: int | None = None, fence: tuple[str, str] | None = None, together: Sequence[Companion] = (),
    gate: str = "",
) -> LandRequest:  # fmt: skip
    """Gives a land's request with its hash; ids are full and `ref` is a full name."""
    hashed = digest(agent, change, ref, expect_target, allow_revert, allow_reland, allow_mass_delete)
    return LandRequest(spool.new_id(), agent, change, ref, key, hashed, expect_target, allow_revert, allow_reland,
                       allow_mass_delete, since, fence, tuple(together), gate)  # fmt: skip


def land(
    store: Store, req: LandRequest, *, answering: Answering | None = None, max_attempts: int = MAX_ATTEMPTS
) -> Landed:
    """Lands one change and gives the result; it is on disk and in `repo.git` when this returns.

    Raises `E_CONFLICT` with a report, `E_LAND_MISMATCH`, `E_CAS_MISMATCH`, `E_KEY_REUSED`, `E_NOT_FOUND`,
    `E_BUSY`, or `E_CAS_RETRY_EXHAUSTED` after `max_attempts` merges.
    """
    prepared: Prepared | None = None
    attempts = 0
    _take_in(store, req)
    try:
        with _telling(store, req):
            _check_replay(store, req)  # what is done already need not wait for the lock
            if answering is not None:
                prepared, attempts = _outside(store, req, answering), 1
            while True:
                try:
                    result = _publish(store, req, prepared, attempts, answering)
                    break
                except _NeedsOrt:
                    if attempts >= max_attempts:
                        raise CasRetryExhaustedError(
                            f"{short_ref(req.ref)} moved during each of {attempts} merges", attempts=attempts
                        ) from None
                    prepared, attempts = _outside(store, req, answering), attempts + 1
    except Settled as settled:
        return settled.result
    _warn(store, result)
    return result


@contextmanager
def _telling(store: Store, req: LandRequest) -> Iterator[None]:
    """Lets nothing out but what is on disk: an error or a settled answer tells of what another wrote (A15).

    A conflict leaves as an error with its report.
    """
    try:
        yield
    except (Settled, Conflicted, RopewalkError) as end:
        out = _report(store, req, end) if isinstance(end, Conflicted) else end
        if isinstance(end, Settled):
            store.vouch(end.op)
        else:
            store.flush()
        raise out from None


def _take_in(store: Store, req: LandRequest) -> None:
    """Adopts what others did to the target in `repo.git`, and makes a change durable that no operation did."""
    adoption.adopt(store, req.ref)
    adoption.secure(store, req.change)


def _warn(store: Store, result: Landed) -> None:
    if result.status == "landed":
        store.warnings += guard.case_collisions(store, result.merged_onto, result.landed)


def preview(store: Store, req: LandRequest, answering: Answering | None = None) -> Prepared | Landed:
    """Gives what a land would publish on the target's present head, and publishes nothing.

    The answer is a `Landed` when nothing is left to publish. Raises what `land` raises.
    """
    _take_in(store, req)
    try:
        with _telling(store, req):
            return _outside(store, req, answering)
    except Settled as settled:
        return settled.result


def _report(store: Store, req: LandRequest, conflict: Conflicted) -> RopewalkError:
    built = report.build(
        store, conflict.merged, ref=req.ref, base=conflict.base, theirs=conflict.target, change=req.change
    )
    return report.error(built)


def land_many(store: Store, requests: Sequence[LandRequest]) -> list[Landed | RopewalkError]:
    """Lands changes in order, each as an operation of its own, many in one transaction and one flush.

    Gives a result or an error for each; one that fails does not keep back those after it.
    """
    results: list[Landed | RopewalkError] = []
    for start in range(0, len(requests), spool.LIMIT):
        part = requests[start : start + spool.LIMIT]
        answers: list[Landed | RopewalkError | None] = [None] * len(part)
        for number, req in enumerate(part):
            try:
                _take_in(store, req)
            except RopewalkError as error:
                answers[number] = error
        store.lock.acquire(store.lock_wait)
        try:
            with store.begun() as tx:
                for number, req in enumerate(part):
                    if answers[number] is not None:
                        continue
                    try:
                        answers[number] = _one(store, tx, req)
                    except Settled as settled:
                        answers[number] = settled.result
                    except (_NeedsOrt, Conflicted):
                        break  # those after it build on its outcome: go on with it alone, outside the lock
                    except RopewalkError as error:
                        answers[number] = error
        finally:
            store.lock.release()
        store.finish(tx)
        for found in answers:
            if isinstance(found, Landed):
                _warn(store, found)
        for number, req in enumerate(part):
            if answers[number] is None:
                try:
                    answers[number] = land(store, req)
                except RopewalkError as error:
                    answers[number] = error
        results += [a for a in answers if a is not None]
    return results


def _publish(
    store: Store, req: LandRequest, prepared: Prepared | None, attempts: int, answering: Answering | None
) -> Landed:
    """Takes the lock, alone or through the spool, and lands; `_NeedsOrt` when it has to be merged outside first."""
    if store.lock.try_acquire():
        return _lead(store, req, prepared, attempts, answering)
    if prepared is not None:
        store.lock.acquire(store.lock_wait)
        return _lead(store, req, prepared, attempts, answering)
    slot = store.slot()
    slot.put(req)
    try:
        store.lock.acquire(store.lock_wait)
    except BaseException:
        slot.clear()
        raise
    slot.clear()
    answer = slot.answer(req)
    if answer is None:
        try:
            # a leader may have died between its commit and its answers: the log is asked before anything is done
            done = store.replay(_WAITED, req.id, req.digest)
        except BaseException:
            store.lock.release()
            raise
        if done is None:
            return _lead(store, req, None, attempts, None)
        answer = Answer(req.id, done.op, done.result)
    store.lock.release()
    if answer.result is not None:
        store.vouch(answer.op)
        return msgspec.json.decode(answer.result, type=Landed)
    if answer.error is not None:
        code, message, hint, details = answer.error
        raise error_class(code)(message, hint=hint, **details)
    raise _NeedsOrt


def _lead(
    store: Store, req: LandRequest, prepared: Prepared | None, attempts: int, answering: Answering | None
) -> Landed:
    """Lands one's own request and all that wait; the caller holds the writer lock, which is let go here."""
    own: Landed | None = None
    failure: BaseException | None = None
    answers: list[tuple[str, Answer]] = []
    folder = store.layout.spool
    try:
        others = [
            (slot, other)
            for slot, other in spool.waiting(folder, store.slot_name)
            if not spool.answered(folder, slot, other)
        ]
        with store.begun() as tx:
            try:
                # a land prepared outside that lost its race is merged here, under a bound, so that it can't lose again
                seconds = _LOCKED_MERGE_SECONDS if prepared else None
                own = _one(store, tx, req, prepared, attempts, seconds, answering)
            except (RopewalkError, Settled, Conflicted, _NeedsOrt) as error:
                failure = error
            for slot, other in others:
                answers.append((slot, _for_other(store, tx, other)))
        for slot, answer in answers:
            spool.put_answer(folder, slot, answer)
    finally:
        store.lock.release()
    store.finish(tx)
    if failure is not None:
        raise failure
    assert own is not None
    return own


def _for_other(store: Store, tx: Transaction, req: LandRequest) -> Answer:
    """Lands a waiting request with its requester's identity; what needs more than a plain merge goes back."""
    try:
        result = msgspec.json.encode(_one(store, tx, req))
        tx.remember(_WAITED, req.id, req.digest, result)
        if tx.last_op % 256 == 0:
            tx.db.run("DELETE FROM keys WHERE scope = ? AND op < ?", (_WAITED, tx.last_op - _WAITED_KEPT))
        return Answer(req.id, tx.last_op, result)
    except Settled as settled:
        return Answer(req.id, settled.op, msgspec.json.encode(settled.result))
    except (_NeedsOrt, Conflicted):
        return Answer(req.id)
    except RopewalkError as error:
        return Answer(req.id, 0, None, (error.code, error.message, error.hint, error.details))


def _one(
    store: Store,
    tx: Transaction,
    req: LandRequest,
    prepared: Prepared | None = None,
    attempts: int = 0,
    ort_seconds: float | None = None,
    answering: Answering | None = None,
) -> Landed:
    """Publishes one land inside a transaction; raises `Settled` when there is nothing to publish."""
    _check_replay(store, req)
    target = _target(store, req)
    companions.check(store, req)
    with tx.savepoint():
        if prepared is None or prepared.target != target:
            prepared = prepare(store, req, target, ort_seconds, answering)
            attempts += 1
        together, made = companions.moves(store, req, prepared.commit)
        tx.journal([*prepared.new, *made])
        changed = [path_text(c.path) for c in prepared.done[:200]]
        result = Landed(prepared.commit, "landed", short_ref(req.ref), attempts, target, changed,
                        max(0, len(prepared.done) - 200), prepared.by)  # fmt: skip
        op = tx.record("land", req.agent, [Move(req.ref, target, prepared.commit), *together],
                       [(prepared.commit, req.agent)], key=req.key)  # fmt: skip
        tx.db.run(
            "INSERT OR REPLACE INTO landed VALUES (?, ?, ?, ?, ?, 0)",
            (prepared.commit, req.ref, req.change, op, prepared.author),
        )
        tx.db.run_many(
            "INSERT INTO land_paths VALUES (?, ?, ?, ?, ?, ?)",
            [(c.path, req.ref, op, guard.name_of(c.old), guard.name_of(c.new), prepared.author) for c in prepared.done],
        )
        tx.remember("land", req.key, req.digest, msgspec.json.encode(result))
        return result


def publish_prepared(store: Store, tx: Transaction, req: LandRequest, prepared: Prepared) -> Landed:
    """Publishes a land that was prepared on a head which was itself only to come, once that head is there.

    Raises `E_CAS_MISMATCH` when another is there, `Settled` when the request was answered meanwhile, and
    `E_LAND_MISMATCH` when it takes back what landed since it was prepared.
    """
    if (head := _target(store, req)) != prepared.target:
        raise CasMismatchError(f"{short_ref(req.ref)} is at {head}, not at {prepared.target}", ref=short_ref(req.ref),
                               expected=prepared.target, actual=head)  # fmt: skip
    if not req.allow_revert:
        base_tree = store.objects.commit(prepared.base).tree
        guard.check_reverts(store, req.ref, prepared.base, base_tree, prepared.wanted, prepared.author, req.since)
    return _one(store, tx, req, prepared)


def _target(store: Store, req: LandRequest) -> str:
    target = store.ref(req.ref)
    if target is None:
        raise NotFoundError(f"there is no ref {short_ref(req.ref)!r} to land on", ref=short_ref(req.ref))
    if req.expect_target is not None and req.expect_target != target:
        raise CasMismatchError(
            f"{short_ref(req.ref)} is at {target}, not at {req.expect_target}",
            ref=short_ref(req.ref),
            expected=req.expect_target,
            actual=target,
        )
    return target


def prepare(
    store: Store,
    req: LandRequest,
    target: str,
    ort_seconds: float | None,
    answering: Answering | None = None,
    at: int | None = None,
) -> Prepared:
    """Merges a change onto a target's head and writes the commit that would land.

    The land is of the time `at`, without it of now. With `ort_seconds=None` only what the in-process rule decides is
    merged, else `_NeedsOrt` is raised.
    """
    objects = store.objects
    objects.take_new()
    base = lineage.find_base(store, req.ref, target, req.change, allow_reland=req.allow_reland)
    if not base.own:
        row = store.db.row(
            "SELECT landed FROM landed WHERE change = ? AND ref = ? AND undone = 0", (req.change, req.ref)
        )
        raise Settled(_up_to_date(req, str(row[0]) if row else req.change, target))
    change = objects.commit(req.change)
    base_tree, target_tree = objects.commit(base.commit).tree, objects.commit(target).tree
    wanted = trees.diff(objects, base_tree, change.tree)
    if not req.allow_mass_delete:
        guard.check_mass_delete(store, base_tree, change.tree, wanted)
    merged = merge.merge_plain(objects, base_tree, change.tree, target_tree)
    decided: list[bytes] = []
    if merged is None:
        if ort_seconds is None:
            raise _NeedsOrt
        merged = merge.merge_ort(
            objects, base_tree, change.tree, target_tree, timeout=ort_seconds, tied=store.lock.held
        )
        decided = [p for m in merged.messages for p in m.paths]
        if not merged.clean:
            from ropewalk.store.structure.chance import second_chance

            answered = {path_bytes(text) for text in answering.resolution.files} if answering is not None else ()
            merged = second_chance(store, merged, seconds=min(ort_seconds / 4, 20.0), without=answered)
            decided += merged.structured
    tree = merged.tree
    if not merged.clean:
        if answering is None:
            raise Conflicted(merged, base.commit, target)
        tree, settled = _resolve(store, req, merged, answering, base.commit, target)
        decided += settled + [c.path for c in merged.conflicts]
        # what git merged beside the conflicts is only loose so far
        merge.adopt(objects, tree, (change.tree, target_tree))
    elif answering is not None:
        raise CasMismatchError(
            "the change merges cleanly now, so the resolution has nothing to resolve",
            hint="land it again without --resolve",
            ref=short_ref(req.ref),
            stale=_stale(store, answering.resolution, target),
            actual=target,
        )
    elif merged.structured:
        merge.adopt(objects, tree, (change.tree, target_tree))
    if tree == target_tree:
        raise Settled(_up_to_date(req, target, target))
    done = guard.check_integrity(store, base=base_tree, change=change.tree, target=target_tree, result=tree,
                                 wanted=wanted, merged=decided)  # fmt: skip
    author = store.agent_of(req.change) or req.agent
    if not req.allow_revert:
        guard.check_reverts(store, req.ref, base.commit, base_tree, wanted, author, req.since)
    message = _message(change.message, req, base.own, merged.structured)
    who = identity.person(store.layout, req.agent, clock.now() if at is None else at)
    commit = objects.write_commit(tree, [target], change.author, who, message, change.encoding,
                                  identity.signer(store.layout, req.agent))  # fmt: skip
    return Prepared(target, commit, done, _merged_by(merged), author, objects.take_new(), base.commit, wanted)


def _merged_by(merged: Merged) -> str | dict[str, str]:
    """Gives who decided a merge, by path where files got a second chance."""
    how = merged.by if merged.clean else "resolution"
    if not merged.structured:
        return how
    rest = {path_text(conflict.path): how for conflict in merged.conflicts}
    return {path_text(path): report.STRUCTURE for path in merged.structured} | rest


def _outside(store: Store, req: LandRequest, answering: Answering | None) -> Prepared:
    """Prepares a land without the lock, merge-ort included."""
    _check_replay(store, req)
    companions.check(store, req)
    return prepare(store, req, _target(store, req), 120.0, answering)


def _check_replay(store: Store, req: LandRequest) -> None:
    """Raises `Settled` when the key's land is done already."""
    again = store.replay("land", req.key, req.digest)
    if again is not None:
        first = msgspec.json.decode(again.result, type=Landed)
        raise Settled(msgspec.structs.replace(first, status="replayed"), again.op)


def _resolve(
    store: Store, req: LandRequest, merged: Merged, answering: Answering, base: str, target: str
) -> tuple[str, list[bytes]]:
    resolution = answering.resolution
    stale = _stale(store, resolution, target)
    if stale or report.undecided(merged, resolution):
        raise report.error(
            report.build(store, merged, ref=req.ref, base=base, theirs=target, change=req.change), stale or None
        )
    return report.apply(store, merged, resolution, answering.read_file)


def _stale(store: Store, resolution: Resolution, target: str) -> list[str]:
    """Gives the resolved paths that the target changed since the report."""
    if resolution.against == target:
        return []
    try:
        seen = store.objects.commit(resolution.against).tree
    except NotFoundError:
        return sorted(resolution.files)
    now = store.objects.commit(target).tree
    return [
        text
        for text in sorted(resolution.files)
        if trees.lookup(store.objects, seen, path_bytes(text)) != trees.lookup(store.objects, now, path_bytes(text))
    ]


def _up_to_date(req: LandRequest, landed: str, target: str) -> Landed:
    return Landed(landed, "up_to_date", short_ref(req.ref), 0, target, [], 0, "same")


def _message(message: bytes, req: LandRequest, own: Sequence[str], structured: Sequence[bytes] = ()) -> bytes:
    """Gives the change's message with the trailers of its land."""
    lines = [b"Ropewalk-Changeset: " + req.change.encode("ascii")]
    if req.key:
        lines.append(b"Ropewalk-Land-Key: " + req.key.encode("ascii"))
    lines += [b"Ropewalk-Squashed-From: " + oid.encode("ascii") for oid in list(own)[1:51]]
    lines += [b"Ropewalk-Merged-By: structure " + _on_one_line(path) for path in structured]
    body = message.rstrip(b"\n")
    paragraphs = body.rsplit(b"\n\n", 1)
    joined = len(paragraphs) == 2 and all(_TRAILER.match(line) for line in paragraphs[1].split(b"\n"))
    return body + (b"\n" if joined else b"\n\n") + b"\n".join(lines) + b"\n"


def _on_one_line(path: bytes) -> bytes:
    """Gives a path as a trailer holds it: as JSON where it has control characters, quotes or other bytes than UTF-8."""
    text = path_text(path)
    return path if text.isprintable() and '"' not in text else msgspec.json.encode(text)


def rebase(store: Store, *, agent: str, change: str, onto: str) -> tuple[str, str, list[str]]:
    """Makes a change's work anew on another commit, as one changeset; gives (changeset, base, paths).

    The base is the newest common ancestor. Raises `E_CONFLICT` with a report; nothing is landed.
    """
    objects = store.objects
    store.objects.take_new()
    base = lineage.find_base(store, "", onto, change, allow_reland=True)
    if not base.own:
        return onto, onto, []
    mine, there = objects.commit(change), objects.commit(onto).tree
    base_tree = objects.commit(base.commit).tree
    merged = merge.merge(objects, base_tree, mine.tree, there)
    if not merged.clean:
        from ropewalk.store.structure.chance import second_chance

        merged = second_chance(store, merged)
    if not merged.clean:
        built = report.build(store, merged, ref="", base=base.commit, theirs=onto, change=change)
        raise report.error(built)
    done = guard.check_integrity(store, base=base_tree, change=mine.tree, target=there, result=merged.tree,
                                 wanted=trees.diff(objects, base_tree, mine.tree),
                                 merged=[p for m in merged.messages for p in m.paths])  # fmt: skip
    if merged.structured:
        merge.adopt(objects, merged.tree, (mine.tree, there))
    who = identity.person(store.layout, agent, clock.now())
    oid = objects.write_commit(merged.tree, [onto], mine.author, who, mine.message, mine.encoding,
                               identity.signer(store.layout, agent))  # fmt: skip
    new = objects.take_new()
    with store.transaction() as tx:
        tx.record("rebase", agent, (), [(oid, store.agent_of(change) or agent)])
        tx.journal(new)
    return oid, base.commit, [path_text(c.path) for c in done]
