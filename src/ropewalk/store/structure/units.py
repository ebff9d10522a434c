"""A file as nested lists of declarations, cut at line ends so that joining them gives the file's bytes again.

A unit is what can be added, removed or moved as a whole: a function, a class, an import, a member, a pair. A unit
that holds others (a class, a table) is read into a container of its own. What can't be cut at line ends stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from ropewalk.store.structure.languages import Language
from ropewalk.store.structure.naming import Named, element_name, name_of, unwrap

COMMENT, STATEMENT = "\0comment ", "\0"
"""How the keys of units without a name begin."""
_MAX_DEPTH = 40


class Declined(Exception):
    """The structural merge leaves a file to people; carries the reason."""


class Unit(NamedTuple):
    """Is one declaration: the blank lines and comments before it, its own lines or its container, and its key.

    `after` is, in a list with separators, what follows the separator on the unit's last line.
    """

    key: str
    free: bool
    names: frozenset[str]
    blank: bytes
    lead: bytes
    text: bytes
    after: bytes
    body: Container | None

    @property
    def core(self) -> tuple[object, ...]:
        """Gives what makes the unit another one when it changes: all but the blank lines before it."""
        return (self.lead, self.text, self.after.strip(), self.body)


class Container(NamedTuple):
    """Is a list of units between a head and a foot; `flat` means that they stand on one line."""

    head: bytes
    units: tuple[Unit, ...]
    tail: bytes
    foot: bytes
    separator: bytes = b""
    trailing: bool = False
    flat: bytes = b""


def render(container: Container) -> bytes:
    """Gives the bytes of a container."""
    out = [container.head]
    last = len(container.units) - 1
    for number, unit in enumerate(container.units):
        separator = container.separator if number < last or container.trailing else b""
        space = container.flat if container.flat and number < last else b""
        out += [unit.blank, unit.lead, whole(unit), separator, space, unit.after]
    return b"".join([*out, container.tail, container.foot])


def whole(unit: Unit) -> bytes:
    """Gives a unit's own bytes, without what stands before it."""
    return unit.text if unit.body is None else render(unit.body)


def read(language: Language, data: bytes) -> Container:
    """Gives a file's units; `data` ends with a line end. Raises `Declined` for what can't be read safely."""
    return _Reader(language, data).file()


def parse(language: Language, data: bytes) -> Any:
    """Gives a file's syntax tree; raises `Declined` when the file does not parse."""
    tree = _parser(language.module, language.function).parse(data)
    if tree.root_node.has_error:
        raise Declined(f"does not parse as {language.name}")
    return tree


@cache
def _parser(module: str, function: str) -> Any:
    from importlib import import_module
    from warnings import catch_warnings, simplefilter

    library, grammar = import_module("tree_sitter"), import_module(module)
    with catch_warnings():
        simplefilter("ignore")  # grammars made for an older library give a bare pointer
        return library.Parser(library.Language(getattr(grammar, function)()))


class _Item(NamedTuple):
    """Is a run of nodes that share lines: first and last row, the nodes with names, and the bare tokens."""

    first: int
    last: int
    nodes: list[Any]
    tokens: list[Any]


