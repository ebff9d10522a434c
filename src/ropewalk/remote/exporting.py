"""Export: a ref of the store becomes a branch of another repository, by compare-and-swap and never forced."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from ropewalk.core import durable
from ropewalk.core.errors import CasMismatchError, NotFoundError, RemoteError, RopewalkError, os_error
from ropewalk.core.ids import check_ref, short_ref
from ropewalk.core.process import git, git_env, git_error, git_program, run
from ropewalk.remote import limits, transport
from ropewalk.remote.transport import Place
from ropewalk.store.revisions import peel
from ropewalk.store.store import Store, need_ref

_TAGS, _PACKED = "refs/tags/", "packed-refs"
_TOTAL = re.compile(rb"Total (\d+)")
_LOST = ("non-fast-forward", "fetch first", "stale info")
_NOT_SET = ("cannot lock ref", "failed to update ref")
"""Are git's words for a ref that has moved meanwhile, and for one that could not be written for whatever reason."""


class Exported(msgspec.Struct, frozen=True):
    """Is the result of an export; `exported` counts the commits that the destination did not have."""

    exported: int
    objects_written: int
    head_changeset: str
    head_sha: str
    branch: str
    old_sha: str | None
    branch_moved: bool
    incremental: bool
    rewritten: int = 0


def export_branch(
    store: Store,
    destination: str,
    ref: str,
    branch: str | None,
    *,
    progress: Callable[[str], None] | None = None,
    wait: float = transport.WAIT,
) -> Exported:
    """Pushes a ref of the store to a branch of another repository (None: the same name); ids stay what they are.

    A tag that becomes a tag goes out as the object it is, and one that is there already is not moved. A path where
    there is nothing, or an empty folder, becomes a bare repository. Raises `E_CAS_MISMATCH` when the branch holds
    what the ref does not, `E_REMOTE` when the destination refuses or can't be reached.
    """
    full, target = need_ref(store, ref)
    name = check_ref(branch if branch is not None else full)
    commit = peel(store, target, ref)
    head = target if name.startswith(_TAGS) else commit
    there = transport.place(destination, exists=False)
    # nothing leaves the store before it is on disk, and git has to see what it is to send
    store.flush()
    store.expose()
    if progress is not None:
        progress(f"exporting {short_ref(full)} to {transport.shown(there)}")
    if there.path is not None and _vacant(there.path):
        made = _create(store, there, head, name, wait)
    else:
        made = _push(store, there, head, name, wait)
    return msgspec.structs.replace(made, head_changeset=commit)


def _vacant(path: str) -> bool:
    try:
        return not os.path.lexists(path) or (os.path.isdir(path) and not os.listdir(path))
    except OSError as error:
        raise os_error(error, "read of the destination") from None


def _create(store: Store, there: Place, head: str, name: str, wait: float) -> Exported:
    """Makes a bare repository beside the destination, pushes into it, and puts it in place whole."""
    assert there.path is not None
    part = f"{there.path}.new-{os.getpid()}"
    first = "main" if name.startswith(_TAGS) else short_ref(name)
    try:
        durable.make_folders(os.path.dirname(there.path))
        made = run(
            [git_program(), "init", "--quiet", "--bare", f"--initial-branch={first}", part],
            env=git_env(),
            timeout=60,
        )
        if made.code:
            raise RemoteError(
                f"{transport.shown(there)} can't be made: {transport.words_of(made.err)}",
                hint="check the folder above it",
                repository=transport.shown(there),
            )
        written = _fill(store, part, head, name, wait)
        durable.install(part, there.path)
    except OSError as error:
        raise os_error(error, "making the destination") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Exported(_count(store, head, []), written, head, head, short_ref(name), None, True, False)


def _fill(store: Store, part: str, head: str, name: str, wait: float) -> int:
    """Fills a new repository of ours by a fetch from its side, as one pack; gives the count of its objects."""
    source = Place(store.layout.repo, store.layout.repo)
    if not transport.fetch(part, source, [head], unpack_limit=1, wait=wait):
        git(part, "rev-list", "--objects", "--quiet", head, timeout=transport.TIMEOUT)
    git(part, "update-ref", name, head, timeout=60)
    found = re.search(r"^in-pack: (\d+)$", git(part, "count-objects", "-v", timeout=60).text(), re.MULTILINE)
    return int(found[1]) if found else 0


