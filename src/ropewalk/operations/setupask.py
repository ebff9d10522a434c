"""The questions of `rw setup` at a terminal. What may hold a key is read unseen, and shown back without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ropewalk.core.errors import InvalidError, StalledError
from ropewalk.operations.context import Context
from ropewalk.operations.setup import (
    Answers,
    Here,
    SetupEndpoint,
    completed,
    default_harness,
    harness_fault,
    installed,
    tried,
)

if TYPE_CHECKING:
    from ropewalk.gateway.endpoints import Endpoint
    from ropewalk.gateway.settings import Upstream
    from ropewalk.run.setup import Typed
    from ropewalk.run.usual import Dirty

_WORDS = {"usable": "good", "warnings": "good, with warnings", "not": "agents can't work with it"}
_MOST = 32


def asked(ctx: Context, here: Here) -> Answers:
    """Gives what a person answers; `E_STALLED` when he stops, and nothing was written then."""
    return _Questions(ctx, here).all()


class _Questions:
    def __init__(self, ctx: Context, here: Here) -> None:
        self.ctx, self.here = ctx, here
        self.made: dict[str, Endpoint] = {}
        self.probed: dict[str, SetupEndpoint] = {}
        self.models: list[str] = []

    def all(self) -> Answers:
        now = self.here.usual
        harness = self.harness()
        manager = self.manager()
        endpoints = self.endpoints(bool(manager))
        model = self.model()
        workers = self.workers()
        made = msgspec.structs.replace(
            now, harness=harness, model=model, workers=workers, manager=manager, endpoints=endpoints, dirty=self.dirty()
        )
        return Answers(made, self.made, list(self.probed.values()))

    # how it is asked

    def say(self, line: str) -> None:
        self.ctx.progress(line)

    def line(self, prompt: str, *, hidden: bool = False) -> str:
        """Gives what is typed; at the end of input nobody is there any more."""
        found = self.ctx.ask_line(prompt, hidden=hidden)
        if found is None:
            raise StalledError("setup was stopped; nothing was changed", hint="`rw setup` asks anew")
        return found.strip()

    def choice(self, prompt: str, words: tuple[str, ...], default: str = "") -> str:
        """Gives the one of some words that is typed, or begun."""
        while True:
            text = self.line(f"{prompt} {'/'.join(words)}{f' [{default}]' if default else ''} ").lower() or default
            fits = [word for word in words if text and word.startswith(text)]
            if len(fits) == 1:
                return fits[0]
            self.say(f"  one of {', '.join(words)}")

    # what is asked

    def harness(self) -> str:
        from ropewalk.lane import doctor

        there, missing = installed(self.ctx)
        search = self.ctx.env.get("PATH", "")
        found = doctor.examine(there, search=search, caller=self.ctx.env, folder=self.here.folder) if there else None
        self.say("agent programs here:" if found is not None else "no agent program is installed")
        for one in found.harnesses if found is not None else ():
            words = [check.words for check in one.checks if check.status != "ok"]
            self.say(f"  {one.name} {one.version}".rstrip() + (f": {'; '.join(words)}" if words else ""))
        if missing:
            self.say(f"not installed: {', '.join(missing)} (`rw doctor` says how to get them)")
        default = default_harness(self.ctx, self.here) if there or self.here.usual.harness else ""
        shown = f" [{default}]" if default else ""
        while True:
            name = self.line(f"who does the tasks? a name, route, or command:PROGRAM WORDS{shown} ") or default
            if name and not (fault := harness_fault(self.ctx, name)):
                return name
            self.say(f"  {fault if name else 'a name is needed'}")

    def manager(self) -> tuple[str, ...]:
        now = tuple(name for name in self.here.usual.manager if name in self.here.known)
        if self.here.known:
            self.say("endpoints: " + ", ".join(f"{name} {_shown(one)}" for name, one in self.here.known.items()))
        blank = ", ".join(now) or ("all of these" if self.here.known else "none")
        self.say("the manager's endpoint: URL, URL KEY or URL|KEY, or a name; what you type is not shown")
        name = self.endpoint(f"endpoint [{blank}] ")
        return now if name is None else (name,)

    def endpoints(self, has_manager: bool) -> tuple[str, ...]:
        now = tuple(name for name in self.here.usual.endpoints if name in self.here.known)
        blank = ", ".join(now) or ("the manager's" if has_manager else "all" if self.here.known else "none")
        self.say("the endpoints of those who do the tasks, in the same way, one a line")
        found: list[str] = []
        while len(found) < _MOST:
            name = self.endpoint(f"endpoint [{'no more' if found else blank}] ")
            if name is None:
                break
            if name not in found:
                found.append(name)
        return tuple(found) or now

    def endpoint(self, prompt: str) -> str | None:
        """Gives the name of the endpoint that is typed, once it was tried; None for an empty line."""

        last: tuple[str, Typed | None] | None = None
        while True:
            text = self.line("endpoint [the same again] " if last is not None else prompt, hidden=True)
            if not text and last is None:
                return None
            name, given = last if not text and last is not None else self.meant(text)
            if not name:
                continue
            one = self.named(name, given)
            self.say(f"  {name}: {given if given is not None and given.key else _shown(one)}")
            up = self.upstream(name, one)
            if up is None:
                continue
            row, report = tried(self.ctx, name, up)
            self.say(f"  {_WORDS.get(row.verdict, row.verdict)}")
            for words in row.found:
                self.say(f"    {words}")
            if row.verdict == "not":
                said = self.choice("  what now?", ("retry", "use", "stop"))
                if said == "stop":
                    raise StalledError("setup was stopped; nothing was changed", hint="`rw setup` asks anew")
                if said == "retry":
                    last = name, given
                    continue
            done = completed(one, report)
            if given is not None or done != self.here.known.get(name):
                self.made[name] = done
            self.probed[name] = row
            if report is not None and report.model and report.model not in self.models:
                self.models.append(report.model)
            return name

    def meant(self, text: str) -> tuple[str, Typed | None]:
        """Gives the name of what is typed, and it; an empty name for what is no endpoint, of which nothing is shown."""
        from ropewalk.run import setup

        known = {**self.here.known, **self.made}
        if text in known:
            return text, None
        try:
            given = setup.typed(text)
        except InvalidError as error:
            self.say(f"  {error.message} ({error.hint})")
            return "", None
        same = [name for name, one in known.items() if one.url and setup.plain(one.url) == given.url]
        return (same[0] if same else setup.name_of(given.url, known)), given

    def named(self, name: str, given: Typed | None) -> Endpoint:
        """Gives an endpoint as it will be; one that is known keeps what nothing else is said of, its key among it."""
        from ropewalk.gateway.endpoints import Endpoint

        found = self.made.get(name) or self.here.known.get(name)
        if found is None:
            assert given is not None
            return Endpoint(given.url, given.key, auth="bearer" if given.key else "none")
        if given is None or not given.key:
            return found
        return msgspec.structs.replace(found, key=given.key, key_env="")

    def upstream(self, name: str, one: Endpoint) -> Upstream | None:
        from ropewalk.gateway import endpoints

        try:
            return endpoints.resolved(self.here.folder, self.ctx.env, name, one)
        except InvalidError as error:
            self.say(f"  {error.message}")
            return None

    def model(self) -> str:
        if self.models:
            self.say(f"the endpoints name the model {', '.join(self.models)}")
        now = self.here.usual.model
        shown = now or "the program's own, or its route's"
        text = self.line(f"which model?{' - for the program’s own' if now else ''} [{shown}] ")
        return "" if text == "-" else text[:200] or now

    def workers(self) -> int:
        size = self.here.size
        several = f" ({size.low} to {size.high})" if size.low != size.high else ""
        modules = f"{size.modules} module{'' if size.modules == 1 else 's'}"
        most = f"at most {size.most} at once, {size.workers} worth having{several}"
        self.say(f"told from {size.counted}: {modules}, {most}")
        now = self.here.usual.workers
        default = now if now is not None and now <= size.modules else size.workers
        while True:
            text = self.line(f"how many agents at once? 1 to {size.modules} [{default}] ") or str(default)
            if text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= size.modules:
                return int(text)
            self.say(f"  a number from 1 to {size.modules}")

    def dirty(self) -> Dirty:
        from ropewalk.run import start

        if self.here.uncommitted:
            self.say(f"now {start.told(self.here.uncommitted)}")
        text = self.choice(
            "runs start from your last commit. Where you have uncommitted work:", ("ask", "start", "stop"),
            self.here.usual.dirty,
        )  # fmt: skip
        found: Dirty = "ask" if text == "ask" else "start" if text == "start" else "stop"
        return found


def _shown(one: Endpoint) -> str:
    """Gives an endpoint as it may be shown."""
    if one.program or one.auth == "login" or one.auth.startswith("profile:"):
        return f"({one.auth}{f' of {one.program}' if one.program else ''})"
    return f"{one.url} (with a key)" if one.key or one.key_env else one.url
