"""Plans as folders: drafted from a specification, read back as they were, and looked at by every operation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planner.plannerkit import FILES, MAP, reply, task
from ropewalk.operations import envelope, registry
from ropewalk.operations.context import Context
from ropewalk.plan import document, drafting, mapping
from ropewalk.plan.document import Document
from ropewalk.plan.lint import Around, Barrier, Report, lint
from ropewalk.plan.packets import Packet
from ropewalk.plan.plan import Module, read
from ropewalk.plan.task import Gate, Limits
from ropewalk.run.planner import folders
from storekit import Kit, put

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(kit: Kit, tmp_path: Path) -> Iterator[Ask]:
    """Gives a way to ask for an operation in the work tree of a project whose store the kit's is."""
    work = tmp_path / "shop"
    for path, text in FILES.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)
    (work / ".git").mkdir()
    (work / "spec.md").write_text("# Discounts\n\nA cart knows discounts.\n")
    ctx = Context(cwd=str(work), store=kit.root, env={"PATH": os.environ["PATH"]}, data_home=str(tmp_path / "data"),
                  config_home=str(tmp_path / "config"))  # fmt: skip

    def run(name: str, exit: int = 0, **request: Any) -> dict[str, Any]:
        got = envelope.answer(registry.load(name), ctx, request)
        assert got.exit == exit, got
        return dict(got.envelope["result"] if got.envelope["ok"] else got.envelope["error"])

    yield run
    ctx.close()


@pytest.mark.parametrize("shape", list(drafting.SHAPES))
def test_a_fresh_draft_of_each_shape_lints_clean(ask: Ask, shape: str) -> None:
    made = ask("plan draft", spec="spec.md", shape=shape, into=f"plans/{shape}")
    assert made["findings"] == 0 and len(made["tasks"]) == len(drafting.SHAPES[shape])
    found = ask("plan lint", folder=f"plans/{shape}")
    assert not found["failing"] and not found["findings"]
    states = {check["name"]: check for check in found["checks"]}
    assert states["watchers"]["state"] == "armed"
    assert states["scope-conflict"]["state"] == "armed" and states["packet-form"]["state"] == "armed"
    assert ask("plan show", folder=f"plans/{shape}")["bars"] and ask("plan estimate", folder=f"plans/{shape}")["tasks"]


def test_named_packets_get_their_parts_of_the_project(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "shop/ropewalk.toml").write_text('[rules]\ndecisions = "adr"\n')
    assert ask("adr new", title="Money is in cents", governs=["shop/cart/**"])["path"] == "adr/001-money-is-in-cents.md"
    ask("plan draft", spec="spec.md", packets=["mail=builder", "cart=Builder/build/sonnet", "look=Inspector//codex",
                                                "fresh=Builder"])  # fmt: skip
    made = folders.load(str(tmp_path / "shop/plan"))
    by = {packet.id: packet for packet in made.packets}
    assert by["cart"].owns == ("shop/cart/",) and by["mail"].owns == ("shop/mail/",) and by["fresh"].owns
    assert by["cart"].model == "sonnet" and by["look"].class_ == "verify"
    assert by["look"].depends_on == ("mail", "cart", "fresh") and "make test" in by["cart"].gate
    assert "001-money-is-in-cents: Money" in by["cart"].body and "001" not in by["mail"].body
    assert not ask("plan lint")["findings"]
    view = ask("plan show")
    assert view["recommended"] == 3 and view["critical"][-1] == "look" and len(view["chart"]) == 4
    assert {w["task"] for w in view["waits"]} == {"look"}
    assert ask("plan draft", exit=2, spec="spec.md")["code"] == "E_INVALID"
    assert "no role 'Boss'" in ask("plan draft", exit=2, spec="spec.md", into="b", packets=["a=Boss"])["message"]


def test_a_plan_that_is_wrong_is_told_by_its_folder(ask: Ask, tmp_path: Path) -> None:
    ask("plan draft", spec="spec.md")
    folder = tmp_path / "shop/plan"
    build = folder / "packets/build.md"
    build.write_text(build.read_text().replace("gate: ", "gate: true #").replace("module: ", "module: no-"))
    found = ask("plan lint", exit=10)
    assert {f["check"] for f in found["findings"]} == {"gate", "modules"} and found["failing"]
    assert ask("plan show", exit=2)["details"]["problems"]
    build.write_text("---\nid: build\nowner: x\n---\n")
    (folder / "packets/other.md").write_text("---\nid: another\n---\n")
    error = ask("plan lint", exit=2)
    assert len(error["details"]["problems"]) == 2 and "owner" in error["message"]
    assert ask("plan lint", exit=4, folder="nowhere")["code"] == "E_NOT_FOUND"


