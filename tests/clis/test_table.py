"""The matrix's own table: what is wrong or missing in it is named."""

from __future__ import annotations

from tests.clis import matrix


def test_an_empty_or_wrong_cell_is_named() -> None:
    wanted = [("claude", "write"), ("claude", "e401"), ("codex", "write")]
    good = matrix.Cell("claude", "write", "done", "", 2.0, "")
    bad = matrix.Cell("codex", "write", "failed", "api_error: 500", 3.0, "not done")
    text, wrong = matrix.table([good, bad], wanted)
    assert text.splitlines() == [
        "| |claude|codex|",
        "|---|---|---|",
        "|write|done 2 s|✗ failed (api_error) 3 s|",
        "|e401||–|",
    ]
    assert wrong == ["codex write: not done", "claude e401: nothing came of it"]


def test_every_program_and_every_failure_has_its_cells() -> None:
    rows = matrix.PLAN
    for program in ("claude", "codex", "grok", "pi"):
        assert set(matrix.FAILURES) <= set(rows[program])
    for program in ("claude", "codex", "grok", "pi", "gemini", "qwen", "copilot", "opencode"):
        assert {"write", "shell", "e401", "e500", "stall", "cancel", "resume"} <= set(rows[program])