def _check_checked_out(there: Place, git_dir: str, name: str) -> None:
    """Refuses a branch that a work tree of the destination has checked out, before anything is sent.

    git would refuse it too, but only after it has taken the objects. A destination that takes such pushes by
    its own configuration (`receive.denyCurrentBranch`) is left to decide.
    """
    rule = git(git_dir, "config", "receive.denyCurrentBranch", ok=(0, 1, 128), timeout=30).text().lower()
    if rule in ("updateinstead", "ignore", "warn", "false", "no", "off", "0"):
        return
    listed = git(git_dir, "worktree", "list", "--porcelain", ok=(0, 128), timeout=60).text()
    for block in listed.split("\n\n"):
        lines = block.split("\n")
        if f"branch {name}" in lines and "bare" not in lines:
            raise RemoteError(
                f"{short_ref(name)} is checked out in {transport.shown(there)}",
                hint="export to another --branch and merge it there",
                repository=transport.shown(there),
                branch=short_ref(name),
                reason="checked_out",
            )


def _git_dir(there: Place) -> str:
    """Gives the git directory at a path; `E_NOT_FOUND` when there is none exactly there."""
    path = there.path or ""
    for candidate in (os.path.join(path, ".git"), path, path + ".git"):
        words = ("rev-parse", "--absolute-git-dir", "--show-object-format")
        done = git(candidate, *words, ok=(0, 128), timeout=30)
        if done.code and not done.err.strip():
            raise git_error("rev-parse", done)
        if done.code == 0:
            git_dir, kind = done.text().rsplit("\n", 1)
            if kind != "sha1":
                raise transport.sha256(there)
            return git_dir
    raise NotFoundError(
        f"{transport.shown(there)} is not a git repository, and it is not empty",
        hint="name a repository, an empty folder, or a path where there is nothing",
        repository=transport.shown(there),
    )


@contextmanager
def arrival_synced(git_dir: str | None, ref: str) -> Iterator[None]:
    """Makes durable what git writes meanwhile of a ref and its objects, or takes away, in a repository on this host.

    git leaves it to that repository's settings which files it syncs, and never syncs a folder.
    """
    if git_dir is None:
        yield
        return
    common = git_dir
    if os.path.isfile(named := os.path.join(git_dir, "commondir")):
        with open(named, encoding="utf-8", errors="surrogateescape") as file:
            common = os.path.normpath(os.path.join(git_dir, file.read().strip()))
    try:
        before, packed = _objects_there(common), _written(common)
        yield
        for folder, names in _objects_there(common).items():
            if fresh := names - before.get(folder, frozenset()):
                for name in fresh:
                    durable.sync(os.path.join(folder, name))
                durable.sync(folder)
        path = os.path.join(common, ref)
        while path != common:
            if os.path.exists(path):
                durable.sync(path)
            path = os.path.dirname(path)
        if _written(common) != packed:
            durable.sync(common)  # a packed ref went: our git has synced the new file, and no name
    except OSError as error:
        raise os_error(error, "sync of the destination") from None


def _written(common: str) -> tuple[int, int] | None:
    """Gives which file a repository has of packed refs, and of when; None where there is none."""
    try:
        there = os.stat(os.path.join(common, _PACKED))
    except FileNotFoundError:
        return None
    return there.st_ino, there.st_mtime_ns


def _objects_there(common: str) -> dict[str, frozenset[str]]:
    """Gives the names in the folders where a repository keeps its objects, but for what is only there for a while."""
    top = os.path.join(common, "objects")
    found = {top: frozenset(name for name in os.listdir(top) if len(name) == 2 or name == "pack")}
    for inner in found[top]:
        names = os.listdir(os.path.join(top, inner))
        found[os.path.join(top, inner)] = frozenset(n for n in names if not n.startswith(("tmp_", ".tmp")))
    return found


