"""A store over HTTP: stock git clones, fetches and pushes, and tokens decide who may do what."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from storekit import SRC, STOCK, Kit, child_env, lines, put, rw, stock


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    made = Kit(str(tmp_path / "store"))
    made.first(put("a.txt", lines()))
    yield made
    made.close()


@contextmanager
def served(kit: Kit, *flags: str) -> Iterator[str]:
    """Gives the URL of a running `rw serve`."""
    argv = [sys.executable, "-m", "ropewalk.cli.main", "serve", "--port", "0", "--store", kit.root, *flags]
    with subprocess.Popen(argv, env=child_env(), stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            yield json.loads(child.stdout.readline())["serving"]
        finally:
            child.send_signal(signal.SIGTERM)
            assert child.wait(20) in (0, -signal.SIGTERM)


def token(kit: Kit, name: str, *rights: str, refs: tuple[str, ...] = ()) -> str:
    words = [word for right in rights for word in ("--can", right)]
    words += [word for ref in refs for word in ("--refs", ref)]
    code, envelope = rw(kit.root, "token", "create", name, "--holder", f"{name}/one", *words)
    assert code == 0, envelope
    return str(envelope["result"]["token"])


def git(folder: Path, *words: str, bearer: str | None = None, ok: bool = True) -> str:
    header = [] if bearer is None else ["-c", f"http.extraHeader=Authorization: Bearer {bearer}"]
    done = subprocess.run(
        ["git", *header, *words], cwd=folder, env=STOCK | {"PYTHONPATH": SRC, "GIT_TERMINAL_PROMPT": "0"},
        capture_output=True, timeout=180,
    )  # fmt: skip
    assert not ok or done.returncode == 0, done.stderr.decode()
    return (done.stdout + done.stderr).decode()


def commit(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", name)
    return git(folder, "rev-parse", "HEAD").strip()


def test_clone_fetch_and_no_push_without_a_word(kit: Kit, tmp_path: Path) -> None:
    with served(kit) as url:
        git(tmp_path, "clone", "-q", url, "clone")
        clone = tmp_path / "clone"
        kit.change(put("b.txt", "b\n"))
        git(clone, "fetch", "-q")
        assert git(clone, "rev-parse", "origin/main").strip() == kit.main()
        commit(clone, "p.txt", "p\n")
        assert "403" in git(clone, "push", "origin", "HEAD:refs/heads/x", ok=False)
        assert (
            "404"
            in subprocess.run(
                ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", url + "/objects/info/packs"],
                capture_output=True,
                text=True,
            ).stdout
        )


def test_tokens_decide_what_a_push_may_do(kit: Kit, tmp_path: Path) -> None:
    reader, writer = token(kit, "reader", "read"), token(kit, "writer", "read", "write", refs=("refs/heads/topic*",))
    lander = token(kit, "lander", "read", "land")
    with served(kit, "--read-write") as url:
        git(tmp_path, "clone", "-q", url, "clone")
        clone = tmp_path / "clone"
        kit.change(put("a.txt", lines("3:three")))
        new = commit(clone, "p.txt", "p\n")
        assert git(clone, "push", "origin", "HEAD:refs/heads/topic", ok=False)
        assert kit.store.ref("refs/heads/topic") is None
        assert "right to write is missing" in git(clone, "push", "origin", "HEAD:topic", bearer=reader, ok=False)
        assert "may not write" in git(clone, "push", "origin", "HEAD:refs/heads/other", bearer=writer, ok=False)
        git(clone, "push", "-q", "origin", "HEAD:refs/heads/topic", bearer=writer)
        assert kit.store.ref("refs/heads/topic") == new
        assert kit.store.db.row("SELECT actor FROM ops ORDER BY op DESC LIMIT 1") == ("writer/one",)
        told = git(clone, "push", "-o", "agent=some/body", "origin", "HEAD:refs/land/main", bearer=lander)
        assert f"landed {kit.main()} on main" in told and b"p.txt" in kit.files()
        assert kit.store.db.row("SELECT actor FROM ops WHERE kind = 'land' ORDER BY op DESC LIMIT 1") == ("lander/one",)
        assert rw(kit.root, "token", "revoke", "writer")[0] == 0
        commit(clone, "q.txt", "q\n")
        assert git(clone, "push", "origin", "HEAD:topic", bearer=writer, ok=False)
        kit.fsck()


def test_a_private_server_and_a_password(kit: Kit, tmp_path: Path) -> None:
    secret = token(kit, "reader", "read")
    with served(kit, "--private") as url:
        assert git(tmp_path, "ls-remote", url, ok=False).count("fatal")
        assert kit.main() in git(tmp_path, "ls-remote", url, bearer=secret)
        assert kit.main() in git(tmp_path, "ls-remote", url.replace("//", f"//any:{secret}@"))
        assert git(tmp_path, "ls-remote", url, bearer="rwt_wrong", ok=False).count("fatal")


def certificate(folder: Path) -> tuple[Path, Path]:
    """Makes a certificate for the loopback address, signed by itself; gives it and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    return cert, key


