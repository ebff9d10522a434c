"""Lanes for a person: lists, one lane, the gate's verdict, the doctor, what is left to sweep."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any


def of(operation: str) -> Callable[[dict[str, Any]], list[str]] | None:
    """Gives what renders an operation's result, None where nothing special does."""
    return _VIEWS.get(operation)


def _cost(lane: dict[str, Any]) -> str:
    """Gives tokens and dollars; unknown is said, and never 0."""
    words = [] if lane.get("tokens") is None else [f"{lane['tokens']} tokens"]
    mark = lane.get("mark", "")
    if lane.get("dollars") is not None:
        if lane["dollars"]:
            words.append(f"{mark}${lane['dollars']:.4f}")
    elif mark:
        words.append("cost unknown")
    return ", ".join(words)


def _took(lane: dict[str, Any]) -> str:
    return "unknown" if lane["seconds"] is None else f"{lane['seconds']:.1f} s"


def _row(lane: dict[str, Any]) -> str:
    gate = "-" if lane.get("passed") is None else "passed" if lane["passed"] else "refused"
    when = datetime.fromtimestamp(lane["began"], UTC).strftime("%Y-%m-%d %H:%M:%S") if lane["began"] else "unknown"
    reason = f"  {lane['reason']}" if lane.get("reason") else ""
    return (
        f"{lane['lane']:<28} {lane['state']:<12} {lane['harness']:<9} {lane['cage']:<5} {gate:<7} {when:<19}"
        f" {_took(lane):>10}{reason}"
    )


def _list(result: dict[str, Any]) -> list[str]:
    lines = [_row(lane) for lane in result["lanes"]]
    counts = ", ".join(f"{count} {state}" for state, count in sorted(result["totals"].items()))
    return [*lines, counts or "no lanes", *(["there are more"] if result["truncated"] else [])]


def _show(result: dict[str, Any]) -> list[str]:
    lane = result["lane"]
    gate = "not asked yet"
    if lane.get("passed") is not None:
        gate = "passed" if lane["passed"] else f"refused: {result.get('gate', '')}"
    facts = {
        "state": lane["state"] + (f": {lane['reason']}" if lane.get("reason") else ""),
        "agent": f"{lane['agent']} by {lane['harness']} {result.get('version', '')}".rstrip(),
        "model": lane.get("model", ""), "cage": lane["cage"], "took": _took(lane), "used": _cost(lane),
        "workspace": result["workspace"], "files": result["folder"], "session": result.get("session") or "",
        "imported": lane.get("imported", ""), "gate": gate, "tree": result.get("tree", ""),
        "landed": lane.get("landed", ""),
    }  # fmt: skip
    lines = [lane["lane"], *(f"  {name:<10} {value}" for name, value in facts.items() if value)]
    if result.get("text"):
        lines += ["", *(f"  {line}".rstrip() for line in result["text"].splitlines())]
    return lines


def _logs(result: dict[str, Any]) -> list[str]:
    return list(result["lines"])


def _collected(result: dict[str, Any]) -> list[str]:
    lines = [f"{result['lane']['lane']}: {'passed' if result['passed'] else 'refused'} (tree {result['tree'][:12]})"]
    lines += [f"  {reason}" for reason in result["reasons"]]
    lines += [f"  note: {note}" for note in result["notes"]]
    return lines + [f"  changed: {path}" for path in result["changed"]]


def _restored(result: dict[str, Any]) -> list[str]:
    lines = [f"{result['checkout']}: {len(result['put_back'])} put back, {len(result['left'])} left"]
    for mark, name in (("put back", "put_back"), ("left", "left")):
        for one in result[name]:
            lines.append(f"  {mark:<9} {one['path']} ({one['how']}){': ' + one['why'] if one.get('why') else ''}")
    if len(result["lanes"]) > 1:
        lines.append(f"these lanes ran when it changed: {', '.join(result['lanes'])}")
    return lines + ([f"what stood there is in {result['aside']}"] if result["aside"] else [])


def _checks(checks: list[dict[str, Any]]) -> list[str]:
    lines = []
    for one in checks:
        lines.append(f"  {one['status']:<12} {one['what']}: {one['words']}")
        if one.get("hint") and one["status"] != "ok":
            lines.append(f"  {'':<12} {one['hint']}")
    return lines


def _doctor(result: dict[str, Any]) -> list[str]:
    lines = []
    for harness in result["harnesses"]:
        version, lanes = harness.get("version", ""), harness.get("lanes", 0)
        room = f", memory for {lanes} lanes" if lanes else ""
        lines.append(f"{harness['name']}: {harness['status']}{f' {version}' if version else ''}{room}")
        lines += _checks(harness.get("checks", []))
    lines += ["machine:", *_checks(result["machine"])]
    if result.get("logins"):
        lines += ["logins:", *_checks(result["logins"])]
    return [*lines, f"endpoints: {', '.join(result['endpoints']) or 'none'}", f"all in all: {result['status']}"]


def _probed(result: dict[str, Any]) -> list[str]:
    lines = [f"{one['grade']:<5} {one['name']}: {one['found']}" for one in result["checks"]]
    return [*lines, f"{result['url']}: {result['verdict']}"]


def _swept(result: dict[str, Any]) -> list[str]:
    lines = []
    for one in result["lanes"]:
        gone = f" (removed; {one.get('archive', 'it had no files')})" if one.get("removed") else ""
        lines.append(f"{one['verdict']:<17} {one['lane']:<28} {one['bytes'] >> 10:>8} KiB  {one['why']}{gone}")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(result["totals"].items()))
    return [*lines, f"{counts or 'nothing is left'}; {result['bytes'] >> 10} KiB given back"]


def _chip(result: dict[str, Any]) -> list[str]:
    return [f"{result['lane']}: {result['state']}", f"  {result['path']}"]


def _chips(result: dict[str, Any]) -> list[str]:
    return [f"{one['state']:<8} {one['lane']:<28} {one.get('task', '')}".rstrip() for one in result["chips"]]


def _budget(one: dict[str, Any]) -> list[str]:
    used = {"dollars": one["dollars"] or 0.0, "tokens": one.get("tokens", 0), "requests": one.get("requests", 0)}
    parts = [
        f"{one.get('mark', '') if what == 'dollars' else ''}{used[what]:.10g} of {most:.10g} {what}"
        for what, most in one["cap"].items()
    ]
    waiting = f", {one['reserved_tokens']} tokens reserved" if one.get("reserved_tokens") else ""
    lines = [f"  budget {one['name']}: {', '.join(parts)}{waiting}"]
    return lines + ([f"    {one['holds']}"] if one.get("holds") else [])


def _gateway(result: dict[str, Any]) -> list[str]:
    where = f"process {result['pid']}, port {result['port']}" if result["running"] else "it does not run"
    lines = [f"gateway: {where}", f"  {result['folder']}"]
    lines += [f"  upstream {one['name']}: {one['url']}" for one in result["upstreams"]]
    lines += [line for one in result["budgets"] for line in _budget(one)]
    return lines + [
        f"  lane {one['lane']}: {one.get('requests', 0)} requests, {_cost(one) or 'nothing used'}"
        for one in result["lanes"]
    ]


_VIEWS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "lane start": _show, "lane show": _show, "lane stop": _show, "lane list": _list, "lane logs": _logs,
    "lane collect": _collected, "doctor": _doctor, "probe": _probed, "sweep": _swept, "chip open": _chip,
    "chip close": _chip, "chip list": _chips, "gateway status": _gateway, "lane restore": _restored,
}  # fmt: skip
