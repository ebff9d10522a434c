"""Reports of runs: each figure is counted again by other means, and no page does what others' words tell it to."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.gateway.prices import NOTHING, Cost
from ropewalk.lane import journal
from ropewalk.run.account import NONE, UNKNOWN, Account, AttemptLine, Share, Tokens
from ropewalk.run.figures import Summary, TaskReport
from ropewalk.run.pages import html, markdown, svg, words
from ropewalk.store.store import Store

from .conftest import Runs, task

EVIL = "<script>alert(1)</script> | **b** `c` ![i](http://e.invalid/a.png) & \"q\" 'r' ]]> <!-- \u202e#1 www.e.invalid"


class Page(HTMLParser):
    """Reads a page: its tables as rows of text, its facts, all tags, and all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.facts: dict[str, str] = {}
        self.tags: list[str] = []
        self.attributes: set[tuple[str, str]] = set()
        self._into: list[str] = []
        self._name = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        if tag in ("caption", "td", "th", "dt", "dd"):
            self._into = []
        elif tag == "tr":
            self.tables[self._name].append([])

    def handle_data(self, data: str) -> None:
        self._into.append(data)

    def handle_endtag(self, tag: str) -> None:
        said = "".join(self._into)
        if tag == "caption":
            self._name = said
            self.tables[said] = []
        elif tag in ("td", "th"):
            self.tables[self._name][-1].append(said)
        elif tag == "dt":
            self._name = said
        elif tag == "dd":
            self.facts[self._name] = said


