"""Sources of every kind: signed, tagged, cut off, lent from elsewhere, hostile. They come in whole or are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from strange import LINK, Raw

from ropewalk.core.errors import (
    GitImportDivergedError,
    LandMismatchError,
    NotFoundError,
    RemoteError,
    ShallowError,
    UnsupportedError,
)
from ropewalk.remote import exporting, importing
from ropewalk.store import changes, land
from ropewalk.store.changes import Change, Content

MAIN = "refs/heads/main"


def bring(store: Any, source: Path, ref: str | None = None, into: str | None = None) -> importing.Imported:
    """Imports a ref, by default into the same name."""
    return importing.import_branch(store, str(source), ref, into=into, actor="test/one")


def onto_main(store: Any, path: str, text: str) -> str:
    """Puts a file on main and gives the commit."""
    change = Change(path=path, content=Content(inline=text))
    return changes.commit(store, agent="test/one", message="more", changes=[change], parent=None, advance="main",
                          key=None, read_file=changes.read_disk_file).changeset  # fmt: skip


def refs(git: Any, repo: Path | str) -> dict[str, str]:
    """Gives every ref of a repository with its id, tag objects as themselves."""
    listed = git("for-each-ref", "--format=%(refname) %(objectname)", folder=repo)
    return dict(line.split(" ") for line in listed.splitlines())


@pytest.fixture
def source(tmp_path: Path, git: Any) -> Path:
    """Gives a bare repository with one commit on `main`."""
    folder = tmp_path / "source.git"
    git("init", "--quiet", "--bare", "--template=", str(folder))
    raw = Raw(folder)
    second = raw.commit(raw.tree((b"100644", b"a.txt", raw.blob(b"2\n"))), raw.commit())
    (folder / "refs/heads/main").write_bytes(second + b"\n")
    return folder


def signer(kind: str, folder: Path) -> list[str]:
    """Makes a key and gives git's settings that sign with it and know it again."""
    if shutil.which("ssh-keygen" if kind == "ssh" else "gpg") is None:
        pytest.skip(f"there is no program that signs with {kind}")
    home = folder / "keys"
    home.mkdir(mode=0o700)
    if kind == "ssh":
        key = home / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=60)
        (home / "allowed").write_text("test@example.org " + (home / "key.pub").read_text())
        return ["gpg.format=ssh", f"user.signingKey={key}", f"gpg.ssh.allowedSignersFile={home / 'allowed'}"]
    script = home / "gpg"
    words = ["--passphrase", "", "--quick-generate-key", "test@example.org", "ed25519", "sign", "never"]
    subprocess.run(
        ["gpg", "--homedir", home, "--batch", "--quiet", *words], check=True, timeout=60, capture_output=True
    )
    script.write_text(f'#!/bin/sh\nexec gpg --homedir {home} --batch --passphrase "" "$@"\n')
    script.chmod(0o755)
    return [f"gpg.program={script}", "user.signingKey=test@example.org"]


@pytest.mark.parametrize("kind", ["ssh", "gpg"])
def test_signatures_of_commits_tags_and_merged_tags_stay_good(
    kind: str, new_store: Any, tmp_path: Path, git: Any
) -> None:
    words = [w for setting in signer(kind, tmp_path) for w in ("-c", setting)]
    work = tmp_path / "work"
    git("init", "--quiet", str(work))
    try:
        git(*words, "commit", "--quiet", "-S", "--allow-empty", "-m", "first", folder=work)
        git("checkout", "--quiet", "-b", "side", folder=work)
        git(*words, "commit", "--quiet", "-S", "--allow-empty", "-m", "side", folder=work)
        git(*words, "tag", "-s", "-m", "signed", "v1", folder=work)
        git("tag", "-a", "-m", "a tag of a tag", "nested", "v1", folder=work)
        git("checkout", "--quiet", "main", folder=work)
        git(*words, "commit", "--quiet", "-S", "--allow-empty", "-m", "second", folder=work)
        git(*words, "merge", "--quiet", "--no-edit", "-S", "v1", folder=work)
    finally:
        if kind == "gpg":
            subprocess.run(["gpgconf", "--homedir", tmp_path / "keys", "--kill", "all"], check=False, timeout=60)
    assert "mergetag object" in git("cat-file", "commit", "main", folder=work)
    store = new_store()
    for name, oid in refs(git, work).items():
        assert bring(store, work, name).git_head_sha == oid
    assert refs(git, store.layout.repo) == refs(git, work)
    out = tmp_path / "out.git"
    for name in refs(git, work):
        exporting.export_branch(store, str(out), name, None)
    assert refs(git, out) == refs(git, work)
    assert git("fsck", "--strict", folder=out) == ""
    try:
        for name in ("main", "main~1", "side"):
            git(*words, "verify-commit", name, folder=out)
        git(*words, "verify-tag", "v1", folder=out)
    finally:
        if kind == "gpg":
            subprocess.run(["gpgconf", "--homedir", tmp_path / "keys", "--kill", "all"], check=False, timeout=60)


