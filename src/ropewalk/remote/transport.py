"""How our git talks to another repository: environment, bounds, and its words turned into typed errors.

A local repository may belong to a stranger. Its own configuration must not run code of his as us: our side runs
with pinned settings, and `git upload-pack` is started with settings on its command line, which git trusts and
puts before the repository's. Repositories behind a URL are reached with the user's configuration and credentials.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ropewalk.core.errors import InvalidError, NotFoundError, RemoteError, RopewalkError, ShallowError, UnsupportedError
from ropewalk.core.process import ChildTimeout, Done, clean_env, git_env, git_program, run

TIMEOUT = 3600.0
_SCP = re.compile(r"[^/\s]+:")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_MISSING = re.compile(r"(?:missing (?:blob|tree|commit|object)|unable to read|ould not read|ould not fetch|bad object) "
                      r"([0-9a-f]{40})")  # fmt: skip


NO_TRANSPORT = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
"""Keeps git from fetching what a partial clone lacks, by whatever command its configuration names."""


_PARTIAL = "it is a partial clone: clone its origin without --filter, and import that"


class Place(NamedTuple):
    """Is another repository: what git is told, and its path when it is on this host."""

    address: str
    path: str | None


class Listing(NamedTuple):
    """Is what another repository shows: ids by full ref name, what tag objects point to, the branch HEAD names."""

    refs: dict[str, str]
    peeled: dict[str, str]
    head: str | None


def is_url(text: str) -> bool:
    """Says whether a repository was named by a URL or as `host:path` rather than by a path."""
    return bool(_URL.match(text)) or ("::" in text) or bool(_SCP.match(text))


def place(text: str, *, exists: bool = True) -> Place:
    """Gives the repository that a text names; `E_NOT_FOUND` for a path where there is nothing."""
    if not text or text.startswith("-") or "\0" in text or "\n" in text:
        raise InvalidError(f"{text!r} is not a repository", hint="give a path or a URL", repository=text)
    if text.lower().startswith("file://"):
        text = text[len("file://") :]
    if os.path.lexists(text) or not is_url(text):
        path = os.path.abspath(text)
        if exists and not os.path.exists(path):
            raise NotFoundError(f"there is nothing at {text}", hint="give the path of a repository", repository=text)
        return Place(path, path)
    if "::" in text.split("/", 1)[0]:
        raise InvalidError(f"{text!r} names a remote helper", hint="use a path, ssh:// or https://", repository=text)
    return Place(text, None)


def environment(there: Place, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Gives the environment for our side of a transfer; nothing in it can prompt.

    A repository on this host needs none of the user's configuration. One behind a URL gets all of it (proxies,
    credentials, `insteadOf`), with what could run or change something on our side pinned over it.
    """
    if there.path is not None:
        return git_env({"GIT_NO_LAZY_FETCH": "1", **(extra or {})})
    pinned = {
        "core.hooksPath": "/dev/null",
        "core.fsmonitor": "false",
        "protocol.ext.allow": "never",
        "safe.directory": "*",
        "safe.bareRepository": "all",
        "gc.auto": "0",
        "maintenance.auto": "false",
        "core.fsync": "pack,pack-metadata",
        "core.fsyncMethod": "fsync",
        "push.followTags": "false",
        "push.gpgSign": "false",
        "push.recurseSubmodules": "no",
        "fetch.fsckObjects": "false",
        "transfer.fsckObjects": "false",
    }
    env = {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "SSH_ASKPASS_REQUIRE": "never",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_COUNT": str(len(pinned)),
    }
    for number, (key, value) in enumerate(pinned.items()):
        env[f"GIT_CONFIG_KEY_{number}"], env[f"GIT_CONFIG_VALUE_{number}"] = key, value
    return clean_env({**env, **(extra or {})})


def upload_pack(there: Place) -> list[str]:
    """Gives the option that starts `git upload-pack` on this host for whoever owns the repository.

    git clears `GIT_CONFIG_COUNT` and the like for it, so what must hold there is on its own command line.
    Grafts and replacements are left aside: the history that comes is the one the ids stand for.
    """
    if there.path is None:
        return []
    program = git_program()
    words = (
        "env GIT_NO_REPLACE_OBJECTS=1 GIT_GRAFT_FILE=/dev/null GIT_NO_LAZY_FETCH=1 GIT_ALLOW_PROTOCOL=none"
        f" '{program}' -c 'safe.directory=*' -c safe.bareRepository=all -c core.hooksPath=/dev/null"
        " -c core.fsmonitor=false -c core.alternateRefsCommand=true upload-pack"
    )
    return [f"--upload-pack={words}"]


