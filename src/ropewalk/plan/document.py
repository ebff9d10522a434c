"""The plan as a folder: `plan.md`, which says what all of it is for, and one packet a task in `packets/`.

All of it is text that a person edits. The front matter of `plan.md` and its table of modules are read back; the rest of
it is for people, and the table of packets is written anew whenever the plan is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from ropewalk.core.errors import InvalidError
from ropewalk.plan import packets
from ropewalk.plan.lint import Barrier
from ropewalk.plan.packets import Packet, unfenced
from ropewalk.plan.plan import Module, Plan

FILE, FOLDER, MAP, REFUTATION = "plan.md", "packets", "map.json", "refutation.md"
_TEXTS = ("goal", "spec", "shape", "bounds", "mode", "workers", "manager", "provider", "base")
_KEY = re.compile(r"([a-z_]+):(?:[ \t]+(.*?))?[ \t]*\Z")
_ITEM = re.compile(r"[ \t]*-[ \t]+(.*?)[ \t]*\Z")
_BARRIER = re.compile(r"([^:]+):([^>]*?)(?:->(.*))?\Z")
_ROLE, _CLASS = "Builder", "build"
SHOWN = 100


class Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a plan with its packets.

    `bounds` says how much it may use, `provider` whose model made it, `base` the commit it was made for. `prose` are
    further sections of `plan.md` by their headings.
    """

    goal: str = ""
    spec: str = ""
    shape: str = ""
    bounds: str = ""
    mode: str = ""
    workers: str = ""
    manager: str = ""
    provider: str = ""
    base: str = ""
    barriers: tuple[Barrier, ...] | None = None
    summary: str = ""
    modules: tuple[Module, ...] = ()
    packets: tuple[Packet, ...] = ()
    prose: dict[str, str] = {}

    @property
    def plan(self) -> Plan:
        """Gives the plan: a module for each packet that names none, where it lies in the folder of one."""
        return Plan(self.summary, self.modules, tuple(packets.to_task(one) for one in self.packets))


def of_plan(plan: Plan, document: Document = Document()) -> Document:
    """Gives the document of a plan; what else it says is that of another document.

    A task that says nothing else is a Builder's.
    """
    tasks = [
        msgspec.structs.replace(task, role=task.role or _ROLE, class_=task.class_ or _CLASS) for task in plan.tasks
    ]
    made = tuple(packets.from_task(task, final_reply=_reply(task.role)) for task in tasks)
    return msgspec.structs.replace(document, summary=plan.summary, modules=plan.modules, packets=made)


def _reply(role: str) -> str:
    from ropewalk.plan.rolecards import reply_form

    return reply_form(role) if role in packets.ROLES else ""


def write(document: Document) -> dict[str, str]:
    """Gives the files of a plan by their paths; reading them gives the document back."""
    found = {FILE: _written(document)}
    found |= {f"{FOLDER}/{packet.id}.md": packets.write(packet) for packet in document.packets}
    return found


def _written(document: Document) -> str:
    lines = ["---"]
    for name in _TEXTS:
        if value := getattr(document, name):
            lines.append(f"{name}: {msgspec.json.encode(value).decode()}")
    if document.barriers is not None:
        lines += ["barriers:" if document.barriers else "barriers: []"]
        lines += [f"  - {b.name}: {', '.join(b.waits)}{f' -> {b.joins}' if b.joins else ''}" for b in document.barriers]
    lines += ["---", "", f"# {_row(document.goal.strip().split(chr(10), 1)[0][:120]) or 'Plan'}", ""]
    lines += [document.summary.strip("\n"), ""] if document.summary.strip() else []
    lines += ["## Modules", "", "| name | path | weight | depends on |", "|---|---|---|---|"]
    lines += [f"| {m.name} | {_row(m.path)} | {m.weight:g} | {', '.join(m.depends_on)} |" for m in document.modules]
    lines += [
        "",
        "## Packets",
        "",
        "| id | role | class | model | writes | after | gate |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| [{p.id}]({FOLDER}/{p.id}.md) | {p.role} | {p.class_} | {_row(p.model)} | "
              f"{_row(', '.join((*p.owns, *p.modifies)))} | {', '.join(p.depends_on)} | {_row(p.gate)} |"
              for p in document.packets]  # fmt: skip
    for heading, text in document.prose.items():
        lines += ["", f"## {heading}", "", text.strip("\n")]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def read(files: Mapping[str, str]) -> tuple[Document, list[str]]:
    """Gives the document of a folder's files, and what is wrong with their form, each with its place."""
    faults: list[str] = []
    made: list[Packet] = []
    for path in sorted(files):
        if path.startswith(f"{FOLDER}/") and path.endswith(".md"):
            packet, wrong = packets.read(files[path])
            faults += [f"{path}: {words}" for words in wrong]
            if packet is not None:
                made.append(packet)
                if path != f"{FOLDER}/{packet.id}.md":
                    faults.append(f"{path}: its id is {packet.id[:80]!r}, which is not the file's name")
    document = _read(files.get(FILE, ""), faults)
    return msgspec.structs.replace(document, packets=_ordered(made)), faults


