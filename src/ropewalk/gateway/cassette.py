"""Cassettes: a run's model traffic on disk, and which recorded answer belongs to a request (G2).

Requests never repeat byte for byte. Two are the same when they are equal without what a program draws anew for each
run: the fields that its adapter names, ids and times. The n-th of equal requests gets the n-th answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from ropewalk.core import clock
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import InvalidError, NotFoundError, os_error
from ropewalk.gateway.tokens import Wire

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_CALL = re.compile(r"\b(?:toolu|call|msg|fc|rs|resp|item|ses|chatcmpl|cmpl|srvtoolu)[_-][A-Za-z0-9_-]{4,80}")
_COMMIT = re.compile(r"\b(?=[0-9]*[a-f])[0-9a-f]{7,40}\b")
_COMMITS = re.compile(r'(Recent commits:)(?:\\n(?:git: )?[0-9a-f]{7,40} (?:[^\\"]|\\[^n])*)+')
_CODEX = re.compile(r"(Chunk ID: |Wall time: )[A-Za-z0-9.]+(?: seconds)?")
_TIME = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?\b")
HEAD, SUFFIX = "cassette.json", ".jsonl"
"""Are the file by which a folder is a cassette, and how the name of one that is a single file ends."""

_LINE = 4096
ALWAYS = ("metadata", "client_metadata", "prompt_cache_key", "user", "session_id", "store", "safety_identifier")
"""Are the top fields that are passed over for every program."""

_HIDDEN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|Bearer\s+[A-Za-z0-9._-]{16,}|AIza[A-Za-z0-9_-]{20,}|rwl_[A-Za-z0-9_-]{8,})"
)

_HEADERS = ("content-type", "retry-after", "x-should-retry")


class Recording(msgspec.Struct, frozen=True):
    """Is one recorded answer, with the request as it was compared; a character of the body stands for a byte."""

    request: str
    status: int
    headers: dict[str, str]
    body: list[str]

    def parts(self) -> Iterator[bytes]:
        """Yields the answer's body in the pieces in which it came."""
        for part in self.body:
            yield part.encode("latin-1")


def normal(body: Mapping[str, Any], volatile: Sequence[str] = (), names: Sequence[str] = ()) -> str:
    """Gives a request as text that is the same for requests that are the same; `names` are the run's own words."""
    left = {key: value for key, value in body.items() if key not in ALWAYS}
    for path in volatile:
        left = _without(left, path.split("."))
    text = msgspec.json.encode(left, order="deterministic").decode("utf-8")
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "<name>")
    return _Mask()(text)


def _without(value: Any, path: Sequence[str]) -> Any:
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(value, list):
        return [_without(one, path if head != "*" else rest) if rest or head != "*" else one for one in value]
    if not isinstance(value, dict) or head not in value:
        return value
    if not rest:
        return {key: one for key, one in value.items() if key != head}
    return {key: _without(one, rest) if key == head else one for key, one in value.items()}


class _Mask:
    """Puts placeholders, in the order of appearance, where ids stand."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        text = _CODEX.sub(r"\1…", _COMMITS.sub(r"\1 …", _HIDDEN.sub("<secret>", text)))
        text = _TIME.sub("<time>", text)
        for kind, pattern in (("uuid", _UUID), ("call", _CALL), ("commit", _COMMIT)):
            text = pattern.sub(lambda found, kind=kind: self._place(kind, found[0]), text)  # type: ignore[misc]
        return text

    def _place(self, kind: str, value: str) -> str:
        return self._seen.setdefault(value.lower(), f"<{kind}{len(self._seen) + 1}>")


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is what a cassette says of itself: its form, and the time that commits of its lanes carry, in each run of it."""

    ropewalk_cassette: int
    at: int


class _Line(msgspec.Struct, frozen=True):
    """Is a recording in a cassette that is one file."""

    lane: str
    name: str
    recording: Recording


def begin(path: str) -> Head:
    """Makes a cassette to record in, a file where its name ends with `.jsonl`, else a folder; or gives one still empty.

    Raises `E_INVALID` for one that holds recordings, and for a place where something else is.
    """
    head = Head(1, clock.now())
    try:
        if not os.path.exists(path):
            if path.endswith(SUFFIX):
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                _write(path, msgspec.json.encode(head) + b"\n")
            else:
                os.makedirs(path, mode=0o700)
                _write(os.path.join(path, HEAD), msgspec.json.encode(head) + b"\n")
            return head
        if os.path.isdir(path) and not os.listdir(path):
            _write(os.path.join(path, HEAD), msgspec.json.encode(head) + b"\n")
            return head
        found = opened(path)
        if any(True for _ in _recordings(path)):
            raise InvalidError(f"the cassette {path} holds recordings already", hint="record in a new one", path=path)
        return found
    except OSError as error:
        raise os_error(error, "making a cassette") from None


def opened(path: str) -> Head:
    """Gives what a cassette says of itself; `E_NOT_FOUND` where there is none."""
    try:
        place = os.path.join(path, HEAD) if os.path.isdir(path) else path
        if not os.path.isfile(place):
            raise FileNotFoundError(place)
        with open(place, "rb") as file:
            found = msgspec.json.decode(file.readline(_LINE), type=Head)
    except (FileNotFoundError, NotADirectoryError, *UNREADABLE):
        raise NotFoundError(f"there is no cassette at {path}", hint="`--record` makes one", path=path) from None
    except OSError as error:
        raise os_error(error, "read of a cassette") from None
    if found.ropewalk_cassette != 1:
        raise InvalidError(f"the cassette {path} has a form of a later ropewalk", path=path)
    return found