def call(
    git_dir: str | None,
    there: Place,
    *args: str,
    extra_env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
    ok: tuple[int, ...] | None = (0,),
) -> Done:
    """Runs git on `git_dir` (None: on none) against another repository; a failure is typed, with git's own words.

    With `ok=None` the caller judges the exit code. A hang ends as `E_REMOTE` after `timeout` seconds.
    """
    try:
        where = [] if git_dir is None else [f"--git-dir={git_dir}"]
        done = run([git_program(), *where, *args], env=environment(there, extra_env), timeout=timeout)
    except ChildTimeout as error:
        raise RemoteError(
            f"{there.address} did not answer within {error.seconds:g} s",
            hint="try again when it is in reach",
            repository=there.address,
        ) from None
    if ok is not None and done.code not in ok:
        raise failure(there, done.err)
    return done


def words_of(err: bytes) -> str:
    """Gives what git said, without progress and hints."""
    lines = [line.rsplit("\r", 1)[-1].strip() for line in err.decode("utf-8", "replace").splitlines()]
    kept = [line for line in lines if line and not line.startswith(("hint:", "remote: hint:"))]
    return "\n".join(kept)[-2000:] or "no message"


def failure(there: Place, err: bytes) -> RopewalkError:
    """Gives the typed error that git's words stand for."""
    words = words_of(err)
    low = words.lower()
    missing = _MISSING.search(words)
    if "shallow" in low or missing:
        oid = missing[1] if missing else None
        return ShallowError(
            f"the history of {there.address} is cut off: {'the object ' + oid + ' is missing' if oid else words}",
            hint=_PARTIAL if "promisor" in low else None,
            repository=there.address,
            object=oid,
        )
    if "algorithm" in low or "object format" in low:
        return sha256(there)
    if "dubious ownership" in low:
        return RemoteError(
            f"{there.address} belongs to another user, and its hooks would run as you",
            hint=f"if you trust it: git config --global --add safe.directory {there.address}",
            repository=there.address,
        )
    if there.path is not None and ("not appear to be a git repository" in low or "not a git repository" in low):
        return NotFoundError(
            f"{there.address} is not a git repository",
            hint="give the folder of a repository, its .git, or a bundle",
            repository=there.address,
        )
    hint = "check the address and the connection"
    if "authentication" in low or "permission denied" in low or "terminal prompts disabled" in low:
        hint = "check your credentials with `git ls-remote`; nothing can prompt for them here"
    return RemoteError(f"{there.address}: {words}", hint=hint, repository=there.address)


def sha256(there: Place) -> UnsupportedError:
    """Gives the error for a repository with SHA-256 ids."""
    return UnsupportedError(
        f"{there.address} has SHA-256 ids, and a store has SHA-1 ids",
        hint="convert it with `git fast-export` and `git fast-import` into a SHA-1 repository",
        repository=there.address,
    )


def listing(git_dir: str | None, there: Place, *patterns: str, timeout: float = 120.0) -> Listing:
    """Gives the refs of another repository that match full names or patterns (none: all of them)."""
    words = ["--symref", *upload_pack(there), "--", there.address, *patterns]
    out = call(git_dir, there, "ls-remote", *words, timeout=timeout).out
    refs: dict[str, str] = {}
    peeled: dict[str, str] = {}
    head: str | None = None
    for line in out.decode("utf-8", "surrogateescape").splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: "):
            head = value[5:] if name == "HEAD" else head
            continue
        if len(value) == 64:
            raise sha256(there)
        if name.endswith("^{}"):
            peeled[name[:-3]] = value
        else:
            refs[name] = value
    return Listing(refs, peeled, head)


def fetch(
    git_dir: str,
    there: Place,
    heads: Sequence[str],
    *,
    unpack_limit: int,
    extra_env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> bool:
    """Fetches commits with all they stand on, and writes objects alone: no ref, no FETCH_HEAD.

    Says whether git has already seen that nothing is missing. From a repository on this host `fetch-pack` does
    that while it indexes the pack, which saves the second walk over all objects that `fetch` makes.
    """
    config = ["-c", f"fetch.unpackLimit={unpack_limit}", "-c", "protocol.version=2"]
    if there.path is not None and os.path.isdir(there.path):
        done = call(
            git_dir, there, *config, "fetch-pack", "--quiet", "--no-progress", "--check-self-contained-and-connected",
            *upload_pack(there), there.address, *heads, extra_env=extra_env, timeout=timeout,
        )  # fmt: skip
        return b"connectivity-ok" in done.out
    call(
        git_dir, there, *config, "-c", "fetch.writeCommitGraph=false", "fetch", "--quiet", "--no-write-fetch-head",
        "--no-tags", "--no-prune", "--no-recurse-submodules", "--refmap=", *upload_pack(there), "--", there.address,
        *heads, extra_env=extra_env, timeout=timeout,
    )  # fmt: skip
    return True
