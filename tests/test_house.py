"""House rules that no linter knows: what may stand where, and that lists agree with the code they list."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from ropewalk.core.errors import RopewalkError

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "ropewalk"
SOURCES = sorted(SRC.rglob("*.py"))
LIMIT = 600
# the loops that answer whatever happens; the runner hands what stops a thread to the one that waits for it
CATCH_ALL = {"operations/envelope.py", "mcp/server.py", "cli/main.py", "run/runner.py", "lane/door_server.py"}
BANNED = {"sqlite3", "pygit2", "click"}


def name(path: Path) -> str:
    """Gives a source file's name below the package."""
    return str(path.relative_to(SRC))


def test_the_lock_has_versions_and_hashes_and_no_address() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*(--index|--extra-index|--find-links|--trusted|-i |-f )", text, re.MULTILINE)
    pinned = re.findall(
        r"^([A-Za-z0-9._-]+)==\S+ \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE
    )
    named = re.findall(r"^[A-Za-z0-9][^\n]*", text, re.MULTILINE)
    assert len(pinned) == len(named), "a package without version and hash"
    assert "\n# development\n" in text


def test_the_lock_covers_what_the_package_asks_for() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    runtime, _, development = (ROOT / "requirements.lock").read_text(encoding="utf-8").partition("\n# development\n")

    def names(lines: list[str]) -> set[str]:
        return {re.split(r"[<>=!~\[; ]", line)[0].lower() for line in lines}

    first = names(re.findall(r"^[A-Za-z0-9][^\n]*", runtime, re.MULTILINE))
    second = names(re.findall(r"^[A-Za-z0-9][^\n]*", development, re.MULTILINE))
    assert names(project["dependencies"]) <= first
    assert names(project["optional-dependencies"]["dev"]) <= first | second


def test_the_package_asks_for_what_it_imports_and_for_nothing_else() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {re.split(r"[<>=!~\[; ]", line)[0].lower().replace("-", "_") for line in project["dependencies"]}
    used = {top for path in SOURCES for top in imports(path)} - set(sys.stdlib_module_names) - {"ropewalk"}
    assert used == asked


def imports(path: Path) -> set[str]:
    """Gives the top names of the modules a file imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_source_file_keeps_the_rules(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert not imports(path) & BANNED
    lines = text.count("\n")
    if lines > LIMIT:
        top = ast.get_docstring(tree) or ""
        assert "lines" in top, f"{name(path)} has {lines} lines, and its docstring does not say why"
    if name(path) not in CATCH_ALL:
        caught = [f"line {n.lineno}" for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and catches_all(n)]
        assert not caught, f"{name(path)} catches everything: {caught}"


def catches_all(handler: ast.ExceptHandler) -> bool:
    """Says whether a handler takes any exception and does not raise it again."""
    kind = handler.type
    names = [kind] if not isinstance(kind, ast.Tuple) else list(kind.elts)
    broad = kind is None or any(isinstance(n, ast.Name) and n.id in ("Exception", "BaseException") for n in names)
    last = handler.body[-1]
    return broad and not (isinstance(last, ast.Raise) and last.exc is None)


def test_catching_all_is_recognised() -> None:
    def handler(text: str) -> ast.ExceptHandler:
        return next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ExceptHandler))

    assert catches_all(handler("try: pass\nexcept Exception: pass\n"))
    assert catches_all(handler("try: pass\nexcept (ValueError, BaseException): pass\n"))
    assert catches_all(handler("try: pass\nexcept: pass\n"))
    assert not catches_all(handler("try: pass\nexcept BaseException:\n    x = 1\n    raise\n"))
    assert not catches_all(handler("try: pass\nexcept OSError: pass\n"))


def test_the_table_of_families_is_what_the_modules_register() -> None:
    from ropewalk.operations import registry

    for family in registry.FAMILIES:
        importlib.import_module(f"ropewalk.operations.{family}")
    registered = {(o.family, o.name) for o in registry._LOADED.values()}
    listed = {(family, one) for family, names in registry.FAMILIES.items() for one in names}
    assert registered == listed
    tools = [o.tool for o in registry._LOADED.values() if o.tool]
    assert len(tools) == len(set(tools))


def test_every_error_has_its_own_code_and_an_exit_code() -> None:
    for path in SOURCES:
        importlib.import_module("ropewalk." + name(path)[:-3].replace("/", ".").removesuffix(".__init__"))
    classes = all_below(RopewalkError)
    codes = [c.code for c in classes]
    assert len(codes) == len(set(codes)), sorted(c for c in codes if codes.count(c) > 1)
    for one in classes:
        assert re.fullmatch(r"E_[A-Z_]+", one.code)
        assert one.__module__ == "ropewalk.core.errors", f"{one.__name__} belongs into core/errors.py"
        assert one.exit in range(1, 16), one
        assert one.__doc__, one
    page = ROOT / "docs" / "errors.md"
    if page.exists():
        text = page.read_text(encoding="utf-8")
        assert not [code for code in codes if f"`{code}`" not in text], "not in docs/errors.md"


def all_below(base: type[RopewalkError]) -> list[type[RopewalkError]]:
    """Gives all classes below a class of errors."""
    found: list[type[RopewalkError]] = []
    for direct in base.__subclasses__():
        found += [direct, *all_below(direct)]
    return found


def test_requests_and_responses_are_frozen() -> None:
    from ropewalk.operations import registry

    for one in registry.everything():
        for kind in (one.request, one.response):
            assert issubclass(kind, msgspec.Struct), kind
            assert kind.__struct_config__.frozen, f"{kind.__name__} of {one.name} is not frozen"


def test_no_file_speaks_of_the_machine_it_was_written_on() -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == 0
    for path in done.stdout.decode().split("\0"):
        if not path or not (ROOT / path).is_file():
            continue
        assert os.fsencode(ROOT) + b"/" not in (ROOT / path).read_bytes(), path


@pytest.mark.slow
def test_the_wheel_holds_the_licences_and_the_mark_of_types(tmp_path: Path) -> None:
    code = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = wheel.namelist()
        for path in SOURCES:
            assert f"ropewalk/{name(path)}" in held
        assert "ropewalk/py.typed" in held
        for licence in ("LICENSE", "THIRD-PARTY-LICENSES"):
            assert any(one.endswith(f".dist-info/licenses/{licence}") for one in held), held
        (entry,) = [one for one in held if one.endswith("entry_points.txt")]
        points = wheel.read(entry).decode()
        assert "rw = ropewalk.cli.main:main" in points
        assert "ropewalk = ropewalk.cli.main:main" in points
