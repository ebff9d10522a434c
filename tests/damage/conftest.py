"""The store that every test of damage copies from, built once a process."""

from __future__ import annotations

from typing import Any

import pytest

from damage.world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: Any) -> World:
    return World(tmp_path_factory.mktemp("world"))
