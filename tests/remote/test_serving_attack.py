"""`rw serve` as an attacker meets it: only the smart protocol is served, and nobody is more than a token says."""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from test_serving import commit, git, served, token

from storekit import Kit, child_env, lines, put, rw


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    made = Kit(str(tmp_path_factory.mktemp("served") / "store"))
    made.first(put("a.txt", lines()))
    yield made
    made.close()


@pytest.fixture(scope="module")
def url(kit: Kit) -> Iterator[str]:
    with served(kit, "--read-write") as made:
        yield made


def raw(url: str, data: bytes) -> bytes:
    """Sends bytes as they are, and gives all that comes until the server closes."""
    host, port = re.match(r"http://([^:/]+):(\d+)", url).groups()  # type: ignore[union-attr]
    with socket.create_connection((host, int(port)), timeout=60) as line:
        line.sendall(data)
        found = b""
        while part := line.recv(1 << 16):
            found += part
    return found


def ask(url: str, target: str, *headers: str, method: str = "GET", body: bytes = b"", host: str = "localhost") -> bytes:
    """Gives the whole answer to a request whose target is sent as it is."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    lines += [f"Content-Length: {len(body)}"] if body else []
    return raw(url, "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + body)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_nothing_but_the_smart_protocol_is_served(kit: Kit, url: str) -> None:
    head = kit.main()
    kit.store.expose()
    loose = f"{head[:2]}/{head[2:]}"
    inside = ["HEAD", "config", "packed-refs", "refs/heads/main", f"objects/{loose}", "objects/info/packs",
              "hooks/proc-receive", "ropewalk-python", "description"]  # fmt: skip
    targets = [f"/repo.git/{name}" for name in inside]
    for up in ("..", "%2e%2e", "%2e.", "..%2f", "..%252f", "..\\", "..;", "....//", "%c0%ae%c0%ae", "..%00"):
        targets += [
            f"/{up}/store.db",
            f"/repo.git/{up}/store.db",
            f"/repo.git/objects/{up}/config",
            f"/repo.git/{up}/FORMAT",
        ]
    targets += ["//store.db", "/store.db", "/FORMAT", "/authors.toml", "/", "/repo.git", "/repo.git/info/refs", "*",
                "/repo.git/info/refs?service=git-upload-archive", "/repo.git/info/refs?service=../../bin/sh",
                "/repo.git/git-upload-archive", "/repo.git/info/refs?service=git-upload-pack%00", "http://other/store.db",
                "/repo.git/git-upload-pack", "/repo.git/info/refs?service"]  # fmt: skip
    secrets = [Path(kit.root, "store.db").read_bytes()[:15], b"[core]", b"tree ", kit.root.encode()]
    for target in targets:
        answer = ask(url, target)
        assert status(answer) in (400, 404), (target, answer[:200])
        assert not any(secret in answer for secret in secrets), target
    for method in ("PUT", "DELETE", "PROPFIND", "OPTIONS", "TRACE", "HEAD"):
        assert status(ask(url, "/repo.git/info/refs?service=git-upload-pack", method=method)) in (404, 405)
    # whatever stands before the service, it is this store that is meant
    for target in ("/repo.git/info/refs", "/../../etc/info/refs", "/%2e%2e/other.git/info/refs"):
        assert head.encode() in ask(url, target + "?service=git-upload-pack")


def test_what_is_asked_twice_is_what_is_checked(kit: Kit, url: str, tmp_path: Path) -> None:
    """A query or header that two readers could read in two ways is no way around the token."""
    read, write = "service=git-upload-pack", "service=git-receive-pack"
    for query in (f"{read}&{write}", f"{write}&{read}", f"{read};{write}", write.replace("i", "%69", 1), write.upper(),
                  f"{write}%26x", f"x=1&{read}&x&{write}"):  # fmt: skip
        answer = ask(url, f"/repo.git/info/refs?{query}")
        assert b"# service=git-receive-pack" not in answer, query
    for header in (
                   "Authorization: Bearer", "Authorization: Bearer rwt_x", "Authorization: Basic ====",
                   "Authorization: Basic eDp5",
                   "Authorization: Negotiate abc", "X-Forwarded-User: admin", "Remote-User: admin",
                   "Ropewalk-Pusher: a/b",
                   "Authorization: Bearer " + "A" * 30_000):  # fmt: skip
        answer = ask(url, "/repo.git/info/refs?service=git-receive-pack", header)
        assert status(answer) == 401, (header, answer[:100])
        answer = ask(url, "/repo.git/git-receive-pack", header, method="POST", body=b"0000")
        assert status(answer) == 401, (header, answer[:100])
    kit.fsck()


def test_smuggled_requests_are_read_as_one_or_refused(kit: Kit, url: str) -> None:
    inner = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    top = b"POST /repo.git/git-upload-pack HTTP/1.1\r\nHost: localhost\r\n"
    for length in (
        b"Content-Length: 4\r\nContent-Length: %d\r\n" % (len(inner) + 4),
        b"Content-Length: 4, %d\r\n" % (len(inner) + 4),
        b"Content-Length: +4\r\n",
        b"Content-Length: 0x4\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Git-Protocol: version=2\r\n\0Host: x\r\nContent-Length: 4\r\n",
    ):
        answer = raw(url, top + length + b"\r\n0000" + inner)
        assert answer.count(b"HTTP/1.1 ") == 1 and status(answer) in (400, 501), (length, answer[:200])
    both = top + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = raw(url, both + b"4\r\n0000\r\n0\r\n\r\n" + inner)
    assert answer.count(b"HTTP/1.1 200") <= 2 and b'"ok"' not in answer.split(b"HTTP/1.1 ")[1]
    assert kit.main().encode() in ask(url, "/repo.git/info/refs?service=git-upload-pack")


def test_another_name_for_this_host_needs_a_token(kit: Kit, url: str) -> None:
    target = "/repo.git/info/refs?service=git-upload-pack"
    for host in ("attacker.example", "127.0.0.1.attacker.example", "localhost.attacker.example:80", "", "[::2]"):
        assert status(ask(url, target, host=host)) in (400, 401), host
    for host in ("localhost:1", "LOCALHOST", "127.0.0.1:9", "[::1]:9"):
        assert status(ask(url, target, host=host)) == 200, host
    secret = token(kit, "proxied", "read")
    assert status(ask(url, target, f"Authorization: Bearer {secret}", host="attacker.example")) == 200


def test_odd_bodies_and_headers_move_nothing(kit: Kit, url: str) -> None:
    secret = token(kit, "odd", "read", "write", "land", "delete")
    header = f"Authorization: Basic {base64.b64encode(f'x:{secret}'.encode()).decode()}"
    before = kit.again().store.refs()
    for body in (b"", b"0000", b"zzzz", b"ffff", b"0000" * 1000, os.urandom(5000), b"0008NONE0000",
                 b"00a70" + b"0" * 500, b"\x1f\x8b" + os.urandom(100)):  # fmt: skip
        for more in ((), ("Content-Encoding: gzip",), ("Content-Encoding: br",), ("Git-Protocol: version=2:x=$(id)",),
                     ("Content-Type: application/x-git-receive-pack-request",)):  # fmt: skip
            answer = ask(url, "/repo.git/git-receive-pack", header, *more, method="POST", body=body)
            assert status(answer) < 600 and b"Traceback" not in answer
    assert kit.again().store.refs() == before
    assert status(ask(url, "/healthz")) == 200


def test_patterns_of_a_token(kit: Kit, url: str, tmp_path: Path) -> None:
    for bad in ("topic*", "heads/x", "", "/refs/heads/x", "refs/heads/a b", "refs/heads/\n"):
        code, envelope = rw(kit.root, "token", "create", "bad", "--can", "write", "--refs", bad)
        assert code == 2 and envelope["error"]["code"] == "E_INVALID", (bad, envelope)
    narrow = token(kit, "narrow", "read", "write", refs=("refs/heads/t[12]", "refs/heads/**a*a*a*a*a*a*a*a*a*b"))
    lander = token(kit, "narrow-land", "read", "land", refs=("refs/heads/side*",))
    git(tmp_path, "clone", "-q", url, "clone")
    folder = tmp_path / "clone"
    commit(folder, "x.txt", "x\n")
    for name in ("t3", "T1", "t12", "a" * 200, "xt1"):
        assert "may not write" in git(folder, "push", "origin", f"HEAD:refs/heads/{name}", bearer=narrow, ok=False), (
            name
        )
    for ref in ("refs/land/main", "refs/land/t1"):
        assert "right to land is missing" in git(folder, "push", "origin", f"HEAD:{ref}", bearer=narrow, ok=False)
    assert "may not write" in git(folder, "push", "origin", "HEAD:refs/land/main", bearer=lander, ok=False)
    git(folder, "push", "-q", "origin", "HEAD:refs/heads/t1", bearer=narrow)
    assert "right to delete is missing" in git(folder, "push", "origin", ":refs/heads/t1", bearer=narrow, ok=False)
    # one ref of a push that it may not write is enough to keep all of it out
    git(folder, "push", "origin", "HEAD:refs/heads/t2", "HEAD:refs/heads/no", bearer=narrow, ok=False)
    assert kit.again().store.ref("refs/heads/t2") is None


def test_a_store_that_can_not_be_read_is_said(tmp_path: Path) -> None:
    kit = Kit(str(tmp_path / "store"))
    kit.first(put("a.txt", "a\n"))
    kit.close()
    with served(kit) as url:
        Path(kit.root, "FORMAT").write_text("{}")
        answer = ask(url, "/repo.git/info/refs?service=git-upload-pack")
        assert status(answer) == 503 and b"E_STORE_FORMAT" in answer and b"Traceback" not in answer
    done = subprocess.run([sys.executable, "-m", "ropewalk.cli.main", "serve", "--store", kit.root], env=child_env(),
                          capture_output=True, timeout=60)  # fmt: skip
    assert done.returncode == 8 and b"Traceback" not in done.stderr
