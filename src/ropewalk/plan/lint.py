"""The lint: what is wrong with a list of packets before anything is spent on them.

Every check says whether it was armed; one that lacks what it needs is disarmed with the reason, and one whose tool
failed is an error, never disarmed. A report with a hard finding or an error fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Literal, NamedTuple

import msgspec

from ropewalk.plan import checks, graph
from ropewalk.plan.globs import Index, witness
from ropewalk.plan.packets import CLASSES, CONSTRAINTS, ROLES, Packet, contracts, sections, unfenced

Severity = Literal["hard", "warn"]
State = Literal["armed", "disarmed", "error"]
WEAK = ("*haiku*", "*mini*", "*flash*", "*nano*", "glm*")
"""Are models too weak to judge others' work."""
_WRITING = ("mechanical", "build", "generator")
_JUDGING = ("verify", "judge")
_JUDGES = ("Judge", "Adversary", "Critic", "Inspector")
_READERS = ("Architect", "Oracle", "Scout", "Surveyor", "Scholar", *_JUDGES)
_ABSOLUTE = re.compile(
    r"(?<![\w/.:~$}>-])(?:/(?:home|Users|root|tmp|var|opt|etc|usr|mnt|srv|private|work|workspace|data|Volumes)/[\w.@+-]"
    r"|~/[\w.]|[A-Za-z]:\\\w)"
)
_ELSEWHERE = re.compile(
    r"\b(?:as (?:we )?(?:discussed|agreed|mentioned)(?: (?:above|earlier|before))?|see (?:the )?(?:chat|thread|"
    r"conversation)|in our (?:chat|conversation|last call))\b",
    re.IGNORECASE,
)
_ORPHANS = 3
"""Is up to how many packets may stand alone without a word."""


class Finding(msgspec.Struct, frozen=True):
    """Is one thing that is wrong, and with which packets."""

    check: str
    severity: Severity
    packets: tuple[str, ...]
    text: str


class Check(msgspec.Struct, frozen=True):
    """Is whether a check could be made."""

    name: str
    state: State
    reason: str = ""


class Report(msgspec.Struct, frozen=True):
    """Is what the lint found."""

    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]

    @property
    def failing(self) -> bool:
        """Says whether the plan may not be started as it is."""
        return any(f.severity == "hard" for f in self.findings) or any(c.state == "error" for c in self.checks)

    @property
    def clean(self) -> bool:
        """Says whether nothing at all was found."""
        return not self.findings and not self.failing


class Decision(NamedTuple):
    """Is a standing decision, and the paths that it governs."""

    id: str
    governs: tuple[str, ...]
    title: str = ""


class Barrier(NamedTuple):
    """Is a place where all of some packets have to be over before one joins what they made."""

    name: str
    waits: tuple[str, ...]
    joins: str = ""


class Watcher(NamedTuple):
    """Is a program that watches files, and the globs that it leaves alone."""

    name: str
    ignores: tuple[str, ...]


class Around(msgspec.Struct, frozen=True):
    """Is what the caller knows beside the packets; None where it does not know.

    `providers` gives a model's provider; `rules` the text of each declared file of rules, None where it is missing;
    `scratch` are folders that runs write in; `errors` name checks whose tool failed, and how.
    """

    models: tuple[str, ...] | None = None
    providers: Mapping[str, str] | None = None
    weak: tuple[str, ...] = WEAK
    decisions: tuple[Decision, ...] | None = None
    rules: Mapping[str, str | None] | None = None
    barriers: tuple[Barrier, ...] | None = None
    bounds: str | None = None
    watchers: tuple[Watcher, ...] | None = None
    scratch: tuple[str, ...] = (".ropewalk/",)
    errors: Mapping[str, str] = {}


class _Disarmed(Exception):
    """Says why a check can't be made."""


class _Seen:
    """Is the packets and what several checks ask about them."""

    def __init__(self, packets: Sequence[Packet], around: Around) -> None:
        self.packets, self.around = packets, around
        self.by_id = {packet.id: packet for packet in packets}
        self.needs = {packet.id: packet.depends_on for packet in packets}
        self.place = {name: n for n, name in enumerate(self.needs)}
        self.before = graph.ancestors(self.needs)

    def ordered(self, one: str, other: str) -> bool:
        """Says whether one packet has to be over before the other starts."""
        return bool(self.before[one] >> self.place[other] & 1 or self.before[other] >> self.place[one] & 1)


