"""Pull requests on a forge: its API on this host, real git over HTTP, and merges that stock git makes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from forges import TOKEN, Forge, forge

from ropewalk.core.errors import InvalidError, NotFoundError, RemoteError, RopewalkError
from ropewalk.remote import forge as forges
from ropewalk.remote import proposing, remotes
from ropewalk.remote.ghprogram import GhClient
from ropewalk.remote.pulls import Wanted, summed
from ropewalk.store import refs
from ropewalk.store.oplog import Move
from storekit import Kit, child_env, lines, put, rw, stock

KINDS = ("github", "gitea", "gitlab")


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", lines()))
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def there(request: pytest.FixtureRequest, tmp_path: Path, kit: Kit) -> Iterator[Forge]:
    """Gives a forge of each kind with the store's main, as the remote `origin`."""
    with forge(tmp_path / "forge", str(request.param)) as made:
        yield filled(made, kit)


@contextmanager
def github(tmp_path: Path, kit: Kit) -> Iterator[Forge]:
    """Gives one of GitHub's kind."""
    with forge(tmp_path / "forge", "github") as made:
        yield filled(made, kit)


def filled(made: Forge, kit: Kit) -> Forge:
    """Gives a forge that has the store's main; the store has a ref `topic` with two changes more."""
    origin = remotes.add(kit.store, "origin", made.url, "a/b")
    remotes.push(kit.store, origin, "main", None, "a/b")
    at = kit.main()
    for number in range(2):
        at = kit.commit(put("a.txt", lines(*(f"{n}:x{n}" for n in range(number + 1)))), put(f"{number}.txt", "n\n"),
                        parent=at, message=f"Change {number}").changeset  # fmt: skip
    refs.move(kit.store, "a/b", [Move("refs/heads/topic", None, at)], "ref_set")
    return made


def open_pull(kit: Kit, ref: str = "topic", env: dict[str, str] | None = None, **how: Any) -> proposing.Opened:
    how.setdefault("where", proposing.Where(via="api"))
    return proposing.open_pull(kit.store, remotes.need(kit.store, None), ref, how.pop("branch", None),
                               how.pop("base", "main"), "a/b", env or {}, **how)  # fmt: skip


def status(kit: Kit, ref: str = "topic", **how: Any) -> proposing.Found:
    how.setdefault("where", proposing.Where(via="api"))
    branch, base = how.pop("branch", None), how.pop("base", None)
    return proposing.status(kit.store, remotes.need(kit.store, None), ref, branch, base, "a/b", {}, **how)


def test_a_ref_is_pushed_and_proposed_once(kit: Kit, there: Forge) -> None:
    made = open_pull(kit, draft=True)
    assert (made.created, made.push.status, made.via) == (True, "created", "api")
    assert there.at("topic") == kit.store.ref("refs/heads/topic") == made.pull.head
    assert (made.pull.number, made.pull.state, made.pull.base, made.pull.draft) == (1, "open", "main", True)
    assert made.pull.title.endswith("2 changes of topic") and made.pull.mergeable is True
    again = open_pull(kit)
    assert (again.created, again.push.status, again.pull.number) == (False, "up_to_date", 1) and len(there.pulls) == 1
    there.checks = [("build", "success"), ("lint", "failure" if there.kind != "gitlab" else "failed"),
                    ("slow", "pending")]  # fmt: skip
    seen = status(kit)
    assert seen.current and seen.brought is None and seen.pull.checks is not None
    assert (seen.pull.checks.state, seen.pull.checks.passed, seen.pull.checks.failing, seen.pull.checks.pending) == (
        "failed", 1, ["lint"], 1,
    )  # fmt: skip


def test_what_became_of_it_is_told(kit: Kit, there: Forge) -> None:
    how = {"github": "squash", "gitea": "rebase", "gitlab": "merge"}[there.kind]
    open_pull(kit)
    kit.change(put("b.txt", "others go on\n"))
    remotes.push(kit.store, remotes.need(kit.store, None), "main", None, "a/b")
    there.merge(1, how)
    found = status(kit)
    assert found.pull.state == "merged" and found.brought is not None
    assert (found.brought.how, found.brought.left) == (how, [])
    assert found.pull.merged_as == there.at("main") and found.current
    if how == "merge":
        with pytest.raises(InvalidError, match="has all of topic already"):
            open_pull(kit)


