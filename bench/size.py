"""Commands on large stores: time and peak memory of each, beside git where git has the same work.

The large store has 100,000 files and a folder of 5,000, 50,000 commits, 10,000 refs, an operation log of several
thousand lands, and 1,000 recorded workspaces; the small one 1,000 files and 100 commits. Both get the same lands, in
turns. Another repository has 5,000 commits, and another store a file of 1 GB that does not compress.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import common

HEAD = ["", "s", "of it work", "peak MiB"]
FIRST_DAY = 1_600_000_000


class Scale(NamedTuple):
    """Is how large everything is."""

    files: int = 100_000
    wide: int = 5_000
    commits: int = 50_000
    refs: int = 10_000
    lands: int = 5_000
    workspaces: int = 1_000
    moved: int = 5_000
    blob: int = 1 << 30
    rounds: int = 3
    pairs: int = 200


QUICK = Scale(files=2000, wide=200, commits=500, refs=200, lands=100, workspaces=20, moved=200, blob=16 << 20,
              rounds=2, pairs=20)  # fmt: skip


class Ran(NamedTuple):
    """Is one command's time, what of it the processors worked for it and its children, its peak memory in MiB (a
    child's, when that is more), and what it answered."""

    seconds: float
    work: float
    peak: float
    result: Any

    def row(self, name: str) -> list[Any]:
        """Gives a row of a table."""
        return [name, self.seconds, self.work, self.peak]


