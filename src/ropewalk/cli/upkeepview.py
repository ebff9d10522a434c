"""The human rendering of a board's instruments and upkeep: a task's story, numbers, a probe, a census."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

_CAN: dict[bool | None, str] = {True: "ok", False: "no", None: "?"}
_NEEDS = (
    ("create", "make a ref"), ("replace", "replace it"), ("delete", "remove it"), ("atomic", "move several or none"),
    ("branches", "make a branch"), ("target_push", "push to {target}"),
)  # fmt: skip
_LANDINGS = {
    "push": "changes land on {target} by a push", "pr": "{target} is protected: changes land by pull requests",
    None: "nothing could land on {target}",
}  # fmt: skip


def of(operation: str) -> Callable[[dict[str, Any]], list[str]] | None:
    """Gives what renders an operation's result, None where nothing here does."""
    return _VIEWS.get(operation)


def _when(at: int | None) -> str:
    return " " * 19 if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _spread(found: dict[str, Any]) -> str:
    if not found["n"]:
        return "nothing was measured"
    return f"median {found['p50']:g} s, p90 {found['p90']:g} s, at most {found['max']:g} s ({found['n']} measured)"


def _share(rate: float | None) -> str:
    return "not known" if rate is None else f"{100 * rate:.0f} %"


def _story(result: dict[str, Any]) -> list[str]:
    """Gives what happened to a task in order; what has no time of its own stands where it belongs."""
    why = f" ({result['why']})" if result["why"] else ""
    lines = [f"{result['task']}: {result['state']}{why}"]
    life, attempt = 0, ""
    for event in result["events"]:
        if event["life"] > life:
            life = event["life"]
            lines.append(f"  opened again, life {life + 1}")
        if event.get("att", "") != attempt:
            attempt = event.get("att", "")
            lines += [f"  {attempt}"] if attempt else []
        words = f": {event['words']}" if event.get("words") else ""
        where = f"  {event['sha'][:12]}" if event.get("sha") else ""
        lines.append(f"    {_when(event.get('at'))}  {event['what'].replace('_', ' ')}{words}{where}".rstrip())
    lines += [f"  kept  {ref}" for ref in result["archived"]]
    brief = result["spec"].strip()
    return [*lines, "", *(f"  {line}".rstrip() for line in brief.split("\n"))] if brief else lines


def _metrics(result: dict[str, Any]) -> list[str]:
    claims, verdicts, heirs = result["claims"], result["verdicts"], result["heirs"]
    odd = [f"{result[name]} {name}" for name in ("malformed", "undated") if result[name]]
    source = f" from {_many(len(result['files']), 'file')}" if result["files"] else ""
    lines = [_many(result["events"], "event") + source + (f" ({', '.join(odd)})" if odd else "")]
    lines.append(f"  claims    {claims['won']} of {claims['attempts']} won; {claims['race_rejected']} lost a race,"
                 f" {claims['structural']} were refused")  # fmt: skip
    lines.append(f"  verdicts  {verdicts['fixed_true']} of {verdicts['total']} fixed; {verdicts['env_deaths']} died of"
                 f" their surroundings, {verdicts['push_failures']} could not be pushed")  # fmt: skip
    lines.append(f"  heirs     {heirs['requeues']} went to one, {heirs['exhausted']} had none left")
    lines.append(f"  took      {_spread(result['latency_s'])}, from claim to verdict")
    return lines + (_dora(result["dora"]) if result.get("dora") else [])


def _dora(found: dict[str, Any]) -> list[str]:
    landed, failed = found["deployment_frequency"], found["change_failure_rate"]
    mended, again = found["recovery_s"], found["rework_rate"]
    mean = landed["mean_per_active_day"]
    a_day = f", {mean:g} on each of {_many(landed['days_active'], 'day')}" if mean is not None else ""
    lines = ["DORA", f"  landed    {landed['landed_total']}{a_day}"]
    lines.append(f"  lead time {_spread(found['lead_time_s'])}, from spec to fix")
    lines.append(
        f"  failures  {_share(failed['rate'])}: {failed['merit_fails']} of {_many(failed['total'], 'verdict')}"
    )
    lines.append(f"  recovery  {_spread(mended)}")
    lines.append(f"  rework    {_share(again['rate'])}: {again['events']} for {_many(again['attempts'], 'claim')}")
    return lines


