"""Proposing: a ref of the store becomes a pull request on the forge of a remote, and what became of it.

The branch is pushed like any other, by compare-and-swap. The forge is spoken to through `gh`, where it is installed
and somebody is logged in, else through its API with the credentials of the user's git.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from ropewalk.core.errors import InvalidError, NotFoundError, RemoteError
from ropewalk.core.ids import check_ref, short_ref
from ropewalk.remote import forge, ghprogram, pulls, remotes, sync, transport
from ropewalk.remote.forge import Kind
from ropewalk.remote.pulls import Client, Pull, Wanted
from ropewalk.remote.remotes import Pushed, Remote
from ropewalk.store import lineage
from ropewalk.store.revisions import peel
from ropewalk.store.store import Store, need_ref

Via = Literal["auto", "gh", "api"]
_LISTED = 100
_TITLE = 200


class Where(msgspec.Struct, frozen=True):
    """Is how the forge of a remote is reached: its kind and the repository's page, where these must be said."""

    forge: Kind | None = None
    page: str | None = None
    via: Via = "auto"


class Opened(msgspec.Struct, frozen=True):
    """Is a pull request that is open now; `created` says that it was not before."""

    pull: Pull
    created: bool
    push: Pushed
    via: str


class Found(msgspec.Struct, frozen=True):
    """Is a pull request and what became of it.

    `current` says that its head is what the ref is. `brought` is how the target branch came to hold its changes, as far
    as it does: None while it is open.
    """

    pull: Pull
    current: bool
    brought: sync.Brought | None
    via: str


def open_pull(
    store: Store, remote: Remote, ref: str, branch: str | None, base: str, actor: str, env: Mapping[str, str], *,
    title: str | None = None, body: str | None = None, draft: bool = False, where: Where = Where(),
    progress: Callable[[str], None] = lambda line: None, wait: float = transport.WAIT,
) -> Opened:  # fmt: skip
    """Pushes a ref and opens a pull request for it; one that is open for the same branches is given back as it is.

    Raises what a push raises, and `E_REMOTE` or `E_NOT_FOUND` with what the forge says; nothing was pushed where the
    forge could not even be asked.
    """
    full, target = need_ref(store, ref)
    name, onto = short_ref(check_ref(branch or full)), short_ref(check_ref(base))
    if name == onto:
        raise InvalidError(
            f"{name} can't be proposed for itself", hint="name another branch: `rw pr open REF:BRANCH`", ref=ref
        )
    client, there = _ask(store, remote, env, where, wait, lambda one: pulls.find(one, name, onto))
    new = _new(store, remote, peel(store, target, ref), onto)
    if not new:
        raise InvalidError(f"{onto} of {remote.shown} has all of {short_ref(full)} already", ref=ref,
                           hint="there is nothing to propose")  # fmt: skip
    pushed = remotes.push(store, remote, full, name, actor, progress=progress, wait=wait)
    if there is not None and there.state == "open":
        return Opened(client.look(there), False, pushed, client.via)
    wanted = Wanted(name, onto, title or _title(store, new, name), _body(store, new, body), draft)
    progress(f"opening a pull request of {name} for {onto}")
    try:
        made = client.create(wanted)
    except RemoteError as error:
        # somebody was faster, or an answer was lost on the way
        found = pulls.find(client, name, onto) if error.details.get("status") in (409, 422) else None
        if found is None or found.state != "open":
            raise
        return Opened(client.look(found), False, pushed, client.via)
    return Opened(client.look(made), True, pushed, client.via)


def status(
    store: Store, remote: Remote, ref: str, branch: str | None, base: str | None, actor: str, env: Mapping[str, str], *,
    where: Where = Where(), progress: Callable[[str], None] = lambda line: None, wait: float = transport.WAIT,
) -> Found:  # fmt: skip
    """Gives the pull request of a ref and what became of it; `E_NOT_FOUND` when there is none."""
    full = check_ref(ref)
    name = short_ref(check_ref(branch or full))
    onto = None if base is None else short_ref(check_ref(base))
    client, there = _ask(store, remote, env, where, wait, lambda one: pulls.find(one, name, onto))
    if there is None:
        raise NotFoundError(f"{remote.shown} has no pull request of {name}", hint=f"rw pr open {short_ref(full)}",
                            branch=name)  # fmt: skip
    there = client.look(there)
    head = store.ref(full)
    head = None if head is None else peel(store, head, ref)
    brought = None
    if there.state != "open":
        remotes.fetch(store, remote, actor, progress=progress, wait=wait)
        theirs = remotes.tracked(store, remote, there.base)
        ours = there.head if store.objects.kind(there.head) == "commit" else head
        brought = sync.brought(store, ours, theirs) if ours is not None and theirs is not None else None
    return Found(there, head == there.head, brought, client.via)


def _ask(
    store: Store, remote: Remote, env: Mapping[str, str], where: Where, wait: float,
    question: Callable[[Client], Pull | None],
) -> tuple[Client, Pull | None]:  # fmt: skip
    """Gives the client that answers, and its answer: `gh` where it can, else the API."""
    repo = store.layout.repo
    site = forge.find(repo, remote.url, page=where.page, kind=where.forge, wait=wait)
    program = ghprogram.program() if where.via != "api" and site.kind == "github" else None
    if where.via == "gh" and program is None:
        hint = "apt-get install gh, or leave --via out" if site.kind == "github" else "leave --via out"
        raise InvalidError(f"`gh` can't be used for {site.site.origin}", hint=hint)
    refusal: RemoteError | None = None
    if program is not None:
        gh = ghprogram.GhClient(program, site, repo, wait)
        try:
            return gh, question(gh)
        except RemoteError as error:
            if where.via == "gh" or not error.details.get("login"):
                raise
            refusal = error
    secret = forge.secret(repo, remote.url, site, env)
    if secret is None and refusal is not None:
        raise refusal
    api = pulls.client(site, secret, wait)
    return api, question(api)


def _new(store: Store, remote: Remote, head: str, base: str) -> list[str]:
    """Gives the changes that a pull request would bring, newest first, as far as the target branch is known here."""
    theirs = remotes.tracked(store, remote, base)
    if theirs is None:
        return [head]
    if lineage.ancestor(store, head, theirs):
        return []
    out = store.git("rev-list", "--first-parent", f"--max-count={_LISTED}", head, f"^{theirs}", timeout=600).text()
    return out.split()


def _title(store: Store, new: list[str], name: str) -> str:
    title = store.objects.commit(new[0]).title if len(new) == 1 else ""
    return title[:_TITLE] or (f"{len(new)} changes of {name}" if len(new) > 1 else name)


def _body(store: Store, new: list[str], said: str | None) -> str:
    """Gives the text: what was said, else the titles; then the changes' trailers, by which a squash is recognised."""
    commits = [store.objects.commit(oid) for oid in new]
    words = said if said is not None else "\n".join(f"- {one.title}" for one in commits)
    trailers = [f"Ropewalk-Changeset: {one.trailer('Ropewalk-Changeset') or one.id}" for one in commits]
    return f"{words.rstrip()}\n\n" + "".join(f"{line}\n" for line in trailers)
