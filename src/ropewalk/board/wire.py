"""The wire format: what the objects on a board say, in flockwork's words and ours, and how they are made and read.

Every object is a commit without parents over the empty tree; its message holds one `key: value` a line. Whoever
reads passes over keys that he does not know, so what is ours beside flockwork's fields disturbs nobody.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from ropewalk.board import names
from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import InvalidError
from ropewalk.core.ids import EMPTY_TREE
from ropewalk.plan.task import Gate, Task, problems
from ropewalk.store.loose import object_id

WHO = "flockwork refs-CAS <flockwork-lane@refs-cas.local>"
"""Is who makes the objects of a board; flockwork's own name for it."""

LAW = 1
"""Is the version of the laws that this ropewalk keeps."""

_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(?:[ \t]+(.*)|)\Z")
# flockwork reads `verify`, `n` and `m` on every line, by Python's notion of lines, and the last two behind blanks too
_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_GUARDED = re.compile(rf"(?:(?<=[{_ENDS}])|\A)(?=(?:> )*[^\S{_ENDS}]*(?:verify|n|m):)")
_QUOTED = re.compile(rf"(?:(?<=[{_ENDS}])|\A)> (?=(?:> )*[^\S{_ENDS}]*(?:verify|n|m):)")
_SECONDS = re.compile(rb"-?[0-9]{1,18}\Z")
_DIGITS = re.compile(r"[0-9]{1,11}\Z")


class Object(NamedTuple):
    """Is a new object for a board, a commit unless `kind` says otherwise: its id and its content."""

    id: str
    content: bytes
    kind: str = "commit"


class Fields(NamedTuple):
    """Is a message taken apart: the first line, the values by key (the first of each wins), and all lines."""

    first: str
    values: dict[str, str]
    lines: tuple[str, ...]

    def get(self, key: str) -> str:
        """Gives a value, empty when there is none."""
        return self.values.get(key, "")


def make(words: str, at: int) -> Object:
    """Gives the object with a message, made at a time in seconds since 1970."""
    content = (f"tree {EMPTY_TREE}\nauthor {WHO} {at} +0000\ncommitter {WHO} {at} +0000\n\n{words.rstrip()}\n").encode()
    return Object(object_id("commit", content), content)


def message(content: bytes) -> str:
    """Gives the message of a commit's content; bytes that are not UTF-8 are replaced."""
    return content.partition(b"\n\n")[2].decode("utf-8", "replace")


def made_at(content: bytes) -> int:
    """Gives when a commit says that it was made, in seconds since 1970; 0 when it does not say."""
    for line in content.partition(b"\n\n")[0].split(b"\n"):
        if line.startswith(b"committer "):
            words = line.rsplit(b" ", 2)
            return int(words[-2]) if len(words) == 3 and _SECONDS.match(words[-2]) else 0
    return 0


def fields(words: str) -> Fields:
    """Gives a message taken apart."""
    lines = tuple(words.rstrip("\n").split("\n"))
    values: dict[str, str] = {}
    for line in lines[1:]:
        if (found := _KEY.match(line.rstrip())) is not None:
            values.setdefault(found[1], (found[2] or "").strip())
    return Fields(lines[0].strip(), values, lines)


def one_line(text: str) -> str:
    """Gives a text as a value that can stand on its line: words with single blanks between, at most 4,000 characters.

    Whoever's words they are, they can't add a field or an attempt's id, and what is no UTF-8 is replaced.
    """
    return " ".join(text.encode("utf-8", "replace").decode().split())[:4000]


