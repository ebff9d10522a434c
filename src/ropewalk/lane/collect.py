"""The collect gate: whether what a lane left may go on, by what it is and not by what is said of it (G23).

Our own run of the check decides. What the agent says of tests is shown beside it, and a word against it fails the gate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from ropewalk.core.decoding import UNREADABLE
from ropewalk.lane.adapter import Ending
from ropewalk.plan import globs
from ropewalk.plan.task import Task

LARGE = 10 << 20
"""Is how large a file may be that a lane made, in bytes."""

_SECRET = re.compile(
    rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bsk-ant-[A-Za-z0-9_-]{24,}"
    rb"|\bsk-(?:proj-)?[A-Za-z0-9]{32,}|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bgithub_pat_[A-Za-z0-9_]{40,}"
    rb"|\bxox[abprs]-[A-Za-z0-9-]{20,}|\bAIza[A-Za-z0-9_-]{35}\b|\bglpat-[A-Za-z0-9_-]{20}\b|\bnpm_[A-Za-z0-9]{36}\b"
    rb"|\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{40,}"
)
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n```", re.DOTALL)
_FIELDS = ("STATUS", "TESTS", "FILES_CHANGED", "DEFERRED", "SUMMARY")
_FIELD = re.compile(r"^[ \t]*(?:\*\*)?([A-Z][A-Z_]{2,30})(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*(.*)$")


class Changed(NamedTuple):
    """Is a file that a lane changed: its path, its size (None: deleted), and a way to read its beginning."""

    path: str
    size: int | None
    read: Callable[[], bytes]


class Checked(NamedTuple):
    """Is our own run of the task's check on the tree that the lane left."""

    tree: str
    rc: int
    output: str = ""


class Gate(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is what the gate decided: `passed`, and every reason against it; `notes` explain and decide nothing.

    `held` are files that are kept back, with why. `repair` is what a repair turn would be told, empty when none would
    help. `tree` is the tree that this is said of: of no other.
    """

    passed: bool
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    held: dict[str, str] = {}
    repair: str = ""
    tree: str = ""


def reply_of(text: str) -> tuple[Any, str]:
    """Gives the JSON in an agent's last message, and why there is none (empty: there is)."""
    found = [part[1] for part in _FENCE.finditer(text)] or [text]
    for one in reversed(found):
        try:
            return msgspec.json.decode(one.strip()), ""
        except UNREADABLE:
            continue
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end:
        try:
            return msgspec.json.decode(text[start : end + 1]), ""
        except UNREADABLE as error:
            return None, f"the reply is no JSON: {error}"
    return None, "the reply is no JSON"


def check_reply(text: str, schema: dict[str, Any]) -> tuple[Any, str]:
    """Gives the reply that a schema (JSON Schema 2020-12) asks for, and why it is none (empty: it is)."""
    found, why = reply_of(text)
    if why:
        return None, why
    import jsonschema  # type: ignore[import-untyped]

    validator = jsonschema.Draft202012Validator(schema)
    errors = sorted(validator.iter_errors(found), key=lambda error: list(map(str, error.absolute_path)))
    if errors:
        where = "/".join(map(str, errors[0].absolute_path)) or "the reply"
        return None, f"{where}: {errors[0].message}"[:1000]
    return found, ""


def fields_of(text: str) -> dict[str, str]:
    """Gives the fields of a last message: status, tests, files_changed, deferred, summary, as far as it has them.

    A field begins with its name and a colon, and goes on to a blank line or to the next.
    """
    found: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        match = _FIELD.match(line)
        if match and match[1] in _FIELDS:
            current = match[1].lower()
            found.setdefault(current, match[2].strip())
        elif match or not line.strip():
            current = ""
        elif current:
            found[current] = f"{found[current]} {line.strip()}".strip()[:1500]
    return found


def held_back(changed: Sequence[Changed], large: int = LARGE) -> dict[str, str]:
    """Gives the files that must not land as they are, with why: those with a secret in them, and those too large."""
    found: dict[str, str] = {}
    for one in changed:
        if one.size is None:
            continue
        if one.size > large:
            found[one.path] = f"it is larger than {large >> 20} MiB"
        elif _SECRET.search(one.read()):
            found[one.path] = "it holds what looks like a secret"
    return found


def decide(
    task: Task, ending: Ending, changed: Sequence[Changed], checked: Checked | None, *, tools: int, tree: str,
    large: int = LARGE,
) -> Gate:  # fmt: skip
    """Gives what the gate decides of a lane."""
    reasons: list[str] = []
    notes: list[str] = []
    repairs: list[str] = []
    if task.reply is not None:
        _, why = check_reply(ending.text, task.reply)
        if why:
            reasons.append(f"reply: {why}")
            repairs.append(f"Your last message has to be JSON of the agreed form, and is not: {why}. Give it again.")
    scope = (*task.owns, *task.modifies)
    if strays := globs.outside([one.path for one in changed], scope):
        shown = ", ".join(strays[:10])
        reasons.append(f"scope: {len(strays)} files outside what the task owns: {shown}")
        repairs.append(f"You changed files that are not this task's: {shown}. Put them back as they were.")
    held = held_back(changed, large)
    for path, why in held.items():
        reasons.append(f"held back: {path}: {why}")
    if held:
        repairs.append("These files must not be in the change: " + "; ".join(f"{p}: {w}" for p, w in held.items()))
    if checked is None:
        reasons.append("check: it was not run")
    elif checked.rc != 0:
        reasons.append(f"check: it ended with {checked.rc}")
        repairs.append(f"The check `{task.check}` ended with {checked.rc}:\n{checked.output[-4000:]}")
    claims = fields_of(ending.text).get("tests", "").lower()
    if checked is not None and claims:
        says_good = bool(re.search(r"\bpass|\bgreen\b|\bok\b", claims)) and not re.search(r"\bfail|\bnot run\b", claims)
        if says_good != (checked.rc == 0):
            reasons.append(f"tests: the agent says {claims[:100]!r}, our run of the check ended with {checked.rc}")
    notes += _notes(ending, changed, tools)
    return Gate(not reasons, tuple(reasons), tuple(notes), held, "\n\n".join(repairs), tree)


def _notes(ending: Ending, changed: Sequence[Changed], tools: int) -> list[str]:
    found = []
    if not ending.ok:
        found.append(
            f"the agent's own account: {ending.reason or 'failed'}{': ' + ending.error if ending.error else ''}"
        )
    if ending.ok and not ending.text:
        found.append("the last message is empty")
    if not changed:
        found.append("nothing was changed")
    if not tools:
        found.append("no tool was used")
    if ending.denied:
        found.append(f"{ending.denied} uses of tools were denied")
    return [note[:500] for note in found]