def test_a_squash_that_was_edited_is_recognised_by_the_text_of_the_pull_request(tmp_path: Path, kit: Kit) -> None:
    with github(tmp_path, kit) as there:
        made = open_pull(kit, body="Two things.")
        text = there.texts[0]
        assert made.created and text.startswith("Two things.\n\nRopewalk-Changeset: ")
        assert text.count("Ropewalk-Changeset: ") == 2
        there.merge(1, "squash", f"Both (#1)\n\n{text}", edit="somebody's edit\n")
        found = status(kit).brought
        assert found is not None and found.how == "squash" and {k.by for k in found.recognised} == {"trailer"}


def test_one_that_was_closed_left_its_changes_out(tmp_path: Path, kit: Kit) -> None:
    with github(tmp_path, kit) as there:
        open_pull(kit)
        there.pulls[0]["state"] = "closed"
        found = status(kit)
        assert found.pull.state == "closed" and found.brought is not None and found.brought.how is None
        assert len(found.brought.left) == 2
        again = open_pull(kit)
        assert again.created and again.pull.number == 2


def test_a_race_ends_with_the_one_that_is_there(kit: Kit, there: Forge) -> None:
    """Somebody opens it between our look and our call, or the answer to our first call was lost."""
    looks = []
    answer = there.answer

    def late(method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        found = answer(method, path, query, body)
        if method == "GET" and not looks:
            looks.append(path)
            there._create("topic", "main", "Theirs", False)
        return found

    stock("--git-dir", str(there.repo), "branch", "topic", "main")
    if there.kind == "gitea":
        looks.append("the second list")  # it looks twice
        late = answer  # type: ignore[assignment]
        there._create("topic", "main", "Theirs", False)
    there.answer = late  # type: ignore[method-assign]
    made = open_pull(kit)
    assert not made.created and made.pull.title == "Theirs" and len(there.pulls) == 1


FAULTS: list[tuple[tuple[int, dict[str, str], bytes], str]] = [
    ((401, {}, b'{"message":"Bad credentials"}'), "authentication"),
    ((403, {}, b'{"message":"Resource not accessible"}'), "forbidden"),
    ((403, {"X-RateLimit-Remaining": "0"}, b'{"message":"API rate limit exceeded"}'), "rate_limited"),
    ((429, {"Retry-After": "7"}, b"{}"), "rate_limited"),
    ((500, {}, b"<html>"), "broken_off"),
    ((200, {}, b"<html>welcome</html>"), "unknown_forge"),
    ((200, {}, b'[{"number": 1}]'), "unknown_forge"),
    ((200, {}, b'{"number": 1}'), "unknown_forge"),
    ((200, {"Content-Length": "900"}, b'[{"nu'), "silent"),
    ((302, {"Location": "http://localhost:1/x"}, b""), "moved"),
    ((307, {"Location": "/api/v3/again"}, b""), "moved"),
    ((0, {}, b""), "silent"),
]


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kit, Forge]]:
    """Gives a store and a forge of GitHub's kind for tests in which nothing may change."""
    folder = tmp_path_factory.mktemp("still")
    kit = Kit(str(folder / "store"))
    kit.first(put("a.txt", lines()))
    with github(folder, kit) as there:
        yield kit, there
    kit.close()


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=[f"{f[0]}-{r}" for f, r in FAULTS])
def test_a_forge_that_refuses_is_a_typed_error(still: tuple[Kit, Forge], fault: Any, reason: str) -> None:
    kit, there = still
    there.faults, there.asked = [fault] * (5 if fault[0] == 307 else 1), []
    before, began = kit.store.last_op(), time.monotonic()
    with pytest.raises(RemoteError) as caught:
        open_pull(kit, where=proposing.Where("github", via="api"), wait=1.0)
    assert caught.value.details["reason"] == reason and time.monotonic() - began < 8
    assert TOKEN not in repr((caught.value.message, caught.value.hint, caught.value.details))
    assert kit.store.last_op() == before and not there.repo.joinpath("refs/heads/topic").exists()
    if reason == "moved":
        assert len(there.asked) == (4 if fault[0] == 307 else 1)  # nobody else was told the token
    there.faults = []


