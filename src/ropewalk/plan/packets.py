"""Packets: one task as a Markdown file with front matter, which a person, a lint and an agent read alike.

The front matter is flat: `key: word`, `key: []` or `key:` with a list below; `#` begins a comment after a blank, and
changes nothing. What is written is read back as it was. A packet holds no dates and no chance: it is hashed as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.core.errors import InvalidError
from ropewalk.plan.task import Gate, Limits, Task

ROLES = (
    "Architect", "Oracle", "Scout", "Surveyor", "Scholar", "Builder",
    "Inspector", "Adversary", "Judge", "Critic", "Composer", "Warden",
)  # fmt: skip
CLASSES = ("mechanical", "scout", "build", "verify", "judge", "generator", "interactive")
SECTIONS = (
    "Context", "Scope (exclusive)", "Read first", "Constraints from standing decisions", "Contracts (frozen)", "Steps",
    "Tests", "Done criteria", "If you get stuck",
)  # fmt: skip
CONSTRAINTS, CONTRACTS = SECTIONS[3], SECTIONS[4]
_LISTS = ("owns", "modifies", "reads", "registries", "depends_on")
_TEXTS = ("id", "role", "class", "module", "harness", "model", "effort", "locus", "generator", "gate", "final_reply")
_VALUES = ("guard", "priority", "limits", "reply", "reviewers")
"""Are fields whose value is JSON."""
_SELDOM = ("module", "harness", "effort", "locus", "generator", *_VALUES)
"""Are fields that a packet leaves out where nothing is said."""
_KEY = re.compile(r"([a-z_]+):(?:[ \t]+(.*?))?[ \t]*\Z")
_ITEM = re.compile(r"(?:[ \t]*)-[ \t]+(.*?)[ \t]*\Z")
_BARE = re.compile(r"[A-Za-z0-9_./*$(][^\n]*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
MOST = 4 << 20
_KINDS: Mapping[str, Any] = {"guard": bool, "priority": int, "limits": Limits, "reply": dict[str, Any],
                             "reviewers": Gate}  # fmt: skip


class Packet(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one packet.

    `gate` is the check that has to pass, `final_reply` the form of the last answer, `registries` the shared lists it
    wants an entry in (a Warden writes them), `reads` what it looks at and does not write. `reviewers` is the task's
    gate of reviewers; that and `limits` and `reply` are JSON in the file.
    """

    id: str
    role: str = ""
    class_: str = msgspec.field(name="class", default="")
    model: str = ""
    locus: str = ""
    owns: tuple[str, ...] = ()
    modifies: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    generator: str = ""
    gate: str = ""
    final_reply: str = ""
    module: str = ""
    harness: str = ""
    effort: str = ""
    guard: bool = False
    priority: int = 0
    limits: Limits = Limits()
    reply: dict[str, Any] | None = None
    reviewers: Gate | None = None
    body: str = ""

    @property
    def title(self) -> str:
        """Gives the first heading of the first rank, else the id."""
        match = re.search(r"^# +(\S.*?) *#*$", self.body, re.MULTILINE)
        return match[1] if match else self.id


def parse(text: str, name: str = "the packet") -> Packet:
    """Gives the packet of a file's text; `E_INVALID` with every problem in `details.problems`."""
    packet, faults = read(text)
    if packet is None or faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise InvalidError(f"{name}: {faults[0]}{more}", hint="`rw plan draft` writes packets of the right form",
                           problems=faults, file=name)  # fmt: skip
    return packet


def read(text: str) -> tuple[Packet | None, list[str]]:
    """Gives a packet, None when there is not even an id, and what is wrong with its form."""
    if len(text) > MOST or "\0" in text:
        return None, [f"it holds a NUL or is longer than {MOST >> 20} MiB"]
    lines = text.removeprefix("\ufeff").split("\n")
    if lines[0].rstrip() != "---":
        return None, ["it has no front matter: its first line is not ---"]
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        return None, ["its front matter has no end"]
    faults: list[str] = []
    values = _front(lines[1:end], faults)
    if not values.get("id"):
        return None, [*faults, "it has no id"]
    body = "\n".join(lines[end + 1 :])
    if "class" in values:
        values["class_"] = values.pop("class")
    return Packet(body=body, **values), faults


