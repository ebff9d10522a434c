"""What a run is asked to do: a goal that a manager plans, a plan's folder, or a file of tasks; and where it starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ropewalk.core.errors import InvalidError, NotFoundError, StalledError
from ropewalk.core.ids import check_ref, short_ref
from ropewalk.operations import crew
from ropewalk.operations.context import Context

if TYPE_CHECKING:
    from ropewalk.board.base import Board
    from ropewalk.operations.run import RunRequest
    from ropewalk.plan.task import Task
    from ropewalk.run.seeding import Asked
    from ropewalk.run.usual import Usual
    from ropewalk.store.store import Store

JOBS = 4


def gather(ctx: Context, board: Board, store: Store, req: RunRequest) -> Asked:
    """Gives what a request makes a run of; nothing is on the board yet.

    `E_PLAN` when no plan came of a goal, `E_STALLED` when a plan waits for a person's yes.
    """
    given = [name for name in ("goal", "plan", "tasks") if getattr(req, name)]
    if len(given) != 1:
        raise InvalidError("what is to be done?", hint="give a goal, --plan FOLDER, or --tasks FILE", given=given)
    usual = crew.usual(ctx)
    onto, base = _start(ctx, board, store, req, usual)
    req = _with_usual(req, usual)
    if req.tasks is not None:
        return _of_tasks(ctx, req, usual, onto, base)
    folder = req.plan if req.plan is not None else _drafted(ctx, store, req, usual, base)
    return _of_plan(ctx, req, usual, folder, onto, base)


def _with_usual(req: RunRequest, usual: Usual) -> RunRequest:
    """Gives a request with the usual model and number of agents; a model goes with its harness, and with no other."""
    is_own = req.harness is not None or req.command is not None
    return msgspec.structs.replace(
        req, model=req.model or ("" if is_own else usual.model), jobs=req.jobs or usual.workers
    )


def _start(ctx: Context, board: Board, store: Store, req: RunRequest, usual: Usual) -> tuple[str | None, str]:
    """Gives the branch that is named, and the commit that the run starts from."""
    from ropewalk.board import names
    from ropewalk.board.local import LocalBoard
    from ropewalk.operations.steps import landing_for
    from ropewalk.run import start

    onto = check_ref(req.onto) if req.onto is not None else None
    if onto is not None and not onto.startswith(names.HEADS):
        raise InvalidError(f"a run lands on a branch, and {req.onto!r} is none", ref=req.onto)
    short = onto[len(names.HEADS) :] if onto is not None else None
    if not isinstance(board, LocalBoard):
        return short, landing_for(board).head(board, store, short or "main")
    if onto is not None:
        base = store.ref(onto)
        if base is None:
            raise NotFoundError(f"there is no ref {short_ref(onto)!r}", hint="import or commit something first")
        return short, base
    found = start.find(store, ctx.cwd, ctx.agent)
    if found.warning:
        ctx.progress(found.warning)
        if usual.dirty == "stop":
            raise StalledError(
                f"the run was not started: {found.warning}",
                hint="commit or stash your work, or let runs start without it: `rw setup`, run.dirty",
                paths=list(found.uncommitted[:100]),
            )
        if usual.dirty == "ask" and not req.yes and ctx.ask("start from the last commit, without them?") is False:
            raise StalledError("the run was not started", hint="commit or stash your work, then start it again")
    return None, found.base


def _of_tasks(ctx: Context, req: RunRequest, usual: Usual, onto: str | None, base: str) -> Asked:
    from ropewalk.plan import taskfile
    from ropewalk.run.seeding import Asked

    assert req.tasks is not None
    with ctx.read_file(req.tasks) as file:
        todo = taskfile.parse(file.read(), req.tasks, req.check or "")
    harness = _harness(req, usual, todo)
    _check_scripts(harness, todo)
    options = _options(ctx, req, harness, req.jobs or min(JOBS, len(todo)))
    return Asked("", todo, base, onto=onto, check=req.check or "", options=options)


def _drafted(ctx: Context, store: Store, req: RunRequest, usual: Usual, base: str) -> str:
    """Has the manager plan the goal, and gives the folder that the plan is in."""
    from ropewalk.operations import plan

    named = req.harness or (usual.harness if req.command is None else None)
    if named in (None, "", "scripted") and req.manager is None and not req.direct and req.command is None:
        _find_crew(ctx, req)
    where = os.path.join(store.layout.root, "plans", os.urandom(4).hex())
    os.makedirs(os.path.dirname(where), exist_ok=True)
    draft = plan.PlanDraftRequest(
        goal=req.goal, into=where, workers=req.jobs, rev=base, mode=req.mode, direct=req.direct, model=req.model,
        harness=None if req.direct else req.manager or named or None,
        command=req.command if not req.direct and req.manager is None else None, cage=req.cage,
    )  # fmt: skip
    done = plan.plan_draft(ctx, draft)
    ctx.exit = 0  # what the lint found is shown, and is a person's to weigh
    worth = f"{_count(done.workers, 'agent')} worth having ({done.low} to {done.high})"
    ctx.progress(f"the plan is in {where}: {_count(len(done.tasks), 'task')}, {worth}")
    return where


def _find_crew(ctx: Context, req: RunRequest) -> None:
    """Raises when nobody here could plan a goal, with what was looked for and how to get it."""
    from ropewalk.core.errors import HarnessError

    try:
        crew.staff(ctx, crew.ROUTE, None, model=req.model)
    except HarnessError as error:
        raise HarnessError(
            f"nobody here can plan a goal: {error.message}",
            hint="install an agent program and name an endpoint: `rw doctor` says which are looked for and how to get"
            " them, `rw setup` asks for them; `rw demo --sample` shows a run without any",
        ) from None


def _of_plan(ctx: Context, req: RunRequest, usual: Usual, folder: str, onto: str | None, base: str) -> Asked:
    """Gives the run of a plan: its regions for as many agents as are worth it, after a person has seen it."""
    from ropewalk.operations import linting, managing
    from ropewalk.plan import overview
    from ropewalk.run.planner import folders
    from ropewalk.run.seeding import Asked

    path = ctx.path(folder)
    made = folders.load(path)
    planned = managing.valid(made.plan, folder)
    found, _ = managing.guessed(ctx, planned)
    view = overview.overview(planned, found.durations or None, req.jobs)
    harness = _harness(req, usual, planned.tasks)
    _check_scripts(harness, planned.tasks)
    against = linting.allow(ctx, made, folder, req.despite_lint)
    _confirm(ctx, req, folder, [
        f"{_count(len(planned.tasks), 'task')} in {_count(len(view.packing.regions), 'region')} for"
        f" {_count(view.workers, 'agent')}:",
        *view.chart(),
    ])  # fmt: skip
    regions = {task: held[0] for task, held in view.packing.held.items() if held}
    options = _options(ctx, req, harness, view.workers) | ({"despite": against} if against else {})
    return Asked(
        made.goal or made.summary, planned.tasks, base, "goal" if req.goal else "plan", onto, req.check or "",
        made.summary, planned.modules, regions, dict(found.durations), {**options, "plan": path},
    )  # fmt: skip


def _confirm(ctx: Context, req: RunRequest, folder: str, lines: Sequence[str]) -> None:
    """Shows a plan and asks for a yes; without a terminal or --yes it waits in its folder."""
    for line in lines:
        ctx.progress(line)
    if req.yes:
        return
    answer = ctx.ask("start it?")
    if answer is None:
        raise StalledError(
            "the plan waits for a yes", hint=f"look at it with `rw plan show {folder}`, then start it with"
            f" `rw run --plan {folder} --yes`", plan=folder,
        )  # fmt: skip
    if not answer:
        raise StalledError(
            "the plan was not started", hint=f"change what is in {folder}, then `rw run --plan {folder}`", plan=folder
        )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _harness(req: RunRequest, usual: Usual, todo: Sequence[Task]) -> str:
    """Gives who does the tasks: who is named, the scripted agent where all have scripts, the usual one, else routes."""
    if req.harness is not None or req.command is not None:
        return req.harness or "command"
    if all("```script" in task.description for task in todo):
        return "scripted"
    if usual.harness:
        return usual.harness
    routed = bool(req.goal or req.plan or req.model or any(map(crew.is_routed, todo)))
    return crew.ROUTE if routed else "scripted"


def _options(ctx: Context, req: RunRequest, harness: str, jobs: int) -> dict[str, Any]:
    """Gives what whoever resumes the run has to know beside its tasks."""
    given: dict[str, Any] = {
        "harness": harness, "command": req.command, "cage": req.cage, "model": req.model, "effort": req.effort,
        "jobs": jobs, "seconds": req.seconds, "check_seconds": req.check_seconds, "attempts": req.attempts,
        "heirs": req.heirs, "pass_env": list(req.pass_env), "replay": req.replay_results, "sample": req.sample,
        "tape": crew.tape(ctx, req.record, req.replay), "budget": req.budget, "max_tokens": req.max_tokens,
        **_replan(req, harness),
    }  # fmt: skip
    return {name: value for name, value in given.items() if value not in (None, "", []) and value is not False}


def _replan(req: RunRequest, harness: str) -> dict[str, Any]:
    """Gives how a run is re-planned; `E_INVALID` where nobody could plan."""
    if not req.replan:
        return {}
    if harness == "scripted" and req.manager is None and not req.direct:
        raise InvalidError("the scripted agent plans nothing anew", hint="name who does: --manager NAME, or --direct")
    return {"replan": req.replans, "manager": req.manager, "direct": req.direct}


def _check_scripts(harness: str, todo: Sequence[Task]) -> None:
    """Raises for a task whose script nobody would follow, and for one that the scripted agent could not do."""
    scripted = [task.id for task in todo if "```script" in task.description]
    if harness == "scripted":
        without = [task.id for task in todo if task.id not in set(scripted)]
        if without:
            raise InvalidError(
                f"{without[0]} has no script for the scripted agent",
                hint="name an agent program with --harness or --command, or once for all with `rw setup`; or give each"
                " task a script",
                tasks=without[:100],
            )
    elif scripted:
        raise InvalidError(f"{scripted[0]} has a script, which only the scripted agent follows", tasks=scripted[:100])


def changed(options: dict[str, Any], **new: Any) -> dict[str, Any]:
    """Gives a run's options with those that are given anew."""
    found = options | {name: value for name, value in new.items() if value not in (None, [])}
    if new.get("command") is not None and new.get("harness") is None:
        found["harness"] = "command"
    return found
