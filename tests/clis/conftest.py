"""The matrix of real agent programs as a run of the tests has it: printed at the end, and complete or no success."""

from __future__ import annotations

import os
from typing import Any

import pytest

CELL = "cell"
_FOUND: dict[tuple[str, str], str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Takes the cell that a test notes; a report comes to whoever prints, from whatever process ran it."""
    for name, value in report.user_properties:
        if name == CELL and report.when == "call":
            program, what, words = value
            _FOUND[program, what] = words if report.passed else f"✗ {words}"


def _table(wanted: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    programs = list(dict.fromkeys(program for program, _ in wanted))
    lines = ["| |" + "|".join(programs) + "|", "|---" * (len(programs) + 1) + "|"]
    empty = []
    for what in dict.fromkeys(what for _, what in wanted):
        cells = []
        for program in programs:
            if (program, what) in wanted and (program, what) not in _FOUND:
                empty.append(f"{program} {what}")
            cells.append(_FOUND.get((program, what), "" if (program, what) in wanted else "–"))
        lines.append(f"|{what}|" + "|".join(cells) + "|")
    return lines, empty


def _is_whole() -> bool:
    return os.environ.get("CI") == "true" and os.environ.get("RWTEST_CLIS") == "1"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the matrix."""
    if not _FOUND:
        return
    from tests.clis import matrix, test_escape

    wanted = [*matrix.cells(), *test_escape.CELLS]
    lines, empty = _table(wanted)
    terminalreporter.write_sep("=", "real programs")
    for line in lines:
        terminalreporter.write_line(line)
    if empty and _is_whole():
        terminalreporter.write_line(f"empty cells: {', '.join(empty)}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Makes a whole run with an empty cell a failure."""
    if not _FOUND or not _is_whole() or hasattr(session.config, "workerinput"):
        return
    from tests.clis import matrix, test_escape

    if _table([*matrix.cells(), *test_escape.CELLS])[1] and session.exitstatus == 0:
        session.exitstatus = 1
