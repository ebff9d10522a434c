"""Scripts: what the model does, as data; and scenarios, which are scripts with faults.

A script is a JSON object, or the list of its `steps` alone. Each turn follows the steps from the first, one a request;
`turns` has a list of steps for each turn (the last one serves all that come after). `cases` are lists of steps by what
the turn's prompt says: the first one whose pattern `when` is found in it is followed, else the script's own steps.
Behind the last step the answer is `FINAL-ANSWER: done`. A step is an object:

```
tool: write (path, content) | shell (cmd) | read (path) | edit (path, old, new) | a pattern of a tool's name (args)
tools: [steps]     several calls in one answer          text: …    an answer, or words before a call
fail: a fault      thinking: …                          usage: {input, output, cache_read, cache_write, reasoning}
sleep: seconds before the first byte                    pace: seconds between the parts of a stream
```

`{{lane}}`, `{{turn}}`, `{{step}}`, `{{prompt}}`, `{{steers}}` and `{{folder}}` are replaced in all texts of a step.

A scenario is named in the address: a script's name, a built-in (write, shell, text, sameid, longN: an answer of N
kilobytes), or a fault, which falls on the script `write`. `+` joins: `mine+e500@2` fails from step 2 on, `mine+e503x2`
fails the first two tries of each step, `mine+e429rax1@1` the first try of each step from 1 on. `flakyN` is `e503xN@0`
for the first step only. Side requests see only faults that begin at step 0 and have no count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ropewalk.testing.models.conversation import Json, Place
from ropewalk.testing.models.faults import Fault, fault
from ropewalk.testing.models.reply import Usage

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FAULT = re.compile(r"([a-z]+(?:\d{3}(?:ra\d*)?)?)(?:x(\d+))?(?:@(\d+))?")
_FLAKY = re.compile(r"flaky(\d+)(?:@(\d+))?")
_LONG = re.compile(r"long(\d{1,6})")
_PLACEHOLDER = re.compile(r"\{\{(lane|turn|step|prompt|steers|folder)\}\}")


class ScriptError(Exception):
    """A scenario can't be had: there is none of the name, or its file is no script."""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is one step: one answer of the model."""

    tool: str | None = None
    tools: tuple[Step, ...] = ()
    args: dict[str, Any] | None = None
    path: str | None = None
    content: str | None = None
    cmd: str | None = None
    old: str | None = None
    new: str | None = None
    text: str | None = None
    thinking: str = ""
    fail: str | None = None
    usage: Usage | None = None
    sleep: float = 0.0
    pace: float = 0.0

    @property
    def calls(self) -> tuple[Step, ...]:
        """Are the tool calls of the step."""
        return (*((self,) if self.tool else ()), *self.tools)


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is what the model does in a turn whose prompt has a pattern."""

    when: str
    steps: tuple[Step, ...]

    @property
    def calls(self) -> set[str]:
        """Gives what its steps call."""
        return _calls(self.steps)


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Is what the model does; `message_id` makes all answers carry the same id, `silent_usage` none say their usage."""

    steps: tuple[Step, ...] = ()
    turns: tuple[tuple[Step, ...], ...] = ()
    cases: tuple[Case, ...] = ()
    side: str = "Scripted title"
    message_id: str | None = None
    usage: Usage = Usage()
    silent_usage: bool = False
    piece: int = 24

    def verbs(self) -> set[str]:
        """Gives what its steps call."""
        told = [*self.turns, *(case.steps for case in self.cases)]
        return _calls([*self.steps, *(step for steps in told for step in steps)])

    def case(self, place: Place) -> Case | None:
        """Gives the case that a turn's prompt is."""
        return next((case for case in self.cases if re.search(case.when, place.prompt)), None)

    def step(self, place: Place) -> Step:
        """Gives the step of a place."""
        steps = self.turns[min(place.turn, len(self.turns) - 1)] if self.turns else self.steps
        if (case := self.case(place)) is not None:
            steps = case.steps
        return steps[place.step] if place.step < len(steps) else Step(text="FINAL-ANSWER: done")


def _calls(steps: Iterable[Step]) -> set[str]:
    return {call.tool for step in steps for call in step.calls if call.tool}


