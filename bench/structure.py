"""How the structural merge does on conflicts made of real changes, with what people wrote as the answer.

Two releases of a published package give a file's old and new text. One place of the difference is cut in two, between
two lines of its least indentation; one side gets the first part, the other the second, and all other places go to one
side or the other by chance. Where git's merge of the two is in conflict though all four texts parse, the conflict has
a known answer: the new release's text. The merge's outcome is `exact` (these bytes), `equivalent` (the same
declarations, where the language leaves their order open, or other blank lines), `declined`, or `wrong`: anything else.

    python bench/structure.py --archives DIR     # fetches releases with pip, npm and apt-get, then measures

The cut knows nothing of declarations, and equivalence is judged by Python's own `ast`, `json` and `tomllib`, and by
the grammars alone for the rest.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from common import ROOT, environment

if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))

from ropewalk.store.structure.languages import Language, language_of
from ropewalk.store.structure.merging import merge
from ropewalk.store.structure.units import Declined, parse

MAX_BYTES, PER_FILE = 150_000, 4
SUITES = ("bookworm", "bookworm-backports", "trixie", "sid")
SOURCES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("pip", ("flask==2.0.3", "flask==2.2.5", "flask==2.3.3", "flask==3.0.3", "flask==3.1.1")),
    ("pip", ("rich==12.6.0", "rich==13.5.3", "rich==13.9.4", "rich==14.2.0")),
    ("pip", ("werkzeug==2.0.3", "werkzeug==2.2.3", "werkzeug==3.0.6", "werkzeug==3.1.3")),
    ("pip", ("hypothesis==6.60.0", "hypothesis==6.90.0", "hypothesis==6.120.0")),
    ("pip", ("setuptools==65.7.0", "setuptools==69.5.1", "setuptools==75.8.2")),
    ("pip", ("networkx==2.8.8", "networkx==3.1", "networkx==3.3")),
    ("pip", ("pybind11==2.9.2", "pybind11==2.11.1", "pybind11==2.13.6")),
    ("npm", ("rxjs@7.0.1", "rxjs@7.4.0", "rxjs@7.5.7", "rxjs@7.8.2")),
    ("npm", ("zod@4.0.17", "zod@4.1.13", "zod@4.3.0", "zod@4.5.0", "zod@4.6.7")),
    ("npm", ("three@0.150.1", "three@0.160.1", "three@0.170.0", "three@0.180.0")),
    ("npm", ("eslint@8.57.1", "eslint@9.10.0", "eslint@9.20.0", "eslint@10.0.0", "eslint@10.10.0")),
    ("npm", ("webpack@5.75.0", "webpack@5.88.2", "webpack@5.97.1", "webpack@5.105.0")),
    ("npm", ("@types/node@18.19.0", "@types/node@20.19.0", "@types/node@22.10.0", "@types/node@24.0.0")),
    ("npm", ("node-addon-api@4.3.0", "node-addon-api@7.1.1", "node-addon-api@8.5.0")),
    ("npm", ("react-native@0.66.5", "react-native@0.68.7", "react-native@0.70.15", "react-native@0.72.17")),
    ("npm", ("react-native-svg@12.5.1", "react-native-svg@13.14.1", "react-native-svg@15.11.2")),
    ("npm", ("cordova-android@9.1.0", "cordova-android@11.0.0", "cordova-android@13.0.0")),
    ("apt", ("golang-1.19-src", "golang-1.21-src", "golang-1.23-src", "golang-1.24-src", "golang-1.26-src")),
    ("apt", ("librust-tokio-dev=1.24*", "librust-tokio-dev=1.43*", "librust-tokio-dev=1.53*")),
    ("apt", ("librust-clap-builder-dev=4.0*", "librust-clap-builder-dev=4.5*", "librust-clap-builder-dev=4.6*")),
    ("apt", ("rust-src=1.63*", "rust-src=1.85*", "rust-src=1.97*")),
)  # fmt: skip


class Case(NamedTuple):
    """Is one conflict: where it is from, its three versions, and what people wrote; `added` if nothing old was cut."""

    package: str
    path: str
    base: bytes
    ours: bytes
    theirs: bytes
    answer: bytes
    added: bool


# releases


def fetch(archives: Path) -> Iterator[tuple[str, list[Path]]]:
    """Gives each package with the folders of its releases, oldest first; fetches what is not there yet."""
    archives.mkdir(parents=True, exist_ok=True)
    for kind, releases in SOURCES:
        folders = []
        for release in releases:
            folder = archives / re.sub(r"[^\w.=-]", "_", release)
            if not folder.exists() and not _fetch_one(kind, release, folder, archives):
                print(f"not to be had: {release}", file=sys.stderr)
                continue
            folders.append(folder)
        yield re.split(r"==|=|(?<=.)@|-1", releases[0])[0], folders


def _fetch_one(kind: str, release: str, folder: Path, archives: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=archives) as work:
        argv = {
            "pip": [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", release],
            "npm": ["npm", "pack", "--silent", release],
            "apt": ["apt-get", *_apt(archives), "-q", "download", release],
        }[kind]
        done = subprocess.run(argv, cwd=work, capture_output=True, timeout=600)
        found = [f for f in Path(work).iterdir() if f.is_file()]
        if done.returncode or not found:
            return False
        out = Path(work, "out")
        if kind == "pip":
            zipfile.ZipFile(found[0]).extractall(out)
        elif kind == "npm":
            tarfile.open(found[0]).extractall(out, filter="data")
        else:
            subprocess.run(["dpkg-deb", "-x", str(found[0]), str(out)], check=True, timeout=600)
        out.rename(folder)
    return True


def _apt(archives: Path) -> list[str]:
    """Gives the options of an apt-get of its own that knows more than one suite of Debian."""
    home = (archives / "apt").resolve()
    options = [f"Dir::Etc::SourceList={home}/sources.list", "Dir::Etc::SourceParts=/dev/null",
               f"Dir::State::lists={home}/lists", f"Dir::Cache={home}/cache", "APT::Sandbox::User=root"]  # fmt: skip
    argv = [word for option in options for word in ("-o", option)]
    if not home.exists():
        for folder in ("lists/partial", "cache/archives/partial"):
            (home / folder).mkdir(parents=True)
        key = "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg"
        rows = [f"deb [{key}] http://deb.debian.org/debian {suite} main" for suite in SUITES]
        (home / "sources.list").write_text("\n".join(rows) + "\n", encoding="utf-8")
        subprocess.run(["apt-get", *argv, "-qq", "update"], check=True, timeout=600)
    return argv


def files(folder: Path) -> dict[str, Path]:
    """Gives the files of known languages by their path without version numbers."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not path.is_symlink() and language_of(name.encode()) and ".min." not in name:
            found[re.sub(r"\d+(\.\d+)+", "N", name)] = path
    return found


