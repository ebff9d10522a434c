"""Sync: a branch here and the same branch of a remote become one line again.

What only the remote has is taken over, what only the store has is landed anew on the remote's head, change by
change, and pushed by compare-and-swap. A change that came back by a pull request - merged, rebased or squashed -
is recognised, first by its trailer, then by its patch, and is not landed twice. What the remote had and has no more,
because somebody took its branch back, is not put back there unasked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from ropewalk.core import clock
from ropewalk.core.errors import CasMismatchError, CasRetryExhaustedError, LandMismatchError
from ropewalk.core.ids import short_ref
from ropewalk.remote import remotes, transport
from ropewalk.remote.remotes import Pushed, Remote
from ropewalk.store import guard, identity, lineage, merge, report, trees
from ropewalk.store.loose import NewObject
from ropewalk.store.objects import Commit
from ropewalk.store.oplog import Move
from ropewalk.store.store import Store

MAX_ATTEMPTS = 5
_RUN = 40
"""How many unpublished changes at most are looked at for one commit that squashed several of them."""

Dropped = Literal["refuse", "publish", "leave"]
"""Is what becomes of changes that the remote had and has no more."""

_TRAILER = b"Ropewalk-Changeset: "
_INHERIT = (
    "INSERT OR IGNORE INTO equivalents SELECT was, ref, ?1, ?2 FROM equivalents WHERE now = ?3 AND ref = ?4",
    "INSERT OR IGNORE INTO equivalents SELECT change, ref, ?1, ?2 FROM landed WHERE landed = ?3 AND ref = ?4",
)
"""What became a commit before is what that commit becomes."""


class Known(msgspec.Struct, frozen=True):
    """Is a change of ours that the remote has in another commit, and how that was seen."""

    changeset: str
    there: str
    by: str


class Relanded(msgspec.Struct, frozen=True):
    """Is a change that was landed anew: the commit it was and the one it is now."""

    was: str
    now: str


class Synced(msgspec.Struct, frozen=True):
    """Is the result of a sync: what came, what was recognised, what was landed anew, and the push."""

    remote: dict[str, str]
    fetch: dict[str, dict[str, str | None]]
    imported: int
    head: str
    old_head: str | None
    recognised: list[Known]
    relanded: list[Relanded]
    push: Pushed | None
    attempts: int


class Status(msgspec.Struct, frozen=True):
    """Is how a branch here and there stand to each other: counts of commits, and what waits to be published."""

    remote: dict[str, str]
    fetch: dict[str, dict[str, str | None]]
    head: str | None
    ahead: int
    behind: int
    state: str
    unpublished: list[dict[str, str]]
    recognised: list[Known]
    dropped: list[str]


class Brought(msgspec.Struct, frozen=True):
    """Is how a branch came to hold what a commit of ours stands for; `left` are our changes that it lacks.

    `how` is None where something is left. A rebase keeps each change and its title, a squash joins them or names
    itself; one change that was squashed under its own title counts as rebased.
    """

    how: Literal["fast_forward", "merge", "rebase", "squash"] | None
    recognised: list[Known]
    left: list[str]


class _Step(NamedTuple):
    """Is what is landed anew as one: the last of its commits, the tree it changes, the merge, how many it holds."""

    commit: Commit
    base: str
    merged: merge.Merged
    holds: int


class _Plan(NamedTuple):
    head: str
    recognised: list[Known]
    relanded: list[Relanded]
    changed: Mapping[str, Sequence[trees.Change]]
    new: list[NewObject]


def status(store: Store, remote: Remote, ref: str) -> Status:
    """Says how a branch stands to what the remote had at the last fetch; nothing is moved or asked of the remote."""
    branch = short_ref(ref)
    ours, theirs = store.ref(ref), remotes.tracked(store, remote, branch)
    ahead = behind = 0
    known: list[Known] = []
    steps: list[str] = []
    if ours is not None and theirs is not None and ours != theirs:
        counts = store.git("rev-list", "--count", "--left-right", f"{ours}...{theirs}", timeout=600).text().split()
        ahead, behind = int(counts[0]), int(counts[1])
        steps = _steps(store, ours, theirs) if ahead else []
        known = _recognise(store, steps, ours, theirs) if behind and steps else []
    elif ours is not None and theirs is None:
        ahead = int(store.git("rev-list", "--count", ours, timeout=600).text())
    words = {(False, False): "even", (True, False): "ahead", (False, True): "behind", (True, True): "diverged"}
    seen = {one.changeset for one in known}
    gone = _dropped(store, remote, ref, [oid for oid in steps if oid not in seen], theirs)
    waiting = [
        {"id": oid, "title": store.objects.commit(oid).title} for oid in reversed(steps[-200:]) if oid not in seen
    ]
    state = "unfetched" if theirs is None else words[ahead > 0, behind > 0]
    return Status({"url": remote.shown, "branch": branch}, {"head": {"sha": theirs}}, ours, ahead, behind, state,
                  waiting, known, gone)  # fmt: skip


def sync(
    store: Store, remote: Remote, ref: str, actor: str, *, push: bool = True,
    dropped: Dropped = "refuse", progress: Callable[[str], None] = lambda line: None, wait: float = transport.WAIT,
) -> Synced:  # fmt: skip
    """Makes a branch here and there one line. Raises `E_CONFLICT` with a report, and nothing has moved then.

    A remote that moves meanwhile makes another attempt; `E_CAS_RETRY_EXHAUSTED` after five. What the remote had and
    has no more is `E_LAND_MISMATCH`, unless `dropped` says to publish it again or to leave it out here, too.
    """
    branch = short_ref(ref)
    imported = 0
    first = store.ref(ref)
    recognised: list[Known] = []
    relanded: list[Relanded] = []
    for attempt in range(1, MAX_ATTEMPTS + 1):
        fetched = remotes.fetch(store, remote, actor, progress=progress, wait=wait)
        imported += fetched.imported
        theirs = remotes.tracked(store, remote, branch)
        if theirs is not None:
            plan = _take_over(store, remote, ref, theirs, actor, dropped, progress)
            if plan is None:
                continue  # somebody landed meanwhile
            recognised += plan.recognised
            relanded += plan.relanded
        head = store.ref(ref)
        if head is None:
            raise LandMismatchError(
                f"neither the store nor {remote.shown} has {branch}", hint="name another with --ref", reason="unborn"
            )
        pushed: Pushed | None = None
        if push:
            try:
                pushed = remotes.push(store, remote, ref, branch, actor, progress=progress, wait=wait)
            except CasMismatchError:
                progress(f"{branch} of {remote.name} moved meanwhile")
                continue
        return Synced({"url": remote.shown, "branch": branch}, {"head": {"sha": theirs}}, imported, head, first,
                      recognised, relanded, pushed, attempt)  # fmt: skip
    raise CasRetryExhaustedError(
        f"{branch} moved during each of {MAX_ATTEMPTS} attempts", hint="try again", attempts=MAX_ATTEMPTS
    )


def brought(store: Store, ours: str, theirs: str) -> Brought:
    """Says whether a branch holds what a commit of ours stands for, and how that was brought in."""
    objects = store.objects
    if lineage.ancestor(store, ours, theirs):
        line = store.git("rev-list", "--first-parent", "--reverse", theirs, f"^{ours}", timeout=600).text().split()
        forward = not line or objects.commit(line[0]).parents[:1] == (ours,)
        return Brought("fast_forward" if forward else "merge", [], [])
    steps = _steps(store, ours, theirs)
    if not store.git("merge-base", ours, theirs, ok=(0, 1), timeout=600).text():
        return Brought(None, [], steps)
    known = _recognise(store, steps, ours, theirs)
    seen = {one.changeset for one in known}
    left = [oid for oid in steps if oid not in seen]
    if left:
        return Brought(None, known, left)
    whole = len({one.there for one in known}) == len(known)
    same = all(objects.commit(one.changeset).title == objects.commit(one.there).title for one in known)
    return Brought("rebase" if whole and same else "squash", known, [])


def _take_over(
    store: Store, remote: Remote, ref: str, theirs: str, actor: str, dropped: Dropped, progress: Callable[[str], None]
) -> _Plan | None:
    """Moves a branch to the remote's head with our unpublished changes on it; None when the branch moved meanwhile."""
    ours = store.ref(ref)
    if ours is None or lineage.ancestor(store, ours, theirs):
        if ours == theirs:
            return _Plan(theirs, [], [], {}, [])
        plan = _Plan(theirs, [], [], {}, [])
    else:
        steps = _steps(store, ours, theirs)
        known = _recognise(store, steps, ours, theirs)
        seen = {one.changeset for one in known}
        gone = _dropped(store, remote, ref, [oid for oid in steps if oid not in seen], theirs)
        if gone and dropped == "refuse":
            raise LandMismatchError(
                f"{remote.shown} had {len(gone)} changes of {short_ref(ref)} and has them no more",
                hint="`rw sync --dropped publish` puts them back, `rw sync --dropped leave` gives them up here, too",
                reason="dropped", changes=gone[:100],
            )  # fmt: skip
        left = [Known(oid, theirs, "dropped") for oid in gone if dropped == "leave"]
        if not left and lineage.ancestor(store, theirs, ours):
            return _Plan(ours, [], [], {}, [])
        plan = _reland(store, ref, ours, theirs, steps, known + left, actor, progress)
    try:
        with store.transaction() as tx:
            op = tx.record("sync", actor, [Move(ref, ours, plan.head)], [(r.now, actor) for r in plan.relanded])
            tx.journal(plan.new)
            became = [(k.changeset, k.there) for k in plan.recognised if k.by != "dropped"]
            for oid in [k.changeset for k in plan.recognised if k.by == "dropped"]:
                tx.db.run("UPDATE landed SET undone = 1 WHERE landed = ? AND ref = ?", (oid, ref))
            for was, now in became + [(r.was, r.now) for r in plan.relanded]:
                tx.db.run("INSERT OR IGNORE INTO equivalents VALUES (?, ?, ?, ?)", (was, ref, now, op))
                for statement in _INHERIT:
                    tx.db.run(statement, (now, op, was, ref))
            for was, changed in plan.changed.items():
                author = store.agent_of(was) or actor
                tx.db.run_many(
                    "INSERT OR IGNORE INTO land_paths VALUES (?, ?, ?, ?, ?, ?)",
                    [(c.path, ref, op, guard.name_of(c.old), guard.name_of(c.new), author) for c in changed],
                )
    except CasMismatchError:
        return None
    return plan


