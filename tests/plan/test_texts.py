"""Role cards, prompts, packets' texts and estimates."""

from __future__ import annotations

import re

import pytest

from ropewalk.core.errors import InvalidError, NotFoundError
from ropewalk.plan.estimate import Figure, Past, Total, estimate
from ropewalk.plan.packets import ROLES, Packet, contracts, from_task, parse, sections, to_task, write
from ropewalk.plan.rolecards import Governing, card, compose, reply_form
from ropewalk.plan.task import Task


@pytest.mark.parametrize("role", ROLES)
def test_each_role_has_a_card_of_half_a_page(role: str) -> None:
    text = card(role)
    assert text.startswith(f"# {role}\n") and text == card(role.lower())
    assert list(sections(text)) == ["You may", "You must not", "How you reply"]
    assert all(len(re.findall(r"^- ", part, re.MULTILINE)) >= 2 for part in list(sections(text).values())[:2])
    assert reply_form(role) and "```" not in reply_form(role)
    assert 15 <= text.count("\n") <= 32 and all(len(line) <= 120 for line in text.split("\n"))


def test_what_is_no_role_is_told() -> None:
    with pytest.raises(NotFoundError, match="no role 'Boss'"):
        card("Boss")


PACKET = Packet("a", "Builder", "build", "m", owns=("src/*.py",), gate="make test", body="# Title\n\nDo it.\n")
DECISIONS = [Governing("D2", "two", ("src/**",), "Say so."), Governing("D1", "one", ("doc/**",), "Otherwise.")]


def test_a_prompt_has_its_parts_in_order_and_the_same_hash_each_time() -> None:
    prompt = compose(PACKET, rules={"b.md": "B rule", "a.md": "A rule"}, decisions=DECISIONS, contract="f(x)")
    marks = re.findall(r"^<!-- (.*) -->$", prompt.text, re.MULTILINE)
    assert marks == ["role", "rules a.md", "rules b.md", "decision D2", "contract", "task a"]
    assert (
        "Has to pass: `make test`" in prompt.text and "STATUS: done" in prompt.text and "Otherwise" not in prompt.text
    )
    assert prompt == compose(PACKET, rules={"a.md": "A rule\n", "b.md": "B rule  \n"}, decisions=DECISIONS,
                             contract="f(x)\n")  # fmt: skip
    assert prompt.hash != compose(PACKET, decisions=DECISIONS, contract="f(y)").hash and len(prompt.hash) == 64


def test_comments_of_a_template_change_nothing() -> None:
    text = """---
id: a            # the name
role: Builder
owns:            # what it writes alone
  - src/a.py     # the file
  # - src/b.py
  - "c # d"
reads: ["x, y", z]   # both
gate: grep '#x' "a#b" && make   # run
---
body # stays
"""
    packet = parse(text)
    assert packet.owns == ("src/a.py", "c # d") and packet.reads == ("x, y", "z")
    assert packet.gate == "grep '#x' \"a#b\" && make" and packet.body == "body # stays\n"


@pytest.mark.parametrize(("text", "words"), [
    ("id: a", "no front matter"), ("---\nid: a", "no end"), ("---\nrole: Builder\n---\n", "no id"),
    ("---\nid: a\nid: b\n---\n", "stands twice"), ("---\nid: a\nowner: b\n---\n", "no field"),
    ("---\nid: a\nowns: src/a.py\n---\n", "is a list"), ("\0", "NUL"),
])  # fmt: skip
def test_a_packet_of_another_form_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        parse(text)


def test_packets_and_tasks_are_one_thing() -> None:
    task = Task("a", "make test", "Do the thing.", "The thing", needs=("b",), owns=("x/",), role="Builder", model="m")
    packet = from_task(task, reads=("y",), final_reply="STATUS")
    assert parse(write(packet)) == packet and packet.title == "The thing"
    back = to_task(packet, {"module": "core"})
    assert (back.needs, back.owns, back.check, back.title, back.module) == (
        ("b",),
        ("x/",),
        "make test",
        "The thing",
        "core",
    )


def test_headings_inside_fences_are_none() -> None:
    body = "## Contracts (frozen)\n### a\n```\n## not one\n### nor this\n```\n### b\ny\n## Steps\n1."
    assert contracts(Packet("x", body=body)) == {"a": "```\n## not one\n### nor this\n```", "b": "y"}
    assert list(sections(body)) == ["Contracts (frozen)", "Steps"]


PAST = [Past("m", "build", tokens_in=1000.0 * n, tokens_out=100.0, seconds=60.0 * n) for n in (1, 2, 3)]


def price(model: str, tokens_in: float, tokens_out: float) -> float | None:
    return (tokens_in + 10 * tokens_out) / 1e6 if model == "m" else None


def test_an_estimate_says_what_it_is_based_on() -> None:
    got = estimate([Task("a", "make", model="m", class_="build")], PAST, price)
    one = got.tasks[0]
    assert (one.tokens_in.value, one.tokens_in.basis, one.tokens_in.count) == (2000.0, "model and class", 3)
    assert one.money.value == pytest.approx(0.003) and got.durations == {"a": 120.0}
    assert one.seconds.shown(" s") == "≈ 120 s (90 to 150; model and class, 3 tasks)"
    assert got.money.shown(" $").startswith("≈ 0.003 $")


def test_what_is_unknown_is_unknown_and_never_nothing() -> None:
    tasks = [Task("a", "make", model="m", class_="build"), Task("b", "make", model="other"), Task("c", "make")]
    got = estimate(tasks, PAST, price)
    assert got.tasks[1].money == Figure(why="other has no known price")
    assert got.tasks[1].tokens_in.basis == "all" and not got.tasks[2].money.known
    assert got.money.unknown == 2 and got.money.shown().startswith("at least ≈ 0.003")
    assert estimate(tasks, [], price).money == Total(None, None, None, 3)
    assert estimate(tasks, PAST[:2]).seconds.shown() == "unknown"
    assert estimate(tasks, [*PAST[:2], Past("m", "build")]).tasks[0].seconds.why
