"""Counts a run again with git's plumbing and the database alone: `recount.py STORE RUN [BOARD]` prints JSON.

BOARD is the repository that the run is on, without it the store's own. Of a run on a git server the database is that of
one host: it has the operations of that host's lands, and the journal of its lanes.

It shares no code with the package, so that a figure of a report that both give is read off the board, not made up.
"""

from __future__ import annotations

import calendar
import json
import subprocess
import sys
import time
from typing import Any

import apsw
import msgspec


def messages(repository: str, run: str) -> dict[str, tuple[int, list[str]]]:
    """Gives (time, lines of the message) of each ref of a board that is of a run."""
    git = ["git", f"--git-dir={repository}"]
    listed = subprocess.run([*git, "for-each-ref", "--format=%(refname)", "refs/swarm"],
                            capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
    found = {}
    for ref in listed:
        if f"/{run}." in ref or ref == f"refs/swarm/runs/{run}":
            text = subprocess.run([*git, "cat-file", "commit", ref], capture_output=True, text=True, check=True).stdout
            head, _, body = text.partition("\n\n")
            stamp = next(line for line in head.split("\n") if line.startswith("committer "))
            found[ref] = int(stamp.split()[-2]), body.split("\n")
    return found


def field(lines: list[str], key: str) -> str:
    """Gives the value of a key of a message."""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{key}:")), "")


def stamped(stamp: str) -> int:
    """Gives the seconds since 1970 of a time in a claim; 0 where there is none."""
    return calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ")) if stamp else 0


def why(verdict: list[str], claim: list[str]) -> str:
    """Gives why an attempt did not land, as its verdict says, else its claim."""
    if not verdict:
        ended = field(claim, "ended")
        return ended.removeprefix("released").removeprefix("infrastructure").removeprefix(":").strip()
    if field(verdict, "fixed") == "true":
        return ""
    reason, note = field(verdict, "reason"), field(verdict, "note")
    if reason == "infrastructure":
        return note
    return f"{reason}: {note}" if reason and note not in ("", reason) else note or reason


def ordered(repository: str, branch: str, base: str) -> list[str]:
    """Gives the commits of a run's branch in order."""
    words = ["git", f"--git-dir={repository}", "rev-list", "--reverse", "--first-parent", f"{base}..{branch}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def count(store: str, run: str, board: str = "") -> dict[str, Any]:
    """Gives the figures of a run."""
    board = board or f"{store}/repo.git"
    said = messages(board, run)
    db = apsw.Connection(f"{store}/store.db", flags=apsw.SQLITE_OPEN_READONLY)
    record = json.loads(field(said[f"refs/swarm/runs/{run}"][1], "record"))
    verdicts = {ref.split(f"{run}.")[1]: one for ref, one in said.items() if ref.startswith("refs/swarm/verdicts/")}
    by_attempt = {field(lines, "attempt"): (task, lines) for task, (_, lines) in verdicts.items()}

    attempts = []
    for ref, (changed, lines) in said.items():
        if not ref.startswith(("refs/swarm/claims/", "refs/swarm/archive/claims/")):
            continue
        name = next(line for line in reversed(lines) if line.startswith("att-"))
        task = ref.split(f"{run}.")[1].partition("@")[0]
        verdict = by_attempt.get(name, ("", []))[1]
        if verdict:
            fixed, reason = field(verdict, "fixed") == "true", field(verdict, "reason")
            how = "landed" if fixed else "died" if reason == "infrastructure" else "failed"
        else:
            how = "released" if field(lines, "ended").startswith("released") else "died"
        lanes = [msgspec.msgpack.decode(row[0]) for row in db.execute(
            "SELECT result FROM lanes WHERE substr(lane, 1, ?) = ?", (len(name) + 1, f"{name}/"))]  # fmt: skip
        counted = [sum((one.get("tokens") or {}).get(k, 0) for k in ("input", "cache_read", "cache_write", "output"))
                   for one in lanes if one.get("tokens") is not None]  # fmt: skip
        idle = not verdict and not lanes and not field(lines, "dispatch_started")
        words = dict(word.split("=") for word in field(verdict, "tokens").split())
        tokens = sum(int(n) for k, n in words.items() if k != "reasoning_tokens") if words else sum(counted)
        known = bool(words or counted or idle)
        prices = [one.get("dollars") for one in lanes]
        marks = {one.get("mark", "") for one in lanes} | ({"*"} if None in prices or not (lanes or idle) else set())
        by_kind = {k: int(n) for k, n in words.items()} if words else {
            f"{k}_tokens": sum(one["tokens"].get(k, 0) for one in lanes if one.get("tokens"))
            for k in ("input", "cache_read", "cache_write", "output")
        }  # fmt: skip
        attempts.append({
            "task": task, "attempt": name, "how": how, "why": why(verdict, lines),
            "agent": field(lines, "agent"), "harness": field(lines, "harness"), "model": field(lines, "model"),
            "began": stamped(field(lines, "claimed")),
            "ended": verdicts[task][0] if verdict else changed if "/archive/" in ref else 0,
            "turns": int(field(verdict, "turns") or 1) if verdict else len(lanes),
            "conflicts": int(field(verdict, "conflicts") or 0),
            "seconds": float(field(verdict, "oc_elapsed")) if verdict else
                       round(sum(o["seconds"] for o in lanes), 1) if lanes else None,
            "by_kind": {k: n for k, n in by_kind.items() if n},
            "tokens": tokens if known else None, "partly": len(counted) < len(lanes),
            "dollars": sum(one for one in prices if one is not None) if prices else None,
                "mark": "*" if "*" in marks else "≈" if "≈" in marks else "",
        })  # fmt: skip

    lands = {}
    for task, (at, lines) in verdicts.items():
        if field(lines, "fixed") == "true":
            commit = field(lines, "landed")
            ops = [
                op
                for op, body in db.execute("SELECT op, body FROM ops WHERE kind = 'land'")
                if any(
                    m[0].endswith(f"/heads/{record['target']}") and m[2] == commit
                    for m in json.loads(body).get("moves", [])
                )
            ]
            lands[task] = {"commit": commit, "op": ops[-1] if ops else None, "at": at, "check": field(lines, "check")}
    failed = {task for task, (_, lines) in verdicts.items() if field(lines, "fixed") == "false"}
    specs = {
        ref.split(f"{run}.")[1]: lines for ref, (_, lines) in said.items()
        if ref.startswith(("refs/swarm/specs/", "refs/swarm/specs-held/", "refs/swarm/held/"))
    }  # fmt: skip
    listed = {
        task: {
            "state": "landed" if task in lands else "failed" if task in failed else "blocked",
            "title": field(specs[task], "title"), "region": field(specs[task], "region").removeprefix(f"{run}."),
            "needs": [need.removeprefix(f"{run}.") for need in field(specs[task], "needs").split()],
        }
        for task in record["tasks"] if task in specs
    }  # fmt: skip
    line = ordered(board, f"refs/heads/{record['target']}", record["base"])
    return {
        "listed": listed, "record": record, "head": line[-1] if line else record["base"],
        "order": [task for commit in line for task, land in lands.items() if land["commit"] == commit],
        "tasks": len(record["tasks"]), "landed": len(lands), "failed": len(failed),
        "blocked": len(set(record["tasks"]) - set(verdicts)), "attempts": attempts, "lands": lands,
        "time": max(at for at, _ in verdicts.values()) - record["at"],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(count(*sys.argv[1:])))