def _steps(store: Store, ours: str, theirs: str) -> list[str]:
    """Gives our changes that the remote's history lacks, oldest first: the steps of our own line."""
    out = store.git("rev-list", "--first-parent", "--reverse", ours, f"^{theirs}", timeout=600).text()
    return out.split()


def _dropped(store: Store, remote: Remote, ref: str, steps: Sequence[str], theirs: str | None) -> list[str]:
    """Gives those of our changes that the remote's branch had once, and has no more."""
    had = remotes.published(store, remote, short_ref(ref))
    if not steps or theirs is None or not set(had) - {theirs}:
        return []
    asked = "".join([f"{steps[-1]}\n", f"^{theirs}\n", *(f"^{oid}\n" for oid in had)]).encode("ascii")
    fresh = store.git("rev-list", "--first-parent", "--ignore-missing", "--stdin", stdin=asked, timeout=600).text()
    unpublished = set(fresh.split())
    return [oid for oid in steps if oid not in unpublished]


def _reland(
    store: Store, ref: str, ours: str, theirs: str, steps: Sequence[str], known: Sequence[Known], actor: str,
    progress: Callable[[str], None],
) -> _Plan:  # fmt: skip
    objects = store.objects
    if not store.git("merge-base", ours, theirs, ok=(0, 1), timeout=600).text():
        raise LandMismatchError(
            f"{short_ref(ref)} and the remote's have no history in common",
            hint="push to a branch of another name, or import the remote into a store of its own", reason="unrelated",
        )  # fmt: skip
    recognised = list(known)
    seen = {one.changeset for one in recognised}
    left = [oid for oid in steps if oid not in seen]
    progress(f"landing {len(left)} changes anew on {theirs[:12]}")
    objects.take_new()
    head, new, at = theirs, [], 0
    relanded: list[Relanded] = []
    changed: dict[str, Sequence[trees.Change]] = {}
    who = identity.person(store.layout, actor, clock.now())
    while at < len(left):
        target = objects.commit(head).tree
        step = _step(store, ref, left[at:], theirs, head)
        wanted = trees.diff(objects, step.base, step.commit.tree)
        done = guard.check_integrity(store, base=step.base, change=step.commit.tree, target=target,
                                     result=step.merged.tree, wanted=wanted,
                                     merged=[p for m in step.merged.messages for p in m.paths])  # fmt: skip
        was = left[at : at + step.holds]
        at += step.holds
        if step.merged.tree == target:
            recognised += [Known(oid, head, "content") for oid in was]
            continue
        now = objects.write_commit(step.merged.tree, [head], step.commit.author, who, step.commit.message,
                                   step.commit.encoding)  # fmt: skip
        made = objects.take_new()
        for one in made:
            objects.loose.ensure(one.id, one.packed)  # the next merge may ask git
        new += made
        relanded += [Relanded(oid, now) for oid in was]
        changed[was[-1]] = done
        head = now
    return _Plan(head, recognised, relanded, changed, new)


