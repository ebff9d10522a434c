"""Cages: what is in them, what is refused there, who owns what, and that a store's objects can be read."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lane import cagekit
from tests.lane.cagekit import IS_ROOT, caged, needed

from ropewalk.core.errors import CageUnavailableError, WorkspaceGoneError
from ropewalk.lane.cage import give, landlock, levels, seccomp, selftest
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.cage.room import UID, Level
from storekit import Kit, put

CAGED: list[Level] = ["full", "files"]
OWNER = UID if IS_ROOT else None
as_root = pytest.mark.skipif(not IS_ROOT, reason="another user's lanes need root")


@pytest.fixture
def base() -> Iterator[Path]:
    yield from cagekit.open_folder()


@pytest.fixture(params=CAGED)
def level(request: pytest.FixtureRequest) -> Level:
    needed(request.param)
    found: Level = request.param
    return found


# the filter


def judged(code: bytes, arch: int, number: int, arguments: list[int]) -> int:
    """Gives what a filter answers to a call, by running its program: 0 for allowed, else the error."""
    data = number.to_bytes(4, "little") + arch.to_bytes(4, "little") + bytes(8)
    data += b"".join(a.to_bytes(8, "little") for a in arguments + [0] * (6 - len(arguments)))
    at = held = 0
    while True:
        op, yes, no = code[at] | code[at + 1] << 8, code[at + 2], code[at + 3]
        value = int.from_bytes(code[at + 4 : at + 8], "little")
        at += 8
        if op == 0x20:
            held = int.from_bytes(data[value : value + 4], "little")
        elif op == 0x54:
            held &= value
        elif op == 0x15:
            at += 8 * (yes if held == value else no)
        elif op == 0x35:
            at += 8 * (yes if held >= value else no)
        else:
            assert op == 0x06, op
            return 0 if value == 0x7FFF0000 else value & 0xFFFF


X86, ARM = 0xC000003E, 0xC00000B7


@pytest.mark.parametrize(
    ("machine", "arch", "numbers"),
    [("x86_64", X86, (16, 272, 56, 435, 425, 0)), ("aarch64", ARM, (29, 97, 220, 435, 425, 63))],
)
def test_G20_the_filter_answers_as_its_rules_say(machine: str, arch: int, numbers: tuple[int, ...]) -> None:
    ioctl, unshare, clone, clone3, ring, read = numbers
    code = seccomp.program(seccomp.rules(), machine)
    assert len(code) < 8 * 4096
    for number, arguments, answer in (
        (ioctl, [0, 0x5412], seccomp.EPERM),
        (ioctl, [0, 0x5412 | 1 << 32], seccomp.EPERM),  # the kernel looks at the low half alone
        (ioctl, [0, 0x5413], 0),
        (unshare, [0x10000000 | 0x20000], seccomp.EPERM),
        (unshare, [0x20000], 0),
        (clone, [0x10000011], seccomp.EPERM),
        (clone, [0x11], 0),
        (clone3, [], seccomp.ENOSYS),
        (ring, [], seccomp.ENOSYS),
        (read, [], 0),
    ):
        assert judged(code, arch, number, arguments) == answer, (number, arguments)
    assert judged(code, 0x40000003, 11, []) == seccomp.ENOSYS
    assert judged(seccomp.program(seccomp.rules(namespaces=True), machine), arch, unshare, [0x10000000]) == 0
    if machine == "x86_64":
        assert judged(code, arch, 0x40000000 | 16, []) == seccomp.ENOSYS


def test_sockets_at_level_files_are_tcp_that_landlock_can_judge() -> None:
    code = seccomp.program(seccomp.rules(sockets="gateway"), "x86_64")
    stream, datagram, unix, inet, netlink, packet = 1 | 0o2000000, 2, 1, 2, 16, 17
    for arguments, allowed in (
        ([inet, stream, 0], True),
        ([inet, stream, 6], True),
        ([10, 1, 6], True),
        ([inet, 1, 262], False),  # what Landlock does not judge: several paths,
        ([inet, datagram, 0], False),  # datagrams,
        ([unix, 1, 0], False),  # and sockets in folders
        ([netlink, 3, 0], True),
        ([netlink, 3, 12], False),
        ([packet, 3, 0], False),
        ([40, 1, 0], False),
    ):
        assert (judged(code, X86, 41, arguments) == 0) == allowed, arguments
    assert judged(code, X86, 44, [3, 0, 0, 0x20000000]) == seccomp.EOPNOTSUPP
    none = seccomp.program(seccomp.rules(sockets="none"), "x86_64")
    assert judged(none, X86, 41, [inet, 1, 0]) == seccomp.EACCES
    everything = seccomp.program(seccomp.rules(sockets="open"), "x86_64")
    assert judged(everything, X86, 41, [inet, 2, 0]) == 0
    assert judged(everything, X86, 41, [unix, 1, 0]) == seccomp.EACCES


def test_a_machine_without_a_filter_is_refused() -> None:
    with pytest.raises(OSError, match="riscv64"):
        seccomp.program(seccomp.rules(), "riscv64")


CALLS = """
import ctypes, fcntl, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    ctypes.set_errno(0)
    got = libc.syscall(*words)
    return 0 if got >= 0 else ctypes.get_errno()