def _probe(result: dict[str, Any]) -> list[str]:
    target = result["target"]
    how = _LANDINGS[result["landing"]].format(target=target) if result["usable"] else "no board can be there"
    lines = [f"{result['board']}: {'usable' if result['usable'] else 'NOT USABLE'}; {how}"]
    lines.append(f"  reached by {result['transport']}, git protocol {result['protocol']}"
                 + ("" if result["target_there"] else f"; there is no {target} yet"))  # fmt: skip
    lines += [f"  {_CAN[result[name]]:<3} {words.format(target=target)}" for name, words in _NEEDS]
    lines += [f"  refused  {one['what']}: {one['words']}" for one in result["refused"]]
    lines += [f"  advice   {words}" for words in result["advice"]]
    return lines + [f"  left     {ref}: it could not be removed" for ref in result["left"]]


def _census(result: dict[str, Any]) -> list[str]:
    done = [f"{_many(len(result['swept']), 'attempt')} ended"] if result["swept"] else []
    done += [f"{_many(len(result['tidied']), 'ref')} tidied"] if result["tidied"] else []
    what = ", ".join(done) or "nothing was to be done"
    lines = [f"{_many(len(result['healthy']), 'task')} closed, {len(result['fresh'])} in work; {what}"]
    lines += [f"  ended    {attempt}" for attempt in result["swept"]]
    lines += [f"  closed   {task}: no heir is left" for task in result["closed"]]
    lines += [f"  tidied   {ref}" for ref in result["tidied"]]
    lines += [f"  silent   {one['task']}: for {one['age_s']:g} s, its lease is {2 * one['threshold_s']:g} s"
              for one in result["aging"]]  # fmt: skip
    lines += [f"  odd      {one['task']}: {one['reason']}" for one in result["anomalies"]]
    return lines + [f"  failed   {one['task'] or 'tidying'}: {one['err']}" for one in result["errors"]]


def _evicted(result: dict[str, Any]) -> list[str]:
    then = "it is open again" if result["requeued"] else "no heir is left, so it is closed as infrastructure"
    return [f"{result['attempt']} does not hold {result['task']} any more; {then}"]


def _swept(result: dict[str, Any]) -> list[str]:
    if not result["deleted"]:
        return [f"{result['task']}: nothing of it is live"]
    return [f"{result['task']} is open again; of {result['att']} is kept:", *(f"  {ref}" for ref in result["archived"])]


def _relabeled(result: dict[str, Any]) -> list[str]:
    lines = [f"{one['from']} → {one['to']}" for one in result["relabeled"]]
    lines += [f"left {one['ref']}: {one['reason']}" for one in result["skipped"]]
    return lines + [f"failed {one['ref']}: {one['err']}" for one in result["errors"]] or ["nothing was to be renamed"]


def _compacted(result: dict[str, Any]) -> list[str]:
    if not result["tasks"]:
        return ["no task is to be moved"]
    return [f"{_many(len(result['tasks']), 'task')}, {_many(result['refs'], 'ref')} moved; the log is at"
            f" {(result['log'] or 'nothing')[:12]}"]  # fmt: skip


def _divergence(result: dict[str, Any]) -> list[str]:
    if result["reason"]:
        return [f"{result['target']} of {result['board']}: {result['reason']}"]
    if not result["ahead"] and not result["behind"]:
        return [f"{result['target']} here and on {result['board']} are the same: {(result['there'] or '')[:12]}"]
    return [f"{result['target']} here is {_many(result['ahead'], 'commit')} ahead of {result['board']} and"
            f" {result['behind']} behind"]  # fmt: skip


_VIEWS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "board debug": _story, "metrics": _metrics, "board probe": _probe, "board reconcile": _census,
    "board evict": _evicted, "board sweep": _swept, "board relabel": _relabeled, "board compact": _compacted,
    "board restore": _compacted, "board divergence": _divergence,
}  # fmt: skip
