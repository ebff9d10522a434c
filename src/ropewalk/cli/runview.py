"""Runs as text, for a person: what is asked, who works, what became of it, and the three lines for afterwards."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from ropewalk.cli import demoview

_MARKS = {"landed": "✓", "failed": "✗", "blocked": "–", "stopped": "■", "cancelled": "–", "replaced": "↻",
          "running": "▸", "waiting": "…", "pending": "…"}  # fmt: skip


def of(operation: str) -> Callable[[dict[str, Any]], list[str]] | None:
    """Gives the view of an operation; None for one that has none here."""
    return _VIEWS.get(operation)


def _run(result: dict[str, Any]) -> list[str]:
    from ropewalk.run.figures import afterwards, on_board  # not at each start

    counts = ", ".join(f"{result[name]} {name}" for name in ("landed", "failed", "blocked", "stopped") if result[name])
    if result.get("imported"):
        return _imported(result)
    lines = [f"run {result['id']} is {result['state']}: {counts or 'nothing yet'}{_took(result)}"]
    where = on_board(result.get("board", ""))
    if result.get("goal"):
        lines.append(f"goal: {result['goal']}")
    width = max((len(t["id"]) for t in result["tasks"]), default=0)
    for t in result["tasks"]:
        what = (t.get("landed") or "")[:12] or t.get("reason", "")
        notes = [f"{t['turns']} turns"] if t.get("turns", 0) > 1 else []
        notes += [f"{t['conflicts']} conflict{'s' if t['conflicts'] > 1 else ''}"] if t.get("conflicts") else []
        notes += [f"{t['deaths']} death{'s' if t['deaths'] > 1 else ''}"] if t.get("deaths") else []
        notes += ["from the journal"] if t.get("cached") else []
        said = f" ({', '.join(notes)})" if notes else ""
        lines.append(f"  {_MARKS.get(t['state'], '·')} {t['id']:<{width}} {t['state']:<8} {what}{said}".rstrip())
        if t.get("kept"):
            lines.append(f"    its work is kept: rw recover {t['kept']}")
    for one in result.get("replans", []):
        what = f"no plan came of it: {one['error']}" if one.get("error") else ", ".join(one.get("tasks", []))
        lines.append(f"re-planned, because {', '.join(one['failed'])} failed: {what}")
    for one in result.get("broken", []):
        by = one["by"] or "a change that is none of the run's"
        lines.append(f"the check of {one['task']} fails since {by} landed ({one['commit'][:12]})")
    if usage := result.get("usage"):
        lines.append("tokens: " + ", ".join(f"{name.removesuffix('_tokens')} {n:,}" for name, n in usage.items()))
    if result["landed"] and result["state"] != "undone":
        see, merge = afterwards(result["ref"], result["base"], result.get("board", ""))
        lines.append(f"see it:   {see}")
        if result.get("branch") or merge:
            lines.append(f"merge it: {merge or 'git merge ' + result['branch']}")
        lines.append(f"undo it:  rw runs undo {result['id']}{where}")
    if pause := result.get("paused"):
        at = pause.get("until", 0)
        when = f"; it goes on at {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC" if at else ""
        lines.append(f"paused:   {pause['why']}{when}")
    if result["state"] in ("stopped", "died", "paused"):
        lines.append(f"go on:    rw runs resume {result['id']}{where}")
    return lines


def _undone(result: dict[str, Any]) -> list[str]:
    ref, at = result["ref"], (result.get("head") or "")[:12]
    what = {
        "dropped": f"its branch {ref} is gone, and kept as {result.get('kept')}",
        "moved": f"{ref} is back at {at}, where the run found it",
        "reverted": f"{(result.get('commit') or '')[:12]} on {ref} takes its changes back",
        "nothing": f"{ref} has nothing of it",
    }[result["how"]]
    if result.get("already_applied"):
        return [f"run {result['id']} was taken back before"]
    lines = [f"run {result['id']} is taken back: {what}"]
    if result.get("branch"):
        lines.append(f"the branch {result['branch']} is removed from your repository")
    for one in result.get("built", []):
        lines.append(f"built on it: {one['id'][:12]} {one['title']} ({one['agent']}): {', '.join(one['paths'][:5])}")
    if result.get("held_by"):
        lines.append(f"its work is still in {', '.join(result['held_by'][:5])}")
    return lines


def _imported(result: dict[str, Any]) -> list[str]:
    lines = [f"run {result['id']} was brought from {result['imported']['folder']}", *_origin(result["imported"])]
    width = max((len(t["id"]) for t in result["tasks"]), default=0)
    for t in result["tasks"]:
        who = " ".join(one for one in (t.get("harness", ""), t.get("model", "")) if one)
        lines.append(f"  {t['id']:<{width}} {t['state']:<8} {who}  {t.get('reason', '')}".rstrip())
    if usage := result.get("usage"):
        lines.append("tokens: " + ", ".join(f"{name.removesuffix('_tokens')} {n:,}" for name, n in usage.items()))
    return lines


def _origin(origin: dict[str, Any]) -> list[str]:
    cost = f"{origin.get('mark', '')}${origin['dollars']:.4f}" if origin.get("dollars") is not None else "unknown"
    lines = [f"  {origin['source']} {origin['name']}: {origin.get('lanes', 0)} endings, cost {cost}"]
    if found := origin.get("by_status"):
        lines.append("  findings: " + ", ".join(f"{n} {name}" for name, n in sorted(found.items())))
    lines += [f"  missing: {name}" for name in origin.get("missing", [])]
    lines += [f"  bad: {words}" for words in origin.get("bad", [])]
    return lines + [f"  note: {words}" for words in origin.get("notes", [])]


def _brought(result: dict[str, Any]) -> list[str]:
    lines = []
    for run in result["runs"]:
        lines += [f"{run['id']}: {run['tasks']} tasks, {run['new']} of {run['lanes']} lanes new"]
        lines += _origin(run["origin"])
    return lines


def _runs(result: dict[str, Any]) -> list[str]:
    lines = []
    for r in result["runs"]:
        at = datetime.fromtimestamp(r["started_at"], UTC).strftime("%Y-%m-%d %H:%M:%S") if r["started_at"] else ""
        goal = f"  {r['goal'][:60]}" if r["goal"] else ""
        what = f"{r['landed']} of {r['tasks']} landed on {r['ref']}"
        what = f"{r['tasks']} tasks" if r["state"] == "imported" else what
        lines.append(f"{r['id']} {at} {r['state']:<8} {what}{goal}")
    return lines or ["no runs"]


def _reported(result: dict[str, Any]) -> list[str]:
    if result.get("file"):
        return [f"wrote {result['file']}, {result['bytes']:,} bytes"]
    return [str(line) for line in result["text"].rstrip("\n").split("\n")]


def _watched(result: dict[str, Any]) -> list[str]:
    return _run(result["run"]) if result.get("run") else ["no task of the board is open"]


def _took(result: dict[str, Any]) -> str:
    apart = result.get("clocks_apart")
    if apart:
        return f" (the clocks of its hosts differ by {_seconds(apart)} or more)"
    return f" in {_seconds(result['seconds'])}"


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


_VIEWS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "import-run": _brought,
    "run": _run, "runs show": _run, "runs resume": _run, "runs stop": _run,
    "runs pause": _run, "runs undo": _undone, "runs list": _runs,
    "runs report": _reported, "watch": _watched, "demo": demoview.view,
}  # fmt: skip
