"""Calling a forge's API: JSON over HTTP within bounds; a refusal is a typed error that tells no secret."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import NotFoundError, RemoteError, RopewalkError

SECONDS = 120.0
"""Is how long one call may take, however much of it comes."""

_CONNECT = 15.0
_MOST = 16 << 20
_REDIRECTS = 3
_WAIT = 60.0
_AGENT = "ropewalk"


class Answer(NamedTuple):
    """Is what a forge answered: status, headers by their names in small letters, and the JSON, None where it is none.

    `more` is the path and query of the next page, if there is one.
    """

    status: int
    headers: Mapping[str, str]
    value: Any
    more: str | None = None


class Caller:
    """Calls one API with the headers given; `secrets` are shown in no message, whatever the other side says."""

    def __init__(self, root: str, headers: Mapping[str, str], *, secrets: tuple[str, ...] = (), wait: float) -> None:
        self.root, self._headers, self._secrets = root, dict(headers), secrets
        self._wait = min(wait or SECONDS, SECONDS)

    def get(self, path: str, **query: str | int) -> Any:
        """Gives the JSON at a path; a refusal is `E_REMOTE`, what is not there `E_NOT_FOUND`."""
        return self._good(self.look(path, **query), path)

    def pages(self, path: str, most: int, **query: str | int) -> list[Any]:
        """Gives the entries of a list that comes in pages, as many pages as are allowed."""
        found: list[Any] = []
        answer = self.look(path, **query)
        for _ in range(most):
            value = self._good(answer, path)
            if not isinstance(value, list):
                raise self._odd(path)
            found += value
            if answer.more is None:
                break
            answer = self._call("GET", answer.more, None)
        return found

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Sends JSON to a path and gives what comes back; refusals as in `get`, with their status in the details."""
        return self._good(self._call("POST", self.root + path, msgspec.json.encode(body)), path)

    def look(self, path: str, **query: str | int) -> Answer:
        """Gives the answer at a path, whatever it is; `E_REMOTE` where there is none."""
        return self._call("GET", self.root + path + (f"?{urlencode(query)}" if query else ""), None)

    def _good(self, answer: Answer, path: str) -> Any:
        if not 200 <= answer.status < 300:
            raise self._refused(answer)
        if answer.value is None:
            raise self._odd(path)
        return answer.value

    def _call(self, method: str, url: str, body: bytes | None) -> Answer:
        import aiohttp

        try:
            return asyncio.run(self._follow(method, url, body))
        except TimeoutError:
            raise self._error(f"{self.root} did not answer in time", "silent", "try again when it is in reach;"
                              " ROPEWALK_REMOTE_WAIT says how long it may be silent") from None  # fmt: skip
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise self._error(f"{self.root}: {error}", "host_key", "see what its certificate says;"
                              " SSL_CERT_FILE names certificates to trust") from None  # fmt: skip
        except aiohttp.ClientConnectorError as error:
            words = f"{self.root} is out of reach: {error.strerror or error}"
            raise self._error(words, "unreachable", "check the address and the connection") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            words = f"{self.root} broke off: {error or type(error).__name__}"
            raise self._error(words, "broken_off", "run the command again") from None

    async def _follow(self, method: str, url: str, body: bytes | None) -> Answer:
        import aiohttp

        bounds = aiohttp.ClientTimeout(total=SECONDS, sock_connect=min(_CONNECT, self._wait), sock_read=self._wait)
        headers = {"Accept": "application/json", "User-Agent": _AGENT, **self._headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(timeout=bounds, headers=headers, cookie_jar=jar) as session:
            for _ in range(_REDIRECTS + 1):
                async with session.request(
                    method, url, data=body, allow_redirects=False, proxy=_proxy(url)
                ) as answer:  # fmt: skip
                    if answer.status not in (301, 302, 307, 308):
                        return await self._read(answer)
                    there = urljoin(url, answer.headers.get("Location", ""))
                    # credentials go where they were meant to go, and a request that makes something is made once
                    if urlsplit(there)[:2] != urlsplit(url)[:2] or (body is not None and answer.status < 307):
                        raise self._error(f"{self.root} leads to {there}", "moved", "give the remote its new address")
                    url = there
        raise self._error(f"{self.root} leads in a circle", "moved", "check the address")

    async def _read(self, answer: Any) -> Answer:
        data = bytearray()
        async for part in answer.content.iter_chunked(1 << 16):
            data += part
            if len(data) > _MOST:
                raise self._error(f"{self.root} answers with more than {_MOST >> 20} MiB", "too_large", "")
        try:
            value = msgspec.json.decode(data) if data else None
        except UNREADABLE:
            value = None
        headers = {name.lower(): text for name, text in answer.headers.items()}
        link = answer.links.get("next")
        more = str(link["url"]) if link is not None else None
        if more is not None and urlsplit(more)[:2] != urlsplit(self.root)[:2]:
            more = None
        return Answer(answer.status, headers, value, more)

    def _refused(self, answer: Answer) -> RopewalkError:
        said = self._clean(words(answer.value)) or f"HTTP {answer.status}"
        text, status = f"{self.root} says: {said}", answer.status
        if status == 404:
            return NotFoundError(
                f"{text} ({status})", hint="check the address, and that the token may read the repository",
                repository=self.root, status=status,
            )  # fmt: skip
        limited = status == 429 or (status == 403 and answer.headers.get("x-ratelimit-remaining") == "0")
        if limited or (status == 403 and "retry-after" in answer.headers):
            return self._error(text, "rate_limited", "try again later", status=status,
                               retry_after=answer.headers.get("retry-after"))  # fmt: skip
        if status == 401:
            return self._error(text, "authentication", "give a token by the forge's own variable, or by git's"
                               " credential helper; nothing can ask for it here", status=status)  # fmt: skip
        if status == 403:
            return self._error(text, "forbidden", "the token lacks the right to it", status=status)
        if status >= 500:
            return self._error(text, "broken_off", "run the command again", status=status)
        return self._error(text, "rejected", "see what it says", status=status)

    def _odd(self, path: str) -> RemoteError:
        words = f"{self.root} does not answer as a forge at {path}"
        return self._error(words, "unknown_forge", "name its kind with --forge, or its page with --page")

    def _error(self, text: str, reason: str, hint: str, **details: Any) -> RemoteError:
        return RemoteError(self._clean(text), hint=hint, reason=reason, repository=self.root, **details)

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "<secret>")
        return text


def _proxy(url: str) -> str | None:
    """Gives the proxy that the user's variables name for a URL."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def words(value: Any) -> str:
    """Gives what a refusal says, from whatever form of JSON a forge puts it into."""
    if isinstance(value, str):
        return value[:500]
    if isinstance(value, list):
        return "; ".join(dict.fromkeys(filter(None, map(words, value[:10]))))[:500]
    if isinstance(value, dict):
        named = [words(value[key]) for key in ("message", "error", "error_description", "errors") if value.get(key)]
        other = [] if named else [words(one) for one in list(value.values())[:10] if isinstance(one, (str, list))]
        return "; ".join(dict.fromkeys(filter(None, named or other)))[:500]
    return ""