def test_tags_come_as_objects_into_tags_and_as_commits_into_branches(
    new_store: Any, source: Path, tmp_path: Path, git: Any
) -> None:
    git("tag", "-a", "-m", "one", "v1", "main", folder=source)
    git("tag", "-a", "-m", "two", "v2", "v1", folder=source)
    git("tag", "plain", "main~1", folder=source)
    store = new_store()
    head, tag = git("rev-parse", "main", folder=source), git("rev-parse", "v2", folder=source)
    done = bring(store, source, "tags/v2")
    assert (done.target_ref, done.head_changeset, done.git_head_sha) == ("tags/v2", head, tag)
    assert bring(store, source, "refs/tags/v2").ref_moved is False
    assert bring(store, source, "refs/tags/v1", MAIN).git_head_sha == head == store.ref(MAIN)
    bring(store, source, "refs/tags/plain")
    assert store.ref("refs/tags/plain") == git("rev-parse", "plain", folder=source)
    out = tmp_path / "out.git"
    exporting.export_branch(store, str(out), "tags/v2", None)
    assert refs(git, out) == {"refs/tags/v2": tag}
    assert exporting.export_branch(store, str(out), "tags/v2", None).branch_moved is False
    assert exporting.export_branch(store, str(out), "tags/v2", "main").head_sha == head
    git("tag", "-f", "v2", "main~1", folder=source)
    with pytest.raises(GitImportDivergedError):
        bring(store, source, "refs/tags/v2")
    git("tag", "-f", "-m", "another", "v2", head, folder=out)
    with pytest.raises(Exception, match="v2") as caught:
        exporting.export_branch(store, str(out), "tags/v2", None)
    assert getattr(caught.value, "code", "") == "E_CAS_MISMATCH"


@pytest.mark.parametrize("what", ["main^{tree}", "main:a.txt"])
def test_tags_of_other_things_are_refused(what: str, new_store: Any, source: Path, git: Any) -> None:
    git("tag", "-a", "-m", "odd", "odd", what, folder=source)
    store = new_store()
    with pytest.raises(UnsupportedError) as caught:
        bring(store, source, "refs/tags/odd")
    assert caught.value.hint and store.refs() == []


def test_notes_and_other_refs_come_too(new_store: Any, source: Path, tmp_path: Path, git: Any) -> None:
    git("notes", "add", "-m", "a note", "main", folder=source)
    store = new_store()
    for name, oid in refs(git, source).items():
        assert bring(store, source, name).git_head_sha == oid
    assert refs(git, store.layout.repo) == refs(git, source)
    out = tmp_path / "out.git"
    for name in refs(git, source):
        exporting.export_branch(store, str(out), name, None)
    assert git("notes", "show", "main", folder=out) == "a note"


def test_packed_refs_alternates_and_a_lent_store_are_sources(
    new_store: Any, source: Path, tmp_path: Path, git: Any
) -> None:
    git("clone", "--quiet", "--bare", "--shared", str(source), str(tmp_path / "shared.git"))
    git("clone", "--quiet", "--bare", "--reference", str(tmp_path / "shared.git"), str(source), str(tmp_path / "r.git"))
    git("pack-refs", "--all", folder=tmp_path / "r.git")
    head = git("rev-parse", "main", folder=source)
    for number, name in enumerate(("shared.git", "r.git")):
        store = new_store(f"s{number}")
        assert bring(store, tmp_path / name).head_changeset == head
        assert git("fsck", "--strict", folder=store.layout.repo) == ""
    third = new_store("s3")
    assert bring(third, Path(store.layout.repo)).head_changeset == head
    (source / "objects").rename(tmp_path / "gone")
    with pytest.raises((RemoteError, ShallowError)) as caught:
        bring(new_store("s4"), tmp_path / "shared.git")
    assert caught.value.hint


