"""Checks that say nothing: lines for the shell that pass (or fail) whatever the tree holds, told from their text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

PASS, FAIL, QUIT_PASS, QUIT_FAIL = "p", "f", "P", "F"
"""Are the ends of a command: it passed, it failed, or it left the shell with one or the other."""
_EITHER = frozenset((PASS, FAIL))


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ALWAYS = _set("""
    true : echo printf pwd date sleep export set umask alias unset local readonly whoami uname env hostname
    yes clear
""")
_SINKS = _set("""
    cat tee head tail wc sort uniq tr less more true : echo printf xargs
""")
_BUILTINS = _set("""
    alias bg break builtin caller cd command continue declare dirs echo eval exec exit export false fg getopts
    hash jobs kill let local popd printf pushd pwd read readonly return set shift shopt source test times trap
    true type ulimit umask unalias unset wait : . [ [[ ((
""")
_KEYWORDS = _set("""
    if then else elif fi for while until do done case esac in function select
""")
_WRAPPERS = _set("""
    command exec time nohup nice builtin ionice setsid sudo stdbuf chronic
""")
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_OPERATORS = ("&&", "||", ";;", "|&", ";", "&", "|", "(", ")", "\n")
_REDIRECTED = re.compile(r"\d*(?:<<<|<<-?|>>|>&|<&|>\||&>>|&>|<>|<|>)")
_MOST = 20_000
"""Is how long a line may be that is looked into."""
_UNREAD = re.compile(r"-+[abd-zA-Z][\w=-]*\Z|-?\d+\Z")
"""Is an argument that names no input; `-c` of sort tells whether it is sorted."""
_NOTHING = re.compile(r"(?:pass|exit\(0?\)|quit\(\)|print\([^()]*\)|import sys; *sys\.exit\(0?\)|None|\d*|\.\.\.)?;?\Z")


class _Word(NamedTuple):
    """Is a piece of a line: an operator, or a word without its quotes; `plain` words hold nothing that expands."""

    text: str
    operator: bool = False
    plain: bool = True
    quoted: bool = False


@lru_cache(maxsize=4096)
def fault(check: str) -> str:
    """Gives why a check says nothing, empty when it may tell good from bad."""
    ends = _ends(list(_words(check)), 0) if len(check) <= _MOST else None
    if ends is None:
        return ""
    if ends <= {PASS, QUIT_PASS}:
        return "it passes whatever the tree holds"
    if ends <= {FAIL, QUIT_FAIL}:
        return "it fails whatever the tree holds"
    return ""


@lru_cache(maxsize=4096)
def programs(check: str) -> tuple[str, ...]:
    """Gives the programs that a check starts by name: no built-ins, no paths, none whose name a variable gives."""
    found: list[str] = []
    for command in _commands(list(_words(check)) if len(check) <= _MOST else []):
        words, _ = _bare(command)
        if not words or not words[0].plain:
            continue
        name = words[0].text
        known = name in _BUILTINS or name in _KEYWORDS or name in ("{", "}", "!")
        if name and not known and "/" not in name and name.isprintable() and name not in found:
            found.append(name)
    return tuple(found)


def _words(line: str) -> Iterator[_Word]:
    at, end = 0, len(line)
    while at < end:
        character = line[at]
        if character in " \t\r":
            at += 1
            continue
        if character == "#":
            at = line.find("\n", at)
            if at < 0:
                return
            continue
        redirected = _REDIRECTED.match(line, at)
        if redirected is not None:
            at = redirected.end()
            while at < end and line[at] in " \t":
                at += 1
            at = _word(line, at)[1]
            continue
        operator = next((o for o in _OPERATORS if line.startswith(o, at)), None)
        if operator is not None:
            yield _Word(";" if operator == "\n" else operator, True)
            at += len(operator)
            continue
        word, at = _word(line, at)
        yield word


def _word(line: str, at: int) -> tuple[_Word, int]:
    text, plain, quoted, start = [], True, False, at
    while at < len(line):
        character = line[at]
        if character == "'":
            stop = line.find("'", at + 1)
            stop = len(line) if stop < 0 else stop
            text.append(line[at + 1 : stop])
            at, quoted = stop + 1, True
        elif character == '"':
            at, quoted = at + 1, True
            while at < len(line) and line[at] != '"':
                plain = plain and line[at] not in "$`"
                at += line[at] == "\\" and at + 1 < len(line)
                text.append(line[at])
                at += 1
            at += 1
        elif character == "\\":
            text.append(line[at + 1 : at + 2])
            at, quoted = at + 2, True
        elif character == "`" or line.startswith("$(", at):
            plain = False
            stop = _closing(line, at)
            text.append(line[at:stop])
            at = stop
        elif character in " \t\r\n;&|()<>" and at > start:
            break
        else:
            plain = plain and character not in "$*?["
            text.append(character)
            at += 1
    return _Word("".join(text), False, plain or "".join(text) in ("[", "[["), quoted), at


def _closing(line: str, at: int) -> int:
    if line[at] == "`":
        stop = line.find("`", at + 1)
        return len(line) if stop < 0 else stop + 1
    depth = 0
    for place in range(at + 1, len(line)):
        depth += (line[place] == "(") - (line[place] == ")")
        if not depth:
            return place + 1
    return len(line)


def _commands(words: Sequence[_Word]) -> Iterator[list[_Word]]:
    one: list[_Word] = []
    for word in words:
        if word.operator or (word.text in ("{", "}", "!", *_KEYWORDS) and not word.quoted and not one):
            if one:
                yield one
            one = []
        else:
            one.append(word)
    if one:
        yield one


def _ends(words: Sequence[_Word], depth: int) -> frozenset[str] | None:
    """Gives how a list of commands may end; None for what is not understood here (loops, conditions, functions)."""
    if depth > 8 or any(w.text in _KEYWORDS and not w.quoted and _begins(words, n) for n, w in enumerate(words)):
        return None
    ends, strict, pipefail, negated = frozenset({PASS}), False, False, False
    joint, at = ";", 0
    while at < len(words):
        pipeline: list[frozenset[str]] = []
        negated = False
        while at < len(words) and words[at].text == "!" and not words[at].quoted:
            negated, at = not negated, at + 1
        background = False
        while True:
            opened = words[at].text if at < len(words) and not words[at].quoted else ""
            if opened in ("(", "{"):
                stop = _group(words, at)
                inner = _ends(words[at + 1 : stop], depth + 1)
                if inner is None:
                    return None
                pipeline.append(_left(inner) if opened == "(" else inner)
                at = stop + 1
            else:
                start = at
                while at < len(words) and not words[at].operator:
                    at += 1
                command = list(words[start:at])
                found = _command(command, depth)
                if found is None:
                    return None
                told = [w.text for w in command]
                if told == ["exit"]:
                    found = frozenset({PASS: QUIT_PASS, FAIL: QUIT_FAIL}.get(e, e) for e in ends)
                if told[:1] == ["set"]:
                    strict = strict or any(re.match(r"-[a-zA-Z]*e", w) or w == "errexit" for w in told[1:])
                    pipefail = pipefail or "pipefail" in told
                pipeline.append(found)
            if at < len(words) and words[at].operator and words[at].text in ("|", "|&"):
                at += 1
                continue
            break
        result = _piped(pipeline, pipefail)
        if at < len(words) and words[at].text == "&" and words[at].operator:
            background = True
        if negated:
            swap = {PASS: FAIL, FAIL: PASS}
            result = frozenset(swap.get(e, e) for e in result)
        last = at >= len(words) or words[at].text not in ("&&", "||")
        if strict and last and not negated:
            result = frozenset(QUIT_FAIL if e == FAIL else e for e in result)
        ends = _joined(ends, joint, frozenset({PASS}) if background else result)
        joint = words[at].text if at < len(words) else ";"
        if joint not in (";", "&", "&&", "||", ";;"):
            return None
        at += 1
    return ends


def _begins(words: Sequence[_Word], at: int) -> bool:
    return at == 0 or words[at - 1].operator


def _group(words: Sequence[_Word], at: int) -> int:
    opened, closed = words[at].text, ")" if words[at].text == "(" else "}"
    depth = 0
    for place in range(at, len(words)):
        if not words[place].quoted:
            depth += (words[place].text == opened) - (words[place].text == closed)
        if not depth:
            return place
    return len(words)


def _left(ends: frozenset[str]) -> frozenset[str]:
    return frozenset({QUIT_PASS: PASS, QUIT_FAIL: FAIL}.get(e, e) for e in ends)


def _piped(parts: Sequence[frozenset[str]], pipefail: bool) -> frozenset[str]:
    if len(parts) == 1:
        return parts[0]
    last = _left(parts[-1])
    return last | {FAIL} if pipefail and any(FAIL in _left(p) for p in parts) else last


def _joined(before: frozenset[str], joint: str, after: frozenset[str]) -> frozenset[str]:
    left = before & {QUIT_PASS, QUIT_FAIL}
    goes_on = {"&&": PASS in before, "||": FAIL in before}.get(joint, bool(before - left))
    stays = {"&&": before & {FAIL}, "||": before & {PASS}}.get(joint, frozenset())
    return left | stays | (after if goes_on else frozenset())


def _bare(command: Sequence[_Word]) -> tuple[list[_Word], bool]:
    """Gives a command without assignments and without programs that only start another one."""
    words = list(command)
    wrapped = False
    while words:
        text = words[0].text
        if _ASSIGNED.match(text) and not words[0].quoted:
            words = words[1:]
        elif (text in _WRAPPERS and len(words) > 1) or (text == "env" and len(words) > 1):
            words, wrapped = _options(words[1:]), True
        elif text == "timeout" and len(words) > 2:
            words, wrapped = _options(words[1:])[1:], True
        else:
            break
    return words, wrapped


def _options(words: Sequence[_Word]) -> list[_Word]:
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        at += 1
    return list(words[at:])


def _command(command: Sequence[_Word], depth: int) -> frozenset[str] | None:
    words, _ = _bare(command)
    if not words:
        return frozenset({PASS})
    name, rest = words[0].text, words[1:]
    texts = [w.text for w in rest]
    if not words[0].plain:
        return _EITHER
    if name == "exit":
        code = texts[0] if texts else ""
        if not texts or not rest[0].plain:
            return frozenset({QUIT_PASS, QUIT_FAIL})
        return frozenset({QUIT_PASS if code.strip("0") == "" else QUIT_FAIL})
    if name == "false":
        return frozenset({FAIL})
    if name in _ALWAYS or (name in _SINKS and (name == "tee" or all(_UNREAD.match(t) for t in texts))):
        return frozenset({PASS})
    if name in ("sh", "bash", "dash", "zsh", "eval") and (inner := _script(name, rest)) is not None:
        found = _ends(list(_words(inner)), depth + 1)
        return None if found is None else _left(found)
    if name in ("test", "[", "[["):
        return _tested([w for w in rest if w.text not in ("]", "]]")])
    if re.match(r"(?:python|pypy)[0-9.]*\Z", name) and len(texts) == 2 and texts[0] == "-c":
        return frozenset({PASS}) if _NOTHING.match(texts[1].strip()) else _EITHER
    if name in ("node", "ruby", "perl") and len(texts) == 2 and texts[0] == "-e":
        return frozenset({PASS}) if not texts[1].strip() or texts[1].strip().isdigit() else _EITHER
    if texts and all(t in ("--version", "--help", "-version", "-V") for t in texts):
        return frozenset({PASS})
    return _EITHER


def _script(name: str, rest: Sequence[_Word]) -> str | None:
    if name == "eval":
        return " ".join(w.text for w in rest) if rest and all(w.plain for w in rest) else None
    if len(rest) >= 2 and re.match(r"-[a-z]*c\Z", rest[0].text) and rest[1].plain:
        strict = "set -e;" if "e" in rest[0].text else ""
        return strict + rest[1].text
    return None


def _tested(words: Sequence[_Word]) -> frozenset[str]:
    if not all(w.plain for w in words):
        return _EITHER
    texts = [w.text for w in words]
    if len(texts) <= 1:
        return frozenset({PASS if texts and texts[0] else FAIL})
    if len(texts) == 2 and texts[0] in ("-n", "-z"):
        return frozenset({PASS if bool(texts[1]) == (texts[0] == "-n") else FAIL})
    if len(texts) == 3 and texts[1] in ("=", "==", "!=", "-eq", "-ne", "-lt", "-le", "-gt", "-ge"):
        one, sign, other = texts
        same = one == other
        if sign in ("=", "==", "-eq") or sign in ("!=", "-ne"):
            return frozenset({PASS if same == (sign in ("=", "==", "-eq")) else FAIL})
        try:
            a, b = int(one), int(other)
        except ValueError:
            return frozenset({FAIL})
        return frozenset({PASS if {"-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}[sign] else FAIL})
    return _EITHER