def lint(packets: Sequence[Packet], around: Around = Around()) -> Report:
    """Gives what is wrong with packets; whatever they hold, it ends with a report."""
    seen = _Seen(packets, around)
    findings: list[Finding] = []
    states: list[Check] = []
    for name, run in CHECKS.items():
        if name in around.errors:
            states.append(Check(name, "error", around.errors[name]))
            continue
        try:
            findings += [Finding(name, *found) for found in run(seen)]
            states.append(Check(name, "armed"))
        except _Disarmed as reason:
            states.append(Check(name, "disarmed", str(reason)))
    for name in sorted(set(around.errors) - set(CHECKS)):
        states.append(Check(name, "error", around.errors[name]))
    ranked = sorted(findings, key=lambda f: (f.severity, list(CHECKS).index(f.check), f.packets, f.text))
    return Report(tuple(ranked), tuple(states))


_Found = Iterator[tuple[Severity, tuple[str, ...], str]]


def _scope(seen: _Seen) -> _Found:
    """Two packets that may run at once write the same path, or want the same registry."""
    index = Index()
    kinds: dict[tuple[int, int], tuple[bool, str, str]] = {}
    for n, packet in enumerate(seen.packets):
        entries = [(glob, True) for glob in packet.owns] + [(glob, False) for glob in packet.modifies]
        for glob, owned in entries:
            for other, code in index.meeting(glob):
                m, theirs = code >> 1, bool(code & 1)
                if seen.packets[m].id == packet.id or ((m, n) in kinds and kinds[m, n][0]):
                    continue
                if seen.ordered(packet.id, seen.packets[m].id):
                    continue
                if (m, n) not in kinds or (owned and theirs):
                    kinds[m, n] = (owned and theirs, other, glob)
        for glob, owned in entries:
            index.add(glob, n << 1 | owned)
    for (m, n), (hard, one, other) in sorted(kinds.items()):
        path = one if one == other else witness(one, other) or ""
        words = f"both own {path!r}" if hard else f"both write {path!r}"
        shown = "" if one == other else f" ({one!r} and {other!r})"
        yield ("hard" if hard else "warn"), (seen.packets[m].id, seen.packets[n].id), words + shown
    wanted: dict[str, list[str]] = {}
    for packet in seen.packets:
        for registry in dict.fromkeys(packet.registries):
            wanted.setdefault(registry, []).append(packet.id)
    for registry, users in wanted.items():
        users = list(dict.fromkeys(users))
        writers = [u for u in users if seen.by_id[u].role == "Warden"]
        apart = [u for n, u in enumerate(users) if not all(seen.ordered(u, v) for v in users[:n])]
        if len(users) > 1 and apart and len(writers) != 1:
            yield "hard", tuple(users), f"all want registry {registry!r}, and no Warden writes it for them"


def _edges(seen: _Seen) -> _Found:
    """A packet needs one that is not there, or itself, or they need each other in a circle."""
    for name, same in groupby(sorted(packet.id for packet in seen.packets)):
        if len(list(same)) > 1:
            yield "hard", (name,), "two packets have this id"
    for packet in seen.packets:
        for need in dict.fromkeys(packet.depends_on):
            if need == packet.id:
                yield "hard", (packet.id,), "it depends on itself"
            elif need not in seen.by_id:
                yield "hard", (packet.id,), f"it depends on {need!r}, which is no packet"
    inner = {name: [n for n in wanted if n != name] for name, wanted in seen.needs.items()}
    for way in graph.circles(inner):
        yield "hard", tuple(way[:-1]), f"they depend on each other in a circle: {' → '.join(way)}"
    tied = {name for name, wanted in seen.needs.items() for name in (name, *wanted) if wanted}
    alone = [packet.id for packet in seen.packets if packet.id not in tied]
    if len(seen.packets) > _ORPHANS and tied and alone:
        yield "warn", tuple(dict.fromkeys(alone)), "no edge leads to or from it, while others have some"