def test_a_partial_clone_comes_in_whole_or_says_what_is_missing(
    new_store: Any, source: Path, tmp_path: Path, git: Any
) -> None:
    git("config", "uploadpack.allowFilter", "true", folder=source)
    cut = tmp_path / "cut.git"
    git("clone", "--quiet", "--bare", "--filter=blob:none", f"file://{source}", str(cut))
    marker = tmp_path / "ran"
    git("config", "remote.origin.uploadpack", f"touch {marker}; git-upload-pack", folder=cut)
    store = new_store()
    with pytest.raises(ShallowError) as caught:
        bring(store, cut)
    assert "without --filter" in caught.value.hint and store.refs() == [] and not marker.exists()
    git("config", "--unset", "remote.origin.uploadpack", folder=cut)
    git("rev-list", "--objects", "main", folder=cut)
    for oid in git("rev-list", "--objects", "--no-object-names", "main", folder=source).split():
        git("cat-file", "-e", oid, folder=cut)
    assert bring(store, cut).head_changeset == git("rev-parse", "main", folder=source)


def test_a_promisor_that_is_a_program_runs_nothing(
    new_store: Any, rw: Any, source: Path, tmp_path: Path, git: Any
) -> None:
    """A stranger's repository that lacks an object names a program to fetch it with, and hooks and filters."""
    mark = tmp_path / "ran"
    bait = tmp_path / "bait.sh"
    bait.write_text(f'#!/bin/sh\necho "$0 $@" >>{mark}\nexit 1\n')
    bait.chmod(0o755)
    work = tmp_path / "work"
    git("clone", "--quiet", str(source), str(work))
    (work / ".gitattributes").write_text("* filter=bad diff=bad merge=bad\n")
    git("add", ".", folder=work)
    git("commit", "--quiet", "-m", "attributes", folder=work)
    blob = git("rev-parse", "main:.gitattributes", folder=work)
    inside = work / ".git"
    hooks = inside / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "reference-transaction", "pre-push", "post-index-change", "pre-receive", "update",
                 "post-update", "pre-auto-gc", "fsmonitor-watchman", "post-rewrite", "proc-receive"):  # fmt: skip
        shutil.copy(bait, hooks / name)
    settings = {
        "extensions.partialClone": "origin", "core.repositoryFormatVersion": "1", "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{bait} %S", "protocol.ext.allow": "always", "protocol.allow": "always",
        "remote.origin.uploadpack": str(bait), "core.fsmonitor": str(bait), "core.sshCommand": str(bait),
        "core.gitProxy": str(bait), "core.pager": str(bait), "core.editor": str(bait), "core.askPass": str(bait),
        "core.alternateRefsCommand": str(bait), "uploadpack.packObjectsHook": str(bait), "diff.external": str(bait),
        "diff.bad.textconv": str(bait), "diff.bad.command": str(bait), "merge.bad.driver": str(bait),
        "filter.bad.clean": str(bait), "filter.bad.smudge": str(bait), "filter.bad.process": str(bait),
        "filter.bad.required": "true", "credential.helper": f"!{bait}", "gpg.program": str(bait),
        "gc.recentObjectsHook": str(bait), "alias.upload-pack": f"!{bait}", "alias.rev-list": f"!{bait}",
        "trace2.eventTarget": str(tmp_path / "ran"), "log.showSignature": "true", "submodule.recurse": "true",
    }  # fmt: skip
    for key, value in settings.items():
        git("config", key, value, folder=work)
    (inside / "objects" / blob[:2] / blob[2:]).rename(tmp_path / "blob")
    store = new_store()
    with pytest.raises((ShallowError, RemoteError)):
        bring(store, work)
    rw.error("E_SHALLOW", "init", folder=work)
    assert not mark.exists(), mark.read_text()
    (tmp_path / "blob").rename(inside / "objects" / blob[:2] / blob[2:])
    assert bring(store, work).imported == 3
    rw.ok("init", folder=work)
    rw.ok("ws", "create", "w", "--dir", str(tmp_path / "w"), folder=work)
    (tmp_path / "w" / "a.txt").write_text("changed\n")
    rw.error("E_INVALID", "ws", "land", "w", "-m", "changed", folder=work)
    assert not mark.exists(), mark.read_text()
    git.run("status", folder=work)
    assert mark.exists(), "the bait is none"


