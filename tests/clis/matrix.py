"""The matrix of agent programs: each real program through gateway, cage, shim and supervisor, in each situation.

    python -m tests.clis.matrix [--only NAME,NAME] [--cells CELL,CELL] [--at-once N] [--keep DIR]

prints a Markdown table: a row a situation, a column a program, each cell the state that the lane ended in, its reason
and seconds; `✗` stands before what is not as it has to be. Ends with 1 when a cell is wrong or empty.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.clis import install, mcp_http

from ropewalk.gateway import settings
from ropewalk.gateway.process import read_address
from ropewalk.lane import processes
from ropewalk.lane.adapter import Adapter, Event, McpServer
from ropewalk.lane.cage import room as rooms
from ropewalk.lane.order import Order
from ropewalk.lane.programs import registry
from ropewalk.lane.programs.common import BY_FILE
from ropewalk.lane.supervisor import LaneResult, Supervised
from ropewalk.lane.waits import FINAL, Judgement, Limits, Waits
from ropewalk.testing.model_server import Entry, ModelServer, running

PROMPT = "Please write hello.txt."
PADDING = "All of this is padding, which has to reach the model whole. "
MODELS = {"claude": "claude-sonnet-4-5", "gemini": "gemini-2.5-flash", "acp-gemini": "gemini-2.5-flash"}
WAITS = Waits(first_byte=10, between=6, tool=60, neither=40, grace=4)
LIMITS = Limits(seconds=180, requests=60)
SHORT, LONG = 40.0, 75.0
"""Are the wall clocks of lanes whose provider fails for ever, of quick programs and slow ones: some never give up."""
SIGNS = 10.0
"""Is how long what a lane leaves behind may live, in seconds."""

FAILURES = ("e400", "e401", "e429ra", "e500", "e529", "ctx", "reset", "malformed", "trunc", "empty", "sseerr",
            "hang", "stall")  # fmt: skip
ALL = ("write", "shell", *FAILURES, "cancel", "resume", "lost", "turns", "replay")
SOME = ("write", "shell", "e401", "e500", "stall", "cancel", "resume", "lost")
PLAN: dict[str, tuple[str, ...]] = {
    "claude": (*ALL, "steer", "interrupt", "tools", "adopt"),
    "codex": (*ALL, "tools"),
    "grok": (*ALL, "tools-asked"),
    "pi": ALL,
    "gemini": (*SOME, "tools", "replay"),
    "qwen": (*SOME, "tools-asked"),
    "copilot": (*SOME, "tools"),
    "opencode": (*SOME, "tools"),
    "acp-grok": ("write", "shell", "e401", "stall", "cancel", "interrupt", "tools-asked", "adopt"),
    "acp-gemini": ("write", "e401", "cancel", "interrupt"),
    "acp-copilot": ("e401", "steer"),
    "acp-opencode": ("steer", "interrupt"),
}
"""Is what is tried: all situations for the quick programs, some for those that take ten seconds to start."""

SLOW = ("opencode", "acp-opencode", "copilot", "acp-copilot", "qwen")

ACP = {
    "acp-grok": ("grok", "acp:grok agent stdio"),
    "acp-gemini": ("gemini", "acp:gemini --acp --approval-mode yolo --skip-trust"),
    "acp-copilot": ("copilot", "acp:copilot --acp --allow-all-tools --allow-all-paths"),
    "acp-opencode": ("opencode", "acp:opencode acp"),
}
"""Are the rows that speak the Agent Client Protocol: the program to install, and the harness."""

WAIT = "i=0; while [ ! -e go ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done"
"""Is a command that ends when the test says so, or after a minute."""


class Cell(NamedTuple):
    """Is one situation of one program as it came out; `wrong` says what is not as it has to be, empty when all is."""

    program: str
    what: str
    state: str
    reason: str
    seconds: float
    wrong: str
    code: int = 0
    stderr: str = ""
    stream: str = ""


def cells() -> list[tuple[str, str]]:
    """Gives all (program, situation), the slow programs first."""
    found = [(program, what) for program, all_of in PLAN.items() for what in all_of]
    return sorted(found, key=lambda one: one[0] not in SLOW)


def installed(program: str) -> str:
    """Gives the name under which a row's program is installed."""
    return ACP[program][0] if program in ACP else program


