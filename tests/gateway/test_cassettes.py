"""Cassettes without programs: what makes two requests the same, what is kept, and what a miss says."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import msgspec
import pytest
from tests.gateway.kit import KEY, PATHS, TOKEN, gateway, simple

from ropewalk.core.errors import CageUnavailableError, InvalidError, NotFoundError
from ropewalk.gateway import cassette, host, settings
from ropewalk.gateway.cassette import Cassette, normal
from ropewalk.gateway.settings import Lane, Tape, Upstream
from ropewalk.testing.model_server import ModelServer

RECENT = "Recent commits:\n"


def said(text: str, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (said("a", metadata={"user_id": "x"}), said("a", metadata={"user_id": "y"}), True),
        (said("a", prompt_cache_key="x"), said("a"), True),
        (said(f"see {uuid.uuid4()}"), said(f"see {uuid.uuid4()}"), True),
        (said("call_abcd1 then call_abcd1"), said("call_zzzz9 then call_zzzz9"), True),
        (said("call_abcd1 then call_abcd1"), said("call_abcd1 then call_zzzz9"), False),
        (said("at 3f2a91c the tree"), said("at 77ab012 the tree"), True),
        (said("1234567 items"), said("7654321 items"), False),  # a number is no commit
        (said("Chunk ID: ab12\nWall time: 0.05 seconds\n"), said("Chunk ID: ff00\nWall time: 9.1 seconds\n"), True),
        (said(f"{RECENT}bc4e605 Begin\n\nx"), said(f'{RECENT}77ab012 Say "a"\nbc4e605 Begin\n\nx'), True),
        (said(f"{RECENT}bc4e605 Begin\n\nx"), said(f"{RECENT}bc4e605 Begin\n\ny"), False),
        (said("on 2026-01-01T10:00:00Z"), said("on 2027-05-05T11:11:11Z"), True),
        (said("a"), said("b"), False),
        (said("a", temperature=1), said("a", temperature=0), False),
        (said("a", model="m"), said("a", model="n"), False),
    ],
)  # fmt: skip
def test_G2_what_is_the_same_request(one: dict[str, object], two: dict[str, object], same: bool) -> None:
    assert (normal(one) == normal(two)) is same


def test_G2_fields_that_a_program_draws_anew_are_passed_over() -> None:
    def made(number: int) -> dict[str, object]:
        return {"input": [{"id": f"x{number}", "text": "a"}, {"id": f"y{number}"}], "reasoning": {"summary": number}}

    assert normal(made(1)) != normal(made(2))
    assert normal(made(1), ("input.*.id", "reasoning.summary")) == normal(made(2), ("input.*.id", "reasoning.summary"))


def test_G2_the_names_of_a_run_are_passed_over(tmp_path: Path) -> None:
    for name in ("tape", "tape.jsonl"):
        path = str(tmp_path / name)
        cassette.begin(path)
        cassette.begin(path)  # one that is still empty is as good as none
        first, second = (
            (f"branch att-run-{one}, by claude/run-{one}", (f"att-run-{one}", f"run-{one}")) for one in ("zq-1", "ww-2")
        )
        Cassette(path, first[1]).keep("l", "chat", said(first[0]), (), 200, {}, [b"a"])
        assert not isinstance(Cassette(path, second[1]).find("l", "chat", said(second[0]), ()), str)
        assert isinstance(Cassette(path).find("l", "chat", said(second[0]), ()), str)
        with pytest.raises(InvalidError, match="holds recordings"):
            cassette.begin(path)
    for place in (tmp_path, tmp_path / "nothing", Path("/dev/zero"), Path("/etc/passwd")):
        with pytest.raises(NotFoundError):
            cassette.opened(str(place))


def test_G2_the_nth_of_equal_requests_gets_the_nth_answer(tmp_path: Path) -> None:
    for number in range(2):  # a gateway that started anew goes on behind what is there
        kept = Cassette(str(tmp_path))
        for part in (b"a", b"b"):
            kept.keep("l", "chat", said("x"), (), 200, {"content-type": "text/x"}, [b"%d" % number, part])
    played = Cassette(str(tmp_path))
    found = [played.find("l", "chat", said("x"), ()) for _ in range(5)]
    assert [b"".join(one.parts()) for one in found[:4] if not isinstance(one, str)] == [b"0a", b"0b", b"1a", b"1b"]
    assert isinstance(found[4], str)
    other = played.find("l", "chat", said("y"), ())
    assert isinstance(other, str) and '"y"' in other and '"x"' in other and "recorded is" in other
    assert "nothing is recorded" in str(played.find("nobody", "chat", said("x"), ()))


def test_what_looks_like_a_key_is_not_kept_and_words_are(tmp_path: Path) -> None:
    first = b"\xe4\xb8\x96 the task-list-of-things-to-do, a disk-usage-report; key sk-12345678"
    parts = [first, b"90123456789 and org-99 " + KEY.encode()]
    kept = Cassette(str(tmp_path))
    kept.keep(
        "l", "chat", said(f"Bearer {'a' * 20} {TOKEN}"), (), 200, {"openai-organization": "me"}, parts, ["org-99"]
    )
    (path,) = tmp_path.rglob("*.json")
    text = path.read_text(encoding="utf-8")
    for word in (KEY, TOKEN, "sk-12345678", "aaaaaaaaaa", "openai", "org-99"):
        assert word not in text
    assert "task-list-of-things-to-do" in text and "disk-usage-report" in text
    assert os.stat(path).st_mode & 0o077 == 0
    assert msgspec.json.decode(text, type=cassette.Recording).status == 200


def test_record_and_replay_through_the_gateway(tmp_path: Path, server: ModelServer) -> None:
    server.add("taped", [{"text": "the recorded words"}])
    tape = str(tmp_path / "tape")
    with gateway(tmp_path / "one", simple(server.url("taped", "taped"), tape=Tape("record", tape))) as made:
        first = {(w, s): made.send(w, stream=s).data for w in PATHS for s in (True, False)}
        made.swap("up", Upstream(server.url("taped", "taped+ctx"), KEY))
        wrong = made.send("chat", "too long")
        assert wrong.status == 400
    asked = len(server.entries("taped"))
    how = simple("http://127.0.0.1:9", tape=Tape("replay", tape))
    # another run, in which the lane has another id
    lane = Lane("run2/one/1", "run2", "one", "test", ("up",), tape=Tape("replay", tape))
    with gateway(tmp_path / "two", msgspec.structs.replace(how, lanes={TOKEN: lane})) as made:
        for (wire, stream), data in first.items():
            assert made.send(wire, stream=stream).data == data
        again = made.send("chat", "too long")
        assert (again.status, again.data) == (400, wrong.data)
        miss = made.send("chat", "never asked")
        assert miss.status == 400 and miss.headers["x-should-retry"] == "false"
        assert miss.json()["error"]["type"] == "cassette_miss" and "never asked" in miss.json()["error"]["message"]
        assert made.activity("run2/one/1").error.startswith("cassette_miss: ")
        assert made.activity("run2/one/1").tokens.total == 0 and not made.entries()
    assert len(server.entries("taped")) == asked


@pytest.mark.parametrize("level", ["files", "none"])
def test_G1_a_cassette_is_played_in_a_full_cage_alone(tmp_path: Path, level: str) -> None:
    folder = str(tmp_path)
    lane = Lane("r/t/1", tape=Tape("replay", str(tmp_path / "tape")))
    before = settings.read(folder)
    with pytest.raises(CageUnavailableError):
        host.admit(folder, lane, level=level)
    assert settings.read(folder) == before
    assert host.admit(folder, lane, level="full")
    for tape in (None, Tape("record", str(tmp_path / "tape"))):
        assert host.admit(folder, msgspec.structs.replace(lane, tape=tape), level=level)


def test_a_damaged_recording_is_said(tmp_path: Path) -> None:
    kept = Cassette(str(tmp_path))
    kept.keep("l", "chat", said("x"), (), 200, {}, [b"a"])
    (path,) = tmp_path.rglob("*.json")
    path.write_bytes(path.read_bytes()[:-20])
    assert "can't be read" in str(Cassette(str(tmp_path)).find("l", "chat", said("x"), ()))
    assert "nothing is recorded" in str(Cassette(str(tmp_path)).find("l", "chat", said("z"), ()))
