"""Attacks on pushes: hooks that are killed, many people at once beside a collection, words that are not git's."""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ropewalk.core.errors import InvalidError
from ropewalk.remote import receiving
from ropewalk.remote.receiving import FLUSH, packet
from storekit import SRC, STOCK, Kit, child_env, lines, put, rw, stock

FULL = os.environ.get("RWTEST_FULL") == "1"
CALLS = ("write", "pwrite64", "fdatasync", "fsync", "rename", "linkat", "ftruncate", "flock", "unlink")


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", lines()), *(put(f"d/{n}.txt", f"{n}\n") for n in range(6)))
    yield made
    made.close()


def git(folder: Path, *words: str, **env: str) -> tuple[int, str]:
    done = subprocess.run(["git", *words], cwd=folder, env=STOCK | {"PYTHONPATH": SRC, **env}, capture_output=True,
                          timeout=300)  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def clone(kit: Kit, folder: Path) -> Path:
    stock("clone", "-q", kit.repo, str(folder))
    return folder


def commit(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    for words in (("add", "-A"), ("commit", "-q", "-m", name)):
        code, said = git(folder, *words)
        assert code == 0, said
    return git(folder, "rev-parse", "HEAD")[1].strip()


def changes_on_main(kit: Kit) -> list[str]:
    said = kit.stock("log", "--format=%(trailers:key=Ropewalk-Changeset,valueonly)", "main")
    return said.split()


def whole(kit: Kit) -> None:
    code, envelope = rw(kit.root, "verify", "--deep")
    assert code == 0, envelope
    kit.fsck()


def test_a36_a_hook_killed_anywhere_lands_once_when_it_is_pushed_again(kit: Kit, tmp_path: Path) -> None:
    """`proc-receive` is killed at system calls drawn from a seed; the same push again is answered with one land."""
    person = clone(kit, tmp_path / "clone")
    wrapper, log, strike = tmp_path / "python", tmp_path / "log", tmp_path / "strike"
    python = shlex.quote(sys.executable)
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *proc-receive) exec strace -f -o {log} -e trace={",".join(CALLS)} $(cat {strike})'
        f' {python} "$@";; esac\nexec {python} "$@"\n'
    )
    wrapper.chmod(0o755)

    def push(inject: str) -> tuple[int, str]:
        strike.write_text(inject)
        return git(person, "push", "origin", "HEAD:refs/land/main", ROPEWALK_PYTHON=str(wrapper))

    commit(person, "traced.txt", "x\n")
    code, said = push("")
    assert code == 0, said
    met = [found[1] for found in re.finditer(r"^\d+ +([a-z0-9_]+)\(", log.read_text(), re.MULTILINE)]
    points = [(call, n) for call in sorted(set(met)) for n in range(1, met.count(call) + 1)]
    assert len(points) > 15, met
    killed = 0
    for number, (call, when) in enumerate(random.Random(7).sample(points, min(len(points), 60 if FULL else 5))):
        new = commit(person, f"f{number}.txt", f"{number}\n")
        code, said = push(f"-e inject={call}:signal=KILL:when={when}")
        killed += "killed by SIGKILL" in log.read_text()
        kit.change(put("d/other.txt", f"{number}\n"))  # somebody else is not kept out
        code, said = push("")
        assert code == 0 and re.search(r"(landed|up to date) [0-9a-f]{40} on main", said), (call, when, said)
        assert changes_on_main(kit).count(new) == 1, (call, when)
    assert killed
    whole(kit)


def test_what_was_taken_back_is_not_told_to_have_landed(kit: Kit, tmp_path: Path) -> None:
    person = clone(kit, tmp_path / "clone")
    commit(person, "p.txt", "p\n")
    assert git(person, "push", "origin", "HEAD:refs/land/main")[0] == 0
    (op,) = kit.store.db.row("SELECT max(op) FROM ops WHERE kind = 'land'") or (0,)
    assert rw(kit.root, "op", "undo", str(op))[0] == 0
    code, said = git(person, "push", "origin", "HEAD:refs/land/main")
    assert code and "undone" in said and "-o allow-reland" in said and b"p.txt" not in kit.again().files()
    code, said = git(person, "push", "-o", "allow-reland", "origin", "HEAD:refs/land/main")
    assert code == 0 and b"p.txt" in kit.again().files(), said


