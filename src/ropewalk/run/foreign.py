"""Runs of other programs, as their files tell of them: fleetflow's run folders and history, and native workflows.

What a file does not say stays unsaid here: no time, no count and no cost is made up. A line that can't be read is named
with its number, and so is each file that should be there and is not; all else is taken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.gateway.prices import Mark
from ropewalk.gateway.tokens import Tokens

LARGEST = 64 << 20
"""Is how large a file may be that is read, in bytes."""

_HARNESS = {"sonnet": "claude", "haiku": "claude", "opus": "claude", "fable": "claude", "native": "claude"}
_AT_WRONG_RATE = frozenset({"glm"})
"""Are models whose program tells a cost that another's rates made."""

_BYTE = re.compile(r"\(byte (\d+)\)")


class Attempt(NamedTuple):
    """Is one ending of a task that a journal tells of; `seconds` is None, and `began` 0, where nothing says it."""

    task: str
    number: int
    key: str
    harness: str
    model: str
    ok: bool
    code: int | None
    text: str = ""
    reason: str = ""
    seconds: float | None = None
    tokens: Tokens | None = None
    dollars: float | None = None
    mark: Mark = "*"
    turns: int = 0
    began: int = 0
    session: str | None = None
    denied: int = 0


class Task(NamedTuple):
    """Is one task of a run: what it was told, how its last attempt stands (done, failed, unknown), and what it used."""

    id: str
    state: str
    prompt: str = ""
    harness: str = ""
    model: str = ""
    reason: str = ""
    effort: str = ""
    attempts: tuple[Attempt, ...] = ()
    usage: dict[str, int] = {}
    seconds: float = 0.0
    dollars: float | None = None
    needs: tuple[str, ...] = ()


class Foreign(NamedTuple):
    """Is a run as another program left it.

    `identity` is the same for the same run, wherever it is told of; `files` are kept as they are. `missing` names files
    that are not there, `bad` what can't be read (`file:line: why`).
    """

    source: str
    name: str
    identity: str
    base: str
    tasks: tuple[Task, ...]
    files: tuple[str, ...] = ()
    findings: tuple[dict[str, Any], ...] = ()
    missing: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    began: int = 0
    seconds: float = 0.0
    dollars: float | None = None
    mark: Mark = "*"


class _Folder:
    """Reads the files of a run's folder, and keeps what is wrong with them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.missing: list[str] = []
        self.bad: list[str] = []
        self.used: list[str] = []

    def data(self, name: str, *, wanted: bool = True) -> bytes | None:
        """Gives a file's bytes; None for one that is not there, which is noted where it should be."""
        place = os.path.join(self.path, name)
        try:
            with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if os.fstat(file.fileno()).st_size > LARGEST:
                    self.bad.append(f"{name}: it is larger than {LARGEST >> 20} MiB")
                    return None
                data = file.read(LARGEST)
        except FileNotFoundError:
            if wanted:
                self.missing.append(name)
            return None
        except OSError as error:
            self.bad.append(f"{name}: {error.strerror}")
            return None
        if name not in self.used:
            self.used.append(name)
        return data

    def text(self, name: str, *, wanted: bool = True) -> str:
        """Gives a file as text."""
        return (self.data(name, wanted=wanted) or b"").decode("utf-8", "replace")

    def document(self, name: str, *, wanted: bool = True) -> dict[str, Any]:
        """Gives a file that is one JSON object; an empty one for what is none."""
        data = self.data(name, wanted=wanted)
        if data is None:
            return {}
        try:
            found = msgspec.json.decode(data)
        except UNREADABLE as error:
            at = _BYTE.search(str(error))
            line = data[: int(at[1])].count(b"\n") + 1 if at else 1
            self.bad.append(f"{name}:{line}: {error}")
            return {}
        if isinstance(found, dict):
            return found
        self.bad.append(f"{name}:1: it is no JSON object")
        return {}

    def lines(self, name: str, *, wanted: bool = True) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the JSON objects of a file of lines, with their numbers."""
        for number, line in enumerate((self.data(name, wanted=wanted) or b"").split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                found = msgspec.json.decode(line)
            except UNREADABLE as error:
                self.bad.append(f"{name}:{number}: {error}")
                continue
            if isinstance(found, dict):
                yield number, found
            else:
                self.bad.append(f"{name}:{number}: it is no JSON object")

    def has(self, name: str) -> bool:
        """Says whether a file is there."""
        return os.path.isfile(os.path.join(self.path, name))


def found_in(path: str) -> list[str]:
    """Gives the folders with a run at a place: itself, those below its `.fleetflow`, or those right below it."""
    if is_run(path):
        return [path]
    below = os.path.join(path, ".fleetflow")
    place = below if os.path.isdir(below) else path
    try:
        names = sorted(os.listdir(place))
    except OSError:
        return []
    return [one for name in names if is_run(one := os.path.join(place, name))]


def is_run(path: str) -> bool:
    """Says whether a folder holds a run, or the history of many."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    known = ("manifest.json", "journal.jsonl", "findings.jsonl", "history.jsonl")
    return any(n in known or n.endswith((".prompt.txt", ".result.json")) or _is_transcript(n) for n in names)


