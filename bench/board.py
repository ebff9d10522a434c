"""The board, beside flockwork 0.4.0: claims, whole cycles, growth with closed tasks, seeding and audit.

Both work in this one run on repositories with the same content: ours on a store's own board, flockwork on a bare
repository; over ssh both on the same kind of bare repository, through one sshd of this bench, with a shared connection
on both sides. Where each claim is looked for, both look at the board, read its law and push, as their workers do: ours
with one fetch, which the workers of a host share, and one push, flockwork with three connections. flockwork is
installed from PyPI into the bench's folder, or taken from `--flockwork`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import common

ACTOR = "bench/one"
AGENT = """#!/bin/sh
if [ "$1" = run ]; then for brief; do :; done; else brief=$(cat); fi
for name in $(printf '%s' "$brief" | grep -o 'done-[a-z0-9]*[.]txt' | sort -u); do echo x > "$name"; done
"""
SIDES = ("ropewalk", "flockwork")
UNSYNCED = ("-c", "core.fsync=none")
"""Are the words by which git syncs nothing of what is only made to be measured on."""

MOST_COMPACTED = 1000
"""Is how many tasks a bare repository of the bench is compacted with: a server's git removes each ref by itself."""


# boards


def first_commit(repository: Path) -> None:
    """Gives a bare repository a main with one commit."""
    blob = common.git(repository, "hash-object", "-w", "--stdin", stdin=b"# Demo\n")
    tree = common.git(repository, "mktree", stdin=f"100644 blob {blob}\tREADME.md\n".encode())
    common.git(repository, "update-ref", "refs/heads/main", common.git(repository, "commit-tree", tree, "-m", "first"))


def bare(at: Path, law: bool = False) -> Path:
    """Makes a bare repository with one commit, with a law of ours if asked."""
    common.git(at.parent, "init", "-q", "--bare", "-b", "main", str(at))
    first_commit(at)
    if law:
        board = opened(str(at), f"{at}.mirror")
        tasks_of().init(board, ACTOR, mixed=False)
        board.close()
    return at


def store(at: Path) -> Path:
    """Makes a store with one commit and a board."""
    from ropewalk.board import tasks

    common.make_store(at, files=1, commits=1)
    board = opened(str(at), "")
    tasks.init(board, ACTOR, mixed=False)
    board.close()
    return at


def tasks_of() -> Any:
    """Gives the module that adds tasks."""
    from ropewalk.board import tasks

    return tasks


def opened(where: str, mirror: str) -> Any:
    """Opens the board of a store, or of a repository by a mirror in a folder."""
    from ropewalk.board.local import LocalBoard
    from ropewalk.board.remote import RemoteBoard
    from ropewalk.store.store import Store

    return RemoteBoard(where, mirror) if mirror else LocalBoard(Store(where, lock_wait=120))


def brief(name: str) -> str:
    """Gives what the agent of a task has to do."""
    return f"make the file done-{name}.txt"


def add(where: str, mirror: str, names: Sequence[str]) -> float:
    """Adds tasks to a board of ours; gives the seconds."""
    from ropewalk.plan.task import Task

    board = opened(where, mirror)
    made = [Task(name, f"test -f done-{name}.txt", description=brief(name)) for name in names]
    began = time.monotonic()
    tasks_of().add(board, made, ACTOR)
    took = time.monotonic() - began
    board.close()
    return took


class Flockwork:
    """Is flockwork on a repository."""

    def __init__(self, package: str, folder: Path) -> None:
        self.package, self.folder = package, folder
        folder.mkdir(parents=True, exist_ok=True)
        common.git(folder, "init", "-q")

    def env(self, origin: str, **more: str) -> dict[str, str]:
        """Gives the environment of its commands."""
        made = common.environment(SWARM_ORIGIN=origin, SWARM_MODEL="m", SWARM_MODEL_KIND="direct", **more)
        return {**made, "PYTHONPATH": self.package}

    def run(self, origin: str, *words: str, **more: str) -> float:
        """Runs a command and gives the seconds."""
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "l2.inrepo", *words], cwd=self.folder,
                              env=self.env(origin, **more), capture_output=True)  # fmt: skip
        if done.returncode:
            raise SystemExit(f"flockwork {words[0]} ended with {done.returncode}: {done.stderr.decode()[-800:]}")
        return time.monotonic() - began

    def seed(self, origin: str, names: Sequence[str]) -> float:
        """Puts tasks on a board and gives the seconds."""
        path = self.folder / "tasks.json"
        path.write_text(json.dumps({name: f"{brief(name)}\nverify: test -f done-{name}.txt" for name in names}))
        return self.run(origin, "seed", str(path))


