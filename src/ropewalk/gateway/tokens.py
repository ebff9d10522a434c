"""Tokens: one way to count them for every provider, and the formats in which model traffic comes."""

from __future__ import annotations

from typing import Literal

import msgspec

Wire = Literal["anthropic", "chat", "responses", "gemini"]
"""Is a format of model traffic: Anthropic Messages, OpenAI Chat Completions, OpenAI Responses, Gemini's."""


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is a count of tokens; `input` without what came from a cache, `output` with `reasoning` in it.

    The total is the same sum for every provider: input, cache_read, cache_write and output.
    """

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """Gives input, both kinds of cache, and output."""
        return self.input + self.cache_read + self.cache_write + self.output

    def __add__(self, other: Tokens) -> Tokens:
        """Gives the sum."""
        return Tokens(
            self.input + other.input, self.cache_read + other.cache_read, self.cache_write + other.cache_write,
            self.output + other.output, self.reasoning + other.reasoning,
        )  # fmt: skip


def wire_of(path: str) -> Wire | None:
    """Gives the format of a request by its path; None for what is no request to a model."""
    path = path.split("?", 1)[0].rstrip("/")
    if path.endswith("/messages"):
        return "anthropic"
    if path.endswith("/chat/completions"):
        return "chat"
    if path.endswith("/responses"):
        return "responses"
    if path.endswith((":generateContent", ":streamGenerateContent")):
        return "gemini"
    return None
