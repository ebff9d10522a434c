"""The layers: who may import whom, and what nothing below the faces may touch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src" / "ropewalk"
FACES = {"cli", "mcp", "testing"}
BELOW = sorted(p for p in SRC.rglob("*.py") if p.relative_to(SRC).parts[0] not in FACES)
# core/process.py hands the environment on to children; nothing else below the faces looks at it
READS_ENVIRONMENT = {"core/process.py"}
# programs in processes of their own, which open no store: what goes into a cage or stands around a lane, the gateway
PROGRAMS = {
    "gateway/process.py", "lane/shim.py", "lane/cage/inside.py", "lane/cage/landlock.py", "lane/cage/probe.py",
    "lane/programs/acp_client.py", "lane/door_client.py", "run/demo/cleaner.py",
}  # fmt: skip

# a program too, which follows a lane on its store's behalf when the command that started the lane has answered
FOLLOWS = {"lane/attend.py"}


def test_the_contracts_of_import_linter_hold() -> None:
    program = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([program, "--no-logo"], cwd=SRC.parent.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("path", BELOW, ids=lambda p: str(p.relative_to(SRC)))
def test_nothing_below_the_faces_prints_or_reads_the_environment(path: Path) -> None:
    name = str(path.relative_to(SRC))
    found = [] if name in PROGRAMS | FOLLOWS else list(faults(ast.parse(path.read_text(encoding="utf-8"))))
    if name in READS_ENVIRONMENT:
        found = [word for word in found if "environ" not in word]
    assert not found, f"{name}: {found}"


def faults(tree: ast.AST) -> Iterator[str]:
    """Yields what a module below the faces must not do, with its line."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("print", "input", "breakpoint")
        ):
            yield f"{node.func.id}() in line {node.lineno}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            full = f"{node.value.id}.{node.attr}"
            if full in (
                "os.environ",
                "os.getenv",
                "os.environb",
                "sys.stdout",
                "sys.stderr",
                "sys.stdin",
                "sys.argv",
                "sys.exit",
            ):
                yield f"{full} in line {node.lineno}"
            elif full in ("os.fork", "os.forkpty", "pty.fork"):
                yield f"{full} in line {node.lineno}: a fork without exec keeps the writer lock (A25)"


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_of_its_own_opens_no_store(name: str) -> None:
    tree = ast.parse((SRC / name).read_text(encoding="utf-8"))
    named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [one for one in named if one.startswith("ropewalk.store")]


def test_the_check_sees_what_it_looks_for() -> None:
    bad = "import os, sys\nprint(os.environ['X'])\nsys.stderr.write('x')\nos.fork()\n"
    assert len(list(faults(ast.parse(bad)))) == 4
    assert not list(faults(ast.parse("import os\nos.getcwd()\n")))
