"""Real peers on this host: sshd with keys and a configuration of its own, lighttpd with `git http-backend`, and a line
that is cut or falls silent after so many bytes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin:" + os.environ["PATH"])
LIGHTTPD = shutil.which("lighttpd", path="/usr/sbin:/usr/local/sbin:/usr/bin:" + os.environ["PATH"])
SECRET = "correct horse"
NAMED_MAY = '{"can":["read","land"],"refs":["refs/heads/main"]}'
"""Is what the key `named` may do, whose holder is `team/ci`."""


def free_port() -> int:
    """Gives a port on which nothing listens."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _wait(port: int, child: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until a server takes connections; fails when it ends instead."""
    while True:
        assert child.poll() is None, log.read_text(errors="replace")
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=10):
            return


class Ssh(NamedTuple):
    """Is a running sshd: its port, and the clients' configurations by what they know and hold."""

    port: int
    folder: Path

    def url(self, path: Path | str, port: int | None = None) -> str:
        """Gives the URL of a repository."""
        return f"ssh://peer:{port or self.port}{path}"

    def command(self, key: str = "good", *, known: bool = True) -> str:
        """Gives the ssh of somebody with a key (`good`, `read`, `named`, `wrong`), who knows the host or does not."""
        words = ["ssh", "-F", str(self.folder / "client"), "-i", str(self.folder / key)]
        words += ["-o", f"UserKnownHostsFile={self.folder / ('known' if known else 'nobody')}"]
        return shlex.join(words)


@contextmanager
def sshd(folder: Path, env: dict[str, str], *, accept: str = "") -> Iterator[Ssh]:
    """Runs sshd for the user of the tests; what its sessions run has the environment given.

    `accept` names a variable of the client's that it takes over.
    """
    assert SSHD, "the tests need sshd (apt-get install openssh-server)"
    folder.mkdir(mode=0o700)
    for name in ("host", "good", "read", "named", "wrong"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shell = folder / "shell"
    given = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in env.items())
    shell.write_text(f'#!/bin/sh\n{given}\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    reading = folder / "reading"
    reading.write_text(
        f'#!/bin/sh\ncase "$SSH_ORIGINAL_COMMAND" in git-upload-pack*) exec {shell};; esac\n'
        "echo 'ERROR: Write access to this repository not granted: this key is read-only.' >&2\nexit 1\n"
    )
    for made in (shell, reading):
        made.chmod(0o755)
    good, read, name = ((folder / f"{one}.pub").read_text() for one in ("good", "read", "named"))
    fixed = f"ROPEWALK_PUSHER=team/ci ROPEWALK_RIGHTS='{NAMED_MAY}' exec {shell}".replace('"', '\\"')
    (folder / "keys").write_text(f'command="{shell}" {good}command="{reading}" {read}command="{fixed}" {name}')
    port = free_port()
    (folder / "known").write_text(
        f"[peer]:* {(folder / 'host.pub').read_text()}[127.0.0.1]:* {(folder / 'host.pub').read_text()}"
    )
    (folder / "nobody").write_text("")
    (folder / "client").write_text(
        f"Host peer\n  HostName 127.0.0.1\n  HostKeyAlias [peer]:1\n  User {_user()}\n  IdentitiesOnly yes\n"
        "  IdentityAgent none\n  GlobalKnownHostsFile /dev/null\n"
    )
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {folder / 'keys'}\nPermitRootLogin yes\nPasswordAuthentication no\nMaxStartups 100\n"
        # bash reads the person's ~/.bashrc for whoever comes by ssh, unless another shell seems to have started it
        "KbdInteractiveAuthentication no\nSetEnv SHLVL=5\n" + (f"AcceptEnv {accept}\n" if accept else "")
    )
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    log = folder / "log"
    child = subprocess.Popen([SSHD, "-D", "-f", str(folder / "config"), "-E", str(log)])
    try:
        _wait(port, child, log)
        yield Ssh(port, folder)
    finally:
        child.terminate()
        child.wait(20)


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


