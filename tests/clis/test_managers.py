"""The real Claude Code and Codex as managers: a map, a broken plan, a mended one in the same session, a refutation.

They are those that `python tests/clis/install.py` installs; what is not there is skipped, but with CI=true and
RWTEST_CLIS=1 it is a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.clis import install
from tests.planner.plannerkit import GOOD, MAP, planned, project, reply, task

from ropewalk.gateway import process
from ropewalk.gateway.settings import Upstream
from ropewalk.lane import journal
from ropewalk.lane.programs import registry
from ropewalk.lane.waits import Limits, Waits
from ropewalk.plan.asking import Goal
from ropewalk.run.planner import baseline, manager, refuting
from ropewalk.run.planner.manager import Lanes
from ropewalk.run.turn import Ways
from ropewalk.testing.model_server import ModelServer, running
from ropewalk.workspace import state
from storekit import Kit

pytestmark = [pytest.mark.clis, pytest.mark.slow, pytest.mark.compat]

MODELS = {"claude": "claude-sonnet-4-5", "codex": "gpt-5-codex"}
PROVIDERS = {"claude": "anthropic", "codex": "openai"}
LOOK = {"tool": "shell", "cmd": "ls shop > seen.txt; echo spoilt > README.md"}


class Field:
    """Is a store with a project, a model server, and a gateway that lanes of managers share."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.folder, self.server = folder, server
        self.kit = Kit(str(folder / "store"))
        project(self.kit)

    def lanes(self, program: str, script: str) -> Lanes:
        """Gives lanes of a program in full cages, whose model follows a script."""
        held = install.default_folder()
        binary, node = install.binary(held, program), install.binary(held, "node")
        assert binary is not None and node is not None
        caller = {**os.environ, "PATH": f"{binary.parent}:{node.parent}:/usr/local/bin:/usr/bin:/bin"}
        name = f"{program}-{script}"
        ways = Ways("full", gateway=str(self.folder / "gateway"), named=(name,), model=MODELS[program],
                    upstreams={name: Upstream(self.server.url(name, script), "real-key")},
                    limits=Limits(seconds=120, requests=60), waits=Waits(60, 30, 60, 60, 4))  # fmt: skip
        return Lanes(registry.get(program), caller, ways, str(self.folder / name), str(self.folder / "data"), name,
                     seconds=120.0)  # fmt: skip

    def close(self) -> None:
        """Ends the gateway."""
        found = process.read_address(str(self.folder / "gateway"))
        if found is not None:
            os.kill(found.pid, signal.SIGTERM)
        self.kit.close()


@pytest.fixture(scope="module")
def field() -> Iterator[Field]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ropewalk-managers-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        made = Field(folder, stack.enter_context(running(keep_bodies=True)))
        stack.callback(made.close)
        yield made


@pytest.mark.parametrize("program", list(MODELS))
def test_a_real_program_maps_plans_is_told_what_is_wrong_and_mends_it(field: Field, program: str) -> None:
    held = install.default_folder()
    missing = [name for name in ("node", program) if install.binary(held, name) is None]
    missing += [] if shutil.which("bwrap") else ["bubblewrap"]
    if missing and os.environ.get("CI") == "true" and os.environ.get("RWTEST_CLIS") == "1":
        pytest.fail(f"{', '.join(missing)} is not there")
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed (python tests/clis/install.py)")
    bad = reply(task("one", check="true"), task("two", "nowhere"))
    # a start of Claude Code takes seconds, so that it gets a map that is there already
    mapped = program == "codex"
    turns = [[LOOK, {"text": MAP}], [{"text": bad}], [{"text": GOOD}]]
    field.server.add("plan", {"turns": turns if mapped else [[LOOK, {"text": bad}], [{"text": GOOD}]]})
    lanes = field.lanes(program, "plan")
    before = field.kit.main()
    with manager.in_lanes(field.kit.store, before, lanes) as made:
        seen = None if mapped else baseline.survey(field.kit.store, field.kit.store.objects.commit(before).tree)
        done = planned(field.kit, field.folder, made, Goal("Two files.", "workers", 2), seen=seen)
    assert [t.id for t in done.plan.tasks] == ["one", "two"] and (done.tries, done.asks) == (2, 2 + mapped)
    assert (done.map.by == "files and model") == mapped and done.provider == {"claude": "anthropic", "codex": "openai"}[
        program
    ]
    assert done.tokens is not None and done.tokens.total > 0 and done.cost.dollars
    results = [one.result for one in journal.lanes(field.kit.store, lanes.run)]
    assert len({one.session for one in results if one is not None}) == 1, "one session went on"
    assert field.kit.main() == before and not state.listed(field.kit.store)
    bodies = b"".join(field.server.body(e.number) or b"" for e in field.server.entries(f"{program}-plan"))
    assert b"these 2 things are wrong" in bodies


def test_what_one_provider_planned_another_refutes(field: Field) -> None:
    held = install.default_folder()
    if any(install.binary(held, name) is None for name in ("node", "codex")) or not shutil.which("bwrap"):
        pytest.skip("codex is not installed (python tests/clis/install.py)")
    from ropewalk.plan.plan import read

    plan = read(GOOD).plan
    assert plan is not None
    verdict = '{"verdict": "refuted", "findings": [{"tasks": ["two"], "severity": "hard", "text": "no test"}]}'
    field.server.add("refute", [{"text": f"I looked at it.\n```json\n{verdict}\n```"}])
    with manager.in_lanes(field.kit.store, field.kit.main(), field.lanes("codex", "refute")) as made:
        got = refuting.refute(Goal("Two files."), plan, "anthropic", made)
    assert got.refuted and got.provider == "openai" and got.objections[0].text == "no test"