def _recordings(path: str) -> Iterator[str]:
    """Yields something for each recording of a cassette."""
    if not os.path.isdir(path):
        with open(path, "rb") as file:
            yield from (line.decode("utf-8", "replace") for line in list(file)[1:])
        return
    for name in os.listdir(path):
        folder = os.path.join(path, name)
        yield from (one for one in (os.listdir(folder) if os.path.isdir(folder) else ()) if one.endswith(".json"))


class Cassette:
    """Is a cassette's recordings, by lane: a folder, or one file."""

    def __init__(self, path: str, names: Sequence[str] = ()) -> None:
        self.path, self._names = path, names
        self._played: dict[tuple[str, str], int] = {}
        self._kept: dict[tuple[str, str], int] = {}

    @property
    def _is_file(self) -> bool:
        return self.path.endswith(SUFFIX) and not os.path.isdir(self.path)

    def keep(
        self, lane: str, wire: Wire, body: Mapping[str, Any], volatile: Sequence[str], status: int,
        headers: Mapping[str, str], parts: Sequence[bytes], secrets: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Records an answer; `secrets`, and what looks like a key, are taken out of it."""
        text = normal(body, volatile, self._names)
        name = _name(wire, text)
        shown = [part.decode("latin-1") for part in parts]
        whole = "".join(shown)
        if (hidden := _hide(whole, secrets)) != whole:
            shown = [hidden]  # a key may lie across two parts
        made = Recording(_hide(text, secrets), status, {k: v for k, v in headers.items() if k in _HEADERS}, shown)
        if self._is_file:
            _append(self.path, msgspec.json.encode(_Line(lane, name, made)) + b"\n")
            return
        folder = self._of(lane)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        number = self._kept.get((lane, name), 0)
        while os.path.exists(path := os.path.join(folder, f"{name}.{number:04d}.json")):
            number += 1  # a gateway before this one recorded it
        self._kept[lane, name] = number + 1
        _write(path, msgspec.json.format(msgspec.json.encode(made)))

    def find(self, lane: str, wire: Wire, body: Mapping[str, Any], volatile: Sequence[str]) -> Recording | str:
        """Gives the recorded answer to a request, or the sentence that says that there is none, with the difference."""
        text = normal(body, volatile, self._names)
        name = _name(wire, text)
        number = self._played.get((lane, name), 0)
        try:
            found = self._recorded(lane, name, number)
        except UNREADABLE:
            return f"a recording of {lane} can't be read"
        if found is None:
            return f"the cassette holds no answer to this request of {lane}: {self._difference(lane, text)}"
        self._played[lane, name] = number + 1
        return found

    def is_over(self, lane: str) -> bool:
        """Says whether all that is recorded of a lane was played: what it asks behind that is no other run."""
        played = sum(count for (of, _), count in self._played.items() if of == lane)
        return 0 < sum(1 for _ in self._requests(lane)) <= played

    def _recorded(self, lane: str, name: str, number: int) -> Recording | None:
        if self._is_file:
            fits = (line.recording for line in self._lines(lane) if line.name == name)
            return next((one for at, one in enumerate(fits) if at == number), None)
        try:
            with open(os.path.join(self._of(lane), f"{name}.{number:04d}.json"), "rb") as file:
                return msgspec.json.decode(file.read(), type=Recording)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _lines(self, lane: str) -> Iterator[_Line]:
        """Yields the recordings of a lane in a cassette that is one file."""
        mark = b'{"lane":' + msgspec.json.encode(lane) + b","
        try:
            with open(self.path, "rb") as file:
                yield from (msgspec.json.decode(line, type=_Line) for line in file if line.startswith(mark))
        except OSError:
            return

    def _of(self, lane: str) -> str:
        return os.path.join(self.path, lane.replace("/", "+"))

    def _requests(self, lane: str) -> Iterator[str]:
        """Yields the recorded requests of a lane; what can't be read is passed over."""
        if self._is_file:
            try:
                yield from (line.recording.request for line in self._lines(lane))
            except UNREADABLE:
                return
            return
        try:
            names = sorted(os.listdir(self._of(lane)))
        except OSError:
            return
        for name in names:
            try:
                with open(os.path.join(self._of(lane), name), "rb") as file:
                    yield msgspec.json.decode(file.read(), type=Recording).request
            except (OSError, *UNREADABLE):
                continue

    def _difference(self, lane: str, text: str) -> str:
        """Says where the nearest recorded request differs first."""
        best, at = "", -1
        for other in self._requests(lane):
            same = next(
                (n for n, (a, b) in enumerate(zip(other, text, strict=False)) if a != b), min(len(other), len(text))
            )
            if same > at:
                best, at = other, same
        if at < 0:
            return "nothing is recorded for it"
        mine, there = text[max(0, at - 40) : at + 80], best[max(0, at - 40) : at + 80]
        return f"at character {at} it is {mine!r}, recorded is {there!r}"


def _write(path: str, data: bytes) -> None:
    """Puts a file in place, whole; only its user can read it."""
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
    os.replace(f"{path}.new", path)


def _append(path: str, line: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(line)


def _hide(text: str, secrets: Sequence[str]) -> str:
    for one in secrets:
        text = text.replace(one, "<secret>")
    return _HIDDEN.sub("<secret>", text)


def _name(wire: Wire, text: str) -> str:
    return f"{wire}-{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