def test_a_forge_out_of_reach_and_an_unknown_one(tmp_path: Path, kit: Kit) -> None:
    with forge(tmp_path / "forge", "gitea") as there:
        url = there.url
        there.faults = [(404, {}, b"no")] * 3
        remotes.add(kit.store, "origin", url, "a/b")
        with pytest.raises(RemoteError) as unknown:
            open_pull(kit, "main", branch="topic")
        assert unknown.value.details["reason"] == "unknown_forge" and set(there.seen) == {""}
        with pytest.raises(NotFoundError, match="no pull request of topic"):
            status(kit, branch="topic")
    with pytest.raises(RemoteError) as gone:
        open_pull(kit, "main", branch="topic", where=proposing.Where("gitea", via="api"))
    assert gone.value.details["reason"] == "unreachable" and TOKEN not in gone.value.message


def test_the_token_is_the_users(tmp_path: Path, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from git's own helper, or a variable, and a helper that hangs or asks is no trap."""
    config = tmp_path / "gitconfig"
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    with forge(tmp_path / "forge", "gitea") as there:
        bare = f"http://127.0.0.1:{there.port}/me/shop.git"
        repo = kit.repo
        found = forges.find(repo, bare, page=None, kind=None, wait=5)
        assert (found.kind, found.api, found.site.path) == ("gitea", f"http://127.0.0.1:{there.port}/api/v1", "me/shop")
        assert forges.secret(repo, bare, found, {}) is None
        assert forges.secret(repo, bare, found, {"GITEA_TOKEN": "x", "GH_TOKEN": "y", "GITLAB_TOKEN": "z"}) is None
        named = {"GITEA_SERVER_URL": f"http://127.0.0.1:{there.port}/", "GITEA_SERVER_TOKEN": "x"}
        assert forges.secret(repo, bare, found, named) == ("", "x", "GITEA_SERVER_TOKEN")
        config.write_text(f"[credential]\n\thelper = \"!f() {{ echo username=me; echo password={TOKEN}; }}; f\"\n"
                          f"[url \"http://127.0.0.1:{there.port}/\"]\n\tinsteadOf = here:\n")  # fmt: skip
        assert forges.secret(repo, bare, found, {}) == ("me", TOKEN, "git's credentials")
        assert TOKEN not in repr(forges.secret(repo, bare, found, {}))
        assert forges.find(repo, "here:me/shop.git", page=None, kind="gitea", wait=5).site == found.site
        monkeypatch.setattr(forges, "_HELPER_SECONDS", 0.3)
        config.write_text('[credential]\n\thelper = "!f() { sleep 30; }; f"\n')
        with pytest.raises(RemoteError, match="credential helper") as hung:
            forges.secret(repo, bare, found, {})
        assert hung.value.details["reason"] == "silent"


def test_addresses() -> None:
    found = {text: forges.site(text) for text in (
        "git@github.com:me/shop.git", "ssh://git@ssh.github.com:443/me/shop.git", "https://u:p@GitLab.com/a/b/c.git/",
        "http://host:3000/me/shop", "/srv/shop.git", "https://host/shop.git", "git@[::1]:me/shop", "https://[x/y/z",
    )}  # fmt: skip
    assert [one if one is None else (one.origin, one.path) for one in found.values()] == [
        ("https://github.com", "me/shop"), ("https://github.com", "me/shop"), ("https://gitlab.com", "a/b/c"),
        ("http://host:3000", "me/shop"), None, None, ("https://[::1]", "me/shop"), None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "api", "path"),
    [
        ("git@github.com:me/shop.git", "https://api.github.com", "me/shop"),
        ("https://acme.ghe.com/me/shop", "https://acme.ghe.com/api/v3", "me/shop"),
        ("git@gitlab.example.org:a/b/c.git", "https://gitlab.example.org/api/v4", "a/b/c"),
        ("ssh://git@codeberg.org/me/shop.git", "https://codeberg.org/api/v1", "me/shop"),
        ("https://forgejo.example.org/git/me/shop", "https://forgejo.example.org/git/api/v1", "me/shop"),
    ],
)
def test_where_the_api_is(still: tuple[Kit, Forge], url: str, api: str, path: str) -> None:
    kit, _ = still
    found = forges.find(kit.repo, url, page=None, kind=None, wait=1)
    assert (found.api, found.site.path) == (api, path)


