"""Parts of the gateway by themselves: pauses, slots, usage off odd wires, the stripped chunk, and reservations."""

from __future__ import annotations

import asyncio
import random
import time
from email.utils import formatdate

import msgspec
import pytest

from ropewalk.gateway import answers, budget, rewrite
from ropewalk.gateway.budget import Budget, Cap, Expected, Refused
from ropewalk.gateway.prices import NOTHING, Cost, Price
from ropewalk.gateway.tokens import Tokens
from ropewalk.gateway.traffic import Account, Full
from ropewalk.gateway.usage import UsageReader

PRICE = Price(3.0, 15.0, 0.3, 3.75)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"Retry-After": "3"}, 3), ({"retry-after": " 0.5 "}, 0.5), ({"retry-after": "1e9"}, 3600), ({}, None),
     ({"retry-after-ms": "250", "retry-after": "9"}, 0.25), ({"retry-after": "nan"}, None),
     ({"retry-after": "inf"}, None),
     ({"retry-after": "-1"}, None), ({"retry-after": "0"}, None), ({"retry-after": "tomorrow"}, None),
     ({"retry-after": "Wed, 99 Foo 2000"}, None), ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None)],
)  # fmt: skip
def test_a_pause_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert answers.retry_after(headers) == seconds


def test_a_pause_may_be_a_date() -> None:
    found = answers.retry_after({"Retry-After": formatdate(time.time() + 60, usegmt=True)})
    assert found is not None and 55 < found < 61


def test_slots_are_given_in_order_and_none_is_lost_however_waits_end() -> None:
    async def play() -> None:
        account, dice, served = Account(3, 0), random.Random(5), []

        async def one(number: int) -> None:
            async with account.slot(time.monotonic() + dice.choice((0.0, 0.01, 5.0))):
                served.append(number)
                assert account.busy <= account.slots
                await asyncio.sleep(dice.uniform(0, 0.004))

        tasks = [asyncio.create_task(one(n)) for n in range(300)]
        for task in dice.sample(tasks, 100):
            await asyncio.sleep(0.001)
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(e is None or isinstance(e, (Full, asyncio.CancelledError)) for e in ended)
        assert account.busy == 0 and not account.waiting
        assert served

    asyncio.run(play())


def test_a_rate_is_kept() -> None:
    async def play() -> None:
        account = Account(9, 3)
        for _ in range(3):
            await account.turn(time.monotonic())
        with pytest.raises(Full) as full:
            await account.turn(time.monotonic() + 1)
        assert 58 < full.value.seconds <= 60

    asyncio.run(play())


def test_an_open_breaker_lets_one_through_and_its_end_decides() -> None:
    account = Account(1, 0)
    for _ in range(5):
        assert not account.begin()
        account.failed()
    assert 9 < account.is_open() <= 10
    account._open_until = 0.0  # the pause is over
    assert account.is_open() == 0.0 and account.begin()
    assert account.is_open() == 1.0 and not account.begin()
    account.failed()
    account.end(True)
    assert 19 < account.is_open() <= 20
    account._open_until = 0.0
    assert account.begin()
    account.worked()
    account.end(True)
    assert account.is_open() == 0.0 and not account.begin()


def read(wire: str, *parts: bytes, streamed: bool = True) -> object:
    reader = UsageReader(wire, streamed=streamed)  # type: ignore[arg-type]
    for part in parts:
        reader.feed(part)
    return reader.end()


def test_a_stream_is_read_however_it_is_cut_into_parts() -> None:
    text = (
        b'event: message_start\r\ndata: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":10,'
        b'"cache_read_input_tokens":7,"cache_creation_input_tokens":3,"output_tokens":1}}}\r\n\r\n'
        b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"abcdef"}}\n\n'
        b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        b'"usage":{"input_tokens":0,"output_tokens":42}}\n\n'
        b'data: {"type":"message_stop"}\n\n'
    )  # fmt: skip
    whole = read("anthropic", text)
    assert whole == read("anthropic", *(text[i : i + 1] for i in range(len(text))))
    assert msgspec.structs.asdict(whole.tokens) == {  # type: ignore[attr-defined]
        "input": 10, "cache_read": 7, "cache_write": 3, "output": 42, "reasoning": 0}  # fmt: skip
    assert whole.complete and whole.made == 2 and whole.stop == "end_turn"  # type: ignore[attr-defined]