def read(text: str) -> tuple[dict[str, list[list[str]]], dict[str, str]]:
    """Gives the tables of a Markdown report by caption, with their heads, and its facts."""
    tables: dict[str, list[list[str]]] = {}
    facts: dict[str, str] = {}
    name = ""
    for line in text.split("\n"):
        if line.startswith("**"):
            name = line.strip("*")
            tables[name] = []
        elif line.startswith("#") or line == "| | |":
            name = ""
        elif line.startswith("|") and not line.startswith("|-"):
            row = [plain(cell) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if name:
                tables[name].append(row)
            else:
                facts[row[0]] = row[1]
    return tables, facts


def plain(cell: str) -> str:
    cell = cell.strip()
    if cell.startswith("`"):
        return cell.strip("`").strip().replace("\\|", "|")
    return re.sub(r"\\([\\`*_\[\]<>|~&#@:.])", r"\1", cell)


@pytest.fixture
def ran(runs: Runs, tmp_path: Path) -> tuple[Runs, str]:
    """Gives a run with a conflict, a death, a repair, a failure, what it blocks, and a title that is no title."""
    todo = [
        task(name, {"barrier": str(tmp_path / "both"), "count": 2},
             {"replace": "src/b.py", "old": "b = 1\n", "new": f"b = '{name}'\n"}, script={"on_conflict": "both"})
        for name in ("left", "right")
    ]  # fmt: skip
    todo += [
        task("once", {"die_once": str(tmp_path / "died")}, {"put": "after", "text": "a\n"}, prompt=EVIL),
        task("wrong", {"put": "w.py", "text": "raise SystemExit(3)\n"}, check="python3 w.py"),
        task("never", {"put": "n", "text": "n\n"}, needs=["wrong", "left"]),
        task("both", {"put": "z", "text": "z\n"}, needs=["left", "right"], check="test -e z | cat"),
    ]
    code, envelope = runs.run(todo, "--jobs", "3")
    assert code == 10, envelope
    name = envelope["result"]["id"]
    with Store(runs.root) as store:  # the scripted agent costs nothing: further lanes of these attempts did
        passed = [one for one in journal.lanes(store) if one.result is not None and one.result.passed]
        lanes = {one.record.task.removeprefix(f"{name}."): one for one in passed}
        for of, dollars, mark in (("left", 0.125, "≈"), ("right", None, "*"), ("both", 0.25, ""), ("once", 2.5, "*")):
            record, result = lanes[of].record, lanes[of].result
            assert result is not None
            record = msgspec.structs.replace(record, lane=f"{record.lane.partition('/')[0]}/9")
            counted = None if of == "right" else result.tokens
            result = msgspec.structs.replace(result, dollars=dollars, mark=mark, tokens=counted)
            journal.enter(store, record, result, record.began)
    return runs, name


def test_every_figure_is_counted_again_from_board_and_operation_log(ran: tuple[Runs, str], tmp_path: Path) -> None:
    runs, name = ran
    report = runs.rw("runs", "report", name)["result"]
    tables, facts = read(report["text"])
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("recount.py")), runs.root, name],
                          capture_output=True, check=True)  # fmt: skip
    again = msgspec.json.decode(done.stdout)

    assert (again["landed"], again["failed"], again["blocked"]) == (4, 1, 1)
    for word in ("tasks", "landed", "failed", "blocked"):
        assert facts[word] == str(again[word]), word
    made = again["attempts"]
    assert facts["attempts"] == str(len(made)) and facts["time"] == words.span(again["time"])
    assert facts["deaths"] == str(sum(one["how"] == "died" for one in made)) == "1"
    assert {one["task"]: cost([one]) for one in made if one["how"] == "landed"} == {
        "left": "≈$0.1250", "right": "unknown", "both": "$0.2500", "once": "*$2.5000"}  # fmt: skip
    assert [one["task"] for one in made if one["partly"] and one["how"] == "landed"] == ["right"]
    for key, word in (("turns", "turns of agents"), ("conflicts", "conflicts")):
        assert facts[word] == str(sum(one[key] for one in made)), word
    assert facts["agents ran for"] == words.span(round(sum(one["seconds"] for one in made), 1))
    assert facts["tokens"] == tokens(made) and facts["cost"] == cost(made)

    rows = {row[1]: row for row in tables["Attempts"][1:]}
    assert set(rows) == {one["attempt"] for one in made}
    for one in made:
        row = rows[one["attempt"]]
        numbers = [one["task"], one["how"], words.span(one["seconds"]), str(one["turns"]), str(one["conflicts"])]
        assert [row[0], row[3], *row[6:9]] == numbers
        assert row[9:11] == [tokens([one]), cost([one])]
    for row in tables["By task"][1:]:
        mine = [one for one in made if one["task"] == row[0]]
        assert (row[1], row[3], row[5]) == (str(len(mine)), tokens(mine), cost(mine))
    assert tables["By model"][-1][3] == tokens(made)
    landed = {row[0]: row for row in tables["What landed, in order"][1:]}
    assert {task: (row[1], row[6], row[4], row[7]) for task, row in landed.items()} == {
        task: (one["commit"], str(one["op"]), one["check"], words.moment(one["at"]))
        for task, one in again["lands"].items()
    }
    broken = {row[0]: row for row in tables["What did not land"][1:]}
    assert set(broken) == {"wrong", "never"} and broken["wrong"][3] == "never"
    kept = broken["wrong"][4].removeprefix("rw recover ")
    assert kept in str(runs.rw("recover")["result"])

    place = tmp_path / "place"
    place.mkdir()
    for wrong in (place, place / "none" / "r.md"):
        assert runs.rw("runs", "report", name, "--into", str(wrong))["error"]["code"] == "E_INVALID"
    assert list(place.iterdir()) == [] and not list(tmp_path.glob("place.*"))

    into = tmp_path / "report.html"
    said = runs.rw("runs", "report", name, "--into", str(into))["result"]
    assert said["format"] == "html" and said["bytes"] == into.stat().st_size
    page = Page(into.read_text(encoding="utf-8"))
    assert {t: [[" ".join(c.split()) for c in row] for row in rows] for t, rows in page.tables.items()} == tables
    assert page.facts == facts
    assert page.tags.count("svg") == 3 and page.tags.count("script") == 0
    assert [row[1] for row in tables["Tasks"] if row[0] == "once"] == [words.one_line(EVIL)]


def tokens(made: list[dict[str, Any]]) -> str:
    known = [one["tokens"] for one in made if one["tokens"] is not None]
    mark = "*" if any(one["partly"] or one["tokens"] is None for one in made) else ""
    return f"{mark}{sum(known):,}" if known else "unknown"


def cost(made: list[dict[str, Any]]) -> str:
    known = sum(one["dollars"] or 0.0 for one in made)
    marks = {one["mark"] for one in made}
    mark = "*" if "*" in marks else "≈" if "≈" in marks else ""
    return f"{mark}${known:,.4f}" if known or mark != "*" else "unknown"


