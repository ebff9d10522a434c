"""Turns that go on with a session: the program's home goes along, and one that lost it starts anew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.lane import journal
from ropewalk.lane.adapter import Launch, Reader, Start
from ropewalk.lane.programs.common import JsonReader, Program
from ropewalk.run import turn as turns
from ropewalk.run.turn import Before, Turn, Ways
from ropewalk.store.store import Store

_AGENT = """
cat > prompt
if test -n "$1" && ! test -e "$HOME/sessions/$1"; then
    echo '{"error": "No conversation found with session ID: '$1'"}'; exit 1
fi
mkdir -p "$HOME/sessions"; echo "$ROPEWALK_LANE" >> "$HOME/sessions/${1:-s-1}"
echo '{"session": "'${1:-s-1}'", "text": "turn '$(wc -l < "$HOME/sessions/${1:-s-1}")'"}'
"""


class Talks(Program):
    """Is a program that keeps sessions in its home."""

    name = family = "talks"
    program = "sh"

    def __init__(self, script: Path) -> None:
        self.script = script

    def launch(self, start: Start) -> Launch:
        """Gives how it is started, with its session where it goes on with one."""
        return Launch(["sh", str(self.script), start.session or ""], {}, {}, start.prompt.encode())

    def reader(self) -> Reader:
        """Gives a reader for one run."""
        return _Reader()


class _Reader(JsonReader):
    def event(self, found: dict[str, Any]) -> list[Any]:
        if "error" in found:
            return [self.fail(found["error"])]
        self.session, self.text, self.done = found["session"], found["text"], True
        return []


@pytest.fixture
def talks(tmp_path: Path) -> Talks:
    """Gives the program."""
    script = tmp_path / "talks.sh"
    script.write_text(_AGENT)
    return Talks(script)


def take(store: Store, talks: Talks, folder: Path, number: int, before: Before | None) -> Any:
    """Takes a turn in the same workspace."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    one = Turn(f"r/t/{number}", "talks/t", str(folder / "lanes" / str(number)), str(work), "b" * 40, f"prompt {number}",
               "r", "t", number, 30.0, before=before)  # fmt: skip
    return turns.take(store, talks, dict(os.environ), Ways(), one, stop=lambda: False)


def test_a_further_turn_goes_on_with_the_session_of_the_one_before(store: Store, talks: Talks, tmp_path: Path) -> None:
    first = take(store, talks, tmp_path, 1, None)
    assert (first.result.text, first.result.session) == ("turn 1", "s-1")
    second = take(store, talks, tmp_path, 2, Before(str(tmp_path / "lanes" / "1"), "s-1"))
    assert (second.result.text, second.result.session) == ("turn 2", "s-1")
    assert journal.need(store, "r/t/2").record.session == "s-1"
    assert not (tmp_path / "lanes" / "1" / "home").exists()


def test_a_lost_session_starts_anew_with_the_whole_prompt(store: Store, talks: Talks, tmp_path: Path) -> None:
    done = take(store, talks, tmp_path, 2, Before(str(tmp_path / "lanes" / "none"), "s-9"))
    assert done.id == "r/t/2-anew" and (done.result.state, done.result.text) == ("done", "turn 1")
    lost = journal.need(store, "r/t/2").result
    assert lost is not None and (lost.state, lost.reason) == ("failed", "session_lost")
    assert (tmp_path / "work" / "prompt").read_text() == "prompt 2"
    assert msgspec.to_builtins(done.result)["session"] == "s-1"


def test_what_an_agent_left_in_its_home_is_no_way_out_of_it(store: Store, talks: Talks, tmp_path: Path) -> None:
    """A link where a file of ours goes is replaced, and never followed."""
    take(store, talks, tmp_path, 1, None)
    outside = tmp_path / "outside"
    outside.write_text("mine\n")
    home = tmp_path / "lanes" / "1" / "home"
    (home / "prompt.md").unlink()
    (home / "prompt.md").symlink_to(outside)
    take(store, talks, tmp_path, 2, Before(str(tmp_path / "lanes" / "1"), "s-1"))
    assert outside.read_text() == "mine\n"