def _is_transcript(name: str) -> bool:
    return name.startswith("agent-") and name.endswith(".jsonl")


def read(path: str) -> list[Foreign]:
    """Gives the runs that a folder holds: one, or as many as its history tells of."""
    folder = _Folder(path)
    found: list[Foreign] = []
    if folder.has("history.jsonl"):
        found += _history(folder)
        if not any(folder.has(name) for name in ("manifest.json", "journal.jsonl")):
            return found
        folder = _Folder(path)
    native = any(_is_transcript(name) for name in os.listdir(path))
    if not native:
        native = any("agentId" in record for _, record in _Folder(path).lines("journal.jsonl", wanted=False))
    return [*found, _workflow(folder) if native else _fleetflow(folder)]


# fleetflow


def _fleetflow(folder: _Folder) -> Foreign:
    manifest = folder.document("manifest.json")
    packets = {str(p["id"]): p for p in _dicts(manifest.get("packets")) if _is_id(p.get("id"))}
    started: dict[str, list[dict[str, Any]]] = {}
    ended: dict[str, list[dict[str, Any]]] = {}
    at: dict[str, int] = {}
    for number, record in folder.lines("journal.jsonl"):
        lane, kind = record.get("id"), record.get("type")
        if not _is_id(lane) or kind not in ("started", "proc", "result"):
            folder.bad.append(f"journal.jsonl:{number}: {'it names no lane' if kind else 'it has no type'}")
        elif kind == "proc":
            at.setdefault(str(lane), _count(record.get("at")))
        else:
            (started if kind == "started" else ended).setdefault(str(lane), []).append(record)
    stray = (n.removesuffix(".prompt.txt") for n in sorted(os.listdir(folder.path)) if n.endswith(".prompt.txt"))
    names = dict.fromkeys([*packets, *started, *ended, *(one for one in stray if _is_id(one))])
    tasks = []
    for name in names:
        packet, begun = packets.get(name, {}), started.get(name, [])
        records = ended.get(name, [])
        attempts = tuple(
            _attempt(folder, name, number, record, begun[number - 1] if number <= len(begun) else {},
                     at.get(name, 0) if number == 1 else 0, last=_is_last(records, number))
            for number, record in enumerate(records, 1)
        )  # fmt: skip
        tasks.append(_task(folder, name, packet, begun, attempts))
    findings = [record for _, record in folder.lines("findings.jsonl", wanted=False)]
    for name in names:
        for tail in (".err", ".events.jsonl", ".transcript.jsonl", ".invalid.txt"):
            if folder.has(f"{name}{tail}"):
                folder.data(f"{name}{tail}", wanted=False)
    where = os.path.dirname(os.path.realpath(folder.path))
    repo = os.path.dirname(where) if os.path.basename(where) == ".fleetflow" else where
    name = str(manifest.get("run") or os.path.basename(os.path.realpath(folder.path)))
    notes = [f"made by {manifest['created_by']}"] if isinstance(manifest.get("created_by"), str) else []
    if isinstance(manifest.get("orchestrator"), str):
        notes.append(f"orchestrated by {manifest['orchestrator']}")
    notes.append("whether a lane's work was landed is not in these files")
    return _whole(folder, "fleetflow", name, f"{repo.lower()}\0{name}", str(manifest.get("base") or ""), tasks,
                  findings, notes, min((one for one in at.values() if one), default=0))  # fmt: skip


