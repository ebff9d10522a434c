"""What a report says, in order and without a format: sections of words, facts, tables, figures and commands."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ropewalk.core.ids import short_ref
from ropewalk.run.account import Account, AttemptLine, Share
from ropewalk.run.figures import afterwards, on_board
from ropewalk.run.pages.words import UNKNOWN, count, kinds, many, moment, money, one_line, span, worked

Kind = Literal["text", "code", "number", "state"]

_MARKS = (
    "≈ stands where a part is estimated, * where a part is not counted or has no price. What is unknown is never 0. "
    "Costs are from the journal of the host that wrote this report: what lanes on other hosts cost is unknown here."
)


class Cell(NamedTuple):
    """Is a value in a table or beside a name."""

    text: str
    kind: Kind = "text"


class Words(NamedTuple):
    """Is a paragraph; `quoted` is of somebody else, and may have several lines."""

    text: str
    quoted: bool = False


class Facts(NamedTuple):
    """Is names with their values."""

    rows: list[tuple[str, Cell]]


class Table(NamedTuple):
    """Is a table; `caption` says what it lists."""

    caption: str
    head: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


class Figure(NamedTuple):
    """Is the place of a drawing, which a page without drawings leaves out: its tables say the same."""

    name: Literal["graph", "time", "costs"]


class Commands(NamedTuple):
    """Is what to type, each with what it is for."""

    lines: list[tuple[str, str]]


Block = Words | Facts | Table | Figure | Commands


class Section(NamedTuple):
    """Is a part of a report under a heading."""

    title: str
    blocks: list[Block]


def title(account: Account) -> str:
    """Gives the title of a report."""
    return f"Run {account.summary.id}"


def outcome(account: Account) -> str:
    """Gives what became of a run, in a sentence."""
    run = account.summary
    known = ("landed", "done", "failed", "blocked", "stopped", "running", "waiting", "pending", "cancelled", "replaced",
             "unknown")  # fmt: skip
    numbers = {word: sum(one.state == word for one in run.tasks) for word in known}
    counts = ", ".join(f"{number} {word}" for word, number in numbers.items() if number)
    return f"{run.state}: {counts or 'no tasks'}" + (f", in {took}" if (took := _took(account)) != UNKNOWN else "")


def sections(account: Account) -> list[Section]:
    """Gives all sections that a run has something to say in."""
    made = [
        Section("What was asked", _asked(account)),
        Section("Figures", [Facts(_figures(account)), *_clocks(account)]),
        Section("Tasks", [Figure("graph"), _tasks(account)]),
        Section("What landed", _landed(account)),
        Section("What did not land, and why", _broken(account)),
        Section("What was planned anew", _replans(account)),
        Section("Conflicts, repairs and deaths", _repairs(account)),
        Section("Attempts in time", [Figure("time"), _attempts(account)] if account.attempts else []),
        Section("Costs", _costs(account)),
        Section("Afterwards", _afterwards(account)),
    ]
    return [one for one in made if one.blocks]


def _asked(account: Account) -> list[Block]:
    run = account.summary
    blocks: list[Block] = []
    if run.goal:
        blocks.append(Words(run.goal, quoted=True))
    if run.plan:
        blocks.append(Words("The plan:"))
        blocks.append(Words(run.plan, quoted=True))
    made_from = {"goal": "a goal", "plan": "a plan", "tasks": "tasks"}.get(run.mode, run.mode)
    rows = [("made from", Cell(made_from)), ("asked by", Cell(run.by or UNKNOWN)),
            ("begun", Cell(moment(run.started_at))), ("from", Cell(run.base or UNKNOWN, "code")),
            ("lands on", Cell(short_ref(run.ref) if run.ref else UNKNOWN, "code")),
            ("its head", Cell(run.head or UNKNOWN, "code"))]  # fmt: skip
    if run.harness:
        rows.append(("agents", Cell(f"{run.harness}, {account.jobs} at once" if account.jobs else run.harness)))
    if run.despite:
        rows.append(("started in spite of its lint", Cell("; ".join(run.despite))))
    if run.paused is not None:
        until = f"; it goes on at {moment(run.paused.until)}" if run.paused.until else ""
        rows.append(("paused", Cell(f"{run.paused.why}{until}")))
    if account.stopped:
        rows.append(("stopped", Cell(account.stopped)))
    if run.imported is not None:
        rows.append(("brought from", Cell(run.imported.folder, "code")))
    blocks.append(Facts(rows))
    if account.modules:
        rows_of = [(Cell(one.name), Cell(one.folder or ".", "code"), Cell(", ".join(one.depends_on)))
                   for one in account.modules]  # fmt: skip
        blocks.append(Table("Modules", ("module", "folder", "builds on"), list(rows_of)))
    return blocks


def _figures(account: Account) -> list[tuple[str, Cell]]:
    run, total = account.summary, account.total
    words = ("landed", "failed", "blocked", "stopped") if run.imported is None else ("done", "failed", "unknown")
    numbers = {"tasks": len(run.tasks)} | {word: sum(one.state == word for one in run.tasks) for word in words}
    numbers["attempts"] = total.attempts
    if run.imported is None:  # another program's files tell of none of these
        numbers |= {
            "deaths": sum(one.how == "died" for one in account.attempts),
            "given back": sum(one.how == "released" for one in account.attempts),
            "conflicts": sum(one.conflicts for one in account.attempts),
            "turns of agents": sum(one.turns for one in account.attempts),
        }
    return [
        ("state", Cell(run.state, "state")),
        *((name, Cell(str(number), "number")) for name, number in numbers.items()),
        ("time", Cell(_took(account), "number")), ("agents ran for", Cell(worked(total), "number")),
        ("tokens", Cell(count(total.tokens), "number")), ("of these", Cell(kinds(total.tokens))),
        ("cost", Cell(money(total.cost), "number")),
    ]  # fmt: skip


def _clocks(account: Account) -> list[Block]:
    if not account.summary.clocks_apart:
        return []
    return [Words(
        f"The clocks of this run's hosts differ by {span(account.summary.clocks_apart)} or more. Each time is of the"
        " clock of the host that wrote it, so that none says how long anything took from one host to another. For how"
        " long agents ran is measured without them."
    )]  # fmt: skip


def _took(account: Account) -> str:
    run = account.summary
    return UNKNOWN if run.clocks_apart or (run.imported is not None and not run.seconds) else span(run.seconds)


def _tasks(account: Account) -> Table:
    rows = [
        (Cell(one.id), Cell(one.title), Cell(one.state, "state"), Cell(", ".join(one.needs)), Cell(one.region))
        for one in account.summary.tasks
    ]
    return Table("Tasks", ("task", "what", "state", "needs", "region"), list(rows))


def _landed(account: Account) -> list[Block]:
    if not account.lands:
        return []
    rows: list[tuple[Cell, ...]] = []
    for one in account.lands:
        op = "it was there before" if one.already else UNKNOWN if one.op is None else str(one.op)
        note = "taken back" if one.undone or account.summary.state == "undone" else "passed" if one.check else "none"
        rows.append((
            Cell(one.task), Cell(one.commit, "code"), Cell(one.agent), Cell(_who(one.harness, one.model)),
            Cell(one.check, "code"), Cell(note), Cell(op, "number"), Cell(moment(one.at)),
        ))  # fmt: skip
    head = ("task", "commit", "landed by", "program", "check", "outcome", "operation", "at")
    return [Table("What landed, in order", head, rows)]


def _broken(account: Account) -> list[Block]:
    found = [one for one in account.summary.tasks if one.state not in ("landed", "done")]
    blocks: list[Block] = _proof(account)
    if not found:
        return blocks
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        kept = f"rw recover {one.kept}" if one.kept else ""
        waits = ", ".join(account.blocks.get(one.id, ()))
        rows.append(
            (Cell(one.id), Cell(one.state, "state"), Cell(one_line(one.reason)), Cell(waits), Cell(kept, "code"))
        )
    return [Table("What did not land", ("task", "state", "why", "keeps waiting", "its work is kept"), rows), *blocks]


def _proof(account: Account) -> list[Block]:
    rows: list[tuple[Cell, ...]] = [
        (Cell(one.task), Cell(one.by or "none of the run's"), Cell(one.commit, "code"), Cell(one_line(one.words)))
        for one in account.summary.broken
    ]
    return [Table("Checks that fail at the end", ("check of", "since", "commit", "what it says"), rows)] if rows else []


def _replans(account: Account) -> list[Block]:
    rows: list[tuple[Cell, ...]] = []
    for one in account.summary.replans:
        what = f"nothing: {one.error}" if one.error else ", ".join(one.tasks)
        rows.append((Cell(", ".join(one.failed)), Cell(", ".join(one.replaced)), Cell(one_line(what)),
                     Cell(one_line(one.summary)), Cell(one.manager), Cell(moment(one.at))))  # fmt: skip
    head = ("failed", "taken off", "in their place", "the new plan", "by", "at")
    return [Table("Tasks that others stand for", head, rows)] if rows else []


def _repairs(account: Account) -> list[Block]:
    rows: list[tuple[Cell, ...]] = []
    for one in account.summary.tasks:
        mine = [attempt for attempt in account.attempts if attempt.task == one.id]
        deaths = sum(attempt.how == "died" for attempt in mine)
        turns, conflicts = sum(a.turns for a in mine), sum(a.conflicts for a in mine)
        repaired = any(a.turns > 1 + a.conflicts for a in mine)
        if not (deaths or conflicts or repaired):
            continue
        why = "; ".join(dict.fromkeys(one_line(a.why) for a in mine if a.how == "died" and a.why))
        numbers = (Cell(str(n), "number") for n in (len(mine), turns, conflicts, deaths))
        rows.append((Cell(one.id), *numbers, Cell(one.state, "state"), Cell(why)))
    head = ("task", "attempts", "turns", "conflicts", "deaths", "in the end", "died of")
    return [Table("Tasks that took more than one turn", head, rows)] if rows else []


def _attempts(account: Account) -> Table:
    head = ("task", "attempt", "program", "ended as", "began", "ended", "agents ran", "turns", "conflicts", "tokens",
            "cost", "why")  # fmt: skip
    return Table("Attempts", head, [_attempt(one) for one in account.attempts])


def _attempt(one: AttemptLine) -> tuple[Cell, ...]:
    why = f"from the journal: {one.cached}" if one.cached else one_line(one.why)
    return (
        Cell(one.task), Cell(one.id, "code"), Cell(_who(one.harness, one.model)), Cell(one.how, "state"),
        Cell(moment(one.began)), Cell(moment(one.ended) if one.how != "running" else ""),
        Cell(span(one.seconds), "number"), Cell(str(one.turns), "number"), Cell(str(one.conflicts), "number"),
        Cell(count(one.tokens), "number"), Cell(money(one.cost), "number"), Cell(why),
    )  # fmt: skip


def _costs(account: Account) -> list[Block]:
    if not account.attempts:
        return []
    head = ("attempts", "agents ran", "tokens", "of these", "cost")
    return [
        Figure("costs"),
        Table("By model", ("program and model", *head), [_share(one) for one in [*account.by_model, account.total]]),
        Table("By task", ("task", *head), [_share(one) for one in account.by_task]),
        Words(_MARKS),
    ]


def _share(one: Share) -> tuple[Cell, ...]:
    return (Cell(one.name), Cell(str(one.attempts), "number"), Cell(worked(one), "number"),
            Cell(count(one.tokens), "number"), Cell(kinds(one.tokens)), Cell(money(one.cost), "number"))  # fmt: skip


def _afterwards(account: Account) -> list[Block]:
    run = account.summary
    where = on_board(run.board)
    lines = []
    if run.landed and run.state != "undone":
        see, merge = afterwards(run.ref, run.base, run.board)
        lines.append(("see it", see))
        if run.branch or merge:
            lines.append(("merge it", f"git merge {run.branch}" if run.branch else merge))
        lines.append(("take it back", f"rw runs undo {run.id}{where}"))
    if run.state in ("stopped", "died", "paused"):
        lines.append(("go on with it", f"rw runs resume {run.id}{where}"))
    if run.state == "running":
        lines.append(("follow it", f"rw watch {run.id}{where}"))
    lines.append(("this report again", f"rw runs report {run.id}{where}"))
    read = f"Read off the board and the operation log at {moment(account.now)}, times in UTC: " \
           f"{many(len(run.tasks), 'task')}, {many(len(account.attempts), 'attempt')}."  # fmt: skip
    return [Commands(lines), Words(read)]


def _who(harness: str, model: str) -> str:
    words = [word for word in (harness, model) if word and word != UNKNOWN]
    return " ".join(dict.fromkeys(words)) or UNKNOWN
