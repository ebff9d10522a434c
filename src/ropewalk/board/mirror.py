"""The mirror: a bare scratch repository, one for each board and host, that holds what the last look at a server saw.

It is a cache. Nothing in it is synced, anybody may delete it at any time, and whoever finds it gone or damaged
makes it anew by one fetch. All processes of a host share it.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, get_ident
from collections.abc import Collection, Iterable, Sequence

import msgspec

from ropewalk.board import names
from ropewalk.board.wire import Object
from ropewalk.core import clock, durable
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import (
    InvalidError,
    NotFoundError,
    RemoteError,
    RopewalkError,
    ShallowError,
    StoreCorruptError,
    error_class,
    os_error,
)
from ropewalk.core.ids import check_ref
from ropewalk.core.process import Done, ObjectChild, git, git_env, git_error, git_program, run
from ropewalk.remote import transport
from ropewalk.remote.transport import Place
from ropewalk.store.lock import WriterLock
from ropewalk.store.loose import Damaged, LooseStore, object_id

_LOG = "refs/ropewalk/log"
"""Is where the mirror has the compacted history, apart from what a look prunes."""

_LOCK_SECONDS = 300.0
_DAY = 86_400
_LOOSE = 24
_PACK_REFS = 1000
_LOCAL = ("reference broken", "unable to resolve reference", "cannot lock ref", ".lock'", "bad object", "inflate: ")
"""Is how git speaks of a scratch repository that a killed process or a full disk left behind."""


class _Fetched(msgspec.Struct):
    """Is what a mirror's last fetch was: when it began, on which boot, which branches it asked for (each with the
    time at which somebody last wanted it), and how it failed, if it did."""

    boot: str = ""
    began: float = 0.0
    branches: dict[str, int] = {}
    failed: tuple[str, str, str, dict[str, object]] | None = None


class Mirror:
    """Is the mirror of one board: `folder` is the board's own on this host."""

    def __init__(self, there: Place, folder: str, wait: float = transport.WAIT) -> None:
        self.there = there
        self.path = os.path.join(folder, "mirror.git")
        self.wait = wait
        self.branches = {"main"}
        self._state = os.path.join(folder, "fetched.json")
        self._lock = WriterLock(os.path.join(folder, "fetch.lock"), "the lock of the board's mirror")
        self._loose = LooseStore(os.path.join(self.path, "objects"))
        self._child: ObjectChild | None = None
        self._asking = allocate_lock()
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise os_error(error, "making the board's folder") from None

    # looks at the server

    def fetch(self) -> dict[str, str]:
        """Gives the server's refs as a fetch saw them that began after this call; who waited for one takes it."""
        asked = clock.monotonic()
        self._lock.acquire(_LOCK_SECONDS, patient=True)
        try:
            known = self._known()
            # one that began after the question answers it, whichever process made it, and so does its failure
            mine = known.boot == clock.boot_id() and known.began >= asked and self.branches <= known.branches.keys()
            if not mine or not self._there:
                known = self._fetch(known)
            if known.failed is not None:
                code, message, hint, details = known.failed
                raise error_class(code)(message, hint=hint, **details)
            return self.refs()
        finally:
            self._lock.release()

    def _fetch(self, known: _Fetched) -> _Fetched:
        now = clock.now()
        wanted = {name: at for name, at in known.branches.items() if now - at < _DAY and at <= now}
        wanted |= dict.fromkeys(self.branches, now)
        made = _Fetched(clock.boot_id(), clock.monotonic(), wanted)
        # a pattern that finds nothing is no error, a name that is not there would be one
        heads = [f"+{names.HEADS}{name}*:{names.HEADS}{name}*" for name in sorted(wanted)]
        try:
            self._transfer(f"+{names.ROOT}*:{names.ROOT}*", f"^{names.LOG}", *heads)
            self._tidy()
        except (RemoteError, NotFoundError) as error:
            made.failed = (error.code, error.message, error.hint, error.details)
        _write(self._state, msgspec.json.encode(made))
        return made

    def _transfer(self, *words: str) -> None:
        """Fetches refs into the mirror.

        One that is damaged, or where a killed process left locks, is replaced by a new one; but only when a fetch
        into the new one succeeds, because the server may be what is damaged.
        """
        self._make()
        try:
            return self._call(self.path, words)
        except RopewalkError as error:
            if not self._own_fault(error):
                raise
        import shutil

        fresh = f"{self.path}.fresh"
        try:
            shutil.rmtree(fresh, ignore_errors=True)
            _init(fresh)
            self._call(fresh, words)
            with self._asking:
                self._drop_child()
            shutil.rmtree(self.path, ignore_errors=True)
            os.rename(fresh, self.path)
        except OSError as error:
            raise os_error(error, "making the board's mirror anew") from None
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _call(self, path: str, words: Sequence[str]) -> None:
        transport.call(
            path, self.there, "-c", "core.fsync=none", "-c", "protocol.version=2", "-c", "fetch.unpackLimit=200",
            "-c", "fetch.writeCommitGraph=false", "-c", "core.hooksPath=/dev/null", "fetch", "--quiet", "--no-tags",
            "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules", "--prune",
            *transport.upload_pack(self.there), "--", self.there.address, *words, wait=self.wait, tied=True,
        )  # fmt: skip

    def fetch_log(self) -> str | None:
        """Gives what the server's `refs/swarm/log` points to, and fetches all that it holds."""
        self._lock.acquire(_LOCK_SECONDS, patient=True)
        try:
            self._transfer(f"+{names.LOG}*:{_LOG}*")
            # the child that reads objects knows names too
            found = self.raw(_LOG)
            if found is None and os.path.exists(os.path.join(self.path, _LOG)):
                return self._git("for-each-ref", "--format=%(objectname)", _LOG).text() or None
            return object_id(*found) if found is not None else None
        finally:
            self._lock.release()

    def _own_fault(self, error: RopewalkError) -> bool:
        """Says whether a fetch failed for what is in the mirror and not for the server."""
        if isinstance(error, (StoreCorruptError, ShallowError)) or not self._there:
            return True
        words = error.message
        return isinstance(error, RemoteError) and (self.path in words or any(sign in words for sign in _LOCAL))

    def _known(self) -> _Fetched:
        try:
            with open(self._state, "rb") as file:
                return msgspec.json.decode(file.read(), type=_Fetched)
        except FileNotFoundError:
            return _Fetched()
        except UNREADABLE:
            return _Fetched()
        except OSError as error:
            raise os_error(error, "read of the mirror's state") from None

    def want(self, branch: str) -> bool:
        """Adds a branch to what is fetched; says whether it is new. Names that git does not take are passed over."""
        try:
            full = check_ref(names.HEADS + branch)
        except InvalidError:
            return False
        if full != names.HEADS + branch or branch in self.branches:
            return False
        self.branches.add(branch)
        return True

    # the repository itself

    @property
    def _there(self) -> bool:
        return os.path.exists(os.path.join(self.path, "HEAD"))

    def _make(self) -> None:
        """Makes the repository unless it is there, whole, by a rename."""
        if self._there:
            return
        import shutil

        part = f"{self.path}.{os.getpid()}.{get_ident()}"
        _init(part)
        try:
            shutil.rmtree(self.path, ignore_errors=True)
            os.rename(part, self.path)
        except OSError as error:
            if not self._there:
                raise os_error(error, "making the board's mirror") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _tidy(self) -> None:
        """Packs what has gathered: refs after many came at once, objects after many beats."""
        if _count(os.path.join(self.path, "refs", "swarm", "specs")) > _PACK_REFS:
            self._git("pack-refs", "--all")
        if _count(os.path.join(self.path, "objects", "17")) > _LOOSE:
            # an hour, because another process may have written what it is about to push
            self._git("-c", "core.fsync=none", "repack", "-A", "-d", "-q", "--unpack-unreachable=1.hour.ago")
            self._git("prune", "--expire=1.hour.ago")

    def _git(self, *args: str, stdin: bytes | None = None, ok: Sequence[int] = (0,)) -> Done:
        return git(self.path, *args, stdin=stdin, ok=ok)

    def refs(self) -> dict[str, str]:
        """Gives the refs that the last fetch saw."""
        listed = self._git("for-each-ref", "--format=%(objectname) %(refname)", names.ROOT, names.HEADS)
        found = {}
        for line in listed.text().splitlines():
            oid, _, name = line.partition(" ")
            found[name] = oid
        return found

    # objects

    def write(self, objects: Iterable[Object]) -> None:
        """Puts objects into the mirror, so that a push can send them."""
        self._make()
        for made in objects:
            if self._loose.write(made.kind, made.content) != made.id:
                raise StoreCorruptError(f"the object {made.id} is not what it says", object=made.id)

    def read(self, ids: Sequence[str]) -> list[bytes | None]:
        """Gives the contents of commits, None for what is not there or is no commit."""
        if len(ids) == 1:
            try:
                if (found := self._loose.read(ids[0])) is not None:
                    return [found[1] if found[0] == "commit" else None]
            except Damaged:
                pass
        return [one[1] if one is not None and one[0] == "commit" else None for one in self._ask(ids)]

    def raw(self, oid: str) -> tuple[str, bytes] | None:
        """Gives (kind, content) of any object, None for what is not there."""
        return self._ask([oid])[0]

    def has(self, ids: Collection[str]) -> set[str]:
        """Gives those objects that are in the mirror."""
        with self._asking:
            child = self._open_child()
            try:
                return set() if child is None else {oid for oid in ids if child.header(oid) is not None}
            except BrokenPipeError:
                self._drop_child()
                return set()

    def _ask(self, ids: Sequence[str]) -> list[tuple[str, bytes] | None]:
        with self._asking:
            for _ in range(2):
                child = self._open_child()
                if child is None:
                    break
                try:
                    return child.ask(ids)
                except BrokenPipeError:
                    self._drop_child()
        return [None] * len(ids)

    def on_line(self, commits: Collection[str], head: str) -> set[str]:
        """Gives those commits that are a head or its ancestors, by one rev-list; what is not there is on no line."""
        there = self.has({head, *commits})
        asked = [oid for oid in dict.fromkeys(commits) if oid in there]
        if head not in there or not asked:
            return set()
        words = "".join([f"^{head}\n", *(f"{oid}\n" for oid in asked)]).encode("ascii")
        beside = set(self._git("rev-list", "--stdin", stdin=words).text().split())
        return {oid for oid in asked if oid not in beside}

    def _open_child(self) -> ObjectChild | None:
        if self._child is None and self._there:
            self._child = ObjectChild(self.path)
        return self._child

    def _drop_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def close(self) -> None:
        """Lets go of the child that reads objects."""
        with self._asking:
            self._drop_child()


def _init(path: str) -> None:
    argv = [git_program(), "init", "--quiet", "--bare", "--template=", "--initial-branch=none", path]
    done = run(argv, env=git_env(), timeout=60)
    if done.code:
        raise git_error("init", done)
    LooseStore(os.path.join(path, "objects")).write("tree", b"")


def _count(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


def _write(path: str, data: bytes) -> None:
    try:
        durable.put(path, data)
    except OSError as error:
        raise os_error(error, "noting the fetch of the board") from None
