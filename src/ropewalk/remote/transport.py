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
WAIT = 60.0
"""Is how long another repository may be silent, in seconds, where nobody said; 0 leaves `TIMEOUT` alone."""

_LIST_SECONDS = 120.0
_SCP = re.compile(r"[^/\s]+:")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SECRET = re.compile(r"(?<=://)([^/@\s]*)(?=@)")
_FORMAT = re.compile("mismatched algorithms|object format|hash algorithm")
_MISSING = re.compile(r"(?:missing (?:blob|tree|commit|object)|unable to read|ould not read|ould not fetch|bad object) "
                      r"([0-9a-f]{40})")  # fmt: skip


_USERS = (
    "GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_PROXY_COMMAND", "GIT_ALLOW_PROTOCOL",
    "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM",
    "GIT_SSL_NO_VERIFY", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_CERT", "GIT_SSL_KEY", "GIT_SSL_VERSION",
    "GIT_SSL_CIPHER_LIST", "GIT_PROXY_SSL_CAINFO", "GIT_PROXY_SSL_CERT", "GIT_PROXY_SSL_KEY", "GIT_HTTP_USER_AGENT",
    "GIT_HTTP_PROXY_AUTHMETHOD", "GIT_HTTP_LOW_SPEED_LIMIT", "GIT_HTTP_LOW_SPEED_TIME",
)  # fmt: skip
"""Are the user's variables that say how a URL is reached."""


class _Kind(NamedTuple):
    """Is a kind of failure: how git and ssh speak of it, and what to do."""

    reason: str
    words: str
    hint: str


_KINDS = (
    _Kind("host_key", "host key verification failed|remote host identification has changed|certificate",
          "connect once by hand and accept the host's key or certificate; nothing can ask for it here"),
    _Kind("authentication", r"authentication failed|permission denied \(|terminal prompts disabled|error: 401|"
          "could not read (username|password)|too many authentication failures",
          "check your credentials with `git ls-remote`; nothing can ask for them here"),
    _Kind("too_large", "exceeds maximum allowed|exceeds github's|error: 413|file size limit",
          "keep large files out of the history, or in Git LFS"),
    _Kind("not_a_repository", r"not appear to be a git repository|not a git repository|error: 404|not found",
          "check the address, and that your account may read it"),
    _Kind("forbidden", r"error: 403|permission denied|permission to \S+ denied|access denied|write access|read-only|"
          "insufficient permission|unable to create temporary object directory|service not enabled",
          "ask for the right to it, or use another account"),
    _Kind("unreachable", "could ?n[o']t resolve|could ?n[o']t connect|failed to connect|connection refused|"
          "no route to host|network is unreachable|timed out",
          "check the address and the connection"),
    _Kind("damaged", "inflate: |corrupt|sha1 mismatch|bad object|unable to read tree",
          "run `git fsck` there, and mend it from another copy"),
    _Kind("broken_off", "early eof|hung up|disconnect|connection reset|connection closed|broken pipe|rpc failed|"
          "pack is truncated|error: 5[0-9][0-9]|empty reply",
          "run the command again; what was answered before is kept"),
)  # fmt: skip
_OTHER = _Kind("failed", "", "check the address and the connection")


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
        try:
            os.stat(path)
            closed = os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK)
        except PermissionError:
            closed = True
        except OSError:
            if exists:
                raise NotFoundError(f"there is nothing at {text}", hint="give the path of a repository",
                                    repository=text) from None  # fmt: skip
            closed = False
        if closed:
            raise RemoteError(f"{text} may not be read by you", hint="ask its owner, or use another account",
                              repository=text, reason="forbidden")  # fmt: skip
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
        "GCM_INTERACTIVE": "never",
        "SSH_ASKPASS_REQUIRE": "never",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C.UTF-8",
    }
    return with_config(clean_env({**env, **(extra or {})}, keep=_USERS), pinned)


