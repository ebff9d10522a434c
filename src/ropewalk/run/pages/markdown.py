"""A report as Markdown. What others wrote is escaped, so that it is read as they wrote it."""

from __future__ import annotations

import re

from ropewalk.run.account import Account
from ropewalk.run.pages import content
from ropewalk.run.pages.content import Block, Cell, Commands, Facts, Figure, Table, Words
from ropewalk.run.pages.words import clean, one_line

# an address that stands alone would become a link, too
_SPECIAL = re.compile(r"[\\`*_\[\]<>|~&#@]|:(?=//)|(?<=www)\.", re.IGNORECASE)
_LEADING = re.compile(r"\A(?=[-+=])|\A([0-9]+)(?=[.)])")


def page(account: Account) -> str:
    """Gives the report of a run."""
    lines = [f"# {_text(content.title(account))}", "", _line(content.outcome(account)), ""]
    for section in content.sections(account):
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            made = _block(block)
            lines += [*made, ""] if made else []
    return "\n".join(lines).rstrip("\n") + "\n"


def _block(block: Block) -> list[str]:
    if isinstance(block, Words):
        if block.quoted:
            return [f"> {_line(line)}".rstrip() for line in clean(block.text).rstrip("\n").split("\n")]
        return [_line(block.text)]
    if isinstance(block, Facts):
        return ["| | |", "|---|---|", *(f"| {_text(name)} | {_cell(cell)} |" for name, cell in block.rows)]
    if isinstance(block, Table):
        number = [_is_number(block, at) for at in range(len(block.head))]
        return [
            f"**{block.caption}**", "", f"| {' | '.join(block.head)} |",
            f"|{'|'.join('---:' if one else '---' for one in number)}|",
            *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in block.rows),
        ]  # fmt: skip
    if isinstance(block, Commands):
        width = max(len(command) for _, command in block.lines)
        return ["```sh", *(f"{one_line(command):<{width}}  # {what}" for what, command in block.lines), "```"]
    assert isinstance(block, Figure)
    return []


def _is_number(table: Table, at: int) -> bool:
    return bool(table.rows) and all(row[at].kind == "number" for row in table.rows)


def _cell(cell: Cell) -> str:
    text = one_line(cell.text)
    if cell.kind != "code" or not text:
        return _text(text)
    # the fence is longer than any run of backticks inside, and a bar would end the cell even there
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    inner = text.replace("|", "\\|")
    return f"{fence} {inner} {fence}" if "`" in text else f"{fence}{inner}{fence}"


def _line(text: str) -> str:
    """Gives a text as a line of its own, whose beginning makes it no list and no heading."""
    return _LEADING.sub(r"\1\\", _text(text))


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", one_line(text))