def named(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Gives the rows of a table for the JSON."""
    return {row[0]: {"seconds": row[1], "work_seconds": row[2], "peak_mib": row[3]} for row in rows}


def path_of(number: int) -> str:
    """Gives the path of the n-th file: fifty a folder, forty folders a folder."""
    return f"area{number // 2000:02d}/part{number // 50 % 40:02d}/file{number:06d}.py"


def body(number: int, edit: int) -> str:
    """Gives a file's text after an edit."""
    return "".join(f"def f_{number}_{n}(value):  # {edit if n == 3 else 0}\n    return value * {n}\n" for n in range(8))


def stream(files: int, wide: int, commits: int) -> Iterator[bytes]:
    """Yields what `git fast-import` reads: all files in one commit, then an edit of one file a commit."""

    def data(text: str) -> bytes:
        raw = text.encode()
        return b"data %d\n%s\n" % (len(raw), raw)

    for number in range(1, commits + 1):
        who = f"Agent {number % 50} <a{number % 50}@example.org> {FIRST_DAY + number * 600} +0000"
        yield f"commit refs/heads/main\nmark :{number}\nauthor {who}\ncommitter {who}\n".encode()
        yield data(f"Step {number}\n\nWhat was done, in a few words.\n")
        if number > 1:
            yield f"from :{number - 1}\n".encode()
            one = number * 7919 % files
            yield f"M 100644 inline {path_of(one)}\n".encode() + data(body(one, number))
            continue
        for one in range(files):
            yield f"M 100644 inline {path_of(one)}\n".encode() + data(body(one, 0))
        for one in range(wide):
            yield f"M 100644 inline wide/entry{one:05d}.txt\n".encode() + data(f"entry {one}\n")
    yield b"done\n"


def repository(folder: Path, files: int, wide: int, commits: int) -> Path:
    """Makes a bare repository of that size."""
    common.git(folder.parent, "init", "--quiet", "--bare", "--initial-branch=main", str(folder))
    child = subprocess.Popen(
        ["git", f"--git-dir={folder}", "fast-import", "--quiet", "--done"],
        stdin=subprocess.PIPE,
        env=common.environment(),
    )
    assert child.stdin is not None
    for part in stream(files, wide, commits):
        child.stdin.write(part)
    child.stdin.close()
    if child.wait():
        raise SystemExit("git fast-import failed")
    return folder


_MEASURE = """
import os, resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.call(sys.argv[2:])
seconds = time.perf_counter() - start
with open(sys.argv[1], "w") as file:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    file.write(f"{seconds} {used.ru_utime + used.ru_stime} {used.ru_maxrss}")
sys.exit(code)
"""
"""Is a small process in between: the kernel counts what a program's starter held as the program's own peak."""


def run(argv: Sequence[str], folder: Path, stdin: bytes = b"", **env: str) -> Ran:
    """Runs a program and gives its time and peak memory; a failure ends the benchmark."""
    (folder / "stdin").write_bytes(stdin)
    with (
        open(folder / "stdin", "rb") as given,
        open(folder / "stdout", "wb") as out,
        open(folder / "stderr", "wb") as err,
    ):
        between = [sys.executable, "-S", "-c", _MEASURE, str(folder / "used")]
        code = subprocess.call([*between, *argv], stdin=given, stdout=out, stderr=err, cwd=folder,
                               env=common.environment(**env))  # fmt: skip
    if code not in (0, 10):
        words = (folder / "stdout").read_bytes()[:600] + (folder / "stderr").read_bytes()[-600:]
        raise SystemExit(f"{' '.join(argv[-6:])} ended with {code}: {words!r}")
    seconds, work, peak = (folder / "used").read_text().split()
    return Ran(float(seconds), float(work), int(peak) / 1024, None)


class Rw:
    """Runs ropewalk's command on one store."""

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder, self.store = folder, store

    def __call__(self, *words: str, stdin: bytes = b"", raw: bool = False) -> Ran:
        """Gives how a command ran, and its result."""
        ran = run([*common.rw_command(), *words, *([] if raw else ["--json"])], self.folder, stdin,
                  ROPEWALK_STORE=str(self.store), ROPEWALK_AGENT=common.AGENT)  # fmt: skip
        if raw:
            return ran
        return ran._replace(result=msgspec.json.decode((self.folder / "stdout").read_bytes())["result"])


def imported(root: Path, name: str, source: Path) -> tuple[Rw, Ran]:
    """Makes a store and imports a repository into it."""
    from ropewalk.store import layout

    layout.create(str(root / name), f"{name}-store", name, "main")
    rw = Rw(root, root / name)
    return rw, rw("git", "import", str(source), "--ref", "main")


def lands(store_root: Path, files: int, count: int, salt: str) -> list[float]:
    """Commits and lands edits of single files through the library, and gives the seconds of each pair."""
    from ropewalk.store import changes, land
    from ropewalk.store.changes import Change, Content
    from ropewalk.store.store import Store

    times = []
    with Store(str(store_root)) as store:
        for number in range(count):
            n = number * 331 % files
            content = Content(inline=body(n, 0) + f"# {salt} {number}\n")
            start = time.perf_counter()
            made = changes.commit(
                store, agent=common.AGENT, message=f"Edit {number}", changes=[Change(path_of(n), content=content)],
                parent=None, advance=None, key=None, read_file=changes.read_disk_file,
            )  # fmt: skip
            land.land(store, land.request(agent="bench/two", change=made.changeset, ref="refs/heads/main"))
            times.append(time.perf_counter() - start)
    return times


def workspaces(store_root: Path, count: int) -> None:
    """Records workspaces without checking them out, each on a base of its own: their folders count as gone."""
    from ropewalk.store.store import Store
    from ropewalk.workspace import state

    with Store(str(store_root)) as store:
        head = store.ref("refs/heads/main")
        assert head is not None
        ids = store.git("rev-list", f"--max-count={count}", head).text().split()
        with store.transaction() as tx:
            tx.record("bench", common.AGENT, note="workspaces")
            for number in range(count):
                base = ids[number % len(ids)]
                tx.db.run(
                    f"INSERT INTO workspaces ({state._COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (f"ws-{number:04d}", f"{store_root}-none/{number}", base, base, "refs/heads/main", common.AGENT,
                     FIRST_DAY, "ready", None),
                )  # fmt: skip


def land_times(root: Path, scale: Scale, big: Rw, small: Rw) -> dict[str, Any]:
    """Lands the same edits on both stores in turns, through the library and by the command."""
    inside: dict[str, list[float]] = {"large": [], "small": []}
    outside: dict[str, list[float]] = {"large": [], "small": []}
    for number in range(scale.rounds):
        for name, rw in (("large", big), ("small", small)) if number % 2 else (("small", small), ("large", big)):
            inside[name] += lands(rw.store, 1000, scale.pairs, f"round {number}")
            for one in range(5):
                entry = {"path": path_of(one * 60), "content": {"inline": body(one, 0) + f"# {number} {one}\n"}}
                made = rw("commit", "-m", "Edit", "--changes", "-", stdin=msgspec.json.encode([entry])).result
                outside[name].append(rw("land", made["changeset"]).seconds)
    figures = {}
    rows = []
    for title, found in (("commit and land, in a process", inside), ("rw land, the whole process", outside)):
        large, little = (common.median(found[n]) * 1000 for n in ("large", "small"))
        rows.append([title, large, little, large / little, "2"])
        figures[title] = {"large_ms": large, "small_ms": little, "ratio": large / little,
                          "large_p99_ms": common.percentile(found["large"], 0.99) * 1000}  # fmt: skip
    common.table(
        f"The same lands on {scale.files:,} files and {scale.commits:,} commits, and on 1,000 files and 100 commits",
        ["", "large ms", "small ms", "ratio", "under"],
        rows,
    )
    return figures