def _step(store: Store, ref: str, left: Sequence[str], theirs: str, head: str) -> _Step:
    """Gives the next of our changes merged onto a head; `E_CONFLICT` with a report when it does not fit.

    One that does not fit may have been made to fit by a later merge of the remote's branch into ours. All up to that
    merge is one step then: what the merge changed in what it brought in.
    """
    objects = store.objects
    first = objects.commit(left[0])
    target = objects.commit(head).tree
    base = objects.commit(first.parents[0]).tree
    merged = merge.merge(objects, base, first.tree, target)
    if merged.clean:
        return _Step(first, base, merged, 1)
    for count, oid in enumerate(left, 1):
        commit = objects.commit(oid)
        for brought in commit.parents[1:]:
            if lineage.ancestor(store, brought, theirs):
                tree = objects.commit(brought).tree
                wider = merge.merge(objects, tree, commit.tree, target)
                if wider.clean:
                    return _Step(commit, tree, wider, count)
    store.flush()
    raise report.error(report.build(store, merged, ref=ref, base=first.parents[0], theirs=head, change=left[0]))


def _recognise(store: Store, steps: Sequence[str], ours: str, theirs: str) -> list[Known]:
    """Gives those of our changes that the remote has in other commits."""
    objects = store.objects
    there = store.git("rev-list", "--reverse", theirs, f"^{ours}", timeout=600).text().split()
    named: dict[str, str] = {}
    for oid in there:
        for line in objects.commit(oid).message.split(b"\n"):
            line = line.strip()
            if line.startswith(_TRAILER):
                named.setdefault(line[len(_TRAILER) :].decode("ascii", "replace"), oid)
    found: dict[str, Known] = {}
    for oid in steps:
        source = objects.commit(oid).trailer("Ropewalk-Changeset") or oid
        if source in named:
            found[oid] = Known(oid, named[source], "trailer")
    left = [oid for oid in steps if oid not in found]
    if not left or not there:
        return [found[oid] for oid in steps if oid in found]
    patches = {patch: oid for oid, patch in _patch_ids(store, there).items()}
    mine = _patch_ids(store, left)
    for oid in left:
        if mine.get(oid) in patches:
            found[oid] = Known(oid, patches[mine[oid]], "patch")
    for run, oid in _squashed(store, [oid for oid in left if oid not in found], patches):
        for one in run:
            found[one] = Known(one, oid, "squash")
    return [found[oid] for oid in steps if oid in found]