def _missing(seen: _Seen) -> _Found:
    """A packet reads what another one makes, and does not wait for it."""
    index = Index()
    for n, packet in enumerate(seen.packets):
        for glob in packet.owns:
            index.add(glob, n)
    for packet in seen.packets:
        told: set[str] = set()
        for glob in packet.reads:
            for owned, n in index.meeting(glob):
                other = seen.packets[n].id
                if other != packet.id and other not in told and not seen.ordered(packet.id, other):
                    told.add(other)
                    yield "warn", (packet.id, other), f"{packet.id} reads {glob!r}, which {other} owns ({owned!r}), " \
                        f"and no edge says which is first"  # fmt: skip


def _absolute(seen: _Seen) -> _Found:
    """A packet names a place of one machine, or leads out of the tree."""
    for packet in seen.packets:
        for glob in (*packet.owns, *packet.modifies, *packet.reads):
            if not glob or glob.startswith(("/", "~")) or ".." in glob.split("/") or re.match(r"[A-Za-z]:", glob):
                yield "hard", (packet.id,), f"{glob[:80]!r} is not a path inside the tree"
        for text in (packet.gate, packet.body):
            for line, _ in unfenced(text):
                if (match := _ABSOLUTE.search(line)) is not None:
                    word = re.split(r"[\s`'\")]", line[match.start() :], maxsplit=1)[0]
                    yield "hard", (packet.id,), f"it names {word[:80]!r}, which is a place of one machine"


def _contained(seen: _Seen) -> _Found:
    """A packet leans on something that its reader has never seen."""
    for packet in seen.packets:
        if (match := _ELSEWHERE.search(packet.body)) is not None:
            yield "warn", (packet.id,), f"it says {match[0]!r}, and whoever reads it was not there"


def _checked(seen: _Seen) -> _Found:
    """A packet that writes has no check, or one that says nothing."""
    for packet in seen.packets:
        if packet.gate.strip():
            if words := checks.fault(packet.gate):
                yield "hard", (packet.id,), f"its gate {packet.gate.strip()[:80]!r} is no check: {words}"
        elif packet.role not in _READERS and (packet.class_ in _WRITING or packet.owns or packet.modifies):
            yield "hard", (packet.id,), "it has no gate, so nobody could say whether it is done"


def _form(seen: _Seen) -> _Found:
    """A packet's role, class or model is none, or it does not say how to answer."""
    known = seen.around.models
    for packet in seen.packets:
        for label, value, values in (("role", packet.role, ROLES), ("class", packet.class_, CLASSES)):
            if value not in values:
                words = f"its {label} {value[:40]!r} is none" if value else f"it has no {label}"
                yield "hard", (packet.id,), f"{words} of {', '.join(values)}"
        if known is not None and packet.model and packet.model not in known:
            yield "hard", (packet.id,), f"its model {packet.model[:80]!r} is none of those that are set up"
        if packet.class_ in _WRITING and not packet.final_reply.strip():
            yield "warn", (packet.id,), "it does not say what its final reply has to be"


def _drift(seen: _Seen) -> _Found:
    """The same contract has another text in another packet."""
    texts: dict[str, dict[str, list[str]]] = {}
    for packet in seen.packets:
        for name, text in contracts(packet).items():
            texts.setdefault(name, {}).setdefault(text, []).append(packet.id)
    for name, versions in texts.items():
        if len(versions) > 1:
            first, *others = versions.values()
            for other in others:
                yield "hard", (first[0], *other), f"contract {name[:80]!r} reads otherwise in {other[0]} than in " \
                    f"{first[0]}"  # fmt: skip


def _barriers(seen: _Seen) -> _Found:
    """A barrier waits for packets and nothing joins what they made."""
    if seen.around.barriers is None:
        raise _Disarmed("the plan declares no barriers")
    for barrier in seen.around.barriers:
        unknown = [n for n in (*barrier.waits, *([barrier.joins] if barrier.joins else [])) if n not in seen.by_id]
        if unknown:
            yield "hard", tuple(unknown), f"barrier {barrier.name!r} names what is no packet"
        if not barrier.joins:
            yield "hard", barrier.waits, f"barrier {barrier.name!r} has no packet that joins what was made before it"
        elif barrier.joins in seen.by_id:
            before = seen.before[barrier.joins]
            late = [n for n in barrier.waits if n in seen.by_id and not before >> seen.place[n] & 1]
            if late:
                yield "hard", (barrier.joins, *late), f"{barrier.joins} joins barrier {barrier.name!r} and does not " \
                    "wait for all of it"  # fmt: skip


