"""A report as one HTML file that needs nothing else: style and drawings stand in it, and it may load nothing.

What others wrote is escaped, and shown in the direction that it has by itself.
"""

from __future__ import annotations

from html import escape

from ropewalk.run.account import Account
from ropewalk.run.pages import content, svg
from ropewalk.run.pages.content import Block, Cell, Commands, Facts, Figure, Table, Words
from ropewalk.run.pages.style import STYLE
from ropewalk.run.pages.words import clean, one_line

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_DRAWINGS = {"graph": svg.graph, "time": svg.gantt, "costs": svg.costs}


def page(account: Account) -> str:
    """Gives the report of a run."""
    title = svg.text(content.title(account))
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n",
        f"<h1>{title}</h1>\n<p>{svg.text(content.outcome(account))}</p>\n",
    ]
    for section in content.sections(account):
        parts.append(f"<section>\n<h2>{escape(section.title)}</h2>\n")
        parts += [f"{_block(account, block)}\n" for block in section.blocks]
        parts.append("</section>\n")
    return "".join([*parts, "</main>\n</body>\n</html>\n"])


def _block(account: Account, block: Block) -> str:
    if isinstance(block, Words):
        if block.quoted:
            return f'<blockquote dir="auto">{escape(clean(block.text))}</blockquote>'
        return f"<p>{svg.text(block.text)}</p>"
    if isinstance(block, Facts):
        rows = (f"<div><dt>{svg.text(name)}</dt><dd>{_value(cell)}</dd></div>" for name, cell in block.rows)
        return f"<dl>{''.join(rows)}</dl>"
    if isinstance(block, Table):
        numbers = [bool(block.rows) and all(row[at].kind == "number" for row in block.rows)
                   for at in range(len(block.head))]  # fmt: skip
        head = "".join(
            f"<th{_class(number)}>{escape(name)}</th>" for name, number in zip(block.head, numbers, strict=True)
        )
        rows = (
            "".join(f"<td{_class(cell.kind == 'number')}>{_value(cell)}</td>" for cell in row) for row in block.rows
        )
        body = "".join(f"<tr>{row}</tr>\n" for row in rows)
        return (
            f'<div class="scroll"><table><caption>{escape(block.caption)}</caption>\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
        )
    if isinstance(block, Commands):
        width = max(len(command) for _, command in block.lines)
        lines = (f"{one_line(command):<{width}}  # {what}\n" for what, command in block.lines)
        return f"<pre>{escape(''.join(lines))}</pre>"
    assert isinstance(block, Figure)
    return _DRAWINGS[block.name](account)


def _column(cell: Cell) -> str:
    return f"<td{_class(cell.kind == 'number')}>{_value(cell)}</td>"


def _class(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def _value(cell: Cell) -> str:
    words = svg.text(cell.text)
    if not words:
        return ""
    if cell.kind == "code":
        return f"<code>{words}</code>"
    if cell.kind == "state":
        return f'<span class="state s-{words if words.isalpha() else "unknown"}">{words}</span>'
    return words if cell.kind == "number" else f"<bdi>{words}</bdi>"
