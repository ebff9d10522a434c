"""Runs the ```console blocks of a document, in order, in one folder, and compares what they print.

A line that starts with `$ ` is a command (`# exit N` at its end: it ends with N), `> ` goes on with it; the lines
after it are what it prints, both streams. `…` alone on a line stands for any lines, inside a line for any text.
Ids, dates, durations and folder names differ from run to run and are compared as such.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"\s+# exit (\d+)$")
_VARIES = [
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\b[0-9a-f]{40}\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{7,12}\b"), "SHORT"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r'"(elapsed_ms|at|created_at|seconds|bytes_on_disk)":[0-9.]+'), r'"\1":N'),
    (re.compile(r"\b\d+(\.\d+)? (s|ms|seconds)\b"), r"N \2"),
    (re.compile(r"(bytes_on_disk|seconds|elapsed_ms|bytes_before|bytes_after|lands_a_second): [0-9.]+"), r"\1: N"),
]


class Step(NamedTuple):
    """Is one command of a document with what it is said to print."""

    command: str
    exit: int
    expected: list[str]


def steps(text: str) -> list[Step]:
    """Gives the commands of a document."""
    found: list[Step] = []
    for block in _BLOCK.findall(text):
        for line in block.splitlines():
            if line.startswith("$ "):
                ends = _EXIT.search(line)
                found.append(Step(_EXIT.sub("", line[2:]), int(ends[1]) if ends else 0, []))
            elif line.startswith("> ") and found and not found[-1].expected:
                found[-1] = found[-1]._replace(command=f"{found[-1].command}\n{line[2:]}")
            else:
                assert found, f"output before the first command: {line!r}"
                found[-1].expected.append(line)
    return found


def plain(line: str, folder: Path) -> str:
    """Gives a line with everything that differs from run to run replaced by its name."""
    line = line.replace(str(folder), "FOLDER").rstrip()
    for pattern, name in _VARIES:
        line = pattern.sub(name, line)
    return line


def matches(expected: list[str], printed: list[str]) -> bool:
    """Says whether printed lines are what a document shows, `…` standing for any text."""
    pattern = ""
    for line in expected:
        if line.strip() == "…":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += "[^\\n]*?".join(re.escape(part) for part in line.split("…")) + "\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def run(text: str, folder: Path) -> list[str]:
    """Runs a document's commands in a folder; gives a sentence for each that printed something else."""
    bin_folder = folder / ".bin"
    bin_folder.mkdir()
    for name in ("rw", "ropewalk"):
        script = bin_folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ropewalk.cli.main "$@"\n')
        script.chmod(0o755)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "ROPEWALK_", "XDG_"))}
    home = folder / ".home"
    home.mkdir()
    env |= {"HOME": str(home), "PATH": f"{bin_folder}:{env['PATH']}", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_AUTHOR_NAME": "You", "GIT_AUTHOR_EMAIL": "you@example.com", "GIT_COMMITTER_NAME": "You",
            "GIT_COMMITTER_EMAIL": "you@example.com", "GIT_CONFIG_NOSYSTEM": "1"}  # fmt: skip
    work = folder / "work"
    work.mkdir()
    state = folder / ".state"
    state.write_text(f"cd {work}\n")
    problems: list[str] = []
    for step in steps(text):
        script = f'. "{state}"\n{step.command}\nrc=$?\n{{ declare -px | grep -v " SHLVL="; echo "cd $(printf %q "$PWD")"; }} > "{state}"\nexit $rc'
        done = subprocess.run(
            ["bash", "-c", script], cwd=work, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
        )  # fmt: skip
        printed = [plain(line, work) for line in done.stdout.decode("utf-8", "replace").splitlines()]
        expected = [plain(line, work) for line in step.expected]
        if done.returncode != step.exit:
            problems.append(f"$ {step.command}\nended with {done.returncode}, not {step.exit}:\n" + "\n".join(printed))
        elif not matches(expected, printed):
            problems.append(f"$ {step.command}\nprinted:\n" + "\n".join(printed) + "\ninstead of:\n" + "\n".join(expected))
    return problems
