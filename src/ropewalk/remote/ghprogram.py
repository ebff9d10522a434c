"""The program `gh` as a client: it knows its own login, asks nothing here, and is told no token."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import NotFoundError, RemoteError, RopewalkError
from ropewalk.core.process import ChildTimeout, Done, clean_env, run
from ropewalk.remote import transport
from ropewalk.remote.calling import SECONDS
from ropewalk.remote.forge import Forge
from ropewalk.remote.pulls import Pull, State, Wanted, summed

_FIELDS = ("number,url,state,title,headRefName,headRefOid,baseRefName,isDraft,mergeable,mergeStateStatus,mergeCommit,"
           "isCrossRepository")  # fmt: skip
_ENV = {
    "GH_PROMPT_DISABLED": "1",
    "GH_NO_UPDATE_NOTIFIER": "1",
    "GH_SPINNER_DISABLED": "1",
    "GH_FORCE_TTY": "",
    "GH_DEBUG": "",
    "DEBUG": "",
    "GH_PAGER": "cat",
    "NO_COLOR": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
}
_LOGIN = 4
"""Is the exit code by which `gh` says that nobody is logged in."""

_KINDS = (
    ("authentication", r"http 401|bad credentials|gh auth login|authentication", "run `gh auth login`"),
    ("rate_limited", r"http 429|rate limit", "try again later"),
    ("forbidden", r"http 403|not accessible|does not have the correct permissions|must have",
     "the login lacks the right to it: `gh auth status` shows what it may do"),
    ("unreachable", r"error connecting|dial tcp|could not resolve host|no such host|connection refused|i/o timeout",
     "check the address and the connection"),
    ("broken_off", r"http 5\d\d|eof|connection reset", "run the command again"),
)  # fmt: skip
_NOTHING = re.compile("http 404|could not resolve to a |no pull requests found", re.IGNORECASE)
_THERE = re.compile("already exists", re.IGNORECASE)


def program() -> str | None:
    """Gives the path of the installed `gh`, None where there is none."""
    import shutil

    return shutil.which("gh")


class GhClient:
    """Is `gh` for one repository."""

    via = "gh"

    def __init__(self, program: str, forge: Forge, folder: str, wait: float) -> None:
        self._program, self._repository = program, f"{forge.site.host}/{forge.site.path}"
        self._folder = folder
        self._seconds = min(wait or SECONDS, SECONDS)

    def listed(self, branch: str, base: str | None) -> list[Pull]:
        """Gives the pull requests of a branch of this repository, the newest first."""
        words = ["--head", branch, "--state", "all", "--limit", "100", *(["--base", base] if base else [])]
        found = self._json("pr", "list", *words, "--json", _FIELDS)
        pulls = [self._read(one) for one in found if isinstance(one, dict) and not one.get("isCrossRepository")]
        return sorted(pulls, key=lambda one: -one.number)

    def look(self, pull: Pull) -> Pull:
        """Gives a pull request with all that the forge knows of it."""
        value = self._json("pr", "view", str(pull.number), "--json", f"{_FIELDS},statusCheckRollup")
        said = []
        for row in value.get("statusCheckRollup") or []:
            if isinstance(row, dict):
                word = row.get("conclusion") or row.get("state") or row.get("status")
                said.append((str(row.get("name") or row.get("context")), str(word or "")))
        return msgspec.structs.replace(self._read(value), checks=summed(said))

    def create(self, wanted: Wanted) -> Pull:
        """Opens a pull request; `E_REMOTE` with the status 422 where there is one already."""
        # a title that begins with a dash is no option, and the text needs no command line
        words = [f"--head={wanted.branch}", f"--base={wanted.base}", f"--title={wanted.title}", "--body-file=-"]
        draft = ["--draft"] if wanted.draft else []
        done = self._run("pr", "create", *words, *draft, stdin=wanted.body.encode("utf-8", "replace"))
        number = re.search(r"/pull/(\d+)\s*\Z", done.text())
        if number is None:
            raise self._odd()
        return self._read(self._json("pr", "view", number[1], "--json", _FIELDS))

    def _read(self, value: Any) -> Pull:
        try:
            states: dict[str, State] = {"OPEN": "open", "MERGED": "merged", "CLOSED": "closed"}
            merged = value.get("mergeCommit") or {}
            return Pull(
                int(value["number"]), str(value["url"]), states[value["state"]], str(value["title"]),
                str(value["headRefName"]), str(value["headRefOid"]), str(value["baseRefName"]),
                bool(value.get("isDraft")), {"MERGEABLE": True, "CONFLICTING": False}.get(value.get("mergeable", "")),
                str(value.get("mergeStateStatus") or "").lower(), merged.get("oid"),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._odd() from None

    def _json(self, *words: str) -> Any:
        try:
            found = msgspec.json.decode(self._run(*words).out)
        except UNREADABLE:
            raise self._odd() from None
        if not isinstance(found, (list, dict)):
            raise self._odd()
        return found

    def _odd(self) -> RemoteError:
        return RemoteError("`gh` answers in an unknown way", hint="use --via api", reason="failed",
                           repository=self._repository)  # fmt: skip

    def _run(self, *words: str, stdin: bytes | None = None) -> Done:
        argv = [self._program, *words, "--repo", self._repository]
        try:
            # in the store's repository: what git finds there is nobody's workspace
            done = run(argv, stdin=stdin, env=clean_env(_ENV), cwd=self._folder, timeout=self._seconds)
        except ChildTimeout as error:
            raise RemoteError(f"`gh` did not answer within {error.seconds:g} s", hint="try again, or use --via api",
                              reason="silent", repository=self._repository) from None  # fmt: skip
        except OSError as error:
            raise RemoteError(f"`gh` can't be started: {error.strerror}", hint="use --via api", reason="failed",
                              repository=self._repository) from None  # fmt: skip
        if done.code:
            raise self._failure(done)
        return done

    def _failure(self, done: Done) -> RopewalkError:
        said = transport.words_of(done.err)
        words, low = f"`gh` says: {said}", said.lower()
        if done.code == _LOGIN:
            return RemoteError(words, hint="run `gh auth login`, or use --via api with git's credentials",
                               reason="authentication", login=True, repository=self._repository)  # fmt: skip
        if _NOTHING.search(said):
            return NotFoundError(words, hint="check the address, and that `gh auth status` may read the repository",
                                 repository=self._repository)  # fmt: skip
        if _THERE.search(said):
            return RemoteError(words, hint="see what it says", reason="rejected", status=422,
                               repository=self._repository)  # fmt: skip
        for reason, pattern, hint in _KINDS:
            if re.search(pattern, low):
                return RemoteError(words, hint=hint, reason=reason, repository=self._repository)
        return RemoteError(words, hint="see what it says", reason="rejected", repository=self._repository)
