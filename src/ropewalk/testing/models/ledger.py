"""The ledger: every request the server was sent, what it answered, and what that cost."""

from __future__ import annotations

import base64
import threading
import urllib.parse
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from ropewalk.testing.models.reply import Usage

_KEPT = 64 << 20
"""Is how many bytes of request bodies are kept, where they are kept; the oldest go first."""


class Entry(msgspec.Struct, frozen=True):
    """Is one request. `outcome` is ok, a fault's name, unauthorized, bad-request, bad-scenario, unknown, or open.

    `status` is the HTTP status sent, 0 when none was. `usage` is what the client was told, nothing when the answer did
    not come to its end or keeps it; `charged` is what a provider would bill. `key` is a digest of the key presented.
    """

    number: int
    lane: str
    scenario: str
    wire: str
    method: str
    path: str
    model: str = ""
    streaming: bool = False
    tools: tuple[str, ...] = ()
    side: bool = False
    turn: int = 0
    step: int = 0
    prompt: str = ""
    steers: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    status: int = 0
    outcome: str = "open"
    usage: Usage | None = None
    charged: Usage | None = None
    message_id: str = ""
    started: float = 0.0
    seconds: float = 0.0
    left: bool = False
    """Says whether the client left before the answer was whole."""
    agent: str = ""
    auth: str = "unchecked"
    key: str = ""
    canaries: tuple[str, ...] = ()
    size: int = 0


class Counts(msgspec.Struct, frozen=True):
    """Is a lane in numbers: `turns` are answers given to the agent itself, `side` those to titles and the like."""

    requests: int = 0
    answers: int = 0
    side: int = 0
    failed: int = 0
    open: int = 0
    charged: Usage = Usage(0, 0, 0, 0, 0)
    outcomes: dict[str, int] = {}


class Ledger:
    """Holds the entries; the server's thread writes them, any thread reads."""

    def __init__(self, *, keep_bodies: bool = False) -> None:
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._bodies: dict[int, bytes] = {}
        self._keep = keep_bodies
        self.tries: Counter[tuple[str, ...]] = Counter()

    def open(self, **fields: Any) -> Entry:
        """Gives a new entry."""
        with self._lock:
            self._entries.append(Entry(number=len(self._entries), **fields))
            return self._entries[-1]

    def change(self, number: int, **fields: Any) -> Entry:
        """Gives an entry with some fields set."""
        with self._lock:
            self._entries[number] = msgspec.structs.replace(self._entries[number], **fields)
            return self._entries[number]

    def keep(self, number: int, body: bytes) -> None:
        """Keeps a request's body, where bodies are kept."""
        if not self._keep:
            return
        with self._lock:
            self._bodies[number] = body
            while sum(map(len, self._bodies.values())) > _KEPT and len(self._bodies) > 1:
                del self._bodies[min(self._bodies)]

    def body(self, number: int) -> bytes | None:
        """Gives a request's body, nothing when it is not kept."""
        with self._lock:
            return self._bodies.get(number)

    def entries(self, lane: str | None = None) -> list[Entry]:
        """Gives all entries, or a lane's, in the order the requests came."""
        with self._lock:
            return [e for e in self._entries if lane is None or e.lane == lane]

    def counts(self) -> dict[str, Counts]:
        """Gives each lane in numbers."""
        made: dict[str, list[Entry]] = {}
        for entry in self.entries():
            made.setdefault(entry.lane, []).append(entry)
        return {lane: _count(entries) for lane, entries in made.items()}


def _count(entries: list[Entry]) -> Counts:
    charged = [e.charged for e in entries if e.charged is not None]
    names = Usage.__struct_fields__
    good = [e for e in entries if e.outcome == "ok" and e.message_id]
    return Counts(
        requests=len(entries),
        answers=sum(not e.side for e in good),
        side=sum(e.side for e in good),
        failed=sum(e.outcome not in ("ok", "open") for e in entries),
        open=sum(e.outcome == "open" for e in entries),
        charged=Usage(**{name: sum(getattr(u, name) for u in charged) for name in names}),
        outcomes=dict(Counter(e.outcome for e in entries)),
    )


class Canaries:
    """Finds planted secrets in what is sent: as they are, percent-encoded, as JSON text, in hex, and in base64."""

    def __init__(self, planted: Mapping[str, str]) -> None:
        self._forms = {name: _forms(secret) for name, secret in planted.items() if secret}

    def found(self, *places: bytes) -> tuple[str, ...]:
        """Gives the names of the secrets that stand in one of the places."""
        return tuple(
            name for name, forms in self._forms.items() if any(form in place for form in forms for place in places)
        )


def _forms(secret: str) -> set[bytes]:
    raw = secret.encode()
    forms = {raw, urllib.parse.quote(secret, safe="").encode(), msgspec.json.encode(secret)[1:-1]}
    forms |= {raw.hex().encode(), raw.hex().upper().encode()}
    for skip in range(3):
        # whatever stands before it, the middle of its base64 is one of three
        text = base64.b64encode(b"\0" * skip + raw).rstrip(b"=")
        middle = text[(0, 2, 3)[skip] : -1]
        if len(middle) >= 8:
            forms |= {middle, middle.translate(bytes.maketrans(b"+/", b"-_"))}
    return forms
