"""Budgets through the process: every cap, many streams at once, no price, and sums that are the server's."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from tests.gateway.kit import KEY, PATHS, TOKEN, body, counted, gateway, send, simple

from ropewalk.gateway import host, prices
from ropewalk.gateway.budget import Cap
from ropewalk.gateway.ledger import Entry, Ledger
from ropewalk.gateway.prices import Price
from ropewalk.gateway.settings import Lane, Settings, Upstream
from ropewalk.gateway.tokens import Tokens
from ropewalk.testing.model_server import ModelServer

DAY = time.strftime("%Y-%m-%d", time.gmtime())


@pytest.fixture(autouse=True)
def script(server: ModelServer) -> None:
    server.add("paid", {"steps": [{"text": "word " * 10, "pace": 0.02}],
                        "usage": {"input": 700, "cache_read": 200, "output": 90}})  # fmt: skip


def ask(wire: str = "anthropic", **more: object) -> dict[str, object]:
    return body(wire, "x" * 3000, **{"max_tokens": 100, **more})


@pytest.mark.parametrize("what", ["tokens", "dollars"])
def test_G12_32_streams_at_once_pass_no_cap_by_more_than_one_request(
    tmp_path: Path, server: ModelServer, what: str
) -> None:
    price = Price(10.0, 10.0, 10.0, 10.0)  # so that a dollar is 100,000 tokens
    cap = Cap(tokens=20_000) if what == "tokens" else Cap(dollars=0.2)
    lane = f"many-{what}"
    up = {"up": Upstream(server.url(lane, "paid"), KEY, price=price, slots=32)}
    with gateway(tmp_path / "gw", simple("", upstreams=up, caps={"run:run": cap}, hold=20.0)) as made:
        with ThreadPoolExecutor(32) as pool:
            found = [got.status for got in pool.map(lambda n: send(made.port, PATHS["anthropic"], ask()), range(64))]
        assert set(found) == {200, 400}
        entries = [e for e in made.entries() if e.outcome == "answered"]
        used = sum((e.tokens or Tokens()).total for e in entries)
        largest = max(len(msgspec.json.encode(ask())) // 3, 990) + 100
        assert 20_000 - 990 <= used <= 20_000 + largest
        charged = server.counts()[lane].charged
        assert used == counted(charged).total
        # whoever only waited for what others reserved is not told that the budget is spent before it is
        assert found.count(200) == len(entries) == 21
        got = send(made.port, PATHS["anthropic"], ask())
        assert got.status == 400 and "run:run is spent" in got.json()["error"]["message"]
        assert got.headers["x-should-retry"] == "false"
        assert made.activity().error == "budget: run:run"


def test_every_cap_holds_and_after_a_start_anew(tmp_path: Path, server: ModelServer) -> None:
    caps = {"tokens": Cap(tokens=900), "dollars": Cap(dollars=0.001), "requests": Cap(requests=1)}
    names = {"run": "run:{0}", "task": "task:{0}/t", "lane": "lane:{0}/t/1", "provider": "provider:{0}"}
    cases = [f"{kind}-{what}" for kind in names for what in caps]
    lanes = {f"{TOKEN}{one}": Lane(f"{one}/t/1", one, "t", upstreams=(one,)) for one in cases}
    ups = {one: Upstream(server.url(one, "paid"), KEY) for one in cases}
    held = {names[one.split("-")[0]].format(one): caps[one.split("-")[1]] for one in cases}
    with gateway(tmp_path / "gw", Settings(ups, lanes, held)) as made:

        def status(one: str) -> int:
            return send(made.port, PATHS["anthropic"], ask(), token=f"{TOKEN}{one}").status

        for one in cases:
            assert [status(one) for _ in range(3)] == [200, 400, 400], one
            assert len(server.entries(one)) == 1
        made.end()
        made.start()
        assert {status(one) for one in cases} == {400}
        host.cap(made.folder, {"run:run-tokens": Cap(tokens=10**6)})
        assert status("run-tokens") == 200


@pytest.mark.parametrize("name", ["day", f"day:{DAY}"])
def test_the_cap_of_a_day_is_that_days(tmp_path: Path, server: ModelServer, name: str) -> None:
    folder = tmp_path / "gw"
    with gateway(folder, simple(server.url("day", "paid"), caps={name: Cap(requests=2)}), started=False) as made:
        before = Ledger(str(folder))
        for days in (1, 40):
            before.note(Entry(f"old{days}", time.time() - 86_400 * days, "run/one/1", "run", "one", "test", "up", "m",
                              "chat", 200, "answered", Tokens(10**9)))  # fmt: skip
        before.close()
        made.start()
        assert [send(made.port, PATHS["anthropic"], ask()).status for _ in range(3)] == [200, 200, 400]


def test_a_provider_whose_cap_is_reached_leaves_it_to_the_next(tmp_path: Path, server: ModelServer) -> None:
    ups = {name: Upstream(server.url(f"next-{name}", "paid"), KEY) for name in ("a", "b")}
    with gateway(tmp_path / "gw", simple("", upstreams=ups, caps={"provider:a": Cap(requests=1)})) as made:
        assert [send(made.port, PATHS["anthropic"], ask()).status for _ in range(3)] == [200] * 3
        assert (len(server.entries("next-a")), len(server.entries("next-b"))) == (1, 2)


def test_L26_devflock_A7_without_a_price_the_cost_is_unknown_and_the_cap_of_tokens_holds(
    tmp_path: Path, server: ModelServer
) -> None:
    caps = {"run:run": Cap(dollars=0.000001, tokens=1500)}
    with gateway(tmp_path / "gw", simple(server.url("free", "paid"), caps=caps)) as made:
        found = [send(made.port, PATHS["chat"], ask("chat", model="nobody-knows")).status for _ in range(4)]
        assert found == [200, 200, 400, 400]
        first = made.entries()[0]
        assert (first.dollars, first.mark) == (None, "*")
        assert (made.activity().cost.dollars, made.activity().cost.mark) == (None, "*")


def test_when_the_cap_is_near_the_answer_is_bounded(tmp_path: Path, server: ModelServer) -> None:
    with gateway(tmp_path / "gw", simple(server.url("near", "paid"), caps={"run:run": Cap(tokens=30_000)})) as made:
        for most in (2000, 32_000):
            assert send(made.port, PATHS["anthropic"], ask(max_tokens=most)).status == 200
        sent = [msgspec.json.decode(server.body(e.number) or b"")["max_tokens"] for e in server.entries("near")]
        assert sent == [2000, 256]  # it would pass the cap; twice its last answer is likely


def test_L26_sums_of_many_lanes_are_the_servers(tmp_path: Path, server: ModelServer) -> None:
    made_settings = simple(server.url("sums", "paid"))
    lanes = {f"{TOKEN}{n}": Lane(f"run/t{n}/1", "run", f"t{n}", upstreams=(f"up{n}",)) for n in range(4)}
    ups = {f"up{n}": Upstream(server.url(f"sums{n}", "paid"), KEY, price=Price(1.0, 2.0)) for n in range(4)}
    with gateway(tmp_path / "gw", msgspec.structs.replace(made_settings, lanes=lanes, upstreams=ups)) as made:
        with ThreadPoolExecutor(8) as pool:
            jobs = [(wire, n) for wire in PATHS for n in range(4) for _ in range(3)]
            found = pool.map(lambda j: made.send(j[0], token=f"{TOKEN}{j[1]}").status, jobs)
            assert set(found) == {200}
        made.settled(48)
        for n in range(4):
            charged = counted(server.counts()[f"sums{n}"].charged, written=False, reasoning=False)
            activity = made.activity(f"run/t{n}/1")
            assert activity.tokens == charged and activity.requests == 12 and activity.open == 0
            assert activity.cost.dollars == pytest.approx(
                (charged.input + charged.cache_read + 2 * charged.output) / 1e6
            )


def test_prices_are_edited_in_mid_run_and_a_damaged_table_leaves_the_one_before(
    tmp_path: Path, server: ModelServer
) -> None:
    table = tmp_path / "prices.toml"
    table.write_text('as_of = "2026-01-01"\n[models]\n"mine*" = { input = 1.0, output = 1.0 }\n', encoding="utf-8")
    with gateway(tmp_path / "gw", simple(server.url("table", "paid"), prices=str(table))) as made:

        def dollars() -> float | None:
            count = len(made.entries())
            assert send(made.port, PATHS["chat"], ask("chat", model="mine-1")).status == 200
            return made.settled(count + 1)[-1].dollars

        assert dollars() == pytest.approx(990 / 1e6)
        table.write_text("as_of = [", encoding="utf-8")
        assert dollars() == pytest.approx(990 / 1e6)
        table.write_text('as_of = "2026-01-01"\n[models]\n"mine*" = { input = 2.0, output = 2.0 }\n', encoding="utf-8")
        assert dollars() == pytest.approx(2 * 990 / 1e6)
        table.unlink()
        assert dollars() == pytest.approx(2 * 990 / 1e6)
    assert prices.read(str(table)).price("mine-1") is None
