"""Attempts to get out of a cage, made inside it: prints what came of each, an empty text where one succeeded.

It runs on any Python, as the agent would: `escapes.py OUTSIDE SECRET PORT ABSTRACT SOCKET VICTIM`.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable


def attempt(what: Callable[[], object]) -> str:
    """Gives what an attempt was refused with; empty when it succeeded."""
    try:
        what()
    except (OSError, subprocess.SubprocessError, AssertionError) as error:
        return str(error) or type(error).__name__
    return ""


def append(path: str) -> None:
    with open(path, "a") as file:
        file.write("escaped")


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def sh(line: str) -> None:
    subprocess.run(["/bin/sh", "-ec", line], check=True, capture_output=True, timeout=20, stdin=subprocess.DEVNULL)


def syscall(number: int, *words: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), *words) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def connect(family: int, where: object) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as made:
        made.settimeout(3)
        made.connect(where)  # type: ignore[arg-type]


def first_packet(port: int) -> None:
    """Sends with the first packet, which is no connect."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
        made.sendto(b"x", 0x20000000, ("127.0.0.1", port))


def several_paths(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as made:
        made.settimeout(3)
        made.connect(("127.0.0.1", port))


def through_link(outside: str, name: str) -> None:
    os.symlink(outside, name)
    append(os.path.join(name, "canary"))


def through_hard_link(outside: str) -> None:
    os.link(os.path.join(outside, "canary"), "hard")
    append("hard")


def through_changing_link(outside: str) -> None:
    """Writes by a name that is now a folder of its own and now a link to the outside, whichever the writer meets."""
    os.makedirs("own", exist_ok=True)
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            for target in ("own", outside):
                os.symlink(target, "turning")
                os.replace("turning", "turns")

    changing = threading.Thread(target=change)
    os.symlink("own", "turns")
    changing.start()
    written = 0
    try:
        for _ in range(2000):
            try:
                append("turns/canary")
                written += 1
            except OSError:
                continue
    finally:
        over.set()
        changing.join()
    with open("own/canary") as file:
        if file.read() == "escaped" * written:
            raise OSError("all that was written is in its own folder")


def through_bind(outside: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs("bound", exist_ok=True)
    if libc.mount(outside.encode(), b"bound", None, 4096, None) < 0:
        raise OSError(ctypes.get_errno(), "mount")
    append("bound/canary")


def through_chroot(outside: str) -> None:
    os.chroot(outside)
    append("/canary")


def through_processes(what: str, outside: str) -> None:
    """Looks for the outside in what other processes see."""
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        if what == "root":
            places = [f"/proc/{pid}/root{outside}/canary", f"/proc/{pid}/cwd/../outside/canary"]
        elif what == "fd":
            try:
                places = [f"/proc/{pid}/fd/{fd}/canary" for fd in os.listdir(f"/proc/{pid}/fd")]
            except OSError:
                continue
        else:
            places = []
            try:
                if b"RWTEST_VICTIM=1" in read(f"/proc/{pid}/environ"):
                    return
            except OSError:
                continue
        for place in places:
            try:
                append(place)
            except OSError:
                continue
            return
    raise OSError("nobody's")


def attach(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, None, None) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    libc.ptrace(17, pid, None, None)


def leave_behind(line: str) -> None:
    """Starts what outlives its parent, in a session of its own, and writes a moment later."""
    subprocess.Popen(
        ["setsid", "/bin/sh", "-c", f"sleep 0.3; {line}; sleep 300"], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def in_namespace(outside: str) -> None:
    sh(f"unshare -Urm sh -ec 'mount -t tmpfs none /mnt || true; echo escaped >> {outside}/canary'")


def plant(outside: str) -> None:
    """Leaves what our own git would run, if it ran anything of an agent's."""
    line = f"#!/bin/sh\necho escaped >> {outside}/canary\n"
    os.makedirs(".git/hooks", exist_ok=True)
    for name in ("pre-commit", "post-checkout", "post-commit", "post-index-change", "reference-transaction", "monitor"):
        with open(f".git/hooks/{name}", "w") as file:
            file.write(line)
        os.chmod(f".git/hooks/{name}", 0o755)
    hook = os.path.abspath(".git/hooks/monitor")
    with open(".git/config", "a") as file:
        file.write(
            f'[core]\n\tfsmonitor = {hook}\n\tpager = {hook}\n[filter "x"]\n\tclean = {hook}\n\tsmudge = {hook}\n'
        )
        file.write(f'[diff]\n\texternal = {hook}\n[include]\n\tpath = {outside}/canary\n[alias]\n\tlog = "!{hook}"\n')
    for name, text in (
        (".gitattributes", "* filter=x diff=x\n"),
        (".mcp.json", json.dumps({"mcpServers": {"x": {"command": hook}}})),
        (".envrc", line),
    ):
        with open(name, "w") as file:
            file.write(text)
    os.makedirs(".claude", exist_ok=True)
    hooks = {"SessionStart": [{"hooks": [{"type": "command", "command": hook}]}]}
    with open(".claude/settings.json", "w") as file:
        json.dump({"hooks": hooks, "enableAllProjectMcpServers": True}, file)


def main(argv: list[str]) -> int:
    outside, secret, port, name, path, victim = argv[0], argv[1], int(argv[2]), argv[3], argv[4], int(argv[5])
    canary = f"{outside}/canary"
    x86 = os.uname().machine == "x86_64"
    leave_behind(f"echo escaped >> {canary}")
    tries: dict[str, Callable[[], object]] = {
        "write": lambda: append(canary),
        "make": lambda: append(f"{outside}/new"),
        "folder": lambda: os.mkdir(f"{outside}/folder"),
        "truncate": lambda: os.truncate(canary, 0),
        "unlink": lambda: os.unlink(canary),
        "remove tree": lambda: shutil.rmtree(f"{outside}/checkout"),
        "symlink": lambda: through_link(outside, "link"),
        "relative": lambda: append("../" * 20 + canary.lstrip("/")),
        "changing link": lambda: through_changing_link(outside),
        "hardlink": lambda: through_hard_link(outside),
        "rename in": lambda: os.rename("mine", f"{outside}/mine"),
        "rename out": lambda: os.rename(canary, "taken"),
        "exchange": lambda: syscall(
            316 if x86 else 276, -100, canary.encode(), -100, b"mine", 2
        ),
        "shell": lambda: sh(f"echo escaped >> {canary}"),
        "cp": lambda: sh(f"cp mine {outside}/copied"),
        "git -C": lambda: sh(f"git -C {outside}/checkout commit --allow-empty -m escaped"),
        "git worktree": lambda: sh(f"git --git-dir={outside}/checkout/.git branch escaped"),
        "git init": lambda: sh(f"test -d {outside}; git init {outside}/made"),
        "background": lambda: sh(f"(echo escaped >> {canary}) & wait $!"),
        "setsid": lambda: sh(f"setsid -w sh -c 'echo escaped >> {canary}'"),
        "python": lambda: subprocess.run(
            [sys.executable, "-c", f"open({canary!r}, 'a').write('escaped')"], check=True, capture_output=True
        ),
        "/proc/*/root": lambda: through_processes("root", outside),
        "/proc/*/fd": lambda: through_processes("fd", outside),
        "/proc/*/environ": lambda: through_processes("environ", outside),
        "/proc/self/root": lambda: append(f"/proc/self/root{canary}"),
        "mount": lambda: through_bind(outside),
        "chroot": lambda: through_chroot(outside),
        "namespace": lambda: in_namespace(outside),
        "handle": lambda: syscall(304 if x86 else 265, -100, ctypes.create_string_buffer(128), 0),
        "ptrace": lambda: attach(victim),
        "signal": lambda: os.kill(victim, signal.SIGTERM),
        "signal all": lambda: os.killpg(victim, signal.SIGTERM),
        "parent's memory": lambda: append(f"/proc/{os.getppid()}/mem") if os.getppid() > 2 else append("/proc/1/mem"),
        "secret": lambda: read(secret),
        "secret by shell": lambda: sh(f"cat {secret}"),
        "secret by link": lambda: (os.symlink(secret, "secret"), read("secret")),
        "shadow": lambda: read("/etc/shadow"),
        "loopback": lambda: connect(socket.AF_INET, ("127.0.0.1", port)),
        "loopback 6": lambda: connect(socket.AF_INET6, ("::1", port)),
        "first packet": lambda: first_packet(port),
        "several paths": lambda: several_paths(port),
        "abstract socket": lambda: connect(socket.AF_UNIX, "\0" + name),
        "socket in a folder": lambda: connect(socket.AF_UNIX, path),
        "device": lambda: read("/dev/mem"),
        "sysctl": lambda: append("/proc/sys/kernel/hostname"),
        "sysrq": lambda: append("/proc/sysrq-trigger"),
        "core pattern": lambda: append("/proc/sys/kernel/core_pattern"),
    }  # fmt: skip
    with open("mine", "w") as file:
        file.write("mine")
    found = {name: attempt(what) for name, what in tries.items()}
    plant(outside)
    time.sleep(0.6)  # what was left behind has tried by now
    with open("made-inside", "w") as file:
        file.write("well")
    found_well = {"commit": attempt(lambda: sh("cat made-inside > copy && test -w ."))}
    sys.stdout.write(json.dumps({"tries": found, "well": found_well}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
