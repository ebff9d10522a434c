"""The board on a git server: its refs are seen by one fetch into a mirror, and every step is one atomic push.

A stock git server checks a lease only on a ref that the push changes (F1), so each ref of a step has a lease of its
own and a new value. Who lost a race is told so and is not tried again here: whoever asked knows what to do then.
"""

from __future__ import annotations

import os
import re
from _thread import allocate_lock
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ropewalk.board import names, wire
from ropewalk.board.base import Step
from ropewalk.board.mirror import Mirror
from ropewalk.core import clock
from ropewalk.core.errors import CasMismatchError, InvalidError, RemoteError, RopewalkError, UnsupportedError
from ropewalk.core.ids import short_ref
from ropewalk.core.process import Done
from ropewalk.remote import transport
from ropewalk.store.oplog import Move

BEAT_SECONDS = 300.0
MOST_MOVES = 2000
_KEPT = 20_000
_TRIES = 3
_LINE = re.compile(r"([ +\-*!=])\t([^\t]*):([^\t:]+)\t(.*)\Z")
_NO_VERDICT = ("broken_off", "silent", "failed", "unreachable")
"""Are the failures after which nobody knows whether the server did it."""

_LOST = ("stale info", "fetch first", "non-fast-forward", "incorrect old value provided", "reference already exists",
         "reference does not exist")  # fmt: skip
_UNSURE = ("atomic transaction failed", "failed to update ref", "failed to lock", "failed to delete", "unpacker error")
"""Are a server's words for a ref that moved after it was shown, or that could not be written for another reason."""

_AGAIN = ("locked", "missing")
"""Are the failures in which nothing moved and nobody refused: another push had a ref locked for a moment, or the
mirror lacked an object because it had been made anew, which the look after the push has brought back."""

_CLASH = " clashes with the ref "
"""Is how a store says that one name would be a folder of another."""

_AFTER = ("atomic push failed", "atomic push failure", "atomic transaction aborted")
"""Are git's words for a ref that was left alone because of another."""


class _Said(NamedTuple):
    """Is what a push says of one ref: git's flag, the reason of a refusal, and whether the server itself refused."""

    flag: str
    why: str
    by_server: bool