def _is_last(records: list[dict[str, Any]], number: int) -> bool:
    """Says whether an attempt's artifact is its own: a later one with the same path has written over it."""
    mine = records[number - 1].get("artifact")
    return not any(one.get("artifact") == mine for one in records[number:])


def _task(
    folder: _Folder, name: str, packet: dict[str, Any], begun: list[dict[str, Any]], attempts: tuple[Attempt, ...]
) -> Task:
    model = _model(packet, begun[-1] if begun else {})
    last = attempts[-1] if attempts and len(begun) <= len(attempts) else None
    state = "unknown" if last is None else "done" if last.ok else "failed"
    why = last.reason if last is not None else "it was begun, and nothing says how it ended" if begun else "not begun"
    spent = [one.dollars for one in attempts if one.dollars is not None]
    return Task(
        name, state, folder.text(f"{name}.prompt.txt"), _HARNESS.get(model, model), model, why,
        str(packet.get("effort") or ""), attempts, _usage(attempts), sum(one.seconds or 0.0 for one in attempts),
        sum(spent) if spent else None,
        tuple(str(one) for one in packet.get("depends_on") or [] if isinstance(one, str)),
    )  # fmt: skip


def _attempt(
    folder: _Folder, name: str, number: int, record: dict[str, Any], begun: dict[str, Any], at: int, *, last: bool
) -> Attempt:
    model = _model(record, begun)
    code = record["rc"] if isinstance(record.get("rc"), int) else None
    plain = Attempt(name, number, str(record.get("key") or ""), _HARNESS.get(model, model),
                    str(begun.get("model_id") or model), code == 0, code, began=at)  # fmt: skip
    if not last:
        return plain._replace(reason="what it said was written over by a later attempt" if code == 0 else f"rc {code}")
    if code == 5 and record.get("artifact") is None:
        return plain._replace(reason="refused: what it needs was not there")
    made = _codex(folder, name, plain) if model == "codex" else _envelope(folder, name, plain, grok=model == "grok")
    return made._replace(mark="≈" if made.dollars is not None and model in _AT_WRONG_RATE else made.mark)


def _codex(folder: _Folder, name: str, plain: Attempt) -> Attempt:
    if not folder.has(f"{name}.last.txt"):
        folder.missing.append(f"{name}.last.txt")
        return plain._replace(reason="what it said is not there" if plain.ok else f"rc {plain.code}")
    text = folder.text(f"{name}.last.txt").strip()
    tokens = None
    for _, event in folder.lines(f"{name}.events.jsonl", wanted=False):
        usage = event.get("usage")
        if event.get("type") == "turn.completed" and isinstance(usage, dict):
            cached = _count(usage.get("cached_input_tokens"))
            fresh, thought = _count(usage.get("input_tokens")) - cached, _count(usage.get("reasoning_output_tokens"))
            tokens = Tokens(max(0, fresh), cached, 0, _count(usage.get("output_tokens")), thought)
    good = plain.ok and bool(text)
    why = "" if good else f"rc {plain.code}" if not plain.ok else "its last message is empty"
    return plain._replace(text=text, tokens=tokens, ok=good, reason=why)


