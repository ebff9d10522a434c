"""Setting up: at a real terminal and from a file, and a run that then needs no further word."""

from __future__ import annotations

import http.client
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.served import served

from ropewalk.core.errors import InvalidError
from ropewalk.gateway import noting
from ropewalk.gateway.endpoints import Endpoint
from ropewalk.gateway.probe import Waits, probe
from ropewalk.plan.document import Document, of_plan
from ropewalk.plan.plan import Module, Plan
from ropewalk.plan.task import Task
from ropewalk.run import setup, usual
from ropewalk.run.planner import folders
from ropewalk.testing.model_server import ModelServer, running

from .setupkit import Project
from .test_goal import _AGENT, _PLAN

KEY, WRONG = "sk-the-real-key-8151", "sk-the-wrong-key-3344"
CALL = {"tool": "^write_file$", "args": {"path": "out.txt", "content": "1"}}


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    """Gives a model server that wants a key."""
    with running(keys=[KEY]) as made:
        made.add("good", [CALL])
        yield made


@pytest.fixture
def project(tmp_path: Path, git: Any, clean: dict[str, str]) -> Project:
    """Gives a person's repository."""
    return Project(tmp_path, git, clean)


def write(project: Project, text: str) -> str:
    path = project.folder.parent / "setup.toml"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


# at a terminal


def test_devflock_C10_a_key_is_on_no_screen_and_in_no_file_but_that_of_endpoints(
    project: Project, models: ModelServer
) -> None:
    (project.folder / "mine.txt").write_text("not committed\n")
    agent = project.programs / "claude"
    agent.write_text("#!/bin/sh\necho '2.1.332 (Claude Code)'\n")
    agent.chmod(0o755)
    url = models.url("typed", "good")
    with project.terminal("setup") as person:
        person.expect("claude 2.1.332")
        person.expect("not installed: ")
        person.answer("who does the tasks?", "nobody")
        person.expect("there is no harness 'nobody'")
        person.answer("who does the tasks?", "scripted")
        person.answer("endpoint [none]", f"{WRONG} and more")
        person.expect("that is no endpoint")
        person.answer("endpoint [none]", f"http://me:{WRONG}@localhost:1")
        person.expect("more in it than an address")
        person.answer("endpoint [none]", f"{url} {WRONG}")
        person.expect(f"{url} (with a key)")
        person.answer("retry/use/stop", "retry")
        person.answer("endpoint [the same again]", f"  {url}/v1/|{KEY} ")
        person.expect(f"{url} (with a key)")
        person.expect("  good")
        person.answer("endpoint [the manager's]", "")
        person.expect("scripted-model")
        person.answer("which model?", "scripted-model")
        person.expect("3 modules, at most 3 at once, 3 worth having")
        person.answer("how many agents at once? 1 to 3 [3]", "4")
        person.answer("how many agents at once? 1 to 3 [3]", "2")
        person.expect("1 uncommitted path of yours is not part of the run: mine.txt")
        person.answer("ask/start/stop [ask]", "start")
        assert person.end() == 0, person.screen
        assert person.echoes
    assert KEY not in person.screen and WRONG not in person.screen
    assert project.holding(KEY) == [project.endpoints] and project.holding(WRONG) == []
    assert stat.S_IMODE(project.endpoints.stat().st_mode) == 0o600
    assert stat.S_IMODE(project.endpoints.parent.stat().st_mode) == 0o700
    (name, one), *more = noting.raw(str(project.endpoints.parent)).items()
    assert not more and re.match(r"127-0-0-1-\d+\Z", name)
    assert one == Endpoint(url, KEY, auth="x-api-key", wires=("anthropic", "chat", "responses"))
    kept = usual.read(str(project.run_file.parent))
    assert kept == usual.Usual("scripted", "scripted-model", 2, (name,), (), "start")

    # once more: what was said is what is there, and empty lines change nothing
    before = project.manifest()
    with project.terminal("setup") as person:
        person.answer("who does the tasks? a name, route, or command:PROGRAM WORDS [scripted]", "")
        person.answer(f"endpoint [{name}]", "")
        person.answer("endpoint [the manager's]", "")
        person.answer("[scripted-model]", "")
        person.answer("[2]", "")
        person.answer("ask/start/stop [start]", "")
        person.expect("nothing is other than before")
        assert person.end() == 0
    assert KEY not in person.screen
    after = project.manifest()
    assert {path for path in before | after if before.get(path) != after.get(path)} <= {
        str(project.folder / ".git" / "index"), *(p for p in after if "/store.db" in p or p.endswith(".lock"))
    }  # fmt: skip


