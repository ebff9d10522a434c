"""What a `ropewalk.toml` puts beside a workspace's tree: copies, links, a setup that is a gate, variables, ports."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core import policy
from ropewalk.core.errors import CheckFailedError, InvalidError
from ropewalk.core.policy import Policy
from ropewalk.workspace import setup

from .conftest import Bench


@pytest.fixture
def operator(bench: Bench) -> Path:
    """Gives the operator's folder, with what git does not track there."""
    folder = bench.folder / "operator"
    (folder / "node_modules" / "left").mkdir(parents=True)
    (folder / "node_modules" / "left" / "index.js").write_text("1\n")
    (folder / ".env").write_text("KEY=secret\n")
    (folder / ".env").chmod(0o600)
    return folder


def given(folder: Path, text: str) -> Policy:
    (folder / "ropewalk.toml").write_text(text)
    return policy.read(str(folder))


def test_s36_what_setup_puts_there_never_lands(bench: Bench, operator: Path, in_ws: Any) -> None:
    path = bench.create(policy=given(operator, '[workspace]\ncopy = [".env"]\nlink = ["node_modules"]\n'))
    assert (path / ".env").read_text() == "KEY=secret\n" and (path / ".env").stat().st_mode & 0o777 == 0o600
    assert (path / "node_modules").is_symlink() and (path / "node_modules" / "left" / "index.js").exists()
    assert in_ws(path, "status", "--porcelain") == "" and bench.changes() == {}
    in_ws(path, "add", "-f", ".env", "node_modules")
    in_ws(path, "commit", "-q", "-m", "all of it")
    (path / "mine").write_text("m\n")
    bench.land()
    assert set(bench.tree()) & {".env", "node_modules"} == set() and "mine" in bench.tree()


def test_s36_even_when_upstream_gains_a_file_of_the_name(bench: Bench, operator: Path) -> None:
    path = bench.create(policy=given(operator, '[workspace]\ncopy = [".env"]\n'))
    bench.publish({".env": "upstream\n"})
    bench.rebase()
    (path / ".env").write_text("KEY=changed by the agent\n")
    (path / "mine").write_text("m\n")
    bench.land()
    assert bench.tree()[".env"][1] == b"upstream\n"


def test_a_tracked_file_is_not_replaced(bench: Bench, operator: Path) -> None:
    (operator / "README.md").write_text("the operator's\n")
    path = bench.create(policy=given(operator, '[workspace]\ncopy = ["README.md"]\n'))
    assert (path / "README.md").read_bytes() == bench.tree()["README.md"][1]
    assert any("README.md is in the tree" in line for line in bench.store.warnings)


def test_L7_setup_is_a_gate_and_a_second_try_ends_it(bench: Bench, operator: Path) -> None:
    wanted = given(
        operator, f'[workspace]\ncopy = [".env"]\nsetup = "test -e {operator}/go && echo $ROPEWALK_WORKSPACE > made"\n'
    )
    with pytest.raises(CheckFailedError) as caught:
        bench.create(policy=wanted)
    assert caught.value.details["reason"] == "setup" and bench.ws().state == "making"
    (operator / "go").touch()
    (Path(bench.ws().path) / ".env").write_text("half")
    path = bench.create(policy=wanted)
    assert bench.ws().state == "ready" and (path / "made").read_text() == "one\n"
    assert (path / ".env").read_text() == "KEY=secret\n"


def test_a_setup_that_hangs_is_ended(bench: Bench, operator: Path) -> None:
    with pytest.raises(CheckFailedError, match=r"within 0\.3 s"):
        bench.create(policy=given(operator, '[workspace]\nsetup = "sleep 60"\nsetup_seconds = 0.3\n'))


def test_L35_each_workspace_has_ports_of_its_own(bench: Bench, operator: Path) -> None:
    wanted = given(operator, '[workspace]\nports = 7\nsetup = "echo $ROPEWALK_PORT_BASE > port"\n')
    ports = []
    for name in ("one", "two", "three"):
        path = bench.create(name, policy=wanted)
        ports.append(int((path / "port").read_text()))
        (path / "port").unlink()
    assert len({port + n for port in ports for n in range(7)}) == 21
    bench.delete("two")
    assert int((bench.create("four", policy=wanted) / "port").read_text()) == ports[1]


def test_a_check_has_what_a_workspace_has(bench: Bench, operator: Path) -> None:
    given(operator, '[workspace]\ncopy = [".env"]\nsetup = "touch built"\nenv = { MODE = "test" }\n')
    (bench.folder / "operator" / ".ropewalk").symlink_to(bench.store.layout.root)
    path = bench.create()
    (path / "x").write_text("x\n")
    argv = bench.argv("ws", "land", "one", "-m", "x", "--store", str(operator / ".ropewalk"), "--as", "a/b", "--",
                      "sh", "-c", 'grep -q KEY .env && test -e built && test "$MODE" = test')  # fmt: skip
    done = subprocess.run(argv, env=bench.env, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_where_the_operator_is() -> None:
    assert setup.operator_folder("/home/me/app/.git/ropewalk") == "/home/me/app"
    assert setup.operator_folder("/home/me/app/.ropewalk") == "/home/me/app"
    assert setup.operator_folder("/srv/stores/app") == "/srv/stores/app"


@pytest.mark.parametrize(
    "text",
    ["[workspace]\ncopy = '.env'", "[workspace]\ncopy = ['../x']", "[workspace]\nenv = { 'A B' = '1' }", "[work]", "=",
     "[workspace]\nports = -1", "[workspace]\nsetup_seconds = 0", "[workspace]\nlink = ['.git/hooks']"],
)  # fmt: skip
def test_a_policy_that_is_wrong_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "ropewalk.toml").write_text(text)
    with pytest.raises(InvalidError):
        policy.read(str(tmp_path))