@pytest.mark.skipif(shutil.which("openssl") is None and os.environ.get("CI") != "true", reason="needs openssl")
def test_https(kit: Kit, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    writer = token(kit, "writer", "read", "write")
    trust = ["-c", f"http.sslCAInfo={cert}"]
    with served(kit, "--cert", str(cert), "--key", str(key), "--private", "--read-write") as url:
        assert url.startswith("https://127.0.0.1:")
        assert git(tmp_path, "ls-remote", url, bearer=writer, ok=False).count("certificate")
        assert kit.main() in git(tmp_path, *trust, "ls-remote", url, bearer=writer)
        git(tmp_path, *trust, "clone", "-q", url, "clone", bearer=writer)
        git(tmp_path / "clone", *trust, "push", "-q", "origin", "HEAD:topic", bearer=writer)
        code, envelope = rw(kit.root, "clone", url, str(tmp_path / "untrusted"))
        assert code == 9 and envelope["error"]["details"]["reason"] == "host_key", envelope
    assert kit.store.ref("refs/heads/topic") == kit.main()


def test_an_answer_does_not_wait_for_its_head(kit: Kit) -> None:
    """A head and its body are two parts: by Nagle's algorithm the body would wait 40 ms for the head's receipt."""
    took = []
    with served(kit) as url:
        base = urllib.parse.urlsplit(url)
        connection = http.client.HTTPConnection(base.hostname or "", base.port, timeout=20)
        for _ in range(30):
            begun = time.monotonic()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            took.append(time.monotonic() - begun)
        connection.close()
    assert min(took[5:]) < 0.03


def test_what_is_told_of_tokens(kit: Kit) -> None:
    secret = token(kit, "one", "read", "land")
    shown = json.dumps(rw(kit.root, "token", "list")[1])
    assert secret not in shown and '"one/one"' in shown
    assert secret.encode() not in Path(kit.root, "store.db").read_bytes() + Path(kit.root, "store.db-wal").read_bytes()
    assert rw(kit.root, "token", "create", "one")[1]["error"]["code"] == "E_INVALID"
    assert rw(kit.root, "token", "revoke", "nobody")[1]["error"]["code"] == "E_NOT_FOUND"


def test_large_pushes_and_many_at_once(kit: Kit, tmp_path: Path) -> None:
    """Eight people push at once, one of them much: all are there, and the repository is whole."""
    secret = token(kit, "all", "read", "write")
    with served(kit, "--read-write") as url:
        folders = []
        for number in range(8):
            git(tmp_path, "clone", "-q", url, f"c{number}")
            folder = tmp_path / f"c{number}"
            (folder / "large.bin").write_bytes(os.urandom(3 << 20) if number == 0 else b"%d" % number)
            commit(folder, "x.txt", f"{number}\n")
            folders.append(folder)
        told: list[str] = []
        pushes = [
            threading.Thread(
                target=lambda n=n, f=f: told.append(
                    git(f, "push", "-q", "origin", f"HEAD:refs/heads/w{n}", bearer=secret)
                )
            )
            for n, f in enumerate(folders)
        ]
        for one in pushes:
            one.start()
        for one in pushes:
            one.join()
    assert len(told) == 8 and len(kit.store.refs("refs/heads/w")) == 8
    kit.fsck()
    stock("--git-dir", kit.repo, "rev-list", "--objects", "--all")


@pytest.mark.parametrize(
    "words",
    [
        ["--port", "x"],
        ["--port", "70000"],
        ["--nope"],
        ["--host", "no.such.host.invalid"],
        ["--key", "k"],
        ["--cert", "/dev/null"],
        ["--cert", "/nonexistent"],
    ],
)
def test_words_that_do_not_fit(kit: Kit, words: list[str]) -> None:
    argv = [sys.executable, "-m", "ropewalk.cli.main", "serve", *words, "--store", kit.root]
    done = subprocess.run(argv, env=child_env(), capture_output=True, timeout=60)
    assert done.returncode == 2 and b"Traceback" not in done.stderr
