"""The human rendering of an envelope: the same result as text, for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

# what somebody asked to be short is not called cut
PAGE = 50
# their text is a program's input, of which it takes the last line
READ_BY_PROGRAMS = frozenset({"ws hook"})


def render(envelope: dict[str, Any]) -> str:
    """Gives an envelope as text with a line end."""
    if not envelope["ok"]:
        return _error(envelope["error"])
    result = envelope["result"]
    special = _SPECIAL.get(envelope["op"]) or _elsewhere(envelope["op"])
    lines = special(result) if special else list(_lines(result))
    return "".join(f"{line}\n" for line in (lines if envelope["op"] in READ_BY_PROGRAMS else lines + _notes(envelope)))


def aside(envelope: dict[str, Any]) -> str:
    """Gives what is said beside a result that a program reads, with a line end."""
    told = envelope["ok"] and envelope["op"] in READ_BY_PROGRAMS
    return "".join(f"{line}\n" for line in (_notes(envelope) if told else []))


def _notes(envelope: dict[str, Any]) -> list[str]:
    lines = [f"warning: {w}" for w in envelope.get("warnings", [])]
    recovered = envelope.get("meta", {}).get("recovered")
    if recovered:
        lines.append("recovered after a power loss: " + ", ".join(f"{v} {k}" for k, v in recovered.items()))
    return lines


def _elsewhere(operation: str) -> Callable[[dict[str, Any]], list[str]] | None:
    from ropewalk.cli import boardview, laneview, planview, runview, setupview, upkeepview

    views = (boardview, upkeepview, laneview, planview, runview, setupview)
    return next((found for view in views if (found := view.of(operation)) is not None), None)


def _error(error: dict[str, Any]) -> str:
    lines = [f"error: {error['code']} {error['message']}"]
    report = error["details"].get("report") if isinstance(error["details"], dict) else None
    if isinstance(report, dict):
        for file in report["files"]:
            lines.append(f"conflict: {','.join(file['kinds'])} {file['path']}")
            for hunk in file.get("hunks", []):
                for side in ("base", "ours", "theirs"):
                    part = hunk[side]
                    lines.append(f"  {side} {part['start']},{part['count']}:")
                    lines += [f"    {line}" for line in part["text"].splitlines()]
        lines.append(f"against: {report['theirs']}")
    lines += _known_details(error["details"])
    if error.get("hint"):
        lines.append(f"hint: {error['hint']}")
    return "".join(f"{line}\n" for line in lines)


def _known_details(details: Any) -> list[str]:
    """Gives what a person needs of an error's details: each changeset's outcome, stale paths, a check's output."""
    if not isinstance(details, dict):
        return []
    lines = []
    for one in details.get("results") or []:
        lines.append(
            f"  {one.get('status', 'failed')} {one.get('landed') or one['head']} {one.get('error', '')}".rstrip()
        )
    problems = details.get("problems")
    if isinstance(problems, list) and len(problems) > 1:
        lines += [f"  {one}" for one in problems]
    if details.get("stale"):
        lines.append(f"stale: {', '.join(details['stale'])}")
    output = details.get("output")
    if isinstance(output, str):
        lines += [f"  | {line}" for line in output.rstrip("\n").split("\n")]
    return lines


