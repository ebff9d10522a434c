"""The human rendering of what operations on a board answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

_ORDER = ("ready", "claimed", "waiting", "pending", "half", "invalid", "done", "failed", "infrastructure", "cancelled")


def of(operation: str) -> Callable[[dict[str, Any]], list[str]] | None:
    """Gives what renders an operation's result, None where nothing special does."""
    return _plain_text if operation.startswith("fw ") else _VIEWS.get(operation)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in _ORDER if counts.get(name)) or "no tasks"


def _clock(at: int | None) -> str:
    return "--:--:--" if at is None else datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _plain_text(result: dict[str, Any]) -> list[str]:
    return str(result["text"]).rstrip("\n").split("\n")


def _row(task: dict[str, Any], width: int) -> str:
    why = task.get("why", "")
    if task.get("landed"):
        why = task["landed"][:12]
    title = task["title"] if task["title"] != task["id"] else ""
    return f"{task['state']:<9} {task['id']:<{width}}  {title}" + (f"  ({why})" if why else "")


def _tasks(result: dict[str, Any]) -> list[str]:
    rows = sorted(result["tasks"], key=lambda t: _ORDER.index(t["state"]))
    width = max((len(task["id"]) for task in rows), default=0)
    lines = [_row(task, width).rstrip() for task in rows] + [_counted(result["counts"])]
    return lines + ([f"… go on with --after {result['next']}"] if result.get("next") else [])


def _added(result: dict[str, Any]) -> list[str]:
    lines = [f"added {task}" for task in result["added"]] + [f"changed {task}" for task in result["changed"]]
    if result["unchanged"]:
        lines.append(f"{len(result['unchanged'])} there already, as they are")
    return lines


def _next(result: dict[str, Any]) -> list[str]:
    if result["task"] is None:
        return ["no task is ready"] + [f"  {task}: {why}" for task, why in result.get("waiting", {}).items()]
    task = result["task"]
    others = result["ready"] - 1
    return [f"{task['id']}: {task['title']}" + (f" ({others} more ready)" if others else "")]


def _task(result: dict[str, Any]) -> list[str]:
    spec = result["spec"]
    first = spec.get("description", "").strip().split("\n", 1)[0].strip()
    lines = [f"{result['id']}: {spec.get('title') or first[:200] or result['id']}"]
    lines.append(f"  state     {result['state']}" + (f" ({result['why']})" if result["why"] else ""))
    lines.append(f"  check     {spec['check']}")
    for name in ("needs", "owns", "modifies", "region", "target", "priority", "model", "harness"):
        if value := spec.get(name):
            lines.append(f"  {name:<9} {', '.join(value) if isinstance(value, list) else value}")
    lines += [f"  limit     {name} {value:g}" for name, value in spec.get("limits", {}).items()]
    if gate := spec.get("gate"):
        lines.append(f"  gate      {gate['n']} of {gate['m']}")
    lines += [f"  problem   {words}" for words in result.get("problems", [])]
    if result.get("held_back"):
        lines.append("  held back from workers of flockwork, which don't read all that it asks for")
    if result.get("attempt"):
        harness = result.get("claim", {}).get("harness", "")
        lines.append(f"  attempt   {result['attempt']}" + (f" ({harness})" if harness else ""))
    if result.get("landed"):
        lines.append(f"  landed    {result['landed'][:12]}")
    if verdict := result.get("verdict"):
        note = verdict.get("note") or verdict.get("reason") or ""
        codes = f"agent {verdict.get('oc_rc', '?')}, check {verdict.get('pytest_rc', '?')}"
        lines.append(f"  verdict   fixed: {verdict.get('fixed', '?')} ({codes}){f': {note}' if note else ''}")
    lines += [f"  before    {attempt}" for attempt in result.get("earlier", [])]
    if spec.get("description"):
        lines += ["", *(f"  {line}".rstrip() for line in spec["description"].split("\n"))]
    return lines


def _state(result: dict[str, Any]) -> list[str]:
    return [f"{result['task']} is {result['state']}"]


def _opened(result: dict[str, Any]) -> list[str]:
    return [f"opened {task}" for task in result["opened"]] or ["nothing to open"]


def _brief(result: dict[str, Any]) -> list[str]:
    return str(result["brief"]).rstrip("\n").split("\n")


def _claimed(result: dict[str, Any]) -> list[str]:
    base = (result["base"] or "nothing")[:12]
    return [f"{result['task']} is yours: {result['attempt']}", f"start from {base} of {result['target']}"]


def _still(result: dict[str, Any]) -> list[str]:
    marks = "".join(f", {name} {at}" for name, at in result["marks"].items())
    return [f"{result['task']} is held by {result['attempt']}{marks}"]


def _judged(result: dict[str, Any]) -> list[str]:
    how = "out of time" if result["timed_out"] else f"exit {result['rc']}"
    lines = [f"{'passed' if result['rc'] == 0 else 'failed'}: {how}, {result['seconds']} s, tree {result['tree'][:12]}"]
    return lines + [f"  | {line}" for line in result["detail"].rstrip("\n").split("\n") if result["detail"].strip()]


def _returned(result: dict[str, Any]) -> list[str]:
    what = "landed as" if result["how"] == "landed" else "waits to be merged as"
    return [f"{result['task']} {what} {result['landed'][:12]} on {result['target']}; the check passed on what landed"]


def _verdict(result: dict[str, Any]) -> list[str]:
    return [f"{result['task']} is {result['state']}" + ("" if result["written"] else "; that was said already")]