def test_the_page_shows_what_is_on_the_screen(project: Project, models: ModelServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "setup.md").read_text()
    shown = page.split("```text\n")[1].split("```")[0].splitlines()[1:]
    (project.folder / "mine.txt").write_text("not committed\n")
    agent = project.programs / "claude"
    agent.write_text("#!/bin/sh\necho '2.1.332 (Claude Code)'\n")
    agent.chmod(0o755)
    url = models.url("page", "good")
    with project.terminal("setup") as person:
        person.answer("who does the tasks?", "claude")
        person.answer("endpoint [none]", f"http://127.0.0.1:9 {WRONG}")
        person.answer("retry/use/stop", "retry")
        person.answer("endpoint [the same again]", f"{url} {KEY}")
        person.answer("endpoint [the manager's]", "")
        person.answer("which model?", "scripted-model")
        person.answer("how many agents at once?", "2")
        person.answer("ask/start/stop [ask]", "start")
        assert person.end() == 0, person.screen
    screen = person.screen.replace("\r", "").replace(url, "http://127.0.0.1:8080")
    screen = re.sub(r"127-0-0-1-\d{4,}", "127-0-0-1-8080", screen)
    for path, place in ((project.endpoints, "/home/you/.config/ropewalk/endpoints.toml"),
                        (project.run_file, "/home/you/shop/.git/ropewalk/run.toml")):  # fmt: skip
        screen = screen.replace(str(path), place)
    # which programs are there hangs on the machine
    there = [line for line in screen.splitlines() if not re.match(r"not installed: |  (?!claude)\w+ [\d.]+$", line)]
    assert there == [line for line in shown if not line.startswith("not installed: ")]


def test_what_ends_in_the_middle_leaves_nothing(project: Project, models: ModelServer) -> None:
    before = project.manifest()
    with project.terminal("setup") as person:  # while it reads unseen
        person.answer("who does the tasks?", "scripted")
        person.expect("endpoint [none]")
        assert not person.echoes
        person.interrupt()
        assert person.end() == 130 and person.echoes
    with project.terminal("setup") as person:  # at the last question, all else being known
        person.answer("who does the tasks?", "scripted")
        person.answer("endpoint [none]", f"{models.url('left', 'good')} {KEY}")
        person.answer("endpoint [the manager's]", "")
        person.answer("which model?", "")
        person.answer("how many agents", "")
        person.expect("ask/start/stop")
        person.interrupt()
        assert person.end() == 130 and person.echoes
    with project.terminal("setup") as person:  # stopped where an endpoint failed
        person.answer("who does the tasks?", "scripted")
        person.answer("endpoint [none]", f"http://127.0.0.1:9 {KEY}")
        person.answer("retry/use/stop", "stop")
        assert person.end() == 14 and "nothing was changed" in person.screen
    with project.terminal("setup") as person:  # the end of input
        person.answer("who does the tasks?", "\x04")
        assert person.end() == 14 and "nothing was changed" in person.screen
    assert project.manifest() == before and project.holding(KEY) == []


# from a file


def test_devflock_B23_without_a_terminal_a_file_answers_and_the_exit_code_tells(
    project: Project, models: ModelServer
) -> None:
    code, said, _ = project.rw("setup")
    assert code == 2 and "--config" in said["error"]["hint"]
    url = models.url("file", "good")
    text = f"""
        [run]
        harness = "scripted"
        [endpoints.good]
        url = "{url}"
        key_env = "MY_KEY"
        [endpoints.dead]
        url = "http://127.0.0.1:9"
        """
    before = project.manifest()
    code, said, told = project.rw("setup", "--config", write(project, text), MY_KEY=KEY)
    assert code == 13 and said["error"]["code"] == "E_PROVIDER" and "dead: " in said["error"]["message"]
    assert project.manifest() == before
    file = write(project, text + '[probe]\non_failure = "use"\n')
    code, said, told = project.rw("setup", "--config", file, MY_KEY=KEY)
    assert code == 0, said
    result = said["result"]
    assert (result["harness"], result["workers"], result["modules"]) == ("scripted", 3, 3)
    assert {one["name"]: one["verdict"] for one in result["probed"]} == {"good": "usable", "dead": "not"}
    assert result["written"] == [str(project.endpoints), str(project.run_file)]
    assert KEY not in f"{said}{told}" and project.holding(KEY) == []
    code, said, _ = project.rw("setup", "--config", file, MY_KEY=KEY)
    assert code == 0 and said["result"]["written"] == []