def stamp(at: int) -> str:
    """Gives a time as flockwork writes it."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))


# specs


_TEXTS = ("title", "region", "module", "role", "harness", "model", "effort")
_LISTS = ("needs", "owns", "modifies")
_LIMITS: dict[str, type] = {"seconds": float, "check_seconds": float, "turns": int, "tokens": int, "money": float,
                            "heirs": int, "attempts": int}  # fmt: skip


def spec_words(task: Task) -> str:
    """Gives the message of a task's spec; a worker of flockwork reads it as its brief."""
    lines = [f"verify: {task.check}"]
    for name in _TEXTS:
        if value := getattr(task, name):
            lines.append(f"{name}: {value}")
    if task.class_:
        lines.append(f"class: {task.class_}")
    for name in _LISTS:
        if value := getattr(task, name):
            lines.append(f"{name}: {msgspec.json.encode(value).decode()}" if name != "needs" else
                         f"needs: {' '.join(value)}")  # fmt: skip
    if task.priority:
        lines.append(f"priority: {task.priority}")
    if task.target != "main":
        lines.append(f"target: {task.target}")
    if task.guard:
        lines.append("guard: yes")
    if task.reply is not None:
        lines.append(f"reply: {msgspec.json.encode(task.reply).decode()}")
    for name in _LIMITS:
        if (limit := getattr(task.limits, name)) is not None:
            lines.append(f"limit_{name}: {int(limit) if limit == int(limit) else limit!r}")
    if task.gate is not None:
        lines += [f"n: {task.gate.n}", f"m: {task.gate.m}"] + (["providers: yes"] if task.gate.providers else [])
    # a line of the description must not be taken for one of the fields that are read anywhere
    body = _GUARDED.sub("> ", task.description.strip("\n"))
    return f"spec {task.id}\n\n" + "\n".join(lines) + (f"\n\n{body}\n" if body else "\n")


_KNOWN = {"verify", "class", "priority", "target", "guard", "reply", "n", "m", "providers", *_TEXTS, *_LISTS,
          *(f"limit_{name}" for name in _LIMITS)}  # fmt: skip


class Spec(NamedTuple):
    """Is a spec as it was read: the task, what is wrong with it, and its brief as flockwork's workers get it."""

    task: Task
    problems: tuple[str, ...]
    brief: str


def read_spec(name: str, words: str) -> Spec:
    """Gives the task of a spec's message, whoever wrote it; what can't be read is named and passed over.

    Our own fields count in the lines before the first blank one of the brief. `verify` counts wherever a line
    begins with it, the first one, and `n` and `m` wherever a line does so behind blanks, the last of each, as
    flockwork has it.
    """
    brief = words.split("\n", 1)[1].lstrip("\n") if "\n" in words else ""
    found: list[str] = []
    head: dict[str, str] = {}
    lines = brief.split("\n")
    length = 0
    for line in lines:
        match = _KEY.match(line.rstrip())
        if match is None:
            break
        head.setdefault(match[1].lower(), (match[2] or "").strip())
        length += 1
    everywhere = [line for line in brief.splitlines() if line.strip()]
    check = next((line.removeprefix("verify:").strip() for line in everywhere if line.startswith("verify:")), "")
    values: dict[str, object] = {}
    for key in (*_TEXTS, "class"):
        if head.get(key):
            values[key] = head[key]
    for key in _LISTS:
        if head.get(key):
            values[key] = _listed(head[key])
    values["limits"] = limits = {}
    for key, kind in _LIMITS.items():
        if text := head.get(f"limit_{key}"):
            try:
                limits[key] = kind(text)
            except ValueError:
                found.append(f"limit_{key} is {text!r}, no number")
    if text := head.get("priority"):
        try:
            values["priority"] = int(text)
        except ValueError:
            found.append(f"priority is {text!r}, no number")
    if head.get("target"):
        values["target"] = head["target"]
    values["guard"] = head.get("guard", "").lower() in ("yes", "true")
    if text := head.get("reply"):
        try:
            values["reply"] = msgspec.json.decode(text, type=dict)
        except UNREADABLE:
            found.append("reply is no JSON object")
    gate, why = _gate(everywhere, head)
    found += why
    # without a check at its head it is no brief of ours, and all of it is for the agent
    told = [line for line in lines[:length] if line.split(":", 1)[0].lower() not in _KNOWN] + lines[length:]
    values["description"] = _QUOTED.sub("", "\n".join(told if "verify" in head else lines).strip("\n"))
    values["check"] = check
    try:
        task = msgspec.structs.replace(msgspec.convert({**values, "id": name}, Task), gate=gate)
        found += problems(task, named=False)
    except msgspec.ValidationError as error:
        found.append(str(error))
        task = Task(name, check, brief)
    return Spec(task, tuple(found), brief)


def _listed(text: str) -> list[str]:
    if text.startswith("["):
        try:
            return msgspec.json.decode(text, type=list[str])
        except msgspec.DecodeError:
            pass
    return text.replace(",", " ").split()