def _lines(value: Any, indent: str = "") -> list[str]:
    """Gives nested values as `key: value` lines."""
    lines: list[str] = []
    if not isinstance(value, dict):
        return [f"{indent}{_word(value)}"]
    for key, item in value.items():
        if isinstance(item, dict):
            lines += [f"{indent}{key}:", *_lines(item, indent + "  ")]
        elif isinstance(item, list) and any(isinstance(i, (dict, list)) for i in item):
            lines.append(f"{indent}{key}:")
            for entry in item:
                inner = _lines(entry, indent + "    ") if isinstance(entry, dict) else [f"{indent}    {_word(entry)}"]
                if inner:
                    inner[0] = f"{indent}  - {inner[0].strip()}"
                lines += inner
        elif isinstance(item, list):
            lines.append(f"{indent}{key}: {', '.join(_word(i) for i in item) if item else 'none'}")
        elif isinstance(item, str) and "\n" in item:
            lines += [f"{indent}{key}:", *(f"{indent}  {line}".rstrip() for line in item.rstrip("\n").split("\n"))]
        else:
            lines.append(f"{indent}{key}: {_word(item)}")
    return lines


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def when(at: int) -> str:
    """Gives seconds since 1970 as date and time, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _land(result: dict[str, Any]) -> list[str]:
    if result.get("results"):
        return [f"{r['status']} {r.get('landed') or r['head']}" for r in result["results"]]
    if result["status"] != "landed":
        return [f"{result['status']} {result['landed']} on {result['onto']}"]
    how = f"(onto {result['merged_onto']}, attempt {result['attempts']})"
    return [f"landed {result['landed']} on {result['onto']} {how}", *_checks(result)]


def _cat(result: dict[str, Any]) -> list[str]:
    lines = str(result["content"]).split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    if result.get("truncated"):
        lines.append(f"… {result['size']} bytes; go on with --offset {result['next_offset']}")
    return lines


def _log(result: dict[str, Any]) -> list[str]:
    rows = result["entries"]
    lines = [f"{e['id'][:12]} {when(e['created_at'])} {e['author_agent']}: {e['title']}" for e in rows]
    return lines + _more(result, "--before") * (len(rows) >= PAGE)


def _ls(result: dict[str, Any]) -> list[str]:
    return [
        f"{e['kind']:<9} {e['size'] if e['size'] is not None else '-':>9} {e['name']}" for e in result["entries"]
    ] + _more(result, "--after")


def _refs(result: dict[str, Any]) -> list[str]:
    return [f"{r['target'][:12]} {r['name']}" for r in result["refs"]] + _more(result, "--after")


def _ops(result: dict[str, Any]) -> list[str]:
    lines = []
    for op in result["ops"]:
        moves = ", ".join(f"{m['name']} → {(m['new'] or 'gone')[:12]}" for m in op["ref_moves"])
        mark = f" (undone by {op['undone_by']})" if op.get("undone_by") else ""
        lines.append(f"{op['op']:>6} {when(op['at'])} {op['kind']:<10} {op['actor']:<20} {moves}{mark}".rstrip())
    return lines + _more(result, "--before") * (len(lines) >= PAGE)


def _diff(result: dict[str, Any]) -> list[str]:
    return str(result.get("text", "")).splitlines() + _more(result, "--after")


def _settings(result: dict[str, Any]) -> list[str]:
    lines = []
    for s in result["settings"]:
        value = f"{s['value']:g}" if isinstance(s["value"], float) else _word(s["value"])
        lines.append(f"{s['name']:<12} {value}" + (f" ({s['origin']})" if s.get("origin") else ""))
        lines.append(f"             {s['variable']}: {s['purpose']}")
    return lines


def _show(result: dict[str, Any]) -> list[str]:
    lines = [f"changeset {result['id']}", f"author    {result['author']['agent']}"]
    if result.get("lander"):
        lines.append(f"lander    {result['lander']['agent']}")
    lines += [f"date      {when(result['created_at'])}", *(f"parent    {p}" for p in result["parents"]), ""]
    lines += [f"    {line}".rstrip() for line in str(result["message"]).rstrip("\n").split("\n")] + [""]
    lines += [f"{c['kind']:<9} {c['path']}" for c in result["changes"]]
    return lines + _more(result, "--after")


def _history(result: dict[str, Any]) -> list[str]:
    lines = []
    for e in result["entries"]:
        lines.append(
            f"{e['id'][:12]} {when(e['created_at'])} {e['author_agent']}: {e['title']} ({e['kind']} {e['path']})"
        )
    return lines + _more(result, "--before")


def _blame(result: dict[str, Any]) -> list[str]:
    rows = result["lines"]
    width = max((len(r["agent"]) for r in rows), default=0)
    lines = [f"{r['changeset'][:12]} {r['agent']:<{width}} {r['line']:>5}  {r['text']}".rstrip() for r in rows]
    if result.get("truncated"):
        lines.append(f"… go on with --lines {result['next']}-{result['total']}")
    return lines


def _grep(result: dict[str, Any]) -> list[str]:
    return [f"{m['path']}:{m['line']}:{m['text']}" for m in result["matches"]] + _more(result, "--after")


def _moves(result: dict[str, Any]) -> list[str]:
    first = f"undid {result['undone']} by {result['op']}" if "undone" in result else f"operation {result['op']}"
    if result["already_applied"]:
        first = "nothing to do, it is so already"
    lines = [first]
    for m in result["ref_moves"]:
        lines.append(f"  {m['name']}: {(m['old'] or 'none')[:12]} → {(m['new'] or 'gone')[:12]}")
    return lines


def _op(result: dict[str, Any]) -> list[str]:
    lines = _ops({"ops": [result]})
    lines += [f"  changeset {c['id']} {c['agent']}: {c['title']}" for c in result["changesets"]]
    lines += [f"  {m['name']}: {m['old'] or 'none'} → {m['new'] or 'gone'}" for m in result["ref_moves"]]
    return lines + [f"  {name}: {result[name]}" for name in ("undoes", "key", "note") if result.get(name)]


def _workspaces(result: dict[str, Any]) -> list[str]:
    rows = result["workspaces"]
    width = max((len(r["name"]) for r in rows), default=0)
    lines = []
    for r in rows:
        behind = f"{r['behind']:>4} behind {r['onto']}"
        lines.append(f"{r['name']:<{width}} {r['state']:<8} {r['agent']:<16} {behind}  {r['path']}")
    return lines


def _ws_status(result: dict[str, Any]) -> list[str]:
    lines = [f"{result['name']} stands on {result['base'][:12]}, {result['behind']} behind {result['onto']}"]
    lines += [f"  {c['kind']:<9} {c['path']}" for c in result["changes"]] or ["  no changes"]
    if result.get("more"):
        lines.append(f"  … and {result['more']} more")
    lines += [f"  in conflict: {path}" for path in result.get("conflicts", [])]
    return lines + [f"  held back: {path}" for path in result.get("held_back", [])]


def _ws_rebase(result: dict[str, Any]) -> list[str]:
    lines = [f"{result['name']} stands on {result['base'][:12]}, the head of {result['onto']}"]
    lines += [f"  in conflict: {path}" for path in result.get("conflicts", [])]
    return lines + ["hint: edit the files between the markers, then `rw ws land`"] * bool(result.get("conflicts"))


def _ws_resolve(result: dict[str, Any]) -> list[str]:
    lines = [f"resolved: {path}" for path in result["resolved"]]
    return lines + [f"in conflict: {path}" for path in result["conflicts"]]


def _ws_materialize(result: dict[str, Any]) -> list[str]:
    where = "everywhere" if result["all"] else f"below {', '.join(result['prefixes'])}"
    return [f"{result['name']}: {result['written']} files written; files are on disk {where}"]


def _ws_hook(result: dict[str, Any]) -> list[str]:
    """Gives what the agent program reads: the settings, or the folder alone."""
    if (settings := result.get("settings")) is not None:
        import msgspec

        return msgspec.json.format(msgspec.json.encode(settings), indent=2).decode("utf-8").splitlines()
    return [result["path"]]


def _ws_land(result: dict[str, Any]) -> list[str]:
    return _land({**result, **result["land"], "merged_onto": result["land"]["rebased_onto"]})


def _checks(result: dict[str, Any]) -> list[str]:
    lines = []
    for check in result.get("checks", []):
        known = " (known)" if check.get("cached") else " (it failed before it passed)" if check.get("flaky") else ""
        lines.append(f"checked {check['tree'][:12]}: exit {check['rc']}, {check['seconds']} s{known}")
    return lines


def _queue(result: dict[str, Any]) -> list[str]:
    lines = [
        f"{r['entry']:>5} {r['onto']:<12} {r['agent']:<16} {r['runs']} runs  {r['title']}" for r in result["entries"]
    ]
    return lines or ["nothing waits"]


def _queue_entry(result: dict[str, Any]) -> list[str]:
    row = result["entry"]
    lines = [f"{row['entry']}: {row['title']}", f"{row['changeset']} by {row['agent']}, for {row['onto']}"]
    lines.append(f"check: {' '.join(result['command'])}")
    lines.append(f"before it: {', '.join(str(n) for n in result['before']) or 'nothing'}")
    return lines + _checks(result)


def _radar(result: dict[str, Any]) -> list[str]:
    width = max((len(e["path"]) for e in result["echoes"]), default=0)
    words = {"conflict": "in conflict", "file": "other places"}
    lines = [f"{words[e['how']]:<12} {e['path']:<{width}} {' and '.join(e['workspaces'])}" for e in result["echoes"]]
    lines = lines or ["no two workspaces edit the same files"]
    return lines + [f"not looked at: {name}" for name in result["skipped"]]


def _snapshots(result: dict[str, Any]) -> list[str]:
    lines = [f"{name}: {ref}" for name, ref in result["taken"].items()] or ["nothing new to keep"]
    return lines + [f"busy: {name}" for name in result["skipped"]]


def _recover(result: dict[str, Any]) -> list[str]:
    if result.get("restored"):
        return [
            f"{result['restored']['name']} stands on {result['restored']['base'][:12]} in {result['restored']['path']}"
        ]
    lines = [f"{when(s['at'])} {s['ref']:<32} {s['why']}" for s in result.get("snapshots", [])]
    lines += [f"in the trash: {name}" for name in result.get("trash", [])]
    return lines or ["nothing is kept"]


def _trash(result: dict[str, Any]) -> list[str]:
    lines = [f"{e['id']:<24} {when(e['at'])} {e['agent']:<16} {e['path']}" for e in result.get("entries", [])]
    return lines + [f"removed {name}" for name in result.get("removed", [])] or ["the trash is empty"]


def _remotes(result: dict[str, Any]) -> list[str]:
    return [f"{r['name']:<12} {r['url']}" for r in result["remotes"]] or ["no remotes"]


def _pull(result: dict[str, Any]) -> list[str]:
    """Gives a pull request: where it is, how it stands, and how its changes came into the branch."""
    pull = result["pull"]
    state = "draft" if pull["draft"] and pull["state"] == "open" else pull["state"]
    opened = " (opened now)" if result.get("created") else ""
    lines = [f"#{pull['number']} {state}{opened}: {pull['title']}", pull["url"]]
    lines.append(f"branch: {pull['branch']} at {pull['head'][:12]}, for {pull['base']}")
    if result.get("current") is False:
        lines.append("the ref has moved since: push it with `rw pr open`")
    if (checks := pull["checks"]) is not None:
        failing = f", failing: {', '.join(checks['failing'])}" if checks["failing"] else ""
        lines.append(f"checks: {checks['state']} ({checks['passed']} passed, {checks['failed']} failed, "
                     f"{checks['pending']} pending{failing})")  # fmt: skip
    if pull["state"] == "open":
        why = f" ({pull['why']})" if pull["why"] else ""
        lines.append(f"mergeable: {'unknown' if pull['mergeable'] is None else _word(pull['mergeable'])}{why}")
    if (brought := result.get("brought")) is not None:
        how = {"fast_forward": "as they are", "merge": "by a merge", "rebase": "rebased", "squash": "squashed"}
        by = {one["by"] for one in brought["recognised"]}
        known = f", recognised by {' and '.join(sorted(by))}" if by else ""
        if brought["how"] is None:
            lines.append(f"in {pull['base']}: not {len(brought['left'])} of its changes")
        else:
            lines.append(f"in {pull['base']}: all changes, {how[brought['how']]}{known}")
    return lines


def _tokens(result: dict[str, Any]) -> list[str]:
    return [
        f"{t['name']:<12} {t['holder']:<16} {', '.join(t['can'])} on {', '.join(t['refs'])}" for t in result["tokens"]
    ] or ["no tokens"]


def _more(result: dict[str, Any], option: str) -> list[str]:
    """Gives a line that says where a page that was cut goes on."""
    if not result.get("truncated"):
        return []
    return [f"… go on with {option} {result['next']}" if result.get("next") is not None else "… cut here"]


def _schema(result: dict[str, Any]) -> list[str]:
    return (
        [f"{o['name']:<14} {o['summary']}" for o in result["operations"]]
        if result.get("operations")
        else _lines(result)
    )


_SPECIAL: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "land": _land,
    "cat": _cat,
    "log": _log,
    "ls": _ls,
    "ref list": _refs,
    "op log": _ops,
    "diff": _diff,
    "show": _show,
    "history": _history,
    "blame": _blame,
    "grep": _grep,
    "ref set": _moves,
    "ref delete": _moves,
    "ref move": _moves,
    "op undo": _moves,
    "op show": _op,
    "queue list": _queue,
    "queue show": _queue_entry,
    "ws list": _workspaces,
    "ws diff": _diff,
    "ws radar": _radar,
    "ws snapshot": _snapshots,
    "recover": _recover,
    "trash list": _trash,
    "trash empty": _trash,
    "remote list": _remotes,
    "pr open": _pull,
    "pr status": _pull,
    "token list": _tokens,
    "ws status": _ws_status,
    "ws land": _ws_land,
    "ws rebase": _ws_rebase,
    "ws resolve": _ws_resolve,
    "ws materialize": _ws_materialize,
    "ws hook": _ws_hook,
    "schema": _schema,
    "config show": _settings,
}
