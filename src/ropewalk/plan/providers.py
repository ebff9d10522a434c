"""Providers: whose a model is, by its name or by the program that drives it; what is not known is said so."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

_MODELS = (
    ("claude*", "anthropic"), ("sonnet*", "anthropic"), ("opus*", "anthropic"), ("haiku*", "anthropic"),
    ("fable*", "anthropic"), ("gpt*", "openai"), ("o[1-9]*", "openai"), ("codex*", "openai"), ("gemini*", "google"),
    ("gemma*", "google"), ("flash*", "google"), ("grok*", "xai"), ("qwen*", "alibaba"), ("glm*", "zhipu"),
    ("deepseek*", "deepseek"), ("mistral*", "mistral"), ("codestral*", "mistral"), ("devstral*", "mistral"),
    ("llama*", "meta"), ("kimi*", "moonshot"), ("minimax*", "minimax"),
)  # fmt: skip
_HARNESSES = {"claude": "anthropic", "codex": "openai", "gemini": "google", "grok": "xai", "qwen": "alibaba",
              "glm": "zhipu", "copilot": "github"}  # fmt: skip


def of_model(model: str) -> str:
    """Gives whose a model is; empty where its name does not say."""
    name = model.rsplit("/", 1)[-1].lower()
    return next((provider for pattern, provider in _MODELS if fnmatchcase(name, pattern)), "")


def of(harness: str, model: str = "") -> str:
    """Gives whose model a program drives: by the model's name, else by the program's own; empty where neither says."""
    return of_model(model) or _HARNESSES.get(harness.partition(":")[0], "")


def table(models: Mapping[str, str]) -> dict[str, str]:
    """Gives whose each of some models is, by the name that tasks use; `models` gives the provider's own name of it."""
    return {name: provider for name, own in models.items() if (provider := of_model(own) or of_model(name))}
