"""Change lists and resolutions of any shape: an error records nothing, and what succeeds is what was asked for."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ropewalk.core.errors import ConflictError, RopewalkError
from ropewalk.store import changes, spool
from ropewalk.store.changes import Change
from ropewalk.store.report import Resolution
from storekit import Kit, delete, move, put

FULL = bool(os.environ.get("RWTEST_FULL"))
ROUNDS = settings(
    max_examples=1500 if FULL else 150, derandomize=True, deadline=None, database=None,
    phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
)  # fmt: skip
BASE = {"a": b"a\n", "b": b"b\n", "d/a": b"da\n", "d/b": b"db\n", "d/e/a": b"dea\n", "link": b"a"}
PATHS = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "n", "n/a", "a/b", "link", "link/x"]
ODD = ["", "/", "../x", ".git/x", "a//b", "a\0", "base64:/w==", "base64:!", "é", "x" * 300, "d/.", "\udcff", "A", "a/"]

path = st.one_of(st.sampled_from(PATHS), st.sampled_from(PATHS), st.sampled_from(PATHS), st.sampled_from(ODD))
content = st.one_of(
    st.fixed_dictionaries({"inline": st.sampled_from(["", "x\n", "a\n", "\0", "\ud800", "line\r\n"])}),
    st.fixed_dictionaries({"base64": st.sampled_from(["", "eA==", "!", "/w=="])}),
    st.sampled_from([None, {}, {"inline": "x", "base64": ""}, {"blob": "0" * 40}, {"blob": "zz"}, {"file": "nowhere"}]),
)
entry = st.fixed_dictionaries(
    {"path": path, "op": st.sampled_from(["put", "put", "delete", "move", "mode", "symlink"])},
    optional={"content": content, "from": path, "mode": st.sampled_from(["100644", "100755", "exec", "777", ""])},
)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """Gives a store whose main has the base's files, one a link."""
    made = Kit(str(tmp_path_factory.mktemp("requests") / "store"))
    from storekit import link

    made.first(*(put(p, t) for p, t in BASE.items() if p != "link"), link("link", "a"))
    yield made
    made.close()


def recorded(kit: Kit) -> tuple[Any, ...]:
    """Gives what an error must leave as it is."""
    tables = ("ops", "refs", "changesets", "keys", "object_journal", "landed", "land_paths")
    counts = [kit.store.db.row(f"SELECT count(*) FROM {table}") for table in tables]
    return kit.store.refs(), counts, kit.store.last_op()


def wanted(listed: list[dict[str, Any]]) -> dict[str, bytes]:
    """Gives the files that a good change list makes of the base, by a model that knows nothing of trees."""
    old, new = dict(BASE), dict(BASE)

    def below(name: str) -> dict[str, bytes]:
        return {p: t for p, t in old.items() if p == name or p.startswith(name + "/")}

    for one in listed:
        if one["op"] in ("delete", "move"):
            for inner in below(one["from"] if one["op"] == "move" else one["path"]):
                new.pop(inner, None)
    for one in listed:
        name = one["path"]
        text = one.get("content") if one["op"] in ("put", "symlink", "move") else None
        given_text = None if text is None else changes.content_bytes(msgspec.convert(text, changes.Content), "", bytes)
        if one["op"] in ("put", "symlink"):
            assert given_text is not None
            new[name] = given_text
        elif one["op"] == "move":
            for inner, kept in below(one["from"]).items():
                new[name + inner[len(one["from"]) :]] = kept if given_text is None else given_text
    return new


@ROUNDS
@given(st.lists(entry, max_size=4))
def test_change_lists(kit: Kit, listed: list[dict[str, Any]]) -> None:
    before = recorded(kit)
    try:
        entries = msgspec.convert(listed, list[Change])
    except msgspec.ValidationError:
        return
    head = kit.main()
    try:
        made = kit.commit(*entries, parent=head)
    except RopewalkError as error:
        assert error.code in ("E_INVALID", "E_EMPTY_COMMIT", "E_NOT_FOUND"), error.code
        assert error.message and recorded(kit) == before, listed
        return
    found = {p.decode(): text for p, (_, text) in kit.files(made.changeset).items()}
    assert found == {p: t for p, t in wanted(listed).items()}, listed
    assert kit.store.last_op() == before[2] + 1 and kit.main() == head


LINES = [f"line {n}\n" for n in range(12)]
SIDES = ("ours", "theirs", "base")


def texts(number: int, word: str) -> str:
    """Gives the lines with one changed."""
    return "".join([*LINES[:number], f"{word}\n", *LINES[number + 1 :]])


def clash(kit: Kit, number: int) -> tuple[str, list[str]]:
    """Makes a target and a change that clash in every way, below a folder of their own; gives change and paths."""
    top = f"t{number}"
    start = kit.change(put(f"{top}/c", "".join(LINES)), put(f"{top}/gone", "x\n"), put(f"{top}/kept", "y\n"),
                       put(f"{top}/old", "".join(f"o{n}\n" for n in range(9)))).landed  # fmt: skip
    mine = [put(f"{top}/c", texts(5, "ours")), delete(f"{top}/gone"), put(f"{top}/new", "ours\n"),
            put(f"{top}/kept", "ours\n"), move(f"{top}/old", f"{top}/ours")]  # fmt: skip
    ours = kit.commit(*mine, parent=start).changeset
    kit.change(put(f"{top}/c", texts(5, "theirs")), put(f"{top}/gone", "theirs\n"), put(f"{top}/new", "theirs\n"),
               delete(f"{top}/kept"), move(f"{top}/old", f"{top}/theirs"), parent=start)  # fmt: skip
    return ours, [f"{top}/{n}" for n in ("c", "gone", "new", "kept", "old", "ours", "theirs")]