def test_a_file_with_many_faults_is_told_all_of_them_at_once(project: Project) -> None:
    before = project.manifest()
    path = write(project, f"""
        [runs]
        [run]
        harnes = "claude"
        harness = "nobody"
        workers = 30
        dirty = "maybe"
        manager = ["nowhere"]
        [endpoints.one]
        url = "ftp://me:{WRONG}@host"
        key = "{WRONG} "
        auth = "basic"
        [endpoints.two]
        url = "http://127.0.0.1:9"
        key_env = "NOT_SET"
        slot = 3
        [endpoints.three]
        url = "http://127.0.0.1:9/?key={WRONG}"
        key = "k"
        key_env = "HOME"
        [probe]
        on_failure = "never"
        """)  # fmt: skip
    os.chmod(path, 0o644)
    code, said, _ = project.rw("setup", "--config", path)
    problems = said["error"]["details"]["problems"]
    for words in (
        "there is no table 'runs'; is it 'run'?", "[run]: there is no field 'harnes'; is it 'harness'?",
        "[run]: harness: there is no harness 'nobody'", "[run]: workers: 30 are more than the 3 modules",
        "[run]: dirty: ", "[run]: manager: there is no endpoint 'nowhere'; known: one, three, two",
        "[endpoints.one]: the URL is none", "[endpoints.one]: the key has characters",
        "[endpoints.one]: Invalid enum value 'basic'", "[endpoints.two]: there is no field 'slot'; is it 'slots'?",
        "[endpoints.three]: the URL has more in it", "[endpoints.three]: a key, or the variable that holds it",
        "[probe]: on_failure: ", "others may read it: chmod 600",
    ):  # fmt: skip
        assert [one for one in problems if words in one], (words, problems)
    assert code == 2 and len(problems) == 14, problems
    assert WRONG not in str(said) and project.manifest() == before


@pytest.mark.parametrize(
    "text", ["= 3", "[run\n", "[run]\nharness = 1979-05-27\n", "endpoints = 3", "\0", "[[run]]", ""]
)
def test_no_file_is_a_fault_of_ours(project: Project, text: str) -> None:
    code, said, _ = project.rw("setup", "--config", write(project, text))
    assert said["error"]["code"] == ("E_INVALID" if text else "E_HARNESS") and code in (2, 11), said


def test_devflock_C10_a_file_of_keys_is_its_users_from_its_first_moment(project: Project, models: ModelServer) -> None:
    log = project.folder.parent / "calls"
    file = write(
        project, f'[run]\nharness = "scripted"\n[endpoints.e]\nurl = "{models.url("umask", "good")}"\nkey = "{KEY}"\n'
    )
    calls = "open,openat,creat,mkdir,chmod,fchmod,fchmodat,rename,renameat,renameat2,write"
    shell = (
        "sh",
        "-c",
        'umask 000; exec "$@"',
        "sh",
        "strace",
        "-f",
        "-qq",
        "-s",
        "4096",
        "-e",
        f"trace={calls}",
        "-o",
        str(log),
    )
    code, said, _ = project.rw("setup", "--config", file, prefix=shell)
    assert code == 0, said
    lines = log.read_text(errors="replace").splitlines()
    made = [line for line in lines if "endpoints.toml" in line and "O_CREAT" in line]
    assert made and all(re.search(r"O_CREAT[A-Z_|]*, 0600\) = \d", line) for line in made), made
    assert not [line for line in lines if "chmod" in line and "endpoints.toml" in line]
    folder = [line for line in lines if "mkdir" in line and "config/ropewalk" in line]
    assert folder and all(", 0700" in line for line in folder), folder
    numbers = {re.search(r"= (\d+)", line)[1] for line in made}  # type: ignore[index]
    written = [line for line in lines if "write(" in line and KEY in line and "sendto" not in line]
    assert {re.search(r"write\((\d+),", line)[1] for line in written} <= numbers, written  # type: ignore[index]
    assert stat.S_IMODE(project.endpoints.stat().st_mode) == 0o600 and project.holding(KEY) == [project.endpoints]


# what is asked, probed and kept


