"""The structural merge by language: what is merged, what is declined and why, and that no byte is made up."""

from __future__ import annotations

import pytest

from ropewalk.store.structure.languages import LANGUAGES, language_of
from ropewalk.store.structure.merging import merge
from ropewalk.store.structure.units import Declined, read, render

PY = "import os\n\n\nclass A:\n    def f(self):\n        return 1\n\n\ndef a():\n    return 1\n"


def both(path: str, base: str | bytes | None, ours: str | bytes, theirs: str | bytes) -> bytes:
    """Gives the merge, after checking that it is the same when the sides change places."""
    language = language_of(path.encode())
    assert language is not None
    texts = [t.encode() if isinstance(t, str) else t for t in (base, ours, theirs)]
    assert texts[1] is not None and texts[2] is not None
    made = merge(language, texts[0], texts[1], texts[2])
    assert merge(language, texts[0], texts[2], texts[1]) == made
    return made


def why(path: str, base: str | bytes | None, ours: str | bytes, theirs: str | bytes) -> str:
    """Gives the reason for which both orders of the sides are declined."""
    reasons = []
    for one, two in ((ours, theirs), (theirs, ours)):
        with pytest.raises(Declined) as caught:
            both(path, base, one, two)
        reasons.append(str(caught.value))
    assert reasons[0] == reasons[1]
    return reasons[0]