answer_content = st.sampled_from(
    [{"inline": "settled\n"}, {"base64": "eA=="}, {"base64": "!"}, {}, {"file": "nowhere"}]
)
hunk = st.sampled_from([{"take": "ours"}, {"take": "theirs"}, {"take": "base"}, {"text": "t\n"}, {"base64": "!"}, {},
                        {"take": "ours", "text": "x"}])  # fmt: skip
file_answer = st.one_of(
    st.fixed_dictionaries({"take": st.sampled_from(SIDES)}),
    st.fixed_dictionaries({"take": st.sampled_from(SIDES)}),
    st.just({"delete": True}),
    st.fixed_dictionaries({}, optional={
        "take": st.sampled_from(SIDES), "delete": st.booleans(), "content": answer_content,
        "hunks": st.lists(hunk, max_size=2),
        "move_to": st.sampled_from(["n", "a", "a/b", "d", "../x", "", ".git/x", "t/deep/er"])}),
)  # fmt: skip
answers = st.one_of(
    st.lists(file_answer, min_size=7, max_size=7),
    st.lists(st.one_of(st.none(), file_answer), min_size=7, max_size=7),
)


@pytest.fixture(scope="module")
def clashing(kit: Kit) -> tuple[Kit, str, list[str]]:
    change, paths = clash(kit, 0)
    return kit, change, paths


@ROUNDS
@given(
    answers,
    st.sampled_from(["main", "main", "main", "old", "0" * 40, "zz"]),
    st.sampled_from(["", "", "", "a", "nope", "../x"]),
)
def test_resolutions(clashing: tuple[Kit, str, list[str]], given_answers: list[Any], against: str, extra: str) -> None:
    kit, change, paths = clashing
    head = kit.main()
    files = {p: a for p, a in zip(paths, given_answers, strict=True) if a is not None}
    if extra:
        files[extra] = {"take": "ours"}
    said = {
        "against": {"main": head, "old": kit.store.objects.commit(head).parents[0]}.get(against, against),
        "files": files,
    }
    try:
        resolution = msgspec.convert(said, Resolution)
    except msgspec.ValidationError:
        return
    before = recorded(kit)
    try:
        landed = kit.land(change, answer=resolution)
    except RopewalkError as error:
        codes = ("E_INVALID", "E_CONFLICT", "E_NOT_FOUND", "E_CAS_MISMATCH", "E_LAND_MISMATCH", "E_AMBIGUOUS")
        assert error.code in codes, (error.code, error.message)
        assert recorded(kit) == before, said
        if isinstance(error, ConflictError):
            assert msgspec.json.encode(error.details)
        return
    assert landed.status == "landed"
    out = kit.files(landed.landed)
    assert not [p for p, (_, text) in out.items() if b"<<<<<<<" in text or b"~" in p], said
    for name, one in files.items():
        if one.get("take") and not one.get("move_to") and name == paths[0]:
            wanted_text = {"ours": texts(5, "ours"), "theirs": texts(5, "theirs"), "base": "".join(LINES)}[one["take"]]
            assert out[name.encode()][1].decode() == wanted_text
        if one == {"delete": True}:
            assert name.encode() not in out
    # back to the clash for the next answer
    from ropewalk.store import refs

    refs.undo(kit.store, "test/one", kit.store.last_op())
    assert kit.main() == head


word = st.sampled_from(["", "zz", "0" * 40, "refs/heads/main", "main", "refs/heads/nope", "../x", "\0", "x" * 500])
waiting = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda request, key, since: msgspec.msgpack.encode({**request, "key": key, "digest": b"d", "since": since}),
        st.fixed_dictionaries({"id": word, "agent": word, "change": word, "ref": word}),
        st.sampled_from([None, "k", "\0"]), st.sampled_from([None, -1, 7, 2**62])),
)  # fmt: skip


@ROUNDS
@given(waiting, st.booleans())
def test_a_waiting_request_that_is_nonsense_hinders_nobody(kit: Kit, body: bytes, whole: bool) -> None:
    """A slot of the spool whose owner lives holds any bytes; whoever lands goes on, and answers what is a request."""
    folder = Path(kit.store.layout.spool)
    path = folder / "1-abcdef.req"
    (folder / "1-abcdef.ans").write_bytes(b"")
    head = len(body).to_bytes(8, "big") + zlib.crc32(body).to_bytes(4, "big")
    path.write_bytes(head + body if whole else body)
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        before, op = kit.main(), kit.store.last_op()
        landed = kit.change(put("spooled", f"{op}\n"))
        assert landed.status == "landed" and kit.store.last_op() == op + 2
        assert kit.store.objects.commit(kit.main()).parents == (before,)
        asked = spool._read(fd, spool.LandRequest)
        answer = os.open(folder / "1-abcdef.ans", os.O_RDONLY)
        try:
            said = spool._read(answer, spool.Answer)
        finally:
            os.close(answer)
        assert (asked is None) == (said is None)
        assert said is None or asked is None or (said.id == asked.id and said.result is None)
    finally:
        os.close(fd)
        path.unlink()
        (folder / "1-abcdef.ans").unlink()


def test_what_was_recorded_is_whole(kit: Kit) -> None:
    """After everything above the store has no fault, and stock git agrees."""
    from ropewalk.store import verify

    assert verify.verify(kit.store, deep=True, progress=lambda line: None).problems == []
    kit.fsck()