x86 = os.uname().machine == "x86_64"
print("keyctl", call(250 if x86 else 219, 0, -3, 0))
print("add_key", call(248 if x86 else 217, 0, 0, 0, 0, 0))
print("bpf", call(321 if x86 else 280, 0, 0, 0))
print("perf", call(298 if x86 else 241, 0, 0, -1, -1, 0))
print("io_uring", call(425, 1, 0))
print("userfaultfd", call(323 if x86 else 282, 0))
print("clone3", call(435, 0, 0))
print("newuser", call(272 if x86 else 97, 0x10000000))
try:
    fcntl.ioctl(0, 0x5412, b"x")
    print("tiocsti", 0)
except OSError as error:
    print("tiocsti", error.errno)
try:
    socket.socket(40, socket.SOCK_STREAM)
    print("vsock", 0)
except OSError as error:
    print("vsock", error.errno)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print("caps", *(int(status[f"Cap{name}"], 16) for name in ("Inh", "Prm", "Eff", "Amb")))
print("nnp", status["NoNewPrivs"].strip(), status["Seccomp"].strip())
"""


def test_G20_inside_a_cage_the_kernel_refuses(base: Path, level: Level) -> None:
    done = caged(level, cagekit.room(base, OWNER), ["/usr/bin/python3", "-c", CALLS])
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    for name in ("keyctl", "add_key", "bpf", "perf", "userfaultfd", "newuser", "tiocsti"):
        assert said[name] == str(seccomp.EPERM), (name, said)
    assert said["io_uring"] == said["clone3"] == str(seccomp.ENOSYS)
    assert said["vsock"] == str(seccomp.EAFNOSUPPORT) or level == "files"
    assert said["caps"] == "0 0 0 0" and said["nnp"] == "1 2"


def test_G20_an_adapter_that_sandboxes_itself_may_make_namespaces(base: Path) -> None:
    needed("full")
    where = cagekit.room(base, OWNER)
    assert caged("full", where, ["unshare", "-U", "true"]).returncode != 0
    assert caged("full", where._replace(own_sandbox=True), ["unshare", "-U", "true"]).returncode == 0


# what is inside


def test_G1_G19_a_full_cage_has_the_same_paths_for_every_lane(base: Path) -> None:
    needed("full")
    where = cagekit.room(base, OWNER)
    done = caged("full", where, ["/bin/sh", "-c", "pwd; echo $HOME $TMPDIR; ls -d / /*; ls /etc; node() { :; }; :"])
    lines = done.stdout.splitlines()
    assert lines[:2] == ["/work/proj", "/lane /tmp"], done
    assert {"/etc", "/lane", "/objects", "/work", "/tmp", "/proc", "/dev", "/usr", "/run", "/var"} <= set(lines)
    assert not {"/root", "/home", "/srv", "/boot"} & set(lines)
    assert not {"shadow", "gshadow", "ssh", "sudoers", "machine-id"} & set(lines)
    assert "passwd" in lines


def test_G18_what_wants_a_tmp_a_var_tmp_or_a_run_has_one(base: Path) -> None:
    needed("full")
    where = cagekit.room(base, OWNER)
    script = "mktemp -p /tmp && mktemp -p /var/tmp && mktemp -p $XDG_RUNTIME_DIR && ! touch /etc/x /usr/x /x 2>&-"
    done = caged("full", where, ["/bin/sh", "-c", script])
    assert done.returncode == 0, done
    assert len(os.listdir(base / "tmp")) == 2


def test_devflock_C7_what_is_secret_is_not_there_to_be_read(base: Path, level: Level) -> None:
    """Homes with logins, other lanes' trees and streams, the store, the gateway: any user may read them here."""
    names = ("home/.claude/.credentials.json", "home/.ssh/id", "config/endpoints.toml", "gateway/settings.json",
             "lane-2/stdout", "ws/other/src/a.py", "store/store.db")  # fmt: skip
    places = [base / "elsewhere" / name for name in names]
    for place in places:
        place.parent.mkdir(parents=True)
        place.write_text("hunter2\n")
    tries = """
import sys
got = []
for path in sys.argv[1:]:
    for way in (path, f"/proc/self/root{path}", f"../../../../../../../..{path}"):
        try:
            got.append(open(way).read())
        except OSError:
            pass
print(len(got))
"""
    words = ["/usr/bin/python3", "-c", tries, *map(str, places)]
    done = caged(level, cagekit.room(base, OWNER), words)
    assert done.stdout == "0\n", done
    bare = subprocess.run(words, cwd="/", capture_output=True, text=True, check=True)
    assert bare.stdout == f"{3 * len(places)}\n", "without a cage they are read"