class Field:
    """Is where lanes run: a model server, a gateway in front of it, and a folder for all of them."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.folder, self.server = folder, server
        server.add("slow", [{"tool": "shell", "cmd": WAIT}, {"text": "FINAL-ANSWER: waited"}])
        step = {"tool": "shell", "cmd": "sleep 1; echo done >> steps.txt"}
        server.add("many", [*[step] * 12, {"text": "FINAL-ANSWER: all done"}])
        self.gateway = Gateway(folder / "gateway", self.settings(server.url))

    @staticmethod
    def settings(url: Callable[[str, str], str], tape: settings.Tape | None = None) -> settings.Settings:
        """Gives a gateway's settings for all cells: an upstream and a lane for each."""
        ups, lanes = {}, {}
        for program, what in cells():
            name = f"{program}-{what}"
            ups[name] = settings.Upstream(url(name, scenario(what)), "real-key")
            fields = {wire: tuple(paths) for wire, paths in adapter(program).volatile.items()}
            lanes[f"token-{name}"] = settings.Lane(f"r/{name}/1", upstreams=(name,), requests=LIMITS.requests,
                                                   volatile=fields, tape=tape)  # fmt: skip
        return settings.Settings(ups, lanes, hold=2.0, first_byte=60.0, between=60.0)


class Gateway:
    """Is a gateway that runs."""

    def __init__(self, folder: Path, how: settings.Settings) -> None:
        self.folder = folder
        folder.mkdir(mode=0o755)
        settings.write(str(folder), how)
        self._child = subprocess.Popen([sys.executable, "-m", "ropewalk.gateway.process", str(folder)],
                                       stdout=subprocess.PIPE)  # fmt: skip
        assert self._child.stdout is not None
        assert self._child.stdout.readline(), "the gateway did not start"
        address = read_address(str(folder))
        assert address is not None
        self.port = address.port

    def end(self) -> None:
        """Ends it."""
        self._child.terminate()
        self._child.wait(20)
        assert self._child.stdout is not None
        self._child.stdout.close()


def adapter(program: str) -> Adapter:
    """Gives a row's adapter."""
    return registry.get(ACP[program][1] if program in ACP else program)


def scenario(what: str) -> str:
    """Gives the model's scenario in a situation."""
    if what in ("cancel", "steer", "interrupt", "adopt"):
        return "slow"
    others = {"resume": "write", "lost": "write", "replay": "write", "tools": "text", "tools-asked": "text"}
    return {**others, "e429ra": "e429ra1", "turns": "many"}.get(what, what)