# conflicts


def cut(base: list[bytes], new: list[bytes], rng: random.Random) -> tuple[list[bytes], list[bytes], bool] | None:
    """Gives two sides whose changes together are the difference of two texts, and whether the cut place only adds."""
    places = [o for o in difflib.SequenceMatcher(None, base, new, autojunk=False).get_opcodes() if o[0] != "equal"]
    long = [n for n, (_, a, b, c, d) in enumerate(places) if (d - c) + (b - a) >= 2]
    if not long:
        return None
    chosen = rng.choice(long)
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    at = 0
    for number, (_, a, b, c, d) in enumerate(places):
        for side in sides:
            side += base[at:a]
        at = b
        if number != chosen:
            one = rng.random() < 0.5
            sides[not one].extend(new[c:d])
            sides[one].extend(base[a:b])
            continue
        split = rng.choice([c, d, *_stops(new, c, d)])
        middle = _answering(base, [a, *_stops(base, a, b), b], new[split] if split < d else b"", rng)
        first, second = (0, 1) if rng.random() < 0.5 else (1, 0)
        sides[first].extend(new[c:split] + base[middle:b])
        sides[second].extend(base[a:middle] + new[split:d])
    for side in sides:
        side += base[at:]
    return *sides, places[chosen][1] == places[chosen][2]


