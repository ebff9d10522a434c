"""The lint of a plan with what is known around it on this machine, and who starts one that it fails."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from ropewalk.core.errors import PlanningError, RopewalkError
from ropewalk.operations import crew
from ropewalk.operations.context import Context

if TYPE_CHECKING:
    from ropewalk.plan.document import Document
    from ropewalk.plan.lint import Around

_SHOWN = 10


class LintFinding(msgspec.Struct, frozen=True):
    """Is one thing that is wrong, and with which packets; a hard one keeps the plan from being started."""

    check: str
    severity: str
    packets: list[str]
    text: str


class LintCheck(msgspec.Struct, frozen=True):
    """Is whether a check could be made: armed, disarmed with the reason, or an error of what it needs."""

    name: str
    state: str
    reason: str = ""


def linted(ctx: Context, made: Document) -> tuple[list[LintFinding], list[LintCheck], bool]:
    """Gives what the lint says of a plan, with what is known around it."""
    from ropewalk.plan import lint as lints
    from ropewalk.plan.plan import placement

    report = lints.lint(made.packets, _known(ctx, made))
    findings = [LintFinding(f.check, f.severity, list(f.packets), f.text) for f in report.findings]
    findings += [LintFinding("modules", "hard", [], words) for words in placement(made.plan)]
    checks = [*(LintCheck(c.name, c.state, c.reason) for c in report.checks), LintCheck("modules", "armed")]
    ranked = sorted(findings, key=lambda f: f.severity != "hard")
    return ranked, checks, any(f.severity == "hard" for f in findings) or report.failing


def _known(ctx: Context, made: Document) -> Around:
    """Gives what is known around a plan: routes, endpoints, rules and decisions; a fault of theirs is an error."""
    from ropewalk.core import policy
    from ropewalk.gateway import endpoints
    from ropewalk.lane import routing, watchers
    from ropewalk.plan import decisions, lint, providers
    from ropewalk.run.planner import briefs, folders

    errors: dict[str, str] = {}
    used = sorted({packet.model for packet in made.packets if packet.model})
    models: tuple[str, ...] | None = None
    table: Mapping[str, str] | None = None
    try:
        routes = routing.read(os.path.join(crew.config_folder(ctx), routing.FILE))
        own = {name: rule.model or name for name, rule in routes.aliases.items()}
        table = providers.table({**{name: name for name in used}, **own})
        ups = endpoints.read(crew.config_folder(ctx), ctx.env)
        known = {*own, *(name for one in ups.values() for name in one.models)}
        models = tuple(sorted(known | {name for name in used if providers.of_model(name)}))
    except RopewalkError as error:
        errors |= dict.fromkeys(("packet-form", "same-provider"), f"{error.code} {error.message}")
    root = folders.root(ctx.cwd)
    rules: Mapping[str, str | None] | None = None
    standing: tuple[lint.Decision, ...] | None = None
    try:
        said = policy.read(root)
        rules = briefs.rules(said).texts or None
        files = folders.decisions(root, said.rules.decisions)
        if files is not None:
            wrong = [f for f in decisions.lint(files) if f.severity == "hard"]
            if wrong:
                errors["decisions"] = f"{wrong[0].path}: {wrong[0].text}"
            standing = tuple(lint.Decision(d.id, d.governs, d.title)
                             for d in decisions.standing(decisions.read(files)))  # fmt: skip
    except RopewalkError as error:
        errors |= dict.fromkeys(("rules", "decisions"), f"{error.code} {error.message}")
    scratch = _scratch(ctx)
    there: tuple[lint.Watcher, ...] | None = None
    try:
        there = tuple(lint.Watcher(f"{one.name} (process {one.pid})",
                                   tuple(f"{path}/**" for path in scratch if path not in one.folders))
                      for one in watchers.watching(scratch))  # fmt: skip
    except OSError as error:
        errors["watchers"] = f"what processes watch can't be told: {error.strerror}"
    return lint.Around(models, table, decisions=standing, rules=rules, barriers=made.barriers, bounds=made.bounds,
                       watchers=there, scratch=scratch, errors=errors)  # fmt: skip


def _scratch(ctx: Context) -> tuple[str, ...]:
    """Gives the folders that runs write in: the store's and the trees'."""
    trees = os.path.join(ctx.data_home, "ropewalk")
    try:
        return ctx.root, trees
    except RopewalkError:
        return (trees,)


def allow(ctx: Context, made: Document, folder: str, despite: bool) -> list[str]:
    """Lets a plan be started: gives what the lint has against it, where somebody starts it in spite of that.

    `E_PLAN` when it fails and nobody does. A person at a terminal is asked.
    """
    findings, checks, failing = linted(ctx, made)
    if not failing:
        return []
    against = [f"{f.check}: {' '.join([*f.packets, f.text])}" for f in findings if f.severity == "hard"]
    against += [f"{c.name}: {c.reason}" for c in checks if c.state == "error"]
    against = list(dict.fromkeys(against))
    for line in against[:_SHOWN]:
        ctx.progress(line)
    if not despite and not ctx.ask(f"the plan fails its lint ({len(against)}): start it in spite of that?"):
        more = f" (and {len(against) - 1} more)" if len(against) > 1 else ""
        raise PlanningError(
            f"the plan fails its lint: {against[0]}{more}", problems=against[:100], plan=folder,
            hint=f"`rw plan lint {folder}` says more; mend it, then start it with `rw run --plan {folder}`, or start it"
            " as it is with --despite-lint, which the run's report will tell",
        )  # fmt: skip
    return against[:100]