def _law(result: dict[str, Any]) -> list[str]:
    mixed = "; workers of flockwork may run on it" if result["mixed"] else ""
    return [f"{result['board']} is a board, law {result['law']}{mixed}"]


def _dropped(result: dict[str, Any]) -> list[str]:
    counts = ", ".join(f"{count} {kind}" for kind, count in result["refs"].items())
    return [f"{'removed' if result['dropped'] else 'would remove'} {counts}"]


def _audit(result: dict[str, Any]) -> list[str]:
    lines = [f"{'healthy' if result['healthy'] else 'UNHEALTHY'}: {_counted(result['counts'])}"]
    for one in sorted(result["findings"], key=lambda f: not f["fault"]):
        place = f"{one['task']}: " if one["task"] else ""
        lines.append(f"  {'fault' if one['fault'] else 'note '}  {place}{one['words']}")
    return lines


def _gate(result: dict[str, Any]) -> list[str]:
    how = "fired" if result["fired"] else "had fired before" if result["integrated"] else "has not fired"
    lines = [f"{result['task']}: {len(result['agree'])} agree, {result['n']} of {result['m']} wanted; the gate {how}"]
    lines += [f"  agree  {name}" for name in result["agree"]] + [f"  veto   {name}" for name in result["veto"]]
    lines += [f"  void   {name}: {why}" for name, why in result["invalid"].items()]
    return lines + ([f"  {result['why']}"] if result["why"] else [])


def _reviewed(result: dict[str, Any]) -> list[str]:
    known = "" if result["new"] else " (said before)"
    return [f"{result['reviewer']}: {result['outcome']} of {result['commit'][:12]}{known}"]


def _timeline(result: dict[str, Any]) -> list[str]:
    rows = result["attempts"]
    width = max((len(one["task"]) for one in rows), default=0)
    ends = {True: "fixed", False: "not fixed", None: ""}
    lines = []
    for one in rows:
        span = f"{_clock(one['began'])} – {_clock(one['ended'])}"
        lines.append(f"{span}  {one['task']:<{width}}  {one['att']}  {ends[one['fixed']]}".rstrip())
    return lines or ["no attempts"]


def _durations(result: dict[str, Any]) -> list[str]:
    lines = []
    for model, one in result["models"].items():
        name = f"{model} ({one['harness']})" if one["harness"] else model
        near = "; one came near its bound" if one["near_bound"] else ""
        lines.append(f"{name}: {one['n']} ran, median {one['p50_s']:g} s, p90 {one['p90_s']:g} s, "
                     f"{one['min_s']:g} to {one['max_s']:g} s{near}")  # fmt: skip
    return (lines or ["no agent's time is known"]) + [""] + _timeline({"attempts": result["timeline"]})


def _attribution(result: dict[str, Any]) -> list[str]:
    ends = {True: "fixed", False: "not fixed", None: "no verdict"}
    lines = []
    for task, rows in result["tasks"].items():
        for one in rows:
            why = one.get("reason") or one.get("ended") or ""
            lines.append(f"{task}: {one['att']}, {one['harness']}, model {one['model']}: {ends[one['fixed']]}"
                         + (f" ({why})" if why else ""))  # fmt: skip
    for word in ("in_progress", "interrupted"):
        lines += [f"{task}: {one['att']}, {one['harness']}, model {one['model']}: {word.replace('_', ' ')}"
                  + (f" ({one['note']})" if one.get("note") else "") for task, one in result[word].items()]  # fmt: skip
    return lines or ["no attempts"]


def _graph(result: dict[str, Any]) -> list[str]:
    if result.get("drawn"):
        return str(result["drawn"]).rstrip("\n").split("\n")
    if (found := result.get("needs")) is not None:
        lines = [f"{n['state']:<9} {n['task']}" + "".join(f" ← {need}" for need in n["needs"]) for n in found["nodes"]]
        return lines + [f"missing   {name}" for name in found["missing"]] or ["no tasks"]
    lines = []
    for task, chain in result["corrections"]["tasks"].items():
        lines.append(f"{task}: " + " → ".join(f"{a['att']} ({a['model']})" for a in chain["attempts"]))
    return lines or ["no attempts"]


def _worked(result: dict[str, Any]) -> list[str]:
    counts: dict[str, int] = {}
    for one in result.get("tasks", []):
        counts[one["how"]] = counts.get(one["how"], 0) + 1
    done = ", ".join(f"{count} {how}" for how, count in counts.items()) or "no attempts"
    why = f" ({result['reason']})" if result.get("reason") else ""
    lines = [f"{result['worker']}: {done} in {result.get('seconds', 0)} s; ended: {result['ended']}{why}"]
    lines += [f"  {t['task']}: {t['how']}: {t['reason']}" for t in result.get("tasks", []) if t.get("reason")]
    return lines + [f"  left: {one['task']} is {one['state']} {one.get('why', '')}".rstrip() for one in
                    result.get("left", [])]  # fmt: skip


_VIEWS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "task list": _tasks, "task add": _added, "task next": _next, "task show": _task, "task cancel": _state,
    "task reopen": _opened, "task retry": _opened, "brief": _brief, "claim": _claimed, "heartbeat": _still,
    "work-started": _still, "work-done": _still, "judge": _judged, "return": _returned, "verdict": _verdict,
    "board init": _law, "board scratch": _law, "board drop": _dropped, "board audit": _audit, "board gate": _gate,
    "board review": _reviewed, "board timeline": _timeline, "board graph": _graph, "work": _worked,
    "board durations": _durations, "board attribution": _attribution,
}  # fmt: skip
