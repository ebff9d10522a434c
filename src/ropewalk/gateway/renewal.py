"""Renewing logins: one at a time over all processes, and never without a token that is good (G11).

A refresh token is good for one use. It is sent only while no other process can send it: under a lock on the login's
folder, and under the locks that the program itself takes. What comes back is durable before the old one is gone; when
whoever asked dies between the two, the next one finds the answer beside the file.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ropewalk.core import clock, durable
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import ProviderError, RopewalkError, os_error
from ropewalk.gateway import logins
from ropewalk.gateway.logins import LARGEST, PROGRAMS, Held
from ropewalk.gateway.settings import Login, Upstream

if TYPE_CHECKING:
    import asyncio

MARGIN = 300.0
"""How many seconds before its end a token is renewed; the programs themselves do it then, too."""

_ASK_SECONDS, _LOCK_SECONDS, _STALE_SECONDS, _AWAY_SECONDS, _AGAIN_SECONDS = 20.0, 60.0, 60.0, 5.0, 60.0
_ROOM = 1 << 15


def ensure(login: Login, marks: str) -> Held:
    """Gives a login that is good for a request, renewed first where its token is over.

    `marks` is a folder for what is known of logins. Raises `E_LOGIN` where only the person can help, and `E_PROVIDER`
    where the provider can't be reached and the token is over.
    """
    held = logins.read(login)
    logins.check(login, held, marks)
    if not held.is_over(MARGIN):
        return held
    try:
        return renew(login, held.access, marks)
    except ProviderError:
        if held.is_over():
            raise
        return held


def renew(login: Login, spent: str, marks: str) -> Held:
    """Gives tokens in the place of an access token that is good no more; whoever was faster has them renewed already.

    Raises `E_LOGIN` when the provider refuses, which is noted: nobody asks it again with this refresh token.
    """
    with _alone(login):
        _take_up(login)
        found = logins.document(login)
        held = logins.held_in(login, found)
        if held.access != spent and not held.is_over():
            return held
        logins.check(login, held, marks)
        try:
            with _place(login, held.refresh) as put:
                answer = _ask(login, held.refresh, found)
                if not isinstance(answer, str):
                    made = logins.renewed(login, found, answer)
                    put(msgspec.json.format(msgspec.json.encode(made), indent=2))
                    return logins.held_in(login, made)
        except OSError as error:
            raise os_error(error, f"write of the login of {login.program}") from None
        with suppress(RopewalkError):
            if (now := logins.read(login)).refresh != held.refresh:
                return now  # the program itself was at it, without its lock
        _put(logins.mark(login, marks), msgspec.json.encode({"refused": logins.digest(held.refresh), "words": answer}))
        raise logins.error(login, f"the provider does not renew the login of {login.program}: {answer}")


def _put(path: str, data: bytes) -> None:
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        durable.put(path, data)
    except OSError as error:
        raise os_error(error, "a note on a login") from None


@contextmanager
def _place(login: Login, refresh: str) -> Iterator[Callable[[bytes], None]]:
    """Gives a way to put a new file in a login's place, whole and durable, over the old one.

    Its room on the disk is taken before, so that a full or closed disk is known while the old tokens are still good.
    """
    path = os.path.realpath(login.file)
    part = f"{path}.ropewalk-{logins.digest(refresh)}"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def put(data: bytes) -> None:
        durable.write_all(fd, data)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
        os.rename(part, path)
        durable.sync(os.path.dirname(path))

    is_filled = False

    def fill(data: bytes) -> None:
        nonlocal is_filled
        is_filled = True  # from here on it may hold the only good tokens, and the next one looks at it
        put(data)

    try:
        os.posix_fallocate(fd, 0, os.stat(path).st_size + _ROOM)
        yield fill
    finally:
        if not is_filled:
            os.unlink(part)
        os.close(fd)


def _take_up(login: Login) -> None:
    """Puts in place what one who died had written beside a login's file; what does not follow on it is removed."""
    path = os.path.realpath(login.file)
    folder, name = os.path.split(path)
    try:
        left = [one for one in os.listdir(folder) if one.startswith(f"{name}.ropewalk-")]
    except OSError:
        return
    for one in left:
        beside = os.path.join(folder, one)
        try:
            now = logins.read(login)
            with open(beside, "rb") as file:
                data = file.read(LARGEST).rstrip(b"\0")  # its room was taken before it was written
            logins.held_in(login, msgspec.json.decode(data, type=dict[str, Any]))
            if one != f"{name}.ropewalk-{logins.digest(now.refresh)}":
                raise ValueError
        except (RopewalkError, ValueError, OSError, *UNREADABLE):
            with suppress(OSError):
                os.unlink(beside)
            continue
        try:
            os.truncate(beside, len(data))
            durable.sync(beside)
            os.rename(beside, path)
            durable.sync(folder)
        except OSError as error:
            raise os_error(error, f"write of the login of {login.program}") from None


