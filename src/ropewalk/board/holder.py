"""Holders: which process holds a claim, and whether it lives, as far as this host can tell."""

from __future__ import annotations

import os
import re
from functools import cache

from ropewalk.core import clock


@cache
def host_id() -> str:
    """Gives an id of this machine, or of this container: a hash of what the kernel and the system say of it."""
    from hashlib import sha256

    said = b""
    for path in ("/etc/machine-id", "/proc/sys/kernel/hostname"):
        try:
            with open(path, "rb") as file:
                said += file.read(256)
        except OSError:
            continue
    try:
        said += os.readlink("/proc/self/ns/pid").encode()
    except OSError:
        said += os.uname().nodename.encode()
    return sha256(said).hexdigest()[:12]


def started(pid: int) -> str:
    """Gives when a process started, in ticks since boot; empty when there is none, or it is dead and not reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if words[0] in (b"Z", b"X") else words[19].decode("ascii")


def mine(pid: int | None = None) -> str:
    """Gives how a claim names a process: `HOST/BOOT/PID/START`."""
    pid = os.getpid() if pid is None else pid
    return f"{host_id()}/{clock.boot_id()[:13]}/{pid}/{started(pid)}"


def is_dead(host: str) -> bool | None:
    """Says whether a holder is dead; None when it is on another host, or did not say where it is."""
    parts = host.split("/")
    if len(parts) != 4 or parts[0] != host_id() or not re.fullmatch("[0-9]{1,10}", parts[2]):
        return None
    if parts[1] != clock.boot_id()[:13]:
        return True
    return started(int(parts[2])) != parts[3]


def died_here(host: str) -> bool:
    """Says whether a holder was a process of this host since its boot, and is dead."""
    return bool(is_dead(host)) and host.split("/")[1] == clock.boot_id()[:13]
