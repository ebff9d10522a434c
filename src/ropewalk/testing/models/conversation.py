"""What a request says, whatever its wire format: who spoke, which tools are offered, and where its script stands.

The server keeps no count of steps. A conversation's place is read from its history: the ids of the tool calls this
server made carry it (`t0s2n1x…` is turn 0, step 2, call 1), and where a client made ids of its own, messages are
counted. That survives retries, resumed sessions and shortened histories.

A user's message starts a new turn when the assistant had finished its last one (it spoke without calling a tool), or
when the turn before was interrupted. Otherwise it is a steer: it came while tools ran, and the step goes on. Messages
that hold nothing but tagged context (`<system-reminder>…`) are neither. `[script: restart]` and `[script: steer]` in a
message decide where a client's history leaves it open.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

_ID = re.compile(r"t(\d+)s(\d+)n(\d+)x")
_TAG = re.compile(r"<([a-zA-Z][\w.-]*)(?:\s[^<>]*)?>")
_REMINDER = "system-reminder"
_MARK = re.compile(r"\[script: (restart|steer)\]")
_STOPPED = re.compile(r"\[Request interrupted by user|<turn_aborted>|\[Operation Cancelled\]")
_STOPPED_TOOL = re.compile(
    r"\b(?:request|operation|tool|turn|user|execution)\b[^.\n]{0,40}\b(?:interrupted|cancell?ed|aborted)\b",
    re.IGNORECASE,
)
_STEER = re.compile(
    r"<system-reminder>\s*The user sent (?:a new|the following) message[^:\n]*:\n(.*?)"
    r"(?=\n\n(?:This is how|IMPORTANT)|\s*</system-reminder>)",
    re.DOTALL,
)
"""Is how claude tells of a message that came while a tool ran: within the tool's result."""
_SHORT = 400
"""Is how long a tool's result may be that is looked at for words of an interruption."""
_FOLDER = re.compile(
    r"(?:working directory|workspace(?: root)?(?: path| folder| directory)?|current directory|in the directory|cwd)"
    r"\s*[:>]\s*[`\"']?(/[^\s`\"'<>,;:)]+)",
    re.IGNORECASE,
)
_FIRST, _LOOKED_AT = 12, 200_000
"""Is where the folder is looked for: in so many messages, so far into each."""
_PROMPT_TAG = re.compile(r"</?user_query>")

Json = dict[str, Any]


class Said(msgspec.Struct, frozen=True):
    """Is one message: `role` is system, user, assistant or tool; `calls` are the ids of an assistant's tool calls."""

    role: str
    text: str = ""
    calls: tuple[str, ...] = ()


class Offered(msgspec.Struct, frozen=True):
    """Is a tool a request offers; `kind` is function, custom (free text), local_shell, or server (the provider's)."""

    name: str
    schema: Json
    kind: str = "function"
    namespace: str = ""


class Asked(msgspec.Struct, frozen=True):
    """Is a request for an answer of the model, read from one of the wire formats."""

    wire: str
    model: str
    said: tuple[Said, ...]
    tools: tuple[Offered, ...] = ()
    streaming: bool = False
    forced: str | None = None
    """Is the name of the one tool that has to be called; empty when it may be any."""
    silent_tools: bool = False
    """Says whether tools are offered that must not be called (`tool_choice: none`)."""
    schema: Json | None = None
    """Is the JSON schema the answer's text has to keep."""
    wants_usage: bool = True
    array: bool = False
    """Says whether a stream is one JSON array and no server-sent events (Gemini without `alt=sse`)."""

    def folder(self) -> str:
        """Gives the working directory the prompts name, empty where they name none."""
        for one in self.said[:_FIRST]:
            if found := _FOLDER.search(one.text, 0, _LOOKED_AT):
                return found.group(1).rstrip("/.")
        return ""


class Place(msgspec.Struct, frozen=True):
    """Is where a conversation stands: the turn's and the step's number from 0, its prompt, and steers in this turn.

    `aside` says that the turn is over and nothing was said since but context: the program asks for something of its
    own, a line for a list of sessions or the like.
    """

    turn: int = 0
    step: int = 0
    prompt: str = ""
    steers: tuple[str, ...] = ()
    aside: bool = False


def call_id(prefix: str, place: Place, number: int, nonce: str) -> str:
    """Gives the id of a tool call, which tells the place it was made at."""
    return f"{prefix}t{place.turn}s{place.step}n{number}x{nonce}"


def plain(text: str) -> str:
    """Gives what a user said, without tagged context before it and reminders within; empty when nothing is left."""
    text = _PROMPT_TAG.sub("", text).strip()
    while (tag := _TAG.match(text)) and (end := text.find(f"</{tag[1]}>", tag.end())) >= 0:
        text = text[end + len(tag[1]) + 3 :].lstrip()
    kept, at = [], 0
    while (begin := text.find(f"<{_REMINDER}>", at)) >= 0 and (end := text.find(f"</{_REMINDER}>", begin)) >= 0:
        kept.append(text[at:begin])
        at = end + len(_REMINDER) + 3
    return ("".join(kept) + text[at:]).strip()


def find_place(said: Sequence[Said]) -> Place:
    """Gives where a conversation stands, from its history alone."""
    turn, step, prompt = 0, 0, ""
    steers: list[str] = []
    last, stopped, before = "", False, Said("")
    for one in said:
        if one.role == "assistant":
            if one.calls:
                known = [(int(m[1]), int(m[2])) for m in map(_ID.search, one.calls) if m]
                if known:
                    turn, step = max(turn, max(known)[0]), max(known)[1] + 1
                elif not before.calls:
                    step += 1
                last, stopped = "calls", False
            elif one.text.strip():
                last = "text"
        elif one.role == "tool":
            text = plain(one.text)
            if len(text) <= _SHORT and (_STOPPED.search(text) or _STOPPED_TOOL.search(text)):
                stopped = True
            steers += [found.strip() for found in _STEER.findall(one.text)]
        elif one.role == "user":
            stopped = stopped or (last == "calls" and bool(_STOPPED.search(one.text)))
            steers += [found.strip() for found in _STEER.findall(one.text)]
            text = plain(one.text)
            if not text or _STOPPED.match(text):
                before = one
                continue
            mark = found.group(1) if (found := _MARK.search(text)) else ""
            goes_on = mark == "steer" or (last == "calls" and not stopped and mark != "restart")
            if last in ("text", "calls") and not goes_on:
                turn, step, steers, stopped = turn + 1, 0, [], False
            if goes_on and last:
                steers.append(text)
            else:
                prompt, last = text, "user"
        before = one
    return Place(turn, step, prompt, tuple(steers), last == "text" and before.role == "user")
