"""Every command shown in the README and in docs/ runs and prints what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from .transcripts import run, steps

ROOT = Path(__file__).parents[2]
PAGES = [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if p.exists() and steps(p.read_text())]


def test_there_are_transcripts() -> None:
    assert {p.name for p in PAGES} >= {"README.md", "quickstart.md"}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    problems = run(page.read_text(encoding="utf-8"), tmp_path)
    assert not problems, "\n\n".join(problems)