def _patch_ids(store: Store, ids: Sequence[str]) -> dict[str, str]:
    """Gives the patch ids of commits against their first parents; one that changes nothing has none."""
    stdin = "".join(f"{oid}\n" for oid in ids).encode("ascii")
    text = store.git("diff-tree", "--stdin", "-p", "-m", "--first-parent", "--root", "--full-index", "--binary",
                     "--no-ext-diff", "--no-textconv", stdin=stdin, timeout=600).out  # fmt: skip
    return _of_patches(store, text)


def _of_patches(store: Store, text: bytes) -> dict[str, str]:
    out = store.git("patch-id", "--stable", stdin=text, timeout=600).text()
    return {words[1]: words[0] for words in (line.split() for line in out.splitlines()) if len(words) == 2}


def _squashed(store: Store, left: Sequence[str], patches: Mapping[str, str]) -> list[tuple[Sequence[str], str]]:
    """Gives runs of our changes that one commit of the remote holds together."""
    if not 1 < len(left) <= _RUN:
        return []
    objects = store.objects
    found: list[tuple[Sequence[str], str]] = []
    start = 0
    while start < len(left) - 1:
        base = objects.commit(left[start]).parents[0]
        hit = 0
        for end in range(len(left), start + 1, -1):
            text = store.git("diff-tree", "-p", "-r", "--full-index", "--binary", "--no-ext-diff", "--no-textconv",
                             base, left[end - 1], timeout=60).out  # fmt: skip
            # without a commit's line before it git gives a patch the id of zeros
            patch = _of_patches(store, text).get("0" * 40)
            if patch is not None and patch in patches:
                found.append((left[start:end], patches[patch]))
                hit = end
                break
        start = hit or start + 1
    return found
