"""Plans for a person: what was drafted, what the lint and others say of it, what it takes, and how it would run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def of(operation: str) -> Callable[[dict[str, Any]], list[str]] | None:
    """Gives what renders an operation's result, None where nothing special does."""
    return _VIEWS.get(operation)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _workers(recommended: int, low: int, high: int, ceiling: int) -> str:
    span = f", {low} to {high} by single runs" if low != high else ""
    return f"{_many(recommended, 'worker')} (at most {ceiling} could be used{span})"


def _used(spent: dict[str, Any]) -> str:
    words = [f"{_many(spent['asks'], 'prompt')}"] if spent.get("asks") else []
    words += [f"{spent['tokens']} tokens"] if spent.get("tokens") is not None else []
    if spent.get("dollars"):
        words.append(f"{spent.get('mark', '')}${spent['dollars']:.4f}")
    elif spent.get("mark"):
        words.append("cost unknown")
    return ", ".join(words)


def _drafted(result: dict[str, Any]) -> list[str]:
    by = f" by {result['manager']}, try {result['tries']}" if result.get("manager") else ""
    lines = [
        f"{result['folder']}: {_many(len(result['tasks']), 'task')} in {_many(len(result['modules']), 'module')}{by}"
    ]
    lines += [f"  mended: {words}" for words in result.get("problems", [])]
    lines.append(f"  worth having: {_workers(result['workers'], result['low'], result['high'], result['ceiling'])}")
    found = _many(result["findings"], "finding") if result.get("findings") else ""
    lines.append(f"  lint: {f'{found}; `rw plan lint` names them' if found else 'clean'}")
    used = _used(result.get("spent", {}))
    return lines + ([f"  used: {used}"] if used else [])


def _linted(result: dict[str, Any]) -> list[str]:
    lines = []
    for one in result["findings"]:
        who = f" {', '.join(one['packets'])}:" if one["packets"] else ""
        lines.append(f"{one['severity']:<4} {one['check']}:{who} {one['text']}")
    lines += [f"{c['state']}: {c['name']}: {c['reason']}" for c in result["checks"] if c["state"] != "armed"]
    armed = sum(c["state"] == "armed" for c in result["checks"])
    verdict = "may not be started" if result["failing"] else "clean" if not result["findings"] else "may be started"
    return [*lines, f"{_many(result['packets'], 'packet')}, {armed} checks armed: {verdict}"]


def _refuted(result: dict[str, Any]) -> list[str]:
    whose = f" ({result['provider']})" if result["provider"] else ""
    lines = [f"{result['folder']}: {'refuted' if result['refuted'] else 'stands'}, by {result['by']}{whose}"]
    for one in result["findings"]:
        who = f" {', '.join(one['tasks'])}:" if one["tasks"] else ""
        lines.append(f"  {one['severity']:<4}{who} {one['text']}")
    return lines


def _expanded(result: dict[str, Any]) -> list[str]:
    return [f"{result['task']} became {', '.join(result['tasks'])}"]


def _estimated(result: dict[str, Any]) -> list[str]:
    lines = []
    for one in result["tasks"]:
        lines.append(f"{one['task']}")
        lines += [f"  {name:<12} {one[key]}" for name, key in
                  (("tokens in", "tokens_in"), ("tokens out", "tokens_out"), ("time", "seconds"),
                   ("money", "money"))]  # fmt: skip
    lines.append("all of it")
    lines += [f"  {name:<12} {result[key]['words']}" for name, key in
              (("tokens in", "tokens_in"), ("tokens out", "tokens_out"), ("agents' time", "seconds"),
               ("money", "money"))]  # fmt: skip
    wall = "unknown" if result["wall"] is None else f"≈ {result['wall']:,.0f} s"
    lines.append(f"  {'by the wall':<12} {wall} with {_many(result['workers'], 'worker')}")
    return [*lines, f"  it rests on {_many(result['past'], 'earlier lane')}"]


def _shown(result: dict[str, Any]) -> list[str]:
    unit = " s" if result["measured"] else ""
    lines = [result["summary"].split("\n", 1)[0], ""] if result["summary"] else []
    lines.append(f"worth having: {_workers(result['recommended'], result['low'], result['high'], result['ceiling'])}")
    lines.append(f"with {result['workers']}: {result['makespan']:.4g}{unit} of {result['work']:.4g}{unit} work"
                 + ("" if result["measured"] else ", by the weights of modules: nothing was measured"))  # fmt: skip
    lines.append(f"critical path ({result['length']:.4g}{unit}): {' → '.join(result['critical'])}")
    crossing = result["crossing"]
    lines += ["", f"regions ({_many(crossing, 'need')} {'goes' if crossing == 1 else 'go'} from one to another):"]
    lines += [f"  {r['name']:<20} {', '.join(r['modules'])}  ({r['load']:.4g}{unit})" for r in result["regions"]]
    lines += ["", *result["chart"]]
    lines += ["", "waits at the start:"] if result["waits"] else []
    return lines + [f"  {w['task']}: {w['why']}" for w in result["waits"]]


def _new(result: dict[str, Any]) -> list[str]:
    return [result["path"]]


def _touching(result: dict[str, Any]) -> list[str]:
    lines = [f"{d['id']}: {d['title']}  ({', '.join(d['governs'])})" for d in result["decisions"]]
    return lines or ["no decision governs these"]


def _wrong(result: dict[str, Any]) -> list[str]:
    lines = [f"{f['severity']:<4} {f['path']}: {f['text']}" for f in result["findings"]]
    return [*lines, f"{_many(result['decisions'], 'decision')}, {_many(len(result['findings']), 'finding')}"]


_VIEWS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "plan draft": _drafted, "plan lint": _linted, "plan refute": _refuted, "plan expand": _expanded,
    "plan estimate": _estimated, "plan show": _shown, "adr new": _new, "adr touching": _touching, "adr lint": _wrong,
}  # fmt: skip