# file, base, ours, theirs, result
MERGED = {
    "two functions": (
        "a.py",
        PY,
        PY + "\n\ndef c():\n    pass\n",
        PY + "\n\ndef b():\n    pass\n",
        PY + "\n\ndef b():\n    pass\n\n\ndef c():\n    pass\n",
    ),
    "two imports": ("a.py", PY, "import re\n" + PY, "import abc\n" + PY, "import abc\nimport re\n" + PY),
    "names of an import": (
        "a.py",
        "from x import b\n",
        "from x import b, d\n",
        "from x import a, b\n",
        "from x import a, b, d\n",
    ),
    "names in brackets": (
        "a.py",
        "from x import (\n    b,\n)\n",
        "from x import (\n    b,\n    d,  # why\n)\n",
        "from x import (\n    b,\n    c,\n)\n",
        "from x import (\n    b,\n    c,\n    d,  # why\n)\n",
    ),
    "exports": (
        "a.py",
        '__all__ = ["a"]\n',
        '__all__ = ["a", "c"]\n',
        '__all__ = ["a", "b"]\n',
        '__all__ = ["a", "b", "c"]\n',
    ),
    "a method and a change of the next function": (
        "a.py",
        PY,
        PY.replace("return 1\n\n\ndef", "return 1\n\n    def g(self):\n        pass\n\n\ndef"),
        PY.replace("def a():\n    return 1", "def a(x):\n    return 2"),
        PY.replace(
            "return 1\n\n\ndef a():\n    return 1",
            "return 1\n\n    def g(self):\n        pass\n\n\ndef a(x):\n    return 2",
        ),
    ),
    "another order and a change": (
        "a.py",
        "def a():\n    return 1\n\n\ndef b():\n    return 2\n",
        "def b():\n    return 2\n\n\ndef a():\n    return 1\n",
        "def a():\n    return 1\n\n\ndef b():\n    return 3\n",
        "def b():\n    return 3\n\n\ndef a():\n    return 1\n",
    ),
    "both add the file": (
        "a.py",
        None,
        "import os\n\n\ndef a():\n    pass\n",
        "import os\n\n\ndef b():\n    pass\n",
        "import os\n\n\ndef a():\n    pass\n\n\ndef b():\n    pass\n",
    ),
    "no line end at the end": (
        "a.py",
        "def a():\n    pass",
        "def a():\n    pass\n\n\ndef c():\n    pass",
        "def a():\n    pass\n\n\ndef b():\n    pass",
        "def a():\n    pass\n\n\ndef b():\n    pass\n\n\ndef c():\n    pass",
    ),
    "comments above": (
        "a.py",
        "def a():\n    pass\n",
        "def a():\n    pass\n\n\n# of c\n@property\ndef c():\n    pass\n",
        "def a():\n    pass\n\n\n# of b\ndef b():\n    pass  # end\n",
        "def a():\n    pass\n\n\n# of b\ndef b():\n    pass  # end\n\n\n# of c\n@property\ndef c():\n    pass\n",
    ),
    "javascript": (
        "a.js",
        'import { a } from "a";\n\nfunction f() {\n}\n',
        'import { a, c } from "a";\n\nfunction f() {\n}\n\nfunction h() {\n}\n',
        'import { a, b } from "a";\n\nfunction f() {\n}\n\nexport const g = () => 1;\n',
        'import { a, b, c } from "a";\n\nfunction f() {\n}\n\nexport const g = () => 1;\n\nfunction h() {\n}\n',
    ),
    "typescript": (
        "a.ts",
        "interface I {\n  a: string;\n}\n\nclass A {\n  f() {\n  }\n}\n",
        "interface I {\n  a: string;\n  c: string;\n}\n\nclass A {\n  f() {\n  }\n\n  h() {\n  }\n}\n",
        "interface I {\n  a: string;\n  b: string;\n}\n\nclass A {\n  f() {\n  }\n\n  g() {\n  }\n}\n",
        "interface I {\n  a: string;\n  b: string;\n  c: string;\n}\n\nclass A {\n  f() {\n  }\n\n  g() {\n  }\n"
        "\n  h() {\n  }\n}\n",
    ),
    "tsx": (
        "a.tsx",
        "function A() {\n  return <p />;\n}\n",
        "function A() {\n  return <p />;\n}\nfunction C() {\n}\n",
        "function A() {\n  return <p />;\n}\nfunction B() {\n}\n",
        "function A() {\n  return <p />;\n}\nfunction B() {\n}\nfunction C() {\n}\n",
    ),
    "go": (
        "a.go",
        'package a\n\nimport (\n\t"b"\n)\n\nfunc (x *T) F() {\n}\n',
        'package a\n\nimport (\n\t"b"\n\t"d"\n)\n\nfunc (x *T) F() {\n}\n\n// H helps.\nfunc H() {\n}\n',
        'package a\n\nimport (\n\t"b"\n\t"c"\n)\n\nfunc (x *T) F() {\n}\n\nfunc (x *T) G() {\n}\n',
        'package a\n\nimport (\n\t"b"\n\t"c"\n\t"d"\n)\n\nfunc (x *T) F() {\n}\n\nfunc (x *T) G() {\n}\n\n// H helps.\n'
        "func H() {\n}\n",
    ),
    "rust": (
        "a.rs",
        "use a::{b};\n\nimpl S {\n    fn f() {\n    }\n}\n",
        "use a::{b, d};\n\nimpl S {\n    fn f() {\n    }\n\n    #[inline]\n    fn h() {\n    }\n}\n",
        "use a::{b, c};\n\nimpl S {\n    fn f() {\n    }\n\n    /// Gives.\n    fn g() {\n    }\n}\n",
        "use a::{b, c, d};\n\nimpl S {\n    fn f() {\n    }\n\n    /// Gives.\n    fn g() {\n    }\n\n    #[inline]\n"
        "    fn h() {\n    }\n}\n",
    ),
    "java": (
        "A.java",
        "import b.B;\n\nclass A {\n    void f(int a) {\n    }\n}\n",
        "import b.B;\nimport d.D;\n\nclass A {\n    void f(int a) {\n    }\n\n    void h() {\n    }\n}\n",
        "import b.B;\nimport c.C;\n\nclass A {\n    void f(int a) {\n    }\n\n    @Override\n"
        "    void g() {\n    }\n}\n",
        "import b.B;\nimport c.C;\nimport d.D;\n\nclass A {\n    void f(int a) {\n    }\n\n    @Override\n"
        "    void g() {\n    }\n\n    void h() {\n    }\n}\n",
    ),
    "c": (
        "a.h",
        "#ifndef A\n#define A\n\nint f(void);\n\n#endif\n",
        "#ifndef A\n#define A\n\nint f(void);\nint h(void);\n\n#endif\n",
        "#ifndef A\n#define A\n\nint f(void);\nint g(void);\n\n#endif\n",
        "#ifndef A\n#define A\n\nint f(void);\nint g(void);\nint h(void);\n\n#endif\n",
    ),
    "c++": (
        "a.cpp",
        "namespace n {\n\nclass A {\n public:\n  void f();\n};\n\n}\n",
        "namespace n {\n\nclass A {\n public:\n  void f();\n  void h();\n};\n\n}\n",
        "namespace n {\n\nclass A {\n public:\n  void f();\n  void g() const;\n};\n\n}\n",
        "namespace n {\n\nclass A {\n public:\n  void f();\n  void g() const;\n  void h();\n};\n\n}\n",
    ),
    "json": (
        "package.json",
        '{\n  "d": {\n    "b": "1"\n  }\n}\n',
        '{\n  "d": {\n    "b": "1",\n    "d": "1"\n  }\n}\n',
        '{\n  "d": {\n    "b": "1",\n    "c": "1"\n  }\n}\n',
        '{\n  "d": {\n    "b": "1",\n    "c": "1",\n    "d": "1"\n  }\n}\n',
    ),
    "toml": (
        "a.toml",
        "[a]\nx = 1\n",
        "[a]\nx = 1\nz = 1\n\n# about c\n[c]\nq = 1\n",
        "[a]\nx = 1\ny = 1\n",
        "[a]\nx = 1\ny = 1\nz = 1\n\n# about c\n[c]\nq = 1\n",
    ),
    "yaml": (
        "a.yml",
        "a:\n  x: 1\n",
        "a:\n  x: 1\n  z:\n    - 1\n",
        "a:\n  x: 1\n  y: 2\nb: 1\n",
        "a:\n  x: 1\n  y: 2\n  z:\n    - 1\nb: 1\n",
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_additions_stand_side_by_side(name: str) -> None:
    path, base, ours, theirs, result = MERGED[name]
    assert both(path, base, ours, theirs).decode() == result


# file, base, ours, theirs, a part of the reason
DECLINED = {
    "one expression": (
        "a.py",
        "def a():\n    return 1\n",
        "def a():\n    return 2\n",
        "def a():\n    return 3\n",
        "both sides changed 'a'",
    ),
    "a removal and a change": (
        "a.py",
        PY,
        PY.replace("\n\n\ndef a():\n    return 1", ""),
        PY.replace("def a():\n    return 1", "def a():\n    return 2"),
        "one side removes 'a'",
    ),
    "one name, two bodies": (
        "a.py",
        PY,
        PY + "\n\ndef b():\n    return 1\n",
        PY + "\n\ndef b():\n    return 2\n",
        "both sides add 'b'",
    ),
    "one name, two kinds": (
        "a.py",
        PY,
        PY + "\n\ndef b():\n    pass\n",
        PY + "\n\nclass b:\n    pass\n",
        "both sides add 'b'",
    ),
    "one name from two modules": ("a.py", PY, "from x import q\n" + PY, "from y import q\n" + PY, "both sides add 'q'"),
    "two names for one function": (
        "a.py",
        PY,
        PY.replace("def a()", "def b()"),
        PY.replace("def a()", "def c()"),
        "both sides replace 'a'",
    ),
    "a use of what goes": (
        "a.py",
        "import os\nimport re\n",
        "import os\n",
        "import os\nimport re\n\n\ndef a():\n    re.x\n",
        "one side removes 're'",
    ),
    "statements of a module": ("a.py", "x = f()\n", "x = f()\ny = g()\n", "x = f()\nz = h()\n", "beside each other"),
    "fields of a class": (
        "a.py",
        "class A:\n    x: int\n",
        "class A:\n    x: int\n    y: int\n",
        "class A:\n    x: int\n    z: int\n",
        "beside each other",
    ),
    "members of an enum": (
        "a.ts",
        "enum E {\n  A,\n}\n",
        "enum E {\n  A,\n  B,\n}\n",
        "enum E {\n  A,\n  C,\n}\n",
        "both sides changed 'E'",
    ),
    "fields of a struct": (
        "a.go",
        "package a\n\ntype S struct {\n\tA int\n}\n",
        "package a\n\ntype S struct {\n\tA int\n\tB int\n}\n",
        "package a\n\ntype S struct {\n\tA int\n\tC int\n}\n",
        "both sides changed 'S'",
    ),
    "two inits": (
        "a.go",
        "package a\n",
        "package a\n\nfunc init() {\n\tb()\n}\n",
        "package a\n\nfunc init() {\n\tc()\n}\n",
        "both sides add 'init'",
    ),
    "imports for their effect": (
        "a.js",
        'import "a";\n',
        'import "a";\nimport "c";\n',
        'import "a";\nimport "b";\n',
        "beside each other",
    ),
    "a future import": (
        "a.py",
        "x = 1\n",
        "from __future__ import annotations\nx = 1\n",
        "import a\nx = 1\n",
        "beside each other",
    ),
    "conditionals": (
        "a.c",
        "#ifdef A\nint f(void);\n#endif\n",
        "#ifdef A\nint f(void);\nint g(void);\n#endif\n",
        "#ifdef A\nint f(void);\nint h(void);\n#endif\n",
        "both sides changed 'A'",
    ),
    "fields of a c++ class": (
        "a.cpp",
        "class A {\n  int x;\n};\n",
        "class A {\n  int x;\n  int y;\n};\n",
        "class A {\n  int x;\n  int z;\n};\n",
        "beside each other",
    ),
    "elements of an array": (
        "a.json",
        '{\n  "a": [\n    1\n  ]\n}\n',
        '{\n  "a": [\n    1,\n    2\n  ]\n}\n',
        '{\n  "a": [\n    1,\n    3\n  ]\n}\n',
        "both sides changed 'a'",
    ),
    "one key, two values": (
        "a.json",
        '{\n  "a": 1\n}\n',
        '{\n  "a": 1,\n  "b": 1\n}\n',
        '{\n  "a": 1,\n  "b": 2\n}\n',
        "both sides add 'b'",
    ),
    "arrays of tables": (
        "a.toml",
        "[[a]]\nx = 1\n",
        "[[a]]\nx = 1\n\n[[a]]\nx = 2\n",
        "[[a]]\nx = 1\n\n[[a]]\nx = 3\n",
        "more than once",
    ),
    "anchors": ("a.yaml", "a: &x 1\n", "a: &x 1\nb: 1\n", "a: &x 1\nc: 1\n", "anchors"),
    "several documents": (
        "a.yaml",
        "a: 1\n---\nb: 1\n",
        "a: 1\n---\nb: 1\nc: 1\n",
        "a: 1\n---\nb: 1\nd: 1\n",
        "documents",
    ),
    "macros": ("a.rs", "m!{}\n", "m!{}\nn!{}\n", "m!{}\no!{}\n", "beside each other"),
    "overloads": (
        "a.ts",
        "class A {\n  f(a: string): void;\n  f(a: any) {\n  }\n}\n",
        "class A {\n  f(a: string): void;\n  f(a: number): void;\n  f(a: any) {\n  }\n}\n",
        "class A {\n  f(a: string): void;\n  f(a: object): void;\n  f(a: any) {\n  }\n}\n",
        "more than once",
    ),
    "a comment and what comes before it": (
        "a.py",
        "def a():\n    pass\n",
        "# of a\ndef a():\n    pass\n",
        "def b():\n    pass\n\n\ndef a():\n    pass\n",
        "written above 'a'",
    ),
    "a decorator and what comes before it": (
        "a.py",
        "def a():\n    pass\n",
        "@x\ndef a():\n    pass\n",
        "def b():\n    pass\n\n\ndef a():\n    pass\n",
        "written above 'a'",
    ),
    "comments at the end and what comes before them": (
        "a.go",
        "package a\n\nfunc F() {\n}\n",
        "package a\n\nfunc F() {\n}\n\nfunc G() {\n}\n",
        "package a\n\nfunc F() {\n}\n\nfunc H() {\n}\n\n// G helps.\n",
        "written above the end",
    ),
    "the end of a function and what comes after it": (
        "a.py",
        "def a():\n    x()\n",
        "def a():\n    x()\n    y()\n",
        "def a():\n    x()\n\n\ndef b():\n    z()\n",
        "one side goes on with 'a'",
    ),
    "another order and a comment": (
        "a.py",
        "# a\ndef a():\n    pass\n\n\ndef b():\n    pass\n",
        "def b():\n    pass\n\n\n# a\ndef a():\n    pass\n",
        "def a():\n    pass\n\n\ndef b():\n    pass\n",
        "another order, and",
    ),
    "a comment that stands at several places": (
        "a.go",
        "package a\n\n// auto\n\nfunc F() {\n}\n\n// auto\n\nfunc G() {\n}\n",
        "package a\n\n// auto\n\nfunc E() {\n}\n\n// auto\n\nfunc F() {\n}\n\n// auto\n\nfunc G() {\n}\n",
        "package a\n\n// auto\n\nfunc D() {\n}\n\nfunc F() {\n}\n\n// auto\n\nfunc G() {\n}\n",
        "more than once",
    ),
    "decorators that act": (
        "a.py",
        "app = App()\n\n\ndef a():\n    pass\n",
        "app = App()\n\n\ndef a():\n    pass\n\n\n@app.before\ndef b():\n    pass\n",
        "app = App()\n\n\ndef a():\n    pass\n\n\n@app.before\ndef c():\n    pass\n",
        "beside each other",
    ),
    "two orders": (
        "a.py",
        "def a():\n    pass\ndef b():\n    pass\ndef c():\n    pass\n",
        "def b():\n    pass\ndef a():\n    pass\ndef c():\n    pass\n",
        "def a():\n    pass\ndef c():\n    pass\ndef b():\n    pass\n",
        "another order",
    ),
    "what does not parse": (
        "a.py",
        "def a():\n    pass\n",
        "def a(:\n    pass\n",
        "def b():\n    pass\n",
        "does not parse",
    ),
    "two kinds of line end": (
        "a.py",
        "def a(): pass\n",
        "def a(): pass\r\ndef b(): pass\r\n",
        "def a(): pass\ndef c(): pass\n",
        "end their lines",
    ),
    "bytes that are no text": ("a.py", b"x\n", b"x\0\n", b"y\n", "binary"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_is_unsure_is_declined_with_a_reason(name: str) -> None:
    path, base, ours, theirs, reason = DECLINED[name]
    assert reason in why(path, base, ours, theirs)


def test_line_ends_and_the_mark_at_the_start_stay() -> None:
    base = b"\xef\xbb\xbfimport os\r\n\r\n\r\ndef a():\r\n    pass  \r\n"
    ours, theirs = base + b"\r\n\r\ndef c():\r\n    pass\r\n", base + b"\r\n\r\ndef b():\r\n    pass\r\n"
    assert both("a.py", base, ours, theirs) == (
        base + b"\r\n\r\ndef b():\r\n    pass\r\n" + b"\r\n\r\ndef c():\r\n    pass\r\n"
    )


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda one: one.suffixes[0])
def test_every_language_is_read_and_written_again(language: object) -> None:
    path = {"a.py": PY} | {case[0]: case[4] for case in MERGED.values()}
    texts = [text for name, text in path.items() if language_of(name.encode()) == language]
    if not texts:
        texts = [MERGED["javascript"][4]]
    for text in texts:
        read_back = read(language, text.encode())  # type: ignore[arg-type]
        assert render(read_back) == text.encode() and read_back.units


def test_every_suffix_names_one_language() -> None:
    suffixes = [suffix for language in LANGUAGES for suffix in language.suffixes]
    assert len(suffixes) == len(set(suffixes))
    assert language_of(b"x/Makefile") is None and language_of(b"x.PY") is LANGUAGES[0]
