"""Runs that wait: nothing is lost, no task is started meanwhile, everybody says why, and they go on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.board import runs as records
from ropewalk.board.local import LocalBoard
from ropewalk.board.runs import Pause
from ropewalk.store.store import Store

from .conftest import Runs, task
from .test_resume import lands, started, todo

_AGENT = """#!{python}
import http.client, json, os, sys
from urllib.parse import urlsplit
name = sys.stdin.read().split()[1]
base = urlsplit(os.environ["OPENAI_BASE_URL"])
body = json.dumps({{"model": "gpt-5", "max_tokens": 20, "messages": [{{"role": "user", "content": "hello"}}]}})
made = http.client.HTTPConnection("127.0.0.1", base.port, timeout=60)
made.request("POST", base.path + "/chat/completions", body,
             {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}})
got = made.getresponse()
said = got.read()
if got.status != 200:
    sys.exit("the model said " + str(got.status))
open(name, "w").write("asked\\n")
"""


def states(result: dict[str, Any]) -> dict[str, str]:
    """Gives the states of a run's tasks."""
    return {one["id"]: one["state"] for one in result["tasks"]}


def test_a_run_that_is_paused_finishes_what_it_works_on_and_starts_nothing_else(runs: Runs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    child, run = started(runs, todo(gate), b"four: landed", "--jobs", "2")
    said = runs.rw("runs", "pause", run, "--why", "lunch")["result"]
    assert said["state"] == "paused" and said["paused"]["why"] == "by person/me: lunch"
    assert states(said) == {"one": "landed", "two": "running", "three": "waiting", "four": "landed"}
    assert runs.rw("runs", "pause", run, "--why", "again")["result"]["paused"] == said["paused"]
    gate.touch()
    out, errors = child.communicate(timeout=300)
    result = msgspec.json.decode(out)["result"]
    assert (child.returncode, result["state"], result["landed"]) == (14, "paused", 3), errors
    three = next(one for one in result["tasks"] if one["id"] == "three")
    assert three["state"] == "waiting" and three["reason"] == "the run is paused: by person/me: lunch"
    worked = runs.rw("work", "--until-empty", "--harness", "scripted")["result"]
    assert worked.get("tasks", []) == [] and {one["task"] for one in worked["left"]} == {f"{run}.three"}
    assert "by person/me: lunch" in runs.rw("runs", "report", run)["result"]["text"]
    assert runs.rw("runs", "list")["result"]["runs"][0]["state"] == "paused"
    done = runs.rw("runs", "resume", run)["result"]
    assert (done["state"], done["landed"]) == ("done", 4) and "paused" not in done
    assert sorted(lands(runs, run)) == ["four", "one", "three", "two"] and runs.left(run) == []
    assert all(one["attempts"] == 1 for one in done["tasks"])


def test_a_pause_that_is_lifted_before_the_run_came_to_rest_stops_nothing(runs: Runs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    child, run = started(runs, todo(gate), b"four: landed", "--jobs", "2")
    assert runs.rw("runs", "pause", run)["result"]["state"] == "paused"
    answer = runs.rw("runs", "resume", run)
    assert answer["result"]["state"] == "running", answer
    gate.touch()
    out, errors = child.communicate(timeout=300)
    result = msgspec.json.decode(out)["result"]
    assert (child.returncode, result["landed"]) == (0, 4), errors


def test_a_pause_with_a_time_ends_by_itself(runs: Runs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    child, run = started(runs, todo(gate), b"four: landed", "--jobs", "2")
    said = runs.rw("runs", "pause", run, "--seconds", "5")["result"]
    assert said["paused"]["until"] == said["paused"]["at"] + 5
    gate.touch()
    out, errors = child.communicate(timeout=300)
    result = msgspec.json.decode(out)["result"]
    assert (child.returncode, result["landed"]) == (0, 4), errors
    verdicts = {one["id"]: one["ended"] for one in result["tasks"]}
    assert verdicts["three"] >= said["paused"]["until"]
    with Store(runs.root) as store:
        assert records.need(LocalBoard(store), run).paused in (None, Pause(**said["paused"]))


class _Model(BaseHTTPRequestHandler):
    """Answers as a model does that used 110 tokens; one that is limited says for how long."""

    def do_POST(self) -> None:
        """Answers a request."""
        self.rfile.read(int(self.headers["Content-Length"]))
        limited = self.server.limited  # type: ignore[attr-defined]
        value: dict[str, Any] = {"error": {"message": "too much", "type": "requests", "code": "rate_limit_exceeded"}}
        if not limited:
            choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
            value = {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice],
                     "usage": usage}  # fmt: skip
        body = msgspec.json.encode(value)
        self.send_response(429 if limited else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if limited:
            self.send_header("retry-after", str(limited))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        """Says nothing."""


@pytest.fixture
def model(runs: Runs, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """Gives a model that the runs' agents reach through the gateway."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    server.limited = 0  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = tmp_path / "config" / "ropewalk"
    config.mkdir(parents=True)
    place = config / "endpoints.toml"
    place.write_text(
        f'[endpoints.mine]\nurl = "http://127.0.0.1:{server.server_port}/v1"\nkey = "k"\nwires = ["chat"]\n'
    )
    place.chmod(0o600)
    runs.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    agent = tmp_path / "agent"
    agent.write_text(_AGENT.format(python=sys.executable))
    agent.chmod(0o755)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def asking(*names: str) -> list[dict[str, Any]]:
    """Gives tasks whose agents ask a model and write a file, one after the other."""
    return [{"id": name, "prompt": f"write {name}", "check": f"test -s {name}", "needs": list(names[max(0, n - 1) : n])}
            for n, name in enumerate(names)]  # fmt: skip


def test_a_run_whose_budget_is_spent_waits_and_goes_on_with_more(
    runs: Runs, model: ThreadingHTTPServer, tmp_path: Path
) -> None:
    agent = str(tmp_path / "agent")
    code, envelope = runs.run(asking("a", "b", "c"), "--command", agent, "--max-tokens", "50", "--jobs", "1")
    result = envelope["result"]
    assert (code, result["state"]) == (14, "paused"), envelope
    assert states(result) == {"a": "landed", "b": "waiting", "c": "waiting"}
    assert "E_BUDGET" in result["paused"]["why"] and "until" not in result["paused"]
    assert all(one.get("deaths", 0) == 0 for one in result["tasks"])
    kinds = [event["event"] for event in runs.events(result["id"])]
    assert "run_paused" in kinds and "worker_gave_up" not in kinds
    done = runs.rw("runs", "resume", result["id"], "--max-tokens", "100000")["result"]
    assert (done["state"], done["landed"]) == ("done", 3), done


def test_a_run_whose_provider_wants_to_be_left_alone_waits_until_then(
    runs: Runs, model: ThreadingHTTPServer, tmp_path: Path
) -> None:
    model.limited = 1800  # type: ignore[attr-defined]
    argv = runs.argv(asking("a"), "--command", str(tmp_path / "agent"), "--jobs", "1")
    child = subprocess.Popen(argv, cwd=runs.folder, env=runs.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stderr is not None
    said = b""
    while b"the run is paused: provider_limited" not in said:
        line = child.stderr.readline()
        assert line, said
        said += line
    assert b"it goes on at " in said
    run = said.split(b"run ", 1)[1].split(b":")[0].decode()
    shown = runs.rw("runs", "show", run)["result"]
    pause = shown["paused"]
    assert shown["state"] == "paused" and 1700 < pause["until"] - pause["at"] <= 1801
    assert states(shown) == {"a": "waiting"} and "provider_limited" in shown["tasks"][0]["reason"]
    assert shown["tasks"][0].get("deaths", 0) == 0
    child.terminate()
    out, _ = child.communicate(timeout=300)
    assert child.returncode == 130 and msgspec.json.decode(out)["result"]["state"] in ("stopped", "paused")


def test_the_last_death_of_a_task_counts_too(runs: Runs) -> None:
    code, envelope = runs.run([task("one", {"die": True})], "--heirs", "1")
    (one,) = envelope["result"]["tasks"]
    assert code == 10 and (one["state"], one["deaths"], one["attempts"]) == ("failed", 2, 2), one