def _stops(lines: list[bytes], first: int, end: int) -> list[int]:
    """Gives where a person could have stopped: before lines that no line before or after them is less indented than.

    Elsewhere one side would get the end of a declaration and the other its head.
    """
    depth = [len(line) - len(line.lstrip()) for line in lines[first:end]]
    full = [n for n in range(first, end) if lines[n].strip()]
    least = min((depth[n - first] for n in full), default=0)
    return [n for n in full[1:] if depth[n - first] == least and depth[full[0] - first] == least and _opens(lines[n])]


def _answering(base: list[bytes], stops: list[int], line: bytes, rng: random.Random) -> int:
    """Gives the place of the old text that is most like a line of the new one, any when none is like it."""
    like = {n: difflib.SequenceMatcher(None, base[n], line).ratio() for n in stops[:-1] if n < len(base)}
    best = max(like, key=lambda n: like[n], default=stops[-1])
    return best if like.get(best, 0.0) > 0.5 else rng.choice(stops)


def _opens(line: bytes) -> bool:
    """Says whether a line is not the end of what began before it."""
    return not re.match(rb"\s*([]})]|end\b|else\b|elif\b|except\b|finally\b|catch\b|case\b)", line)


def conflicts_in_text(case: Case, folder: Path) -> bool:
    """Says whether git finds the case in conflict."""
    for name, text in (("ours", case.ours), ("base", case.base), ("theirs", case.theirs)):
        (folder / name).write_bytes(text)
    argv = ["git", "merge-file", "-p", "-q", "ours", "base", "theirs"]
    return subprocess.run(argv, cwd=folder, env=environment(), capture_output=True, timeout=60).returncode != 0


def cases(archives: Path, seed: int, limit: int) -> Iterator[Case]:
    """Gives the conflicts, at most `limit` of one package."""
    with tempfile.TemporaryDirectory() as work:
        for package, folders in fetch(archives):
            rng = random.Random(f"{seed} {package}")
            pairs = []
            for old, new in pairwise(folders):
                before, after = files(old), files(new)
                pairs += [(name, before[name], after[name]) for name in sorted(before.keys() & after.keys())]
            rng.shuffle(pairs)
            count = 0
            for name, one, two in pairs:
                if count >= limit:
                    break
                for case in _of_file(package, name, one.read_bytes(), two.read_bytes(), rng):
                    if conflicts_in_text(case, Path(work)):
                        count += 1
                        yield case


def _of_file(package: str, name: str, old: bytes, new: bytes, rng: random.Random) -> Iterator[Case]:
    language = language_of(name.encode())
    if language is None or old == new or max(len(old), len(new)) > MAX_BYTES or b"\r" in old + new:
        return
    if not _parses(language, old) or not _parses(language, new):
        return
    lines = (old.splitlines(keepends=True), new.splitlines(keepends=True))
    seen: set[tuple[bytes, bytes]] = set()
    for _ in range(PER_FILE * 2):
        sides = cut(*lines, rng)
        if sides is None:
            return
        ours, theirs = (b"".join(side) for side in sides[:2])
        if old in (ours, theirs) or ours == theirs or (ours, theirs) in seen:
            continue
        if not _parses(language, ours) or not _parses(language, theirs):
            continue
        seen.add((ours, theirs))
        yield Case(package, name, old, ours, theirs, new, sides[2])
        if len(seen) >= PER_FILE:
            return


