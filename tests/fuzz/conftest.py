"""The store that bad input is thrown at, one for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fuzz_world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Gives the store and closes it."""
    made = World(tmp_path_factory.mktemp("fuzz"))
    yield made
    made.store.close()