def parse(files: Mapping[str, str], name: str = "the plan") -> Document:
    """Gives the document of a folder's files; `E_INVALID` with every problem in `details.problems`."""
    document, faults = read(files)
    if not faults and not document.packets:
        faults.append(f"there is no packet in {FOLDER}/")
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise InvalidError(f"{name} can't be read: {faults[0]}{more}", problems=faults[:SHOWN],
                           hint="`rw plan draft` writes plans of the right form")  # fmt: skip
    return document


def _ordered(made: Sequence[Packet]) -> tuple[Packet, ...]:
    """Gives packets so that each stands behind what it needs, else by their ids; those on circles are last."""
    from ropewalk.plan import graph

    needs = {packet.id: packet.depends_on for packet in sorted(made, key=lambda one: one.id)}
    place = {name: n for n, name in enumerate(graph.order(needs))}
    return tuple(sorted(made, key=lambda one: (place.get(one.id, len(made)), one.id)))


def _read(text: str, faults: list[str]) -> Document:
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    values: dict[str, str] = {}
    barriers: list[Barrier] | None = None
    start = 0
    if lines[0].rstrip() == "---":
        end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
        if end is None:
            faults.append(f"{FILE}: its front matter has no end")
            return Document()
        start, current = end + 1, ""
        for number, line in enumerate(lines[1:end], 2):
            item, match = _ITEM.match(line), _KEY.match(line)
            if item is not None and current == "barriers" and barriers is not None:
                barriers += _barrier(item[1], f"{FILE}: line {number}", faults)
            elif match is not None and match[1] == "barriers":
                current, barriers = "barriers", []
            elif match is not None and match[1] in _TEXTS:
                current, values[match[1]] = "", _text(match[2] or "")
            elif line.strip() and not line.lstrip().startswith("#"):
                faults.append(f"{FILE}: line {number}: {line.strip()[:80]!r} is no field of a plan")
    summary, sections = _sections(lines[start:])
    modules = _modules(sections.pop("Modules", ""), faults)
    sections.pop("Packets", None)
    made = Document(barriers=None if barriers is None else tuple(barriers), summary=summary, modules=modules,
                    prose=sections)  # fmt: skip
    return msgspec.structs.replace(made, **values)


def _text(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        try:
            return msgspec.json.decode(value.encode("utf-8", "surrogatepass"), type=str)
        except (msgspec.DecodeError, UnicodeError):
            return value[1:-1]
    return value


def _barrier(text: str, place: str, faults: list[str]) -> list[Barrier]:
    match = _BARRIER.match(text)
    if match is None:
        faults.append(f"{place}: a barrier is written `name: a, b -> c`")
        return []
    return [Barrier(match[1].strip(), tuple(match[2].replace(",", " ").split()), (match[3] or "").strip())]


def _sections(lines: Sequence[str]) -> tuple[str, dict[str, str]]:
    summary: list[str] = []
    found: dict[str, list[str]] = {}
    current = summary
    for line, fenced in unfenced("\n".join(lines)):
        if not fenced and line.startswith("## "):
            current = found.setdefault(line[3:].strip(), [])
        elif fenced or not line.startswith("# ") or current is not summary:
            current.append(line)
    return "\n".join(summary).strip("\n"), {name: "\n".join(text).strip("\n") for name, text in found.items()}


def _modules(text: str, faults: list[str]) -> tuple[Module, ...]:
    made: list[Module] = []
    for line in text.split("\n"):
        cells = [c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if len(cells) < 4 or cells[0] == "name" or not cells[0].strip("-: "):
            continue
        try:
            weight = float(cells[2] or 1)
            made.append(msgspec.convert({"name": cells[0], "path": cells[1], "weight": weight,
                                         "depends_on": cells[3].replace(",", " ").split()}, Module))  # fmt: skip
        except (ValueError, msgspec.ValidationError) as error:
            faults.append(f"{FILE}: module {cells[0][:80]}: {' '.join(str(error).split())[:200]}")
    return tuple(made)
