"""Logins at the server: tokens that end, and refresh tokens that are good for one use, as providers hand them out."""

from __future__ import annotations

import base64
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import msgspec

Kind = Literal["claude", "codex"]
BETA = "oauth-2025-04-20"


class Granted(NamedTuple):
    """Is a login as it was handed out last; `until` is when its access token ends, in seconds since 1970."""

    kind: Kind
    account: str
    access: str
    refresh: str
    until: float

    def file(self) -> dict[str, Any]:
        """Gives the content of the file in which the program keeps it."""
        if self.kind == "claude":
            held = {"accessToken": self.access, "refreshToken": self.refresh, "expiresAt": int(self.until * 1000),
                    "scopes": ["user:inference", "user:profile"], "subscriptionType": "max"}  # fmt: skip
            return {"claudeAiOauth": held}
        tokens = {"id_token": _jwt(self.account, self.until), "access_token": self.access,
                  "refresh_token": self.refresh, "account_id": self.account}  # fmt: skip
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": now}


class Logins:
    """Is the server's side of logins.

    `renewed` has the account of each renewal, `refused` the reasons of those that were not. `fail` is a status that
    renewals are answered with instead, `wait` how long each takes.
    """

    def __init__(self) -> None:
        self.seconds = 3600.0
        self.fail = 0
        self.wait = 0.0
        self.renewed: list[str] = []
        self.refused: list[str] = []
        self._by_access: dict[str, Granted] = {}
        self._by_refresh: dict[str, Granted] = {}
        self._spent: set[str] = set()
        self._granted = False
        self._guard = threading.Lock()

    def grant(self, kind: Kind, account: str = "account-of-the-login", seconds: float | None = None) -> Granted:
        """Hands out a login."""
        with self._guard:
            return self._grant(kind, account, self.seconds if seconds is None else seconds)

    def _grant(self, kind: Kind, account: str, seconds: float) -> Granted:
        self._granted = True
        until = time.time() + seconds
        access = f"sk-ant-oat01-{secrets.token_hex(24)}" if kind == "claude" else _jwt(account, until)
        start = "sk-ant-ort01-" if kind == "claude" else "rt_"
        made = Granted(kind, account, access, start + secrets.token_hex(24), until)
        self._by_access[access] = self._by_refresh[made.refresh] = made
        return made

    def end(self, access: str) -> None:
        """Takes an access token back before its time."""
        with self._guard:
            self._by_access.pop(access, None)

    def end_all(self, account: str) -> None:
        """Takes back all of an account: only a person can help."""
        with self._guard:
            for held in (self._by_access, self._by_refresh):
                for token in [token for token, one in held.items() if one.account == account]:
                    del held[token]

    def last(self, account: str) -> Granted:
        """Gives an account's login as it is now."""
        with self._guard:
            return [one for one in self._by_refresh.values() if one.account == account][-1]

    def __bool__(self) -> bool:
        """Says whether one was ever granted."""
        return self._granted

    def why_not(self, key: str, headers: Mapping[str, str]) -> str:
        """Gives why a request is no good one of a login, empty when it is."""
        with self._guard:
            held = self._by_access.get(key)
        if held is None or held.until <= time.time():
            return "the token is none, or has ended"
        if held.kind == "claude" and BETA not in headers.get("anthropic-beta", "").split(","):
            return "the flag of logins is missing"
        if held.kind == "codex" and headers.get("chatgpt-account-id") != held.account:
            return "it is of another account"
        return ""

    def renew(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Answers a request for new tokens; a refresh token is good for one."""
        try:
            asked = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError:
            asked = dict(parse_qsl(body.decode("utf-8", "replace")))
        if self.fail:
            return self.fail, {"error": "server_error"}
        token = str(asked.get("refresh_token") or "")
        with self._guard:
            held = self._by_refresh.pop(token, None)
            if held is None or asked.get("grant_type") != "refresh_token" or not asked.get("client_id"):
                why = "the refresh token was used already" if token in self._spent else "the refresh token is none"
                self.refused.append(why)
                return 400, {"error": "invalid_grant", "error_description": why}
            self._spent.add(token)
            self.renewed.append(held.account)
            made = self._grant(held.kind, held.account, self.seconds)
        answer: dict[str, Any] = {"access_token": made.access, "refresh_token": made.refresh, "token_type": "Bearer"}
        if held.kind == "claude":
            return 200, {**answer, "expires_in": int(self.seconds), "scope": asked.get("scope") or "user:inference"}
        return 200, {**answer, "id_token": _jwt(made.account, made.until)}


def _jwt(account: str, until: float) -> str:
    about = {"chatgpt_account_id": account, "chatgpt_plan_type": "pro"}
    claims = {"exp": int(until), "jti": secrets.token_hex(12), "https://api.openai.com/auth": about}
    parts = (msgspec.json.encode({"alg": "none", "typ": "JWT"}), msgspec.json.encode(claims), b"none")
    return ".".join(base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in parts)
