"""Drafts without a model: the packets of a piece of work by its shape, with paths and checks from the map.

A draft is a start that lints clean: who does what after whom. What it can't know it leaves to whoever edits it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ropewalk.core.errors import InvalidError
from ropewalk.plan import packets
from ropewalk.plan.decisions import Decision, touching
from ropewalk.plan.document import Document
from ropewalk.plan.mapping import Map, Part, slug
from ropewalk.plan.packets import CLASSES, CONSTRAINTS, ROLES, Packet
from ropewalk.plan.plan import Module
from ropewalk.plan.rolecards import reply_form
from ropewalk.plan.task import check_id

_RANKS = (
    ("Architect", "Scout", "Oracle", "Surveyor"), ("Scholar",), ("Builder",), ("Warden",),
    ("Inspector", "Adversary", "Critic"), ("Judge",), ("Composer",),
)  # fmt: skip
"""Are the roles by when they work; each packet comes after all of the last rank before its own that has any."""

_USUAL = {"Architect": "judge", "Oracle": "scout", "Scout": "scout", "Surveyor": "scout", "Scholar": "scout",
          "Builder": "build", "Inspector": "verify", "Adversary": "verify", "Judge": "judge", "Critic": "verify",
          "Composer": "build", "Warden": "mechanical"}  # fmt: skip


class Seat(NamedTuple):
    """Is a packet that is wanted: its id, role, class and model."""

    id: str
    role: str
    class_: str
    model: str = ""


SHAPES: Mapping[str, tuple[Seat, ...]] = {
    "feature": (Seat("design", "Architect", "judge"), Seat("build", "Builder", "build"),
                Seat("inspect", "Inspector", "verify"), Seat("refute", "Adversary", "verify")),
    "review": (Seat("review-correctness", "Adversary", "verify"), Seat("review-tests", "Adversary", "verify"),
               Seat("review-gaps", "Critic", "verify"), Seat("verdict", "Judge", "judge")),
    "research": (Seat("survey-one", "Surveyor", "scout"), Seat("survey-two", "Surveyor", "scout"),
                 Seat("read", "Scholar", "scout"), Seat("gaps", "Critic", "verify"),
                 Seat("compose", "Composer", "build")),
    "migrate": (Seat("inventory", "Scout", "scout"), Seat("migrate", "Builder", "build"),
                Seat("inspect", "Inspector", "verify"), Seat("refute", "Adversary", "verify")),
    "app": (Seat("contracts", "Architect", "judge"), Seat("scaffold", "Builder", "build"),
            Seat("build", "Builder", "build"), Seat("inspect", "Inspector", "verify"),
            Seat("report", "Composer", "build")),
}  # fmt: skip
_AFTER = {"app": {"build": ("scaffold",)}}
"""Is what comes after what within a rank."""


def seats(words: Sequence[str]) -> tuple[Seat, ...]:
    """Gives the packets of words such as `parser=Builder/build/sonnet`; class and model may be left out."""
    found: list[Seat] = []
    for word in words:
        name, _, rest = word.partition("=")
        role, _, rest = rest.partition("/")
        kind, _, model = rest.partition("/")
        known = next((r for r in ROLES if r.casefold() == role.strip().casefold()), None)
        if known is None:
            raise InvalidError(f"{word[:80]!r}: there is no role {role[:40]!r}", hint=f"one of {', '.join(ROLES)}")
        kind = kind.strip() or _USUAL[known]
        if kind not in CLASSES:
            raise InvalidError(f"{word[:80]!r}: there is no class {kind[:40]!r}", hint=f"one of {', '.join(CLASSES)}")
        found.append(Seat(check_id(name.strip(), "a packet's id"), known, kind, model.strip()))
    names = [one.id for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidError(f"two packets have the id {twice[0]!r}", packet=twice[0])
    return tuple(found)


def draft(spec: str, name: str, shape: str, wanted: Sequence[Seat], seen: Map, decisions: Sequence[Decision] = (),
          paths: Sequence[str] = ()) -> Document:  # fmt: skip
    """Gives the plan of a specification; `name` is the file's, `paths` are the tree's files."""
    if shape not in SHAPES:
        raise InvalidError(f"there is no shape {shape[:40]!r}", hint=f"one of {', '.join(SHAPES)}", shape=shape[:200])
    chosen = tuple(wanted) or SHAPES[shape]
    goal = _goal(spec, name)
    folder = f"docs/{slug(goal)[:40].strip('-._') or 'plan'}"
    parts = _shared_out([one for one in chosen if one.role == "Builder"], seen, paths)
    ranked = [[one for one in chosen if one.role in rank] for rank in _RANKS]
    ranked = [rank for rank in ranked if rank]
    made: list[Packet] = []
    for place, rank in enumerate(ranked):
        before = tuple(one.id for one in ranked[place - 1]) if place else ()
        for seat in rank:
            inner = tuple(n for n in _AFTER.get(shape, {}).get(seat.id, ()) if any(o.id == n for o in rank))
            made.append(_packet(seat, goal, folder, parts.get(seat.id), inner or before, seen, decisions, made))
    modules: dict[str, Module] = {}
    if len(parts) < len(made):
        modules[folder] = Module(slug(folder.rsplit("/", 1)[-1])[:50].strip("-._") + "-notes", folder)
    for part in parts.values():
        modules.setdefault(part.path, Module(part.name, part.path))
    of = {module.folder: module.name for module in modules.values()}
    placed = tuple(_placed(packet, parts, of, folder) for packet in made)
    return Document(goal=goal, spec=name, shape=shape, bounds="none", mode="spec", summary=_summary(spec),
                    modules=tuple(modules.values()), packets=placed, prose=_PROSE)  # fmt: skip


def _placed(packet: Packet, parts: Mapping[str, Part], of: Mapping[str, str], folder: str) -> Packet:
    import msgspec

    part = parts.get(packet.id)
    return msgspec.structs.replace(packet, module=of[part.path if part is not None else folder])


_PROSE = {
    "Verification": "Each gate is run on the tree that lands, and not on the word of whoever made it.",
    "When something fails": "What a failed packet blocks waits; all else goes on. What was made is kept on a ref.",
    "Risks": "None is named yet.",
}


def _goal(spec: str, name: str) -> str:
    for line, fenced in packets.unfenced(spec):
        if not fenced and line.startswith("# ") and line[2:].strip():
            return " ".join(line[2:].split())[:120]
    first = next((line.strip() for line in spec.split("\n") if line.strip() and not line.startswith("---")), "")
    return " ".join(first.lstrip("# ").split())[:120] or name.rsplit("/", 1)[-1].rsplit(".", 1)[0] or "plan"


def _summary(spec: str) -> str:
    """Gives the first paragraph of a specification."""
    text = re.sub(r"^---\n.*?\n---\n", "", spec.replace("\r\n", "\n"), count=1, flags=re.DOTALL)
    blocks = [b.strip() for b in text.split("\n\n") if b.strip() and not b.strip().startswith(("#", "```", "|"))]
    return " ".join(blocks[0].split())[:1000] if blocks else ""


def _shared_out(builders: Sequence[Seat], seen: Map, paths: Sequence[str]) -> dict[str, Part]:
    """Gives each builder a part of the map: that of its name, else the largest that is left, else a new folder."""
    left = sorted((p for p in seen.parts if not _is_test(p)), key=lambda p: (-p.bytes, p.path))
    found: dict[str, Part] = {}
    for seat in builders:
        same = next((p for p in left if seat.id in (p.name, p.path.rsplit("/", 1)[-1])), None)
        if same is not None:
            found[seat.id] = same
            left.remove(same)
    for seat in builders:
        if seat.id in found:
            continue
        if left and len(builders) <= len(seen.parts):
            found[seat.id] = left.pop(0)
        else:
            taken = {p.path for p in (*seen.parts, *found.values())} | {path.split("/")[0] for path in paths}
            path = next(p for n in range(1, 1000) if (p := seat.id if n == 1 else f"{seat.id}-{n}") not in taken)
            found[seat.id] = Part(slug(path), path)
    return found


def _is_test(part: Part) -> bool:
    return bool({"test", "tests", "spec", "docs", "doc", "bench", "examples", ".ci"} & set(part.path.split("/")))


def _packet(seat: Seat, goal: str, folder: str, part: Part | None, after: Sequence[str], seen: Map,
            decisions: Sequence[Decision], before: Sequence[Packet]) -> Packet:  # fmt: skip
    # a builder's report lies in its own part, since whoever writes to a folder that others write to waits for them
    report = f"{part.path}/{slug(goal)[:40].strip('-._')}.md" if part is not None else f"{folder}/{seat.id}.md"
    reads = tuple(glob for one in before if one.id in after for glob in one.owns if glob.endswith(".md"))
    gate = f"test -s {shlex.quote(report)}"
    owns: tuple[str, ...] = (report,)
    if part is not None:
        tests = next((t.command for t in seen.tests), "") if part.files else ""
        owns, gate = (f"{part.path}/",), f"{gate}{f' && {tests}' if tests else ''}"
    cited = touching(decisions, owns)
    limits = "\n".join(f"- {one.id}: {one.title}" for one in cited) or "None governs these paths."
    writes = f"`{part.path}/`" if part is not None else f"the report `{report}`"
    steps = f"1. Do what your card says, for the goal above.\n2. Write what you found to `{report}`."
    if part is not None:
        steps = (
            f"1. Read what the goal asks of {writes}.\n2. Make it, with tests that fail without it.\n"
            f"3. Say in `{report}` what was made and how it was tested."
        )
    body = (
        f"\n# {seat.id}: {goal}\n\n## Context\n\n{seen.files} files are in the tree. The goal: {goal}.\n\n"
        f"## Scope (exclusive)\n\nWrite {writes}, and nothing else.\n\n"
        f"## Read first\n\n{chr(10).join(f'- `{one}`' for one in reads) or '- the goal above'}\n\n"
        f"## {CONSTRAINTS}\n\n{limits}\n\n## Contracts (frozen)\n\nNone yet.\n\n## Steps\n\n{steps}\n\n"
        f"## Tests\n\n{'`' + gate + '`'}\n\n## Done criteria\n\nThe gate passes on the tree with the change.\n\n"
        "## If you get stuck\n\nStop, and say what is missing.\n"
    )
    return Packet(seat.id, seat.role, seat.class_, seat.model, owns=owns, reads=reads, depends_on=tuple(after),
                  gate=gate, final_reply=reply_form(seat.role), body=body)  # fmt: skip
