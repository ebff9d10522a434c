"""What decoding a file may raise, whatever is in it."""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Is everything that the decoders of JSON, TOML and msgpack raise for bytes that are none; depth is one reason."""