def _parses(language: Language, data: bytes) -> bool:
    try:
        if language.name == "Python":
            warnings.simplefilter("ignore")
            compile(data, "x", "exec", dont_inherit=True)
        elif language.name == "JSON":
            json.loads(data)
        parse(language, data)
    except (Declined, SyntaxError, ValueError, RecursionError):
        return False
    return True


# judging

_HOLDS = re.compile(
    r"module|program|source_file|translation_unit|document|.*_body|declaration_list|field_declaration_list|block_mapping"
    r"|import_spec_list|named_imports|export_clause|use_list|interface_type|preproc_ifdef|table|object|stream|block_node"
)
_LOOSE = re.compile(
    r"import|export|function|method|class|interface|struct|enum|union|trait|impl_|mod_|const_|static_|type_|use_|preproc_"
    r"|namespace|template|pair|table|.*_spec|.*_specifier|.*_item|declaration|field_declaration|lexical|.*_signature"
    r"|constructor|decorated_definition|record|linkage|using|alias|identifier|block_mapping_pair|internal_module|string"
)


def canonical(node: Any) -> Any:
    """Gives a tree in which declarations between two statements have one order; comments go with what follows."""
    if node.type == "comment" or not node.children:
        return " ".join(node.text.decode("utf-8", "replace").split())
    parts: list[Any] = []
    run: list[Any] = []
    above: list[Any] = []
    holds = _HOLDS.fullmatch(node.type) or (node.type == "block" and node.parent.type == "class_definition")
    for child in node.children:
        if child.type in (",", ";"):
            continue
        if "comment" in child.type or child.type in ("attribute_item", "decorator"):
            above.append(canonical(child))
            continue
        one = (child.type, *above, canonical(child))
        above = []
        if holds and (_LOOSE.match(child.type) or _is_literal(child)):
            run.append(one)
        else:
            parts += [*sorted(run, key=repr), one]
            run = []
    return (node.type, *parts, *sorted(run, key=repr), *above)


def _is_literal(node: Any) -> bool:
    """Says whether a statement of Python gives a literal to a name."""
    inner = node.children[0] if node.type == "expression_statement" else None
    right = inner.child_by_field_name("right") if inner is not None and inner.type == "assignment" else None
    return right is not None and right.type in ("string", "integer", "float", "true", "false", "none")


class _Sorted(ast.NodeTransformer):
    """Gives Python's own tree with definitions and imports between two statements in one order."""

    inert = re.compile(
        r"property|.*method|.*cache.*|dataclass|.*contextmanager|overload|(pytest|functools|typing)\..*|.*\.setter"
    )
    loose = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)

    def _acts(self, node: ast.stmt) -> bool:
        """Says whether a decorator may do more than change what it stands above."""
        names = [ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in getattr(node, "decorator_list", [])]
        return not all(self.inert.fullmatch(name) for name in names)

    def visit(self, node: ast.AST) -> ast.AST:
        """Sorts one node's body and its names."""
        self.generic_visit(node)
        if isinstance(node, ast.Module | ast.ClassDef):
            out: list[ast.stmt] = []
            run: list[ast.stmt] = []
            for child in node.body:
                literal = isinstance(child, ast.Assign) and isinstance(child.value, ast.Constant)
                if literal or (isinstance(child, self.loose) and not self._acts(child)):
                    run.append(child)
                else:
                    out += [*sorted(run, key=ast.dump), child]
                    run = []
            node.body = [*out, *sorted(run, key=ast.dump)]
        elif isinstance(node, ast.ImportFrom | ast.Import):
            node.names.sort(key=ast.dump)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.List) and _is_exports(node.targets[0]):
            node.value.elts.sort(key=ast.dump)
        return node


