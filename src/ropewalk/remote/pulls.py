"""Pull requests: what one is, whatever the forge calls it, and the clients that open them and look at them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from ropewalk.core.errors import NotFoundError, RemoteError
from ropewalk.remote.calling import Caller
from ropewalk.remote.forge import Forge, Secret

State = Literal["open", "merged", "closed"]
Verdict = Literal["passed", "failed", "pending", "none"]
_PAGES = 20

_PASSED = ("success", "neutral", "skipped", "warning", "completed")
_PENDING = ("pending", "queued", "in_progress", "waiting", "requested", "expected", "created", "running", "preparing",
            "waiting_for_resource", "scheduled", "manual", "")  # fmt: skip


class Checks(msgspec.Struct, frozen=True):
    """Is what the forge's checks say of a head: one word, how many, and the names of those that failed."""

    state: Verdict
    passed: int
    failed: int
    pending: int
    failing: list[str]


class Pull(msgspec.Struct, frozen=True):
    """Is a pull request; `mergeable` is None where the forge does not know, `why` is its word for it.

    `checks` are None where they were not looked at or may not be read. `merged_as` is the commit it came in with.
    """

    number: int
    url: str
    state: State
    title: str
    branch: str
    head: str
    base: str
    draft: bool = False
    mergeable: bool | None = None
    why: str = ""
    merged_as: str | None = None
    checks: Checks | None = None


class Wanted(msgspec.Struct, frozen=True):
    """Is a pull request to open."""

    branch: str
    base: str
    title: str
    body: str
    draft: bool = False


class Client(Protocol):
    """Is a way to one repository on a forge; each call raises `E_REMOTE` or `E_NOT_FOUND`."""

    via: str

    def listed(self, branch: str, base: str | None) -> list[Pull]:
        """Gives the pull requests of a branch of this repository, the newest first."""
        ...

    def look(self, pull: Pull) -> Pull:
        """Gives a pull request with all that the forge knows of it."""
        ...

    def create(self, wanted: Wanted) -> Pull:
        """Opens a pull request; `E_REMOTE` with the status 409 or 422 where there may be one already."""
        ...


def find(client: Client, branch: str, base: str | None) -> Pull | None:
    """Gives the open pull request of a branch, else its newest one."""
    found = client.listed(branch, base)
    return next((one for one in found if one.state == "open"), found[0] if found else None)


def summed(said: Sequence[tuple[str, str]]) -> Checks:
    """Gives checks from the names and the words for how each ended or stands, the newest word of a name first."""
    first: dict[str, str] = {}
    for name, word in said:
        first.setdefault(name, word.lower())
    failing = sorted(name for name, word in first.items() if word not in _PASSED and word not in _PENDING)
    passed = sum(word in _PASSED for word in first.values())
    pending = len(first) - passed - len(failing)
    state: Verdict = "failed" if failing else "pending" if pending else "passed" if passed else "none"
    return Checks(state, passed, len(failing), pending, failing)


def client(forge: Forge, secret: Secret | None, wait: float) -> Client:
    """Gives the client for a forge's API."""
    import base64

    kinds: dict[str, Callable[..., Client]] = {"github": _GitHub, "gitea": _Gitea, "gitlab": _GitLab}
    headers: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    if secret is not None:
        basic = base64.b64encode(f"{secret.user}:{secret.word}".encode()).decode("ascii")
        secrets = tuple(sorted({secret.word, basic}, key=len, reverse=True))
        if forge.kind == "gitea":
            headers["Authorization"] = f"Basic {basic}" if secret.user else f"token {secret.word}"
        else:
            headers["Authorization"] = f"Bearer {secret.word}"
    return kinds[forge.kind](forge, headers, secrets, wait)


class _Api(ABC):
    via = "api"
    accept: dict[str, str] = {}

    def __init__(self, forge: Forge, headers: dict[str, str], secrets: tuple[str, ...], wait: float) -> None:
        from urllib.parse import quote

        self.call = Caller(forge.api, {**self.accept, **headers}, secrets=secrets, wait=wait)
        self.repository = forge.site.path
        self.quoted = quote(forge.site.path, safe="" if forge.kind == "gitlab" else "/")

    def _read(self, value: Any) -> Pull:
        try:
            return self._pull(value)
        except (KeyError, TypeError, ValueError):
            raise RemoteError(
                f"{self.call.root} describes a pull request in an unknown way", reason="unknown_forge",
                hint="name its kind with --forge", repository=self.call.root,
            ) from None  # fmt: skip

    @abstractmethod
    def _pull(self, value: Any) -> Pull:
        """Gives a pull request from the forge's JSON; raises what indexing raises where it is another's."""

    def _statuses(self, *paths: tuple[str, str, str]) -> Checks | None:
        """Gives checks from (path, where the list is, the key of a name); None where none may be read."""
        said: list[tuple[str, str]] = []
        readable = False
        for path, where, name in paths:
            try:
                value = self.call.get(path, per_page=100)
            except NotFoundError:
                continue
            except RemoteError as error:
                if error.details.get("reason") != "forbidden":
                    raise
                continue
            readable = True
            rows = value.get(where) if where and isinstance(value, dict) else value
            for row in rows if isinstance(rows, list) else []:
                if isinstance(row, dict):
                    word = row.get("conclusion") or row.get("state") or row.get("status")
                    said.append((str(row.get(name)), "warning" if row.get("allow_failure") else str(word or "")))
        return summed(said) if readable else None


