"""Counts a run again with git's plumbing and the database alone: `recount.py STORE RUN` prints the figures as JSON.

It shares no code with the package, so that a figure of a report that both give is read off the board, not made up.
"""

from __future__ import annotations

import json
import subprocess
import sys
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


def count(store: str, run: str) -> dict[str, Any]:
    """Gives the figures of a run."""
    said = messages(f"{store}/repo.git", run)
    db = apsw.Connection(f"{store}/store.db", flags=apsw.SQLITE_OPEN_READONLY)
    record = json.loads(field(said[f"refs/swarm/runs/{run}"][1], "record"))
    verdicts = {ref.split(f"{run}.")[1]: one for ref, one in said.items() if ref.startswith("refs/swarm/verdicts/")}
    by_attempt = {field(lines, "attempt"): (task, lines) for task, (_, lines) in verdicts.items()}

    attempts = []
    for ref, (_, lines) in said.items():
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
        words = dict(word.split("=") for word in field(verdict, "tokens").split())
        tokens = sum(int(n) for k, n in words.items() if k != "reasoning_tokens") if words else sum(counted)
        known = bool(words or counted)
        prices = [one.get("dollars") for one in lanes]
        marks = {one.get("mark", "") for one in lanes} | ({"*"} if None in prices else set())
        attempts.append({
            "task": task, "attempt": name, "how": how,
            "turns": int(field(verdict, "turns") or 1) if verdict else len(lanes),
            "conflicts": int(field(verdict, "conflicts") or 0),
            "seconds": float(field(verdict, "oc_elapsed")) if verdict else round(sum(o["seconds"] for o in lanes), 1),
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
                for op, body in db.execute("SELECT op, body FROM ops")
                if [f"refs/heads/{record['target']}", commit]
                in [[m[0], m[2]] for m in json.loads(body).get("moves", [])]
            ]
            lands[task] = {"commit": commit, "op": ops[-1], "at": at, "check": field(lines, "check")}
    failed = {task for task, (_, lines) in verdicts.items() if field(lines, "fixed") == "false"}
    return {
        "tasks": len(record["tasks"]), "landed": len(lands), "failed": len(failed),
        "blocked": len(set(record["tasks"]) - set(verdicts)), "attempts": attempts, "lands": lands,
        "time": max(at for at, _ in verdicts.values()) - record["at"],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(count(sys.argv[1], sys.argv[2])))
