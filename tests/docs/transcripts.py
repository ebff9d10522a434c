"""Runs the ```console blocks of a document, in order, in one shell session, and compares what they print.

A line that starts with `$ ` is a command (`# exit N` at its end: it ends with N), `> ` goes on with it; the lines
after it are what it prints, both streams. `…` alone on a line stands for any lines, inside a line for any text.
A page starts in an empty home folder, shown as /home/you. Ids, dates and durations differ from run to run and are
compared as such. ` ```sh ` blocks are not run.

`python -m tests.docs.transcripts PAGE…` runs pages and writes what the commands printed into them, where what they
show does not fit.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import ropewalk

HOME = "/home/you"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"\s+# exit (\d+)$")
_VARIES = [
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"\b[0-9a-f]{40}\b"), "ID"),
    (re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{4}\b"), "RUN"),
    (re.compile(r"\b[0-9a-f]{7,12}\b"), "SHORT"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r'"(elapsed_ms|at|created_at|seconds|bytes_on_disk)":[0-9.]+'), r'"\1":N'),
    (re.compile(r"\b(?:\d+ min )?\d+(\.\d+)? (s|ms|seconds)\b"), r"N \2"),
    (re.compile(r"(bytes_on_disk|seconds|elapsed_ms|bytes_before|bytes_after|lands_a_second): [0-9.]+"), r"\1: N"),
]


class Step(NamedTuple):
    """Is one command of a document with what it is said to print; `shown` is how the document writes it."""

    command: str
    exit: int
    expected: list[str]
    shown: str = ""


class Ran(NamedTuple):
    """Is what a command really did."""

    exit: int
    printed: list[str]


def steps(text: str) -> list[Step]:
    """Gives the commands of a document."""
    return [step for block in _BLOCK.findall(text) for step in _steps_of(block)]


def _steps_of(block: str) -> list[Step]:
    found: list[Step] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            ends = _EXIT.search(line)
            found.append(Step(_EXIT.sub("", line[2:]), int(ends[1]) if ends else 0, [], line))
        elif (line.startswith("> ") or line == ">") and found and not found[-1].expected:
            last = found[-1]
            found[-1] = last._replace(command=f"{last.command}\n{line[2:]}", shown=f"{last.shown}\n{line}")
        else:
            assert found, f"output before the first command: {line!r}"
            found[-1].expected.append(line)
    return found


def plain(line: str) -> str:
    """Gives a line with everything that differs from run to run replaced by its name."""
    line = line.rstrip()
    for pattern, name in _VARIES:
        line = pattern.sub(name, line)
    return line


def matches(expected: list[str], printed: list[str]) -> bool:
    """Says whether printed lines are what a document shows, `…` standing for any text."""
    pattern = ""
    for line in map(plain, expected):
        if line.strip() == "…":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += "[^\\n]*?".join(re.escape(part) for part in line.split("…")) + "\n"
    return re.fullmatch(pattern, "".join(f"{plain(line)}\n" for line in printed)) is not None


def play(done: list[Step], folder: Path) -> list[Ran]:
    """Runs commands one after the other, each where and with the variables the one before left off."""
    bin_folder, home = folder / "bin", folder / "you"
    for one in (bin_folder, home):
        one.mkdir()
    for name in ("rw", "ropewalk"):
        script = bin_folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ropewalk.cli.main "$@"\n')
        script.chmod(0o755)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "ROPEWALK_", "XDG_"))}
    env |= {"HOME": str(home), "PATH": f"{bin_folder}:{env['PATH']}", "LC_ALL": "C.UTF-8", "GIT_PAGER": "cat"}
    env |= {
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
        "PYTHONPATH": str(Path(ropewalk.__file__).parents[1]),
    }
    for role in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{role}_NAME": "You", f"GIT_{role}_EMAIL": "you@example.com"}
    state = folder / "state"
    state.write_text(f'cd "{home}"\n')
    ran = []
    for step in done:
        script = (
            f'. "{state}"\nset -a\n{step.command}\nrc=$?\n'
            f'{{ declare -px | grep -v " SHLVL="; declare -f; echo "cd $(printf %q "$PWD")"; }} > "{state}"\nexit $rc'
        )
        made = subprocess.run(
            ["bash", "-c", script], cwd=home, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
        )  # fmt: skip
        printed = made.stdout.decode("utf-8", "replace").replace(str(home), HOME)
        ran.append(Ran(made.returncode, [line.rstrip() for line in printed.splitlines()]))
    return ran


def run(text: str, folder: Path) -> list[str]:
    """Runs a document's commands in a folder; gives a sentence for each that printed something else."""
    wanted = steps(text)
    problems = []
    for step, ran in zip(wanted, play(wanted, folder), strict=True):
        if ran.exit != step.exit:
            problems.append(f"$ {step.command}\nended with {ran.exit}, not {step.exit}:\n" + "\n".join(ran.printed))
        elif not matches(step.expected, ran.printed):
            problems.append(
                f"$ {step.command}\nprinted:\n" + "\n".join(ran.printed) + "\ninstead of:\n" + "\n".join(step.expected)
            )
    return problems


def record(text: str, folder: Path) -> str:
    """Gives a document with what its commands print now; an unforeseen exit code is written beside its command."""
    rans = iter(play(steps(text), folder))

    def block(found: re.Match[str]) -> str:
        lines = []
        for step in _steps_of(found[1]):
            ran = next(rans)
            first, *others = step.shown.split("\n")
            lines += [_EXIT.sub("", first) + (f"  # exit {ran.exit}" if ran.exit else ""), *others]
            lines += step.expected if matches(step.expected, ran.printed) else ran.printed
        return "```console\n" + "".join(f"{line}\n" for line in lines) + "```"

    return _BLOCK.sub(block, text)


def main() -> None:
    """Records the pages named on the command line."""
    for name in sys.argv[1:]:
        page = Path(name)
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(record(page.read_text(encoding="utf-8"), Path(folder).resolve()), encoding="utf-8")


if __name__ == "__main__":
    main()
