"""Budgets and cassettes by command: a whole run, its model server's own ledger beside it, and a replay without one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.gateway import process
from ropewalk.store.store import Store
from ropewalk.testing.model_server import ModelServer, running

AGENT = """
import json, os, sys, threading, urllib.error, urllib.request
prompt, count = sys.stdin.read(), int(sys.argv[1])
url, key = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", os.environ["ANTHROPIC_API_KEY"]
said = []
def ask(number):
    body = {"model": os.environ.get("ROPEWALK_MODEL", "claude-sonnet-4-5"), "max_tokens": 100, "stream": True,
            "messages": [{"role": "user", "content": f"{number} " + "x" * 3000}]}
    heads = {"x-api-key": key, "content-type": "application/json"}
    asked = urllib.request.Request(url, json.dumps(body).encode(), heads)
    for _ in range(40):
        try:
            said.append((number, urllib.request.urlopen(asked).read().decode()))
            return
        except urllib.error.HTTPError as error:
            if error.code != 429:
                said.append((number, f"{error.code} {error.read().decode()}"))
                return
threads = [threading.Thread(target=ask, args=(n,)) for n in range(count)]
[one.start() for one in threads]
[one.join() for one in threads]
good = [n for n, text in said if "message_stop" in text]
name = os.environ["ROPEWALK_TASK"].rpartition(".")[2]
open(f"{name}.txt", "w").write("".join(f"{n}\\n" for n in sorted(good)) + os.environ["GIT_AUTHOR_NAME"] + "\\n")
print("done" if len(good) == count else [text for n, text in said if n not in good][0][:300])
sys.exit(len(good) != count)
"""


class Kit:
    """Is a store with commands as processes, a model server, and an agent that asks it."""

    def __init__(self, store: Store, folder: Path, env: dict[str, str], server: ModelServer) -> None:
        self.store, self.root, self.folder, self.server = store, store.layout.root, folder, server
        self.env = {k: v for k, v in env.items() if not k.startswith("GIT_")} | {
            "XDG_DATA_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "config"),
            "ROPEWALK_AGENT": "person/me", "ROPEWALK_CAGE": "none", "PYTHONDEVMODE": "",
        }  # fmt: skip
        (folder / "agent.py").write_text(AGENT)
        self.gateway = str(folder / "data" / "ropewalk" / "gateway")

    def endpoints(self, name: str, more: str = "") -> None:
        """Writes the user's endpoints: the model server, a dollar for 100,000 tokens."""
        path = self.folder / "config" / "ropewalk" / "endpoints.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        url = self.server.url(name, "paid")
        path.write_text(f'[endpoints.up]\nurl = "{url}"\nkey = "sk-real-key-0123456789"\nwires = ["anthropic"]\n'
                        f"slots = 32\n{more}")  # fmt: skip
        path.chmod(0o600)

    def command(self, count: int) -> list[str]:
        """Gives the words that name the agent."""
        return ["--command", f"{sys.executable} {self.folder}/agent.py {count}"]

    def tasks(self, count: int, answers: int = 1) -> str:
        """Writes a task file; each wants so many answers."""
        found = [{"id": f"t{n}", "description": f"Do {n}.", "check": f"test $(grep -c '^[0-9]' t{n}.txt) -ge {answers}"}
                 for n in range(count)]  # fmt: skip
        (self.folder / "tasks.json").write_bytes(msgspec.json.encode({"tasks": found}))
        return str(self.folder / "tasks.json")

    def rw(self, *words: str, exit: int | None = 0) -> dict[str, Any]:
        """Runs a command and gives its result, or its error."""
        done = subprocess.run([sys.executable, "-m", "ropewalk.cli.main", *words, "--store", self.root, "--json"],
                              cwd=self.folder, env=self.env, capture_output=True, timeout=180)  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        found: dict[str, Any] = msgspec.json.decode(done.stdout)
        assert exit is None or done.returncode == exit, (done.returncode, found)
        return dict(found["result"] if found["ok"] else found["error"])


@pytest.fixture
def kit(store: Store, tmp_path: Path, clean: dict[str, str]) -> Iterator[Kit]:
    """Gives commands on a store, whose gateway is ended behind them."""
    with running() as server:
        server.add("paid", {"steps": [{"text": "word " * 10, "pace": 0.01}],
                            "usage": {"input": 700, "cache_read": 200, "output": 90}})  # fmt: skip
        made = Kit(store, tmp_path, clean, server)
        yield made
        if (address := process.read_address(made.gateway)) is not None:
            os.kill(address.pid, signal.SIGKILL)


@pytest.mark.parametrize("what", ["tokens", pytest.param("dollars", marks=pytest.mark.slow)])
def test_G12_a_run_of_32_streams_passes_its_cap_by_no_more_than_one_request(kit: Kit, what: str) -> None:
    kit.endpoints("run", "price = { input = 10.0, output = 10.0, cache_read = 10.0 }\n")
    words = ["--max-tokens", "20000"] if what == "tokens" else ["--budget", "0.2"]
    done = kit.rw("run", "--tasks", kit.tasks(4, 8), *kit.command(8), "--jobs", "4", *words, exit=None)
    assert done.get("landed", 4) < 4, done
    charged = kit.server.counts()["run"].charged
    used = charged.input + charged.cache_read + charged.cache_write + charged.output
    request = 3200 // 3 + 100
    assert 20_000 - 990 <= used <= 20_000 + request, (used, done)
    shown = kit.rw("gateway", "status")
    assert shown["lanes"] == [] and shown["budgets"] == []  # they go with the lanes
    from ropewalk.gateway import ledger

    account = ledger.spent(kit.gateway).spent[f"run:{done['id']}"]
    assert account.tokens.total == used and account.cost.dollars == pytest.approx(used / 100_000)
    assert kit.server.counts()["run"].answers == account.requests


