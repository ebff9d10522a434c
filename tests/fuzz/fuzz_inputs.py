"""Bad input for every operation: a request that would do, and what spoils it.

An operation must be in `BASES`; the test fails for one that is not. `shape_only` operations are costly or start
processes when their request is right, so their input is always refused by its form, and what passes the form but
fails later is written out in `PASSES_FORM`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from ropewalk.operations.registry import Operation


class Base(NamedTuple):
    """Is a request that would do; `{main}`, `{old}`, `{blob}`, `{short}` in its texts are replaced by ids."""

    request: dict[str, Any]
    shape_only: bool = False


PUT = {"path": "d/new.txt", "content": {"inline": "new\n"}}
BASES: dict[str, Base] = {
    "init": Base({"dir": "fresh", "name": "n", "branch": "main"}, True),
    "info": Base({}),
    "whoami": Base({}),
    "verify": Base({"deep": True}, True),
    "repair": Base({"unblock": True}, True),
    "gc": Base({}, True),
    "derive status": Base({}),
    "derive run": Base({}, True),
    "backup": Base({"dir": "copy"}, True),
    "restore": Base({"dir": "copy"}, True),
    "commit": Base({"message": "m", "changes": [PUT], "parent": "main"}),
    "land": Base({"heads": ["{old}"], "onto": "main"}),
    "rebase": Base({"changeset": "{old}", "onto": "main"}),
    "blob put": Base({"contents": [{"inline": "x"}]}),
    "blob has": Base({"blobs": ["{blob}"]}),
    "blob get": Base({"blobs": ["{blob}"]}),
    "resolve": Base({"rev": "main"}),
    "cat": Base({"rev": "main", "path": "a.txt"}),
    "ls": Base({"rev": "main", "path": "d"}),
    "log": Base({"rev": "main"}),
    "show": Base({"rev": "main"}),
    "history": Base({"rev": "main", "path": "a.txt"}),
    "diff": Base({"old": "{old}", "new": "main"}),
    "blame": Base({"rev": "main", "path": "a.txt"}),
    "grep": Base({"pattern": "one", "rev": "main"}),
    "ref list": Base({"limit": 5}),
    "ref set": Base({"name": "side", "target": "main", "create": True}),
    "ref delete": Base({"name": "side", "expect": "{old}"}),
    "ref move": Base({"moves": [{"name": "other", "target": "main"}]}),
    "op log": Base({"limit": 5}),
    "op show": Base({"op": 1}),
    "op undo": Base({"op": 1}),
    "git import": Base({"source": "nowhere", "into": "imported"}, True),
    "git export": Base({"destination": "nowhere/out", "ref": "main"}, True),
    "ws create": Base({"name": "w"}, True),
    "ws list": Base({}),
    "ws status": Base({"name": "w"}),
    "ws land": Base({"name": "w"}),
    "ws rebase": Base({"name": "w"}),
    "ws delete": Base({"name": "w"}),
    "plan draft": Base({"spec": "spec.md", "into": "plan"}, True),
    "plan lint": Base({"folder": "plan"}),
    "plan refute": Base({"folder": "plan", "harness": "scripted"}, True),
    "plan estimate": Base({"folder": "plan"}),
    "plan expand": Base({"task": "one", "harness": "scripted"}, True),
    "plan show": Base({"folder": "plan", "workers": 2}),
    "adr new": Base({"title": "One way", "governs": ["src/**"]}, True),
    "adr touching": Base({"paths": ["src/a.py"]}),
    "adr lint": Base({}),
    "run": Base({"tasks": "tasks.json", "budget": 1.0, "max_tokens": 9}, True),
    "demo": Base({"sample": True}, True),
    "token create": Base({"name": "t", "holder": "a/b", "can": ["read"]}),
    "token list": Base({}),
    "token revoke": Base({"name": "t"}),
    "clone": Base({"url": "other.git", "into": "store2"}, True),
    "remote add": Base({"name": "origin", "url": "other.git"}),
    "remote remove": Base({"name": "origin"}),
    "remote list": Base({}),
    "fetch": Base({"remote": "origin"}, True),
    "push": Base({"remote": "origin", "ref": "main"}, True),
    "sync": Base({"remote": "origin"}, True),
    "sync status": Base({"remote": "origin"}),
    "pr open": Base({"ref": "main:topic", "remote": "origin", "via": "api"}, True),
    "pr status": Base({"ref": "main:topic", "remote": "origin", "via": "api"}, True),
    "ws info": Base({"name": "w"}),
    "ws diff": Base({"name": "w", "path": "a.txt"}),
    "ws radar": Base({"name": "w"}),
    "ws commit": Base({"name": "w", "message": "m"}),
    "ws discard": Base({"name": "w", "paths": ["a.txt"]}),
    "ws resolve": Base({"name": "w", "resolutions": {"against": "{main}", "files": {}}}),
    "ws materialize": Base({"name": "w", "prefixes": ["d"]}),
    "ws hook": Base({"action": "remove", "input": {"worktree_path": "w"}}),
    "ws snapshot": Base({"name": "w"}),
    "recover": Base({"workspace": "w"}),
    "trash list": Base({}),
    "trash restore": Base({"id": "w"}),
    "trash empty": Base({"days": 1}),
    "queue list": Base({"onto": "main"}),
    "queue show": Base({"entry": 1}),
    "queue cancel": Base({"entry": 1}),
    "runs list": Base({}),
    "runs show": Base({"id": "r"}),
    "runs resume": Base({"id": "r", "jobs": 1}, True),
    "runs stop": Base({"id": "r", "why": "w"}),
    "runs pause": Base({"id": "r", "why": "w", "seconds": 9}),
    "runs undo": Base({"id": "r", "check": "true"}),
    "runs report": Base({"id": "r", "format": "md"}),
    "watch": Base({"run": "r", "patience": 0.1}, True),
    "board init": Base({"url": "nowhere"}),
    "board scratch": Base({"dir": "new.git"}, True),
    "board drop": Base({"url": "nowhere"}),
    "task add": Base({"file": "tasks.json", "text": '[{"id": "t", "check": "true"}]'}),
    "task list": Base({"limit": 5}),
    "task show": Base({"task": "t"}),
    "task next": Base({}),
    "task cancel": Base({"task": "t"}),
    "task reopen": Base({"tasks": ["t"]}),
    "task retry": Base({}),
    "brief": Base({"task": "t"}),
    "claim": Base({"task": "t"}),
    "heartbeat": Base({"task": "t", "attempt": "att-w-123456"}),
    "work-started": Base({"task": "t", "attempt": "att-w-123456"}),
    "work-done": Base({"task": "t", "attempt": "att-w-123456"}),
    "judge": Base({"task": "t", "tree": "main"}),
    "return": Base({"task": "t", "attempt": "att-w-123456", "tree": "main"}),
    "verdict": Base({"task": "t", "attempt": "att-w-123456", "outcome": "fixed"}),
    "board probe": Base({"url": "nowhere"}, True),
    "board compact": Base({"days": 1}),
    "board restore": Base({"tasks": ["t"]}),
    "board evict": Base({"task": "t"}),
    "board sweep": Base({"task": "t"}),
    "board reconcile": Base({}),
    "board relabel": Base({}),
    "board divergence": Base({"target": "main"}),
    "board review": Base({"task": "t", "outcome": "agree"}),
    "board gate": Base({"task": "t", "n": 1}),
    "board audit": Base({"tasks": ["t"]}),
    "board attribution": Base({}),
    "board graph": Base({"kind": "needs", "form": "dot"}),
    "board durations": Base({}),
    "board timeline": Base({}),
    "board debug": Base({"task": "t"}),
    "metrics": Base({"files": ["events"], "dora": True}),
    "work": Base({"command": "cat", "once": True, "budget": 1.0, "max_tokens": 9}, True),
    "lane start": Base(
        {
            "name": "t",
            "prompt": "p",
            "command": "cat",
            "cage": "none",
            "class": "build",
            "budget": 1.0,
            "max_tokens": 9,
        },
        True,
    ),
    "lane list": Base({"limit": 5}),
    "lane show": Base({"lane": "r/t/1"}),
    "lane logs": Base({"lane": "r/t/1", "lines": 5}),
    "lane steer": Base({"lane": "r/t/1", "text": "t"}),
    "lane stop": Base({"lane": "r/t/1"}),
    "lane collect": Base({"lane": "r/t/1", "wait": 0}),
    "lane archive": Base({"lane": "r/t/1"}),
    "lane restore": Base({"lane": "r/t/1", "paths": ["a.txt"], "dry_run": True}),
    "setup": Base({"config": "nowhere"}, True),
    "doctor": Base({"for_": ["scripted"], "offline": True}, True),
    "probe": Base({"url": "http://127.0.0.1:1"}, True),
    "gateway status": Base({}),
    "import-run": Base({"dir": "fresh"}, True),
    "gateway swap": Base({"name": "a", "by": "b"}),
    "chip open": Base({"name": "c", "text": "t"}, True),
    "chip close": Base({"name": "c"}),
    "chip list": Base({}),
    "sweep": Base({"dry_run": True}),
    "board grant": Base({"task": "t", "attempt": "att-w-123456"}),
    "board hand-in": Base(
        {"host": "http://127.0.0.1:1", "task": "t", "attempt": "att-w-123456", "commit": "{old}", "grant": "g"}, True
    ),
    "fw protocol": Base({}),
    "fw brief": Base({"origin": ".", "task": "t"}),
    "fw claim": Base({"origin": ".", "task": "t", "worker": "w"}),
    "fw judge": Base({"task": "t", "tree": "main"}),
    "fw land": Base({"origin": ".", "task": "t", "att": "att-w-123456", "tree": "main"}),
    "fw verdict": Base({"origin": ".", "task": "t", "att": "att-w-123456", "oc_rc": 0, "pytest_rc": 0}),
    "fw renew": Base({"origin": ".", "task": "t", "att": "att-w-123456"}),
    "fw work-started": Base({"origin": ".", "task": "t", "att": "att-w-123456"}),
    "fw work-done": Base({"origin": ".", "task": "t", "att": "att-w-123456"}),
    "fw work-external": Base({"origin": ".", "task": "t", "att": "att-w-123456", "tree": "main"}),
    "fw list": Base({"state": "open"}),
    "fw next": Base({}),
    "fw add": Base({"tasks": '[{"id": "t", "check": "true"}]'}),
    "fw status": Base({"task": "t"}),
    "fw audit": Base({}),
    "fw review": Base({"task": "t", "outcome": "agree"}),
    "fw gate": Base({"task": "t"}),
    "schema": Base({"op": "land"}),
    "config show": Base({"origin": True}),
}

# passes the form of a `shape_only` operation and fails before it starts anything
PASSES_FORM: dict[str, list[dict[str, Any]]] = {
    "watch": [{"run": "r", "patience": 0.1}, {"run": "-x"}, {"run": "a\0b"}],
    "init": [{"dir": "/etc/passwd"}, {"dir": "/proc/nope/x"}, {"dir": "."}, {"dir": "a\0b"}, {"dir": "x" * 5000},
             {"branch": "a..b"}, {"branch": ""}, {"dir": "ok", "branch": "-x"}],
    "backup": [{"dir": "/proc/nope/x"}, {"dir": "."}, {"dir": "/etc/passwd"}, {"dir": "a\0b"}, {"dir": "y" * 300}],
    "restore": [{"dir": "nowhere"}, {"dir": "."}, {"dir": "/etc/passwd"}, {"dir": "a\0b"}, {"dir": ""}],
    "git import": [{"source": "nowhere"}, {"source": ""}, {"source": "-x"}, {"source": "ext::touch pwned"},
                   {"source": "/etc/passwd"}, {"source": "a\0b"}, {"source": ".", "into": "a..b"}],
    "git export": [{"destination": ""}, {"destination": "-x"}, {"destination": "ext::touch pwned"},
                   {"destination": "/etc/passwd"}, {"destination": "a\0b"}, {"destination": "o", "ref": "nowhere"},
                   {"destination": "o", "branch": "a..b"}],
    "setup": [{"config": "nowhere"}, {"config": "/etc/passwd"}, {"config": "."}, {"config": "a\0b"},
              {"config": "/dev/zero"}, {"config": "x" * 5000}, {"plan": "nowhere"},
              {"config": "nowhere", "plan": "a\0b"}],
    "run": [{"tasks": "nowhere"}, {"tasks": "/etc/passwd"}, {"tasks": "."}, {"tasks": "a\0b"}, {"tasks": "/dev/zero"},
            {"tasks": "x" * 5000}, {"tasks": "nowhere", "onto": "a..b"}, {"tasks": "nowhere", "record": "a\0b"}],
    "lane start": [{"name": "t", "prompt": "p", "command": "cat", "cage": "none", **more} for more in (
        {"replay": "nowhere"}, {"replay": "/dev/zero"}, {"replay": "a\0b"}, {"replay": "/proc/self/mem"},
        {"record": "/proc/nope/x"}, {"record": "/etc/passwd"}, {"record": "a\0b"}, {"record": "r", "replay": "r"},
        {"harness": "claude,"}, {"harness": "route"}, {"class": "nothing"})],
    "demo": [{"repository": "nowhere"}, {"repository": "/etc/passwd"}, {"repository": "a\0b"},
             {"repository": "x" * 4000}],
    "ws create": [{"name": ""}, {"name": "../x"}, {"name": "a/b"}, {"name": "a\0b"}, {"name": "x" * 5000},
                  {"name": "v", "from": "nowhere"}, {"name": "-x"},
                  {"name": "v", "prefix": ["../x"]}, {"name": "v", "prefix": ["a\0b"]},
                  {"name": "v", "prefix": ["d"], "all": True}, {"name": "v", "overlay": "maybe"}],
}  # fmt: skip

BAD_TEXT = [
    "", " ", "\0", "a\0b", "-", "--", "-x", "--no-such-option", "x" * 300, "x" * 5000, "y" * 200_000, "..",
    "../../../x",
    "/etc/passwd", "/dev/zero", "/proc/self/mem", ".git/config", "d/.GIT/hooks/x", "d/../../x", "a//b", "a/", "./a",
    "main~99999", "main^7", "main^{{tree}}", "main:a.txt", "main@{{1}}", "refs/heads/..", "refs/heads/a.lock",
    "refs/ropewalk/x", "HEAD", "@", "@{{-1}}", "{short}", "{main}", "{blob}", "{tree}", "0" * 40, "f" * 40,
    "deadbeef", "zz", "1e9",
    "é\u202eb", "\U0001f600", "\u200d.git", "base64:!!", "base64:/w==", "$(touch pwned)", "`touch pwned`",
    "; touch pwned",
    "%s%n", "{{}}", "nan", "null", "[]", "\n", "a\nb", "\r\n", "\x1b[31m", "(", "[", "*", "\\", "(a+)+$", "text",
]  # fmt: skip
NOT_UTF8 = ["\udcff", "a\udcfe/b", "\udc80\udc81.txt"]
BAD_VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2**31, 2**63, -(2**63) - 1, 2**70, 1.5, -0.0, 1e300, [], [[]], [None], [1],
    ["main"] * 300,
    {}, {"a": 1}, {"inline": "x", "base64": "eA=="}, {"path": "../x"}, {"from": 1}, [{"path": "a"}], [{}],
    [{"path": ""}],
    [{"path": "a.txt", "op": "delete"}, {"path": "a.txt", "op": "delete"}],
    [{"path": "a.txt/b", "content": {"inline": "x"}}],
    [{"path": "d", "content": {"inline": "x"}}], [{"path": "x", "content": {"file": "/dev/zero"}}],
    [{"path": "x", "content": {"file": "nowhere"}}], [{"path": "x", "content": {"blob": "{main}"}}],
    [{"path": "x", "content": {"base64": "!"}}], [{"path": "x", "op": "mode", "mode": "777"}],
    [{"name": "m", "target": ""}],
    [{"name": "a", "target": "main"}, {"name": "a/b", "target": "main"}], {"against": "main", "files": {}},
    {"against": "{main}", "files": {"a.txt": {"take": "ours", "delete": True}}}, {"first": 9, "last": 1},
]  # fmt: skip
SHAPE: list[Any] = [[], {}, {"a": 1}, [1], [[None]], 1.5]

text = st.one_of(st.sampled_from(BAD_TEXT), st.text(max_size=12))
value = st.one_of(st.sampled_from(BAD_VALUES), text, st.integers())
unknown = st.sampled_from(["no_such_field", "", "__class__", "Head", "op ", "\0", "é", "x" * 3000])


def requests(operation: Operation) -> st.SearchStrategy[Any]:
    """Gives arguments of a tool call that are wrong, or at best right by chance."""
    base = BASES[operation.name]
    names = [f.encode_name for f in msgspec.structs.fields(operation.request)]
    spoiled = st.builds(
        lambda drop, changed, more: {k: v for k, v in {**base.request, **changed, **more}.items() if k not in drop},
        st.lists(st.sampled_from(names), max_size=1) if names else st.just([]),
        st.dictionaries(st.sampled_from(names), value, max_size=2) if names else st.just({}),
        st.dictionaries(unknown, value, max_size=1),
    )
    with_unknown = st.builds(lambda r, k, v: {**r, k: v}, spoiled, unknown, value)
    no_object = st.sampled_from([[], "text", 7, True])
    if not base.shape_only:
        return st.one_of(spoiled, spoiled, spoiled, with_unknown, no_object)
    options = [with_unknown, with_unknown, no_object]
    if names:
        wrong = st.builds(lambda r, n, v: {**r, n: v}, spoiled, st.sampled_from(names), st.sampled_from(SHAPE))
        options.append(wrong.filter(lambda r: _refused(operation, r)))
    return st.one_of(*options)


def _refused(operation: Operation, request: Any) -> bool:
    try:
        msgspec.convert(request, operation.request)
    except (msgspec.ValidationError, RecursionError):
        return True
    return False


def fill(item: Any, ids: dict[str, str]) -> Any:
    """Gives a value with the ids of the store in the place of `{main}` and the like."""
    if isinstance(item, str):
        for name, oid in ids.items():
            item = item.replace("{" + name + "}", oid)
        return item
    if isinstance(item, list):
        return [fill(one, ids) for one in item]
    if isinstance(item, dict):
        return {k: fill(v, ids) for k, v in item.items()}
    return item


def words(operation: Operation, folder: Path) -> st.SearchStrategy[list[str]]:
    """Gives command lines: a request as words, then words lost, doubled, put in or spoiled."""
    shape_only = BASES[operation.name].shape_only
    keep = st.integers(0, 40)
    junk = st.one_of(text, st.sampled_from(NOT_UTF8), st.sampled_from(["--limit", "--onto", "--as", "--store=", "-n"]))

    def spoil(request: Any, how: int, at: int, word: str) -> list[str]:
        made = command_words(operation, request if isinstance(request, dict) else {}, folder)
        at = at % (len(made) + 1)
        if how == 1:
            made.insert(at, word)
        elif how == 2 and made:
            del made[at % len(made)]
        elif how == 3 and made:
            made[at % len(made)] = word
        elif how == 4 and made:
            made.insert(at, made[at % len(made)])
        if shape_only:
            made.insert(0, "--no-such-option")
        return ["--" if w in FORBIDDEN else w for w in made]

    return st.builds(spoil, requests(operation), st.integers(0, 4), keep, junk)


# help and streams are no envelopes; they have tests of their own
FORBIDDEN = {"-h", "--help", "--follow", "--raw", "--human"}


def command_words(operation: Operation, request: dict[str, Any], folder: Path) -> list[str]:
    """Gives a request as the words of a command line; values for files are written to files."""
    command = operation.command
    fields = {f.encode_name: f.name for f in msgspec.structs.fields(operation.request)}
    made: list[str] = []
    tail: list[str] = []
    positional: dict[str, list[str]] = {}
    for key, item in request.items():
        name = fields.get(key, key)
        if name in command.hidden or (command.rev_path and name in command.rev_path):
            continue
        if name in command.files:
            file = folder / f"input-{name}.json"
            file.write_bytes(json.dumps(item).encode())
            item = str(file)
        if any(word.rstrip("*?") == name for word in command.positional):
            positional[name] = [_word(i) for i in item] if isinstance(item, list) else [_word(item)]
        elif name == command.rest:
            tail = ["--", *([_word(i) for i in item] if isinstance(item, list) else [_word(item)])]
        elif item is True:
            made.append(_flag(operation, name))
        elif isinstance(item, list):
            for one in item[:20]:
                made += [_flag(operation, name), _word(one)]
        elif item is not None and item is not False:
            made += [_flag(operation, name), _word(item)]
    if command.rev_path:
        rev, path = (request.get(fields_name, "") for fields_name in command.rev_path)
        made.append(f"{_word(rev)}:{_word(path)}" if path else _word(rev))
    for word in command.positional:
        made += positional.get(word.rstrip("*?"), [])
    return made + tail


def _flag(operation: Operation, name: str) -> str:
    return operation.command.flags.get(name, "--" + name.rstrip("_").replace("_", "-"))


def _word(item: Any) -> str:
    return item if isinstance(item, str) else json.dumps(item)