def _is_exports(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id == "__all__"


def words(data: bytes) -> Counter[bytes]:
    """Gives the words and marks of a text, without commas and blanks."""
    return Counter(re.findall(rb"\w+|[^\w\s,]", data))


def equivalent(language: Language, one: bytes, two: bytes) -> bool:
    """Says whether two texts hold the same, up to the order of declarations and to blank lines."""
    if words(one) != words(two):
        return False
    if language.name == "JSON":
        return bool(json.loads(one) == json.loads(two))
    if language.name == "TOML":
        return tomllib.loads(one.decode()) == tomllib.loads(two.decode())
    if language.name == "Python":
        trees = [_Sorted().visit(ast.parse(text)) for text in (one, two)]
        if ast.dump(trees[0]) != ast.dump(trees[1]):
            return False
    roots = []
    for text in (one, two):
        grammar = importlib.import_module(language.module)
        library = importlib.import_module("tree_sitter")
        tree = library.Parser(library.Language(getattr(grammar, language.function)())).parse(text)
        if tree.root_node.has_error:
            return False
        roots.append(canonical(tree.root_node))
    return bool(roots[0] == roots[1])


def judge(case: Case) -> tuple[str, str, bytes]:
    """Gives a case's outcome, the reason of a refusal, and the result."""
    language = language_of(case.path.encode())
    assert language is not None
    try:
        result = merge(language, case.base, case.ours, case.theirs)
        other = merge(language, case.base, case.theirs, case.ours)
    except Declined as declined:
        return "declined", str(declined), b""
    if result != other:
        return "wrong", "the order of the sides counts", result
    if result == case.answer:
        return "exact", "", result
    if equivalent(language, result, case.answer):
        return "equivalent", "", result
    return "wrong", "", result


def table(rows: dict[str, Counter[str]]) -> str:
    """Gives the outcomes as a table."""
    out = ["| language | conflicts | exact | equivalent | declined | wrong |", "|---|---|---|---|---|---|"]
    total: Counter[str] = Counter()
    for name in sorted(rows):
        total += rows[name]
    for name, row in [*sorted(rows.items()), ("all", total)]:
        out.append(f"| {name} | {row.total()} | " + " | ".join(str(row[k]) for k in OUTCOMES) + " |")
    return "\n".join(out)


OUTCOMES = ("exact", "equivalent", "declined", "wrong")


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints the table; ends with 1 when a merge was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--archives", type=Path, required=True, help="where releases are kept")
    parser.add_argument("--limit", type=int, default=150, help="conflicts of one package")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the cases that are wrong")
    given = parser.parse_args(argv)
    rows: dict[str, Counter[str]] = {}
    packages: dict[str, Counter[str]] = {}
    places: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    spent = 0.0
    for case in cases(given.archives, given.seed, given.limit):
        language = language_of(case.path.encode())
        assert language is not None
        begun = time.perf_counter()
        outcome, reason, result = judge(case)
        spent += time.perf_counter() - begun
        rows.setdefault(language.name, Counter())[outcome] += 1
        packages.setdefault(case.package, Counter())[outcome] += 1
        places.setdefault("added by both" if case.added else "changed by both", Counter())[outcome] += 1
        if outcome == "declined":
            reasons[re.sub(r"(?s)(['\"]).*\1", "…", reason)] += 1
        if outcome == "wrong" and given.keep:
            folder = given.keep / f"{sum(r['wrong'] for r in rows.values()):03d}-{Path(case.path).name}"
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("base", "ours", "theirs", "answer"):
                (folder / name).write_bytes(getattr(case, name))
            (folder / "result").write_bytes(result)
            (folder / "about").write_text(f"{case.package} {case.path}\n{reason}\n", encoding="utf-8")
    print(table(rows))
    print()
    print(table(places).replace("| language |", "| place |"))
    print()
    print(table(packages).replace("| language |", "| package |"))
    print()
    for reason, count in reasons.most_common(20):
        print(f"{count:5d}  {reason}")
    total = sum(r.total() for r in rows.values())
    print(f"\n{total} conflicts, seed {given.seed}; git merges none of them; "
          f"{1000 * spent / max(1, total):.0f} ms a conflict, judged both ways round")  # fmt: skip
    return 1 if any(r["wrong"] for r in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
