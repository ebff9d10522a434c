"""The drawings of a report as SVG that stands in a page: the graph of tasks, attempts in time, and what was used.

Colours are the page's, by class. Each drawing says in words what it shows, for whoever can't see it.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ropewalk.run.account import Account, AttemptLine, Share
from ropewalk.run.figures import TaskReport
from ropewalk.run.pages.words import count, many, moment, money, one_line, span

_NODE, _HIGH, _ACROSS, _DOWN = 150, 34, 60, 14
_LABEL, _CHART, _ROW = 150, 560, 22
_LONG = 18


def graph(account: Account) -> str:
    """Gives the graph of tasks: those that others need on the left, a line from each need to what waits for it."""
    tasks = account.summary.tasks
    places = _places(tasks)
    wide = 20 + max((x for x, _ in places.values()), default=0) + _NODE
    high = 20 + max((y for _, y in places.values()), default=0) + _HIGH
    parts = []
    states = {one.id: one.state for one in tasks}
    for one in tasks:
        x, y = places[one.id]
        for need in one.needs:
            if need in places and need != one.id:
                parts.append(_edge(places[need], (x, y), _word(states[need])))
    for one in tasks:
        x, y = places[one.id]
        told = f"{one.id}: {one.state}. {one.title}" + (f" ({one.reason})" if one.reason else "")
        parts.append(
            f'<g class="node s-{_word(one.state)}"><title>{text(told)}</title>'
            f'<rect x="{x}" y="{y}" width="{_NODE}" height="{_HIGH}" rx="6"/>'
            f'<rect class="fill" x="{x}" y="{y}" width="6" height="{_HIGH}" rx="3"/>'
            f'<text x="{x + 14}" y="{y + 15}">{text(_short(one.id))}</text>'
            f'<text class="small" x="{x + 14}" y="{y + 28}">{text(one.state)}</text></g>'
        )
    edges = sum(need in places for one in tasks for need in one.needs)
    return _drawing("graph", wide, high, f"Graph of {many(len(tasks), 'task')} with {many(edges, 'need')}", parts)


def gantt(account: Account) -> str:
    """Gives the attempts in time: one line a task, one bar an attempt."""
    timed = [one for one in account.attempts if one.began]
    begin = min([one.began for one in timed] + ([account.summary.started_at] if account.summary.started_at else []),
                default=0)  # fmt: skip
    end = max([_until(one, account.now) for one in timed], default=begin)
    length = max(1, end - begin)
    order = list(dict.fromkeys(one.task for one in timed))
    rows = {task: number for number, task in enumerate(order)}
    parts = []
    high = 30 + len(order) * _ROW
    for part in range(5):
        x = _LABEL + _CHART * part / 4
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="22" x2="{x:.1f}" y2="{high - 4}"/>')
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        parts.append(
            f'<text class="small" x="{x:.1f}" y="14" text-anchor="{anchor}">{text(span(length * part / 4))}</text>'
        )
    for task, row in rows.items():
        parts.append(f'<text x="0" y="{30 + row * _ROW + 12}">{text(_short(task))}</text>')
    for one in timed:
        x = _LABEL + _CHART * (one.began - begin) / length
        until = _until(one, account.now)
        wide = max(3.0, _CHART * (until - one.began) / length)
        told = f"{one.task}: {one.how}, {moment(one.began)} to {moment(until)}" + (f" ({one.why})" if one.why else "")
        parts.append(
            f'<rect class="bar s-{_word(one.how)}" x="{min(x, _LABEL + _CHART - 3):.1f}"'
            f' y="{30 + rows[one.task] * _ROW}" width="{wide:.1f}" height="{_ROW - 7}" rx="2">'
            f"<title>{text(told)}</title></rect>"
        )
    what = f"{many(len(timed), 'attempt')} at {many(len(order), 'task')} in {span(length)}"
    return _drawing("time", _LABEL + _CHART + 4, high, what, parts)


def costs(account: Account) -> str:
    """Gives what each model, and each task, used: bars by cost where costs are known, else by tokens."""
    groups = [("by model", account.by_model), ("by task", account.by_task)]
    shares = [one for _, group in groups for one in group]
    by_money = any(one.cost.dollars for one in shares)
    most = max((_amount(one, by_money) or 0 for one in account.by_model), default=0) or 1
    parts = []
    y = 0
    for name, group in groups:
        parts.append(f'<text class="small" x="0" y="{y + 14}">{name}, {"dollars" if by_money else "tokens"}</text>')
        y += _ROW
        for one in group:
            value = _amount(one, by_money)
            parts.append(f'<text x="0" y="{y + 13}">{text(_short(one.name))}</text>')
            wide = 0.0 if value is None else 300 * value / most
            if value is not None:
                parts.append(
                    f'<rect class="bar s-used" x="{_LABEL}" y="{y}" width="{max(1.0, wide):.1f}" height="15"/>'
                )
            told = f"{money(one.cost)}, {count(one.tokens)} tokens"
            parts.append(f'<text class="small" x="{_LABEL + wide + 6:.1f}" y="{y + 12}">{text(told)}</text>')
            y += _ROW
    return _drawing("costs", _LABEL + _CHART + 4, y + 4, f"What {many(len(shares), 'share')} used", parts)


def text(words: str) -> str:
    """Gives words as one clean line for a page, with all that would be markup escaped."""
    return escape(one_line(words), quote=True)


def _amount(one: Share, by_money: bool) -> float | None:
    return one.cost.dollars if by_money else one.tokens.total


def _until(one: AttemptLine, now: int) -> int:
    return max(one.began, one.ended or now if one.how == "running" else one.ended)


def _drawing(name: str, wide: int, high: int, what: str, parts: Iterable[str]) -> str:
    return (
        f'<div class="scroll"><svg class="{name}" role="img" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
        f' xmlns="http://www.w3.org/2000/svg"><title>{text(what)}</title>{"".join(parts)}</svg></div>'
    )


def _edge(start: tuple[int, int], end: tuple[int, int], state: str) -> str:
    x1, y1 = start[0] + _NODE, start[1] + _HIGH // 2
    x2, y2 = end[0], end[1] + _HIGH // 2
    half = (x1 + x2) // 2
    return f'<path class="edge e-{state}" d="M{x1} {y1}C{half} {y1} {half} {y2} {x2} {y2}"/>'


def _word(state: str) -> str:
    """Gives a state as a class, which the page's style knows."""
    return state if state.isalpha() else "unknown"


