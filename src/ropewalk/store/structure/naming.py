"""What a declaration is called: the key by which the three versions of a file recognise it, and the names it binds."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ropewalk.store.structure.languages import Language

_IDENTIFIER = re.compile(r"[^\W\d][\w$]*")
_LITERALS = frozenset({"string", "integer", "float", "true", "false", "none", "concatenated_string"})
_PLAIN = frozenset({"arrow_function", "function_expression", "number", "string"})
_REQUIRE = re.compile(rb"""require\((['"])[^'"]+\1\)""")
_INERT = re.compile(
    r"@\s*(property|staticmethod|classmethod|final|override|overload|dataclass|contextmanager|asynccontextmanager|wraps"
    r"|cache|lru_cache|cached_property|total_ordering|unique|abstractmethod|deprecated|typing\.|functools\.|contextlib\."
    r"|abc\.|dataclasses\.|pytest\.(mark|fixture)\b|\w+\.(setter|getter|deleter)\b)"
)
_WRAPPERS = {"decorated_definition": "definition", "export_statement": "declaration"}


class Named(NamedTuple):
    """Is a key, whether the order of the unit among others says nothing, and the names it binds."""

    key: str
    free: bool
    names: frozenset[str]


def unwrap(node: Any) -> Any:
    """Gives the declaration itself below decorators, `export` and template heads."""
    while True:
        inner = None
        if node.type in _WRAPPERS:
            inner = node.child_by_field_name(_WRAPPERS[node.type])
            if inner is None and node.type == "export_statement":
                inner = next((c for c in node.named_children if c.type == "export_clause"), None)
        elif node.type in ("template_declaration", "ambient_declaration") and node.named_children:
            inner = node.named_children[-1]
        if inner is None:
            return node
        node = inner


def name_of(language: Language, node: Any) -> Named | None:
    """Gives how a node is called, None for a statement that has no name."""
    inner = unwrap(node)
    kind = inner.type
    if kind == "object":
        return Named("{}", False, frozenset())
    if kind in ("import_statement", "import_from_statement", "import_declaration", "use_declaration", "export_clause"):
        return _imported(language, node, inner)
    if language.name in ("C", "C++") and (found := _declared(language, node, inner)) is not None:
        return found
    if kind == "expression_statement" and inner.children[0].type == "assignment":
        return _assigned(inner.children[0])
    if kind in ("lexical_declaration", "variable_declaration"):
        return _script_variable(inner)
    if kind == "impl_item":
        body = inner.child_by_field_name("body")
        text = inner.text[: body.start_byte - inner.start_byte] if body is not None else inner.text
        return Named(_squeeze(text), True, frozenset())
    if kind in ("pair", "block_mapping_pair", "table", "table_array_element"):
        return _keyed(inner)
    name = inner.child_by_field_name("name") or inner.child_by_field_name("path")
    if kind == "type_declaration":
        specs = [c for c in inner.named_children if c.type in ("type_spec", "type_alias")]
        name = specs[0].child_by_field_name("name") if len(specs) == 1 else None
    if kind == "const_declaration":
        specs = inner.named_children
        name = specs[0].child_by_field_name("name") if len(specs) == 1 else None
    if kind == "import_spec":
        alias = inner.child_by_field_name("name")
        bound = alias.text if alias is not None else name.text.strip(b'"`').rsplit(b"/", 1)[-1]
        return Named(_squeeze(inner.text), alias is None or alias.text not in (b"_", b"."), frozenset({_text(bound)}))
    if name is None:
        return None
    key = _text(name.text) + _signature(language, node, inner)
    free = kind in language.free and kind != "field_declaration" and not _acting(node)
    return Named(key, free, frozenset({_text(name.text)}))


def element_name(node: Any) -> Named:
    """Gives how an element of a list of names is called: by all it says, binding its last word."""
    return Named(_squeeze(node.text), True, frozenset({_last_word(node)}))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _squeeze(data: bytes) -> str:
    return " ".join(_text(data).split())


def _acting(node: Any) -> bool:
    """Says whether a Python decorator may do more than change what it stands above, as one that registers it does."""
    if node.type != "decorated_definition":
        return False
    return not all(_INERT.match(_text(c.text)) for c in node.children if c.type == "decorator")


def _signature(language: Language, node: Any, inner: Any) -> str:
    """Gives what tells two declarations of one name apart: accessors, receivers, and types where these overload."""
    if language.name == "Python":
        decorators = [_squeeze(c.text) for c in node.children if c.type == "decorator"] if node is not inner else []
        return "".join(f" {d}" for d in decorators if d.endswith((".setter", ".deleter", ".getter")))
    if language.name in ("JavaScript", "TypeScript"):
        return "".join(f" {c.type}" for c in inner.children if c.type in ("get", "set", "static"))
    if language.name == "Go":
        receiver = inner.child_by_field_name("receiver")
        return "" if receiver is None else " of " + ",".join(_last_word(c) for c in receiver.named_children)
    if language.name == "Java":
        parameters = inner.child_by_field_name("parameters")
        if parameters is None:
            return ""
        types = [c.child_by_field_name("type") for c in parameters.named_children]
        return "(" + ",".join(_squeeze(t.text) for t in types if t is not None) + ")"
    return ""


def _last_word(node: Any) -> str:
    words = _IDENTIFIER.findall(_text(node.text))
    return words[-1] if words else ""


def _imported(language: Language, node: Any, inner: Any) -> Named:
    """Gives an import's key: all of it, or where it has a list of names, all but the list."""
    text = _squeeze(node.text)
    names = frozenset(_bound(text, language))
    if language.name == "Python" and inner.type == "import_from_statement":
        if not inner.children_by_field_name("name"):
            return Named(text, False, frozenset())
        return Named("from " + _squeeze(inner.child_by_field_name("module_name").text), True, names)
    if language.name in ("JavaScript", "TypeScript"):
        clause = next((c for c in inner.children if c.type in ("import_clause", "export_clause")), None)
        if inner.type == "import_statement" and clause is None:
            return Named(text, False, frozenset())
        return Named(_squeeze(re.sub(rb"\{[^{}]*\}", b"{}", node.text)), True, names)
    if language.name == "Rust":
        return Named(_squeeze(re.sub(rb"\{[^{}]*\}", b"{}", node.text)), True, names)
    if language.name == "Go":
        if any(c.type == "import_spec_list" for c in inner.children):
            return Named("import ()", True, frozenset())
        return Named(text, " _ " not in text and " . " not in text, names)
    return Named(text, True, names)


def _bound(text: str, language: Language) -> list[str]:
    """Gives the names an import binds, as far as they can be read from its words."""
    if language.name == "Python":
        text = text.partition(" import ")[2] if text.startswith("from ") else text.removeprefix("import ")
    elif language.name in ("JavaScript", "TypeScript"):
        text = text.partition(" from ")[0].removeprefix("import ").removeprefix("export ").removeprefix("type ")
    else:
        text = text.rstrip("; ")
    found = []
    for part in re.split(r"[,{}()]", text):
        if part.strip().endswith(("::", "*")):
            continue
        words = _IDENTIFIER.findall(part)
        if words and language.name == "Python" and not text.startswith("from") and " as " not in part:
            found.append(words[0])
        elif words:
            found.append(words[-1])
    return found


def _assigned(node: Any) -> Named | None:
    """Gives a Python assignment to one name; only a literal's order says nothing, and only in a module."""
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if left.type != "identifier":
        return None
    within = node.parent.parent is not None and node.parent.parent.type == "module"
    name = _text(left.text)
    return Named(
        name, within and right is not None and right.type in _LITERALS and name != "__all__", frozenset({name})
    )


def _script_variable(node: Any) -> Named | None:
    """Gives a JavaScript variable; the order of functions, literals and imports says nothing, another value's may."""
    declared = [c for c in node.named_children if c.type == "variable_declarator"]
    if len(declared) != 1 or declared[0].child_by_field_name("name").type != "identifier":
        return None
    value = declared[0].child_by_field_name("value")
    name = _text(declared[0].child_by_field_name("name").text)
    free = value is not None and (value.type in _PLAIN or _REQUIRE.fullmatch(value.text) is not None)
    return Named(name, free, frozenset({name}))


def _keyed(node: Any) -> Named | None:
    """Gives a pair of JSON, TOML or YAML, or a table of TOML, by its key."""
    if node.type in ("table", "table_array_element"):
        header = next((c for c in node.named_children if c.type != "comment"), None)
        return None if header is None else Named(f"[{_squeeze(header.text)}]", node.type == "table", frozenset())
    key = node.child_by_field_name("key") or next(iter(node.named_children), None)
    return key and Named(_squeeze(key.text).strip("\"'"), True, frozenset())


def _declared(language: Language, node: Any, inner: Any) -> Named | None:
    """Gives a C or C++ declaration by its declarator; variables keep their place, functions do not."""
    if inner.type == "preproc_include":
        return Named(_squeeze(inner.text), True, frozenset())
    found = inner.child_by_field_name("declarator")
    if found is None or inner.type == "preproc_def":
        return None
    if len(inner.children_by_field_name("declarator")) > 1:
        return None
    function = found
    while function is not None and function.type != "function_declarator":
        function = function.child_by_field_name("declarator")
    name = found if function is None else function.child_by_field_name("declarator")
    while name is not None and name.child_by_field_name("declarator") is not None:
        name = name.child_by_field_name("declarator")
    if name is None:
        return None
    bound = frozenset({_last_word(name)})
    role = " declared" if inner.type in ("declaration", "field_declaration") else ""
    if inner.type == "type_definition":
        return Named(_squeeze(name.text), True, bound)
    if function is None:
        return Named(_squeeze(name.text), False, bound)
    text = name.text if language.name == "C" else function.text
    prefix = "template " if node is not inner else ""
    return Named(prefix + _squeeze(text) + role, True, bound)
