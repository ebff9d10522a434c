"""Logins of agent programs: where a program keeps its own, what is in its file, and what a request by it looks like.

`renewal.py` renews them. None of their tokens goes into a cage (G11).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from blake3 import blake3

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import LoginError
from ropewalk.gateway.settings import Login, Upstream

BETA = "oauth-2025-04-20"
"""Is the flag by which Anthropic's API takes a login's token."""

LARGEST = 1 << 20
_CODEX_DAYS = 8


class Program(NamedTuple):
    """Is how a program keeps its login: folder below the home and the variable that moves it, file, and addresses.

    `locks` are folders that it makes while it renews (`{}` is the login's folder), `command` is what logs in anew.
    """

    folder: str
    variable: str
    file: str
    url: str
    refresh_url: str
    client: str
    command: str
    locks: tuple[str, ...] = ()


PROGRAMS: dict[str, Program] = {
    "claude": Program(
        ".claude", "CLAUDE_CONFIG_DIR", ".credentials.json", "https://api.anthropic.com",
        "https://platform.claude.com/v1/oauth/token", "9d1c250a-e61b-44d9-88ed-5944d1962f5e", "claude auth login",
        ("{}/.oauth_refresh.lock", "{}.lock"),
    ),
    "codex": Program(
        ".codex", "CODEX_HOME", "auth.json", "https://chatgpt.com/backend-api/codex",
        "https://auth.openai.com/oauth/token", "app_EMoamEEZ73f0CkXaXp7hrann", "codex login",
    ),
}  # fmt: skip


class Held(NamedTuple):
    """Is what a login's file holds: its tokens, the account, and until when the access token is good (None: unsaid)."""

    access: str
    refresh: str
    account: str
    until: float | None

    def is_over(self, margin: float = 0.0) -> bool:
        """Says whether the access token is good for no longer than so many seconds."""
        return self.until is not None and self.until - margin <= time.time()


def located(program: str, folder: str, refresh_url: str = "") -> Login:
    """Gives the login that a program keeps in a folder."""
    return Login(program, os.path.join(folder, PROGRAMS[program].file), refresh_url)


def default_folder(program: str, env: Mapping[str, str]) -> str:
    """Gives the folder where a program keeps the login of whoever has this environment."""
    known = PROGRAMS[program]
    return env.get(known.variable) or os.path.join(env.get("HOME") or os.path.expanduser("~"), known.folder)


def command(login: Login) -> str:
    """Gives the command by which a person logs in anew."""
    known, folder = PROGRAMS[login.program], os.path.dirname(login.file)
    moved = "" if os.path.basename(folder) == known.folder else f"{known.variable}={folder} "
    return f"{moved}{known.command}"


def read(login: Login) -> Held:
    """Gives what a login's file holds; `E_LOGIN` where it is missing, is another's, or holds no login."""
    return held_in(login, document(login))


def document(login: Login) -> dict[str, Any]:
    """Gives the whole of a login's file; `E_LOGIN` where it is missing, or another user's, or no JSON."""
    try:
        with open(login.file, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise error(login, f"{login.file} belongs to another user")
            found = msgspec.json.decode(file.read(LARGEST))
    except (FileNotFoundError, NotADirectoryError):
        raise error(login, f"{login.program} is not logged in: there is no {login.file}") from None
    except OSError as broken:
        raise error(login, f"{login.file} can't be read: {broken.strerror}") from None
    except UNREADABLE:
        raise error(login, f"{login.file} is no JSON") from None
    if not isinstance(found, dict):
        raise error(login, f"{login.file} holds no login")
    return found


def held_in(login: Login, found: dict[str, Any]) -> Held:
    """Gives what of a login a document holds; `E_LOGIN` where there is none."""
    part = found.get("claudeAiOauth" if login.program == "claude" else "tokens")
    tokens: dict[str, Any] = part if isinstance(part, dict) else {}
    names = ("accessToken", "refreshToken") if login.program == "claude" else ("access_token", "refresh_token")
    access, refresh = (str(tokens.get(name) or "") for name in names)
    if not access or not refresh:
        raise error(login, f"{login.file} holds no login of a person: an access token and a refresh token")
    if login.program == "claude":
        ends = tokens.get("expiresAt")
        return Held(access, refresh, "", ends / 1000 if isinstance(ends, int | float) else None)
    claims = _claims(access)
    about = _claims(str(tokens.get("id_token") or "")).get("https://api.openai.com/auth")
    account = tokens.get("account_id") or (about.get("chatgpt_account_id") if isinstance(about, dict) else "") or ""
    ends = claims.get("exp")
    return Held(access, refresh, str(account), float(ends) if isinstance(ends, int | float) else _since(found))


def _since(found: dict[str, Any]) -> float | None:
    """Gives the end of a token that names none: some days after the last renewal."""
    from datetime import datetime

    try:
        last = datetime.fromisoformat(str(found["last_refresh"]))
    except (KeyError, ValueError):
        return None
    return last.timestamp() + _CODEX_DAYS * 86_400


def _claims(token: str) -> dict[str, Any]:
    """Gives what a JWT says of itself; nothing for what is none."""
    import base64

    try:
        body = token.split(".")[1]
        found = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError, *UNREADABLE):
        return {}
    return found if isinstance(found, dict) else {}


def renewed(login: Login, found: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Gives a login's file with what a renewal brought; all else in it stays."""
    at = time.time()
    if login.program == "claude":
        lasts = answer.get("expires_in")
        now = {**found["claudeAiOauth"], "accessToken": answer["access_token"]}
        now["refreshToken"] = answer.get("refresh_token") or now["refreshToken"]
        now["expiresAt"] = int((at + lasts) * 1000) if isinstance(lasts, int | float) else None
        if isinstance(answer.get("scope"), str):
            now["scopes"] = answer["scope"].split()
        return {**found, "claudeAiOauth": now}
    brought = {name: answer[name] for name in ("access_token", "refresh_token", "id_token") if answer.get(name)}
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return {**found, "tokens": {**found["tokens"], **brought}, "last_refresh": stamp}


def why_refused(login: Login, held: Held, marks: str) -> str:
    """Gives the provider's words when it refused to renew a login as it is, empty when it did not."""
    try:
        with open(mark(login, marks), "rb") as file:
            noted = msgspec.json.decode(file.read(), type=dict[str, str])
    except (OSError, *UNREADABLE):
        return ""
    return noted.get("words", "") or "refused" if noted.get("refused") == digest(held.refresh) else ""


def check(login: Login, held: Held, marks: str) -> None:
    """Raises `E_LOGIN` when the provider refused to renew a login as it is."""
    if words := why_refused(login, held, marks):
        raise error(login, f"the provider does not renew the login of {login.program}: {words}")


def error(login: Login, words: str) -> LoginError:
    """Gives the error that names the way out."""
    return LoginError(words, hint=f"log in with `{command(login)}`", program=login.program, command=command(login))


def digest(token: str) -> str:
    """Gives what stands for a token in names and notes."""
    return blake3(token.encode()).hexdigest()[:16]


def mark(login: Login, marks: str) -> str:
    """Gives the file of what is known of a login."""
    return os.path.join(marks, f"{login.program}-{digest(os.path.realpath(login.file))}.json")


def marks(folder: str) -> str:
    """Gives the folder where a gateway notes what it knows of logins."""
    return os.path.join(folder, "logins")


def path_at(upstream: Upstream, path: str) -> str:
    """Gives a request's path at the provider of an upstream: that of ChatGPT has no version in it."""
    codex = upstream.login is not None and upstream.login.program == "codex"
    return path.removeprefix("/v1") if codex else path


def flags(upstream: Upstream, value: str) -> str:
    """Gives the flags of a request to Anthropic: that of a login stands with one, and with nothing else."""
    found = [one for part in value.split(",") if (one := part.strip()) and one != BETA]
    claude = upstream.login is not None and upstream.login.program == "claude"
    return ",".join([*found, BETA] if claude else found)
