"""The real agent programs in all situations, each in a lane of its own; tests/clis/matrix.py says what comes out.

They are those that `python tests/clis/install.py` installs; what is not there is skipped, but with CI=true and
RWTEST_CLIS=1 it is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from tests.clis import install, matrix

pytestmark = [pytest.mark.clis, pytest.mark.slow, pytest.mark.compat]


@pytest.fixture(scope="module")
def field() -> Iterator[matrix.Field]:
    with matrix.field() as made:
        yield made


@pytest.mark.parametrize(("program", "what"), matrix.cells())
def test_a_lane_ends_as_it_has_to(
    field: matrix.Field, program: str, what: str, record_property: Callable[[str, object], None]
) -> None:
    held = install.default_folder()
    missing = [name for name in ("node", matrix.installed(program)) if install.binary(held, name) is None]
    missing += [] if shutil.which("bwrap") else ["bubblewrap"]
    if missing and os.environ.get("CI") == "true" and os.environ.get("RWTEST_CLIS") == "1":
        pytest.fail(f"{', '.join(missing)} is not there")
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed (python tests/clis/install.py)")
    cell = matrix.run_cell(field, program, what)
    record_property("cell", (program, what, matrix.shown(cell)))
    assert not cell.wrong, cell.wrong