def account(text: str, used: Tokens, price: Cost) -> Account:
    """Gives the account of a run of two tasks in which every word of others is the same."""
    tasks = [
        TaskReport("a", "failed", text, text, kept=text, title=text, check=text, region=text, needs=("b",)),
        TaskReport(text, "blocked", reason=text, title=text, needs=("a", "a", "x")),
    ]
    line = AttemptLine("a", text, text, text, text, text, "died", text, 5, 9, None, 1, 0, None, used, price)
    share = Share(text, 1, 0, 0.0, used, price)
    run = Summary("r", text, text, text, "died", 1, 1, 1, 0, 4.0, 0.0, tasks, 1, text, text, text, "goal", text, text)
    return Account(run, 12, [line], [], [share], [share], share, {"a": [text]})


@pytest.mark.parametrize("text", [EVIL, "\x00\x1b[31m\ud800\ufffe\u2028", "- x\n# y\n1. z\n```\n> q", "</title></svg>"])
def test_words_of_others_stay_words(text: str) -> None:
    made = account(text, UNKNOWN, Cost(None, "*"))
    page = html.page(made)
    found = Page(page)
    assert {"script", "img", "a", "iframe", "link", "object", "b"}.isdisjoint(found.tags)
    assert not [one for one in found.attributes if one[1] in ("src", "href", "style") or one[1].startswith("on")]
    assert "url(" not in page and "@import" not in page and "default-src 'none'" in page
    assert found.tables["Tasks"][1][1] == words.one_line(text)
    assert not re.search("[\x00-\x08\x0e-\x1f\u202a-\u202e\ud800-\udfff]", page)
    text_of = markdown.page(made)
    page.encode(), text_of.encode()
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", re.sub(r"```sh\n.*?\n```", "", text_of, flags=re.S))
    assert not re.search(r"(?<!\\)(<|!\[|\]\()", outside)
    assert len([line for line in text_of.split("\n") if line.startswith("## ")]) == text_of.count("\n## ")
    rows = [line for line in text_of.split("\n") if line.startswith("| a |")]
    assert rows and all(len(re.split(r"(?<!\\)\|", row)) == len(re.split(r"(?<!\\)\|", rows[0])) for row in rows[:1])
    assert read(text_of)[0]["Tasks"][1][1] == words.one_line(text)


def test_devflock_A7_what_is_unknown_is_never_nothing() -> None:
    lost = markdown.page(account("x", UNKNOWN, Cost(None, "*")))
    facts = read(lost)[1]
    assert (facts["tokens"], facts["cost"], facts["agents ran for"]) == ("unknown", "unknown", "unknown")
    some = Tokens({"input_tokens": 3}) + UNKNOWN
    assert (words.count(some), words.money(Cost(0.25) + Cost(None, "*"))) == ("*3", "*$0.2500")
    assert words.money(Cost(0.25) + Cost(0.5, "≈")) == "≈$0.7500"
    assert (words.count(NONE), words.money(NOTHING), words.count(NONE + UNKNOWN)) == ("0", "$0.0000", "unknown")
    assert words.count(Tokens({"output_tokens": 2, "reasoning_tokens": 2})) == "2"


def test_the_graph_puts_every_task_behind_what_it_needs_and_none_on_another() -> None:
    needs = {"a": (), "b": ("a",), "c": ("a", "x"), "d": ("b", "c"), "e": (), "f": ("e", "d"), "g": ("h",), "h": ("g",)}
    tasks = [TaskReport(name, "landed", needs=them) for name, them in needs.items()]
    places = svg._places(tasks)
    assert len(set(places.values())) == len(tasks)
    for name in "abcdef":
        assert all(places[need][0] < places[name][0] for need in needs[name] if need in places)
    long = [TaskReport(f"t{n}", "landed", needs=(f"t{n - 1}",) if n else ()) for n in range(5000)]
    assert svg._places(long)["t4999"][0] > svg._places(long)["t4998"][0]


def test_a_report_of_no_run_is_no_report(runs: Runs) -> None:
    assert runs.rw("runs", "report", "nothing")["error"]["code"] == "E_NOT_FOUND"
    assert runs.rw("runs", "report", "nothing", "--format", "pdf")["error"]["code"] == "E_INVALID"
