"""What must be true after a soak: operation log, acknowledgements, the readers' views, and nothing left over."""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from ropewalk.store import oplog
from storekit import MAIN, STOCK, Kit, child_env, rw

from .writer import COUNTERS, Row, rows_of

if TYPE_CHECKING:
    from .chores import Chores
    from .drive import Samples

WAL_MAX = 64 << 20
_NAMES = re.compile(r"[0-9a-f]{40}|w\d+|s/\d")
LOCK_WAIT_MS = 10_000.0
EXPECTED = {
    ("shared", "E_CONFLICT"), ("shared", "E_CAS_MISMATCH"), ("ref", "E_CAS_MISMATCH"), ("undo_main", "E_CAS_MISMATCH"),
}  # fmt: skip
"""Which refusals belong to the work, beside that of a land whose change stands on one that was taken back."""
KEPT = {"FORMAT", "authors.toml", "flushed", "projected", "projector.lock", "maintain.lock", "writer.lock", "repo.git",
        "runs", "spool", "store.db", "store.db-shm", "store.db-wal"}  # fmt: skip


def writer_rows(work: str) -> list[Row]:
    """Gives all writers' rows; a row's answer is joined to the request it belongs to."""
    found = []
    for path in sorted(glob.glob(os.path.join(work, "w*.jsonl"))):
        tries: dict[int, Row] = {}
        for row in rows_of(path):
            row["writer"] = os.path.basename(path)[1:-6]
            if row["t"] == "try":
                tries[row["n"]] = row
            elif "n" in row:
                row["asked"] = tries[row["n"]]
            found.append(row)
    return found


