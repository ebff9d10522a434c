"""Lands whose files get a second chance: the label, the trailer, the report, and when there is no chance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ropewalk.core.errors import ConflictError
from ropewalk.store.report import FileResolution, Resolution
from storekit import Kit, child_env, delete, put, rw

BASE = "import os\n\n\ndef a():\n    return 1\n"
ONE, TWO = BASE + "\n\ndef b():\n    return 2\n", BASE + "\n\ndef c():\n    return 3\n"
BOTH = ONE + "\n\ndef c():\n    return 3\n"


def conflict(kit: Kit, files: dict[str, tuple[str | None, str, str]]) -> str:
    """Makes files in conflict: lands the one side, and gives the changeset of the other."""
    kit.first(put("README", "x\n"), *(put(path, texts[0]) for path, texts in files.items() if texts[0] is not None))
    sides = [kit.commit(*(put(path, texts[n]) for path, texts in files.items())).changeset for n in (1, 2)]  # type: ignore[arg-type]
    kit.land(sides[0])
    return sides[1]


def test_a_land_says_which_files_the_structure_merged(kit: Kit) -> None:
    change = conflict(kit, {"a.py": (BASE, ONE, TWO), "é\n.py": (None, ONE, TWO)})
    code, answer = rw(kit.root, "land", change, "--json")
    assert code == 0, answer
    assert answer["result"]["merged_by"] == {"a.py": "structure", "é\n.py": "structure"}
    assert kit.text("a.py") == kit.text("é\n.py") == BOTH
    message = kit.stock("log", "-1", "--format=%B", "main")
    assert "\nRopewalk-Merged-By: structure a.py\n" in message
    assert 'Ropewalk-Merged-By: structure "é\\n.py"' in message
    trailers = kit.stock("log", "-1", "--format=%(trailers:key=Ropewalk-Merged-By,valueonly)", "main")
    assert trailers.splitlines()[0] == "structure a.py"
    kit.fsck()
    assert rw(kit.root, "verify", "--deep", "--json")[0] == 0


def test_the_same_land_comes_out_whichever_side_is_first(kit: Kit, tmp_path: Path) -> None:
    kit.land(conflict(kit, {"a.py": (BASE, ONE, TWO)}))
    other = Kit(str(tmp_path / "other"))
    other.land(conflict(other, {"a.py": (BASE, TWO, ONE)}))
    assert kit.text("a.py") == other.text("a.py") == BOTH
    other.close()


def test_one_expression_changed_by_both_is_a_conflict_that_says_why(kit: Kit) -> None:
    change = conflict(kit, {"a.py": (BASE, BASE.replace("1", "2"), BASE.replace("1", "3"))})
    code, answer = rw(kit.root, "land", change, "--json")
    assert code != 0 and answer["error"]["code"] == "E_CONFLICT"
    (file,) = answer["error"]["details"]["report"]["files"]
    assert file["refused_by"] == {"structure": "both sides changed 'a'"}
    assert file["hunks"][0]["ours"]["text"] == "    return 3\n"
    assert kit.text("a.py") == BASE.replace("1", "2")


def test_the_report_holds_what_the_structure_left_and_the_answer_no_more(kit: Kit) -> None:
    lines = ("line 1\n", "line 2\n", "line 3\n")
    change = conflict(kit, {"a.py": (BASE, ONE, TWO), "b.txt": lines})
    with pytest.raises(ConflictError) as caught:
        kit.land(change)
    report = caught.value.details["report"]
    assert [f["path"] for f in report["files"]] == ["b.txt"] and "refused_by" not in report["files"][0]
    done = kit.land(change, answer=Resolution(kit.main(), {"b.txt": FileResolution(take="ours")}))
    assert done.merged_by == {"a.py": "structure", "b.txt": "resolution"}
    assert kit.text("a.py") == BOTH and kit.text("b.txt") == "line 3\n"
    kit.fsck()


def test_an_answer_goes_before_the_structure(kit: Kit) -> None:
    change = conflict(kit, {"a.py": (BASE, ONE, TWO), "b.txt": ("line 1\n", "line 2\n", "line 3\n")})
    answer = Resolution(kit.main(), {"a.py": FileResolution(take="theirs"), "b.txt": FileResolution(take="ours")})
    assert kit.land(change, answer=answer).merged_by == "resolution"
    assert kit.text("a.py") == ONE


def test_switched_off_there_is_no_second_chance(kit: Kit) -> None:
    change = conflict(kit, {"a.py": (BASE, ONE, TWO)})
    code, answer = rw(kit.root, "land", change, "--json", ROPEWALK_MERGE_STRUCTURAL="false")
    assert code != 0 and "refused_by" not in answer["error"]["details"]["report"]["files"][0]
    code, answer = rw(kit.root, "land", change, "--json", ROPEWALK_MERGE_STRUCTURAL="perhaps")
    assert code != 0 and answer["error"]["code"] == "E_INVALID"
    code, answer = rw(kit.root, "land", change, "--json", ROPEWALK_MERGE_STRUCTURAL="on")
    assert code == 0 and answer["result"]["merged_by"] == {"a.py": "structure"}


def test_without_the_extra_the_conflict_is_git_s(kit: Kit) -> None:
    change = conflict(kit, {"a.py": (BASE, ONE, TWO)})
    # nothing below site-packages is taken away from the tests beside this one
    script = (
        "import sys, importlib.machinery as m\n"
        "from ropewalk.cli.main import main\n"
        "find = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = classmethod(lambda c, n, *a: None if n.startswith('tree_sitter') else find(n, *a))\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "land", change, "--json", "--store", kit.root],
        env=child_env(ROPEWALK_AGENT="a/b"), capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    answer = msgspec.json.decode(done.stdout)
    assert answer["error"]["code"] == "E_CONFLICT" and b"Traceback" not in done.stderr
    assert "refused_by" not in answer["error"]["details"]["report"]["files"][0]


def test_a_large_file_and_other_kinds_of_conflict_are_left(kit: Kit) -> None:
    long = "".join(f"def f{n}():\n    return {n}  # {'x' * 900}\n\n\n" for n in range(1200))
    change = conflict(kit, {"a.py": (long, long + ONE, long + TWO), "b.unknown": ("1\n", "2\n", "3\n")})
    with pytest.raises(ConflictError) as caught:
        kit.land(change)
    files = {f["path"]: f.get("refused_by") for f in caught.value.details["report"]["files"]}
    assert files == {"a.py": {"structure": "is larger than 1 MiB"}, "b.unknown": None}


def test_the_other_side_s_mode_stays(kit: Kit) -> None:
    kit.first(put("a.py", BASE))
    one = kit.commit(put("a.py", ONE, mode="100755")).changeset
    two = kit.commit(put("a.py", TWO)).changeset
    kit.land(one)
    assert kit.land(two).merged_by == {"a.py": "structure"}
    assert kit.files()[b"a.py"][0] == b"100755" and kit.text("a.py") == BOTH


def test_a_renamed_file_is_merged_where_it_went(kit: Kit) -> None:
    long = BASE + "".join(f"\n\ndef f{n}():\n    return {n}\n" for n in range(20))
    kit.first(put("a.py", long))
    one = kit.commit(delete("a.py"), put("new.py", long + "\n\ndef y():\n    pass\n")).changeset
    two = kit.commit(put("a.py", long + "\n\ndef z():\n    pass\n")).changeset
    kit.land(one)
    done = kit.land(two)
    assert done.merged_by == {"new.py": "structure"}
    assert kit.text("new.py") == long + "\n\ndef y():\n    pass\n\n\ndef z():\n    pass\n"
    assert set(kit.files()) == {b"new.py"}


def test_a_rebase_gets_the_second_chance_too(kit: Kit) -> None:
    change = conflict(kit, {"a.py": (BASE, ONE, TWO)})
    code, answer = rw(kit.root, "rebase", change, "--onto", "main", "--json")
    assert code == 0, answer
    assert kit.text("a.py", answer["result"]["changeset"]) == BOTH


def test_a_merger_that_dies_or_hangs_leaves_the_conflict(kit: Kit) -> None:
    from ropewalk.store import merge
    from ropewalk.store.structure.chance import second_chance

    change = conflict(kit, {"a.py": (BASE, ONE, TWO)})
    objects = kit.store.objects
    trees = [objects.commit(c).tree for c in (kit.stock("rev-parse", "main~1"), change, kit.main())]
    merged = merge.merge(objects, *trees)
    assert second_chance(kit.store, merged).clean
    late = second_chance(kit.store, merged, seconds=0.001)
    assert not late.clean and late.refused == ((b"a.py", "the merge did not end within 0.001 s"),)
    assert late.tree == merged.tree


def test_a_land_prepared_under_the_lock_gets_a_shorter_chance(kit: Kit) -> None:
    from ropewalk.store import land

    change = conflict(kit, {"a.py": (BASE, ONE, TWO)})
    req = land.request(agent="a/b", change=change, ref="refs/heads/main")
    with kit.store.lock_held():
        made = land.prepare(kit.store, req, kit.main(), 8.0)
    assert made.by == {"a.py": "structure"}


def test_nothing_is_imported_from_the_caller_s_folder(kit: Kit, tmp_path: Path) -> None:
    change = conflict(kit, {"a.py": (BASE, ONE, TWO)})
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("tree_sitter.py", "tree_sitter_python.py", "msgspec.py", "ropewalk.py"):
        (trap / name).write_text("open('sprung', 'w').close()\nraise SystemExit(9)\n")
    # the command itself is started safely; what it starts must be as safe
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ropewalk.cli.main", "land", change, "--json", "--store", kit.root],
        cwd=trap, env=child_env(ROPEWALK_AGENT="a/b"), capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert msgspec.json.decode(done.stdout)["result"]["merged_by"] == {"a.py": "structure"}
    assert not (trap / "sprung").exists()


def test_the_setting_is_shown(kit: Kit) -> None:
    for text, value in (("false", False), ("1", True)):
        code, answer = rw(kit.root, "config", "show", "--json", ROPEWALK_MERGE_STRUCTURAL=text)
        rows = {row["name"]: row for row in answer["result"]["settings"]}
        assert code == 0 and rows["merge.structural"]["value"] is value


def test_the_operator_switches_it_off(kit: Kit) -> None:
    change = conflict(kit, {"a.py": (BASE, ONE, TWO)})
    policy = Path(kit.root) / "ropewalk.toml"
    policy.write_text("[merge]\nstructural = false\n")
    assert rw(kit.root, "land", change)[1]["error"]["code"] == "E_CONFLICT"
    policy.write_text("[merge]\nstructural = 'no'\n")
    assert rw(kit.root, "land", change)[1]["error"]["code"] == "E_INVALID"
    policy.write_text("[merge]\nstructural = true\n")
    assert rw(kit.root, "land", change)[1]["result"]["merged_by"] == {"a.py": "structure"}