@pytest.mark.parametrize("url", ["ext::sh -c touch% pwned", "fd::17", "foo::bar", "EXT::sh"])
def test_a_helper_is_no_source_and_no_destination(url: str, rw: Any, tmp_path: Path) -> None:
    rw.store = str(tmp_path / "st")
    rw.ok("init", "--store", rw.store, str(tmp_path))
    rw.error("E_INVALID", "git", "import", url)
    rw.ok(
        "commit", "-m", "m", "--changes", "-", "--advance", "main", stdin='[{"path": "a", "content": {"inline": ""}}]'
    )
    rw.error("E_INVALID", "git", "export", url)
    assert not list(tmp_path.rglob("pwned"))


def test_S37_a_shallow_clone_is_refused_until_it_is_deepened(
    new_store: Any, source: Path, tmp_path: Path, git: Any
) -> None:
    cut = tmp_path / "cut"
    git("clone", "--quiet", "--depth=1", f"file://{source}", str(cut))
    store = new_store()
    with pytest.raises(ShallowError) as caught:
        bring(store, cut)
    assert f"git -C {cut} fetch --unshallow" in caught.value.hint and store.refs() == []
    git("fetch", "--quiet", "--unshallow", folder=cut)
    assert bring(store, cut).head_changeset == git("rev-parse", "main", folder=source)
    # a destination that is shallow takes what grows on its own head
    shallow = tmp_path / "shallow.git"
    git("clone", "--quiet", "--bare", "--depth=1", f"file://{source}", str(shallow))
    made = onto_main(store, "new.txt", "new\n")
    assert exporting.export_branch(store, str(shallow), "main", None).head_sha == made
    assert git("rev-parse", "main", folder=shallow) == made


def test_S38_histories_without_a_common_root_are_not_joined(
    new_store: Any, source: Path, tmp_path: Path, git: Any
) -> None:
    other = tmp_path / "other.git"
    git("init", "--quiet", "--bare", "--template=", str(other))
    raw = Raw(other)
    oid = raw.commit(raw.tree((b"100644", b"a.txt", raw.blob(b"other\n"))), message=b"\nanother root\n")
    (other / "refs/heads/main").write_bytes(oid + b"\n")
    store = new_store()
    bring(store, source)
    with pytest.raises(GitImportDivergedError):
        bring(store, other)
    bring(store, other, into="refs/heads/other")
    before = store.ref(MAIN)
    with pytest.raises(LandMismatchError) as caught:
        land.land(store, land.request(agent="test/one", change=oid.decode(), ref=MAIN))
    assert caught.value.details["reason"] == "unrelated" and store.ref(MAIN) == before


def test_S40_a_checkout_with_work_in_it_is_neither_read_nor_touched(
    new_store: Any, source: Path, tmp_path: Path, git: Any
) -> None:
    work = tmp_path / "work"
    git("clone", "--quiet", str(source), str(work))
    (work / "a.txt").write_text("unsaved\n")
    (work / "new.txt").write_text("not added\n")
    store = new_store()
    head = bring(store, work).head_changeset
    assert head == git("rev-parse", "main", folder=source)
    made = onto_main(store, "new.txt", "not added\n")
    with pytest.raises(RemoteError) as caught:
        exporting.export_branch(store, str(work), "main", None)
    assert caught.value.details["reason"] == "checked_out" and "--branch" in caught.value.hint
    assert git("rev-parse", "main", folder=work) == head
    assert git("status", "--porcelain", folder=work).splitlines() == [" M a.txt", "?? new.txt"]
    assert exporting.export_branch(store, str(work), "main", "from-store").head_sha == made
    refused = git.run("merge", "--ff-only", "from-store", folder=work)
    assert refused.returncode and b"new.txt" in refused.stderr
    assert (work / "a.txt").read_text() == "unsaved\n"


