"""Links lead somewhere, and the generated pages leave no operation, error or setting out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ropewalk.core import config
from ropewalk.core.errors import all_errors
from ropewalk.operations import registry

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Gives the anchors of a page's headings, as the forges make them."""
    heads = re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert not broken


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [p.name for p in (ROOT / "docs").glob("*.md") if p.name != "README.md"]
    assert [name for name in pages if f"({name})" not in index] == []


def test_the_reference_has_every_operation() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert [name for name in registry.names() if f"### rw {name}\n" not in text] == []


def test_the_error_page_has_every_error() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert [error.code for error in all_errors() if f"`{error.code}`" not in text] == []


def test_the_configuration_page_has_every_setting() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert [s.variable for s in config.SETTINGS if f"`{s.variable}`" not in text] == []


def test_every_error_that_a_page_names_exists() -> None:
    codes = {error.code for error in all_errors()}
    wrong = {}
    for page in PAGES:
        named = set(re.findall(r"\bE_[A-Z_]+\b", page.read_text(encoding="utf-8"))) - codes
        if named:
            wrong[page.name] = sorted(named)
    assert wrong == {}