def test_L27_without_a_price_tokens_hold_the_budget_and_it_is_said(kit: Kit) -> None:
    kit.endpoints("unpriced", "[budget]\nday = { dollars = 9.0 }\nprovider.up = 8.0\n")
    words = ["--model", "nobody-knows-it", "--budget", "0.03", "--wait"]
    kit.rw("lane", "start", "one", "Do it.", *kit.command(8), *words, exit=13)
    charged = kit.server.counts()["unpriced"].charged
    used = charged.input + charged.cache_read + charged.output
    assert 2000 <= used <= 3000 + 3200 // 3 + 100
    shown = kit.rw("lane", "show", "one")
    assert shown["lane"]["state"] == "partial" and shown["lane"]["reason"].startswith("budget: run:")
    assert shown["lane"].get("dollars") is None and shown["lane"]["mark"] == "*" and shown["lane"]["tokens"] == used
    budgets = {one["name"]: one for one in kit.rw("gateway", "status")["budgets"]}
    assert set(budgets) == {"day", "provider:up"} and budgets["day"]["cap"] == {"dollars": 9.0}
    assert budgets["day"]["tokens"] == used and "900000 such tokens stand for the dollars" in budgets["day"]["holds"]
    text = subprocess.run([sys.executable, "-m", "ropewalk.cli.main", "gateway", "status", "--human"], env=kit.env,
                          capture_output=True, timeout=60).stdout.decode()  # fmt: skip
    assert "budget day: *0 of 9 dollars" in text and "stand for the dollars" in text


def test_the_users_budgets_hold_for_every_lane(kit: Kit) -> None:
    kit.endpoints("day", "[budget]\nrun = { tokens = 1500 }\nday = { requests = 3 }\n")
    first = kit.rw("lane", "start", "one", "Do it.", *kit.command(4), "--wait", exit=13)
    assert first["lane"]["reason"].startswith("budget: run:") and "/one/1" in first["lane"]["reason"]
    assert kit.server.counts()["day"].answers == 2
    second = kit.rw("lane", "start", "two", "Do it.", *kit.command(4), "--max-tokens", "100000", "--wait", exit=13)
    assert "budget: day" in second["lane"]["reason"]
    assert kit.server.counts()["day"].answers == 3
    kit.endpoints("day", "[budget]\nprovider.elsewhere = 1.0\n")
    error = kit.rw("lane", "start", "three", "Do it.", *kit.command(1), exit=2)
    assert "'elsewhere', which is no endpoint" in error["message"]


@pytest.mark.skipif(not os.path.exists("/usr/bin/bwrap"), reason="bubblewrap is not installed")
@pytest.mark.parametrize("name", ["tape.jsonl", pytest.param("tape", marks=pytest.mark.slow)])
def test_G2_a_run_is_recorded_and_played_back_without_a_model(kit: Kit, name: str) -> None:
    kit.endpoints("taped")
    kit.env["ROPEWALK_CAGE"] = "full"
    Path(kit.root, "authors.toml").write_text(f'["{Path(sys.executable).name}"]\nname = "The Agent"\n')
    words = ["run", "--tasks", kit.tasks(2), *kit.command(2), "--jobs", "2"]
    first = kit.rw(*words, "--record", name)
    asked = len(kit.server.entries("taped"))
    assert (first["landed"], asked) == (2, 4)
    (kit.folder / "config" / "ropewalk" / "endpoints.toml").unlink()
    second = kit.rw(*words, "--replay", name)
    assert second["landed"] == 2 and len(kit.server.entries("taped")) == asked
    trees = [kit.store.objects.commit(one["head"]).tree for one in (first, second)]
    assert trees[0] == trees[1]
    files = [kit.folder / name] if name.endswith("l") else list((kit.folder / name).rglob("*.json"))
    held = b"".join(path.read_bytes() for path in files)
    assert b"sk-real-key" not in held and b"rwl_" not in held
    assert kit.rw(*words, "--record", name, exit=2)["code"] == "E_INVALID"
    # a third run that asks something else: no model, and no network
    third = kit.rw("run", "--tasks", kit.tasks(1), *kit.command(3), "--replay", name, exit=10)
    assert "E_CASSETTE_MISS" in third["tasks"][0]["reason"] and len(kit.server.entries("taped")) == asked
    lane = kit.rw("lane", "start", "x", "Do it.", *kit.command(1), "--replay", name, "--wait", exit=13)
    assert lane["lane"]["state"] == "failed" and lane["lane"]["reason"].startswith("cassette_miss")
    assert (
        kit.rw("run", "--tasks", kit.tasks(1), *kit.command(1), "--replay", "nothing", exit=4)["code"] == "E_NOT_FOUND"
    )
    assert kit.rw(*words, "--replay", name, "--cage", "none", exit=11)["code"] == "E_CAGE_UNAVAILABLE"
