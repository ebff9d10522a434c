"""A forge on this host: `git http-backend` for the repository, and beside it the API of GitHub, Gitea or GitLab.

Only what the forge's own documentation says of these APIs is here. Pull requests are merged by stock git, so what a
merge, a rebase or a squash leaves behind is real.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from storekit import STOCK, stock

TOKEN = "tok-3f9a1c7e55"
API = {"github": "/api/v3", "gitea": "/api/v1", "gitlab": "/api/v4"}


class Forge:
    """Is the forge: one repository `me/shop`, its pull requests, and what it was asked."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind, self.root = kind, folder
        self.repo = folder / "me" / "shop.git"
        self.work = folder / "merging"
        stock("init", "-q", "--bare", "-b", "main", str(self.repo))
        self.pulls: list[dict[str, Any]] = []
        self.checks: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.asked: list[str] = []
        self.seen: list[str] = []
        self.faults: list[tuple[int, dict[str, str], bytes]] = []
        self.hang = threading.Event()
        self.port = 0

    @property
    def url(self) -> str:
        """Gives the URL of the repository, with a user and a token."""
        return f"http://me:{TOKEN}@127.0.0.1:{self.port}/me/shop.git"

    def at(self, branch: str) -> str:
        """Gives where a branch is."""
        return stock("--git-dir", str(self.repo), "rev-parse", branch).decode().strip()

    def merge(self, number: int, how: str, title: str | None = None, edit: str = "") -> None:
        """Merges a pull request as the button of that name does; with `edit` in a squash somebody adds to `a.txt`."""
        pull = self.pulls[number - 1]
        git = lambda *words: stock(*words, cwd=str(self.work))  # noqa: E731
        if not self.work.exists():
            stock("clone", "-q", str(self.repo), str(self.work))
        git("fetch", "-q", "origin")
        git("checkout", "-q", "-B", "main", "origin/main")
        branch = f"origin/{pull['branch']}"
        if how == "merge":
            git("merge", "-q", "--no-ff", "-m", f"Merge pull request #{number}", branch)
        elif how == "rebase":
            git("checkout", "-q", "-B", "side", branch)
            git("rebase", "-q", "--force-rebase", "main")
            git("checkout", "-q", "main")
            git("merge", "-q", "--ff-only", "side")
        else:
            git("merge", "-q", "--squash", branch)
            with (self.work / "a.txt").open("a") as file:
                file.write(edit)
            git("add", "-A")
            git("commit", "-q", "-m", title or f"{pull['title']} (#{number})")
        git("push", "-q", "origin", "main")
        pull.update(state="merged", merged_as=self.at("main"), merged_head=self.at(pull["branch"]))

    def shown(self, pull: dict[str, Any]) -> dict[str, Any]:
        """Gives a pull request as the API of the forge's kind describes it."""
        head = pull.get("merged_head") or self.at(pull["branch"])
        merged, opened = pull["state"] == "merged", pull["state"] == "open"
        page = f"http://127.0.0.1:{self.port}/me/shop/pull/{pull['number']}"
        if self.kind == "gitlab":
            return {
                "iid": pull["number"], "web_url": page, "title": pull["title"], "sha": head,
                "state": "opened" if opened else pull["state"], "source_branch": pull["branch"],
                "target_branch": pull["base"], "source_project_id": 1, "target_project_id": 1,
                "draft": pull["draft"], "detailed_merge_status": "mergeable" if opened else "not_open",
                "squash_commit_sha": None, "merge_commit_sha": pull.get("merged_as"),
            }  # fmt: skip
        made = {
            "number": pull["number"], "html_url": page, "title": pull["title"], "state": "open" if opened else "closed",
            "draft": pull["draft"], "mergeable": True, "merged": merged, "merge_commit_sha": pull.get("merged_as"),
            "head": {"ref": pull["branch"], "sha": head, "repo_id": 1},
            "base": {"ref": pull["base"], "sha": self.at(pull["base"]), "repo_id": 1},
        }  # fmt: skip
        return made if self.kind == "gitea" else {**made, "mergeable_state": "clean"}

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        """Gives status and JSON for a request below the API."""
        rest = path.removeprefix(API[self.kind])
        if self.kind == "gitlab":
            if rest == "/version":
                return 200, {"version": "17.0.0"}
            below = "/projects/me%2Fshop"
            if not rest.startswith(below):
                return 404, {"message": "404 Project Not Found"}
            rest = rest.removeprefix(below)
            names = ("/merge_requests", "source_branch", "target_branch", "description", "iid")
        else:
            if rest == "/version" and self.kind == "gitea":
                return 200, {"version": "1.22.0"}
            if not rest.startswith("/repos/me/shop/"):
                return 404, {"message": "Not Found"}
            rest = rest.removeprefix("/repos/me/shop")
            names = ("/pulls", "head", "base", "body", "number")
        where, head, base = names[:3]
        if rest == where and method == "POST":
            self.texts.append(body[names[3]])
            return self._create(body[head], body[base], body["title"], bool(body.get("draft")))
        if rest == where:
            branch = query.get(head, "").removeprefix("me:")
            chosen = [p for p in reversed(self.pulls) if branch in ("", p["branch"])
                      and query.get(base, p["base"]) == p["base"]]  # fmt: skip
            if self.kind == "gitea":
                chosen = [p for p in chosen if (p["state"] == "open") == (query["state"] == "open")]
            return 200, [self.shown(p) for p in chosen]
        if rest.startswith(where + "/"):
            return 200, self.shown(self.pulls[int(rest.rsplit("/", 1)[1]) - 1])
        words = [{"name": name, "context": name, "status": word, "state": word} for name, word in self.checks]
        if rest.endswith("/statuses"):
            return 200, words
        if rest.endswith("/check-runs"):
            runs = [{"name": n, "status": "completed", "conclusion": w} for n, w in self.checks if w != "pending"]
            return 200, {"total_count": len(runs), "check_runs": runs}
        if rest.endswith("/status"):
            return 200, {"statuses": [w for w in words if self.kind == "gitea" or w["status"] == "pending"]}
        return 404, {"message": "Not Found"}

    def graph(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        """Gives what GitHub answers to the queries of `gh`, which asks by GraphQL."""
        if "query RepositoryInfo" in query:
            shop = {"id": "R1", "name": "shop", "owner": {"login": "me"}, "viewerPermission": "WRITE",
                    "defaultBranchRef": {"name": "main"}, "parent": None, "mergeCommitAllowed": True}  # fmt: skip
            return {"data": {"repository": shop}}
        if "mutation PullRequestCreate" in query:
            put = given["input"]
            self.texts.append(put["body"])
            status, made = self._create(put["headRefName"], put["baseRefName"], put["title"], bool(put.get("draft")))
            if status != 201:
                return {"errors": [{"message": made["errors"][0]["message"]}]}
            return {"data": {"createPullRequest": {"pullRequest": {"id": "P1", "url": made["html_url"]}}}}
        if "query PullRequestByNumber" in query:
            number = given["pr_number"]
            if number > len(self.pulls):
                return {"data": {"repository": {"pullRequest": None}}, "errors": [
                    {"type": "NOT_FOUND", "path": ["repository", "pullRequest"],
                     "message": f"Could not resolve to a PullRequest with the number of {number}."}]}  # fmt: skip
            return {"data": {"repository": {"pullRequest": self._node(self.pulls[number - 1])}}}
        nodes = [self._node(p) for p in reversed(self.pulls) if given.get("headBranch") in (None, p["branch"])
                 and given.get("baseBranch") in (None, p["base"])]  # fmt: skip
        return {"data": {"repository": {"pullRequests": {"totalCount": len(nodes), "nodes": nodes, "pageInfo": {}}}}}

    def _node(self, pull: dict[str, Any]) -> dict[str, Any]:
        shown = self.shown(pull)
        runs = [{"__typename": "CheckRun", "name": n, "status": "COMPLETED", "conclusion": w.upper()}
                for n, w in self.checks if w != "pending"]  # fmt: skip
        waits = [{"__typename": "StatusContext", "context": n, "state": "PENDING"} for n, w in self.checks
                 if w == "pending"]  # fmt: skip
        rollup = {"contexts": {"nodes": runs + waits, "pageInfo": {"hasNextPage": False}}}
        return {
            "id": "P1", "number": pull["number"], "url": shown["html_url"], "title": pull["title"],
            "state": pull["state"].upper(), "headRefName": pull["branch"], "headRefOid": shown["head"]["sha"],
            "baseRefName": pull["base"], "isDraft": pull["draft"], "mergeable": "MERGEABLE",
            "mergeStateStatus": "CLEAN", "isCrossRepository": False,
            "mergeCommit": {"oid": pull["merged_as"]} if "merged_as" in pull else None,
            "statusCheckRollup": {"nodes": [{"commit": {"statusCheckRollup": rollup}}]},
        }  # fmt: skip

    def _create(self, branch: str, base: str, title: str, draft: bool) -> tuple[int, Any]:
        if any((p["branch"], p["base"], p["state"]) == (branch, base, "open") for p in self.pulls):
            said: dict[str, tuple[int, Any]] = {
                "github": (422, {"message": "Validation Failed", "errors": [
                    {"resource": "PullRequest", "code": "custom",
                     "message": f"A pull request already exists for me:{branch}."}]}),
                "gitea": (409, {"message": "pull request already exists for these targets", "url": "x"}),
                "gitlab": (409, {"message": ["Another open merge request already exists for this source branch: !1"]}),
            }  # fmt: skip
            return said[self.kind]
        draft = draft or title.startswith(("Draft: ", "WIP: "))
        self.pulls.append({"number": len(self.pulls) + 1, "branch": branch, "base": base, "title": title,
                           "state": "open", "draft": draft})  # fmt: skip
        return 201, self.shown(self.pulls[-1])


class _Handler(BaseHTTPRequestHandler):
    forge: ClassVar[Forge]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._any("GET")

    def do_POST(self) -> None:
        self._any("POST")

    def _any(self, method: str) -> None:
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if parts.path == "/graphql":
            self.forge.seen.append(self.headers.get("Authorization", ""))
            asked = json.loads(data)
            said = self.forge.graph(asked["query"], asked.get("variables") or {})
            self._send(200, {}, json.dumps(said).encode())
        elif parts.path.startswith("/api/"):
            self._api(method, parts.path, {k: v[-1] for k, v in parse_qs(parts.query).items()}, data)
        else:
            self._git(method, parts, data)

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        basic = base64.b64encode(f"me:{TOKEN}".encode()).decode()
        return given in (f"Bearer {TOKEN}", f"token {TOKEN}", f"Basic {basic}")

    def _api(self, method: str, path: str, query: dict[str, str], data: bytes) -> None:
        forge = self.forge
        forge.asked.append(f"{method} {path}")
        forge.seen.append(self.headers.get("Authorization", ""))
        if forge.faults:
            status, headers, body = forge.faults.pop(0)
            if status == 0:
                forge.hang.wait(60)
                return self.close_connection_now()
            return self._send(status, headers, body)
        if path == "/api/v4/version" and forge.kind == "gitlab" and not self._allowed():
            return self._send(401, {"X-Gitlab-Meta": "{}"}, b'{"message":"401 Unauthorized"}')
        public = path in ("/api/v1/version", "/api/v3/meta")
        if not path.startswith(API[forge.kind]):
            return self._send(404, {}, b"<html>Not here</html>")
        if not public and not self._allowed():
            return self._send(401, {}, b'{"message":"Bad credentials"}')
        status, value = forge.answer(method, path, query, json.loads(data) if data else {})
        self._send(status, {"X-GitHub-Request-Id": "1"} if forge.kind == "github" else {}, json.dumps(value).encode())

    def close_connection_now(self) -> None:
        self.close_connection = True

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _git(self, method: str, parts: Any, data: bytes) -> None:
        if not self._allowed():
            return self._send(401, {"WWW-Authenticate": 'Basic realm="forge"'}, b"")
        env = {**STOCK, "GIT_PROJECT_ROOT": str(self.forge.root), "GIT_HTTP_EXPORT_ALL": "1", "REMOTE_USER": "me",
               "REQUEST_METHOD": method, "PATH_INFO": unquote(parts.path), "QUERY_STRING": parts.query,
               "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(data)),
               "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
               "GIT_PROTOCOL": self.headers.get("Git-Protocol", "")}  # fmt: skip
        done = subprocess.run(["git", "http-backend"], input=data, env=env, capture_output=True, timeout=60)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self._send(int(headers.pop("Status", "200").split()[0]), headers, body)


@contextmanager
def forge(folder: Path, kind: str) -> Iterator[Forge]:
    """Runs a forge of a kind."""
    os.makedirs(folder / "me")
    made = Forge(folder, kind)

    class Handler(_Handler):
        """Answers for this forge."""

        forge = made

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.hang.set()
            server.shutdown()
            thread.join(20)
