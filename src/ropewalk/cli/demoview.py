"""The demo as text, for a person: an excerpt of its run's report, what was proved and how, and what else to try."""

from __future__ import annotations

import re
from typing import Any

_SECTIONS = ("Figures", "Conflicts, repairs and deaths")
"""Are the parts of the report that are shown where it goes into no file."""


def view(result: dict[str, Any]) -> list[str]:
    """Gives the lines."""
    lines = [] if result.get("file") else _excerpt(result["report"])
    lines += [
        f"{result['agents']} agents ({result['harness']}) landed {result['changes']} changes of {result['tasks']} tasks"
        f" in {result['seconds']:.1f} s",
        f"goal:     {result['goal']}",
        f"planned:  by {result['manager']}",
    ]
    lines += [f"mended:   {words}" for words in result["mended"]]
    lines.append(f"regions:  {', '.join(result['regions'])}; {result['crossing']} needs go across")
    for one in result["conflicts"]:
        end = "resolved by its own agent" if one["resolved"] else "not resolved"
        lines.append(f"conflict: {one['task']} in {', '.join(one['paths'])}, {end}")
    lines += [f"repaired: the check of {task} failed, and passed after another turn" for task in result["repaired"]]
    lines += [f"killed:   the agent of {task}, by SIGKILL; an heir began anew, and landed" for task in result["killed"]]
    lines += [f"cage:     {result['cage']}", f"export:   {result['exported']}"]
    lines += [f"git fsck: {result['fsck']}", f"verify:   {result['verified']}"]
    lines += ["", *result["history"].rstrip("\n").split("\n"), ""]
    lines.append(f"report:   {result.get('file') or 'rw demo --report FILE.html has all of it, with graph and times'}")
    if result.get("folder"):
        lines.append(f"kept in:  {result['folder']}")
    lines += [f"FAILED: {what}" for what in result["failed"]] or ["Everything held."]
    return lines + [f"More: {words}" for words in result.get("more", [])]


def _excerpt(report: str) -> list[str]:
    """Gives some sections of a report."""
    lines: list[str] = []
    shown = False
    for line in report.split("\n"):
        if (head := re.match(r"#+ (.*)", line)) is not None and not line.startswith("###"):
            shown = line.startswith("# ") or head[1] in _SECTIONS
        if shown and (line or (lines and lines[-1])):
            lines.append(line)
    return lines
