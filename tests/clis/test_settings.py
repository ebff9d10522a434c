"""Settings and instructions that stand in a repository: they start nothing, and are no part of what a model is told.

The programs are those that `python tests/clis/install.py` installs; what is not there is skipped, but with CI=true and
RWTEST_CLIS=1 it is a failure.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.clis.test_tools import Field, needed

from ropewalk.testing.model_server import running

pytestmark = [pytest.mark.clis, pytest.mark.slow, pytest.mark.compat]

MARK = "INSTRUCTION-OF-THE-REPOSITORY"


@pytest.fixture(scope="module")
def field() -> Iterator[Field]:
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ropewalk-settings-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        made = Field(folder, stack.enter_context(running(keep_bodies=True)))
        stack.callback(made.close)
        yield made


def plant(work: Path) -> list[Path]:
    """Puts what programs run or read by themselves into a tree; gives the files that it would make."""
    made = [work / name for name in ("by-hook", "by-server", "by-notify")]
    hook = {"hooks": [{"type": "command", "command": f"touch {made[0].name}"}]}
    server = {"command": "touch", "args": [made[1].name]}
    settings = {"hooks": {"SessionStart": [hook], "UserPromptSubmit": [hook]}, "enableAllProjectMcpServers": True}
    files = {
        ".claude/settings.json": json.dumps(settings), ".claude/settings.local.json": json.dumps(settings),
        ".mcp.json": json.dumps({"mcpServers": {"x": server}}),
        ".codex/config.toml": f'notify = ["touch", "{made[2].name}"]\n'
                              f'[mcp_servers.x]\ncommand = "touch"\nargs = ["{made[1].name}"]\n',
        "CLAUDE.md": MARK, "AGENTS.md": MARK,
    }  # fmt: skip
    for name, text in files.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text)
    return made


@pytest.mark.parametrize("program", ["claude", "codex"])
def test_devflock_C4_settings_in_a_repository_start_nothing_and_say_nothing(field: Field, program: str) -> None:
    needed(program)
    field.server.add("settings", [{"text": "FINAL-ANSWER: done"}])
    wish = field.wish(program, "settings")
    made = plant(Path(wish.workspace))
    outcome = field.run(wish)
    assert outcome.result.state == "done", outcome
    assert [path.name for path in made if path.exists()] == []
    asked = [entry for entry in field.server.entries(f"{program}-settings") if entry.message_id]
    bodies = [field.server.body(entry.number) or b"" for entry in asked]
    assert bodies and all(b"Please do it." in body and MARK.encode() not in body for body in bodies)