class _Reader:
    def __init__(self, language: Language, data: bytes) -> None:
        self.language, self.data = language, data
        self.lines = data.split(b"\n")
        self.lines = [line + b"\n" for line in self.lines[:-1]] + ([self.lines[-1]] if self.lines[-1] else [])
        self.tree = parse(language, data)
        self.root = self.tree.root_node

    def file(self) -> Container:
        if self.language.name == "YAML":
            return self._yaml()
        read = self._units(0, len(self.lines), self.root.children, b"", 0)
        if read is None:
            raise Declined("declarations share lines")
        return Container(b"", read[0], read[1], b"")

    def _yaml(self) -> Container:
        """Gives the top mapping of a YAML file that has one document and no anchors."""
        if re.search(rb"(?m)(^|[\s\[{,:-])[&*][^\s]|<<\s*:|[|>][0-9]*\+|^(---|\.\.\.|%)", self.data):
            raise Declined("anchors, merge keys or several documents")
        node = self.root
        while node is not None and node.type != "block_mapping":
            inner = [c for c in node.children if c.is_named and c.type not in self.language.comments]
            node = inner[0] if len(inner) == 1 else None
        read = None if node is None else self._units(0, len(self.lines), node.children, b"", 0)
        if read is None:
            raise Declined("is not one mapping")
        return Container(b"", read[0], read[1], b"")

    # rows

    def _rows(self, first: int, last: int) -> bytes:
        return b"".join(self.lines[first:last])

    def _blank(self, row: int) -> bool:
        return not self.lines[row].strip()

    def _kind_of_row(self, row: int) -> str:
        """Says what a line between units is: blank, comment, glued, or something else."""
        line = self.lines[row]
        if not line.strip():
            return "blank"
        start, end = len(line) - len(line.lstrip()), len(line.rstrip())
        node = self.root.descendant_for_point_range((row, start), (row, max(start, end - 1)))
        glued = line.lstrip().startswith((b"///", b"//!")) and self.language.name == "Rust"
        while node is not None:
            if node.type in self.language.glued:
                return "glued"
            if node.type in self.language.comments:
                return "glued" if glued else "comment"
            node = node.parent
        return "other"

    def _last_row(self, node: Any) -> int:
        """Gives the last row of a node without comments at its end."""
        while True:
            inner = [c for c in node.children if c.type not in self.language.comments]
            if not inner:
                break
            node = inner[-1]
        row, column = node.end_point
        if column == 0 and row > node.start_point[0]:
            row -= 1
        while row > node.start_point[0] and self._blank(row):
            row -= 1
        return int(row)

    def _through_comment(self, row: int) -> int:
        """Gives the last row of a comment that begins on a row, or the row."""
        line = self.lines[row]
        node = self.root.descendant_for_point_range((row, max(0, len(line.rstrip()) - 1)), (row, len(line.rstrip())))
        while node is not None and node.type not in self.language.comments:
            node = node.parent
        if node is None:
            return row
        end, column = node.end_point
        return max(row, int(end) - (1 if column == 0 and end > row else 0))

    # units

    def _units(
        self, first: int, end: int, nodes: Sequence[Any], separator: bytes, depth: int, listed: bool = False
    ) -> tuple[tuple[Unit, ...], bytes, bool] | None:
        """Gives the units of some rows, the rest after the last, and whether a separator follows the last."""
        if depth > _MAX_DEPTH:
            raise Declined("is nested too deeply")
        items = self._items(first, nodes)
        if items is None:
            return None
        found: list[Unit] = []
        at = first
        trailing = False
        for number, item in enumerate(items):
            before = self._before(at, item.first, bool(separator))
            if before is None:
                return None
            extra, blank, lead = before
            found += extra
            text, after = self._rows(item.first, item.last + 1), b""
            if separator:
                cut = self._cut(item, separator)
                if cut is None or (not cut[2] and number < len(items) - 1):
                    return None
                text, after, trailing = cut
            named = self._named(item, listed)
            body = self._body(item, text, depth) if len(item.nodes) == 1 else None
            if body is not None and render(body) != text:
                body = None
            text = b"" if body is not None else text
            found.append(Unit(named.key, named.free, named.names, blank, lead, text, after, body))
            at = item.last + 1
        rest = self._before(at, end, bool(separator))
        if rest is None:
            return None
        found += rest[0]
        return tuple(found), rest[1] + rest[2], trailing

    def _items(self, first: int, nodes: Sequence[Any]) -> list[_Item] | None:
        items: list[_Item] = []
        last = first - 1
        for node in nodes:
            if node.type in self.language.comments or node.type in self.language.glued:
                continue
            start, stop = node.start_point[0], self._last_row(node)
            if not node.is_named and items and start == items[-1].last:
                items[-1].tokens.append(node)
                continue
            if start <= last:
                if not items or start < first:
                    return None
                old = items.pop()
                items.append(_Item(old.first, max(stop, old.last), [*old.nodes, node], old.tokens))
            elif self.lines[start][: node.start_point[1]].strip(b" \t\xef\xbb\xbf"):
                return None
            else:
                items.append(_Item(start, stop, [node], []))
            last = self._through_comment(items[-1].last)
            items[-1] = items[-1]._replace(last=last)
        return items

    def _before(self, at: int, end: int, listed: bool) -> tuple[list[Unit], bytes, bytes] | None:
        """Gives what stands in rows before a unit: comments that stand alone, blank lines, and lines it owns."""
        rows = [(row, self._kind_of_row(row)) for row in range(at, end)]
        if any(kind == "other" for _, kind in rows):
            return None
        alone: list[Unit] = []
        blank, block = b"", b""
        glued = False
        for row, kind in rows:
            if kind == "blank" and block and not glued:
                words = " ".join(block.decode("utf-8", "replace").split())
                alone.append(Unit(COMMENT + words, True, frozenset(), blank, b"", block, b"", None))
                blank, block = self.lines[row], b""
            elif kind == "blank" and not block:
                blank += self.lines[row]
            else:
                block += self.lines[row]
                glued = glued or kind == "glued"
        if listed and alone:
            return None  # a comment that stands alone can't carry a separator
        return alone, blank, block

    def _cut(self, item: _Item, separator: bytes) -> tuple[bytes, bytes, bool] | None:
        """Gives a listed unit's lines up to its end, what follows on its line, and whether a separator stands there."""
        if len(item.nodes) != 1 or len(item.tokens) > 1:
            return None
        node = item.nodes[0]
        start = node.start_byte - node.start_point[1]
        line_end = self.data.find(b"\n", node.end_byte) + 1
        rest = self.data[node.end_byte : line_end]
        if item.tokens:
            if item.tokens[0].start_byte != node.end_byte or not rest.startswith(separator):
                return None
            rest = rest[len(separator) :]
        if self.data[line_end - 1 : line_end] != b"\n" or node.end_point[0] != item.last:
            return None
        return self.data[start : node.end_byte], rest, bool(item.tokens)

    def _named(self, item: _Item, listed: bool) -> Named:
        if listed:
            return element_name(item.nodes[0])
        text = " ".join(self._rows(item.first, item.last + 1).decode("utf-8", "replace").split())
        if len(item.nodes) != 1:
            return Named(STATEMENT + text, False, frozenset())
        return name_of(self.language, item.nodes[0]) or Named(STATEMENT + text, False, frozenset())

    # what holds units

    def _body(self, item: _Item, text: bytes, depth: int) -> Container | None:
        node = unwrap(item.nodes[0])
        for inner, style in self._bodies(node):
            found = self._styled(item, inner, style, depth)
            if found is not None:
                if text.endswith(b"\n"):
                    return found
                # in a list with separators the unit ends with its node
                cut = len(render(found)) - len(text)
                return found._replace(foot=found.foot[: len(found.foot) - cut]) if cut <= len(found.foot) else None
        return None

    def _bodies(self, node: Any) -> Iterator[tuple[Any, str]]:
        """Gives the nodes below a declaration that may hold units, with their styles."""
        language = self.language
        if node.type in language.bodies:
            if language.bodies[node.type] != "guard" or _is_guard(node):
                yield node, language.bodies[node.type]
            return
        if node.type in language.lists:
            yield node, "list"
            return
        if language.name == "Python":
            if node.type == "class_definition":
                yield node.child_by_field_name("body"), "block"
            elif node.type == "expression_statement" and self._is_exports(node):
                yield node.children[0].child_by_field_name("right"), "list"
            return
        todo = [c for c in node.children if c.is_named]
        for inner in todo:
            if inner.type in language.bodies:
                yield inner, language.bodies[inner.type]
            elif inner.type in language.lists:
                yield inner, "list"
            elif inner.type in ("import_clause", "scoped_use_list", "type_spec", "block_node"):
                todo += [c for c in inner.children if c.is_named]

    @staticmethod
    def _is_exports(node: Any) -> bool:
        inner = node.children[0]
        if inner.type != "assignment" or inner.child_by_field_name("left").text != b"__all__":
            return False
        right = inner.child_by_field_name("right")
        return right is not None and right.type == "list" and all(c.type == "string" for c in right.named_children)

    def _styled(self, item: _Item, node: Any, style: str, depth: int) -> Container | None:
        first, after_last = item.first, item.last + 1
        if style == "block":
            colon = next(c for c in node.parent.children if c.type == ":")
            return self._between(first, colon.start_point[0] + 1, after_last, after_last, node.children, b"", depth)
        if style == "table":
            bracket = next(c for c in node.children if c.type == "]")
            inner = [c for c in node.named_children if c.type == "pair"]
            return self._between(first, bracket.start_point[0] + 1, after_last, after_last, inner, b"", depth)
        if style == "mapping":
            key = next(c for c in node.parent.parent.children if c.type == ":")
            return self._between(first, key.start_point[0] + 1, after_last, after_last, node.children, b"", depth)
        if style == "guard":
            inner = node.named_children[1:]
            end = node.children[-1].start_point[0]
            return self._between(first, first + 1, end, after_last, inner, b"", depth)
        opened = next((n for n, c in enumerate(node.children) if c.type in ("{", "[", "(")), None)
        if style == "list":
            return self._list(item, node, opened, depth)
        if opened is None or node.children[-1].type not in ("}", ")"):
            return None
        start, end = node.children[opened].end_point[0] + 1, node.children[-1].start_point[0]
        separator = b"," if style == "pairs" else b""
        return self._between(first, start, end, after_last, node.children[opened + 1 : -1], separator, depth)

    def _between(
        self,
        first: int,
        start: int,
        end: int,
        last: int,
        nodes: Sequence[Any],
        separator: bytes,
        depth: int,
        listed: bool = False,
    ) -> Container | None:
        """Gives the container whose head are rows `first` to `start`, units up to `end`, foot up to `last`."""
        if not first < start <= end <= last:
            return None
        read = self._units(start, end, nodes, separator, depth + 1, listed)
        if read is None or not read[0]:
            return None
        units, tail, trailing = read
        return Container(self._rows(first, start), units, tail, self._rows(end, last), separator, trailing)

    def _list(self, item: _Item, node: Any, opened: int | None, depth: int) -> Container | None:
        """Gives a list of bare names, each on a line of its own or all on one."""
        if opened is not None and node.children[opened].end_point[0] < node.children[-1].start_point[0]:
            start, end = node.children[opened].end_point[0] + 1, node.children[-1].start_point[0]
            inner = node.children[opened + 1 : -1]
            return self._between(item.first, start, end, item.last + 1, inner, b",", depth, listed=True)
        if item.first != item.last:
            return None
        if node.type == "import_from_statement":
            names = node.children_by_field_name("name")
        else:
            names = [c for c in node.children if c.is_named]
        if not names or any(c.type in self.language.comments for c in node.children):
            return None
        line = self._rows(item.first, item.last + 1)
        begin = sum(len(row) for row in self.lines[: item.first])
        head, foot = line[: names[0].start_byte - begin], line[names[-1].end_byte - begin :]
        spaces = {self.data[a.end_byte : b.start_byte] for a, b in pairwise(names)}
        if len(spaces) > 1 or any(not s.startswith(b",") or s[1:].strip(b" ") for s in spaces):
            return None
        space = spaces.pop()[1:] if spaces else b" "
        units = tuple(
            Unit(named.key, True, named.names, b"", b"", c.text, b"", None) for c in names if (named := element_name(c))
        )
        return Container(head, units, b"", foot, b",", False, space or b"")


def _is_guard(node: Any) -> bool:
    """Says whether a conditional is an include guard: `#ifndef X`, `#define X`, and no other branch."""
    inner = node.named_children
    if len(inner) < 3 or node.children[0].type != "#ifndef" or node.child_by_field_name("alternative") is not None:
        return False
    return bool(inner[1].type == "preproc_def" and inner[1].child_by_field_name("name").text == inner[0].text)