def spread(values: list[float]) -> dict[str, float]:
    """Gives count, p50, p99 and maximum of times in ms."""
    rows = sorted(values)
    if not rows:
        return {"count": 0}
    return {"count": len(rows), "p50": rows[len(rows) // 2], "p99": rows[int(len(rows) * 0.99)], "max": rows[-1]}


def figures(work: str, seconds: float) -> dict[str, Any]:
    """Gives how much was done and how long it took."""
    rows = writer_rows(work)
    done = [row for row in rows if row["t"] == "done"]
    reads: dict[str, list[float]] = {}
    for path in glob.glob(os.path.join(work, "r*.json")):
        seen = msgspec.json.decode(Path(path).read_bytes())
        for took in seen["times"].values():
            reads.setdefault(seen["kind"], []).extend(took)
    times: dict[str, list[float]] = {}
    for row in done:
        face = (
            "library" if int(row["writer"]) % 10 not in (6, 7, 8) else "cli" if int(row["writer"]) % 10 == 8 else "mcp"
        )
        times.setdefault(f"{row['asked']['op']} ({face})", []).append(row["ms"])
    count = Counter(row["asked"]["op"] for row in done)
    return {
        "lands": count["land"], "commits": count["commit"], "lands_per_second": round(count["land"] / seconds, 1),
        "commits_per_second": round(count["commit"] / seconds, 1),
        "resolved_conflicts": sum("resolutions" in row["asked"]["request"] for row in done),
        "refused": dict(Counter(f"{r['asked']['kind']} {r['code']}" for r in rows if r["t"] == "no")),
        "busy_ms": spread([row["ms"] for row in rows if row["t"] == "busy"]),
        "killed_by_their_client": sum(row["t"] == "killed" for row in rows),
        "had_happened_before_a_kill": sum(
            row["result"].get("replayed") is True or row["result"].get("status") == "replayed" for row in done
        ),
        "warnings": dict(Counter(_NAMES.sub("…", w) for row in done for w in row["warnings"] or [])),
        "ms": {name: spread(found) for name, found in sorted(times.items())},
        "read_ms": {name: spread(found) for name, found in sorted(reads.items())},
        "memory": memory(work),
    }  # fmt: skip


def lives(work: str) -> list[list[dict[str, int]]]:
    """Gives, for each process that lived to the end, its descriptors and memory in order of time."""
    found: dict[tuple[str, int], list[dict[str, int]]] = {}
    for path in glob.glob(os.path.join(work, "w*.jsonl")):
        rows = rows_of(path)
        last = max(n for n, row in enumerate(rows) if row["t"] == "start")
        for row in rows[last:]:
            for one in row["rows"] if row["t"] == "health" else []:
                found.setdefault((path, one["pid"]), []).append(one)
    for path in glob.glob(os.path.join(work, "r*.json")):
        for rows in msgspec.json.decode(Path(path).read_bytes())["health"]:
            for one in rows:
                found.setdefault((path, one["pid"]), []).append(one)
    return [rows for rows in found.values() if len(rows) > 2]


def memory(work: str) -> dict[str, Any]:
    """Gives the span of descriptors and memory of those that lived to the end: first seen, last seen."""
    rows = lives(work)
    return {
        "processes": len(rows),
        "fd_first": max((r[1]["fd"] for r in rows), default=0), "fd_last": max((r[-1]["fd"] for r in rows), default=0),
        "rss_mib_first": max((r[1]["rss"] for r in rows), default=0) >> 10,
        "rss_mib_last": max((r[-1]["rss"] for r in rows), default=0) >> 10,
    }  # fmt: skip


def outcome(root: str, work: str, chores: Chores, samples: Samples) -> list[str]:
    """Gives a sentence for everything that is not as it must be; the order in which it looks matters."""
    rows = writer_rows(work)
    wrong = [*_answers(rows), *_lives(work, samples), *_leftovers(root, work)]
    code, found = rw(root, "verify", "--deep", agent="soak/check")
    if code or found["result"]["problems"]:
        wrong.append(f"verify --deep: {found.get('error') or found['result']['problems'][:5]}")
    kit = Kit(root)
    try:
        ops = oplog.after(kit.store.db, 0, 1 << 40)
        wrong += _order(kit, ops)
        wrong += _acknowledged(kit, ops, rows, work)
        wrong += _views(ops, work, chores)
    finally:
        kit.close()
    for _ in range(2):
        code, found = rw(root, "gc", agent="soak/check")
        if code:
            wrong.append(f"gc at the end: {found}")
    wrong += _leftovers(root, work, collected=True)
    code, found = rw(root, "verify", "--deep", agent="soak/check")
    if code or found["result"]["problems"]:
        wrong.append(f"verify --deep after gc: {found.get('error') or found['result']['problems'][:5]}")
    return wrong


def _answers(rows: list[Row]) -> list[str]:
    """Refusals that do not belong to the work, and waits beyond their bound."""
    wrong = []
    for row in rows:
        if row["t"] == "no":
            undone = row["code"] == "E_LAND_MISMATCH" and row["reason"] == "undone"
            if not undone and (row["asked"]["kind"], row["code"]) not in EXPECTED:
                wrong.append(
                    f"writer {row['writer']}: {row['asked']['kind']} was refused: {row['code']} {row['message']}"
                )
        elif row["t"] == "busy" and row["ms"] < LOCK_WAIT_MS:
            wrong.append(f"writer {row['writer']}: busy after {row['ms']} ms: {row['message']}")
    for writer in {row["writer"] for row in rows}:
        if [row["t"] for row in rows if row["writer"] == writer][-1] != "end":
            wrong.append(f"writer {writer} did not come to its end")
    asked = {(r["writer"], r["n"]) for r in rows if r["t"] == "try"}
    told = {(r["writer"], r["n"]) for r in rows if r["t"] in ("done", "no", "gone")}
    wrong += [f"writer {w}: request {n} was never settled" for w, n in sorted(asked - told)[:5]]
    return wrong


def _order(kit: Kit, ops: list[oplog.Operation]) -> list[str]:
    """One chain without gaps, in which each move starts where the one before ended, up to the refs as they are."""
    wrong = []
    previous, refs = b"\0" * 32, dict[str, str | None]()
    texts = dict(kit.store.db.rows("SELECT op, body FROM ops"))
    for number, op in enumerate(ops, 1):
        head = f"{op.op}\n{op.kind}\n{op.actor}\n{op.at}\n".encode()
        chain = blake3(previous + head + texts[op.op].encode()).digest()
        if op.op != number or chain != op.chain:
            wrong.append(f"the chain breaks at operation {op.op}")
        previous = op.chain
        for move in op.body.moves:
            if refs.get(move.name) != move.old:
                wrong.append(f"operation {op.op} moves {move.name} from {move.old}, where {refs.get(move.name)} was")
            refs[move.name] = move.new
    final = {name: target for name, target in refs.items() if target is not None}
    if final != dict(kit.store.refs()):
        wrong.append("the refs are not where the operation log leaves them")
    shown = dict(
        line.split(" ")[::-1] for line in kit.stock("for-each-ref", "--format=%(objectname) %(refname)").splitlines()
    )
    if shown != final:
        wrong.append(f"repo.git shows other refs: {sorted(set(shown.items()) ^ set(final.items()))[:4]}")
    return wrong[:20]


def _acknowledged(kit: Kit, ops: list[oplog.Operation], rows: list[Row], work: str) -> list[str]:
    """Has git alone look for everything that was answered; first holds the answers against the operation log."""
    wrong = []
    by_number = {op.op: op for op in ops}
    lands = {op.body.changesets[0]: op for op in ops if op.kind == "land"}
    undone = {landed for landed, op in lands.items() if op.undone_by is not None}
    landed: list[tuple[str, str, str, str]] = []
    committed, advanced, counts = [], [], Counter[tuple[str, int]]()
    for row in rows:
        if row["t"] != "done":
            continue
        asked, result = row["asked"], row["result"]
        request = asked["request"]
        if asked["op"] == "land":
            if result["status"] == "up_to_date":
                wrong.append(f"writer {row['writer']}: a land of {asked['kind']} found nothing to do: {result}")
            ref = f"refs/heads/{request['onto']}"
            landed.append((ref, result["landed"], request["head"], request["idempotency_key"]))
            place = {"own": (f"own/w{row['writer']}/a.txt", 0), "region": ("region.txt", 4 * int(row["writer"])),
                     "shared": (f"shared/{asked.get('counter')}.txt", 0)}.get(asked["kind"])  # fmt: skip
            if place is not None:
                counts[place] += 1
            op = lands.get(result["landed"])
            if op is None or op.body.moves != (oplog.Move(ref, op.body.moves[0].old, result["landed"]),):
                wrong.append(f"no operation landed {result['landed']}")
        elif asked["op"] == "commit":
            committed.append(result["changeset"])
            if "advance" in request:
                advanced.append((request["advance"], result["changeset"]))
        elif not result["already_applied"]:
            moves = {(m.name, m.old, m.new) for m in by_number[result["op"]].body.moves}
            if {(f"refs/heads/{m['name']}", m["old"], m["new"]) for m in result["ref_moves"]} != moves:
                wrong.append(f"operation {result['op']} is not what was answered: {result}")
    for name, values in (("landed commit", [r[1] for r in landed]), ("changeset", committed)):
        wrong += [f"the {name} {v} was answered {c} times" for v, c in Counter(values).items() if c > 1]
    for number in range(COUNTERS):
        counts[f"shared/{number}.txt", 0] += 0
    for name in {row["writer"] for row in rows}:
        counts["region.txt", 4 * int(name)] += 0
        counts[f"own/w{name}/b.txt", 0] = counts[f"own/w{name}/a.txt", 0]
    told = {"landed": landed, "undone": sorted(undone), "committed": committed, "advanced": advanced,
            "counters": [(path, line, value) for (path, line), value in counts.items()]}  # fmt: skip
    with open(os.path.join(work, "acknowledged.json"), "w", encoding="utf-8") as file:
        json.dump(told, file)
    done = subprocess.run(
        [sys.executable, "-I", str(Path(__file__).with_name("recheck.py")), kit.repo, file.name],
        env=STOCK, capture_output=True, timeout=900, check=False,
    )  # fmt: skip
    if not done.stdout:
        return [*wrong, f"the recheck failed: {done.stderr.decode()[-1500:]}"]
    found = json.loads(done.stdout)
    return [*wrong[:20], *found["wrong"][:20]]


def _views(ops: list[oplog.Operation], work: str, chores: Chores) -> list[str]:
    """What readers, clones and backups saw was once so, and in that order."""
    wrong = []
    main: dict[str, list[int]] = {}
    at: dict[int, str] = {}
    present = ""
    for op in ops:
        for move in op.body.moves:
            if move.name == MAIN and move.new is not None:
                present = move.new
                main.setdefault(present, []).append(op.op)
        at[op.op] = present
    words = {
        op.op: f"{op.kind} {op.actor} " + ",".join(f"{_short(m.name)} {m.old} {m.new}" for m in op.body.moves)
        for op in ops
    }
    for path in glob.glob(os.path.join(work, "r*.json")):
        seen = msgspec.json.decode(Path(path).read_bytes())
        last = 0
        for head in seen["heads"]:
            later = [number for number in main.get(head, []) if number >= last]
            if not later:
                wrong.append(
                    f"{os.path.basename(path)} saw main at {head}, which it was not at or after operation {last}"
                )
            last = min(later, default=last)
        wrong += [f"{os.path.basename(path)} saw operation {n} as {text}, which is {words[int(n)]}"
                  for n, text in seen["operations"].items() if words[int(n)] != text]  # fmt: skip
    wrong += [f"a clone saw main at {head}" for head in chores.heads if head not in main]
    wrong += [
        f"a backup of operation {op} has main at {head}, not {at[op]}" for op, head in chores.backups if at[op] != head
    ]
    return wrong[:20]


def _short(name: str) -> str:
    return name.removeprefix("refs/heads/")


def _lives(work: str, samples: Samples) -> list[str]:
    """Descriptors and memory of long-lived processes, and the log's size."""
    wrong = []
    for rows in lives(work):
        if rows[-1]["fd"] > rows[1]["fd"] + 4:
            wrong.append(f"process {rows[0]['pid']} had {rows[1]['fd']} descriptors and has {rows[-1]['fd']}")
        if rows[-1]["rss"] > 400 << 10:
            wrong.append(f"process {rows[0]['pid']} has {rows[-1]['rss'] >> 10} MiB")
    if samples.wal > WAL_MAX:
        wrong.append(f"store.db-wal had {samples.wal} bytes")
    wrong += [f"nobody waited for a child that ended, below {words}" for words in sorted(samples.lasting)[:5]]
    return wrong


def zombies(root: int) -> dict[int, str]:
    """Gives ended processes below a process that nobody has waited for, with their parents' command lines."""
    parents: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    state, owner = file.read().rpartition(")")[2].split()[:2]
                parents[int(name)] = (int(owner), state)
            except OSError:
                continue
    found = {}
    for pid, (parent, ended) in parents.items():
        above = pid
        while above in parents and above != root:
            above = parents[above][0]
        if above == root and ended == "Z" and parent != root:
            try:
                found[pid] = (
                    Path(f"/proc/{parent}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                )
            except OSError:
                continue
    return found


def _age(path: str) -> float:
    return time.time() - os.stat(path).st_mtime


def _leftovers(root: str, work: str, *, collected: bool = False) -> list[str]:
    """Files and processes that nobody needs any more; right after kills some may wait for the next `gc`."""
    wrong = []
    wrong += [f"{name} is left in the store" for name in sorted(set(os.listdir(root)) - KEPT)]
    for folder, _, names in os.walk(os.path.join(root, "repo.git")):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root)
            # of these nobody can tell yet whether a living process is at them, so they stay for an hour
            lonely = name.endswith(".pack") and name[:-5] + ".idx" not in names
            young = (name.startswith("tmp_") or lonely) and _age(os.path.join(folder, name)) < 3600
            if name.endswith(".lock") or (collected and not young and (lonely or re.search(r"tmp|rw-ref", name))):
                wrong.append(f"{path} is left")
    for name in os.listdir(os.path.join(root, "spool")) if collected else ():
        # a place whose owner was killed while it made it is not told from one that is being made for a minute
        if _age(os.path.join(root, "spool", name)) > 60 or name.endswith(".req"):
            wrong.append(f"the spool holds {name}")
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if root.encode() in words and b"pytest" not in words and b"tests.soak" not in words:
                wrong.append(f"process {name} is left: {words!r}")
    return wrong


__all__ = ["child_env", "figures", "outcome", "zombies"]
