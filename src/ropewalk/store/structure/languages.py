"""The languages of the structural merge: what stands in any order in them, what keeps its place, what holds others.

Grammars are the `tree-sitter-*` wheels of the extra `structural`; they are imported by name when a file of the
language is merged, and nothing here fails without them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

GRAMMARS_MISSING = "the extra `structural` is not installed"


class Language(NamedTuple):
    """Is one language; `free` are the kinds of node whose order says nothing, `bodies` the kinds that hold units.

    A body's style is `brace` (a bracket each side), `block` (indented), `table` (TOML), `mapping` (YAML), `pairs`
    (JSON, separated by commas) or `guard` (a C include guard). `lists` names the bracketed lists of bare names
    whose order says nothing; `glued` are lines that belong to the declaration below them.
    """

    name: str
    suffixes: tuple[str, ...]
    module: str
    free: frozenset[str]
    bodies: Mapping[str, str] = {}
    lists: frozenset[str] = frozenset()
    comments: frozenset[str] = frozenset({"comment"})
    glued: frozenset[str] = frozenset()
    function: str = "language"


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_SCRIPT_FREE = _set(
    "import_statement function_declaration generator_function_declaration class_declaration method_definition"
    " abstract_class_declaration interface_declaration type_alias_declaration enum_declaration internal_module"
    " function_signature abstract_method_signature method_signature property_signature export_clause"
)
_SCRIPT_BODIES = {"class_body": "brace", "interface_body": "brace"}
_C_FREE = _set(
    "preproc_include preproc_def preproc_function_def function_definition declaration struct_specifier"
    " enum_specifier union_specifier type_definition linkage_specification"
)

LANGUAGES: tuple[Language, ...] = (
    Language(
        "Python", (".py", ".pyi"), "tree_sitter_python",
        _set("import_statement import_from_statement function_definition class_definition"),
        {"block": "block"}, _set("import_from_statement __all__"),
    ),
    Language(
        "JavaScript", (".js", ".mjs", ".cjs", ".jsx"), "tree_sitter_javascript",
        _SCRIPT_FREE, _SCRIPT_BODIES, _set("named_imports export_clause"), glued=_set("decorator"),
    ),
    Language(
        "TypeScript", (".ts", ".mts", ".cts"), "tree_sitter_typescript",
        _SCRIPT_FREE, _SCRIPT_BODIES, _set("named_imports export_clause"), glued=_set("decorator"),
        function="language_typescript",
    ),
    Language(
        "TypeScript", (".tsx",), "tree_sitter_typescript",
        _SCRIPT_FREE, _SCRIPT_BODIES, _set("named_imports export_clause"), glued=_set("decorator"),
        function="language_tsx",
    ),
    Language(
        "Go", (".go",), "tree_sitter_go",
        _set("import_declaration import_spec function_declaration method_declaration type_declaration"
             " const_declaration method_elem"),
        {"import_spec_list": "brace", "interface_type": "brace"},
    ),
    Language(
        "Rust", (".rs",), "tree_sitter_rust",
        _set("use_declaration function_item function_signature_item struct_item enum_item union_item trait_item"
             " impl_item mod_item const_item static_item type_item associated_type extern_crate_declaration"),
        {"declaration_list": "brace"}, _set("use_list"), _set("line_comment block_comment"), _set("attribute_item"),
    ),
    Language(
        "Java", (".java",), "tree_sitter_java",
        _set("import_declaration class_declaration interface_declaration enum_declaration record_declaration"
             " annotation_type_declaration method_declaration constructor_declaration"),
        {"class_body": "brace", "interface_body": "brace"}, comments=_set("line_comment block_comment"),
    ),
    Language(
        "C", (".c", ".h"), "tree_sitter_c", _C_FREE, {"preproc_ifdef": "guard", "declaration_list": "brace"},
    ),
    Language(
        "C++", (".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx"), "tree_sitter_cpp",
        _C_FREE | _set("class_specifier namespace_definition using_declaration alias_declaration field_declaration"),
        {"preproc_ifdef": "guard", "declaration_list": "brace", "field_declaration_list": "brace"},
    ),
    Language("JSON", (".json",), "tree_sitter_json", _set("pair"), {"object": "pairs"}),
    Language("TOML", (".toml",), "tree_sitter_toml", _set("pair table"), {"table": "table"}),
    Language(
        "YAML", (".yaml", ".yml"), "tree_sitter_yaml", _set("block_mapping_pair"), {"block_mapping": "mapping"},
    ),
)  # fmt: skip
_BY_SUFFIX = {suffix: language for language in LANGUAGES for suffix in language.suffixes}


def language_of(path: bytes) -> Language | None:
    """Gives a path's language by its suffix, None for one that is not known."""
    return _BY_SUFFIX.get(os.path.splitext(path)[1].decode("ascii", "replace").lower())


def installed(language: Language) -> bool:
    """Says whether the parser and the language's grammar can be imported; imports neither."""
    from importlib.util import find_spec

    return find_spec("tree_sitter") is not None and find_spec(language.module) is not None