def test_push_options_say_what_is_on_purpose(kit: Kit, tmp_path: Path) -> None:
    person = clone(kit, tmp_path / "clone")
    git(person, "rm", "-q", "-r", "d")
    commit(person, "p.txt", "p\n")
    code, said = git(person, "push", "origin", "HEAD:refs/land/main")
    assert code and "-o allow-mass-delete" in said
    assert git(person, "push", "-o", "allow-mass-delete", "origin", "HEAD:refs/land/main")[0] == 0
    assert set(kit.files()) == {b"a.txt", b"p.txt"}
    assert git(person, "push", "origin", "HEAD:refs/land/main")[0] == 0


def test_many_push_at_once_beside_collections_and_each_land_is_there_once(kit: Kit, tmp_path: Path) -> None:
    """Half of them land, half push to main by compare-and-swap and rebase until they are through."""
    people = [clone(kit, tmp_path / f"p{n}") for n in range(20 if FULL else 10)]
    mine = [commit(folder, f"f{n}.txt", f"{n}\n") for n, folder in enumerate(people)]
    failed: list[str] = []
    over = threading.Event()

    def work(number: int) -> None:
        folder = people[number]
        for _ in range(60):
            if number % 2:
                code, said = git(folder, "push", "origin", "HEAD:refs/land/main")
            else:
                code, said = git(folder, "push", "origin", "HEAD:main")
            if code == 0:
                return
            if not any(word in said for word in ("stale info", "fetch first", "non-fast-forward")):
                failed.append(said)
                return
            git(folder, "pull", "-q", "--rebase", "origin", "main")
        failed.append(f"{number} never came through")

    def collect() -> None:
        while not over.is_set():
            code, envelope = rw(kit.root, "gc")
            if code not in (0, 6):
                failed.append(str(envelope))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(people))]
    collector = threading.Thread(target=collect)
    for one in (collector, *threads):
        one.start()
    for one in threads:
        one.join()
    over.set()
    collector.join()
    assert not failed, "\n".join(failed)
    assert {f"f{n}.txt".encode() for n in range(len(people))} <= set(kit.files())
    assert all(changes_on_main(kit).count(mine[n]) == 1 for n in range(1, len(people), 2))
    titles = kit.stock("log", "--format=%s", "main").split("\n")
    assert all(titles.count(f"f{n}.txt") == 1 for n in range(len(people)))
    whole(kit)


def test_many_refs_of_one_push_are_one_operation(kit: Kit, tmp_path: Path) -> None:
    person = clone(kit, tmp_path / "clone")
    before = kit.store.last_op()
    pairs = [f"HEAD:refs/heads/b{n}" for n in range(300)]
    code, said = git(person, "push", "-q", "origin", *pairs)
    assert code == 0 and len(kit.store.refs("refs/heads/b")) == 300 and kit.store.last_op() == before + 1, said
    new = commit(person, "p.txt", "p\n")
    # one of them can't be a branch beside another, one would lose history: the rest moves
    code, said = git(
        person, "push", "origin", "HEAD:b1", "HEAD:refs/heads/b2/x", ":b3", "HEAD:b4", "HEAD:refs/land/main"
    )
    assert code and kit.main() != new and b"p.txt" in kit.files()
    assert [kit.store.ref(f"refs/heads/{name}") == new for name in ("b1", "b2/x", "b3", "b4")] == [
        True,
        False,
        False,
        True,
    ]
    kit.fsck()