def transfers(root: Path, scale: Scale) -> dict[str, Any]:
    """Imports and exports a repository beside `git clone --bare`, with and without git's copy by hard links."""
    source = repository(root / "moved.git", 2000, 0, scale.moved)
    head = common.git(source, "rev-parse", "main")
    took: dict[str, list[Ran]] = {"import": [], "export": [], "clone --bare": [], "clone --bare --no-local": []}
    for number in range(scale.rounds):
        rw, ran = imported(root, f"moved-{number}", source)
        took["import"].append(ran)
        out = root / f"exported-{number}.git"
        took["export"].append(rw("git", "export", str(out), "--ref", "main", "--branch", "main"))
        if common.git(out, "rev-parse", "main") != head:
            raise SystemExit("the exported head is another one")
        for words in ("clone --bare", "clone --bare --no-local"):
            to = root / f"{words.replace(' ', '')}-{number}.git"
            took[words].append(run(["git", *words.split(), "--quiet", str(source), str(to)], root))
    middle = {name: sorted(runs)[len(runs) // 2] for name, runs in took.items()}
    peer = middle["clone --bare --no-local"]
    rows = [
        [
            name,
            ran.seconds,
            ran.seconds / peer.seconds,
            ran.work / peer.work,
            "2",
            ran.seconds / middle["clone --bare"].seconds,
        ]
        for name, ran in middle.items()
    ]
    common.table(f"A repository of {scale.moved:,} commits, in and out, the same ids",
                 ["", "s", "of a clone", "its work", "under", "of a clone by links"], rows)  # fmt: skip
    return {name: {"seconds": ran.seconds, "work_seconds": ran.work} for name, ran in middle.items()}


def commands(root: Path, scale: Scale, rw: Rw) -> Iterator[tuple[str, Callable[[], Ran]]]:
    """Yields each command that is measured on the large store."""
    n = 4242 % scale.files
    one = path_of(n)
    entry = {"path": one, "content": {"inline": body(n, 0) + "# by command\n"}}
    changes = msgspec.json.encode([entry])
    old = msgspec.json.encode([{"path": "fresh/file.txt", "content": {"inline": "fresh\n"}}])
    middle = rw("resolve", f"main~{scale.commits // 6}").result["id"]
    made: dict[str, str] = {}

    def commit() -> Ran:
        ran = rw("commit", "-m", "One file", "--changes", "-", stdin=changes)
        made["id"] = ran.result["changeset"]
        return ran

    def commit_on(parent: str) -> Ran:
        return rw("commit", "-m", "Old", "--changes", "-", "--parent", parent, stdin=old)

    def pages(*words: str, start: str, rows: str) -> Ran:
        """Reads a list to its end, page by page, and gives the slowest page."""
        slowest, cursor, count = Ran(0.0, 0.0, 0.0, 0), None, 0
        while True:
            ran = rw(*words, *([start, str(cursor)] if cursor is not None else []))
            count += len(ran.result[rows])
            cursor = ran.result.get("next")
            slowest = max(slowest, ran._replace(result=0))
            if cursor is None:
                return slowest._replace(result=count)

    yield "commit", commit
    yield "land", lambda: rw("land", made["id"])
    yield "whoami", lambda: rw("whoami")
    yield "info", lambda: rw("info")
    yield "resolve main~N, far", lambda: rw("resolve", f"main~{scale.commits * 2 // 5}")
    yield "cat", lambda: rw("cat", f"main:{one}")
    yield "ls", lambda: rw("ls", "main")
    yield "ls, a folder of 5,000", lambda: rw("ls", "main:wide", "--limit", "5000")
    yield "ls --depth 9, slowest page of 5,000", lambda: pages("ls", "main", "--depth", "9", "--limit", "5000",
                                                              start="--after", rows="entries")  # fmt: skip
    yield "log", lambda: rw("log")
    yield "log -n 5000", lambda: rw("log", "-n", "5000")
    yield "log, a page from the middle", lambda: rw("log", "--before", middle)
    yield "log --path", lambda: rw("log", "--path", one)
    yield "history", lambda: rw("history", f"main:{one}")
    yield "blame", lambda: rw("blame", f"main:{one}")
    yield "show", lambda: rw("show", "main")
    yield "diff of one land", lambda: rw("diff", "main~1", "main")
    yield "diff over a fifth of the history", lambda: rw("diff", f"main~{scale.commits // 5}", "main")
    yield "commit on an old base", lambda: commit_on(f"main~{scale.commits // 3}")
    yield "land from an old base", lambda: rw("land", commit_on(f"main~{scale.commits // 4}").result["changeset"])
    yield "grep, many matches", lambda: rw("grep", "return value")
    yield "grep, few matches", lambda: rw("grep", "by command")
    yield "grep --path", lambda: rw("grep", "by command", "--path", one.rsplit("/", 1)[0])
    yield "ref list", lambda: rw("ref", "list")
    yield "ref list, slowest page of all", lambda: pages("ref", "list", start="--after", rows="refs")
    yield "ref set", lambda: rw("ref", "set", "fresh", "main", "--create")
    yield "op log", lambda: rw("op", "log")
    yield "op log -n 5000", lambda: rw("op", "log", "-n", "5000")
    yield "op log, slowest page of all", lambda: pages("op", "log", "-n", "1000", start="--before", rows="ops")
    yield "op show", lambda: rw("op", "show", str(scale.lands // 2))
    yield "op show, of all refs", lambda: rw("op", "show", "2")
    yield "op undo", lambda: rw("op", "undo", str(rw("op", "log", "-n", "1").result["ops"][0]["op"]))
    yield "ws list", lambda: rw("ws", "list")
    yield "ws create", lambda: rw("ws", "create", "fresh", "--dir", str(root / "tree"))
    yield "ws status", lambda: rw("ws", "status", "fresh")
    yield "verify", lambda: rw("verify")
    yield "backup", lambda: rw("backup", str(root / "backup"))
    yield "gc", lambda: rw("gc")
    yield "gc again", lambda: rw("gc")
    yield "log --path, after gc", lambda: rw("log", "--path", one)
    yield "history, after gc", lambda: rw("history", f"main:{one}")
    yield "blame, after gc", lambda: rw("blame", f"main:{one}")
    yield "log, a page from the middle, after gc", lambda: rw("log", "--before", middle)
    yield "verify --deep", lambda: rw("verify", "--deep")
    yield "export", lambda: rw("git", "export", str(root / "out.git"), "--ref", "main", "--branch", "main")
    yield "export again", lambda: rw("git", "export", str(root / "out.git"), "--ref", "main", "--branch", "main")
    yield "import again", lambda: rw("git", "import", str(root / "large.git"), "--ref", "main", "--into", "again")


def tools(rw: Rw, scale: Scale) -> dict[str, float]:
    """Calls tools of one MCP session on the large store, and gives the milliseconds of each."""
    child = subprocess.Popen(
        [*common.rw_command(), "mcp", "--profile", "full"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=common.environment(ROPEWALK_STORE=str(rw.store), ROPEWALK_AGENT=common.AGENT), cwd=rw.folder,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    number = 0

    def call(method: str, params: dict[str, Any]) -> Any:
        nonlocal number
        number += 1
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(
            msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + b"\n"
        )
        child.stdin.flush()
        answer = msgspec.json.decode(child.stdout.readline())
        if "result" not in answer:
            raise SystemExit(f"{method}: {answer}")
        return answer["result"]

    call(
        "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "b", "version": "1"}}
    )
    one = path_of(77)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"rev": "main", "path": one}),
        ("list_dir", {"rev": "main"}),
        ("log", {}),
        ("log", {"path": one}),
        ("grep", {"pattern": "f_77_3"}),
        ("ref_list", {}),
        ("op_log", {"limit": 5000}),
        ("ws_list", {}),
        ("commit", {"message": "By tool", "changes": [{"path": one, "content": {"inline": "by tool\n"}}]}),
        ("land", {}),
        ("info", {}),
    ]
    took: dict[str, float] = {}
    head = ""
    for name, arguments in asked:
        if name == "land":
            arguments = {"head": head}
        start = time.perf_counter()
        answer = call("tools/call", {"name": name, "arguments": arguments})["structuredContent"]
        took[f"{name} {'path' if name == 'log' and arguments else ''}".strip()] = (time.perf_counter() - start) * 1000
        if not answer["ok"]:
            raise SystemExit(f"{name}: {answer}")
        head = answer["result"].get("changeset", head)
    child.stdin.close()
    _, _, used = os.wait4(child.pid, 0)
    child.returncode = 0
    took["peak MiB"] = used.ru_maxrss / 1024
    return took


def blob(root: Path, scale: Scale) -> dict[str, Ran]:
    """Takes one large file that does not compress through everything, in a store of its own."""
    from ropewalk.store import layout

    layout.create(str(root / "heavy"), "heavy-store", "heavy", "main")
    rw = Rw(root, root / "heavy")
    with open(root / "blob.bin", "wb") as file:
        for _ in range(scale.blob >> 20):
            file.write(os.urandom(1 << 20))
    rw(
        "commit",
        "-m",
        "Start",
        "--changes",
        "-",
        "--advance",
        "main",
        stdin=b'[{"path":"a","content":{"inline":"a\\n"}}]',
    )
    took: dict[str, Ran] = {}
    entry = b'[{"path":"blob.bin","content":{"file":"%s"}}]' % str(root / "blob.bin").encode()
    took["commit"] = rw("commit", "-m", "Large", "--changes", "-", stdin=entry)
    took["land"] = rw("land", took["commit"].result["changeset"])
    took["cat, first page"] = rw("cat", "main:blob.bin")
    took["cat, a page of the middle"] = rw("cat", "main:blob.bin", "--offset", str(scale.blob // 2))
    took["cat --raw"] = rw("cat", "main:blob.bin", "--raw", raw=True)
    if (root / "stdout").stat().st_size != scale.blob or subprocess.call(
        ["cmp", "-s", str(root / "blob.bin"), str(root / "stdout")]
    ):
        raise SystemExit("the bytes are not the same")
    took["ls"] = rw("ls", "main")
    took["diff"] = rw("diff", "main~1", "main")
    took["land beside it"] = rw(
        "land",
        rw("commit", "-m", "B", "--changes", "-", stdin=b'[{"path":"b","content":{"inline":"b"}}]').result["changeset"],
    )
    took["verify --deep"] = rw("verify", "--deep")
    took["backup"] = rw("backup", str(root / "heavy-backup"))
    took["export"] = rw("git", "export", str(root / "heavy.git"), "--ref", "main", "--branch", "main")
    took["gc"] = rw("gc")
    took["cat, a page of the middle, after gc"] = rw("cat", "main:blob.bin", "--offset", str(scale.blob // 2))
    took["verify --deep, after gc"] = rw("verify", "--deep")
    _, took["import"] = imported(root, "heavy-again", root / "heavy.git")
    return took


def main() -> None:
    """Runs the parts and prints their tables."""
    parser = common.arguments(__doc__)
    parser.add_argument("--keep", metavar="DIR", help="keep everything in this folder")
    parser.add_argument("--part", action="append", choices=("transfer", "land", "commands", "tools", "blob"))
    args = parser.parse_args()
    scale = QUICK if args.quick else Scale()
    parts = args.part or ["transfer", "land", "commands", "tools", "blob"]
    figures: dict[str, Any] = {"scale": scale._asdict()}
    with common.folder(args.keep) as root:
        if "transfer" in parts:
            figures["transfer"] = transfers(root, scale)
        if {"land", "commands", "tools"} & set(parts):
            big, took = imported(root, "large", repository(root / "large.git", scale.files, scale.wide, scale.commits))
            rows = [took.row("import")]
            ids = big("log", "-n", "5000").result["entries"]
            moves = [
                {"name": f"refs/heads/topic/{n:05d}", "target": ids[n % len(ids)]["id"]} for n in range(scale.refs)
            ]
            took = big("ref", "move", "-", stdin=msgspec.json.encode(moves))
            rows.append(took.row(f"ref move, {scale.refs:,} refs"))
            small, _ = imported(root, "small", repository(root / "small.git", 1000, 0, 100))
            if "land" in parts:
                figures["land"] = land_times(root, scale, big, small)
            if "commands" in parts or "tools" in parts:
                lands(big.store, scale.files, scale.lands, "log")
                workspaces(big.store, scale.workspaces)
            if "commands" in parts:
                for name, command in commands(root, scale, big):
                    took = command()
                    rows.append(took.row(name))
                    print(f"  {name}: {took.seconds:.2f} s", file=sys.stderr)
                common.table("Commands on the large store", HEAD, rows)
                figures["commands"] = named(rows)
            if "tools" in parts:
                figures["tools"] = tools(big, scale)
                common.table("Tools of one MCP session on it", ["", "ms"], [list(i) for i in figures["tools"].items()])
        if "blob" in parts:
            heavy = blob(root, scale)
            rows = [took.row(name) for name, took in heavy.items()]
            common.table(f"A file of {scale.blob >> 20:,} MiB", HEAD, rows)
            figures["blob"] = named(rows)
    common.finish("size", figures, args.json)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