def _gate(lines: Sequence[str], head: Mapping[str, str]) -> tuple[Gate | None, list[str]]:
    counts: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.strip().partition(":")
        if colon and key in ("n", "m"):
            counts[key] = value.strip()
    if not counts:
        return None, []
    try:
        n = int(counts.get("n", "1"))
        m = int(counts.get("m", counts.get("n", "1")))
    except ValueError:
        return None, [f"its gate is no pair of numbers: {counts}"]
    if not 1 <= n <= m <= 100:
        return None, [f"its gate wants {n} of {m}"]
    return Gate(n, m, head.get("providers", "").lower() in ("yes", "true")), []


# claims


class Claim(NamedTuple):
    """Is a claim as it was read; `host` names the holder's machine and process, where it said so.

    `life` counts how often the task was reopened before, `closed` is set in the last object of an attempt.
    """

    task: str
    attempt: str
    harness: str
    model: str
    host: str
    base: str
    target: str
    agent: str
    beat: int
    life: int
    marks: dict[str, str]
    closed: str
    lines: tuple[str, ...]

    @property
    def ours(self) -> bool:
        """Says whether one of our workers made it."""
        return bool(self.values_of("law"))

    def values_of(self, key: str) -> list[str]:
        """Gives every value of a key."""
        return [line.split(":", 1)[1].strip() for line in self.lines if line.startswith(f"{key}:")]


MARKS = ("dispatch_started", "work_started", "work_done", "stalled")
_CLAIM = ("harness", "model", "kind", "host", "base", "target", "agent", "law", "life")


def claim_words(
    task: str, attempt: str, *, harness: str, model: str = "", kind: str = "", host: str = "", base: str = "",
    target: str = "main", agent: str = "", life: int = 0,
) -> str:  # fmt: skip
    """Gives the message of a new claim."""
    values = {"harness": harness, "model": model, "kind": (kind or "unknown") if model else "", "host": host,
              "base": base, "target": "" if target == "main" else target, "agent": agent, "law": str(LAW),
              "life": str(life) if life else ""}  # fmt: skip
    lines = [f"claim {task}"] + [f"{key}: {one_line(values[key])}" for key in _CLAIM if values[key]]
    return "\n".join([*lines, attempt])


def read_claim(words: str) -> Claim | None:
    """Gives a claim; None when its last word is no attempt's id."""
    lines = tuple(words.rstrip().split("\n"))
    last = lines[-1].split()
    if not last or not names.is_attempt(last[-1]):
        return None
    found = fields(words)
    task = found.first.removeprefix("claim ").strip()
    marks = {key: found.get(key) for key in MARKS if found.get(key)}
    return Claim(
        task, last[-1], found.get("harness"), found.get("model"), found.get("host"), found.get("base"),
        found.get("target") or "main", found.get("agent"), _number(found.get("beat")), _number(found.get("life")),
        marks, found.get("closed"), lines,
    )  # fmt: skip


def changed_claim(words: str, **new: str) -> str:
    """Gives a claim's message with lines set anew; the attempt stays the last line."""
    lines = words.rstrip().split("\n")
    for key, value in new.items():
        lines = [line for line in lines if not line.startswith(f"{key}:")]
        lines.insert(len(lines) - 1, f"{key}: {one_line(value)}")
    return "\n".join(lines)


def _number(text: str) -> int:
    return int(text) if _DIGITS.match(text) else 0


# verdicts


