"""Setup: what a workspace needs beside its tree, as the operator's `ropewalk.toml` says.

Copies and links come from the operator's own folder and are never part of what lands. The setup's command is a
gate: a workspace whose setup failed is not ready, and making it again runs it again.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Mapping

import msgspec

from ropewalk.core.errors import CheckFailedError, os_error
from ropewalk.core.policy import Policy, WorkspacePolicy, read
from ropewalk.core.policy import operator_folder as operator_folder
from ropewalk.core.process import ChildTimeout, clean_env, run
from ropewalk.store.changes import digest
from ropewalk.store.store import Store
from ropewalk.workspace import state
from ropewalk.workspace.state import Workspace

FIRST_PORT, LAST_PORT = 20_000, 60_000
_TAIL = 4000


def policy_of(store: Store) -> Policy:
    """Gives the policy for a store: of the folder that it belongs to, else of its own."""
    return read(operator_folder(store.layout.root))


def mark(policy: WorkspacePolicy) -> str:
    """Gives a hash of what a policy puts beside a tree; empty when that is nothing."""
    return "" if policy == WorkspacePolicy() else digest(policy).hex()[:16]


def furnish(folder: str, policy: Policy, names: Collection[str] | None = None) -> tuple[list[str], list[str]]:
    """Copies and links into a checked out tree what the policy names; gives (paths put there, warnings).

    A path that is there already is left as it is, because the tree's own file counts; with `names`, those that are
    to be put there are already known, and what a killed setup left of them is replaced. Files keep their modes,
    and a file system that can share blocks shares them.
    """
    put: list[str] = []
    warnings: list[str] = []
    wanted = [(name, True) for name in policy.workspace.copy] + [(name, False) for name in policy.workspace.link]
    for name, copied in wanted:
        source, target = os.path.join(policy.folder, name), os.path.join(folder, name)
        if names is not None and name not in names:
            continue
        if not os.path.lexists(source):
            warnings.append(f"{name} is not in {policy.folder}, so it is not in the workspace either")
        elif os.path.lexists(target) and names is None:
            warnings.append(f"{name} is in the tree, so the operator's is left out")
        else:
            try:
                if os.path.lexists(target):
                    _remove(target)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                if copied:
                    copy(source, target)
                else:
                    os.symlink(os.path.abspath(source), target)
            except OSError as error:
                raise os_error(error, f"putting {name} into the workspace") from None
            put.append(name)
    return put, warnings


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def copy(source: str, target: str) -> None:
    """Copies a file, link or folder with modes and times; blocks are shared where the file system can."""
    found = os.lstat(source)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(found.st_mode):
        os.mkdir(target)
        for name in os.listdir(source):
            copy(os.path.join(source, name), os.path.join(target, name))
        shutil.copystat(source, target)
    elif stat.S_ISREG(found.st_mode):
        copy_file(source, target)
        shutil.copystat(source, target)


def copy_file(source: str, target: str) -> None:
    """Copies a file's bytes, or shares them."""
    import fcntl

    share = 0x40049409  # FICLONE
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            fcntl.ioctl(new.fileno(), share, old.fileno())
        except OSError:
            shutil.copyfileobj(old, new, 1 << 20)


def variables(store: Store, ws: Workspace, policy: WorkspacePolicy) -> dict[str, str]:
    """Gives the variables that tell a process in a workspace where it is, with those of the policy."""
    found = {
        **policy.env,
        "ROPEWALK_STORE": store.layout.root,
        "ROPEWALK_AGENT": ws.agent,
        "ROPEWALK_WORKSPACE": ws.name,
    }
    if ws.note.port is not None:
        found |= {"ROPEWALK_PORT_BASE": str(ws.note.port), "ROPEWALK_PORTS": str(ws.note.ports)}
    return found


def with_ports(store: Store, ws: Workspace, ports: int) -> Workspace:
    """Gives a workspace a block of ports that no other has, and saves it."""
    if not ports or ws.note.port is not None:
        return ws
    with store.transaction() as tx:
        taken = sorted(
            (other.note.port, other.note.port + other.note.ports)
            for other in state.listed(store)
            if other.note.port is not None
        )
        first = FIRST_PORT
        for start, end in taken:
            if first + ports <= start:
                break
            first = max(first, end)
        if first + ports > LAST_PORT:
            return ws
        note = msgspec.structs.replace(ws.note, port=first, ports=ports)
        return state.write(tx, msgspec.structs.replace(ws, note=note))


def run_gate(folder: str, policy: WorkspacePolicy, variables: Mapping[str, str], log: str) -> None:
    """Runs the setup's command in a folder, its output in the file `log`; `E_CHECK_FAILED` when it does not pass."""
    if not policy.setup:
        return
    env = {k: v for k, v in clean_env().items() if not k.startswith("ROPEWALK_")} | dict(variables)
    try:
        done = run(["/bin/sh", "-c", policy.setup], env=env, cwd=folder, timeout=policy.setup_seconds)
        code, output = done.code, done.out + done.err
    except ChildTimeout:
        code, output = 124, b""
    try:
        with open(log, "wb") as file:
            file.write(output)
    except OSError as error:
        raise os_error(error, "writing the setup's log") from None
    if code:
        how = f"did not end within {policy.setup_seconds:g} s" if code == 124 and not output else f"ended with {code}"
        raise CheckFailedError(
            f"the workspace's setup {how}", hint="mend it in ropewalk.toml, then make the workspace again",
            reason="setup", command=policy.setup, rc=code, output=output[-_TAIL:].decode("utf-8", "replace"), log=log,
        )  # fmt: skip
