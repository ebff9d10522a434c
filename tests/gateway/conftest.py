"""Fixtures of the gateway's tests: one scripted model server for all of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.gateway.kit import KEY, TOKEN

from ropewalk.testing.model_server import ModelServer, running


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    """Gives a scripted model server that knows the real key alone, and looks for the lane's token."""
    with running(keys=[KEY], canaries={"token": TOKEN}, keep_bodies=True) as made:
        yield made