def _push(store: Store, there: Place, head: str, name: str, wait: float) -> Exported:
    repo = store.layout.repo
    git_dir = _git_dir(there) if there.path is not None else None
    found = transport.listing(repo, there, wait=wait)
    old = found.refs.get(name)
    have = _present(store, sorted({*found.refs.values(), *found.peeled.values()}))
    total, new = _count(store, head, []), _count(store, head, have)
    if old == head:
        return Exported(0, 0, head, head, short_ref(name), old, False, True)
    if git_dir is not None:
        _check_checked_out(there, git_dir, name)
    if old is not None:
        forward = (
            not name.startswith(_TAGS)
            and old in have
            and git(repo, "merge-base", "--is-ancestor", old, head, ok=(0, 1), timeout=600).code == 0
        )
        if not forward:
            raise _moved(there, name, old, head)
    limits.check(store, there, head, have)
    with arrival_synced(git_dir, name):
        done = transport.call(
            repo, there, "push", "--porcelain", "--progress", "--no-verify", "--no-follow-tags",
            "--recurse-submodules=no", "--no-signed", *transport.receive_pack(there), "--", there.address,
            f"{head}:{name}", wait=wait, ok=None,
        )  # fmt: skip
        if done.code:
            refused = _refused(store, there, name, old, head, done.out + b"\n" + done.err)
            if isinstance(refused, CasMismatchError) and transport.listing(repo, there, name).refs.get(name) == head:
                # another push of the same was faster
                return Exported(0, 0, head, head, short_ref(name), head, False, True)
            raise refused
    written = _TOTAL.search(done.err)
    return Exported(new, int(written[1]) if written else 0, head, head, short_ref(name), old, True, new < total)


def _present(store: Store, ids: list[str]) -> list[str]:
    """Gives those ids that the store has."""
    if not ids:
        return []
    stdin = "".join(f"{oid}\n" for oid in ids).encode("ascii")
    out = store.git("cat-file", "--batch-check=%(objectname)", "--buffer", stdin=stdin, timeout=600).text()
    return [line for line in out.split("\n") if line and not line.endswith(" missing")]


def _count(store: Store, head: str, without: list[str]) -> int:
    stdin = "".join([f"{head}\n", *(f"^{oid}\n" for oid in without)]).encode("ascii")
    return int(store.git("rev-list", "--count", "--stdin", stdin=stdin, timeout=600).text())


def _moved(there: Place, name: str, old: str | None, head: str) -> CasMismatchError:
    return CasMismatchError(
        f"{short_ref(name)} of {transport.shown(there)} is at {old or 'another commit'}, which the exported ref lacks",
        hint="undo what was not exported (`rw op undo`), import, land again; or export to another --branch",
        repository=transport.shown(there),
        branch=short_ref(name),
        actual=old,
        exported=head,
    )


def _refused(store: Store, there: Place, name: str, old: str | None, head: str, said: bytes) -> RopewalkError:
    words = transport.words_of(said)
    verdict = next((line for line in words.split("\n") if line.startswith("!")), "")
    if ".lock': File exists" in words:
        return RemoteError(
            f"{short_ref(name)} of {transport.shown(there)} is locked by a git process: {words}",
            hint="try again; if no git works there, one was killed, and its lock file can be removed",
            repository=transport.shown(there),
            branch=short_ref(name),
            reason="locked",
        )
    if any(mark in verdict for mark in _LOST):
        return _moved(there, name, old, head)
    if any(mark in verdict for mark in _NOT_SET):
        now = transport.listing(store.layout.repo, there, name).refs.get(name)
        if now != old:
            return _moved(there, name, now, head)
    if "currently checked out" in words:
        return RemoteError(
            f"{short_ref(name)} is checked out in {transport.shown(there)}",
            hint="export to another --branch and merge it there",
            repository=transport.shown(there),
            branch=short_ref(name),
            reason="checked_out",
        )
    error = transport.failure(there, said)
    if isinstance(error, RemoteError) and verdict and error.details.get("reason") not in ("too_large", "forbidden"):
        return RemoteError(
            f"{transport.shown(there)} refused {short_ref(name)}: {words}",
            hint="see what its hooks or rules say",
            repository=transport.shown(there),
            branch=short_ref(name),
            reason="rejected",
        )
    return error