def _front(lines: Sequence[str], faults: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    current = ""
    for number, whole in enumerate(lines, 2):
        line = _uncommented(whole)
        if not line.strip():
            continue
        item = _ITEM.match(line)
        if item is not None and current:
            values[current] = (*values[current], _unquoted(item[1]))
            continue
        match = _KEY.match(line)
        if match is None or match[1] not in (*_LISTS, *_TEXTS, *_VALUES):
            faults.append(f"line {number}: {line.strip()[:80]!r} is no field of a packet")
            current = ""
            continue
        key, value = match[1], match[2] or ""
        if key in values:
            faults.append(f"line {number}: {key} stands twice")
        current = ""
        if key in _TEXTS:
            values[key] = _unquoted(value)
        elif key in _VALUES:
            try:
                values[key] = msgspec.json.decode(value.encode("utf-8", "surrogatepass"), type=_KINDS[key])
            except (*UNREADABLE, msgspec.ValidationError) as error:
                faults.append(f"line {number}: {key}: {' '.join(str(error).split())[:200]}")
        elif not value:
            values[key], current = (), key
        elif value.startswith("[") and value.endswith("]"):
            values[key] = tuple(_unquoted(w.strip()) for w in _items(value[1:-1]) if w.strip())
        else:
            values[key] = ()
            faults.append(f"line {number}: {key} is a list: write [] or one `- item` a line below it")
    return values


def _uncommented(line: str) -> str:
    """Gives a line without the comment at its end; a mark inside quotes is none."""
    quote, at = "", 0
    while at < len(line):
        character = line[at]
        if quote:
            if character == "\\" and quote == '"':
                at += 1
            elif character == quote:
                quote = ""
        elif character in "\"'" and _starts(line, at):
            quote = character
        elif character == "#" and (at == 0 or line[at - 1] in " \t"):
            return line[:at].rstrip()
        at += 1
    return line.rstrip()


def _starts(line: str, at: int) -> bool:
    return line[:at].rstrip().endswith((":", "-", "[", "{", ","))


def _items(text: str) -> list[str]:
    return re.findall(r'\s*"(?:[^"\\]|\\.)*"\s*|[^,]+', text)


def unquoted_items(text: str) -> list[str]:
    """Gives the items of a list on one line, without quotes and without a comment at its end."""
    line = _uncommented(f"- {text}").removeprefix("-").strip()
    return [_unquoted(word.strip()) for word in _items(line) if word.strip()]


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        try:
            found = msgspec.json.decode(value.encode("utf-8", "surrogatepass"), type=str)
        except (msgspec.DecodeError, UnicodeError):
            return value[1:-1]
        return found
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == "'" else value


def write(packet: Packet) -> str:
    """Gives the text of a packet; reading it gives the packet back."""
    lines = ["---"]
    for name in ("id", "role", "class", "module", "harness", "model", "effort", "locus", *_LISTS, "generator", "gate",
                 "final_reply", *_VALUES):  # fmt: skip
        value = getattr(packet, "class_" if name == "class" else name)
        if name in _LISTS:
            lines += [f"{name}: []"] if not value else [f"{name}:", *(f"  - {_quoted(item)}" for item in value)]
        elif name in _VALUES:
            if value not in (None, False, 0, Limits()):
                lines.append(f"{name}: {msgspec.json.encode(value).decode()}")
        elif value or name not in _SELDOM:
            lines.append(f"{name}: {_quoted(value)}" if value else f"{name}:")
    return "\n".join([*lines, "---", packet.body])


def _quoted(value: str) -> str:
    """Gives a value as it is where that reads back the same, else in double quotes."""
    plain = _BARE.match(value) and " #" not in value and "\t#" not in value and value == value.strip()
    if plain and value.isprintable() and not value.startswith("- "):
        return value
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def sections(body: str) -> dict[str, str]:
    """Gives the text below each heading of the second rank; headings inside fences are none."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line, fenced in unfenced(body):
        if not fenced and line.startswith("## "):
            current = found.setdefault(line[3:].strip().rstrip("#").strip(), [])
        elif current is not None:
            current.append(line)
    return {name: "\n".join(lines).strip("\n") for name, lines in found.items()}


def contracts(packet: Packet) -> dict[str, str]:
    """Gives the frozen contracts of a packet by name: each heading of the third rank below their section."""
    text = next((t for name, t in sections(packet.body).items() if name.lower().startswith("contracts")), "")
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line, fenced in unfenced(text):
        if not fenced and line.startswith("### "):
            current = found.setdefault(line[4:].strip().rstrip("#").strip(), [])
        elif current is not None:
            current.append(line.rstrip())
    return {name: "\n".join(lines).strip("\n") for name, lines in found.items()}


def unfenced(text: str) -> list[tuple[str, bool]]:
    """Gives the lines of a Markdown text, each with whether it is in a fence, or is one."""
    found: list[tuple[str, bool]] = []
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        opens = mark is not None and not fence
        closes = mark is not None and fence and mark[1].startswith(fence)
        found.append((line, bool(fence) or opens))
        if mark is not None and opens:
            fence = mark[1]
        elif closes:
            fence = ""
    return found


def to_task(packet: Packet, extra: Mapping[str, Any] | None = None) -> Task:
    """Gives the task of a packet; `extra` are further fields of the task, which count before the packet's."""
    return Task(**{
        "id": packet.id, "check": packet.gate, "description": packet.body, "title": packet.title[:200],
        "needs": packet.depends_on, "owns": packet.owns, "modifies": packet.modifies, "module": packet.module,
        "role": packet.role, "class_": packet.class_, "harness": packet.harness, "model": packet.model,
        "effort": packet.effort, "priority": packet.priority, "limits": packet.limits, "reply": packet.reply,
        "guard": packet.guard, "gate": packet.reviewers, **dict(extra or {}),
    })  # fmt: skip


def from_task(task: Task, *, reads: Sequence[str] = (), final_reply: str = "", body: str = "") -> Packet:
    """Gives the packet of a task; its body is the task's description under its title unless one is given.

    A description that begins with a heading of the first rank is taken for a body as it is.
    """
    text = body or f"\n# {task.name}\n\n## Context\n\n{task.description.strip() or task.name}\n"
    if not body and task.description.lstrip().startswith("# "):
        text = task.description
    return Packet(
        task.id, task.role, task.class_, task.model, "", task.owns, task.modifies, tuple(reads), (), task.needs, "",
        task.check, final_reply, task.module, task.harness, task.effort, task.guard, task.priority, task.limits,
        task.reply, task.gate, text,
    )  # fmt: skip