class Scenario(msgspec.Struct, frozen=True):
    """Is a script and the faults that fall on it."""

    script: Script
    faults: tuple[tuple[Fault, bool], ...] = ()
    """Are the faults, and whether each is for its first step alone."""

    def candidates(self, place: Place, *, side: bool) -> list[Fault]:
        """Gives the faults that may fall on a request, the ones counted by tries included."""
        if side:
            return [f for f, only in self.faults if not f.first and not f.times and not only]
        return [f for f, only in self.faults if place.step == f.first or (place.step > f.first and not only)]


_WRITE = Script(
    steps=(
        Step(tool="write", path="hello.txt", content="hello from {{lane}}\n"),
        Step(text="FINAL-ANSWER: wrote hello.txt"),
    )
)
_BUILT_IN = {
    "write": _WRITE,
    "shell": Script(
        steps=(
            Step(tool="shell", cmd="echo 'hello from {{lane}}' > hello.txt"),
            Step(text="FINAL-ANSWER: wrote hello.txt"),
        )
    ),
    "text": Script(steps=(Step(text="FINAL-ANSWER: nothing to do"),)),
    "sameid": msgspec.structs.replace(_WRITE, message_id="repeated"),
}


def built_in() -> list[str]:
    """Gives the names of the scripts that are always there."""
    return sorted(_BUILT_IN)


def decode(data: bytes) -> Script:
    """Gives the script of JSON text; `ScriptError` says what is wrong with it."""
    try:
        raw = msgspec.json.decode(data)
        script = msgspec.convert({"steps": raw} if isinstance(raw, list) else raw, Script)
    except msgspec.MsgspecError as error:
        raise ScriptError(str(error)) from None
    for steps in (script.steps, *script.turns, *(case.steps for case in script.cases)):
        for step in steps:
            _check(step)
    for case in script.cases:
        _check_pattern(case.when)
    return script


def _check(step: Step) -> None:
    if step.fail is not None and fault(step.fail) is None:
        raise ScriptError(f"there is no fault {step.fail!r}")
    if step.fail is None and step.text is None and not step.calls:
        raise ScriptError("a step has to have tool, tools, text or fail")
    for call in step.calls:
        _check_pattern(call.tool or "")


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ScriptError(f"{pattern!r} is no pattern: {error}") from None


def scenario(name: str, folder: str | None, added: dict[str, Script]) -> Scenario:
    """Gives the scenario of a name, from scripts added, files of a folder, or what is built in."""
    script: Script | None = None
    faults: list[tuple[Fault, bool]] = []
    for part in name.split("+"):
        if found := _FLAKY.fullmatch(part):
            made = fault("e503", int(found[2] or 0), int(found[1]))
            assert made is not None
            faults.append((made, True))
        elif (found := _FAULT.fullmatch(part)) and (made := fault(found[1], int(found[3] or 0), int(found[2] or 0))):
            faults.append((made, False))
        elif script is None:
            script = _script(part, folder, added)
        elif part == "sameid":
            script = msgspec.structs.replace(script, message_id="repeated")
        else:
            raise ScriptError(f"{part!r} is no fault")
    return Scenario(script or _WRITE, tuple(faults))


def _script(name: str, folder: str | None, added: dict[str, Script]) -> Script:
    if name in added:
        return added[name]
    if not _NAME.fullmatch(name):
        raise ScriptError(f"{name!r} is no name of a scenario")
    if folder is not None:
        try:
            return decode((Path(folder) / f"{name}.json").read_bytes())
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ScriptError(f"{name}.json can't be read: {error.strerror}") from None
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    if found := _LONG.fullmatch(name):
        text = ("0123456789abcde " * 64 * int(found[1]))[: 1024 * int(found[1])]
        return Script(steps=(Step(text=text or "."),), piece=256)
    raise ScriptError(f"there is no scenario {name!r}")


def with_values(step: Step, values: Json) -> Step:
    """Gives a step with its placeholders replaced."""

    def put(value: Any) -> Any:
        if isinstance(value, str):
            return _PLACEHOLDER.sub(lambda m: str(values[m[1]]), value)
        if isinstance(value, dict):
            return {k: put(v) for k, v in value.items()}
        return [put(v) for v in value] if isinstance(value, list) else value

    fields = {name: put(getattr(step, name)) for name in ("args", "path", "content", "cmd", "old", "new", "text")}
    inner = tuple(with_values(one, values) for one in step.tools)
    return msgspec.structs.replace(step, **fields, tools=inner)