def _bounds(seen: _Seen) -> _Found:
    """The plan does not say how much it may use."""
    if not (seen.around.bounds or "").strip():
        yield "warn", (), "the plan names no bounds (tokens, money, time, tries); `none` says that there are none"


def _power(seen: _Seen) -> _Found:
    """A packet that judges has too weak a model."""
    for packet in seen.packets:
        judging = packet.class_ in _JUDGING or packet.role in ("Judge", "Adversary")
        if judging and any(fnmatchcase(packet.model.lower(), pattern) for pattern in seen.around.weak):
            yield "warn", (packet.id,), f"its model {packet.model[:80]!r} is under-powered for judging others' work"
        if packet.role in ("Judge", "Adversary") and packet.class_ == "mechanical":
            yield "warn", (packet.id,), f"{packet.role} is no mechanical work"


def _provider(seen: _Seen) -> _Found:
    """A packet that verifies is given to the provider that made what it verifies."""
    providers = seen.around.providers
    if providers is None:
        raise _Disarmed("no table of providers is given")
    verifiers = [p for p in seen.packets if p.class_ in _JUDGING or p.role in _JUDGES]
    unknown = sorted({m for p in seen.packets if (m := p.model) and m not in providers})
    if verifiers and unknown:
        yield "warn", (), f"nobody knows the provider of {', '.join(unknown[:5])}"
    for packet in verifiers:
        mine = providers.get(packet.model)
        for need in dict.fromkeys(packet.depends_on):
            author = seen.by_id.get(need)
            writes = author is not None and (author.class_ in _WRITING or bool(author.owns or author.modifies))
            if mine and author is not None and writes and providers.get(author.model) == mine:
                yield "warn", (packet.id, need), f"{packet.id} verifies {need}, and both are {mine}'s"


def _decisions(seen: _Seen) -> _Found:
    """A packet writes what a standing decision governs, and does not cite it."""
    if seen.around.decisions is None:
        raise _Disarmed("no standing decisions are given")
    index = Index()
    for n, decision in enumerate(seen.around.decisions):
        for glob in decision.governs:
            index.add(glob, n)
    for packet in seen.packets:
        governing = sorted({n for glob in (*packet.owns, *packet.modifies) for _, n in index.meeting(glob)})
        if not governing:
            continue
        text = sections(packet.body).get(CONSTRAINTS, "")
        for n in governing:
            name = seen.around.decisions[n].id
            if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text):
                yield "hard", (packet.id,), f"decision {name} governs what it writes, and it does not cite it under " \
                    f"{CONSTRAINTS!r}"  # fmt: skip


def _rules(seen: _Seen) -> _Found:
    """A declared file of rules is missing or empty."""
    if seen.around.rules is None:
        raise _Disarmed("no files of rules are declared")
    for name, text in seen.around.rules.items():
        if text is None:
            yield "hard", (), f"the rules {name!r} are declared and missing"
        elif not text.strip():
            yield "warn", (), f"the rules {name!r} are empty"


def _watchers(seen: _Seen) -> _Found:
    """A program that watches where runs write would start anew at each of their files."""
    if seen.around.watchers is None:
        raise _Disarmed("nobody looked for programs that watch folders")
    for watcher in seen.around.watchers:
        for path in seen.around.scratch:
            inside = path.rstrip("/") + "/x"
            if not any(witness(glob, inside) is not None for glob in watcher.ignores):
                yield "warn", (), f"{watcher.name} watches {path!r}: a run would wake it by each file it writes there"


CHECKS: Mapping[str, Callable[[_Seen], _Found]] = {
    "scope-conflict": _scope,
    "dependency-edges": _edges,
    "missing-edges": _missing,
    "absolute-paths": _absolute,
    "self-contained": _contained,
    "gate": _checked,
    "packet-form": _form,
    "contract-drift": _drift,
    "barriers": _barriers,
    "bounds": _bounds,
    "judge-power": _power,
    "same-provider": _provider,
    "decisions": _decisions,
    "rules": _rules,
    "watchers": _watchers,
}
"""Are the checks by name; the first line of each one's docstring says what it is about."""


def names() -> Collection[str]:
    """Gives the names of all checks."""
    return CHECKS.keys()