def test_a_cage_passes_on_how_its_agent_ended(base: Path, level: Level) -> None:
    where = cagekit.room(base, OWNER)
    assert caged(level, where, ["/bin/sh", "-c", "exit 7"]).returncode == 7
    assert caged(level, where, ["/bin/sh", "-c", "kill -9 $$"]).returncode in (137, -9)
    missing = caged(level, where, ["/nothing"])
    assert missing.returncode == 127 and "/nothing can't be started" in missing.stderr


def test_files_of_an_agent_have_usual_modes_under_any_umask(base: Path, level: Level) -> None:
    where = cagekit.room(base, OWNER)
    old = os.umask(0o077)
    try:
        assert caged(level, where, ["/bin/sh", "-c", "mkdir d; echo x > d/f"]).returncode == 0
    finally:
        os.umask(old)
    assert stat.S_IMODE((base / "work" / "d" / "f").stat().st_mode) == 0o644
    assert (base / "work" / "d" / "f").stat().st_uid == (UID if IS_ROOT else os.getuid())


def test_tools_of_a_home_are_shown_without_the_rest_of_it(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of programs in a home, or one that is not there, does not show the home: logins are in it."""
    import pwd

    home = base / "home"
    for name in ("bin", ".local/bin", ".local/lib", ".local/share/app", ".cargo/bin", "node/bin"):
        (home / name).mkdir(parents=True)
    (home / "tool").write_text("#!/bin/sh\n")
    (home / "tool").chmod(0o755)
    person = pwd.struct_passwd(("p", "x", 1, 1, "", str(home), ""))
    monkeypatch.setattr(pwd, "getpwall", lambda: [person])
    for search, expected in (
        ("bin", ["bin"]),
        ("gone/bin", []),
        ("gone", []),
        ("", []),
        (".local/bin", [".local/bin", ".local/lib"]),
        (".cargo/bin", [".cargo/bin"]),
        ("node/bin", ["node"]),
    ):
        found = rooms.tool_folders("no-such-program", str(home / search))
        assert found == [str(home / name) for name in expected], search
    assert rooms.tool_folders(str(home / "tool"), "/usr/bin") == [str(home / "tool")]


# levels


def test_devflock_C8_what_is_missing_is_an_error_with_the_line_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels.bubble, "program", _no_program)
    assert "bubblewrap" in levels.available()["full"]
    with pytest.raises(CageUnavailableError) as caught:
        levels.choose("full")
    assert "apt-get install bubblewrap" in caught.value.hint
    assert "--cage" in caught.value.hint
    assert levels.choose("none") == "none"


def _no_program() -> str:
    raise CageUnavailableError("bubblewrap is not installed", level="full")


def test_level_files_names_its_abi() -> None:
    assert levels.named("files") == f"files (Landlock ABI {landlock.abi()})"
    assert levels.named("full") == "full"


# the self-test


def test_G7_G8_G9_the_self_test_passes_and_is_kept(base: Path, level: Level) -> None:
    found = selftest.test(level, str(base), OWNER)
    assert found == selftest.Tested([], {})
    selftest.ensure(level, str(base), OWNER)
    kept = [name for name in os.listdir(base) if name.startswith("cage-")]
    assert len(kept) == 1 and not [name for name in os.listdir(base) if name.startswith("selftest-")]
    before = (base / kept[0]).stat().st_mtime_ns
    selftest.ensure(level, str(base), OWNER)
    assert (base / kept[0]).stat().st_mtime_ns == before


def test_devflock_C8_the_self_test_sees_a_cage_that_does_not_hold(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "argv", lambda level, room, words, env, port=0: list(words))
    found = selftest.test("files", str(base), None)
    assert {"write", "make", "rename", "connect", "abstract"} <= set(found.out)
    with pytest.raises(CageUnavailableError) as caught:
        selftest.ensure("files", str(base), None)
    assert "from inside one could" in caught.value.message and not list(base.glob("cage-*"))


@as_root
def test_G7_the_self_test_sees_that_the_lanes_user_gets_nowhere(base: Path) -> None:
    needed("files")
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    found = selftest.test("files", str(closed), UID)
    assert found.missing and not found.out


# owners


@as_root
def test_G8_a_tree_is_given_without_following_links(base: Path) -> None:
    tree, outside = base / "tree", base / "outside"
    (tree / "a" / "b").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("out")
    (outside / "shared").write_text("shared")
    (tree / "a" / "b" / "file").write_text("in")
    (tree / "link").symlink_to(outside)
    (tree / "a" / "file-link").symlink_to(outside / "file")
    os.link(outside / "shared", tree / "hard")
    os.link(tree / "a" / "b" / "file", tree / "twice")
    done = give.give(str(tree), UID)
    for place, folders, names in os.walk(tree):
        for name in (*folders, *names, "."):
            assert os.lstat(os.path.join(place, name)).st_uid == UID
    for path in (outside, outside / "file", outside / "shared"):
        assert path.lstat().st_uid == 0
    assert (done.copies, (tree / "hard").read_text(), (tree / "hard").stat().st_nlink) == (1, "shared", 1)
    assert (tree / "twice").stat().st_ino == (tree / "a" / "b" / "file").stat().st_ino
    assert give.give(str(tree), UID) == give.Given(0, 0)
    (tree / "ours").write_text("of root, and stays so")
    give.take_back(str(tree), UID)
    assert {os.lstat(os.path.join(p, n)).st_uid for p, f, names in os.walk(tree) for n in (*f, *names)} == {0}
    with pytest.raises(WorkspaceGoneError):
        give.give(str(tree / "link"), UID)


@as_root
def test_G7_objects_made_under_a_closed_umask_are_read_by_the_lanes_user(base: Path) -> None:
    needed("full")
    old = os.umask(0o077)
    try:
        kit = Kit(str(base / "store"))
        kit.first(put("a", "one\n"))
        kit.store.expose()
        objects = os.path.join(kit.repo, "objects")
        assert give.open_objects(objects)
        kit.change(put("b", "two\n"))  # what is made later is open as well
        kit.store.expose()
        work = base / "work"
        subprocess.run(["git", "init", "-q", str(work)], check=True)
        (work / ".git" / "objects" / "info" / "alternates").write_text(objects + "\n")
        subprocess.run(["git", "-C", str(work), "update-ref", "HEAD", kit.main()], check=True)
        where = cagekit.room(base, UID)._replace(objects=objects)
        script = "git log --format=%s && git reset -q --hard && git stash list && git commit -qam x --allow-empty"
        done = caged(
            "full", where, ["/bin/sh", "-c", f"{script} && git gc -q && cat a b && git log -1 --format='%an %ae'"]
        )
    finally:
        os.umask(old)
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[-3:] == ["one", "two", "cage/test test@cage.ropewalk.local"]
    assert stat.S_IMODE(os.stat(kit.root).st_mode) == 0o700, "only the objects are open, not what is above"
    kit.fsck()
    kit.close()


def test_the_bridges_port_is_the_only_one_at_level_files(base: Path) -> None:
    needed("files")
    if landlock.abi() < 4:
        pytest.skip("Landlock knows no TCP here")
    where = cagekit.room(base, OWNER, network="gateway")
    script = (
        "import socket, sys\n"
        "for port in sys.argv[1:]:\n"
        "    try:\n        socket.create_connection(('127.0.0.1', int(port)), 5).close(); print('open')\n"
        "    except OSError as error: print(error.errno)\n"
        "one = socket.socket(); one.bind(('127.0.0.1', 0))\n"
        "try:\n    socket.socket().bind(('127.0.0.1', 61999)); print('bound')\n"
        "except OSError as error: print(error.errno)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as mine, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [str(one.getsockname()[1]) for one in (mine, other)]
        done = caged("files", where, ["/usr/bin/python3", "-c", script, *ports], port=int(ports[0]))
    assert done.stdout.split() == ["open", "13", "13"], done


def test_older_kernels_are_held_by_the_filter(base: Path) -> None:
    """With Landlock as it was first, files outside can't be cut short either."""
    needed("files")
    where = cagekit.room(base, OWNER)
    outside = base / "outside"
    outside.write_text("whole")
    outside.chmod(0o666)
    script = (
        "import os, sys\n"
        "for flags in (os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_TRUNC):\n"
        "    try:\n        os.open(sys.argv[1], flags); print('cut')\n"
        "    except OSError as error: print(error.errno)\n"
        "try:\n    os.truncate(sys.argv[1], 0); print('cut')\n"
        "except OSError as error: print(error.errno)\n"
        "open('mine', 'w').write('abc'); open('mine', 'w').write('d')\n"
        "file = open('mine', 'r+'); file.truncate(0); print('well')\n"
    )
    for abi in (1, 2, 3, 5, 6):
        env = rooms.environment(where, "files", {}, "/usr/bin:/bin")
        line = landlock.argv(where, ["/usr/bin/python3", "-c", script, str(outside)], most=abi)
        done = subprocess.run(line, env=env, cwd=where.workspace, capture_output=True, text=True, check=False)
        assert done.stdout.split() == ["13", "13", "13", "well"], (abi, done)
        assert outside.read_text() == "whole"


def test_landlock_is_there_where_the_kernel_says_so() -> None:
    found = int(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1))
    assert landlock.abi() == max(found, 0)