@contextmanager
def field() -> Iterator[Field]:
    """Gives a field until the block ends; its folder is open to the lanes' user."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="ropewalk-matrix-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        made = Field(folder, stack.enter_context(running()))
        stack.callback(made.gateway.end)
        yield made


class Lane:
    """Is one lane of the matrix, and what was seen of it."""

    def __init__(self, field: Field, program: str, what: str, attempt: int = 1, gateway: Gateway | None = None) -> None:
        self.field, self.program, self.what = field, program, what
        self.gateway = gateway or field.gateway
        self.prompt, self.limits = PROMPT, LIMITS
        self.base = field.folder / f"{program}-{what}"
        self.lane = self.base / f"lane{attempt}"
        self.work = self.base / "work"
        self.events: list[Event] = []
        self.on: Callable[[Event], None] = lambda event: None

    def order(self, session: str | None = None, servers: Sequence[McpServer] = ()) -> Order:
        """Gives the order, and makes the folders it needs."""
        held = install.default_folder()
        name = installed(self.program)
        binary, node = install.binary(held, name), install.binary(held, "node")
        assert binary is not None and node is not None
        harness = adapter(self.program)
        search = f"{binary.parent}:{node.parent}:/usr/local/bin:/usr/bin:/bin"
        self.base.mkdir(mode=0o755, exist_ok=True)
        for folder in (self.work, self.base / "objects"):
            folder.mkdir(exist_ok=True)
        root = os.geteuid() == 0
        if root:
            os.chown(self.work, rooms.UID, rooms.UID)
        uncaged = bool(servers)  # a cage lets through to the gateway alone
        room = rooms.Room(
            str(self.work), "project", str(self.lane / "home"), str(self.lane / "tmp"), str(self.base / "objects"),
            tools=rooms.tool_folders(harness.program, search), gateway=str(self.gateway.folder / "door"),
            uid=rooms.UID if root else None,
        )  # fmt: skip
        return Order(
            f"r/{self.program}-{self.what}/1", f"{harness.family}/one", harness, self.prompt, str(self.work),
            str(self.lane), "none" if uncaged else "full", search, os.environ, room,
            MODELS.get(self.program, "scripted-model"), session=session, servers=servers,
            gateway=str(self.gateway.folder), token=f"token-{self.program}-{self.what}", port=self.gateway.port,
            limits=self.limits, waits=WAITS,
        )  # fmt: skip

    def run(
        self, act: Callable[[Supervised], None] | None = None, session: str | None = None,
        servers: Sequence[McpServer] = (),
    ) -> LaneResult:  # fmt: skip
        """Follows the lane to its end; `act` is done once, when its first tool runs."""
        order = self.order(session, servers)
        found = Supervised(order, self.tell)
        found.start()
        acted = False
        result = None
        while result is None:
            result = found.step()
            if act is not None and not acted and result is None and self.called():
                acted = True
                act(found)
            time.sleep(0.05)
        return result

    def tell(self, event: Event) -> None:
        """Takes an event."""
        self.events.append(event)

    def called(self) -> bool:
        """Says whether the model has called a tool, and the program has taken that up."""
        return any(entry.called and entry.outcome == "ok" for entry in self.mine())

    def mine(self) -> list[Entry]:
        """Gives the requests of the agent itself, without those for titles and the like."""
        return [e for e in self.field.server.entries(f"{self.program}-{self.what}") if e.message_id and not e.side]

    def left(self) -> list[int]:
        """Gives the processes that the lane left, after the time they have to be gone in."""
        mark = f"ROPEWALK_LANE=r/{self.program}-{self.what}/1".encode()
        until = time.monotonic() + SIGNS
        while (found := _marked(mark)) and time.monotonic() < until:
            time.sleep(0.1)
        return found


def _marked(mark: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if processes._lives(pid)]


def run_cell(field: Field, program: str, what: str) -> Cell:
    """Runs one situation of one program and judges how it came out."""
    begun = time.monotonic()
    lane = Lane(field, program, what)
    result, wrong = CHECKS.get(what, _failure)(lane)
    if result.state not in FINAL:
        wrong = wrong or f"{result.state} is no end"
    if left := lane.left():
        wrong = wrong or f"processes {left} are left"
    try:
        stream = (lane.lane / "stdout").read_text(encoding="utf-8", errors="replace")
    except OSError:
        stream = ""
    if wrong:
        wrong = (
            f"{wrong}: {result.state}, {result.reason!r}, exit {result.exit}, {result.ending}, {result.stderr[-600:]}"
        )
    code = result.exit.code if result.exit is not None else -9
    seconds = time.monotonic() - begun
    return Cell(program, what, result.state, result.reason, seconds, wrong, code, result.stderr, stream)


# what has to come out


def _is(found: bool, words: str) -> str:
    return "" if found else words


def _written(lane: Lane) -> tuple[LaneResult, str]:
    if lane.what == "shell":  # and with as long a prompt as it gets as such (G16)
        most = min(adapter(lane.program).prompt_max, BY_FILE)
        lane.prompt = (PADDING * (most // len(PADDING) + 1))[: most - len(PROMPT)] + PROMPT
    result = lane.run()
    heard = [entry.size for entry in lane.mine()]
    path = lane.work / "hello.txt"
    good = path.is_file() and path.read_text(encoding="utf-8") == f"hello from {lane.program}-{lane.what}\n"
    return result, (
        _is(result.state == "done", "not done")
        or _is(good, "hello.txt is not what was asked for")
        or _is("FINAL-ANSWER" in result.ending.text, "the last words are not there")
        or _is(result.tools > 0, "no tool was told of")
        or _is(result.ending.turns == 2, f"{result.ending.turns} turns were counted")
        or _is(all(one > len(lane.prompt) for one in heard), f"requests of {heard} bytes")
        or _is([(e.turn, e.step) for e in lane.mine()] == [(0, 0), (0, 1)], f"{len(lane.mine())} requests")
    )


REASONS: dict[str, tuple[str, ...]] = {
    "e400": ("api_error",), "e401": ("authentication",), "e429ra": ("rate_limited",), "e500": ("api_error",),
    "e529": ("rate_limited", "api_error"), "ctx": ("context_full",),
    "reset": ("api_error",), "malformed": ("api_error", "no_result", "empty"), "trunc": ("api_error",),
    "empty": ("api_error", "no_result", "empty"), "sseerr": ("api_error",),
}  # fmt: skip


def _failure(lane: Lane) -> tuple[LaneResult, str]:
    """What fails has to end as failed with its reason; what hangs is ended by us, as stalled."""
    if lane.what in ("e500", "e529", "reset", "trunc"):
        lane.limits = LIMITS._replace(seconds=LONG if lane.program in SLOW else SHORT)
    result = lane.run()
    if lane.what in ("hang", "stall"):
        words = "no answer" if lane.what == "hang" else "in the middle"
        return result, (
            _is(result.state == "stalled" and words in result.reason, "not stalled as it has to be")
            or _is(result.seconds < LIMITS.seconds, "only the wall clock ended it")
        )
    return result, (
        _is(result.state == "failed", "not failed")
        or _is(result.reason in REASONS[lane.what] or result.reason.startswith("timeout"), "another reason")
        or _is(not (lane.work / "hello.txt").exists(), "it wrote something")
    )


def _cancelled(lane: Lane) -> tuple[LaneResult, str]:
    ended: list[float] = []

    def act(found: Supervised) -> None:
        ended.append(time.monotonic())
        found.end(Judgement("cancelled", "it was stopped", end=True))

    result = lane.run(act)
    seconds = time.monotonic() - ended[0] if ended else -1
    return result, (
        _is(result.state == "cancelled", "not cancelled")
        or _is(bool(ended) and seconds < SIGNS, f"it took {seconds:.1f} s to end")
    )


def _resumed(lane: Lane) -> tuple[LaneResult, str]:
    first = lane.run()
    if first.state != "done" or not first.ending.session:
        return first, "the first run gave no session"
    again = Lane(lane.field, lane.program, lane.what, 2)
    again.lane.mkdir()
    shutil.move(lane.lane / "home", again.lane / "home")
    second = again.run(session=first.ending.session)
    places = [(e.turn, e.step) for e in lane.mine()]
    return second, (
        _is(second.state == "done", "the second run is not done")
        or _is(places == [(0, 0), (0, 1), (1, 0), (1, 1)], f"not the same talk: {places}")
    )


def _steered(lane: Lane) -> tuple[LaneResult, str]:
    heard: list[bool] = []

    def act(found: Supervised) -> None:
        heard.append(found.steer("Hurry up, please."))
        time.sleep(1.0)  # it has to read it before its tool ends
        (lane.work / "go").touch()

    result = lane.run(act)
    hears = [e for e in lane.field.server.entries(f"{lane.program}-{lane.what}")
             if any("Hurry up" in s for s in (*e.steers, e.prompt))]  # fmt: skip
    return result, (
        _is(heard == [True], "it can't be told anything")
        or _is(bool(hears), "the model never heard it")
        or _is(result.state == "done", "not done")
    )


def _interrupted(lane: Lane) -> tuple[LaneResult, str]:
    asked: list[bool] = []
    ended: list[float] = []

    def act(found: Supervised) -> None:
        asked.append(found.interrupt())
        ended.append(time.monotonic())

    result = lane.run(act)
    seconds = time.monotonic() - ended[0] if ended else -1
    return result, (
        _is(asked == [True], "it can't be interrupted")
        or _is(seconds < SIGNS, f"it took {seconds:.1f} s to stop")
        or _is(result.state == "failed" and result.reason == "interrupted", "not interrupted")
    )


def _offered(lane: Lane) -> tuple[LaneResult, str]:
    with mcp_http.serving("report_status") as url:
        result = lane.run(servers=(McpServer("fleet", url, {"Authorization": "Bearer lane-token"}),))
    first = lane.mine()[:1]
    named = bool(first) and any("report_status" in tool for tool in first[0].tools)
    return result, (_is(result.state == "done", "not done") or _is(named, f"not offered: {first and first[0].tools}"))


def _offered_on_asking(lane: Lane) -> tuple[LaneResult, str]:
    """Some programs keep tools behind a search of theirs; they have to ask the server all the same."""
    with mcp_http.serving("report_status") as url:
        result = lane.run(servers=(McpServer("fleet", url, {"Authorization": "Bearer lane-token"}),))
        asked = mcp_http.asked(url)
    return result, _is(result.state == "done", "not done") or _is("tools/list" in asked, f"it asked for {asked}")


def _adopted(lane: Lane) -> tuple[LaneResult, str]:
    """Another supervisor goes on where the first one left off, and tells nothing twice (G4)."""
    order = lane.order()
    first = Supervised(order, lane.tell)
    first.start()
    while first.step() is None and not lane.called():
        time.sleep(0.05)
    (lane.work / "go").touch()
    second = Supervised(order, lane.tell)
    lives = second.adopt()
    result = second.wait()
    if first._shim is not None:
        first._shim.wait(10)
    kinds = [event.kind for event in lane.events]
    return result, (
        _is(lives, "it was not alive any more")
        or _is(result.state == "done", "not done")
        or _is((kinds.count("started"), kinds.count("tool"), kinds.count("result")) == (1, 1, 1), f"told {kinds}")
    )


def _lost(lane: Lane) -> tuple[LaneResult, str]:
    """A session that is not there is told from every other failure, so that a fresh one can be begun."""
    session = "ses_00000000000000000000000000" if lane.program == "opencode" else "01a22900-0000-7000-8000-00000000dead"
    result = lane.run(session=session)
    return result, _is((result.state, result.reason) == ("failed", "session_lost"), "not told as a lost session")


def _bounded(lane: Lane) -> tuple[LaneResult, str]:
    lane.limits = LIMITS._replace(turns=3)
    result = lane.run()
    path = lane.work / "steps.txt"
    count = path.read_text(encoding="utf-8").count("done") if path.exists() else 0
    return result, (
        _is(result.state == "partial" and "turns" in result.reason, "not ended for its turns")
        or _is(1 <= count <= 6, f"{count} steps were done")
    )


def _replayed(lane: Lane) -> tuple[LaneResult, str]:
    """Traffic of one run drives another one, in another workspace, without a model (G1, G2)."""
    folder = str(lane.base.with_name(f"{lane.base.name}-tape"))
    with ExitStack() as stack:
        for mode, place in (("record", lane.field.server.url), ("replay", lambda *names: "http://127.0.0.1:9")):
            tape = settings.Tape(mode, folder)  # type: ignore[arg-type]
            gateway = Gateway(Path(f"{folder}-{mode}"), Field.settings(place, tape))
            stack.callback(gateway.end)
            one = Lane(lane.field, lane.program, lane.what, 1 if mode == "record" else 2, gateway)
            one.base = one.base.with_name(f"{one.base.name}-{mode}")
            one.lane, one.work = one.base / "lane", one.base / "work"
            result = one.run()
            wrote = (one.work / "hello.txt").is_file()
            if result.state != "done" or not wrote:
                return result, f"{mode} failed: {result.ending.error[:1500]}"
    return result, _is(len(lane.mine()) == 2, f"the model was asked {len(lane.mine())} times")


CHECKS: dict[str, Callable[[Lane], tuple[LaneResult, str]]] = {
    "write": _written, "shell": _written, "cancel": _cancelled, "resume": _resumed, "steer": _steered,
    "interrupt": _interrupted, "tools": _offered, "tools-asked": _offered_on_asking, "lost": _lost, "turns": _bounded,
    "replay": _replayed, "adopt": _adopted,
}  # fmt: skip


def recording(cell: Cell) -> dict[str, Any]:
    """Gives what a program printed and how it ended, as tests of readers use it; long texts and lists are cut."""
    lines: list[Any] = []
    for line in cell.stream.splitlines():
        try:
            lines.append(_short(json.loads(line)))
        except ValueError:
            lines.append(line[:_LONG])
    parts = [one for one in lines if isinstance(one, dict) and one.get("type") == "message_update"]
    lines = [one for one in lines if one not in parts[1:]]
    return {"program": cell.program, "what": cell.what, "code": cell.code, "stderr": cell.stderr[-1000:],
            "lines": lines}  # fmt: skip


_LONG, _MANY = 300, 6


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _LONG else value[:_LONG] + "…"
    if isinstance(value, list):
        return [_short(one) for one in value[:_MANY]]
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return value


def shown(cell: Cell) -> str:
    """Gives what a table says of a cell."""
    why = cell.reason.split(":")[0]
    return f"{cell.state}{f' ({why})' if why else ''} {cell.seconds:.0f} s"


def table(found: Sequence[Cell], wanted: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    """Gives the Markdown table, and what is wrong or missing in it."""
    by = {(one.program, one.what): one for one in found}
    programs = [p for p in PLAN if any(p == one for one, _ in wanted)]
    rows = list(dict.fromkeys(what for p in PLAN for what in PLAN[p] if (p, what) in wanted))
    lines = ["| |" + "|".join(programs) + "|", "|---" * (len(programs) + 1) + "|"]
    wrong = []
    for what in rows:
        line = f"|{what}|"
        for program in programs:
            cell = by.get((program, what))
            if cell is None:
                line += "|" if (program, what) in wanted else "–|"
                if (program, what) in wanted:
                    wrong.append(f"{program} {what}: nothing came of it")
                continue
            if cell.wrong:
                wrong.append(f"{program} {what}: {cell.wrong}")
            line += f"{'✗ ' if cell.wrong else ''}{shown(cell)}|"
        lines.append(line)
    return "\n".join(lines), wrong


def main() -> int:
    """Runs what is asked for, prints the table, and gives the exit code."""
    parser = argparse.ArgumentParser(description="Tries the real agent programs in all situations.")
    parser.add_argument("--only", default=",".join(PLAN), help="programs, with commas (default: all)")
    parser.add_argument("--cells", default="", help="situations, with commas (default: all)")
    parser.add_argument("--at-once", type=int, default=3, help="how many lanes run at once")
    parser.add_argument("--keep", type=Path, help="a folder for what the programs printed, cut short")
    given = parser.parse_args()
    only, some = given.only.split(","), [one for one in given.cells.split(",") if one]
    wanted = [(p, w) for p, w in cells() if p in only and (not some or w in some)]
    found: list[Cell] = []

    def one(cell: tuple[str, str]) -> None:
        try:
            made = run_cell(place, *cell)
        except Exception as error:
            print(json.dumps({"cell": cell, "error": repr(error)}), file=sys.stderr, flush=True)
            return
        found.append(made)
        if given.keep:
            given.keep.mkdir(exist_ok=True)
            kept = json.dumps(recording(made), indent=1, ensure_ascii=False)
            (given.keep / f"{made.program}-{made.what}.json").write_text(kept + "\n", encoding="utf-8")
        print(json.dumps(made._replace(stream="", stderr="")._asdict()), file=sys.stderr, flush=True)

    with field() as place, ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(one, wanted))
    text, wrong = table(found, wanted)
    print(text)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
