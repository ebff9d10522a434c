"""The command line: every command's help, wrong usage, output forms, and what happens when output can't be written."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.cli import parse, special
from ropewalk.cli.main import SPECIAL
from ropewalk.core import config
from ropewalk.core.errors import UsageError
from ropewalk.operations import describe, registry

RW = [sys.executable, "-m", "ropewalk.cli.main"]
OPERATIONS = registry.everything()


def run(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*RW, *words], cwd=folder, capture_output=True, check=False, timeout=60, **options)


def envelope(folder: Path, *words: str, **options: Any) -> tuple[int, Any]:
    done = run(folder, *words, **options)
    assert done.stdout.count(b"\n") == 1, done
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Is a folder with a store whose main has one file that is no text."""
    assert run(tmp_path, "init", "--branch", "main").returncode == 0
    changes = [{"path": "a.bin", "content": {"base64": "AP+AYQo="}}, {"path": "b.txt", "content": {"inline": "b\n"}}]
    (tmp_path / "c.json").write_text(json.dumps(changes))
    done = run(tmp_path, "commit", "-m", "first", "--changes", "c.json", "--advance", "main", "--as", "test/one")
    assert done.returncode == 0, done
    return tmp_path


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_help_lists_every_field(operation: registry.Operation, tmp_path: Path, capsys: Any) -> None:
    from ropewalk.cli.main import main

    assert main([*operation.name.split(" "), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: rw {operation.name}") and operation.summary in " ".join(text.split())
    command = operation.command
    for field in msgspec.structs.fields(operation.request):
        if field.name in command.hidden or field.name in (command.rev_path or ()) or field.name == command.rest:
            continue
        if any(field.name == word.rstrip("*?") for word in command.positional):
            continue
        flag = command.flags.get(field.name, "--" + field.name.rstrip("_").replace("_", "-"))
        assert flag in text, f"{operation.name} hides {flag}"
    for flag in ("--store", "--as", "--json", "--human"):
        assert flag in text


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_a_command_names_fields_that_exist(operation: registry.Operation) -> None:
    fields = {f.name: f for f in msgspec.structs.fields(operation.request)}
    command = operation.command
    named = {word.rstrip("*?") for word in command.positional} | set(command.rev_path or ()) | set(command.files)
    named |= set(command.flags) | set(command.hidden) | ({command.rest} if command.rest else set())
    assert named <= set(fields)
    for name, field in fields.items():
        if name in command.files or name in command.hidden:
            continue
        inner = parse.plain_type(field.type)
        plain = (
            inner in (str, int, float, bool)
            or parse.number_type(inner)
            or "Literal" in str(inner)
            or "list[str]" in str(inner)
        )
        plain = plain or (
            getattr(inner, "__origin__", None) is list and parse.plain_type(inner.__args__[0]) in (str, int)
        )
        assert plain, f"{operation.name}: {name} can't be given on a command line: {inner}"
        assert inner is not bool or field.default is False, f"{operation.name}: {name} can't be switched off"


@pytest.mark.parametrize(
    "words",
    [
        ["bogus"],
        ["ref", "bogus"],
        ["--bogus"],
        ["info", "extra"],
        ["info", "--bogus"],
        ["info", "--store"],
        ["op", "show"],
        ["op", "show", "x"],
        ["op", "log", "-n"],
        ["op", "log", "-n", "many"],
        ["op", "log", "--follow", "--before", "3"],
        ["version", "extra"],
        ["completion"],
        ["completion", "csh"],
        ["help", "bogus"],
        ["mcp", "--bogus"],
        ["mcp", "--profile", "none"],
        ["--store"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_envelope_and_exit_2(words: list[str], folder: Path) -> None:
    code, found = envelope(folder, *words)
    assert (code, found["ok"], found["error"]["code"], found["error"]["exit"]) == (2, False, "E_USAGE", 2)
    assert found["error"]["message"] and found["error"]["hint"]


def test_options_may_stand_anywhere(folder: Path) -> None:
    head = envelope(folder, "resolve", "main")[1]["result"]["id"]
    for words in (
        ["--as", "test/two", "land", head, "--onto", "main", head],
        ["land", "--onto", "main", head, head, "--as=test/two"],
        ["--json", "--store", ".ropewalk", "land", head, "--as", "test/two", "--onto=main", head],
    ):
        code, found = envelope(folder, *words)
        assert code == 0 and found["result"]["status"] == "up_to_date", found


def test_numbers_are_numbers_wherever_they_stand(folder: Path) -> None:
    assert envelope(folder, "op", "show", "1")[1]["result"]["op"] == 1
    assert len(envelope(folder, "op", "log", "-n", "1")[1]["result"]["ops"]) == 1


def test_words_behind_dashes_belong_to_the_command_alone() -> None:
    declared = [one for one in OPERATIONS if one.command.rest]
    assert declared, "no operation takes a command"
    for operation in declared:
        values, _ = parse.request(operation, ["--store", "x", "--", "make", "--json", "-h"], lambda path: b"")
        assert values[operation.command.rest or ""] == ["make", "--json", "-h"]


def test_help_and_version(folder: Path) -> None:
    text = run(folder, "help").stdout.decode()
    for name in (*registry.names(), *SPECIAL):
        assert f"\n  {name} " in text
    assert run(folder).stdout == run(folder, "--help").stdout == run(folder, "-h").stdout == text.encode()
    for group in ("ref", "op", "ws"):
        shown = run(folder, group).stdout.decode()
        assert shown == run(folder, group, "--help").stdout.decode() == run(folder, "help", group).stdout.decode()
        assert f"  {group} list" in shown or f"  {group} log" in shown
    assert run(folder, "help", "ref", "list").stdout == run(folder, "ref", "list", "--help").stdout
    for name in SPECIAL:
        assert run(folder, name, "--help").stdout.startswith(b"usage: rw"), name
    from ropewalk import __version__

    assert envelope(folder, "version")[1]["result"]["version"] == __version__
    assert run(folder, "--version", "--human").stdout == f"ropewalk {__version__}\n".encode()


def test_schema_lists_and_shows(folder: Path) -> None:
    rows = envelope(folder, "schema")[1]["result"]["operations"]
    assert [row["name"] for row in rows] == registry.names()
    one = envelope(folder, "schema", "land")[1]["result"]
    assert {"E_CONFLICT", "E_BUSY", "E_IDENTITY_REQUIRED"} <= {row["code"] for row in one["errors"]}
    assert envelope(folder, "schema", "read_file")[1]["result"]["name"] == "cat"
    assert envelope(folder, "schema", "nope")[1]["error"]["code"] == "E_NOT_FOUND"


def test_config_shows_values_and_where_they_come_from(folder: Path) -> None:
    env = {**os.environ, "ROPEWALK_LOCK_WAIT": "2.5", "ROPEWALK_AGENT": "env/one"}
    rows = {
        row["name"]: row
        for row in envelope(folder, "config", "show", "--origin", "--as", "flag/one", env=env)[1]["result"]["settings"]
    }
    assert list(rows) == [setting.name for setting in config.SETTINGS]
    assert (rows["lock_wait"]["value"], rows["lock_wait"]["origin"]) == (2.5, "environment")
    assert (rows["agent"]["value"], rows["agent"]["origin"]) == ("flag/one", "flag")
    assert rows["store"]["origin"] == "default"
    assert "origin" not in envelope(folder, "config", "show")[1]["result"]["settings"][0]


def test_every_variable_that_is_read_is_in_the_table() -> None:
    import re

    import ropewalk

    read = re.compile(r"""env(?:iron)?(?:\.get\(|\[|\.pop\()["'](ROPEWALK_[A-Z_]+|XDG_[A-Z_]+)["']""")
    top = Path(ropewalk.__file__).parent
    found = {name: file for file in top.rglob("*.py") for name in read.findall(file.read_text(encoding="utf-8"))}
    found = {name: file for name, file in found.items() if file.relative_to(top).parts[0] != "testing"}
    assert set(found) <= {setting.variable for setting in config.SETTINGS} | set(config.HANDED_ON), found


def test_the_lock_wait_is_honoured(folder: Path) -> None:
    import fcntl
    import time

    with open(folder / ".ropewalk" / "writer.lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        code, found = envelope(
            folder, "ref", "set", "side", "main", "--create", "--as", "test/one",
            env={**os.environ, "ROPEWALK_LOCK_WAIT": "0.2"},
        )  # fmt: skip
        assert (code, found["error"]["code"]) == (6, "E_BUSY") and time.monotonic() - began < 8
    for text in ("soon", "-1", "nan", "inf"):
        code, found = envelope(folder, "info", env={**os.environ, "ROPEWALK_LOCK_WAIT": text})
        assert (code, found["error"]["code"]) == (2, "E_INVALID")


def test_human_output_goes_where_it_belongs(folder: Path) -> None:
    done = run(folder, "ref", "list", "--human")
    assert done.stdout.endswith(b" main\n") and done.stderr == b""
    done = run(folder, "resolve", "nowhere", "--human")
    assert done.returncode == 4 and done.stdout == b"" and done.stderr.startswith(b"error: E_NOT_FOUND")


def test_raw_gives_the_bytes(folder: Path) -> None:
    done = run(folder, "cat", "main:a.bin", "--raw")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\0\xff\x80a\n", b"")
    code, found = envelope(folder, "cat", "main:nope", "--raw")
    assert (code, found["error"]["code"]) == (4, "E_NOT_FOUND")


def _follower(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*RW, "op", "log", "--follow", *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _line(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 30)
    assert ready, "no line came"
    return json.loads(process.stdout.readline())


def test_follow_gives_new_operations_until_it_is_stopped(folder: Path) -> None:
    process = _follower(folder, "-n", "1")
    first = _line(process)
    assert first["kind"] == "commit"
    made = envelope(folder, "ref", "set", "side", "main", "--create", "--as", "test/one")[1]["result"]
    second = _line(process)
    assert (second["op"], second["kind"], second["actor"]) == (made["op"], "ref_set", "test/one")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"stopped\n")


def test_follow_ends_when_nobody_reads(folder: Path) -> None:
    process = _follower(folder, "-n", "1")
    _line(process)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stdout = None
    assert process.wait(timeout=30) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_follow_ends_when_the_store_is_gone(folder: Path) -> None:
    process = _follower(folder, "-n", "1")
    _line(process)
    (folder / ".ropewalk").rename(folder / "away")
    assert _line(process)["error"]["code"] == "E_NOT_FOUND"
    process.communicate(timeout=30)
    assert process.returncode == 4


def test_output_that_can_not_be_written_is_said(folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*RW, "info"], cwd=folder, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 7 and done.stderr.startswith(b"error: E_IO") and b"Traceback" not in done.stderr
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", *RW, "info"], cwd=folder, check=False)
    assert closed.returncode == 0
    assert envelope(folder, "verify")[1]["result"]["problems"] == []


def test_a_broken_pipe_is_quiet(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*RW, "info"], cwd=folder, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_input_from_pipes_and_from_what_is_none(folder: Path) -> None:
    changes = b'[{"path":"p","content":{"inline":"p"}}]'
    words = ("commit", "-m", "m", "--as", "test/one", "--changes")
    assert envelope(folder, *words, "-", input=changes)[0] == 0
    assert envelope(folder, *words, "/dev/stdin", input=changes.replace(b'"p"', b'"q"'))[0] == 0
    for path, code in ((".", "E_INVALID"), ("nowhere", "E_NOT_FOUND"), ("/dev/zero", "E_INVALID"), ("c.json\0", "")):
        if code:
            assert envelope(folder, *words, path)[1]["error"]["code"] == code
    os.mkfifo(folder / "pipe")
    (folder / "c.json").write_text(json.dumps([{"path": "x", "content": {"file": "pipe"}}]))
    assert envelope(folder, *words, "c.json")[1]["error"]["code"] == "E_INVALID"


def test_special_commands_are_described() -> None:
    assert set(special.SUMMARIES) == set(SPECIAL)
    assert set(special.HEADINGS) == set(registry.FAMILIES)
    with pytest.raises(UsageError):
        special.run("help", ["nope"])


def test_streams_are_declared_where_they_exist() -> None:
    assert {one.name for one in OPERATIONS if one.stream} == set(parse.STREAMS)


def test_documented_errors_have_a_meaning() -> None:
    for operation in OPERATIONS:
        for error in describe.error_classes(operation):
            assert describe.meaning(error).endswith("."), error