@contextmanager
def _alone(login: Login) -> Iterator[None]:
    """Keeps others from renewing a login: our own processes by a lock on its folder, the program by its own locks."""
    real = os.path.dirname(os.path.realpath(login.file))
    until = clock.monotonic() + _LOCK_SECONDS
    try:
        fd = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise logins.error(login, f"{login.program} is not logged in: there is no {login.file}") from None
    made: list[str] = []
    try:
        while not _locked(fd):
            _wait(login, until)
        for pattern in PROGRAMS[login.program].locks:
            # the program's own are folders that it makes; one that nobody touched for a minute is a dead one's
            path = pattern.format(os.path.dirname(login.file) if pattern.startswith("{}/") else real)
            while (got := _made(path)) is None:
                _wait(login, until)
            made += [path] if got else []
        yield
    finally:
        for path in reversed(made):
            with suppress(OSError):
                os.rmdir(path)
        os.close(fd)


def _wait(login: Login, until: float) -> None:
    if clock.monotonic() > until:
        raise ProviderError(f"another process has been renewing the login of {login.program} for too long",
                            hint="try again", program=login.program)  # fmt: skip
    time.sleep(0.05)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _made(path: str) -> bool | None:
    """Says whether a lock of the program's was made by us; None while another has it, False where none can be made."""
    try:
        os.mkdir(path, mode=0o700)
        return True
    except FileExistsError:
        with suppress(OSError):
            if os.stat(path).st_mtime < time.time() - _STALE_SECONDS:
                os.rmdir(path)
        return None
    except OSError:
        return False


def _ask(login: Login, refresh: str, found: dict[str, Any]) -> dict[str, Any] | str:
    """Asks a provider for new tokens; gives its answer, or the words by which it refuses for good."""
    import http.client
    import urllib.error
    import urllib.request

    known = PROGRAMS[login.program]
    words = {"grant_type": "refresh_token", "refresh_token": refresh, "client_id": known.client}
    scopes = found.get("claudeAiOauth", {}).get("scopes") if login.program == "claude" else None
    if isinstance(scopes, list) and scopes:
        words["scope"] = " ".join(map(str, scopes))
    asked = urllib.request.Request(
        login.refresh_url or known.refresh_url, msgspec.json.encode(words), {"Content-Type": "application/json"}
    )

    class Unmoved(urllib.request.HTTPRedirectHandler):
        """Follows no redirection: a refresh token goes to the address that was meant, or nowhere."""

        def redirect_request(self, *_: Any) -> None:
            return None

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Unmoved())
    try:
        try:
            with opener.open(asked, timeout=_ASK_SECONDS) as answer:
                status, data = answer.status, answer.read(LARGEST)
        except urllib.error.HTTPError as refusal:
            with refusal:
                status, data = refusal.code, refusal.read(LARGEST)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _away(login, type(getattr(error, "reason", error)).__name__) from None
    try:
        told = msgspec.json.decode(data, type=dict[str, Any])
    except UNREADABLE:
        told = {}
    if status == 200 and isinstance(told.get("access_token"), str) and told["access_token"]:
        return told
    if status in (400, 401, 403):
        return _words(told, status).replace(refresh, "<token>")
    raise _away(login, f"it answers {status}")


def _words(told: dict[str, Any], status: int) -> str:
    error = told.get("error")
    if isinstance(error, dict):
        error = error.get("message") or error.get("code") or error.get("type")
    return str(told.get("error_description") or error or status)[:200]


def _away(login: Login, why: str) -> ProviderError:
    return ProviderError(f"the login of {login.program} can't be renewed now: {why}", hint="try again",
                         program=login.program)  # fmt: skip


class Broker:
    """Is what a gateway knows of logins; requests that come at once wait for one renewal."""

    def __init__(self, folder: str) -> None:
        self._marks = logins.marks(folder)
        self._turns: dict[str, asyncio.Lock] = {}
        self._given: dict[str, tuple[float, str]] = {}
        self._away: dict[str, tuple[float, ProviderError]] = {}

    async def armed(self, upstream: Upstream, spent: str = "") -> Upstream:
        """Gives an upstream with its login's token, another than one that was refused; one without a login as it is.

        Raises `E_LOGIN` and `E_PROVIDER`.
        """
        login = upstream.login
        if login is None:
            return upstream
        import asyncio

        async with self._turns.setdefault(login.file, asyncio.Lock()):
            held = await self._current(login, spent)
        account = {"chatgpt-account-id": held.account} if held.account else {}
        return msgspec.structs.replace(upstream, key=held.access, headers={**account, **upstream.headers})

    async def _current(self, login: Login, spent: str) -> Held:
        held = logins.read(login)
        at, given = self._given.get(login.file, (0.0, ""))
        if held.access != spent:
            # a token that was made for less than the margin is used to its end
            if not held.is_over(0.0 if given == held.access else MARGIN):
                return held
        elif given == spent and clock.monotonic() - at < _AGAIN_SECONDS:
            raise logins.error(login, f"the provider of {login.program} refuses a token that it has just given")
        logins.check(login, held, self._marks)
        since, failed = self._away.get(login.file, (0.0, None))
        if failed is None or clock.monotonic() - since > _AWAY_SECONDS:
            try:
                from asyncio import to_thread

                made = await to_thread(renew, login, held.access, self._marks)
                self._given[login.file] = (clock.monotonic(), made.access)
                self._away.pop(login.file, None)
                return made
            except ProviderError as error:
                failed = error
                self._away[login.file] = (clock.monotonic(), error)
        if held.access != spent and not held.is_over():
            return held
        raise failed