class Web(NamedTuple):
    """Is a running lighttpd: repositories of a folder below `/git/`, and below `/reading/` without pushes."""

    port: int

    def url(self, name: str, *, who: str = f"me:{SECRET}", below: str = "git", port: int | None = None) -> str:
        """Gives the URL of a repository for somebody with a password; with an empty `who` for nobody."""
        from urllib.parse import quote

        user, colon, secret = who.partition(":")
        account = f"{quote(user)}{colon}{quote(secret)}@" if who else ""
        return f"http://{account}127.0.0.1:{port or self.port}/{below}/{name}"


@contextmanager
def lighttpd(folder: Path, root: Path, env: dict[str, str]) -> Iterator[Web]:
    """Runs lighttpd with basic authentication and `git http-backend` on a folder of repositories."""
    assert LIGHTTPD, "the tests need lighttpd (apt-get install lighttpd)"
    folder.mkdir(mode=0o700)
    (folder / "users").write_text(f"me:{SECRET}\n")
    for name, takes in (("git", "true"), ("reading", "false")):
        settings = {"http.receivepack": takes, "safe.directory": "*"}
        lines = [f"export {k}={shlex.quote(v)}" for k, v in env.items()]
        lines += [f"export GIT_PROJECT_ROOT={shlex.quote(str(root))} GIT_HTTP_EXPORT_ALL=1"]
        lines += [f"export GIT_CONFIG_COUNT={len(settings)}"]
        for number, (key, value) in enumerate(settings.items()):
            lines.append(f"export GIT_CONFIG_KEY_{number}={key} GIT_CONFIG_VALUE_{number}='{value}'")
        script = folder / f"{name}.cgi"
        script.write_text("#!/bin/sh\n" + "\n".join(lines) + "\nexec git http-backend\n")
        script.chmod(0o755)
    port = free_port()
    (folder / "config").write_text(
        f'server.document-root = "{folder}"\nserver.port = {port}\nserver.bind = "127.0.0.1"\n'
        f'server.errorlog = "{folder}/log"\nserver.upload-dirs = ( "{folder}" )\nserver.stream-request-body = 1\n'
        'server.modules = ( "mod_auth", "mod_authn_file", "mod_alias", "mod_cgi" )\n'
        f'alias.url = ( "/git/" => "{folder}/git.cgi/", "/reading/" => "{folder}/reading.cgi/" )\n'
        'cgi.assign = ( ".cgi" => "" )\n'
        f'auth.backend = "plain"\nauth.backend.plain.userfile = "{folder}/users"\n'
        'auth.require = ( "/" => ( "method" => "basic", "realm" => "peer", "require" => "valid-user" ) )\n'
    )
    log = folder / "log"
    argv = [LIGHTTPD, "-D", "-f", str(folder / "config")]
    with log.open("ab") as said:
        child = subprocess.Popen(argv, env={"PATH": os.environ["PATH"]}, stderr=said)
    try:
        _wait(port, child, log)
        yield Web(port)
    finally:
        child.terminate()
        child.wait(20)


@contextmanager
def line(port: int, *, after: int, then: str, way: str) -> Iterator[int]:
    """Gives a port that leads to another until `after` bytes went one `way` (`up`, `down`); `then` is `cut` or `hang`.

    `hang` keeps the connection open and lets nothing through any more.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    open_ones: list[socket.socket] = [listening]

    def serve() -> None:
        while True:
            try:
                near = listening.accept()[0]
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", port))
            open_ones.extend((near, far))
            for name, source, sink in (("up", near, far), ("down", far, near)):
                threading.Thread(target=carry, args=(source, sink, after if name == way else None), daemon=True).start()

    def carry(source: socket.socket, sink: socket.socket, left: int | None) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 14 if left is None else max(1, min(1 << 14, left))):
                sink.sendall(part)
                if left is not None and (left := left - len(part)) <= 0:
                    if then == "cut":
                        for end in (source, sink):
                            end.shutdown(socket.SHUT_RDWR)
                    return
            sink.shutdown(socket.SHUT_WR)

    threading.Thread(target=serve, daemon=True).start()
    with closing(listening):
        yield listening.getsockname()[1]
        for one in open_ones:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
