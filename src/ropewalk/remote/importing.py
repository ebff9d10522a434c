"""Import: a branch of another repository comes into the store with the same ids, as one operation.

`git fetch` runs into a folder beside the repository, so that what turns out not to fit leaves nothing behind.
Many objects stay a pack, which is synced and moved; few go through the journal like any other write (A13).
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from ropewalk.core import clock, durable
from ropewalk.core.errors import (
    CasMismatchError,
    CasRetryExhaustedError,
    GitImportDivergedError,
    NotFoundError,
    ShallowError,
    StoreCorruptError,
    UnsupportedError,
    os_error,
)
from ropewalk.core.ids import HEX40, check_ref, short_ref
from ropewalk.core.process import git
from ropewalk.remote import transport
from ropewalk.remote.transport import Place
from ropewalk.store import adoption, maintain
from ropewalk.store.loose import Damaged, LooseStore, NewObject
from ropewalk.store.oplog import Move
from ropewalk.store.revisions import peel
from ropewalk.store.store import Store

UNPACK_LIMIT = 500
_ATTEMPTS = 8
_INCOMING = "incoming-"
_TAGS = "refs/tags/"
_YOUNG = 60.0
"""Seconds for which a folder may be there before its owner has locked it."""


class Imported(msgspec.Struct, frozen=True):
    """Is the result of an import; `imported` and `skipped` count commits new to and already in the store.

    `git_head_sha` is what the ref points to: the commit `head_changeset`, or the tag object that names it.
    """

    imported: int
    skipped: int
    head_changeset: str
    git_head_sha: str
    target_ref: str
    ref_moved: bool
    old_head: str | None = None
    lossy: list[str] = []
    lossy_total: int = 0


class _Fetched(NamedTuple):
    """Is what a fetch left in its folder: packs by name, and few objects that go into the journal."""

    packs: list[str]
    small: list[NewObject]


def current_branch(git_dir: str) -> tuple[str, str] | None:
    """Gives (short name, head id) of the branch a repository is on; None when unborn, detached or oddly named.

    Refuses at once what could not be imported: `E_UNSUPPORTED` for a repository with SHA-256 ids, `E_SHALLOW`
    when the branch's history is cut off.
    """
    name = git(git_dir, "symbolic-ref", "--quiet", "HEAD", ok=(0, 1, 128), timeout=30).text()
    if not name.startswith("refs/heads/"):
        return None
    head = git(git_dir, "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}", extra_env=transport.NO_TRANSPORT,
               ok=(0, 1, 128), timeout=30).text()  # fmt: skip
    if len(head) == 64:
        raise transport.sha256(Place(git_dir, git_dir))
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return None
    if not HEX40.match(head):
        return None
    _check_whole(Place(git_dir, git_dir), head)
    return short_ref(name), head


def import_branch(
    store: Store,
    source: str,
    branch: str | None,
    *,
    into: str | None,
    actor: str,
    progress: Callable[[str], None] | None = None,
    wait: float = transport.WAIT,
) -> Imported:
    """Brings a branch (short or full ref name; None: the source's current one) into the ref `into`.

    `into` is a full name, None for the same name. A new ref is created, one that the source contains is fast
    forwarded; anything else is `E_GIT_IMPORT_DIVERGED` and records nothing. A tag that comes into a tag stays the
    object it is, with its signature; into a branch comes the commit it points to. Raises `E_NOT_FOUND`,
    `E_SHALLOW`, `E_UNSUPPORTED`, `E_REMOTE`, `E_BUSY`.
    """
    there = transport.place(source)
    name, head, peeled = _find(store, there, branch, wait)
    target = check_ref(into if into is not None else name)
    if not target.startswith(_TAGS):
        head = peeled
    adoption.adopt(store, target)
    if store.ref(target) == head:
        store.flush()
        return Imported(0, _count(store, {}, [head]), peel(store, head, name), head, short_ref(target), False, head)
    if there.path is not None:
        _check_whole(there, head)
    if progress is not None:
        progress(f"importing {short_ref(name)} of {transport.shown(there)}")
    with _incoming(store, head) as (folder, env):
        _fetch(store, there, [head], env, wait)
        _check_commit(store, head, env)
        imported, skipped = _counts(store, there, [head], env)
        _check_forward(store, target, head, env)
        fetched = _take(store, folder, [head], env)
        result = _record(store, target, head, actor, fetched, imported, skipped)
    _tidy(store)
    return result


def bring_refs(
    store: Store, there: Place, wanted: Mapping[str, str], gone: Sequence[str], *, kind: str, actor: str,
    progress: Callable[[str], None] | None = None, wait: float = transport.WAIT,
) -> tuple[int, list[Move]]:  # fmt: skip
    """Brings what refs of another repository point to and sets refs here to it, forward or not, as one operation.

    `wanted` are full names here with ids there; refs in `gone` are removed. Gives the count of new commits and the
    moves. Raises `E_SHALLOW`, `E_REMOTE`, `E_BUSY`; nothing has moved then.
    """
    heads = sorted({oid for name, oid in wanted.items() if store.ref(name) != oid})
    if there.path is not None:
        for head in heads:
            _check_whole(there, head)
    if not heads and not any(store.ref(name) for name in gone):
        store.flush()
        return 0, []
    if progress is not None and heads:
        progress(f"fetching {len(heads)} refs of {transport.shown(there)}")
    imported = 0
    fetched = _Fetched([], [])
    with _incoming(store, (heads or ["none"])[0]) as (folder, env):
        if heads:
            _fetch(store, there, heads, env, wait)
            imported, _ = _counts(store, there, heads, env)
            fetched = _take(store, folder, heads, env)
        for _ in range(_ATTEMPTS):
            moves = [Move(n, store.ref(n), oid) for n, oid in sorted(wanted.items()) if store.ref(n) != oid]
            moves += [Move(n, store.ref(n), None) for n in gone if store.ref(n) is not None]
            try:
                with store.transaction() as tx:
                    tx.journal(fetched.small)
                    if moves:
                        tx.record(kind, actor, moves)
                break
            except CasMismatchError:
                continue
        else:
            raise CasRetryExhaustedError(f"refs moved during each of {_ATTEMPTS} attempts", attempts=_ATTEMPTS)
    _tidy(store)
    return imported, moves


@contextmanager
def _incoming(store: Store, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Gives a folder beside the repository that objects come into, and the variables that lead git there."""
    # threads of one process may bring the same commit
    folder = os.path.join(store.layout.root, f"{_INCOMING}{os.getpid()}-{name[:12]}-{os.urandom(3).hex()}")
    held = -1
    try:
        _sweep(store.layout.root)
        os.makedirs(os.path.join(folder, "pack"))
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(held, fcntl.LOCK_EX)
        yield (
            folder,
            {
                "GIT_OBJECT_DIRECTORY": folder,
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.path.join(store.layout.repo, "objects"),
            },
        )
    except OSError as error:
        raise os_error(error, "import") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held >= 0:
            os.close(held)


def _take(store: Store, folder: str, heads: Sequence[str], env: dict[str, str]) -> _Fetched:
    """Puts what was fetched in place in the repository; gives what the journal has to take."""
    fetched = _collect(store, folder)
    _adopt_stray(store, fetched, heads, env)
    _move_packs(store, folder, fetched.packs)
    return fetched


def _tidy(store: Store) -> None:
    """Puts packs together when there are many."""
    if len(maintain.packs(store)) > maintain.PACKS_MAX:
        with maintain.maintenance(store, wait=True):
            if len(maintain.packs(store)) > maintain.PACKS_MAX:
                maintain.consolidate(store)


def _sweep(root: str) -> None:
    """Removes what imports that were killed left behind; one that is at work holds the lock of its folder."""
    for name in os.listdir(root):
        path = os.path.join(root, name)
        try:
            if not name.startswith(_INCOMING) or clock.now() - os.stat(path).st_mtime < _YOUNG:
                continue
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(fd)


def _find(store: Store, there: Place, branch: str | None, wait: float) -> tuple[str, str, str]:
    """Gives (full name, id, id of what a tag object points to in the end) of the branch or tag in the source."""
    if branch is None:
        found = transport.listing(store.layout.repo, there, "HEAD", wait=wait)
        if found.head is None or "HEAD" not in found.refs:
            raise NotFoundError(
                f"{transport.shown(there)} is on no branch that has a commit",
                hint="name a branch with --ref",
                repository=transport.shown(there),
            )
        return found.head, found.refs["HEAD"], found.refs["HEAD"]
    name = check_ref(branch)
    # the second pattern is for the commit a tag points to
    found = transport.listing(store.layout.repo, there, name, name + "^{}", wait=wait)
    if name not in found.refs:
        others = transport.listing(store.layout.repo, there, "refs/heads/*", wait=wait).refs
        raise NotFoundError(
            f"{transport.shown(there)} has no branch {short_ref(name)!r}",
            hint="it has " + (", ".join(short_ref(n) for n in sorted(others)[:10]) or "no branches at all"),
            ref=short_ref(name),
            repository=transport.shown(there),
        )
    return name, found.refs[name], found.peeled.get(name, found.refs[name])


def _check_whole(there: Place, head: str) -> None:
    """Refuses a shallow source whose cut is within the branch's history, and names the commit that is missing."""
    assert there.path is not None
    common = _common_dir(there.path)
    if common is None or not os.path.exists(os.path.join(common, "shallow")):
        return
    with open(os.path.join(common, "shallow"), encoding="ascii", errors="replace") as file:
        cut = set(file.read().split())
    quiet = transport.NO_TRANSPORT
    reached = set(git(common, "rev-list", head, extra_env=quiet, ok=(0, 128), timeout=600).text().split())
    for oid in sorted(cut & reached):
        raw = git(common, "cat-file", "commit", oid, extra_env=quiet, ok=(0, 128), timeout=60).out
        lines = raw.split(b"\n\n", 1)[0].split(b"\n")
        parents = [line[7:47].decode("ascii") for line in lines if line.startswith(b"parent ")]
        if parents:
            raise ShallowError(
                f"{transport.shown(there)} is a shallow clone: the commit {parents[0]} is missing",
                hint=f"run `git -C {transport.shown(there)} fetch --unshallow`, then import again",
                repository=transport.shown(there),
                object=parents[0],
            )


def _common_dir(path: str) -> str | None:
    """Gives the folder that holds objects and refs of a repository named by work tree or git directory."""
    from ropewalk.store.layout import git_common_dir

    if not os.path.isdir(path):
        return None
    named = os.path.join(path, "commondir")
    if os.path.isfile(named):
        with open(named, encoding="utf-8", errors="surrogateescape") as file:
            return os.path.normpath(os.path.join(path, file.read().strip()))
    if os.path.isdir(os.path.join(path, "objects")) and os.path.isfile(os.path.join(path, "HEAD")):
        return path
    found = git_common_dir(path)
    return found[1] if found else None


def _fetch(store: Store, there: Place, heads: Sequence[str], env: dict[str, str], wait: float) -> None:
    """Fetches commits with all they stand on; writes objects alone, no ref and no FETCH_HEAD."""
    repo = store.layout.repo
    if not transport.fetch(repo, there, heads, unpack_limit=UNPACK_LIMIT, extra_env=env, wait=wait):
        wanted = _lines(heads) + _known(store)
        walk = git(repo, "rev-list", "--objects", "--quiet", "--stdin", stdin=wanted, extra_env=env, ok=(0, 128),
                   timeout=transport.TIMEOUT)  # fmt: skip
        if walk.code:
            raise transport.failure(there, walk.err)


def _check_commit(store: Store, head: str, env: dict[str, str]) -> None:
    words = ["rev-parse", "--quiet", "--verify", f"{head}^{{commit}}"]
    if git(store.layout.repo, *words, extra_env=env, ok=(0, 1, 128), timeout=60).code:
        raise UnsupportedError(f"{head} is no commit and no tag of one", hint="import a branch", object=head)


def _lines(ids: Sequence[str]) -> bytes:
    return "".join(f"{oid}\n" for oid in ids).encode("ascii")


def _check_forward(store: Store, target: str, head: str, env: dict[str, str]) -> None:
    old = store.ref(target)
    if old is None or old == head:
        return
    store.expose()
    done = git(store.layout.repo, "merge-base", "--is-ancestor", old, head, extra_env=env, ok=(0, 1), timeout=600)
    if done.code:
        raise GitImportDivergedError(
            f"{short_ref(target)} is at {old}, which the imported branch does not contain",
            ref=short_ref(target),
            target_head=old,
            source_head=head,
        )


def _known(store: Store) -> bytes:
    """Gives all targets of refs, shown to git, as arguments that leave out what they reach."""
    known = sorted({oid for _, oid in store.refs()})
    store.expose()  # another's operation is in the database before its objects are where git looks
    return "".join(f"^{oid}\n" for oid in known).encode("ascii")


def _count(store: Store, env: dict[str, str], heads: Sequence[str]) -> int:
    out = git(store.layout.repo, "rev-list", "--count", "--stdin", stdin=_lines(heads), extra_env=env, timeout=600)
    return int(out.text())


def _counts(store: Store, there: Place, heads: Sequence[str], env: dict[str, str]) -> tuple[int, int]:
    """Gives how many commits below some heads are new to the store, and how many it has.

    `E_SHALLOW` when their history is cut off, which a fetch over a URL does not mind.
    """
    repo = store.layout.repo
    known = _known(store)
    walk = git(repo, "rev-list", "--stdin", stdin=_lines(heads) + known, extra_env=env, ok=(0, 128), timeout=600)
    if walk.code:
        raise transport.failure(there, walk.err)
    if not known and not maintain.packs(store) and not store.objects.loose.ids():
        return walk.out.count(b"\n"), 0
    kinds = git(repo, "cat-file", "--batch-check=%(objecttype)", "--buffer", stdin=walk.out, timeout=600).out
    new = sum(line.endswith(b" missing") for line in kinds.splitlines())
    return new, _count(store, env, heads) - new


def _collect(store: Store, folder: str) -> _Fetched:
    """Gives the fetched packs, and the fetched loose objects put in place in the repository."""
    names = [n[5:-5] for n in os.listdir(os.path.join(folder, "pack")) if n.startswith("pack-") and n.endswith(".pack")]
    incoming = LooseStore(folder)
    small = []
    for oid in incoming.ids():
        small.append(_place(store, incoming, oid))
    return _Fetched(names, small)


def _place(store: Store, where: LooseStore, oid: str) -> NewObject:
    """Puts an object git wrote loose in place, checked; gives it for the journal, or synced when it is large."""
    try:
        return store.objects.loose.take(where, oid)
    except Damaged as error:
        raise StoreCorruptError(f"git wrote the object {oid} damaged: {error}", object=oid) from None


def _adopt_stray(store: Store, fetched: _Fetched, heads: Sequence[str], env: dict[str, str]) -> None:
    """Adds to the journal what the fetch took for granted and no operation has made durable.

    A loose object may be one of a writer that died before its transaction; that it exists is no evidence (A3).
    """
    loose = set(store.objects.loose.ids()) - {o.id for o in fetched.small}
    if not loose:
        return
    loose -= {str(row[0]) for row in store.db.rows("SELECT id FROM object_journal")}
    if not loose:
        return
    arguments = _lines(heads) + _known(store)
    out = git(store.layout.repo, "rev-list", "--objects", "--no-object-names", "--stdin", stdin=arguments,
              extra_env=env, timeout=1200).text()  # fmt: skip
    for oid in loose.intersection(out.split()):
        fetched.small.append(_place(store, store.objects.loose, oid))


def _move_packs(store: Store, folder: str, names: Sequence[str]) -> None:
    """Moves fetched packs, which git synced, into the repository, the index last, because it makes a pack visible."""
    there = os.path.join(store.layout.repo, "objects", "pack")
    for name in names:
        for end in ("pack", "rev", "idx"):
            path = os.path.join(folder, "pack", f"pack-{name}.{end}")
            if not os.path.exists(path):
                continue
            os.rename(path, os.path.join(there, f"pack-{name}.{end}"))
    durable.sync(there)


def _record(
    store: Store, target: str, head: str, actor: str, fetched: _Fetched, imported: int, skipped: int
) -> Imported:
    for _ in range(_ATTEMPTS):
        old = store.ref(target)
        _check_forward(store, target, head, {})
        moved = old != head
        try:
            with store.transaction() as tx:
                tx.journal(fetched.small)
                if moved:
                    tx.record("git_import", actor, [Move(target, old, head)])
        except CasMismatchError:
            continue
        return Imported(imported, skipped, peel(store, head, target), head, short_ref(target), moved, old)
    raise CasRetryExhaustedError(f"{short_ref(target)} moved during each of {_ATTEMPTS} attempts", attempts=_ATTEMPTS)
