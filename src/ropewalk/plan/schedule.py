"""The scheduler: which task may start now, by critical path, as a machine that knows no clock and starts nothing.

Two tasks that share a region or whose write sets meet never run at once; a task starts when its own needs are done
and waits for no batch; a failed one blocks those that need it, and no other. What waits says for what. A task that
others overtake for too long, because it needs much at once, gets what it needs kept free (F19, F20).
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from ropewalk.core.errors import InternalError
from ropewalk.plan import graph
from ropewalk.plan.globs import Index
from ropewalk.plan.task import Task

State = Literal["waiting", "running", "gated", "done", "failed", "blocked"]
Kind = Literal["needs", "failed", "region", "paths", "reserved", "slot", "held"]
CONFLICTS = 3
"""Is how often a task is tried again after a conflict."""
PATIENCE = 2.0
"""Is how many median task times a task is overtaken before what it needs is kept free."""
_LEARNED = 3
"""Is how many tasks have to be done before their median counts instead of the estimates'."""


class Waiting(NamedTuple):
    """Is why a task waits: a kind, what it waits for (tasks, mostly), and both as a sentence."""

    id: str
    kind: Kind
    on: tuple[str, ...]
    text: str


class Frame(NamedTuple):
    """Is what stays the same about a list of tasks however they run: who needs whom, and who keeps whom out.

    Tasks with the same regions and paths are one class; classes that share a region or a path are apart.
    """

    ids: tuple[str, ...]
    needs: tuple[tuple[int, ...], ...]
    users: tuple[tuple[int, ...], ...]
    priorities: tuple[int, ...]
    kinds: tuple[int, ...]
    apart: tuple[tuple[int, ...], ...]
    regions: tuple[tuple[str, ...], ...]
    order: tuple[int, ...]


_Entry = tuple[float, float, float, int]
"""Is a class's first task among what may start: its priority, what is left behind it, its own path, its place."""


def frame(tasks: Sequence[Task], regions: Mapping[str, Sequence[str]] | None = None,
          paths: Mapping[str, Sequence[str]] | None = None) -> Frame:  # fmt: skip
    """Gives what a list of tasks has to keep to; the needs that are no task of it count as done.

    `regions` are those that a task holds while it runs (its own field where it is not named), `paths` its write set
    (what it owns and modifies where it is not named).
    """
    ids = tuple(task.id for task in tasks)
    place = {name: n for n, name in enumerate(ids)}
    needs = tuple(tuple(sorted({place[need] for need in task.needs if need in place})) for task in tasks)
    users: list[list[int]] = [[] for _ in ids]
    for n, wanted in enumerate(needs):
        for need in wanted:
            users[need].append(n)
    classes: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    kinds = []
    for task in tasks:
        held = regions[task.id] if regions and task.id in regions else (task.region,) if task.region else ()
        written = paths[task.id] if paths and task.id in paths else (*task.owns, *task.modifies)
        key = (tuple(sorted(set(held))), tuple(sorted(set(written))))
        kinds.append(classes.setdefault(key, len(classes)))
    listed = graph.order({name: [ids[n] for n in needs[place[name]]] for name in ids})
    return Frame(ids, needs, tuple(map(tuple, users)), tuple(task.priority for task in tasks), tuple(kinds),
                 _apart(list(classes)), tuple(key[0] for key in classes),
                 tuple(place[name] for name in listed))  # fmt: skip


def _apart(classes: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]) -> tuple[tuple[int, ...], ...]:
    found: list[set[int]] = [set() for _ in classes]
    holders: dict[str, list[int]] = {}
    index = Index()
    for n, (held, written) in enumerate(classes):
        if held or written:
            found[n].add(n)
        near = {other for region in held for other in holders.get(region, ())}
        for region in held:
            holders.setdefault(region, []).append(n)
        for glob in written:
            near.update(owner for _, owner in index.meeting(glob))
        for glob in written:
            index.add(glob, n)
        for other in near:
            found[n].add(other)
            found[other].add(n)
    return tuple(tuple(sorted(one)) for one in found)