def _envelope(folder: _Folder, name: str, plain: Attempt, *, grok: bool) -> Attempt:
    found = folder.document(f"{name}.result.json")
    if not found:
        return plain._replace(reason="what it said is not there" if plain.ok else f"rc {plain.code}")
    text = found.get("text" if grok else "result")
    text = text if isinstance(text, str) else "" if text is None else msgspec.json.encode(text).decode()
    good = plain.ok and (bool(text) if grok else found.get("is_error") is False)
    why = "" if good else str(found.get("subtype") or found.get("terminal_reason") or f"rc {plain.code}")
    millis, cost = found.get("duration_ms"), found.get("total_cost_usd")
    denied = found.get("permission_denials")
    return plain._replace(
        text=text, ok=good, reason=why, tokens=_claude(found.get("usage")), turns=_count(found.get("num_turns")),
        seconds=millis / 1000 if isinstance(millis, int | float) else None,
        dollars=float(cost) if isinstance(cost, int | float) else None,
        mark="" if isinstance(cost, int | float) else "*",
        session=found["session_id"] if isinstance(found.get("session_id"), str) else None,
        denied=len(denied) if isinstance(denied, list) else 0,
    )  # fmt: skip


def _model(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Gives the model of records; `brain` is what older ones call it."""
    for one in (first, second):
        for key in ("brain", "model"):
            if isinstance(one.get(key), str) and one[key]:
                return str(one[key])
    return ""


# native workflows


def _workflow(folder: _Folder) -> Foreign:
    begun: dict[str, dict[str, Any]] = {}
    ended: dict[str, dict[str, Any]] = {}
    for number, record in folder.lines("journal.jsonl"):
        agent, kind = record.get("agentId"), record.get("type")
        if not _is_id(agent) or kind not in ("started", "result"):
            folder.bad.append(f"journal.jsonl:{number}: {'it names no agent' if kind else 'it has no type'}")
        else:
            (begun if kind == "started" else ended)[str(agent)] = record
    stray = (n[6:-6] for n in sorted(os.listdir(folder.path)) if _is_transcript(n))
    tasks = []
    for name in dict.fromkeys([*begun, *ended, *(one for one in stray if _is_id(one))]):
        told = _transcript(folder, name)
        folder.data(f"agent-{name}.meta.json", wanted=False)
        attempts: tuple[Attempt, ...] = ()
        if name in ended:
            said = ended[name].get("result")
            text = said if isinstance(said, str) else msgspec.json.encode(said).decode() if said is not None else ""
            attempts = (told.attempt._replace(key=str(ended[name].get("key") or ""), text=text, ok=True),)
        why = "" if attempts else "it was begun, and nothing says how it ended"
        tasks.append(Task(name, "done" if attempts else "unknown", told.prompt, "claude", told.attempt.model, why,
                          attempts=attempts, usage=_usage((told.attempt,)),
                          seconds=told.attempt.seconds or 0.0))  # fmt: skip
    real = os.path.realpath(folder.path)
    began = min((t.attempts[0].began for t in tasks if t.attempts and t.attempts[0].began), default=0)
    notes = ["how its agents depended on each other is not in these files"]
    return _whole(folder, "workflow", os.path.basename(real), real, "", tasks, [], notes, began)


class _Told(NamedTuple):
    prompt: str
    attempt: Attempt


def _transcript(folder: _Folder, name: str) -> _Told:
    """Gives what an agent's transcript tells: its prompt, its model, and its tokens, once for each answer."""
    from datetime import datetime

    prompt, model = "", ""
    answers: dict[str, Tokens] = {}
    times: list[float] = []
    for _, line in folder.lines(f"agent-{name}.jsonl"):
        message = line.get("message")
        if isinstance(stamp := line.get("timestamp"), str):
            try:
                times.append(datetime.fromisoformat(stamp).timestamp())
            except ValueError:
                pass
        if not isinstance(message, dict):
            continue
        if line.get("type") == "user" and not prompt:
            prompt = _said(message.get("content"))
        elif line.get("type") == "assistant":
            model = str(message.get("model") or model)
            if (used := _claude(message.get("usage"))) is not None:
                answers[str(message.get("id") or len(answers))] = used
    tokens = None
    for one in answers.values():
        tokens = one if tokens is None else tokens + one
    seconds = round(times[-1] - times[0], 3) if len(times) > 1 else None
    attempt = Attempt(name, 1, "", "claude", model, False, None, tokens=tokens, seconds=seconds, turns=len(answers),
                      began=int(times[0]) if times else 0)  # fmt: skip
    return _Told(prompt, attempt)


def _said(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [str(one.get("text") or "") for one in _dicts(content) if one.get("type") == "text"]
    return next((one for one in texts if one), "")


# history


def _history(folder: _Folder) -> list[Foreign]:
    """Gives the runs of a history; of several lines on one run the last counts."""
    found: dict[str, dict[str, Any]] = {}
    for number, line in folder.lines("history.jsonl"):
        if not isinstance(line.get("run"), str) or not isinstance(line.get("lanes"), list):
            folder.bad.append(f"history.jsonl:{number}: it tells of no run")
            continue
        found[f"{str(line.get('repo') or '').lower()}\0{line['run']}"] = line
    made = []
    for identity, line in found.items():
        tasks = tuple(_archived(one) for one in _dicts(line["lanes"]) if _is_id(one.get("id")))
        cost = line.get("cost_usd")
        notes = ["an archived run: of its lanes there are figures alone, no prompt and no word",
                 f"it stood as {line.get('state') or 'unknown'} when it was archived"]  # fmt: skip
        dollars = float(cost) if isinstance(cost, int | float) else None
        made.append(Foreign(
            "history", line["run"], identity, "", tasks, bad=tuple(folder.bad), notes=tuple(notes),
            began=_count(line.get("started")), seconds=float(_count(line.get("elapsed_s"))),
            dollars=dollars, mark="*" if dollars is None or line.get("cost_partial") else "",
        ))  # fmt: skip
    if not made and folder.bad:
        made.append(Foreign("history", "history", os.path.realpath(folder.path), "", (), bad=tuple(folder.bad)))
    return made


def _archived(one: dict[str, Any]) -> Task:
    state, cost = str(one.get("state") or ""), one.get("cost_usd")
    counts = {"total_tokens": _count(one.get("tokens_total")), "output_tokens": _count(one.get("tokens_out"))}
    model = _model({key: one.get(key) for key in ("model", "brain")}, {})
    return Task(
        str(one["id"]), state if state in ("done", "failed") else "unknown", "", _HARNESS.get(model, model), model,
        "" if state == "done" else state, usage={k: n for k, n in counts.items() if n},
        seconds=float(_count(one.get("elapsed_s"))), dollars=float(cost) if isinstance(cost, int | float) else None,
    )  # fmt: skip


# in common


def _whole(
    folder: _Folder, source: str, name: str, identity: str, base: str, tasks: list[Task],
    findings: list[dict[str, Any]], notes: list[str], began: int,
) -> Foreign:  # fmt: skip
    ended = [one for task in tasks for one in task.attempts]
    known = [one.dollars for one in ended if one.dollars is not None]
    mark: Mark = "*" if len(known) < len(ended) or not ended else "≈" if any(one.mark == "≈" for one in ended) else ""
    return Foreign(
        source, name, identity, base, tuple(tasks), tuple(folder.used), tuple(findings),
        tuple(dict.fromkeys(folder.missing)), tuple(dict.fromkeys(folder.bad)), tuple(notes), began,
        dollars=sum(known) if known else None, mark=mark,
    )  # fmt: skip


def _usage(attempts: tuple[Attempt, ...]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in attempts:
        for name, count in msgspec.to_builtins(one.tokens or Tokens()).items():
            total[f"{name}_tokens"] = total.get(f"{name}_tokens", 0) + count
    return total


def _claude(usage: Any) -> Tokens | None:
    if not isinstance(usage, dict):
        return None
    return Tokens(_count(usage.get("input_tokens")), _count(usage.get("cache_read_input_tokens")),
                  _count(usage.get("cache_creation_input_tokens")), _count(usage.get("output_tokens")))  # fmt: skip


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value) is not None


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 62 else 0
