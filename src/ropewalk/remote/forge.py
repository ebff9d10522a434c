"""Forges: which one a remote is on, where its API is, and the user's credentials for it.

What is known of the address is taken from it; a host of unknown kind is asked, without credentials. A token is the
user's: from the variable that its forge's own programs read, and only for the hosts they would send it to, else from
git's credential helpers. It is in no command line, no message and no log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from ropewalk.core.errors import InvalidError, RemoteError
from ropewalk.core.process import ChildTimeout, git_program, run
from ropewalk.remote import transport
from ropewalk.remote.calling import Caller
from ropewalk.remote.transport import Place

Kind = Literal["github", "gitea", "gitlab"]
KINDS: tuple[Kind, ...] = ("github", "gitea", "gitlab")

_HELPER_SECONDS = 30.0
_HOSTS: dict[str, Kind] = {"github.com": "github", "gitlab.com": "gitlab", "codeberg.org": "gitea"}
_WORDS: dict[str, Kind] = {"github": "github", "gitlab": "gitlab", "gitea": "gitea", "forgejo": "gitea"}
_SSH_HOSTS = {"ssh.github.com": "github.com", "altssh.gitlab.com": "gitlab.com"}
"""Are hosts that stand for others where ssh goes over the port of HTTPS."""

_SCP = re.compile(r"(?:[^@/:]+@)?(\[[^\]]+\]|[^:/]+):(?!//)(.*)", re.DOTALL)
_API = {"github": "/api/v3", "gitea": "/api/v1", "gitlab": "/api/v4"}


class _Tokens(NamedTuple):
    """Is where a forge's own programs find a token: for its public host, and for the host that a variable names."""

    public: tuple[str, ...]
    other: tuple[str, ...]
    host: tuple[str, ...]


_TOKENS: dict[Kind, _Tokens] = {
    "github": _Tokens(("GH_TOKEN", "GITHUB_TOKEN"), ("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"), ("GH_HOST",)),
    "gitlab": _Tokens(("GITLAB_TOKEN",), ("GITLAB_TOKEN",), ("GITLAB_HOST", "GITLAB_URI")),
    "gitea": _Tokens((), ("GITEA_SERVER_TOKEN", "GITEA_TOKEN"), ("GITEA_SERVER_URL",)),
}


class Site(NamedTuple):
    """Is a repository on a host: the scheme and host of its pages, with a port if it has one, and its path there."""

    scheme: str
    host: str
    path: str

    @property
    def origin(self) -> str:
        """Gives the URL of the host."""
        return f"{self.scheme}://{self.host}"

    @property
    def name(self) -> str:
        """Gives the host without its port."""
        return (urlsplit(self.origin).hostname or "").lower()


class Secret(NamedTuple):
    """Is a token or password, whose it is where that is known, and where it comes from."""

    user: str
    word: str
    source: str

    def __repr__(self) -> str:
        return f"Secret from {self.source}"


class Forge(NamedTuple):
    """Is a forge: its kind, the root of its API, and the repository there."""

    kind: Kind
    api: str
    site: Site


def site(text: str) -> Site | None:
    """Gives where the pages of a repository are by its address; None for a path, or an address without a host."""
    if not transport.is_url(text):
        return None
    if "://" in text:
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            return None
        web = parts.scheme.lower() in ("http", "https")
        scheme = parts.scheme.lower() if web else "https"
        port = port if web else None
        path = parts.path
    else:
        found = _SCP.fullmatch(text)
        if found is None:
            return None
        scheme, host, port, path = "https", found[1].strip("[]"), None, found[2]
    host = _SSH_HOSTS.get(host.lower(), host.lower())
    path = re.sub(r"(\.git)?/*\Z", "", unquote(path).strip("/"))
    if not host or "/" not in path:
        return None
    shown = f"[{host}]" if ":" in host else host
    return Site(scheme, shown if port is None else f"{shown}:{port}", path)