@pytest.mark.parametrize(("url", "page"), [("/srv/x.git", None), ("x.git", "nonsense"), ("https://github.com/x", None),
                                           ("https://github.com/a/b/c", None)])  # fmt: skip
def test_what_names_no_repository_is_refused(still: tuple[Kit, Forge], url: str, page: str | None) -> None:
    kit, _ = still
    with pytest.raises(RopewalkError, match=r"which forge|OWNER/NAME") as caught:
        forges.find(kit.repo, url, page=page, kind=None, wait=1)
    assert caught.value.code == "E_INVALID" and "--page" in caught.value.hint


def test_checks_are_summed() -> None:
    assert summed([]).state == "none" and summed([("a", "SUCCESS"), ("a", "failure")]).state == "passed"
    assert summed([("a", "success"), ("b", "")]).state == "pending"
    assert summed([("a", "in_progress"), ("b", "timed_out")]).failing == ["b"]


def test_as_a_command_with_a_remote_that_is_a_path(tmp_path: Path, kit: Kit) -> None:
    with forge(tmp_path / "forge", "gitea") as there:
        kit.close()
        page = f"http://127.0.0.1:{there.port}/me/shop"
        home = tmp_path / "home"
        home.mkdir()
        (home / ".gitconfig").write_text(
            f'[credential]\n\thelper = "!f() {{ echo username=me; echo password={TOKEN}; }}; f"\n'
        )
        env = {"HOME": str(home), "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"), "GIT_CONFIG_NOSYSTEM": "1"}
        kit = Kit(kit.root)
        remotes.push(kit.store, remotes.add(kit.store, "origin", str(there.repo), "a/b"), "main", None, "a/b")
        kit.change(put("new.txt", "n\n"))
        kit.close()
        code, made = rw(kit.root, "pr", "open", "main:topic", "--title=-dash", "--page", page, "--via", "api", **env)
        assert code == 0 and made["result"]["created"] and made["result"]["pull"]["title"] == "-dash", made
        code, seen = rw(kit.root, "pr", "status", "main:topic", "--page", page, "--human", "--json", **env)
        assert code == 0 and seen["result"]["pull"]["state"] == "open" and seen["result"]["current"], seen


def test_the_page_shows_what_is_printed(tmp_path: Path, kit: Kit) -> None:
    page = (Path(__file__).parents[2] / "docs" / "servers.md").read_text()
    shown = [block.split("\n", 1) for block in re.findall(r"```text\n\$ (rw pr .*?)```", page, re.DOTALL)]
    with forge(tmp_path / "forge", "github") as there:
        remotes.push(kit.store, remotes.add(kit.store, "origin", there.url, "a/b"), "main", None, "a/b")
        for number in range(2):
            kit.change(put(f"{number}.txt", "x\n"))
        kit.close()
        there.checks = [("build", "success"), ("lint", "pending")]
        for number, (command, expected) in enumerate(shown):
            if number:
                there.checks = [("build", "success"), ("lint", "success")]
                there.merge(1, "squash")
            words = [*command.split()[1:], "--forge", "github", "--via", "api", "--human", "--store", kit.root]
            done = subprocess.run(
                [sys.executable, "-m", "ropewalk.cli.main", *words], env=child_env(ROPEWALK_AGENT="a/b"), text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
            )  # fmt: skip
            printed = re.sub(rf"http://(me@)?127.0.0.1:{there.port}/", "https://forge.example/", done.stdout)
            ids = re.compile(r"\b[0-9a-f]{12}\b")
            assert ids.sub("ID", printed) == ids.sub("ID", expected)
    assert len(shown) == 2


# `gh`

PAGE = "http://github.localhost/me/shop"