def package(at: Path, given: str | None) -> str:
    """Gives the folder of flockwork's package."""
    if given:
        return given
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(at), "flockwork==0.4.0"]
    if subprocess.run(words, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit("flockwork 0.4.0 can't be installed; name a folder that holds it with --flockwork")
    return str(at)


@contextmanager
def ssh(at: Path) -> Iterator[tuple[str, str]]:
    """Runs sshd; gives the start of its URLs and the ssh command that shares one connection."""
    sys.path.insert(0, str(common.ROOT / "tests"))
    from remote import peers  # type: ignore[import-not-found]

    with peers.sshd(at, {"PATH": os.environ["PATH"]}, accept="GIT_PROTOCOL") as server:
        control = ["-o", "ControlMaster=auto", "-o", f"ControlPath={at}/c", "-o", "ControlPersist=600"]
        command = f"{server.command()} {shlex.join(control)}"
        first = [*shlex.split(command), "-p", str(server.port), "peer", "true"]
        subprocess.run(first, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield f"ssh://peer:{server.port}", command
        finally:
            subprocess.run([*first[:-2], "-O", "exit", "peer"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# claims: worker processes of this script, released together


def claim_ours(spec: dict[str, Any]) -> Iterator[bool]:
    """Claims one's own tasks one after another, or whatever a look shows; says for each try whether it won."""
    from ropewalk.board import claim, state
    from ropewalk.board.claim import As
    from ropewalk.core.errors import ClaimedError
    from ropewalk.run.work.choice import Choice
    from ropewalk.run.work.presence import Presence

    if spec.get("ssh"):
        os.environ["GIT_SSH_COMMAND"] = spec["ssh"]
    board = opened(spec["where"], spec["mirror"])
    who = As(f"w{spec['index']}", f"bench/w{spec['index']}", "command")
    board.refresh()
    if spec["mine"]:
        mine = list(state.look(board, only=spec["mine"]).values())
        yield False
        for status in mine:
            claim.take(board, status, who)
            yield True
        return
    choice = Choice(Presence(board.folder))
    yield False
    while True:
        board.refresh()
        seen = state.look(board)
        ready = [s.id for s in seen.values() if s.state == "ready"]
        groups = choice.ordered(list(seen.values()), ready)
        if not groups:
            return
        state.law(board)
        status = choice.pick(groups[0], sum(s.claim is not None for s in seen.values()))
        try:
            claim.take(board, status, who)
        except ClaimedError:
            choice.lost()
            yield False
        else:
            choice.won()
            yield True


def claim_theirs(spec: dict[str, Any]) -> Iterator[bool]:
    """Does the same by flockwork's own functions, in the order in which its worker calls them."""
    os.environ |= {"SWARM_ORIGIN": spec["where"], "SWARM_MODEL": "m", "SWARM_MODEL_KIND": "direct"}
    if spec.get("ssh"):
        os.environ["GIT_SSH_COMMAND"] = spec["ssh"]
    sys.path.insert(0, spec["package"])
    os.chdir(spec["folder"])
    from l2 import inrepo  # type: ignore[import-not-found]

    name = f"w{spec['index']}"
    yield False
    for task in spec["mine"]:
        if inrepo.claim(name, task) is None:
            raise SystemExit(f"flockwork could not claim {task}")
        yield True
    while not spec["mine"]:
        listed = inrepo.open_tasks()
        if not listed:
            return
        inrepo.law_gate(spec["where"], name, listed[0])
        if inrepo.claim(name, listed[0]) is None:
            time.sleep(1)  # as its worker does
            yield False
        else:
            yield True


def be_worker(spec: dict[str, Any]) -> None:
    """Is a worker's life: be ready, wait for the moment, claim."""
    tries = (claim_ours if spec["kind"] == "ropewalk" else claim_theirs)(spec)
    next(tries)
    print("ready", flush=True)
    start = float(sys.stdin.readline())
    while (left := start - time.monotonic()) > 0:
        time.sleep(left)
    times, won, lost, began = [], 0, 0, time.monotonic()
    end = began
    for is_won in tries:
        now = time.monotonic()
        times.append(now - began)
        began = now
        won, lost = won + is_won, lost + (not is_won)
        end = now if is_won else end
    print(json.dumps({"times": times, "end": end, "last": {}, "extra": {"won": won, "lost": lost}}))


def claims(at: Path, peer: Flockwork, workers: int, count: int, policy: bool, far: tuple[str, str] | None) -> list[Any]:
    """Gives a row: claims a second of both sides, and tries for each claim."""
    rows: list[Any] = []
    tries: list[Any] = []
    names = [f"t{n:04}" for n in range(count)]
    at.mkdir()
    for side in SIDES:
        common.progress(f"claims, {workers} workers of {side}{', looking for each' if policy else ''}")
        place = at / side
        if side == "ropewalk" and far is None:
            store(place)
            add(str(place), "", names)
        else:
            bare(place, law=side == "ropewalk")
            if side == "ropewalk":
                add(str(place), f"{place}.mirror", names)
            else:
                seed_at_once(place, names)
        where = str(place) if far is None else f"{far[0]}{place}"
        spec = {
            "where": where, "mirror": f"{place}.host" if side == "ropewalk" and far else "", "package": peer.package,
            "folder": str(peer.folder), "ssh": far[1] if far else "",
        }  # fmt: skip
        result = run_claims(side, workers, [] if policy else names, spec)
        won, lost = result["extra"]["won"], result["extra"]["lost"]
        if won != count:
            raise SystemExit(f"{won} of {count} tasks were claimed by {side}")
        rows.append(won / result["seconds"])
        tries.append((won + lost) / won)
    return [f"{workers} × {count}", *rows, rows[0] / rows[1], *(tries if policy else (None, None))]


def run_claims(side: str, workers: int, names: Sequence[str], spec: dict[str, Any]) -> common.Result:
    """Starts workers, each with its own part of the names."""
    started = []
    for index in range(workers):
        words = json.dumps({"kind": side, "index": index, "mine": list(names[index::workers]), **spec})
        started.append(subprocess.Popen(
            [sys.executable, __file__, "--worker", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=common.environment(), text=True,
        ))  # fmt: skip
    return common.released(started, side)


def seed_at_once(repository: Path, names: Sequence[str]) -> None:
    """Puts flockwork's specs into a repository by git alone, because its own seeding takes minutes."""
    stream = "".join(
        commit(f"refs/swarm/specs/{n}", f"spec {n}\n\n{brief(n)}\nverify: test -f done-{n}.txt") for n in names
    )
    common.git(repository, "fast-import", "--quiet", "--force", stdin=stream.encode())


def commit(ref: str, words: str) -> str:
    """Gives a commit without files for `git fast-import`."""
    data = words.encode()
    return f"commit {ref}\ncommitter flockwork refs-CAS <lane@local> 1700000000 +0000\ndata {len(data)}\n{words}\n"


# cycles, growth, seeding, audit


def cycle(at: Path, peer: Flockwork, workers: int, count: int) -> list[Any]:
    """Lets workers of each side do disjoint tasks from claim to verdict; gives tasks a second, and false verdicts."""
    at.mkdir()
    agent = at / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    names = [f"t{n:04}" for n in range(count)]
    speeds, false = [], []
    for side in SIDES:
        common.progress(f"cycles, {workers} workers of {side}")
        place = at / side
        if side == "ropewalk":
            add(str(store(place)), "", names)
            repository = place / "repo.git"
            env = common.environment(XDG_DATA_HOME=str(at / "data"), XDG_CACHE_HOME=str(at / "cache"))
            words = [
                *common.rw_command(),
                "work",
                "--board",
                str(place),
                "--command",
                str(agent),
                "--cage",
                "none",
                "--until-empty",
            ]
        else:
            repository = bare(place)
            seed_at_once(place, names)
            env = peer.env(str(place), OPENCODE_BIN=str(agent))
            words = [sys.executable, "-m", "l2.inrepo", "worker"]
        began = time.monotonic()
        started = []
        for index in range(workers):
            own = ["--worker", f"w{index}", "--as", f"bench/w{index}"] if side == "ropewalk" else [f"w{index}"]
            started.append(subprocess.Popen([*words, *own], cwd=peer.folder, env=env, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL))  # fmt: skip
        for child in started:
            child.wait()
        took = time.monotonic() - began
        said = common.git(repository, "for-each-ref", "--format=%(contents)", "refs/swarm/verdicts").splitlines()
        files = common.git(repository, "ls-tree", "--name-only", "main").split()
        true = said.count("fixed: true")
        if side == "ropewalk" and (true, len(files) - true) != (count, len(files) - count):
            raise SystemExit(f"{true} of {count} tasks are fixed")
        speeds.append(true / took)
        false.append(count - sum(name.startswith("done-") for name in files))
    return [f"{workers} × {count}", *speeds, speeds[0] / speeds[1], *false]


def closed(repository: Path, count: int, head: str) -> list[str]:
    """Puts done tasks into a bare repository by git alone, and gives their names."""
    names = [f"old{n:05}" for n in range(count)]
    stream = []
    for number, name in enumerate(names):
        attempt = f"att-w0-{number:06x}"
        stream.append(commit(f"refs/swarm/specs/{name}", f"spec {name}\n\nverify: true\n\nIt was done"))
        stream.append(commit(f"refs/swarm/claims/{name}", f"claim {name}\nharness: command\nlaw: 1\n"
                             f"closed: 20260101T000000Z\n{attempt}"))  # fmt: skip
        stream.append(commit(f"refs/swarm/verdicts/{name}", f"verdict\ntask: {name}\nattempt: {attempt}\nfixed: true\n"
                             f"host: w0\noc_rc: 0\npytest_rc: 0\nharness: command\nalready: satisfied"))  # fmt: skip
        stream.append(f"reset refs/swarm/tasks/{name}\nfrom {head}\n\n")
    common.git(repository, *UNSYNCED, "fast-import", "--quiet", "--force", stdin="".join(stream).encode())
    common.git(repository, *UNSYNCED, "pack-refs", "--all")
    return names


def closed_in_store(place: Path, count: int) -> None:
    """Puts the same done tasks into a store, as one step."""
    from ropewalk.board import wire
    from ropewalk.board.base import Step
    from ropewalk.store.oplog import Move

    board = opened(str(place), "")
    head = board.ref("refs/heads/main")
    moves, objects = [], []
    for number in range(count):
        name, attempt = f"old{number:05}", f"att-w0-{number:06x}"
        for kind, words in (
            ("specs", f"spec {name}\n\nverify: true\n\nIt was done"),
            ("claims", f"claim {name}\nharness: command\nlaw: 1\nclosed: 20260101T000000Z\n{attempt}"),
            ("verdicts", f"verdict\ntask: {name}\nattempt: {attempt}\nfixed: true\nhost: w0\noc_rc: 0\npytest_rc: 0\n"
             "harness: command\nalready: satisfied"),
        ):  # fmt: skip
            objects.append(wire.make(words, 1_700_000_000))
            moves.append(Move(f"refs/swarm/{kind}/{name}", None, objects[-1].id))
        moves.append(Move(f"refs/swarm/tasks/{name}", None, head))
    if moves:
        board.push(Step("bench", ACTOR, moves, objects))
    board.close()


def looked(where: str, mirror: str, rounds: int = 5) -> float:
    """Gives the median milliseconds of a look at the open tasks, after a first one."""
    from ropewalk.board import state

    board = opened(where, mirror)
    times = []
    for _ in range(rounds + 1):
        began = time.monotonic()
        board.refresh()
        found = state.look(board)
        times.append((time.monotonic() - began) * 1000)
    if not found:
        raise SystemExit("a look saw no task")
    board.close()
    return common.median(times[1:])


def growth(at: Path, peer: Flockwork, count: int) -> list[Any]:
    """Gives milliseconds of a scan, and seconds of a worker's whole cycle, with ten open tasks of so many.

    A server's side is left out above `MOST_COMPACTED`: what takes long is to make it, and none of it is measured.
    """
    from ropewalk.board import compact

    at.mkdir()
    agent = at / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    open_ones = [f"t{n:04}" for n in range(10)]
    mine, theirs = store(at / "store"), bare(at / "theirs")
    far = bare(at / "far", law=True) if count <= MOST_COMPACTED else None
    common.progress(f"growth, {count} tasks: done ones into a store")
    closed_in_store(mine, count - 10)
    add(str(mine), "", open_ones)
    common.progress(f"growth, {count} tasks: done ones into a repository of flockwork's")
    closed(theirs, count - 10, common.git(theirs, "rev-parse", "main"))
    seed_at_once(theirs, open_ones)
    if far is not None:
        common.progress(f"growth, {count} tasks: done ones into a repository of ours, and compaction")
        closed(far, count - 10, common.git(far, "rev-parse", "main"))
        common.git(far, "config", "core.fsync", "none")
        add(str(far), f"{far}.mirror", open_ones)
        board = opened(str(far), f"{far}.mirror")
        compact.compact(board, ACTOR, days=0)
        board.close()
        common.git(far, "config", "--unset", "core.fsync")
    env = common.environment(XDG_DATA_HOME=str(at / "data"), XDG_CACHE_HOME=str(at / "cache"))
    cycles: list[float | None] = []
    for where in (mine, far):
        if where is None:
            cycles.append(None)
            continue
        words = [*common.rw_command(), "work", "--board", str(where), "--command", str(agent), "--cage", "none",
                 "--once", "--as", "bench/w0"]  # fmt: skip
        common.progress(f"growth, {count} tasks: a cycle on {os.path.basename(where)}")
        began = time.monotonic()
        done = subprocess.run(words, cwd=peer.folder, env=env, capture_output=True)
        if done.returncode:
            raise SystemExit(f"rw work ended with {done.returncode}: {done.stdout.decode()[-800:]}")
        cycles.append(time.monotonic() - began)
    common.progress(f"growth, {count} tasks: scans")
    scans = (looked(str(mine), ""), looked(str(far), f"{far}.mirror") if far is not None else None)
    common.progress(f"growth, {count} tasks: flockwork's scan and cycle")
    scan = peer.run(str(theirs), "open_tasks") * 1000
    whole = peer.run(str(theirs), "worker", "w0", open_ones[0], OPENCODE_BIN=str(agent))
    return [count, *scans, scan, *cycles, whole]


def processes(env: dict[str, str], at: Path, words: Sequence[str]) -> int:
    """Gives how many git processes a command starts."""
    log = at / "trace"
    subprocess.run(["strace", "-f", "-qq", "-e", "trace=execve", "-o", str(log), *words], env=env,
                   capture_output=True)  # fmt: skip
    lines = [line for line in log.read_text(errors="replace").splitlines() if " = 0" in line]
    return sum('git", ["git"' in line for line in lines)


def audits(at: Path, peer: Flockwork, count: int) -> list[Any]:
    """Gives seconds of an audit, and git processes of ours."""
    at.mkdir()
    mine, theirs = store(at / "store"), bare(at / "theirs")
    closed_in_store(mine, count)
    closed(theirs, count, common.git(theirs, "rev-parse", "main"))
    env = common.environment()
    common.progress(f"audit of {count}")
    words = [*common.rw_command(), "board", "audit", "--board", str(mine), "--json"]
    began = time.monotonic()
    done = subprocess.run(words, env=env, capture_output=True)
    took = time.monotonic() - began
    if done.returncode not in (0, 10) or not json.loads(done.stdout)["ok"]:
        raise SystemExit(f"the audit ended with {done.returncode}: {done.stdout.decode()[-800:]}")
    return [f"audit of {count}", took, peer.run(str(theirs), "audit"), processes(env, at, words)]


def seeding(at: Path, peer: Flockwork, count: int) -> list[Any]:
    """Gives seconds of adding tasks, on a store, on a bare repository, and by flockwork."""
    at.mkdir()
    names = [f"t{n:04}" for n in range(count)]
    common.progress(f"adding {count}")
    mine = add(str(store(at / "store")), "", names)
    far = add(str(bare(at / "far", law=True)), f"{at / 'far'}.mirror", names)
    return [f"adding {count}", mine, far, peer.seed(str(bare(at / "theirs")), names)]


def main() -> int:
    """Measures what the command line asks for."""
    parser = common.arguments(__doc__)
    parser.add_argument("--flockwork", metavar="DIR", help="a folder that holds flockwork's package")
    parts = ("claims", "policy", "ssh", "cycle", "growth", "audit", "seeding")
    parser.add_argument("--only", action="append", choices=parts, help="measure this alone; may be given again")
    parser.add_argument("--worker", help="(a worker of this bench)")
    asked = parser.parse_args()
    if asked.worker:
        be_worker(json.loads(asked.worker))
        return 0
    quick = asked.quick
    wanted = asked.only or parts
    many = (1, 4) if quick else (1, 8, 32)
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        at = stack.enter_context(common.folder())
        peer = Flockwork(package(at / "package", asked.flockwork), at / "peer")
        sides = ["ropewalk/s", "flockwork/s", "times"]
        for part, count, policy in (("claims", 16 if quick else 128, False), ("policy", 8 if quick else 64, True)):
            if part in wanted:
                figures[part] = [claims(at / f"{part}{n}", peer, n, count, policy, None) for n in many]
                title = "claims on a board of this host" + (", looking for each" if policy else ", each its own tasks")
                common.table(title, ["workers × tasks", *sides, "tries", "tries"], figures[part])
        if "ssh" in wanted:
            far = stack.enter_context(ssh(at / "ssh"))
            for part, count, policy in (("ssh", 8 if quick else 64, False), ("ssh_policy", 8 if quick else 64, True)):
                figures[part] = [claims(at / f"{part}{n}", peer, n, count, policy, far) for n in many]
                title = "claims over ssh" + (", looking for each" if policy else ", each its own tasks")
                common.table(title, ["workers × tasks", *sides, "tries", "tries"], figures[part])
        if "cycle" in wanted:
            sizes = ((2, 4),) if quick else ((1, 64), (8, 64), (32, 64))
            figures["cycle"] = [cycle(at / f"cycle{n}", peer, n, count) for n, count in sizes]
            common.table("from claim to verdict", ["workers × tasks", *sides, "lost", "lost"], figures["cycle"])
        if "growth" in wanted:
            figures["growth"] = [
                growth(at / f"growth{n}", peer, n) for n in ((10, 100) if quick else (10, 100, 1000, 10_000))
            ]
            head = ["tasks, 10 open", "scan ms", "remote ms", "flockwork ms", "cycle s", "remote s", "flockwork s"]
            common.table("growth with closed tasks (remote: compacted)", head, figures["growth"])
        if "audit" in wanted:
            figures["audit"] = [audits(at / "audit", peer, 50 if quick else 1000)]
            common.table("audit", ["", "ropewalk s", "flockwork s", "git processes"], figures["audit"])
        if "seeding" in wanted:
            figures["seeding"] = [seeding(at / "seeding", peer, 20 if quick else 1000)]
            common.table("adding tasks", ["", "store s", "remote s", "flockwork s"], figures["seeding"])
    common.finish("board", {"quick": quick, **figures}, asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