def find(git_dir: str, url: str, *, page: str | None, kind: Kind | None, wait: float) -> Forge:
    """Gives the forge that a remote is on; `page` is the repository's page where the remote's address tells too little.

    `E_INVALID` where there is no host or no repository in it, `E_REMOTE` where the host is no known forge.
    """
    there = site(page if page is not None else _real_url(git_dir, url))
    if there is None:
        what = page if page is not None else transport.public(url)
        raise InvalidError(
            f"{transport.public(what)} does not say which repository of which forge is meant",
            hint="name its page with --page https://HOST/OWNER/NAME",
        )
    found = kind or _known(there.name) or _asked(there, wait)
    if found == "github":
        api = "https://api.github.com" if there.name == "github.com" else f"{there.origin}{_API[found]}"
        return Forge(found, api, _at(there, 0))
    if found == "gitea":
        # it may stand below a path of its host
        above = max(0, there.path.count("/") - 1)
        prefix = "".join(f"/{part}" for part in there.path.split("/")[:above])
        return Forge(found, f"{there.origin}{prefix}{_API[found]}", _at(there, above))
    return Forge(found, f"{there.origin}{_API[found]}", there)


def _at(there: Site, above: int) -> Site:
    """Gives a site whose path is owner and name."""
    parts = there.path.split("/")[above:]
    if len(parts) != 2:
        raise InvalidError(f"{there.path} is not OWNER/NAME", hint="name its page with --page https://HOST/OWNER/NAME")
    return there._replace(path="/".join(parts))


def _real_url(git_dir: str, url: str) -> str:
    """Gives the address behind the user's own short forms (`insteadOf`); nothing is contacted."""
    place = transport.place(url, exists=False)
    if place.path is not None:
        return url
    return transport.call(git_dir, place, "ls-remote", "--get-url", "--", url, timeout=30).text() or url


def _known(host: str) -> Kind | None:
    if host in _HOSTS:
        return _HOSTS[host]
    if host.endswith(".ghe.com"):
        return "github"
    return next((kind for word, kind in _WORDS.items() if word in host.split(".")), None)


def _asked(there: Site, wait: float) -> Kind:
    """Asks a host which forge it is; nobody's credentials are sent."""
    caller = Caller(there.origin, {}, wait=wait)
    version = caller.look(f"{_API['gitea']}/version")
    if version.status == 200 and isinstance(version.value, dict) and "version" in version.value:
        return "gitea"
    version = caller.look(f"{_API['gitlab']}/version")
    if "x-gitlab-meta" in version.headers or (version.status == 401 and isinstance(version.value, dict)):
        return "gitlab"
    if "x-github-request-id" in caller.look(f"{_API['github']}/meta").headers:
        return "github"
    raise RemoteError(
        f"{there.origin} does not answer as a forge that is known", reason="unknown_forge", repository=there.origin,
        hint="name its kind with --forge, or its page with --page",
    )  # fmt: skip


def secret(git_dir: str, url: str, forge: Forge, env: Mapping[str, str]) -> Secret | None:
    """Gives the user's token for a forge, None where there is none; nothing asks for one.

    `E_REMOTE` when a credential helper of the user's git does not answer.
    """
    for name in _variables(forge, env):
        if word := env.get(name, "").strip():
            return Secret("", word, name)
    return _of_git(git_dir, url, forge.site)


def _variables(forge: Forge, env: Mapping[str, str]) -> tuple[str, ...]:
    tokens, host = _TOKENS[forge.kind], forge.site.name
    if _HOSTS.get(host) == forge.kind or (forge.kind == "github" and host.endswith(".ghe.com")):
        return tokens.public
    named = (re.sub(r"\A[a-z]+://", "", env.get(one, "").lower()).split("/")[0] for one in tokens.host)
    return tokens.other if forge.site.host.lower() in named else ()


def _of_git(git_dir: str, url: str, there: Site) -> Secret | None:
    own = site(url)
    if own is not None and own.origin == there.origin and "://" in url and url.lower().startswith("http"):
        asked = f"url={url}\n\n"  # with the name and the password that may stand in it
    else:
        asked = f"protocol={there.scheme}\nhost={there.host}\npath={there.path}.git\n\n"
    env = transport.environment(Place(there.origin, None))
    argv = [git_program(), f"--git-dir={git_dir}", "-c", "credential.interactive=false", "credential", "fill"]
    try:
        done = run(argv, stdin=asked.encode("utf-8", "surrogateescape"), env=env, timeout=_HELPER_SECONDS)
    except ChildTimeout as error:
        raise RemoteError(
            f"git's credential helper did not answer within {error.seconds:g} s", reason="silent",
            hint=f"see `git credential fill` for {there.origin}; nothing can ask here", repository=there.origin,
        ) from None  # fmt: skip
    said = dict(line.partition("=")[::2] for line in done.out.decode("utf-8", "replace").splitlines())
    if done.code or not said.get("password"):
        return None
    return Secret(said.get("username", ""), said["password"], "git's credentials")
