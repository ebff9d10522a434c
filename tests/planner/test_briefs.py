"""What agents are told: cards, rules, decisions; and where rules and decisions come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.core.errors import InvalidError
from ropewalk.core.policy import Policy, RulesPolicy, parse
from ropewalk.plan import decisions
from ropewalk.plan.task import Task
from ropewalk.run.planner import briefs
from storekit import Kit, put

CENTS = "---\nstatus: accepted\ngoverns:\n  - shop/cart/**   # money\n---\n# Money is in cents\n\nNever floats.\n"
TASK = Task("one", "make test", "Teach the cart discounts.", owns=("shop/cart/",), role="Builder")


def test_a_brief_has_the_card_the_rules_and_the_decisions_that_govern(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Be kind.\n")
    mail = CENTS.replace("shop/cart/**", "shop/mail/**").replace("cents", "words")
    old = CENTS.replace("accepted", "superseded").replace("cents", "floats")
    kit.change(put("docs/decisions/001-cents.md", CENTS), put("docs/decisions/002-mail.md", mail),
               put("docs/decisions/003-old.md", old), put("docs/decisions/notes.md", "# Notes\n"))  # fmt: skip
    tree = kit.store.objects.commit(kit.main()).tree
    policy = Policy(str(tmp_path), rules=RulesPolicy(("AGENTS.md", "gone.md")))
    got = briefs.briefing(kit.store, tree, TASK, policy)
    for words in ("# Builder", "Be kind.", "Never floats.", "Teach the cart discounts.", "Has to pass: `make test`"):
        assert words in got.text
    assert "in words" not in got.text and "in floats" not in got.text
    assert got == briefs.briefing(kit.store, tree, TASK, policy) and len(got.hash) == 64
    assert briefs.rules(policy).texts == {"AGENTS.md": "Be kind.\n", "gone.md": None}
    bare = Task("two", "make", "Do it well.", role="the boss")
    assert "# Builder" not in briefs.brief(bare).text and "Do it well." in briefs.brief(bare).text


def test_decisions_are_read_linted_and_made() -> None:
    one, faults = decisions.parse("d/001-cents.md", CENTS)
    assert not faults and (one.id, one.title, one.governs) == ("001-cents", "Money is in cents", ("shop/cart/**",))
    assert decisions.touching([one], ["shop/cart/x.py"]) == [one] and not decisions.touching([one], ["shop/mail/"])
    files = {"d/a.md": CENTS, "d/b.md": CENTS.replace("accepted", "agreed"), "d/c.md": "---\nid: a\nbad\n---\n# C\n",
             "d/e.md": CENTS.replace("shop/cart/**", "/etc/**"), "d/f.md": "---\ngoverns: [x/**]\n"}  # fmt: skip
    found = {(f.path, f.severity, f.text) for f in decisions.lint(files, ["shop/cart/a.py"])}
    words = {path: " ".join(t for p, _, t in found if p == path) for path, _, _ in found}
    assert "d/a.md" not in words and "none of proposed" in words["d/b.md"] and "no field" in words["d/c.md"]
    assert "that of d/a.md" in words["d/c.md"] and "not a path" in words["d/e.md"] and "no end" in words["d/f.md"]
    name, text = decisions.new(decisions.next_number(["001-a.md", "012-b.md", "x.md"]), "One way!", ["src/**", "a # b"])
    assert name == "013-one-way.md" and decisions.parse(f"d/{name}", text)[0].governs == ("src/**", "a # b")


def test_the_policy_names_rules_and_decisions_inside_its_folder() -> None:
    got = parse(b'[rules]\nfiles = ["A.md"]\ndecisions = "docs/adr"\n', "/x")
    assert (got.folder, got.rules) == ("/x", RulesPolicy(("A.md",), "docs/adr"))
    for bad in (b'[rules]\nfiles = ["../A.md"]\n', b'[rules]\nfiles = "A.md"\n', b"[rules]\nother = 1\n"):
        with pytest.raises(InvalidError):
            parse(bad)
