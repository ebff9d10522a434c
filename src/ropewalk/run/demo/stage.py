"""The stage of the demo: a copy of a repository in a store of its own, a goal, and the plan that a model will make."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import NamedTuple

from ropewalk.core import durable
from ropewalk.core.errors import InternalError, InvalidError, RopewalkError
from ropewalk.plan import plan as plans
from ropewalk.plan.plan import Plan
from ropewalk.remote import importing
from ropewalk.run.demo import notes, script
from ropewalk.run.demo.script import Json
from ropewalk.store import layout, revisions
from ropewalk.store.store import Store
from ropewalk.testing import sample

SAMPLE = "larder (the sample)"


class Stage(NamedTuple):
    """Is where the demo runs: its folder, the store, the name of what is in it, and a plan with the agents' scripts."""

    folder: str
    root: str
    repository: str
    goal: str
    plan: Plan
    map: str

    @property
    def data(self) -> str:
        """Gives the folder of workspaces and of the gateway."""
        return os.path.join(self.folder, "data")

    @property
    def shared(self) -> str:
        """Gives the folder where scripted agents wait for one another."""
        return os.path.join(self.folder, "shared")

    @property
    def config(self) -> str:
        """Gives the folder of endpoints."""
        return os.path.join(self.folder, "config")

    def says(self, harnesses: tuple[str, ...], *, killed: bool) -> Json:
        """Gives what the model says, to the manager and to programs; the scripted agent needs none."""
        if not harnesses:
            return {"cases": script.manager(self.plan, self.map)}
        spread = script.shared_out(self.plan, harnesses)
        return {"cases": [*script.manager(spread, self.map), *script.programs(self.plan, killed=killed)]}


def build(folder: str, repository: str | None, tell: Callable[[str], None]) -> Stage:
    """Gives a stage in an empty folder: with a copy of the repository, which is only read, or with the sample."""
    source = repository
    if source is None:
        tell("building a sample project and its history")
        source = os.path.join(folder, "larder")
        sample.build(source)
    name = os.path.basename(source.rstrip("/"))
    tell(f"making a store and importing {name}")
    branch = importing.current_branch(_git_dir(source))
    if branch is None:
        raise InvalidError(
            "the repository has no branch with a commit checked out", hint="check one out, or add --sample", path=source
        )
    root = os.path.join(folder, "store")
    layout.create(root, str(uuid.uuid4()), "demo", branch[0].removeprefix("refs/heads/"))
    with Store(root) as store:
        importing.import_branch(store, source, branch[0], into=None, actor="ropewalk/demo")
        base = store.ref(revisions.default_branch(store))
        assert base is not None
        if repository is None:
            return Stage(folder, root, SAMPLE, sample.GOAL, _planned(sample.plan()), sample.MAP)
        return Stage(folder, root, name, notes.GOAL, notes.plan(store, base), notes.MAP)


def write_endpoint(stage: Stage, url: str) -> None:
    """Names a model server as the only endpoint; what it counts costs nothing."""
    place = os.path.join(stage.config, "ropewalk")
    os.makedirs(place, mode=0o700, exist_ok=True)
    price = "{ input = 0.0, cache_read = 0.0, cache_write = 0.0, output = 0.0 }"
    text = f'[endpoints.scripted]\nurl = "{url}"\nkey = "scripted"\nprice = {price}\n'
    durable.put(os.path.join(place, "endpoints.toml"), text.encode(), mode=0o600)


def usable(folder: str) -> bool:
    """Says whether the repository a folder is in has a branch checked out, with its whole history."""
    found = layout.git_common_dir(folder)
    if found is None or os.path.exists(os.path.join(found[1], "shallow")):
        return False
    try:
        return importing.current_branch(found[0]) is not None
    except RopewalkError:
        return False  # its ids or its history are not for us


def _git_dir(source: str) -> str:
    found = layout.git_common_dir(source)
    if found is None:
        raise InvalidError(f"{source} is not in a git repository", path=source)
    return found[0]


def _planned(reply: str) -> Plan:
    found = plans.read(reply)
    if found.plan is None:
        raise InternalError(f"the sample's plan can't be taken: {found.message}")
    return found.plan