def _short(name: str) -> str:
    name = one_line(name)
    return name if len(name) <= _LONG else f"{name[: _LONG - 1]}…"


def _places(tasks: list[TaskReport]) -> dict[str, tuple[int, int]]:
    """Gives where each task stands: its column behind all that it needs, its row near to them."""
    column = _columns(tasks)
    needs = {one.id: [need for need in one.needs if need in column] for one in tasks}
    ranks: dict[int, list[str]] = {}
    for one in tasks:
        ranks.setdefault(column[one.id], []).append(one.id)
    rows: dict[str, float] = {}
    for number in sorted(ranks):
        before = {name: at for at, name in enumerate(ranks[number])}

        def near(name: str, before: dict[str, int] = before) -> tuple[float, int]:
            placed = [rows[need] for need in needs[name] if need in rows]
            return (sum(placed) / len(placed) if placed else float(before[name]), before[name])

        for at, name in enumerate(sorted(ranks[number], key=near)):
            rows[name] = float(at)
    return {name: (10 + column[name] * (_NODE + _ACROSS), 10 + int(rows[name]) * (_HIGH + _DOWN)) for name in column}


def _columns(tasks: list[TaskReport]) -> dict[str, int]:
    """Gives for each task the length of the longest chain of needs before it; what needs itself comes last."""
    known = {one.id for one in tasks}
    left = {one.id: {need for need in one.needs if need in known and need != one.id} for one in tasks}
    waiting: dict[str, list[str]] = {}
    for name, them in left.items():
        for need in them:
            waiting.setdefault(need, []).append(name)
    column = {name: 0 for name, them in left.items() if not them}
    queue = list(column)
    for name in queue:
        for other in waiting.get(name, ()):
            left[other].discard(name)
            column[other] = max(column.get(other, 0), column[name] + 1)
            if not left[other]:
                queue.append(other)
    last = max(column.values(), default=0)
    return {one.id: column[one.id] if not left[one.id] else last + 1 for one in tasks}
