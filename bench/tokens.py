"""What ropewalk costs an agent in tokens: to land after another agent, to resolve a conflict, and to know the tools.

Counted is what a model writes and reads at four bytes a token: the call's name and arguments, and the text of the
answer. `structured` counts the whole envelope in the text's place, for clients that show the model that instead.
The file is the same in all cases: another agent has landed a line of it since the change was made.

The git way is computed, not measured: what an agent has to read and write at the least when it works in a clone.
Clean: three commands (commit, pull --rebase, push) of 20 bytes with 200 bytes of output each, and the file once,
because after a pull it is not the file the agent has read. Conflict: five commands, and the file with its markers
read and written whole. An agent that edits by patch writes less; one that looks around reads more.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import common
from session import Session

SIZES = (1_000, 30_000, 300_000)


class Counter:
    """Counts what a model writes and reads over one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.trips = self.written = self.read = self.structured = 0

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Gives the envelope of a call, counted."""
        result = self.session.request("tools/call", {"name": tool, "arguments": arguments})
        self.trips += 1
        self.written += size({"name": tool, "arguments": arguments})
        self.read += sum(len(part["text"].encode()) for part in result["content"])
        self.structured += size(result["structuredContent"])
        envelope: dict[str, Any] = result["structuredContent"]
        return envelope

    def figures(self) -> dict[str, int]:
        """Gives what was counted since the start."""
        return {
            "round_trips": self.trips,
            "tokens": (self.written + self.read) // 4,
            "structured_tokens": (self.written + self.structured) // 4,
        }


def size(value: Any) -> int:
    """Gives the bytes of a value as compact JSON."""
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def put(session: Session, content: str, parent: str, name: str) -> str:
    """Commits a new text of the file and gives the changeset."""
    changes = [{"path": "src/module.py", "content": {"inline": content}}]
    made = session.call("commit", {"message": name, "parent": parent, "changes": changes})
    if not made["ok"]:
        raise SystemExit(made)
    changeset: str = made["result"]["changeset"]
    return changeset


def edited(text: str, line: int, word: str) -> str:
    """Gives a text with one line replaced."""
    lines = text.splitlines(keepends=True)
    lines[line] = f"def changed_by_{word}(value):\n"
    return "".join(lines)


def land(session: Session, change: str) -> None:
    """Lands a change that has to land."""
    done = session.call("land", {"head": change, "onto": "main"})
    if not done["ok"]:
        raise SystemExit(done)


def by_hunk() -> bool:
    """Says whether a resolution can name hunks instead of a whole content."""
    from ropewalk.store.report import FileResolution

    return "hunks" in FileResolution.__struct_fields__


def one_size(root: Path, bytes_: int) -> dict[str, Any]:
    """Gives the figures for one size of the file."""
    common.make_store(root, files=40, commits=3)
    text = common.text(0, bytes_)
    last = text.count("\n") - 1
    one, two = Session(str(root), "bench/one"), Session(str(root), "bench/two")
    try:
        land(one, put(one, text, "main", "Add module"))
        mine = put(two, edited(text, last, "two"), "main", "Edit the end")
        land(one, put(one, edited(text, 0, "one"), "main", "Edit the beginning"))
        clean = Counter(two)
        reply = clean.call("land", {"head": mine, "onto": "main"})
        if not reply["ok"]:
            raise SystemExit(reply)

        now = edited(edited(text, 0, "one"), last, "two")
        middle = last // 2
        mine = put(two, edited(now, middle, "two"), "main", "Edit the middle")
        land(one, put(one, edited(now, middle, "one"), "main", "Edit the middle too"))
        conflict = Counter(two)
        reply = conflict.call("land", {"head": mine, "onto": "main"})
        if reply["ok"] or reply["error"]["code"] != "E_CONFLICT":
            raise SystemExit(reply)
        report = reply["error"]["details"]["report"]
        both = "def changed_by_one(value):\ndef changed_by_two(value):\n"
        answer: dict[str, Any]
        if by_hunk():
            answer = {"hunks": [{"text": both}]}
        else:
            answer = {
                "content": {"inline": edited(now, middle, "one").replace("def changed_by_one(value):\n", both, 1)}
            }
        resolutions = {"against": report["theirs"], "files": {"src/module.py": answer}}
        reply = conflict.call("land", {"head": mine, "onto": "main", "resolutions": resolutions})
        if not reply["ok"]:
            raise SystemExit(reply)
    finally:
        one.close()
        two.close()
    return {
        "clean": clean.figures(),
        "conflict": conflict.figures(),
        "git_clean": {"round_trips": 3, "tokens": (3 * 220 + bytes_) // 4},
        "git_conflict": {"round_trips": 5, "tokens": (5 * 220 + 2 * bytes_) // 4},
    }


def main() -> int:
    """Runs what the command line asks for."""
    asked = common.arguments(__doc__).parse_args()
    figures: dict[str, Any] = {"resolution": "hunks" if by_hunk() else "whole content", "sizes": {}, "tools": {}}
    rows: list[tuple[Any, ...]] = []
    with common.folder() as at:
        for number in SIZES:
            found = figures["sizes"][str(number)] = one_size(at / f"s{number}", number)
            for case in ("clean", "conflict"):
                ours, git = found[case], found[f"git_{case}"]
                rows.append((f"{case}, file of {number // 1000} KB", ours["tokens"], ours["structured_tokens"],
                             ours["round_trips"], git["tokens"], git["round_trips"]))  # fmt: skip
        for profile in ("core", "full"):
            session = Session(str(at / f"s{SIZES[0]}"), "bench/one", "--profile", profile)
            tools = session.request("tools/list", {})["tools"]
            session.close()
            figures["tools"][profile] = {"tools": len(tools), "tokens": size(tools) // 4}
    common.table(
        f"tokens of a land (resolution by {figures['resolution']})",
        ("case", "tokens", "structured", "trips", "git (computed)", "trips"),
        rows,
    )
    common.table(
        "the tool list",
        ("profile", "tools", "tokens"),
        [(n, f["tools"], f["tokens"]) for n, f in figures["tools"].items()],
    )
    common.finish("tokens", figures, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
