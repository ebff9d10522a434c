"""Runs of fleetflow and native workflows by the real command, from folders made by hand after their formats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import Rw

from ropewalk.core.errors import InvalidError
from ropewalk.lane import journal
from ropewalk.operations import registry
from ropewalk.operations.context import Context
from ropewalk.run import foreign
from ropewalk.store.store import Store

ENVELOPE = {
    "type": "result", "subtype": "success", "is_error": False, "result": "STATUS: done\nTESTS: 12 passed\nSUMMARY: ok",
    "num_turns": 7, "duration_ms": 61_500, "total_cost_usd": 0.25, "session_id": "s-1", "permission_denials": ["x"],
    "usage": {"input_tokens": 100, "cache_read_input_tokens": 4000, "cache_creation_input_tokens": 50,
              "output_tokens": 900},
}  # fmt: skip
FINDING = {"id": "qa-001", "fp": "0123456789ab", "wave": "qa", "severity": "high", "files": ["a.py"], "claim": "c",
           "evidence": "e", "status": "open", "round": 0, "lane": "qa", "ts": "2026-08-20T10:00:00Z"}  # fmt: skip


def lines(*records: Any) -> str:
    return "".join(json.dumps(one) + "\n" for one in records)


def started(lane: str, model: str, key: str = "v2:1", **more: Any) -> dict[str, Any]:
    return {"type": "started", "key": key, "id": lane, "model": model, "phase": "build", "v": "0.5.0", "round": 0,
            "model_id": more.pop("model_id", model), "orchestrator": "opus", **more}  # fmt: skip


def result(lane: str, model: str, rc: int = 0, key: str = "v2:1", artifact: str | None = "x") -> dict[str, Any]:
    return {"type": "result", "key": key, "id": lane, "model": model, "rc": rc, "artifact": artifact}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Gives the folder of a run with a lane of each kind."""
    folder = tmp_path / "shop" / ".fleetflow" / "spring"
    folder.mkdir(parents=True)
    packets = [
        {"id": "api", "model": "sonnet", "phase": "build", "prompt_file": "/x/api.task.md", "effort": "high"},
        {"id": "web", "model": "codex", "phase": "build", "depends_on": ["api"]},
        {"id": "docs", "model": "glm", "phase": "build"}, {"id": "late", "model": "haiku", "phase": "build"},
    ]  # fmt: skip
    manifest = {"run": "spring", "base": "main", "created_by": "ff-plan/0.5.0", "orchestrator": "opus",
                "phases": ["build"], "packets": packets}  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    (folder / "journal.jsonl").write_text(lines(
        started("api", "sonnet", model_id="claude-sonnet-4-5"),
        {"type": "proc", "id": "api", "model": "sonnet", "pid": 1, "winpid": None, "at": 1_787_200_000},
        result("api", "sonnet", artifact="/x/api.result.json"),
        started("web", "codex"), result("web", "codex", artifact="/x/web.last.txt"),
        {"type": "started", "key": "v2:3", "id": "docs", "brain": "glm", "phase": "build"},
        result("docs", "glm", rc=1, artifact="/x/docs.result.json"),
        started("docs", "glm"), result("docs", "glm", artifact="/x/docs.result.json"),
        started("pay", "grok"), result("pay", "grok", rc=5, artifact=None),
        started("late", "haiku"),
    ))  # fmt: skip
    (folder / "findings.jsonl").write_text(lines(FINDING, {**FINDING, "fp": "b" * 12, "status": "waived"}))
    for lane in ("api", "web", "docs", "pay", "late"):
        (folder / f"{lane}.prompt.txt").write_text(f"Do {lane}.")
    (folder / "api.result.json").write_text(json.dumps(ENVELOPE))
    (folder / "web.last.txt").write_text("All done.\n")
    usage = {"input_tokens": 1000, "cached_input_tokens": 600, "output_tokens": 70, "reasoning_output_tokens": 20}
    (folder / "web.events.jsonl").write_text(lines({"type": "thread.started"},
                                                   {"type": "turn.completed", "usage": usage}))  # fmt: skip
    (folder / "docs.result.json").write_text(json.dumps({**ENVELOPE, "session_id": None, "total_cost_usd": 0.5}))
    (folder / "docs.err").write_text("a warning\n")
    return folder