class Verdict(NamedTuple):
    """Is a verdict as it was read; `values` holds all its fields."""

    task: str
    attempt: str
    fixed: bool | None
    host: str
    oc_rc: int | None
    pytest_rc: int | None
    reason: str
    values: dict[str, str]


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what a verdict says of an attempt.

    `agent_rc` is the agent's exit code (124: out of time), `check_rc` that of the check; `reason` is empty where the
    codes say all. `more` are further fields, by key.
    """

    fixed: bool
    agent_rc: int
    check_rc: int
    harness: str
    model: str = ""
    kind: str = ""
    seconds: float | None = None
    reason: str = ""
    more: dict[str, str] = {}


def verdict_words(task: str, attempt: str, worker: str, outcome: Outcome) -> str:
    """Gives the message of a verdict. `{landed}` and `{tree}` in it stand for what lands with it."""
    lines = ["verdict", f"task: {task}", f"attempt: {attempt}", f"fixed: {'true' if outcome.fixed else 'false'}",
             f"host: {worker}", f"oc_rc: {outcome.agent_rc}", f"pytest_rc: {outcome.check_rc}",
             f"harness: {one_line(outcome.harness)}"]  # fmt: skip
    if outcome.seconds is not None:
        lines.append(f"oc_elapsed: {outcome.seconds:.1f}")
    if outcome.model:
        lines += [f"model: {one_line(outcome.model)}", f"kind: {one_line(outcome.kind) or 'unknown'}"]
    if outcome.reason:
        lines.append(f"reason: {one_line(outcome.reason)}")
    for key, value in outcome.more.items():
        if value:
            lines.append(f"{key}: {one_line(value)}")
    return "\n".join(lines)


def read_verdict(words: str) -> Verdict | None:
    """Gives a verdict; None when the message is none."""
    found = fields(words)
    if found.first != "verdict":
        return None
    fixed = {"true": True, "false": False}.get(found.get("fixed"))
    return Verdict(
        found.get("task"), found.get("attempt"), fixed, found.get("host"), _signed(found.get("oc_rc")),
        _signed(found.get("pytest_rc")), found.get("reason"), found.values,
    )  # fmt: skip


def _signed(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None


class Review(NamedTuple):
    """Is a review as it was read, with what is wrong with it (empty: nothing).

    `commit` is what the evidence was when it was looked at, `agent` who looked; both empty where it does not say.
    """

    task: str
    reviewer: str
    outcome: str
    evidence: str
    commit: str
    agent: str
    provider: str
    problem: str


def review_words(
    task: str, reviewer: str, outcome: Literal["agree", "veto"], evidence: str, *, commit: str = "", agent: str = "",
    provider: str = "", note: str = "",
) -> str:  # fmt: skip
    """Gives the message of a review; `evidence` is the ref that was looked at, `commit` what it was then."""
    values = {"task": task, "reviewer": reviewer, "outcome": outcome, "evidence": evidence, "commit": commit,
              "agent": agent, "provider": provider, "note": note[:2000]}  # fmt: skip
    return "\n".join(["review-verdict", *(f"{key}: {one_line(value)}" for key, value in values.items() if value)])


def read_review(words: str, task: str, reviewer: str) -> Review:
    """Gives the review that a ref for a task and a reviewer holds; `problem` says why it does not count."""
    found = fields(words)
    problem = ""
    if found.first != "review-verdict":
        problem = "it is no review"
    elif found.get("task") != task or found.get("reviewer") != reviewer:
        problem = "it names another task or reviewer than its ref"
    elif found.get("outcome") not in ("agree", "veto"):
        problem = f"its outcome is {found.get('outcome')!r}"
    elif not found.get("evidence"):
        problem = "it names no evidence"
    return Review(
        task, reviewer, found.get("outcome"), found.get("evidence"), found.get("commit"), found.get("agent"),
        found.get("provider"), problem,
    )  # fmt: skip


def integrated_words(task: str, n: int, m: int, agreed: Sequence[str], evidence: str, commit: str) -> str:
    """Gives the message of a gate that fired for a commit."""
    return "\n".join(["integrated", f"task: {task}", f"n: {n}", f"m: {m}", f"agreed: {' '.join(agreed)}",
                      f"evidence: {evidence}", f"commit: {commit}"])  # fmt: skip


class Law(NamedTuple):
    """Is the law of a board: its version, and whether flockwork's workers may run on it."""

    version: int
    mixed: bool


def law_words(version: int, *, mixed: bool) -> str:
    """Gives the message of a board's law."""
    return f"law\nversion: {version}\nmixed: {'yes' if mixed else 'no'}"


def read_law(words: str) -> Law:
    """Gives a board's law; `E_INVALID` when it can't be read."""
    found = fields(words)
    if found.first != "law" or not _DIGITS.match(found.get("version")):
        raise InvalidError("the board's law can't be read", hint="`git cat-file -p refs/swarm/law` shows it")
    return Law(int(found.get("version")), found.get("mixed") == "yes")