def with_config(env: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Gives an environment in which git has settings over those of its files."""
    found = {**env, "GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        found[f"GIT_CONFIG_KEY_{number}"], found[f"GIT_CONFIG_VALUE_{number}"] = key, value
    return found


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


def receive_pack(there: Place) -> list[str]:
    """Gives the option that starts `git receive-pack` on this host without the variables that pin our git.

    The destination's hooks and settings are its owner's; they run as if the user had pushed.
    """
    if there.path is None:
        return []
    names = sorted(k for k in environment(there) if k.startswith("GIT_"))
    return [f"--receive-pack=env {' '.join(f'-u {n}' for n in names)} '{git_program()}' receive-pack"]


def call(
    git_dir: str | None,
    there: Place,
    *args: str,
    extra_env: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
    wait: float = WAIT,
    ok: tuple[int, ...] | None = (0,),
    tied: bool = False,
) -> Done:
    """Runs git on `git_dir` (None: on none) against another repository; a failure is typed, with git's own words.

    With `ok=None` the caller judges the exit code; a `tied` git dies with this process. `E_REMOTE` ends a call after
    `timeout` seconds, and one in which nothing has moved for `wait` seconds.
    """
    try:
        where = [] if git_dir is None else [f"--git-dir={git_dir}"]
        done = run(
            [git_program(), *where, *args], env=environment(there, extra_env), timeout=timeout, tied=tied,
            silence=wait or None,
        )  # fmt: skip
    except ChildTimeout as error:
        raise RemoteError(
            f"{shown(there)} did not answer within {error.seconds:g} s",
            hint="try again when it is in reach; ROPEWALK_REMOTE_WAIT says how long it may be silent",
            repository=shown(there),
            reason="silent",
        ) from None
    if ok is not None and done.code not in ok:
        raise failure(there, done.err)
    return done


def shown(there: Place) -> str:
    """Gives the address without a password in it."""
    return public(there.address)


def public(address: str) -> str:
    """Gives a URL without a password in it."""
    return _SECRET.sub(lambda found: found[1].split(":")[0], address)


def words_of(err: bytes) -> str:
    """Gives what git said, without progress, hints and passwords."""
    # a line of progress ends with \r and is written over by the next
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1].strip() for line in err.decode("utf-8", "replace").split("\n")]
    kept = [line for line in lines if line and not line.startswith(("hint:", "remote: hint:"))]
    return public("\n".join(kept)[-2000:]) or "no message"


def failure(there: Place, err: bytes) -> RopewalkError:
    """Gives the typed error that git's words stand for.

    What the other side's hooks say is shown, and looked at for limits alone.
    """
    words, name = words_of(err), shown(there)
    lines = words.lower().replace(name.lower(), "").split("\n")
    low = "\n".join(line for line in lines if not line.startswith("remote:"))
    whole = "\n".join(lines)
    missing = _MISSING.search(whole)
    if "shallow" in low or missing:
        oid = missing[1] if missing else None
        return ShallowError(
            f"the history of {name} is cut off: {'the object ' + oid + ' is missing' if oid else words}",
            hint=_PARTIAL if "promisor" in whole else None,
            repository=name,
            object=oid,
        )
    if _FORMAT.search(low):
        return sha256(there)
    if "dubious ownership" in low:
        return RemoteError(
            f"{name} belongs to another user, and its hooks would run as you",
            hint=f"if you trust it: git config --global --add safe.directory {name}",
            repository=name,
            reason="owner",
        )
    said = {"too_large": whole}
    kind = next((one for one in _KINDS if re.search(one.words, said.get(one.reason, low))), _OTHER)
    if kind.reason == "not_a_repository":
        local = there.path is not None
        return NotFoundError(
            f"{name} is not a git repository" if local else f"there is no repository at {name}: {words}",
            hint="give the folder of a repository, its .git, or a bundle" if local else kind.hint,
            repository=name,
        )
    return RemoteError(f"{name}: {words}", hint=kind.hint, repository=name, reason=kind.reason)


def sha256(there: Place) -> UnsupportedError:
    """Gives the error for a repository with SHA-256 ids."""
    return UnsupportedError(
        f"{shown(there)} has SHA-256 ids, and a store has SHA-1 ids",
        hint="convert it with `git fast-export` and `git fast-import` into a SHA-1 repository",
        repository=shown(there),
    )


def listing(git_dir: str | None, there: Place, *patterns: str, wait: float = WAIT) -> Listing:
    """Gives the refs of another repository that match full names or patterns (none: all of them)."""
    words = ["--symref", *upload_pack(there), "--", there.address, *patterns]
    out = call(git_dir, there, "ls-remote", *words, timeout=_LIST_SECONDS, wait=wait).out
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
    wait: float = WAIT,
) -> bool:
    """Fetches commits with all they stand on, and writes objects alone: no ref, no FETCH_HEAD.

    Says whether git has already seen that nothing is missing. From a repository on this host `fetch-pack` does
    that while it indexes the pack, which saves the second walk over all objects that `fetch` makes.
    """
    config = ["-c", f"fetch.unpackLimit={unpack_limit}", "-c", "protocol.version=2"]
    if there.path is not None and os.path.isdir(there.path):
        done = call(
            git_dir, there, *config, "fetch-pack", "--quiet", "--no-progress", "--check-self-contained-and-connected",
            *upload_pack(there), there.address, *heads, extra_env=extra_env, wait=wait,
        )  # fmt: skip
        return b"connectivity-ok" in done.out
    call(
        git_dir, there, *config, "-c", "fetch.writeCommitGraph=false", "fetch", "--quiet", "--no-write-fetch-head",
        "--no-tags", "--no-prune", "--no-recurse-submodules", "--refmap=", *upload_pack(there), "--", there.address,
        *heads, extra_env=extra_env, wait=wait,
    )  # fmt: skip
    return True