def test_L26_writes_to_either_cache_are_in_the_total_once() -> None:
    """What is written for an hour is in the sum as well as by itself; what is said again replaces what was said."""
    usage = {"input_tokens": 10, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 30, "output_tokens": 5,
             "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}}  # fmt: skip
    start = {"type": "message_start", "message": {"id": "m", "usage": usage | {"output_tokens": 1}}}
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    events = [b"data: " + msgspec.json.encode(one) + b"\n\n" for one in (start, delta, start, delta)]
    assert read("anthropic", *events).tokens == Tokens(10, 7, 30, 5)  # type: ignore[attr-defined]
    whole = msgspec.json.encode({"type": "message", "id": "m", "usage": usage})
    assert read("anthropic", whole, streamed=False).tokens == Tokens(10, 7, 30, 5)  # type: ignore[attr-defined]


def test_geminis_array_over_many_lines_is_read() -> None:
    text = msgspec.json.format(msgspec.json.encode([
        {"candidates": [{"content": {"parts": [{"text": "a"}]}}]},
        {"candidates": [{"finishReason": "STOP"}],
         "usageMetadata": {"promptTokenCount": 9, "cachedContentTokenCount": 4, "candidatesTokenCount": 2,
                           "thoughtsTokenCount": 3}},
    ]))  # fmt: skip
    found = read("gemini", text[:50], text[50:], streamed=False)
    assert found.tokens == Tokens(5, 4, 0, 5, 3) and found.complete  # type: ignore[attr-defined]


def test_reasoning_counts_once_whether_the_completion_holds_it_or_not() -> None:
    def usage(total: int) -> bytes:
        return msgspec.json.encode({"id": "x", "choices": [{"finish_reason": "stop"}], "usage": {
            "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": total,
            "completion_tokens_details": {"reasoning_tokens": 4}}})  # fmt: skip

    assert read("chat", usage(15), streamed=False).tokens == Tokens(10, output=5, reasoning=4)  # type: ignore[attr-defined]
    assert read("chat", usage(19), streamed=False).tokens == Tokens(10, output=9, reasoning=4)  # type: ignore[attr-defined]


JUNK = (b"data: {\n\n", b"data: [1,2]\n\n", b"\xff\xfe\n", b'data: {"usage":{"prompt_tokens":-1}}\n',
        b'data: {"usage":[],"choices":{}}\n', b'data: {"choices":[3,{"delta":4}]}\n', b"[" * 5000)  # fmt: skip


@pytest.mark.parametrize("junk", JUNK)
def test_what_no_format_knows_does_no_harm(junk: bytes) -> None:
    for wire in ("anthropic", "chat", "responses", "gemini"):
        for streamed in (True, False):
            assert read(wire, junk, junk, streamed=streamed).tokens is None  # type: ignore[attr-defined]


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    reader = UsageReader("chat", streamed=True)
    for _ in range(200):
        reader.feed(b"x" * 100_000)
        assert len(reader._rest) <= 8 << 20
    reader.feed(b'\ndata: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n')
    assert reader.end().tokens == Tokens(3, output=4)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_only_our_own_chunk_is_stripped(end: bytes, size: int) -> None:
    ours = b'data: {"choices": [], "usage": {"prompt_tokens":1}}'
    said = msgspec.json.encode({"choices": [{"delta": {"content": '"choices":[] "usage":{'}}], "usage": {"a": 1}})
    keep = [b"data: " + said, b": a comment", b'data: {"choices":[],"prompt_filter_results":[]}', b"data: [DONE]"]
    text = end.join([*keep[:3], ours, keep[3]]) + end
    strip = rewrite.Strip()
    got = b"".join(strip.feed(text[i : i + size]) for i in range(0, len(text), size)) + strip.end()
    assert got == end.join(keep) + end


def test_G12_a_cap_is_never_passed_by_more_than_one_reserved_request() -> None:
    """Plays orders of requests and settlements at random; each uses as much as it may."""
    for seed in range(300):
        dice = random.Random(seed)
        limit, dollars = dice.randint(1_000, 200_000), dice.uniform(0.01, 2.0)
        kept = Budget({"run:1": Cap(tokens=limit), "day": Cap(dollars=dollars)})
        names, flying, largest, dearest = ["run:1", "day:2030-01-01"], [], 0, 0.0
        for _ in range(200):
            if dice.random() < 0.6:
                given, likely = dice.randint(1, 9000), dice.randint(256, 4000)
                most = dice.choice((likely, 8000, 32_000, budget.LONGEST))
                try:
                    held = kept.reserve(names, given, PRICE, min(likely, most), most)
                except Refused:
                    continue
                flying.append((held, given, held.output or max(most, likely)))
                largest = max(largest, given + min(likely, most))
                dearest = max(dearest, PRICE.most(given, min(likely, most)))
            elif flying:
                held, given, output = flying.pop(dice.randrange(len(flying)))
                part = dice.choice((0.0, 0.3, 1.0))
                kept.settle(held, Tokens(cache_write=given, output=int(output * part)), PRICE)
        for held, given, output in flying:
            kept.settle(held, Tokens(cache_write=given, output=output), PRICE)
        run, day = kept.spent["run:1"], kept.spent["day:2030-01-01"]
        assert run.tokens.total <= limit + largest
        assert (day.cost.dollars or 0) <= dollars + dearest + 1e-9
        assert (run.reserved_requests, run.reserved_tokens, run.reserved_dollars) == (0, 0, 0.0)


def test_a_bound_on_the_answer_is_set_in_the_field_of_each_format() -> None:
    assert budget.bounded({"max_tokens": 9}, "anthropic", 5) == {"max_tokens": 5}
    assert budget.bounded({}, "chat", 5) == {"max_completion_tokens": 5}
    assert (
        budget.bounded({}, "chat", 5, plain=True) == budget.bounded({"max_tokens": 7}, "chat", 5) == {"max_tokens": 5}
    )
    assert budget.bounded({}, "responses", 5) == {"max_output_tokens": 5}
    assert budget.bounded({"generationConfig": {"topK": 1}}, "gemini", 5) == {
        "generationConfig": {"topK": 1, "maxOutputTokens": 5}
    }


def test_what_is_likely_comes_from_the_lanes_last_answers() -> None:
    expected = Expected()
    assert expected.output("a", {"max_tokens": 32_000}) == (4000, 32_000)
    for _ in range(20):
        expected.note("a", 500)
    assert expected.output("a", {"max_tokens": 32_000}) == (1000, 32_000)
    assert expected.output("a", {"max_tokens": 300}) == (300, 300)
    assert expected.output("a", {}) == (1000, budget.LONGEST)
    assert expected.output("a", {"max_tokens": 32_000, "thinking": {"budget_tokens": 10_000}}) == (11_024, 32_000)
    assert expected.output("b", {"max_tokens": True}) == (4000, budget.LONGEST)


def test_L26_a_cost_that_is_not_known_is_never_nothing() -> None:
    assert Cost(1.0) + Cost(None, "*") == Cost(1.0, "*")
    assert NOTHING + Cost(None, "*") == Cost(None, "*") + NOTHING == Cost(None, "*")
    assert Cost(None, "*") + Cost(None, "*") == Cost(None, "*")
    assert Cost(1.0, "≈") + Cost(1.0) == Cost(2.0, "≈")
