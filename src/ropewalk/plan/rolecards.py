"""Role cards: what each of the twelve roles is for, may do and must not, and the prompt that a packet becomes with one.

The prompt hangs on its parts alone, so every provider gets the same rules, and its hash says which they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

from ropewalk.core.errors import NotFoundError
from ropewalk.plan.globs import witness
from ropewalk.plan.packets import ROLES, Packet, sections

_MARK = "<!-- {} -->"


class Governing(NamedTuple):
    """Is a standing decision: its id, its title, the globs it governs, and its text."""

    id: str
    title: str
    governs: tuple[str, ...]
    text: str


class Prompt(NamedTuple):
    """Is what an agent is told, and its SHA-256."""

    text: str
    hash: str


@lru_cache(maxsize=len(ROLES))
def card(role: str) -> str:
    """Gives the text of a role's card; `E_NOT_FOUND` for what is no role."""
    name = next((r for r in ROLES if r.casefold() == role.casefold()), None)
    if name is None:
        hint = f"the roles are {', '.join(ROLES)}"
        raise NotFoundError(f"there is no role {role[:80]!r}", hint=hint, role=role[:200])
    return resources.files("ropewalk.plan").joinpath("roles", f"{name.lower()}.md").read_text("utf-8").strip() + "\n"


def reply_form(role: str) -> str:
    """Gives the form of a role's reply, as its card has it."""
    return sections(card(role))["How you reply"].strip().removeprefix("```").removesuffix("```").strip("\n")


def governing(paths: Sequence[str], decisions: Sequence[Governing]) -> list[Governing]:
    """Gives the decisions that govern any of some paths, in their order."""
    return [d for d in decisions if any(witness(glob, path) is not None for glob in d.governs for path in paths)]


def compose(packet: Packet, *, rules: Mapping[str, str] | None = None, decisions: Sequence[Governing] = (),
            contract: str = "") -> Prompt:  # fmt: skip
    """Gives the prompt of a packet: the role's card, the rules, the decisions that govern its paths, contract, task.

    Of the decisions only those are taken that govern what the packet writes.
    """
    parts: list[tuple[str, str]] = []
    if packet.role:
        parts.append(("role", card(packet.role)))
    for name in sorted(rules or {}):
        parts.append((f"rules {name}", (rules or {})[name]))
    for decision in governing((*packet.owns, *packet.modifies), decisions):
        parts.append((f"decision {decision.id}", f"# {decision.id}: {decision.title}\n\n{decision.text}"))
    if contract.strip():
        parts.append(("contract", contract))
    parts.append((f"task {packet.id}", _task(packet)))
    text = "\n\n".join(f"{_MARK.format(_plain(name))}\n{_lines(words)}" for name, words in parts) + "\n"
    return Prompt(text, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())


def _task(packet: Packet) -> str:
    lists = (("Writes alone", packet.owns), ("Changes", packet.modifies), ("Reads", packet.reads),
             ("Wants an entry in", packet.registries), ("Comes after", packet.depends_on))  # fmt: skip
    lines = [f"- {label}: {', '.join(f'`{item}`' for item in items)}" for label, items in lists if items]
    if packet.gate:
        lines.append(f"- Has to pass: `{packet.gate}`")
    reply = packet.final_reply or (reply_form(packet.role) if packet.role else "")
    end = f"\n\n## Final reply\n```\n{reply}\n```" if reply else ""
    body = packet.body.strip("\n") or f"# {packet.id}"
    return f"{body}\n\n## Bounds of this packet\n" + ("\n".join(lines) or "- none") + end


def _plain(name: str) -> str:
    return " ".join(name.replace("--", "-").split())[:200]


def _lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").strip("\n").split("\n"))