def _carried(store: Any, source: Path, tmp_path: Path, git: Any, entries: list[tuple[bytes, bytes, bytes]]) -> None:
    """Puts entries on the source's main, and holds what comes out of the store against them, bytes and modes."""
    raw = Raw(source)
    rows = [(mode, name, raw.blob(content)) for mode, name, content in entries]
    parent = (source / "refs/heads/main").read_bytes().strip()
    oid = raw.commit(raw.tree(*sorted(rows, key=lambda r: r[1])), parent)
    (source / "refs/heads/main").write_bytes(oid + b"\n")
    assert bring(store, source).head_changeset == oid.decode()
    made = onto_main(store, "landed.txt", "landed\n")
    out = tmp_path / "out.git"
    assert exporting.export_branch(store, str(out), "main", None).head_sha == made
    listed = git.run("ls-tree", "-r", "-z", "main", folder=out).stdout.split(b"\0")
    assert [b"%s blob %s\t%s" % row for row in ((m, i, n) for m, n, i in sorted(rows, key=lambda r: r[1]))] == [
        line for line in listed if line and not line.endswith(b"\tlanded.txt")
    ]


def test_S12_links_stay_links(new_store: Any, source: Path, tmp_path: Path, git: Any) -> None:
    _carried(new_store(), source, tmp_path, git, [(LINK, b"link", b"../a.txt"), (b"100644", b"a.txt", b"link text")])


def test_S15_names_that_are_no_text_go_through(new_store: Any, source: Path, tmp_path: Path, git: Any) -> None:
    names = (b"bad-\xff.py", b"v\xed\xb2\xbb", b"\xfc", b"base64:x")
    _carried(new_store(), source, tmp_path, git, [(b"100644", name, name + b"\n") for name in names])


def test_S44_lfs_pointers_stay_byte_for_byte(new_store: Any, source: Path, tmp_path: Path, git: Any) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 12345\n"
    attributes = b"*.bin filter=lfs diff=lfs merge=lfs -text\n"
    store = new_store()
    _carried(store, source, tmp_path, git, [(b"100644", b".gitattributes", attributes), (b"100644", b"x.bin", pointer)])
    from ropewalk.store import history

    assert b"".join(history.raw(store, "main", "x.bin")) == pointer


def test_S46_device_names_of_other_systems_are_names(new_store: Any, source: Path, tmp_path: Path, git: Any) -> None:
    names = (b"aux.c", b"con", b"nul.", b"trailing.", b"trailing ", b"a:b", b"COM1", b"x" * 255)
    _carried(new_store(), source, tmp_path, git, [(b"100644", name, name) for name in names])


def test_no_ref_format_but_files_or_a_refusal(new_store: Any, tmp_path: Path, git: Any) -> None:
    """A repository whose format this git does not read is refused by name; one that it reads comes in."""
    made = git.run("init", "--quiet", "--bare", "--ref-format=reftable", str(tmp_path / "r.git"))
    store = new_store()
    if made.returncode == 0:
        git("fast-import", "--quiet", folder=tmp_path / "r.git",
            stdin=b"commit refs/heads/main\ncommitter A <a@b> 1 +0000\ndata 0\n\n")  # fmt: skip
        assert bring(store, tmp_path / "r.git").imported == 1
        return
    git("init", "--quiet", "--bare", str(tmp_path / "r.git"))
    with open(tmp_path / "r.git" / "config", "a", encoding="utf-8") as file:
        file.write("[core]\n\trepositoryformatversion = 1\n[extensions]\n\trefstorage = reftable\n")
    with pytest.raises((RemoteError, NotFoundError, UnsupportedError)) as caught:
        bring(store, tmp_path / "r.git")
    assert caught.value.hint and store.last_op() == 0


def test_a_source_that_grows_while_it_is_read_comes_at_one_commit(new_store: Any, source: Path, git: Any) -> None:
    """What was listed first is what comes, or the source's word that it is gone; never a mixture."""
    store = new_store()
    first = bring(store, source).head_changeset
    raw = Raw(source)
    heads = [raw.commit(raw.tree((b"100644", b"n", raw.blob(b"%d\n" % n))), first.encode()).decode() for n in range(3)]
    os.truncate(source / "objects" / heads[1][:2] / heads[1][2:], 10)
    for head in heads:
        (source / "refs/heads/main").write_text(head + "\n")
        before = store.last_op()
        if head == heads[1]:
            with pytest.raises((RemoteError, ShallowError, NotFoundError)):
                bring(store, source)
            assert store.last_op() == before
        else:
            (source / "refs/heads/main").write_text(head + "\n")
            assert bring(store, source, into=f"refs/heads/{head[:8]}").head_changeset == head
