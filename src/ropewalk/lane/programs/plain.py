"""Programs without a stream of their own: any command that reads a prompt, and the scripted agent of the demo."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from typing import Any

import msgspec

from ropewalk.core.errors import InvalidError
from ropewalk.gateway.tokens import Tokens, Wire
from ropewalk.lane.adapter import Ending, Event, Kind, Launch, Start
from ropewalk.lane.programs.common import LINE, JsonReader, Program, number, said

_KINDS: tuple[Kind, ...] = ("started", "message", "tool", "usage", "result", "error")


class Command(Program):
    """Is any program that reads a prompt on standard input, edits the tree, and ends with 0."""

    name = "command"
    wires: tuple[Wire, ...] = ("anthropic", "chat", "responses", "gemini")
    prompt_max = 10_000_000

    def __init__(self, line: str) -> None:
        """Takes the command line, split as a shell would; `E_INVALID` when it can't be."""
        try:
            self.words = shlex.split(line)
        except ValueError as error:
            raise InvalidError(f"the command can't be split into words: {error}", command=line) from None
        if not self.words:
            raise InvalidError("the command is empty", command=line)
        self.program = self.words[0]
        self.install = f"install {self.program}, or name it with its path"
        slug = re.sub(r"[^a-z0-9._-]+", "-", os.path.basename(self.program).lower()).strip("-.")
        self.family = slug[:64] or "command"

    def files(self, search: str) -> list[str]:
        """Gives the files outside the system that its command line names, which a cage has to show."""
        named = [shutil.which(self.program, path=search) or "", *(w for w in self.words[1:] if w.startswith("/"))]
        found = [os.path.abspath(name) for name in named if name and os.path.isfile(name)]
        return [name for name in found if not name.startswith(("/usr/", "/bin/", "/sbin/", "/lib"))]

    def launch(self, start: Start) -> Launch:
        """Gives how it is started; where a model is reached it is told in the variables that most programs know."""
        env = {"ROPEWALK_PROMPT": start.prompt_file}
        if start.endpoint is not None:
            url, token = start.endpoint.url, start.endpoint.token
            env |= {
                "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": token, "OPENAI_BASE_URL": f"{url}/v1",
                "OPENAI_API_KEY": token, "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": token,
            }  # fmt: skip
        if start.model:
            env["ROPEWALK_MODEL"] = start.model
        return Launch(list(self.words), env, {}, start.prompt.encode("utf-8", "surrogatepass"))

    def reader(self) -> PlainReader:
        """Gives a reader for one run."""
        return PlainReader()


class PlainReader:
    """Takes every line for a message, and the exit code for the outcome."""

    def __init__(self) -> None:
        self._text = ""

    def line(self, line: bytes) -> list[Event]:
        """Gives a message for each line that is not empty."""
        text = line.decode("utf-8", "replace").rstrip()
        if not text:
            return []
        self._text = text
        return [said("message", text=text[:LINE])]

    def ending(self, code: int, stderr: str) -> Ending:
        """Gives how the run ended."""
        last = next((line for line in reversed(stderr.splitlines()) if line.strip()), "")
        if code == 0:
            return Ending(True, self._text)
        return Ending(False, self._text, "crashed" if code < 0 else "no_result", last[:LINE] or self._text)


class Scripted(Program):
    """Is our own agent that follows a script, which travels in the prompt; it needs no model."""

    name = "scripted"
    family = "scripted"
    memory = 20
    prompt_max = 10_000_000

    def __init__(self) -> None:
        self.program = sys.executable
        self.install = "it comes with ropewalk"

    def launch(self, start: Start) -> Launch:
        """Gives how it is started: by this very Python."""
        import ropewalk

        folder = os.path.dirname(os.path.dirname(os.path.abspath(ropewalk.__file__)))
        text = start.prompt
        if start.script is not None:
            text += f"\n\n```script\n{msgspec.json.encode(start.script).decode('utf-8')}\n```\n"
        env = {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        return Launch([self.program, "-m", "ropewalk.testing.agent"], env, {}, text.encode("utf-8", "surrogatepass"))

    def reader(self) -> ScriptedReader:
        """Gives a reader for one run."""
        return ScriptedReader()


class ScriptedReader(JsonReader):
    """Reads the scripted agent's events."""

    def event(self, found: dict[str, Any]) -> list[Event]:
        """Gives what an object says."""
        kind = found.pop("event", "message")
        if kind == "usage":
            tokens = Tokens(number(found.get("input_tokens")), output=number(found.get("output_tokens")))
            return [self.add(tokens)]
        if kind == "turn":
            return self.turn()
        if kind == "message":
            self.text = str(found.get("text") or self.text)
        if kind == "result":
            self.done, self.failed = True, found.get("ok") is False
            words = str(found.get("text") or "")
            if self.failed:
                self.reason = "no_result"
                return [self.fail(words), said("result", ok=False, text=words[:LINE])]
            self.text = words or self.text or "done"
        return [Event(kind if kind in _KINDS else "message", found)]

    def is_good(self, code: int) -> bool:
        """Says whether it reported no failure and ended with 0."""
        return code == 0 and not self.failed
