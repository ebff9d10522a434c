"""Holds acknowledgements against a repository with nothing but git: `python recheck.py REPO.git ACKNOWLEDGED.json`.

It imports nothing of the store. ACKNOWLEDGED.json holds `landed` (rows of target ref, landed commit, change, key),
`undone` (landed commits that were taken back), `committed` (ids), `advanced` (rows of branch and commit), and
`counters` (rows of path, line and value). Prints what it found as JSON and ends with 1 when anything is wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any


def git(repo: str, *words: str, stdin: str | None = None) -> str:
    """Gives what git prints."""
    return subprocess.run(
        ["git", "--git-dir", repo, *words], input=stdin, check=True, capture_output=True, text=True
    ).stdout


def history(repo: str, ref: str) -> list[tuple[str, str, str]]:
    """Gives (commit, change, key) of a ref's first-parent line, oldest first."""
    trailers = [
        f"%(trailers:key={key},valueonly,separator=%x2C)" for key in ("Ropewalk-Changeset", "Ropewalk-Land-Key")
    ]
    text = git(repo, "log", "--first-parent", "--reverse", f"--format=%H|{'|'.join(trailers)}", ref)
    found = []
    for line in text.splitlines():
        commit, change, key = line.split("|")
        found.append((commit, change, key))
    return found


def recheck(repo: str, told: dict[str, Any]) -> dict[str, Any]:
    """Gives counts, and `wrong`: a sentence for each acknowledgement that the repository does not bear out."""
    wrong: list[str] = []
    undone = set(told["undone"])
    lines = {ref: history(repo, ref) for ref in {row[0] for row in told["landed"]}}
    for ref, rows in lines.items():
        commits, changes, keys = (Counter(row[n] for row in rows if row[n]) for n in range(3))
        for what, counts in (("change", changes), ("key", keys)):
            wrong += [f"{ref} has the {what} {name} {count} times" for name, count in counts.items() if count > 1]
        for name, landed, change, key in told["landed"]:
            if name != ref:
                continue
            wanted = 0 if landed in undone else 1
            found = commits[landed], changes[change], keys[key]
            if found != (wanted,) * 3:
                wrong.append(f"{ref}: {landed} of {change} under {key} is there {found} times, not {wanted}")
    ids = sorted({*told["committed"], *(row[1] for row in told["landed"])})
    kinds = git(repo, "cat-file", "--batch-check=%(objectname) %(objecttype)", stdin="".join(f"{i}\n" for i in ids))
    wrong += [f"no commit: {line}" for line in kinds.splitlines() if not line.endswith(" commit")]
    for branch in {row[0] for row in told["advanced"]}:
        there = Counter(git(repo, "rev-list", "--first-parent", branch).split())
        wrong += [f"{branch} has {c} {there[c]} times" for b, c in told["advanced"] if b == branch and there[c] != 1]
    for path, line, value in told["counters"]:
        text = git(repo, "cat-file", "blob", f"refs/heads/main:{path}").splitlines()[line]
        if int(text.split()[0]) != value:
            wrong.append(f"{path}, line {line + 1}, is at {text}, and {value} counts were acknowledged")
    git(repo, "fsck", "--full", "--strict", "--no-dangling")
    return {
        "landed": len(told["landed"]), "undone": len(undone), "committed": len(ids), "advanced": len(told["advanced"]),
        "counters": len(told["counters"]), "counted": sum(row[2] for row in told["counters"]), "wrong": wrong[:50],
    }  # fmt: skip


if __name__ == "__main__":
    with open(sys.argv[2], encoding="utf-8") as file:
        result = recheck(sys.argv[1], json.load(file))
    print(json.dumps(result))
    sys.exit(1 if result["wrong"] else 0)