class Here:
    """Runs operations in this process."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.context = Context(cwd=str(folder), store=store.layout.root, agent="test/one", data_home=str(folder))

    def ok(self, *words: str, exit: int | None = None) -> Any:
        """Gives the result of a command."""
        name, rest = registry.split(list(words)) or ("", [])
        operation = registry.load(name)
        fields = {"import-run": "dir", "runs show": "id", "lane show": "lane"}
        given = {fields[name]: rest[0]} if name in fields else {"run": rest[1]} if rest else {}
        self.context.exit = 0
        made = operation.run(self.context, msgspec.convert(given, operation.request))
        assert exit is None or self.context.exit == exit
        return msgspec.to_builtins(made)

    def error(self, *words: str) -> dict[str, Any]:
        """Gives the refusal of a command."""
        with pytest.raises(InvalidError) as refused:
            self.ok(*words)
        return {"message": refused.value.message}


@pytest.fixture
def here(store: Store, tmp_path: Path) -> Iterator[Here]:
    made = Here(store, tmp_path)
    yield made
    made.context.close()


def test_a_run_is_brought_in_listed_and_shown(rw: Rw, store: Any, run: Path) -> None:
    rw.store = store.layout.root
    (one,) = rw.ok("import-run", str(run), exit=0)["runs"]
    assert (one["name"], one["tasks"], one["lanes"], one["new"]) == ("spring", 5, 5, 5)
    (row,) = rw.ok("runs", "list")["runs"]
    assert (row["id"], row["state"], row["tasks"], row["failed"]) == (one["id"], "imported", 5, 1)
    shown = rw.ok("runs", "show", one["id"])
    assert {t["id"]: t["state"] for t in shown["tasks"]} == {
        "api": "done", "web": "done", "docs": "done", "late": "unknown", "pay": "failed"
    }  # fmt: skip
    origin = shown["imported"]
    assert origin["by_status"] == {"open": 1, "waived": 1} and origin["by_severity"] == {"high": 2}
    assert (origin["dollars"], origin["mark"]) == (0.75, "*"), "what two of five cost is known"
    assert "missing" not in origin and "bad" not in origin and origin["folder"] == str(run)
    assert shown["usage"] == {"input_tokens": 600, "cache_read_tokens": 8600, "cache_write_tokens": 100,
                              "output_tokens": 1870, "reasoning_tokens": 20}  # fmt: skip
    kept = Path(store.layout.runs, one["id"], "source")
    assert (kept / "journal.jsonl").read_bytes() == (run / "journal.jsonl").read_bytes()
    assert (kept / "docs.err").read_text() == "a warning\n"
    assert "brought from" in rw.run("runs", "show", one["id"], "--human").stdout.decode()
    assert "unknown" in rw.run("lane", "list", "--human").stdout.decode()
    assert json.loads((kept.parent / "findings.json").read_text())[0]["claim"] == "c"
    told = rw.ok("runs", "report", one["id"])["text"]
    rows = ("| tokens | \\*11,170 |", "| cost | \\*$0.7500 |", "| time | unknown |", "| done | 3 |",
            "| docs | 2 | \\*1 min 01 s | \\*5,050 |", "| pay | 1 | unknown | unknown | unknown |")  # fmt: skip
    for row in rows:
        assert row in told
    assert "| landed |" not in told


def test_endings_are_lanes_with_what_is_known_of_them_and_nothing_else(here: Here, run: Path) -> None:
    name = here.ok("import-run", str(run))["runs"][0]["id"]
    lanes = {one["lane"].removeprefix(f"{name}/"): one for one in here.ok("lane", "list", "--run", name)["lanes"]}
    assert sorted(lanes) == ["api/1", "docs/1", "docs/2", "pay/1", "web/1"]
    assert {one["imported"] for one in lanes.values()} == {"fleetflow"}
    api = lanes["api/1"]
    assert (api["state"], api["seconds"], api["tokens"], api["dollars"]) == ("done", 61.5, 5050, 0.25)
    assert (api["harness"], api["model"], api["began"], api["turns"]) == (
        "claude",
        "claude-sonnet-4-5",
        1_787_200_000,
        7,
    )
    web = lanes["web/1"]
    assert (web["seconds"], web["tokens"], web["mark"], web["began"]) == (None, 1070, "*", 0)
    assert "dollars" not in web and "passed" not in web
    # the words of an earlier attempt were written over; a cost at another's rates is marked
    assert (
        lanes["docs/1"]["state"] == "failed" and lanes["docs/1"]["reason"] == "rc 1" and "tokens" not in lanes["docs/1"]
    )
    assert (lanes["docs/2"]["dollars"], lanes["docs/2"]["mark"]) == (0.5, "≈")
    assert lanes["pay/1"]["reason"] == "refused: what it needs was not there"
    shown = here.ok("lane", "show", f"{name}/api/1")
    assert shown["text"].startswith("STATUS: done") and shown["session"] == "s-1" and shown["code"] == 0
    found = journal.need(here.store, f"{name}/api/1")
    assert found.record.ingredients.prompt == "Do api." and found.record.ingredients.effort == "high"
    assert found.result is not None and found.result.reply["tests"] == "12 passed" and found.result.passed is None
    assert journal.replay(here.store, found.record.key) is None, "no lane of ours is answered by it"
    assert here.ok("sweep")["lanes"] == []


def test_again_is_the_same_and_what_was_added_is_added(here: Here, run: Path) -> None:
    (first,) = here.ok("import-run", str(run))["runs"]
    summary = Path(here.store.layout.runs, first["id"], "summary.json")
    told, lanes = summary.read_bytes(), here.ok("lane", "list")["lanes"]
    (again,) = here.ok("import-run", str(run.parent.parent))["runs"]  # by its repository
    assert again == {**first, "new": 0} and summary.read_bytes() == told
    assert here.ok("lane", "list")["lanes"] == lanes
    with (run / "journal.jsonl").open("a") as file:
        file.write(lines(result("late", "haiku", artifact="/x/late.result.json")))
    (run / "late.result.json").write_text(json.dumps({**ENVELOPE, "is_error": True, "subtype": "error_max_turns"}))
    (run / "api.result.json").write_text(json.dumps({**ENVELOPE, "result": "changed afterwards"}))
    (more,) = here.ok("import-run", str(run))["runs"]
    assert (more["id"], more["new"]) == (first["id"], 1)
    found = {one["lane"]: one for one in here.ok("lane", "list")["lanes"]}
    late = found[f"{first['id']}/late/1"]
    assert (late["state"], late["reason"]) == ("failed", "error_max_turns")
    assert here.ok("lane", "show", f"{first['id']}/api/1")["text"].startswith("STATUS"), "a lane's end is written once"


def test_what_can_not_be_read_is_named_with_its_line_and_the_rest_is_taken(here: Here, run: Path) -> None:
    text = (run / "journal.jsonl").read_text().splitlines(keepends=True)
    text[4] = "{half a line\n"
    text.insert(6, '["no", "object"]\n')
    text.append('{"type": "result", "rc": 0}\n')
    (run / "journal.jsonl").write_text("".join(text) + '{"type": "resu')
    (run / "manifest.json").write_text('{\n "run": "spring",\n "base": oops\n}')
    (run / "api.result.json").unlink()
    (one,) = here.ok("import-run", str(run), exit=10)["runs"]
    bad = one["origin"]["bad"]
    assert [words.split(": ")[0] for words in bad] == [
        "manifest.json:3", "journal.jsonl:5", "journal.jsonl:7", "journal.jsonl:14", "journal.jsonl:15"
    ]  # fmt: skip
    assert one["origin"]["missing"] == ["api.result.json"]
    shown = {t["id"]: t for t in here.ok("runs", "show", one["id"])["tasks"]}
    assert shown["api"]["state"] == "done" and shown["api"]["reason"] == "what it said is not there"
    assert shown["web"]["state"] == "unknown", "its ending is the line that can't be read"


@pytest.mark.parametrize(
    ("left", "missing", "states"),
    [(("api.prompt.txt",), ["manifest.json", "journal.jsonl"], {"api": "unknown"}),
     (("manifest.json",), ["journal.jsonl", *(f"{n}.prompt.txt" for n in ("api", "web", "docs", "late"))],
      dict.fromkeys(("api", "web", "docs", "late"), "unknown")),
     (("journal.jsonl", "web.last.txt", "web.prompt.txt"), None, {"web": "done", "api": "done", "late": "unknown"})],
)  # fmt: skip
def test_a_part_of_a_run_says_what_is_missing(
    here: Here, run: Path, left: tuple[str, ...], missing: list[str] | None, states: dict[str, str]
) -> None:
    for path in run.iterdir():
        if path.name not in left:
            path.unlink()
    (one,) = here.ok("import-run", str(run), exit=10)["runs"]
    assert missing is None or one["origin"]["missing"] == missing
    assert missing is not None or {"manifest.json", "api.result.json"} <= set(one["origin"]["missing"])
    found = {t["id"]: t["state"] for t in here.ok("runs", "show", one["id"])["tasks"]}
    assert found.items() >= states.items()


def test_a_native_workflow_is_brought_in(here: Here, tmp_path: Path) -> None:
    folder = tmp_path / "wf_ab12cd34-ef"
    folder.mkdir()
    (folder / "journal.jsonl").write_text(lines(
        {"type": "started", "key": "k1", "agentId": "a1"}, {"type": "started", "key": "k2", "agentId": "a2"},
        {"type": "result", "key": "k1", "agentId": "a1", "result": {"findings": [1]}},
    ))  # fmt: skip
    usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 1}
    answer = {"id": "m1", "model": "claude-opus-4-5", "role": "assistant", "usage": usage, "content": []}
    (folder / "agent-a1.jsonl").write_text(lines(
        {"type": "user", "timestamp": "2026-08-20T10:00:00.000Z", "message": {"role": "user", "content": "Look."}},
        # an answer comes in a line for each of its blocks, each with the usage of all of it
        {"type": "assistant", "timestamp": "2026-08-20T10:00:05.000Z", "message": answer},
        {"type": "assistant", "timestamp": "2026-08-20T10:00:09.500Z", "message": answer},
        {"type": "assistant", "timestamp": "2026-08-20T10:00:10.000Z", "message": {**answer, "id": "m2"}},
    ))  # fmt: skip
    (folder / "agent-a1.meta.json").write_text("{}")
    (one,) = here.ok("import-run", str(folder), exit=10)["runs"]
    assert (one["tasks"], one["new"], one["origin"]["missing"]) == (2, 1, ["agent-a2.jsonl"])
    shown = here.ok("runs", "show", one["id"])
    assert {t["id"]: t["state"] for t in shown["tasks"]} == {"a1": "done", "a2": "unknown"}
    lane = here.ok("lane", "show", f"{one['id']}/a1/1")
    assert json.loads(lane["text"]) == {"findings": [1]}
    row = lane["lane"]
    assert (row["tokens"], row["seconds"], row["turns"], row["model"]) == (36, 10.0, 2, "claude-opus-4-5")
    assert (row["harness"], row["imported"], row["began"]) == ("claude", "workflow", 1_787_220_000)


def test_a_history_is_brought_in_and_tells_less_than_a_folder(here: Here, run: Path) -> None:
    place = run.parent.parent.parent / "fleet"
    place.mkdir()
    lane = {"id": "api", "model": "sonnet", "phase": "build", "state": "done", "elapsed_s": 60, "commits": 1,
            "tokens_total": 5050, "tokens_out": 900, "cost_usd": 0.25}  # fmt: skip
    old = {"v": "fleetflow/history/1", "run": "spring", "repo": str(run.parent.parent).upper(),
           "started": 1_787_200_000, "elapsed_s": 90, "state": "running", "cost_usd": 0.1, "cost_partial": True,
           "lanes": [lane]}  # fmt: skip
    other = {**old, "run": "winter", "lanes": [lane, {**lane, "id": "web", "state": "abandoned", "cost_usd": None}]}
    (place / "history.jsonl").write_text(lines(old, {**old, "state": "done", "cost_usd": 0.3}, other) + "nonsense\n")
    found = {one["name"]: one for one in here.ok("import-run", str(place), exit=10)["runs"]}
    assert sorted(found) == ["spring", "winter"] and found["spring"]["lanes"] == 0
    spring = here.ok("runs", "show", found["spring"]["id"])
    assert (spring["imported"]["dollars"], spring["imported"]["mark"], spring["seconds"]) == (0.3, "*", 90)
    assert spring["imported"]["bad"][0].startswith("history.jsonl:4: ")
    winter = {t["id"]: t for t in here.ok("runs", "show", found["winter"]["id"])["tasks"]}
    assert (winter["web"]["state"], winter["web"]["reason"]) == ("unknown", "abandoned")
    (whole,) = here.ok("import-run", str(run))["runs"]
    assert whole["id"] == found["spring"]["id"], "the same run, told of twice"
    here.ok("import-run", str(place), exit=10)
    assert here.ok("runs", "show", whole["id"])["imported"]["source"] == "fleetflow"
    assert len(here.ok("runs", "list")["runs"]) == 2


def test_where_there_is_no_run_it_is_said(here: Here, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no run" in here.error("import-run", "empty")["message"]
    assert "no folder" in here.error("import-run", "nowhere")["message"]
    assert here.ok("runs", "list")["runs"] == []


def test_links_and_huge_files_are_not_followed(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"is_error": false, "result": "secret"}')
    (run / "api.result.json").unlink()
    (run / "api.result.json").symlink_to(secret)
    with (run / "docs.result.json").open("wb") as file:
        file.truncate(foreign.LARGEST + 1)
    (found,) = foreign.read(str(run))
    assert [words.split(":")[0] for words in found.bad] == ["api.result.json", "docs.result.json"]
    assert not [one for task in found.tasks for one in task.attempts if "secret" in one.text]
    assert "api.result.json" not in found.files