class RemoteBoard:
    """Is the board at an address that git knows: a path, or a URL. Nothing is contacted before the first look.

    `folder` is what this host keeps of the board; all of its processes name the same. Threads may share it.
    """

    def __init__(self, address: str, folder: str, *, wait: float = transport.WAIT) -> None:
        self.there = transport.place(address)
        self.name = transport.shown(self.there)
        self.folder = folder
        # drawn once, so that the hosts of a board do not beat together
        self.beat_seconds = BEAT_SECONDS * (1 - os.urandom(1)[0] / 2560)
        self.most_moves = MOST_MOVES
        self.mirror = Mirror(self.there, folder, wait)
        self._wait = wait
        self._lent: list[str] = []
        self._refs: dict[str, str] | None = None
        self._sorted: list[str] | None = None
        self._contents: dict[str, bytes] = {}
        self._lines: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._noting = allocate_lock()

    # looks

    def refresh(self) -> None:
        """Looks at the server again."""
        refs = self.mirror.fetch()
        with self._noting:
            self._refs, self._sorted = refs, None

    @property
    def _seen(self) -> dict[str, str]:
        if self._refs is None:
            self.refresh()
        assert self._refs is not None
        return self._refs

    def ref(self, name: str) -> str | None:
        """Gives what a ref points to; a branch that nobody asked for before is fetched first."""
        if name.startswith(names.HEADS) and self.mirror.want(name[len(names.HEADS) :]):
            self.refresh()
        return self._seen.get(name)

    def below(self, prefix: str) -> list[tuple[str, str]]:
        """Gives (full name, id) of the refs that begin with a prefix; of branches, those that were asked for."""
        from bisect import bisect_left

        refs = self._seen
        with self._noting:
            refs = self._refs if self._refs is not None else refs
            if self._sorted is None:
                self._sorted = sorted(refs)
            listed = self._sorted
        found = []
        for at in range(bisect_left(listed, prefix), len(listed)):
            if not listed[at].startswith(prefix):
                break
            found.append((listed[at], refs[listed[at]]))
        return found

    def content(self, oid: str) -> bytes | None:
        """Gives the content of a commit."""
        if oid not in self._contents:
            self.prefetch([oid])
        return self._contents.get(oid)

    def raw(self, oid: str) -> tuple[str, bytes] | None:
        """Gives (kind, content) of any object that a look fetched."""
        return self.mirror.raw(oid)

    def log(self) -> str | None:
        """Gives what `refs/swarm/log` points to, by a fetch of its own."""
        return self.mirror.fetch_log()

    def prefetch(self, ids: Iterable[str]) -> None:
        """Reads commits at once."""
        if len(self._contents) > _KEPT:
            self._contents = {}
        missing = [oid for oid in dict.fromkeys(ids) if oid not in self._contents]
        if not missing:
            return
        found = self.mirror.read(missing)
        known = set(self._seen.values())
        if any(content is None and oid in known for oid, content in zip(missing, found, strict=True)):
            # the mirror was taken away, or made anew, since it was looked at
            self.refresh()
            found = self.mirror.read(missing)
        self._contents |= {oid: content for oid, content in zip(missing, found, strict=True) if content is not None}

    def on_target(self, commits: Collection[str], head: str) -> set[str]:
        """Gives those commits that are a head or its ancestors; what is not known yet costs one git process."""
        known, found = self._lines.get(head, (frozenset(), frozenset()))
        new = set(commits) - known
        if new:
            known, found = known | new, found | self.mirror.on_line(new, head)
            self._lines = {head: (known, found), **{k: v for k, v in list(self._lines.items())[:3] if k != head}}
        return set(found & set(commits))

    def lend(self, objects: str) -> None:
        """Lets pushes send what is in another repository too; `objects` is its folder of objects."""
        if objects not in self._lent:
            self._lent.append(objects)

    # steps

    def push(self, step: Step) -> None:
        """Does a step by one atomic push.

        Raises `E_CAS_MISMATCH` with the first `ref` of the step that was not where the step has it, `E_REMOTE`
        (`reason: rejected`) when a hook or a rule of the server refused, `E_UNSUPPORTED` when the server knows no
        atomic push. When the connection died, the board is looked at again: an object that this step made and that
        a ref shows means that all of it was done; when all is as before, the error is raised, and the same step may
        be tried again. `unclear` in its details says that the board was out of reach for that look.
        """
        _check(step.moves)
        if not step.moves:
            return
        for name, oid in step.expect.items():
            if oid is None and (there := self._seen.get(name)) is not None:
                raise self._moved(Move(name, None, None), there)
        if step.guard is not None:
            step.guard()
        for left in reversed(range(_TRIES)):
            try:
                done = self._send(step, "--atomic")
            except RemoteError as silent:
                error = self._read_back(step, silent, answered=False)
            else:
                said = _read(done.out)
                if done.code == 0 and all(move.name in said for move in step.moves):
                    return self._note(step)
                error = self._judge(step, done, said)
            if error is None:
                return self._note(step)
            if error.details.get("reason") not in _AGAIN or not left:
                raise error

    def _send(self, step: Step, *options: str) -> Done:
        extra = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(self._lent)} if self._lent else None
        moves = [*step.moves, *(Move(name, oid, oid) for name, oid in step.expect.items() if oid is not None)]
        leases = [f"--force-with-lease={move.name}:{move.old or ''}" for move in moves]
        specs = [f"{move.new or ''}:{move.name}" for move in moves]
        while True:
            self.mirror.write(step.objects)
            done = transport.call(
                self.mirror.path, self.there, "push", "--porcelain", "--no-verify", "--no-follow-tags", "--no-signed",
                "--recurse-submodules=no", *options, *leases, *transport.receive_pack(self.there), "--",
                self.there.address, *specs, extra_env=extra, wait=self._wait, ok=None,
            )  # fmt: skip
            if done.code == 0 or os.path.exists(os.path.join(self.mirror.path, "HEAD")):
                return done
            # the mirror was deleted meanwhile, and with it what was to be sent

    def _judge(self, step: Step, done: Done, said: Mapping[str, _Said]) -> RopewalkError | None:
        """Gives the error of a push that did not end well, or None when it turns out to be done."""
        failure = transport.failure(self.there, done.err)
        if "does not support --atomic" in failure.message:
            return UnsupportedError(
                f"{self.name} knows no atomic push, without which nothing on it could be fenced",
                hint="see receive.advertiseAtomic there, or put the board on another server; `rw board probe` says"
                " what a server can do", repository=self.name,
            )  # fmt: skip
        refused = {name: one for name, one in said.items() if one.flag == "!" and one.why not in _AFTER}
        for move in (*step.moves, *(Move(name, oid, oid) for name, oid in step.expect.items())):
            if (one := refused.get(move.name)) is not None and one.why in _LOST and not one.by_server:
                return self._moved(move, None)
        for name, one in refused.items():
            if one.by_server and _CLASH in one.why:
                return self._clash(one.why)
            if one.by_server and one.why not in (*_LOST, *_UNSURE):
                return self._rejected(name, one.why, transport.words_of(done.err))
        if not refused and isinstance(failure, RemoteError) and failure.details.get("reason") not in _NO_VERDICT:
            return failure
        if not refused and not isinstance(failure, RemoteError):
            return failure
        return self._read_back(step, failure, transport.words_of(done.err), answered=bool(refused))

    def _read_back(
        self, step: Step, failure: RopewalkError, words: str = "", *, answered: bool
    ) -> RopewalkError | None:
        """Looks at what a push left, whose end was not heard or does not say what happened (F12)."""
        try:
            self.refresh()
        except RopewalkError:
            failure.details["unclear"] = True
            return failure
        refs = self._seen
        made = {one.id for one in step.objects}
        done = [move for move in step.moves if refs.get(move.name) == move.new]
        # what this step made can be there only if the step was done, and it is done whole or not at all
        if len(done) == len(step.moves) or any(move.new in made for move in done):
            return None
        for move in step.moves:
            if refs.get(move.name) != move.old:
                return self._moved(move, refs.get(move.name))
        if "bad object" in words or "unable to parse" in words:
            return RemoteError(f"what is to be sent to {self.name} is not there: {words}",
                               hint="look at the board again, and try again", repository=self.name,
                               reason="missing")  # fmt: skip
        if not answered or "unpack failed" in words:
            return failure
        if "; cannot create '" in words:
            return self._clash(words)
        return RemoteError(
            f"{self.name} could not move a ref: {words}",
            hint="try again; if no git works there, one was killed, and its lock file can be removed",
            repository=self.name, reason="locked",
        )  # fmt: skip

    def _moved(self, move: Move, actual: str | None) -> CasMismatchError:
        return CasMismatchError(
            f"{short_ref(move.name)} of {self.name} is not at {move.old or 'nothing'}", ref=short_ref(move.name),
            expected=move.old, actual=actual, repository=self.name,
        )  # fmt: skip

    def _clash(self, words: str) -> InvalidError:
        return InvalidError(
            f"a ref clashes with one that is on {self.name}: {words}", hint="one name can't be a folder of another",
            repository=self.name,
        )  # fmt: skip

    def _rejected(self, name: str, why: str, words: str) -> RemoteError:
        return RemoteError(
            f"{self.name} refused {short_ref(name)} ({why}): {words}",
            hint="see what its hooks or rules say; `rw board probe` says what the server takes", repository=self.name,
            ref=short_ref(name), reason="rejected",
        )  # fmt: skip

    def _note(self, step: Step) -> None:
        """Shows what a push did, without another look."""
        self._contents |= {one.id: one.content for one in step.objects if one.kind == "commit"}
        with self._noting:
            if self._refs is None:
                return
            refs = dict(self._refs)
            for move in step.moves:
                if move.new is None:
                    refs.pop(move.name, None)
                else:
                    refs[move.name] = move.new
            self._refs, self._sorted = refs, None

    def beat(self, claims: Mapping[str, str], actor: str) -> dict[str, str | None]:
        """Gives each claim a new object with its count of beats, all in one push that is not atomic.

        A claim whose id comes back as it was still stands, but the server did not take the beat; `E_REMOTE` when it
        took none.
        """
        found: dict[str, str | None] = dict.fromkeys(claims)
        self.prefetch(claims.values())
        moves, made = {}, {}
        for task, old in claims.items():
            content = self.content(old)
            claim = None if content is None else wire.read_claim(wire.message(content))
            if content is None or claim is None or claim.closed:
                continue
            text = wire.changed_claim(wire.message(content), beat=str(claim.beat + 1))
            made[task] = wire.make(text, clock.now())
            moves[task] = Move(names.claim(task), old, made[task].id)
        if not moves:
            return found
        step = Step("beat", actor, list(moves.values()), list(made.values()))
        failure: RopewalkError | None = None
        said: dict[str, _Said] = {}
        try:
            done = self._send(step)
        except RemoteError as error:
            failure = error
        else:
            said = _read(done.out)
            if done.code:
                failure = self._beat_failure(done, said)
        kept: list[Move] = []
        unsure = []
        for task, move in moves.items():
            one = said.get(move.name)
            if one is not None and one.flag != "!":
                found[task] = move.new
                kept.append(move)
            elif one is None or one.by_server:
                unsure.append(task)
        self._note(Step("beat", actor, kept, list(made.values())))
        if unsure and failure is not None:
            self._reread(moves, unsure, found, failure)
        return found

    def _beat_failure(self, done: Done, said: Mapping[str, _Said]) -> RopewalkError:
        for name, one in said.items():
            if one.by_server and one.why not in (*_LOST, *_UNSURE):
                return self._rejected(name, one.why, transport.words_of(done.err))
        return transport.failure(self.there, done.err)

    def _reread(
        self, moves: Mapping[str, Move], unsure: Sequence[str], found: dict[str, str | None], failure: RopewalkError
    ) -> None:
        """Fills in what became of the beats whose end was not heard, or that the server refused."""
        try:
            self.refresh()
        except RopewalkError:
            if not any(found.values()):
                failure.details["unclear"] = True
                raise failure from None
            found |= {task: moves[task].old for task in unsure}
            return
        for task in unsure:
            now = self._seen.get(moves[task].name)
            found[task] = now if now in (moves[task].old, moves[task].new) else None
        if any(found.values()) and not any(found[task] == move.new for task, move in moves.items()):
            raise failure

    def beats(self, claim: str) -> int:
        """Gives 0: a beat is an object here."""
        return 0

    def close(self) -> None:
        """Lets go of what is open."""
        self.mirror.close()


def _check(moves: Sequence[Move]) -> None:
    """Refuses a step that a server would not fence, or would not do whole."""
    for move in moves:
        if move.old == move.new:
            raise InvalidError(f"{short_ref(move.name)} would not move, so nothing would hold it", ref=move.name)
    if len({move.name for move in moves}) != len(moves):
        raise InvalidError("a ref is moved twice in one step")


def _read(out: bytes) -> dict[str, _Said]:
    """Gives what `git push --porcelain` says of each ref."""
    found = {}
    for line in out.decode("utf-8", "replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        kind, _, why = match[4].partition(" (")
        if kind != "[remote failure]":  # the server was not heard, so nothing is known of this ref
            found[match[3]] = _Said(match[1], why.removesuffix(")"), kind == "[remote rejected]")
    return found