def test_a_fault_of_what_the_lint_needs_is_an_error_and_never_disarmed(ask: Ask, tmp_path: Path) -> None:
    ask("plan draft", spec="spec.md")
    (tmp_path / "shop/ropewalk.toml").write_text("[rules\n")
    found = ask("plan lint", exit=10)
    assert {c["name"] for c in found["checks"] if c["state"] == "error"} == {"rules", "decisions"}
    (tmp_path / "shop/ropewalk.toml").write_text('[rules]\nfiles = ["AGENTS.md"]\n')
    assert [f["check"] for f in ask("plan lint", exit=10)["findings"]] == ["rules"]
    (tmp_path / "shop/AGENTS.md").write_text("Be kind.\n")
    (tmp_path / "shop/docs/decisions").mkdir(parents=True)
    (tmp_path / "shop/docs/decisions/1.md").write_text("---\nstatus: agreed\n---\n# One\n")
    found = ask("plan lint", exit=10)
    assert {c["name"]: c["state"] for c in found["checks"]}["decisions"] == "error"
    assert ask("adr lint", exit=10)["findings"][0]["severity"] == "hard"


def manager_of(folder: Path, *texts: str) -> str:
    """Gives the command of a manager that prints one text after the other; it counts in its workspace."""
    for n, text in enumerate(texts, 1):
        (folder / f"answer-{n}").write_text(text)
    script = folder / "manager.sh"
    script.write_text(f'cat > /dev/null\necho x >> .asked\ncat "{folder}/answer-$(wc -l < .asked)"\n')
    return f"sh {script}"


def test_a_plan_by_a_manager_is_a_folder_that_is_split_and_refuted(ask: Ask, kit: Kit, tmp_path: Path) -> None:
    kit.change(put("docs/decisions/001-cents.md", "---\ngoverns: [shop/cart/**]\n---\n# Cents\n"))
    folder = tmp_path / "shop/plan"
    one, two = task("one", limits={"seconds": 60}, model="sonnet"), task("two", "mail", needs=["one"])
    by = manager_of(tmp_path, MAP, reply(task("one", check="true")), reply(one, two))
    made = ask("plan draft", goal="Discounts", command=by, cage="none", max_tasks=5)
    assert (made["tasks"], made["tries"], made["manager"]) == (["one", "two"], 2, "command")
    assert made["spent"]["asks"] == 3 and any("is no check" in words for words in made["problems"])
    assert "001-cents: Cents" in (folder / "packets/one.md").read_text()
    loaded = folders.load(str(folder))
    assert loaded.packets[0].limits == Limits(seconds=60) and loaded.goal == "Discounts" and loaded.base == kit.main()
    assert loaded.plan.tasks[0].check == one["check"] and folders.map_of(str(folder)) is not None
    assert not ask("plan lint", exit=0)["failing"]

    split = msgspec.json.encode({"tasks": [task("two-a", "mail"), task("two-b", "mail", needs=["two-a"])]}).decode()
    done = ask("plan expand", task="two", command=manager_of(tmp_path, split), cage="none")
    assert done["tasks"] == ["two-a", "two-b"] and not (folder / "packets/two.md").exists()
    after = folders.load(str(folder))
    assert [p.id for p in after.packets] == ["one", "two-a", "two-b"] and after.packets[0] == loaded.packets[0]
    assert ask("plan expand", exit=4, task="two", command=by, cage="none")["code"] == "E_NOT_FOUND"

    verdict = '{"verdict": "refuted", "findings": [{"tasks": ["two-a"], "text": "nobody tests it"}]}'
    told = ask("plan refute", exit=10, command=manager_of(tmp_path, verdict), cage="none")
    assert told["refuted"] and told["findings"][0]["severity"] == "hard"
    assert "nobody tests it" in (folder / "refutation.md").read_text()
    lost = ask("plan draft", exit=15, goal="x", into="lost", command=manager_of(tmp_path, *["no"] * 6), cage="none")
    assert lost["code"] == "E_PLAN" and not (tmp_path / "shop/lost").exists()


def test_an_idea_needs_no_commit(ask: Ask, tmp_path: Path) -> None:
    fresh = Kit(str(tmp_path / "fresh"))
    ctx = Context(cwd=str(tmp_path), store=fresh.root, env={"PATH": os.environ["PATH"]},
                  data_home=str(tmp_path / "data"), config_home=str(tmp_path / "config"))  # fmt: skip
    by = manager_of(tmp_path, reply(task("one"), modules=("cart",)))
    request = {"goal": "A shop", "mode": "idea", "command": by, "cage": "none", "into": "idea"}
    got = envelope.answer(registry.load("plan draft"), ctx, request)
    assert got.exit == 0, got.envelope
    assert folders.load(str(tmp_path / "idea")).mode == "idea" and fresh.store.ref("refs/heads/main") is None
    ctx.close()
    fresh.fsck()
    fresh.close()


