"""The list of findings agrees with the tests: each is held by one with its name, or says why not."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
_ROW = re.compile(r"^\| ([ASLFBRPG]\d+|devflock [ABC]\d+) \| ([^|]+) \| ([^|]*) ?\|$", re.MULTILINE)
_NAME = re.compile(r"^ *(?:async )?def test_((?:devflock_[ABC]\d+_|[ASLFBRPG]\d+_)+)", re.MULTILINE | re.IGNORECASE)
_ID = re.compile(r"(devflock_)?([A-Z]\d+)_", re.IGNORECASE)


def listed() -> dict[str, str]:
    """Gives id to what the last column says."""
    rows = _ROW.findall((TESTS / "findings/INDEX.md").read_text(encoding="utf-8"))
    assert len({row[0] for row in rows}) == len(rows), "an id is listed twice"
    return {oid: words.strip() for oid, _, words in rows}


def named() -> set[str]:
    """Gives the ids that names of tests begin with."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for ids in _NAME.findall(text):
            found.update(f"{'devflock ' if of else ''}{oid.upper()}" for of, oid in _ID.findall(ids))
    return found


def test_every_finding_is_listed_in_order() -> None:
    ids = list(listed())
    assert [i for i in ids if i[0] == "A"] == [f"A{n}" for n in range(1, 44)]
    cases = [int(i[1:]) for i in ids if i[0] == "S"]
    assert cases == sorted(cases) and len(cases) == 33
    lanes = [int(i[1:]) for i in ids if i[0] == "L"]
    assert lanes == sorted(lanes) and len(lanes) == 27
    assert [i for i in ids if i[0] == "G"] == [f"G{n}" for n in range(1, 26)]
    assert [i for i in ids if i[0] == "F"] == [f"F{n}" for n in range(1, 30)]
    boards = [int(i[1:]) for i in ids if i[0] == "B"]
    assert boards == sorted(boards) and len(boards) == 16
    assert [i for i in ids if i[0] == "R"] == [f"R{n}" for n in range(1, 27)]
    planners = [int(i[1:]) for i in ids if i[0] == "P"]
    assert planners == sorted(planners) and len(planners) == 6
    statements = [f"devflock {kind}{n}" for kind, most in (("A", 7), ("B", 28), ("C", 11)) for n in range(1, most + 1)]
    assert [i for i in ids if i.startswith("devflock")] == statements


def test_each_is_held_by_a_test_with_its_name_or_says_why_not() -> None:
    tests = named()
    wrong = []
    for oid, words in listed().items():
        how, _, rest = words.partition(": ")
        if how in ("", "part"):
            good = oid in tests and (rest != "" or how == "")
        elif how == "later":
            good = oid not in tests and rest != ""
        else:
            good = how in ("held", "measured") and (TESTS.parent / rest).is_file()
        if not good:
            wrong.append(f"{oid}: {words or 'no test has its name'}")
    assert not wrong, wrong


def test_no_test_names_an_id_that_is_not_listed() -> None:
    assert named() - set(listed()) == set()