@contextmanager
def without_pages(behind: str) -> Iterator[str]:
    """Gives the address of a server that answers to models' requests alone: whoever asks for a page is hung up on."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            self.close_connection = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            there = http.client.HTTPConnection(behind.removeprefix("http://").split("/")[0], timeout=60)
            path = f"/{behind.removeprefix('http://').split('/', 1)[1]}{self.path}"
            there.request("POST", path, body, dict(self.headers))
            got = there.getresponse()
            self.send_response(got.status)
            self.send_header("content-type", got.headers["content-type"])
            self.end_headers()
            while part := got.read1(65536):
                self.wfile.write(part)
            there.close()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with served(Handler) as address:
        yield address


def test_devflock_B27_an_endpoint_without_health_and_props_is_usable(models: ModelServer) -> None:
    with without_pages(models.url("nopages", "good")) as url:
        report = probe(url, KEY, model="scripted-model", waits=Waits(60, 60, 60))
    grades = {check.name: check.grade for check in report.checks}
    assert report.verdict == "usable", report
    assert grades["stream"] == grades["tools"] == "pass" and "no answer" in report.checks[0].found
    assert (report.slots, report.window, report.wires) == (None, None, ("anthropic", "chat", "responses"))


def test_devflock_B27_the_slots_that_a_server_tells_bound_its_endpoint() -> None:
    from ropewalk.gateway.probe import Report
    from ropewalk.operations.setup import completed

    found = Report("http://h", "usable", (), "m", "chat", "bearer", 8192, 2, ("chat",))
    assert completed(Endpoint("http://h", "k"), found) == Endpoint(
        "http://h", "k", wires=("chat",), slots=2, window=8192
    )
    own = Endpoint("http://h", "k", wires=("anthropic",), slots=5, window=100)
    assert completed(own, found) == own  # what a person wrote stays


@pytest.mark.parametrize(("line", "found"), [
    ("http://h", ("http://h", "")), ("  https://h:8080/base/ ", ("https://h:8080/base", "")),
    ("http://h/v1 k", ("http://h", "k")), ("http://h|k", ("http://h", "k")), ("http://h | k", ("http://h", "k")),
    ("http://[::1]:80\tk", ("http://[::1]:80", "k")),
])  # fmt: skip
def test_a_line_is_a_url_and_a_key(line: str, found: tuple[str, str]) -> None:
    assert setup.typed(line) == setup.Typed(*found)
    assert str(setup.typed(line)) == (f"{found[0]} (with a key)" if found[1] else found[0])


@pytest.mark.parametrize("line", [
    "", "|", "secret", "secret http://h", "http://h k secret", "http://secret@h", "http://h?secret", "http://h#secret",
    "http://h:99999 secret", "http:// secret", "http://[h secret", "http://h s\u00e9cret", "ftp://h secret", "http://h\x1bsecret",
])  # fmt: skip
def test_a_line_that_is_none_is_not_shown(line: str) -> None:
    with pytest.raises(InvalidError) as error:
        setup.typed(line)
    assert "cret" not in f"{error.value.message}{error.value.hint}{error.value.details}"


def test_what_a_person_wrote_into_endpoints_stays(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    path = folder / noting.FILE
    own = (
        '# mine\n[endpoints.one]  # the first\nurl = "http://one"\nmodels = { "a b" = "c" }\n\n# the second\n'
        '[endpoints."two words"]\nurl = "http://two"\n[endpoints."two words".models]\nx = "y"\n\n[budget]\nrun = 5.0'
    )
    path.write_text(own)
    path.chmod(0o600)
    two = Endpoint("http://two", 'k"\\', wires=("chat",), price={"input": 1.0})
    assert noting.note(str(folder), {"two words": two, "new.one": Endpoint("http://n")})
    text = path.read_text()
    assert text.startswith(own[: own.index('[endpoints."two')]) and "[budget]\nrun = 5.0\n" in text
    one = Endpoint("http://one", models={"a b": "c"})
    assert noting.raw(str(folder)) == {"one": one, "two words": two, "new.one": Endpoint("http://n")}
    assert not noting.note(str(folder), {"two words": two}) and path.read_text() == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.listdir(folder) == [noting.FILE]
    for form in ('endpoints.one = { url = "http://one" }\n', 'endpoints = { one = { url = "http://one" } }\n',
                 'x = """\n[endpoints.one]\n"""\n[endpoints]\none.url = "http://one"\n'):  # fmt: skip
        path.write_text(form)
        with pytest.raises(InvalidError):
            noting.note(str(folder), {"one": two})
        assert path.read_text() == form
    path.chmod(0o640)
    with pytest.raises(InvalidError, match="others may read it"):
        noting.note(str(folder), {"one": two})


def test_agents_are_counted_by_a_plan_where_there_is_one(project: Project) -> None:
    tasks = tuple(Task(f"t{n}", f"test -e f{n}", module=f"m{n}", needs=(f"t{n - 1}",) if n else ()) for n in range(4))
    chain = Plan("A chain", tuple(Module(f"m{n}") for n in range(4)), tasks)
    folders.save(str(project.folder / "plan"), of_plan(chain, Document(goal="A chain")))
    _, said, _ = project.rw("setup", "--config", write(project, '[run]\nharness = "scripted"\n'))
    result = said["result"]
    assert (result["counted"], result["modules"], result["most_at_once"], result["workers"]) == (
        "the plan in plan",
        4,
        1,
        1,
    )


# what a run makes of it


def test_a_run_needs_no_further_word(project: Project) -> None:
    agent = project.folder.parent / "agent"
    agent.write_text(_AGENT.format(python=sys.executable, plan=repr(_PLAN), broken=False))
    agent.chmod(0o755)
    text = f'[run]\nharness = "command:{agent}"\nworkers = 2\ndirty = "stop"\n'
    assert project.rw("setup", "--config", write(project, text))[0] == 0
    (project.folder / "mine.txt").write_text("not committed\n")
    code, said, _ = project.rw("run", "Prices should have tax", "--yes")
    assert code == 14 and "mine.txt" in said["error"]["message"]
    assert project.rw("setup", "--config", write(project, text.replace("stop", "start")))[0] == 0
    code, said, told = project.rw("run", "Prices should have tax", "--yes")
    assert code == 0 and said["result"]["landed"] == 2, (said, told)
    assert "mine.txt" in told

    # a plan whose agents are scripted, by as many agents as were said
    tasks = tuple(Task(f"t{n}", f"test -e {n}.txt", description=_script(n), module=f"m{n}", owns=(f"{n}.txt",))
                  for n in range(3))  # fmt: skip
    plan = Plan("Three files", tuple(Module(f"m{n}") for n in range(3)), tasks)
    folders.save(str(project.folder.parent / "three"), of_plan(plan, Document(goal="Three files")))
    code, said, told = project.rw("run", "--plan", "../three", "--yes")
    assert code == 0 and said["result"]["landed"] == 3, (said, told)
    assert "for 2 agents" in told
    rows = {
        row["name"]: row
        for row in project.rw("config", "show", "--origin", ROPEWALK_RUN_WORKERS="1")[1]["result"]["settings"]
    }
    assert (rows["run.dirty"]["value"], rows["run.dirty"]["origin"]) == ("start", "file")
    assert (rows["run.workers"]["value"], rows["run.workers"]["origin"]) == (1, "environment")


def _script(n: int) -> str:
    steps = {"steps": [{"put": f"{n}.txt", "text": f"{n}\n"}]}
    return f"Write {n}.txt.\n\n```script\n{msgspec.json.encode(steps).decode()}\n```\n"


def test_managers_and_agents_use_the_endpoints_that_are_theirs(project: Project, models: ModelServer) -> None:
    names = ("first", "second", "third")
    tables = "".join(
        f'[endpoints.{name}]\nurl = "{models.url(f"of-{name}", "good")}"\nkey_env = "MY_KEY"\n' for name in names
    )
    run = '[run]\nharness = "scripted"\nmanager = ["second"]\nendpoints = ["third", "first"]\n'
    assert project.rw("setup", "--config", write(project, run + tables), MY_KEY=KEY)[0] == 0
    before = {name: models.counts()[f"of-{name}"].requests for name in names}
    code, said, _ = project.rw("plan", "draft", "a goal", "--direct", "--model", "scripted-model", MY_KEY=KEY)
    assert code == 15, said  # this model makes no plan; whom it was asked is what counts
    after = {name: models.counts()[f"of-{name}"].requests for name in names}
    assert after["second"] > before["second"] and {after[n] - before[n] for n in ("first", "third")} == {0}
    assert usual.read(str(project.run_file.parent)).names == ("third", "first")
    project.endpoints.unlink()
    code, said, _ = project.rw("plan", "draft", "a goal", "--direct", "--model", "scripted-model", MY_KEY=KEY)
    assert said["error"]["code"] == "E_NOT_FOUND" and "rw setup" in said["error"]["hint"]


def test_who_has_nobody_is_told_of_setup(project: Project) -> None:
    code, said, _ = project.rw("run", "a goal", "--yes")
    assert code == 11 and "rw setup" in said["error"]["hint"] and "is installed" in said["error"]["message"]
    code, said, _ = project.rw("setup", "--config", write(project, ""))
    assert code == 11 and "claude" in said["error"]["message"] and "rw doctor" in said["error"]["hint"]