def test_a_plans_folder_is_read_back_as_it_was_written() -> None:
    packet = Packet("a", "Builder", "build", "m", owns=("src/a.py",), gate="make test", module="core", effort="high",
                    harness="codex", guard=True, priority=-3, limits=Limits(seconds=5.0, tokens=7),
                    reply={"type": "object", "title": "a # b: \"c\""}, reviewers=Gate(1, 2, True),
                    body="\n# A\n\ntext\n")  # fmt: skip
    made = Document("Do\nit # well", "s.md", "feature", "none", "workers", "3", "claude/x", "anthropic", "0" * 40,
                    (Barrier("one", ("a", "b"), "c"), Barrier("two", ("a",))), "Words.\n\nMore.",
                    (Module("core", "src/a|b", 2.5, ("x",)), Module("x", "lib")), (packet,),
                    {"Risks": "None.", "Contracts": "```\n## no heading\n```"})  # fmt: skip
    back, faults = document.read(document.write(made))
    assert not faults and back == made
    assert back.plan.tasks[0].gate == Gate(1, 2, True) and back.plan.tasks[0].guard


def test_a_plan_becomes_packets_and_the_same_plan_again() -> None:
    tasks = [task("one", title="One", effort="low", priority=2), task("two", "mail", needs=["one"])]
    plan = read(reply(*tasks)).plan
    assert plan is not None
    back = document.parse(document.write(document.of_plan(plan))).plan
    assert back.modules == plan.modules and back.summary == plan.summary
    same = [msgspec.structs.replace(t, description="", title="") for t in back.tasks]
    assert same == [msgspec.structs.replace(t, description="", title="") for t in plan.tasks]
    assert all(before.description in after.description for before, after in zip(plan.tasks, back.tasks, strict=True))
    again = document.of_plan(back)
    assert document.parse(document.write(again)).plan == back


def test_two_hundred_packets_of_ten_paths_are_linted_in_two_seconds(ask: Ask, tmp_path: Path) -> None:
    made = [Packet(f"p{n}", "Builder", "build", owns=tuple(f"src/m{n}/f{k}*.py" for k in range(8)),
                   modifies=(f"src/m{n}/__init__.py",), reads=(f"docs/{n}/**",), gate=f"make test-{n}", module="m",
                   depends_on=(f"p{n - 1}",) if n else (), final_reply="STATUS", body="\n# T\n")
            for n in range(200)]  # fmt: skip
    folders.save(str(tmp_path / "shop/big"), Document("Big", bounds="none", modules=(Module("m", "src"),),
                                                      packets=tuple(made)))  # fmt: skip
    began = time.process_time()
    assert ask("plan lint", folder="big")["packets"] == 200
    assert time.process_time() - began < 2.0  # not the wall's: others use this machine


def test_the_map_of_folders_languages_and_test_commands() -> None:
    files = {"src/app/a.py": 5, "src/app/b.py": 5, "src/lib/c.py": 9, "web/package.json": 1, "web/x/i.ts": 3,
             "web/y/j.ts": 3, "node_modules/z/k.js": 99, "go.mod": 1, "cmd/m.go": 2, "pyproject.toml": 1,
             "tests/test_a.py": 2, "README.md": 7, "Cargo.toml": 1}  # fmt: skip
    texts = {"web/package.json": '{"scripts": {"test": "vitest run"}}', "pyproject.toml": "[tool.pytest]"}
    got = mapping.survey(list(files.items()), lambda path: texts.get(path, ""))
    assert [part.path for part in got.parts] == ["cmd", "src/app", "src/lib", "tests", "web/x", "web/y"]
    assert "JavaScript" not in got.languages and got.languages["Python"] == 21 and got.files == 12
    assert [t.command for t in got.tests] == ["cargo test -q", "go test ./...", "python3 -m pytest -q",
                                              "cd web && npm test"]  # fmt: skip
    for name in ("Makefile", "package.json"):
        broken = mapping.survey([(name, 1)], lambda path: "[}\0" * 9)
        assert not broken.tests


def test_the_real_command_shows_a_draft_to_a_person(ask: Ask, tmp_path: Path, clean: dict[str, str]) -> None:
    shutil.rmtree(tmp_path / "shop/.git")
    (tmp_path / "shop/ropewalk.toml").write_text("")

    def rw(*words: str) -> str:
        done = subprocess.run([sys.executable, "-m", "ropewalk.cli.main", *words, "--human"], cwd=tmp_path / "shop",
                              env=clean, capture_output=True, text=True, timeout=60)  # fmt: skip
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        return done.stdout

    assert "plan: 4 tasks in 2 modules" in rw("plan", "draft", "--spec", "spec.md")
    shown = rw("plan", "show")
    assert "critical path (" in shown and "design " in shown and "|#" in shown and "waits at the start:" in shown


def test_a_lint_of_a_document_without_bounds_or_a_join_says_so() -> None:
    made = Document(packets=(Packet("a", "Scout", "scout"),), barriers=(Barrier("b", ("a",)),))
    report: Report = lint(made.packets, Around(barriers=made.barriers, bounds=made.bounds))
    assert {f.check for f in report.findings} == {"barriers", "bounds"}