def test_names_of_refs_are_bytes_in_any_locale(kit: Kit, tmp_path: Path) -> None:
    person = clone(kit, tmp_path / "clone")
    name = os.fsdecode(b"refs/heads/caf\xe9")
    code, said = git(person, "push", "origin", f"HEAD:{name}", PYTHONIOENCODING="utf-8:strict")
    assert "Traceback" not in said and "Unicode" not in said
    assert code and "not UTF-8" in said and len(kit.store.refs()) == 1
    for ref in ("refs/land/caf\xe9", os.fsdecode(b"refs/land/\xff")):
        code, said = git(person, "push", "origin", f"HEAD:{ref}")
        assert code and "Traceback" not in said and ("no branch" in said or "E_INVALID" in said), said
    assert git(person, "push", "origin", "HEAD:refs/land/main")[0] == 0


def test_huge_and_many_push_options(kit: Kit, tmp_path: Path) -> None:
    person = clone(kit, tmp_path / "clone")
    new = commit(person, "p.txt", "p\n")

    def push(options: list[str], name: str) -> tuple[int, str]:
        (person / "options").write_text("[push]\n" + "".join(f"pushOption = {one}\n" for one in options))
        return git(person, "-c", f"include.path={person / 'options'}", "push", "origin", f"HEAD:refs/heads/{name}")

    code, said = push(["x" * 60_000] * 60, "huge")
    assert code and "Traceback" not in said and kit.store.ref("refs/heads/huge") is None, said
    code, said = push([f"o{n}" for n in range(5_000)], "many")
    assert code == 0 and kit.store.ref("refs/heads/many") == new, said
    for agent in ("agent=/", "agent=a/b/c", "agent=a/b\x1b[31m", "agent=" + "x" * 5_000 + "/y"):
        code, said = git(person, "push", "-o", agent, "origin", "HEAD:refs/heads/odd")
        assert "Traceback" not in said and "\x1b[31m" not in said
        assert code and kit.store.ref("refs/heads/odd") is None, said


@pytest.mark.parametrize(
    "data", [b"zzzz", b"+00a", b"0x0f", b" 00a", b"0002", b"0003", b"00", b"0010short", b"ffff", b"-001"]
)
def test_what_is_no_packet_line_is_refused(kit: Kit, data: bytes) -> None:
    with pytest.raises(InvalidError):
        list(receiving.packets(BytesIO(data)))
    start = packet(b"version=1\0push-options atomic\n") + FLUSH
    for before in (b"", start):
        done = subprocess.run([sys.executable, "-m", "ropewalk.cli.receive", "proc-receive"], input=before + data,
                              env=child_env(), cwd=kit.repo, capture_output=True, timeout=60)  # fmt: skip
        assert done.returncode == 1 and b"E_INVALID" in done.stderr and b"Traceback" not in done.stderr
    assert kit.store.refs() == [("refs/heads/main", kit.main())]


@pytest.mark.parametrize(
    "line", [b"x", b"%s refs/heads/x", b"%s %s", b"%s zz refs/heads/x", b"%s %s refs/heads/a..b", b"%s %s HEAD",
             b"%s %s refs/heads/x\0y"]
)  # fmt: skip
def test_a_command_that_git_would_not_send_moves_nothing(kit: Kit, line: bytes) -> None:
    oid = kit.main().encode()
    line = line.replace(b"%s", b"0" * 40, 1).replace(b"%s", oid, 1)
    data = packet(b"version=1\0push-options atomic\n") + FLUSH + packet(line + b"\n") + FLUSH + FLUSH
    done = subprocess.run([sys.executable, "-m", "ropewalk.cli.receive", "proc-receive"], input=data, env=child_env(),
                          cwd=kit.repo, capture_output=True, timeout=60)  # fmt: skip
    assert b"Traceback" not in done.stderr
    assert done.returncode == 1 or b"ng " in done.stdout, done
    assert kit.store.refs() == [("refs/heads/main", kit.main())]
