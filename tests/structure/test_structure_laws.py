"""Laws of the structural merge on generated files: a merge is what both sides meant, or there is none."""

from __future__ import annotations

import ast
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_structure_merge import MERGED

from ropewalk.store.structure.languages import Language, language_of
from ropewalk.store.structure.merging import merge
from ropewalk.store.structure.text import merge_lines
from ropewalk.store.structure.units import Declined, read, render

NAMES = st.sampled_from("abcdefgh")
BODIES = st.integers(0, 3)
MODULES = st.dictionaries(
    NAMES, st.tuples(st.sampled_from(["def", "class", "import", "value", "call"]), BODIES), max_size=6
)
LAWS = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def language(path: bytes) -> Language:
    found = language_of(path)
    assert found is not None
    return found


def module(units: dict[str, tuple[str, int]]) -> bytes:
    """Gives a Python module of named units."""
    parts = []
    for name, (kind, body) in units.items():
        parts.append({
            "def": f"# about {name}\ndef {name}():\n    x{name} = {body}\n    return x{name}\n",
            "class": f"class {name}:\n    def m{name}(self):\n        return {body}\n\n    def n{name}(): pass\n",
            "import": f"from m{body} import {name}\n",
            "value": f"{name} = {body}\n",
            "call": f"{name} = run({body})\n",
        }[kind])  # fmt: skip
    return "\n\n".join(parts).encode()


def tried(one: Language, base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Gives the merge, or None where it is declined; both orders of the sides must agree."""
    made: list[bytes | None] = []
    for left, right in ((ours, theirs), (theirs, ours)):
        try:
            made.append(merge(one, base, left, right))
        except Declined:
            made.append(None)
    assert made[0] == made[1]
    return made[0]


def wanted(base: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any] | None:
    """Gives what a three-way merge by name must hold, None where the sides disagree."""
    out = {}
    for name in {**base, **ours, **theirs}:
        b, o, t = base.get(name), ours.get(name), theirs.get(name)
        if o != t and b not in (o, t):
            return None
        found = t if o == b else o
        if found is not None:
            out[name] = found
    return out


@LAWS
@given(MODULES, MODULES, MODULES)
def test_a_merged_module_holds_what_both_sides_meant(base: Any, ours: Any, theirs: Any) -> None:
    made = tried(language(b"a.py"), *(module(side) for side in (base, ours, theirs)))
    if made is None:
        return
    compile(made, "a.py", "exec")
    expected = wanted(base, ours, theirs)
    assert expected is not None
    assert {ast.dump(n) for n in ast.parse(made).body} == {ast.dump(n) for n in ast.parse(module(expected)).body}
    assert len(ast.parse(made).body) == len(expected)


@LAWS
@given(
    MODULES,
    st.dictionaries(st.sampled_from(["p", "q", "r"]), st.tuples(st.sampled_from(["def", "class"]), BODIES)),
    st.dictionaries(st.sampled_from(["s", "t", "u"]), st.tuples(st.sampled_from(["def", "class"]), BODIES)),
)
def test_added_definitions_of_other_names_always_merge(base: Any, one: Any, two: Any) -> None:
    made = tried(language(b"a.py"), module(base), module({**base, **one}), module({**base, **two}))
    assert made is not None
    names = [n.name for n in ast.parse(made).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    assert set(names) >= {*one, *two} and len(names) == len(set(names))


@LAWS
@given(MODULES, MODULES)
def test_what_one_side_leaves_is_the_other_side(base: Any, side: Any) -> None:
    for ours, theirs in ((base, side), (side, base), (side, side)):
        assert tried(language(b"a.py"), module(base), module(ours), module(theirs)) in (module(side), None)


VALUES = st.recursive(
    st.integers(0, 2), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=4), max_leaves=6
)
OBJECTS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=4)


def wanted_object(base: Any, ours: Any, theirs: Any) -> Any:
    """Gives the merge of JSON values: objects by key, all else as a whole; raises `ValueError` where there is none."""
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    if not all(isinstance(value, dict) for value in (base, ours, theirs)):
        raise ValueError
    gone = object()
    found = {
        key: wanted_object(*(v.get(key, gone) for v in (base, ours, theirs))) for key in {**base, **ours, **theirs}
    }
    return {key: value for key, value in found.items() if value is not gone}


@LAWS
@given(OBJECTS, OBJECTS, OBJECTS)
def test_a_merged_object_holds_what_both_sides_meant(base: Any, ours: Any, theirs: Any) -> None:
    texts = [(json.dumps(side, indent=2) + "\n").encode() for side in (base, ours, theirs)]
    made = tried(language(b"a.json"), *texts)
    if made is not None:
        assert json.loads(made) == wanted_object(base, ours, theirs)


@LAWS
@given(
    st.lists(st.sampled_from(["a\n", "b\n", "\n", "c\n"]), max_size=8),
    st.lists(st.sampled_from(["a\n", "x\n"]), max_size=8),
    st.lists(st.sampled_from(["a\n", "y\n"]), max_size=8),
)
def test_lines_merge_the_same_both_ways_round(base: Any, ours: Any, theirs: Any) -> None:
    texts = [b"".join(line.encode() for line in side) for side in (base, ours, theirs)]
    made = merge_lines(texts[0], texts[1], texts[2])
    assert made == merge_lines(texts[0], texts[2], texts[1])
    if made is not None:
        assert made.count(b"x") >= texts[1].count(b"x") and made.count(b"y") >= texts[2].count(b"y")


@LAWS
@given(st.text(alphabet=" \n\tabc():{}[]\"'#,=\\", max_size=60))
def test_any_text_is_declined_or_read_to_the_byte(text: str) -> None:
    for path in (b"a.py", b"a.js", b"a.json", b"a.toml", b"a.yaml", b"a.c", b"a.rs"):
        data = text.encode() + b"\n"
        try:
            assert render(read(language(path), data)) == data
        except Declined:
            pass


@LAWS
@given(
    st.sampled_from(sorted(MERGED)), st.lists(st.integers(0, 30), max_size=3), st.lists(st.integers(0, 30), max_size=3)
)
def test_files_with_lines_missing_or_doubled_give_one_answer(name: str, drop: list[int], double: list[int]) -> None:
    path, _, ours, theirs, whole = MERGED[name]
    lines = whole.splitlines(keepends=True)
    torn = "".join(line * (1 + (n in double)) for n, line in enumerate(lines) if n not in drop).encode()
    one = language(path.encode())
    for left, right in ((torn, theirs.encode()), (ours.encode(), torn)):
        tried(one, whole.encode(), left, right)
        tried(one, torn, left, right)