def through_gh(tmp_path: Path, there: Forge, monkeypatch: pytest.MonkeyPatch, script: str | None = None) -> None:
    """Lets `gh` be the installed one, which reaches the forge as its proxy, or a script."""
    if script is not None:
        program = tmp_path / "bin" / "gh"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{there.port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("GH_CONFIG_DIR", str(tmp_path / "gh"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")


@pytest.mark.compat
@pytest.mark.slow
def test_through_the_real_gh(tmp_path: Path, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("gh") is None:
        pytest.skip("gh is not installed (apt-get install gh)")
    with github(tmp_path, kit) as there:
        through_gh(tmp_path, there, monkeypatch)
        where = proposing.Where(page=PAGE)
        with pytest.raises(RemoteError, match="gh auth login") as nobody:  # and git knows no token either
            open_pull(kit, where=where, title="-Two things", body="Words.")
        assert nobody.value.details["reason"] == "authentication" and not there.pulls
        monkeypatch.setenv("GH_ENTERPRISE_TOKEN", TOKEN)
        monkeypatch.setenv("GH_TOKEN", TOKEN)
        made = open_pull(kit, where=where, title="-Two things", body="Words.", draft=True)
        assert (made.via, made.created, made.pull.number, made.pull.title) == ("gh", True, 1, "-Two things")
        assert made.pull.draft and made.pull.head == there.at("topic") and there.texts[0].startswith("Words.\n\nRope")
        assert not open_pull(kit, where=where).created and set(there.seen) == {f"token {TOKEN}"}
        gh = GhClient(shutil.which("gh") or "", forges.find(kit.repo, "x", page=PAGE, kind=None, wait=1), kit.repo, 20)
        with pytest.raises(RemoteError, match="already exists") as again:
            gh.create(Wanted("topic", "main", "t", "b"))
        assert again.value.details["status"] == 422
        with pytest.raises(NotFoundError):
            gh.look(msgspec.structs.replace(made.pull, number=7))
        there.checks = [("build", "success"), ("slow", "pending")]
        there.merge(1, "squash")
        found = proposing.status(
            kit.store, remotes.need(kit.store, None), "topic", None, "main", "a/b", {}, where=where
        )
        assert found.via == "gh" and found.pull.checks is not None and found.pull.checks.state == "pending"
        assert found.pull.state == "merged" and found.brought is not None and found.brought.how == "squash"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exec sleep 30", "silent"),
        ("echo '{'", "failed"),
        ("echo '[{\"number\": 1}]'", "failed"),
        ("echo 'error connecting to api.github.com' >&2; exit 1", "unreachable"),
        ("echo 'HTTP 403: Resource not accessible by integration' >&2; exit 1", "forbidden"),
        ("echo 'HTTP 502: Bad Gateway' >&2; exit 1", "broken_off"),
        ('read answer; echo "asked: $answer" >&2; exit 1', "rejected"),
    ],
)
def test_a_gh_that_fails_is_a_typed_error(
    tmp_path: Path, still: tuple[Kit, Forge], monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    kit, there = still
    through_gh(tmp_path, there, monkeypatch, script)
    began = time.monotonic()
    with pytest.raises(RemoteError) as caught:
        open_pull(kit, where=proposing.Where(page=PAGE), wait=1.0)
    assert caught.value.details["reason"] == reason and time.monotonic() - began < 10
    assert not there.pulls and not (there.repo / "refs/heads/topic").exists()


def test_where_nobody_is_logged_in_to_gh_the_credentials_of_git_do(
    tmp_path: Path, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with github(tmp_path, kit) as there:
        through_gh(tmp_path, there, monkeypatch, f"echo $* >> {tmp_path}/asked; echo 'gh auth login' >&2; exit 4")
        made = open_pull(kit, where=proposing.Where("github"))
        assert made.via == "api" and made.created and there.texts
        assert (tmp_path / "asked").read_text().startswith("pr list --head topic") and TOKEN not in (
            tmp_path / "asked").read_text()  # fmt: skip
        with pytest.raises(RemoteError, match="gh auth login"):
            open_pull(kit, where=proposing.Where("github", via="gh"))