class Schedule:
    """Is a run of tasks: told what happens, it says what may start.

    Moments are numbers of seconds that the caller gives; they only have to go forward. `seconds` are how long tasks
    are thought to take, by which the critical path goes; one that is not named takes as long as the others' median.
    A need is `done` for the caller to say, once what it landed is in the base that the task will start from (F18).
    """

    def __init__(self, of: Frame, slots: int, seconds: Mapping[str, float] | None = None,
                 states: Mapping[str, State] | None = None, now: float = 0.0) -> None:  # fmt: skip
        self.frame, self.slots = of, max(1, slots)
        self._place = {name: n for n, name in enumerate(of.ids)}
        known = sorted(seconds[name] for name in of.ids if name in seconds) if seconds else []
        usual = known[len(known) // 2] if known else 1.0
        self._seconds = [seconds.get(name, usual) if seconds else usual for name in of.ids]
        self._usual = usual
        self._took: list[float] = []
        count = len(of.ids)
        self.states: list[State] = ["waiting"] * count
        self._unmet = [len(wanted) for wanted in of.needs]
        self._since = [now] * count
        self._began = [now] * count
        self._passed: dict[int, float] = {}
        self._conflicts = [0] * count
        self._block = [0] * len(of.apart)
        self._ready: list[list[tuple[float, float, int]]] = [[] for _ in of.apart]
        self._free: list[_Entry] = []
        self._queued: set[int] = set()
        self._running: dict[int, None] = {}
        self._held: dict[int, str] = {}
        self._tails = self._ranks()
        self._orders = [(-float(of.priorities[n]), -self._tails[n], n) for n in range(count)]
        self._load: dict[str, float] = {}
        for n in range(count):
            for region in of.regions[of.kinds[n]]:
                self._load[region] = self._load.get(region, 0.0) + self._seconds[n]
        self._begin(states or {}, now)

    def _ranks(self) -> list[float]:
        found = list(self._seconds)
        for n in reversed(self.frame.order):
            found[n] = self._seconds[n] + max((found[user] for user in self.frame.users[n]), default=0.0)
        return found

    def _begin(self, states: Mapping[str, State], now: float) -> None:
        for name, state in states.items():
            if name in self._place:
                self.states[self._place[name]] = state
        for n, state in enumerate(self.states):
            if state in ("done", "failed", "gated"):
                self._give(n)
            if state == "done":
                for user in self.frame.users[n]:
                    self._unmet[user] -= 1
            elif state == "blocked":
                self.states[n] = "waiting"
        for n, state in enumerate(self.states):
            if state == "running":
                self._running[n] = None
                self._take(self.frame.kinds[n])
        for n, state in enumerate(self.states):
            if state == "failed":
                self._fail_users(n)
        for n, state in enumerate(self.states):
            if state == "waiting" and not self._unmet[n]:
                self._offer(n, now)

    # what happens

    def pick(self, now: float, admit: Callable[[str], str] | None = None) -> list[str]:
        """Gives the tasks that start now, in order, and takes them as running.

        `admit` may hold a task back, and says for what (memory, a provider's quota, the budget): it stays ready.
        """
        started: list[str] = []
        self._held.clear()
        kept = self._reserved(now)
        aside: list[_Entry] = []
        for n in kept:
            if len(self._running) >= self.slots:
                break
            if not self._block[self.frame.kinds[n]] and self._may(n, kept, admit):
                self._start(n, now)
                started.append(self.frame.ids[n])
        while self._free and len(self._running) < self.slots:
            entry = heapq.heappop(self._free)
            self._queued.discard(entry[3])
            n, kind = entry[3], self.frame.kinds[entry[3]]
            if self._block[kind] or self.states[n] != "waiting" or self._first(kind) != n:
                continue
            if not self._may(n, kept, admit):
                aside.append(entry)
                self._others(kind, n, kept, admit, now, started)
                continue
            self._start(n, now)
            started.append(self.frame.ids[n])
        for entry in dict.fromkeys(aside):
            if self.states[entry[3]] == "waiting" and entry[3] not in self._queued:
                self._queued.add(entry[3])
                heapq.heappush(self._free, entry)
        return started

    def _others(self, kind: int, first: int, kept: Sequence[int], admit: Callable[[str], str] | None, now: float,
                started: list[str]) -> None:  # fmt: skip
        """Starts another task of a class whose first one is held back, when there is one that may."""
        if admit is None or any(self._in_the_way(one, kind) for one in kept if one != first):
            return
        for _, _, n in sorted(self._ready[kind]):
            if n != first and self.states[n] == "waiting" and self._may(n, kept, admit):
                self._start(n, now)
                started.append(self.frame.ids[n])
                if self._block[kind] or len(self._running) >= self.slots:
                    break

    def done(self, name: str, now: float) -> None:
        """Takes a task as done: what waited for it alone may start."""
        gated = self.state(name) == "gated"
        n = self._ended(name)
        self.states[n] = "done"
        if not gated:
            insort(self._took, max(0.0, now - self._began[n]))
        for user in self.frame.users[n]:
            self._unmet[user] -= 1
            if not self._unmet[user] and self.states[user] == "waiting":
                self._offer(user, now)

    def failed(self, name: str) -> list[str]:
        """Takes a task as failed, and gives those that it blocks: all that need it, by however many steps."""
        n = self._ended(name)
        self.states[n] = "failed"
        return self._fail_users(n)

    def gated(self, name: str) -> None:
        """Takes a task as landed and waiting for a gate: it holds neither a slot nor a region, and is not done."""
        self.states[self._ended(name)] = "gated"

    def again(self, name: str, now: float, *, conflict: bool = False) -> bool:
        """Lets a task that ran, or waits for its gate, start again; False, and failed, after its last conflict."""
        n = self._ended(name)
        self._conflicts[n] += conflict
        if self._conflicts[n] > CONFLICTS:
            self.states[n] = "failed"
            self._fail_users(n)
            return False
        self.states[n] = "waiting"
        for region in self.frame.regions[self.frame.kinds[n]]:
            self._load[region] += self._seconds[n]
        self._offer(n, now)
        return True

    @property
    def over(self) -> bool:
        """Says whether nothing runs, nothing waits for a gate, and nothing is left that could start."""
        return not self._running and not any(state in ("waiting", "gated") for state in self.states)

    def state(self, name: str) -> State:
        """Gives the state of a task."""
        return self.states[self._place[name]]

    def count(self, *states: State) -> int:
        """Gives how many tasks are in one of some states."""
        return sum(state in states for state in self.states)

    # why tasks wait

    def waiting(self, now: float) -> list[Waiting]:
        """Gives, for every task that is neither running nor at its end, what it waits for."""
        kept = self._reserved(now)
        return [self._why(n, kept) for n, state in enumerate(self.states) if state in ("waiting", "blocked", "gated")]

    def _why(self, n: int, kept: Sequence[int]) -> Waiting:
        of = self.frame
        name, kind = of.ids[n], of.kinds[n]
        if self.states[n] == "gated":
            return Waiting(name, "held", (), "its work is landed; it waits for its gate")
        unmet = [m for m in of.needs[n] if self.states[m] != "done"]
        if self.states[n] == "blocked":
            bad = tuple(of.ids[m] for m in unmet if self.states[m] in ("failed", "blocked"))
            return Waiting(name, "failed", bad, f"it needs {_listed(bad)}, which failed or can't start")
        if unmet:
            on = tuple(of.ids[m] for m in unmet)
            return Waiting(name, "needs", on, f"it needs {_listed(on)}")
        if self._block[kind]:
            near = set(of.apart[kind])
            on_ids = [m for m in self._running if of.kinds[m] in near]
            on = tuple(of.ids[m] for m in on_ids)
            shared = sorted({r for m in on_ids for r in of.regions[of.kinds[m]]} & set(of.regions[kind]))
            if shared:
                return Waiting(name, "region", on, f"{_listed(on)} works in {_listed(shared)}")
            return Waiting(name, "paths", on, f"{_listed(on)} writes paths that it writes too")
        for other in kept:
            if other != n and self._in_the_way(other, kind):
                return Waiting(name, "reserved", (of.ids[other],), f"its region is kept free for {of.ids[other]}")
        if n in self._held:
            return Waiting(name, "held", (), f"it waits for {self._held[n]}")
        if len(self._running) < self.slots and self._first(kind) != n and of.apart[kind]:
            first = of.ids[self._first(kind)]
            return Waiting(name, "region", (first,), f"{first} of the same region stands before it")
        return Waiting(name, "slot", (), f"all {self.slots} workers are busy")

    # inside

    def _key(self, n: int) -> tuple[float, float]:
        """Gives a task's place in the order: priority, then what is left behind it, on its path or in its region."""
        regions = self.frame.regions[self.frame.kinds[n]]
        if not regions:
            return self._orders[n][:2]
        load = max((self._load[region] for region in regions), default=0.0)
        return -self.frame.priorities[n], -max(self._tails[n], load)

    def _offer(self, n: int, now: float) -> None:
        kind = self.frame.kinds[n]
        self._since[n] = now
        self._passed.pop(n, None)
        heapq.heappush(self._ready[kind], self._order(n))
        if not self._block[kind]:
            self._push(kind)

    def _push(self, kind: int) -> None:
        first = self._first(kind)
        if first >= 0 and first not in self._queued:
            self._queued.add(first)
            priority, left = self._key(first)
            heapq.heappush(self._free, (priority, left, -self._tails[first], first))

    def _first(self, kind: int) -> int:
        ready = self._ready[kind]
        while ready and self.states[ready[0][2]] != "waiting":
            heapq.heappop(ready)
        return ready[0][2] if ready else -1

    def _may(self, n: int, kept: Sequence[int], admit: Callable[[str], str] | None) -> bool:
        kind = self.frame.kinds[n]
        for other in kept:
            if other == n:
                break
            if self.states[other] == "waiting" and self._in_the_way(other, kind):
                return False
        if admit is not None and (words := admit(self.frame.ids[n])):
            self._held[n] = words
            return False
        return True

    def _in_the_way(self, kept: int, kind: int) -> bool:
        return kind in self.frame.apart[self.frame.kinds[kept]] and kept not in self._held

    def _start(self, n: int, now: float) -> None:
        kind = self.frame.kinds[n]
        self.states[n] = "running"
        self._began[n] = now
        self._running[n] = None
        self._passed.pop(n, None)
        mine = self._order(n)
        self._take(kind)
        for other in self.frame.apart[kind]:
            if not self._ready[other] or other == kind:
                continue
            first = self._first(other)
            if first >= 0 and self._orders[first] < mine and first not in self._passed:
                self._passed[first] = now
        if self._ready[kind] and not self._block[kind]:
            self._push(kind)

    def _order(self, n: int) -> tuple[float, float, int]:
        return self._orders[n]

    def _take(self, kind: int) -> None:
        for other in self.frame.apart[kind]:
            self._block[other] += 1

    def _ended(self, name: str) -> int:
        n = self._place[name]
        if self.states[n] == "gated":
            return n
        if self.states[n] != "running":
            raise InternalError(f"{name} is not running but {self.states[n]}")
        del self._running[n]
        self._give(n)
        kind = self.frame.kinds[n]
        for other in self.frame.apart[kind]:
            self._block[other] -= 1
            if not self._block[other] and self._ready[other]:
                self._push(other)
        return n

    def _give(self, n: int) -> None:
        for region in self.frame.regions[self.frame.kinds[n]]:
            self._load[region] -= self._seconds[n]

    def _fail_users(self, n: int) -> list[str]:
        found: list[str] = []
        todo = list(self.frame.users[n])
        while todo:
            user = todo.pop()
            if self.states[user] == "waiting":
                self.states[user] = "blocked"
                self._passed.pop(user, None)
                self._give(user)
                found.append(self.frame.ids[user])
                todo += self.frame.users[user]
        return sorted(found)

    def _reserved(self, now: float) -> list[int]:
        """Gives the tasks whose regions are kept free, the longest wait first; no more than could run at once."""
        if not self._passed:
            return []
        most = PATIENCE * self._median()
        late = [n for n in self._passed if now - self._since[n] > most]
        return heapq.nsmallest(self.slots, late, key=lambda n: (self._since[n], self._order(n)))

    def _median(self) -> float:
        if len(self._took) < _LEARNED:
            return self._usual
        return self._took[len(self._took) // 2]


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def held_regions(paths: Mapping[str, Collection[str]], writes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Gives the regions that each write set reaches into (F19); `paths` are the globs of each region."""
    index = Index()
    names = list(paths)
    for n, name in enumerate(names):
        for glob in paths[name]:
            index.add(glob, n)
    return {task: sorted({names[owner] for glob in globs for _, owner in index.meeting(glob)})
            for task, globs in writes.items()}  # fmt: skip