class _GitHub(_Api):
    accept = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}

    def listed(self, branch: str, base: str | None) -> list[Pull]:
        query = {"head": f"{self.repository.partition('/')[0]}:{branch}", "state": "all", "sort": "created",
                 "direction": "desc", "per_page": "100"}  # fmt: skip
        found = self.call.pages(f"/repos/{self.quoted}/pulls", _PAGES, **query, **({"base": base} if base else {}))
        pulls = [self._read(one) for one in found]
        return [one for one in pulls if one.branch == branch and base in (None, one.base)]

    def look(self, pull: Pull) -> Pull:
        now = self._read(self.call.get(f"/repos/{self.quoted}/pulls/{pull.number}"))
        of = f"/repos/{self.quoted}/commits/{now.head}"
        checks = self._statuses((f"{of}/check-runs", "check_runs", "name"), (f"{of}/status", "statuses", "context"))
        return msgspec.structs.replace(now, checks=checks)

    def create(self, wanted: Wanted) -> Pull:
        body = {"title": wanted.title, "body": wanted.body, "head": wanted.branch, "base": wanted.base,
                "draft": wanted.draft}  # fmt: skip
        return self._read(self.call.post(f"/repos/{self.quoted}/pulls", body))

    def _pull(self, value: Any) -> Pull:
        merged = bool(value.get("merged") or value.get("merged_at"))
        return Pull(
            int(value["number"]), str(value["html_url"]), "merged" if merged else _state(value["state"]),
            str(value["title"]), str(value["head"]["ref"]), str(value["head"]["sha"]), str(value["base"]["ref"]),
            bool(value.get("draft")), value.get("mergeable") if not merged else None,
            str(value.get("mergeable_state") or ""), value.get("merge_commit_sha") if merged else None,
        )  # fmt: skip


class _Gitea(_Api):
    def listed(self, branch: str, base: str | None) -> list[Pull]:
        path = f"/repos/{self.quoted}/pulls"
        pulls: list[Pull] = []
        for state in ("open", "closed"):
            for one in self.call.pages(path, _PAGES, state=state, sort="recentupdate", limit=50):
                pull = self._read(one)
                own = one["head"].get("repo_id") in (None, one["base"].get("repo_id"))
                if own and pull.branch == branch and base in (None, pull.base):
                    pulls.append(pull)
            if pulls:
                break
        return sorted(pulls, key=lambda one: -one.number)

    def look(self, pull: Pull) -> Pull:
        now = self._read(self.call.get(f"/repos/{self.quoted}/pulls/{pull.number}"))
        checks = self._statuses((f"/repos/{self.quoted}/commits/{now.head}/status", "statuses", "context"))
        return msgspec.structs.replace(now, checks=checks)

    def create(self, wanted: Wanted) -> Pull:
        title = f"WIP: {wanted.title}" if wanted.draft else wanted.title
        body = {"title": title, "body": wanted.body, "head": wanted.branch, "base": wanted.base}
        return self._read(self.call.post(f"/repos/{self.quoted}/pulls", body))

    def _pull(self, value: Any) -> Pull:
        merged = bool(value.get("merged"))
        title = str(value["title"])
        return Pull(
            int(value["number"]), str(value["html_url"]), "merged" if merged else _state(value["state"]), title,
            str(value["head"]["ref"]), str(value["head"]["sha"]), str(value["base"]["ref"]),
            bool(value.get("draft", title.upper().startswith(("WIP:", "[WIP]")))),
            value.get("mergeable") if value["state"] == "open" else None,
            "", value.get("merge_commit_sha") if merged else None,
        )  # fmt: skip


class _GitLab(_Api):
    def listed(self, branch: str, base: str | None) -> list[Pull]:
        query = {"source_branch": branch, "state": "all", "order_by": "created_at", "sort": "desc", "per_page": "100"}
        path = f"/projects/{self.quoted}/merge_requests"
        found = self.call.pages(path, _PAGES, **query, **({"target_branch": base} if base else {}))
        return [self._read(one) for one in found if one.get("source_project_id") == one.get("target_project_id")]

    def look(self, pull: Pull) -> Pull:
        now = self._read(self.call.get(f"/projects/{self.quoted}/merge_requests/{pull.number}"))
        path = f"/projects/{self.quoted}/repository/commits/{now.head}/statuses"
        return msgspec.structs.replace(now, checks=self._statuses((path, "", "name")))

    def create(self, wanted: Wanted) -> Pull:
        title = f"Draft: {wanted.title}" if wanted.draft else wanted.title
        body = {"title": title, "description": wanted.body, "source_branch": wanted.branch,
                "target_branch": wanted.base}  # fmt: skip
        return self._read(self.call.post(f"/projects/{self.quoted}/merge_requests", body))

    def _pull(self, value: Any) -> Pull:
        said = str(value.get("detailed_merge_status") or value.get("merge_status") or "")
        mergeable = None
        if value["state"] == "opened" and said not in ("", "unchecked", "checking", "preparing", "approvals_syncing"):
            mergeable = said in ("mergeable", "can_be_merged")
        states = {"opened": "open", "merged": "merged"}
        merged_as = value.get("squash_commit_sha") or value.get("merge_commit_sha")
        return Pull(
            int(value["iid"]), str(value["web_url"]), _state(states.get(value["state"], "closed")),
            str(value["title"]), str(value["source_branch"]), str(value["sha"]), str(value["target_branch"]),
            bool(value.get("draft", value.get("work_in_progress"))), mergeable, said,
            merged_as if value["state"] == "merged" else None,
        )  # fmt: skip


def _state(word: Any) -> State:
    return "open" if word == "open" else "merged" if word == "merged" else "closed"
