"""The scripted agent: a real process that reads a prompt, edits files as its script says, and reports events.

It is started like any agent program: `python -m ropewalk.testing.agent`, in its workspace, the prompt on
standard input or in a file (`--prompt FILE`). The script is the last block of the prompt between a line
` ```script ` and a line ` ``` `: a JSON list of steps, or an object with `steps` and `on_conflict`. A step is
an object with one verb:

```
put, text | append, text | replace, old, new | delete | move, to | symlink, to | exec    (each names a path)
run: a shell command                  commit: a message, by `git add -A` and `git commit`
print: a message, the result if last  exit: an exit code               die: kills itself with SIGKILL
die_once: a path outside the tree: kills itself unless that file exists, and makes it first
wait_for: a path that must appear     barrier: a folder, count: how many agents must have come to it
turn: how many tokens a turn of a model would have used
told: a path for all that the agent was told
```
Paths outside of the tree may name variables, `$NAME/file`.

When `ROPEWALK_CONFLICT` names a conflict report the agent answers it by its rule `on_conflict` instead: `both`
(ours, then theirs), `theirs_first`, `ours`, `theirs`, or a list of steps. In a further turn without a conflict
(`ROPEWALK_TURN` is 2 or more) it follows the list `on_failure`, if there is one.

Events are JSON lines on standard output: started, message, tool, usage, result. Nothing is imported beyond the
standard library, so that a start costs little.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

_BLOCK = re.compile(r"^```script[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_WAIT_SECONDS = 60.0
_OUTSIDE = ("die_once", "wait_for", "barrier")
"""Are the verbs whose path is outside of the tree, and may name variables."""


class ScriptError(Exception):
    """The script can't be followed; the agent says so and ends with 1."""


def main(argv: list[str] | None = None) -> int:
    """Runs the agent and gives its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if len(words) == 2 and words[0] == "--prompt":
        with open(words[1], encoding="utf-8") as file:
            prompt = file.read()
    elif not words:
        prompt = sys.stdin.read()
    else:
        print("usage: python -m ropewalk.testing.agent [--prompt FILE]", file=sys.stderr)
        return 2
    agent = os.environ.get("ROPEWALK_AGENT", "scripted/agent")
    emit("started", agent=agent, pid=os.getpid())
    try:
        steps = plan(prompt)
        for step in steps:
            follow({**step, "prompt": prompt} if "told" in step else step)
    except ScriptError as error:
        print(f"scripted agent: {error}", file=sys.stderr)
        emit("result", ok=False, text=str(error))
        return 1
    emit("usage", input_tokens=len(prompt) // 4, output_tokens=8 * len(steps))
    last = steps[-1] if steps else {}
    emit("result", ok=True, text=str(last["print"]) if "print" in last else f"{len(steps)} steps done")
    return 0


def emit(kind: str, **facts: Any) -> None:
    """Prints an event, whole and at once."""
    sys.stdout.write(json.dumps({"event": kind, **facts}) + "\n")
    sys.stdout.flush()


def plan(prompt: str) -> list[dict[str, Any]]:
    """Gives the steps to follow; answers a conflict report first when there is one."""
    blocks = _BLOCK.findall(prompt)
    if not blocks:
        raise ScriptError("the prompt holds no script")
    try:
        script = json.loads(blocks[-1])
    except ValueError as error:
        raise ScriptError(f"the script is not JSON: {error}") from None
    if isinstance(script, list):
        script = {"steps": script}
    if not isinstance(script, dict) or not isinstance(script.get("steps"), list):
        raise ScriptError("the script is neither a list of steps nor an object with steps")
    report = os.environ.get("ROPEWALK_CONFLICT")
    if not report:
        later = os.environ.get("ROPEWALK_TURN", "1") != "1" and isinstance(script.get("on_failure"), list)
        return list(script["on_failure" if later else "steps"])
    rule = script.get("on_conflict")
    if isinstance(rule, list):
        return rule
    if rule not in ("both", "theirs_first", "ours", "theirs"):
        raise ScriptError("there is a conflict, and the script has no rule for it")
    with open(report, encoding="utf-8") as file:
        files = json.load(file)["files"]
    return [{"settle": entry["path"], "rule": rule} for entry in files]


def follow(step: dict[str, Any]) -> None:
    """Follows one step."""
    verb = next((v for v in _VERBS if v in step), None)
    if verb is None:
        raise ScriptError(f"no verb is known in {json.dumps(step)}")
    on = os.path.expandvars(step[verb]) if verb in _OUTSIDE else step[verb]
    try:
        _VERBS[verb](on, step)
    except (OSError, KeyError, UnicodeError) as error:
        raise ScriptError(f"{verb} failed: {error!r}") from None


def _tool(name: str, path: str) -> None:
    emit("tool", name=name, path=path)


def _write(path: str, text: str) -> None:
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def _put(path: str, step: dict[str, Any]) -> None:
    _tool("put", path)
    _write(path, step["text"])


def _append(path: str, step: dict[str, Any]) -> None:
    _tool("append", path)
    _write(path, (_read(path) if os.path.exists(path) else "") + step["text"])


def _replace(path: str, step: dict[str, Any]) -> None:
    _tool("replace", path)
    text = _read(path)
    if step["old"] not in text:
        raise ScriptError(f"{path} does not hold {step['old']!r}")
    _write(path, text.replace(step["old"], step["new"], 1))


def _delete(path: str, step: dict[str, Any]) -> None:
    _tool("delete", path)
    os.unlink(path)


def _move(path: str, step: dict[str, Any]) -> None:
    _tool("move", path)
    os.makedirs(os.path.dirname(step["to"]) or ".", exist_ok=True)
    os.rename(path, step["to"])


def _symlink(path: str, step: dict[str, Any]) -> None:
    _tool("symlink", path)
    os.symlink(step["to"], path)


def _exec(path: str, step: dict[str, Any]) -> None:
    _tool("exec", path)
    os.chmod(path, 0o755)


def _settle(path: str, step: dict[str, Any]) -> None:
    """Takes the conflict markers out of a file by a rule."""
    _tool("settle", path)
    kept: list[str] = []
    sides: dict[str, list[str]] = {}
    place = ""
    for line in _read(path).splitlines(keepends=True):
        if line.startswith("<<<<<<< ") and not place:
            place, sides = "ours", {"ours": [], "base": [], "theirs": []}
        elif line.startswith("||||||| ") and place == "ours":
            place = "base"
        elif line.startswith("=======") and place in ("ours", "base"):
            place = "theirs"
        elif line.startswith(">>>>>>> ") and place == "theirs":
            order = {"both": ("ours", "theirs"), "theirs_first": ("theirs", "ours")}
            for side in order.get(step["rule"], (step["rule"],)):
                kept += sides[side]
            place = ""
        else:
            (sides[place] if place else kept).append(line)
    _write(path, "".join(kept))


def _run(command: str, step: dict[str, Any]) -> None:
    emit("tool", name="run", command=command)
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    sys.stderr.write(done.stdout.decode("utf-8", "replace"))
    if done.returncode not in step.get("ok", [0]):
        raise ScriptError(f"{command!r} ended with {done.returncode}")


def _commit(message: str, step: dict[str, Any]) -> None:
    emit("tool", name="commit", message=message)
    for words in (["git", "add", "-A"], ["git", "commit", "-q", "-m", message]):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            raise ScriptError(f"{' '.join(words[:2])} failed: {done.stdout.decode('utf-8', 'replace').strip()}")


def _print(text: str, step: dict[str, Any]) -> None:
    emit("message", text=text)


def _turn(tokens: int, step: dict[str, Any]) -> None:
    emit("turn")
    emit("usage", input_tokens=tokens, output_tokens=0)


def _told(path: str, step: dict[str, Any]) -> None:
    _write(path, step["prompt"])


def _exit(code: int, step: dict[str, Any]) -> NoReturn:
    emit("result", ok=code == 0, text=f"exit {code} on purpose")
    sys.exit(code)


def _die(_: Any, step: dict[str, Any]) -> None:
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _die_once(path: str, step: dict[str, Any]) -> None:
    if not os.path.exists(path):
        _write(path, "died once\n")
        _die(None, step)


def _wait_for(path: str, step: dict[str, Any]) -> None:
    emit("tool", name="wait_for", path=path)
    wait_until(os.path.dirname(os.path.abspath(path)), lambda: os.path.exists(path), step.get("seconds", _WAIT_SECONDS))


def _barrier(folder: str, step: dict[str, Any]) -> None:
    emit("tool", name="barrier", path=folder)
    os.makedirs(folder, exist_ok=True)
    who = os.environ.get("ROPEWALK_TASK") or os.environ.get("ROPEWALK_AGENT") or str(os.getpid())
    _write(os.path.join(folder, who.replace("/", "-")), "here\n")
    wait_until(folder, lambda: len(os.listdir(folder)) >= step["count"], step.get("seconds", _WAIT_SECONDS))


def wait_until(folder: str, there: Callable[[], bool], seconds: float) -> None:
    """Waits until something is so in a folder, woken by the kernel's own notices where there are any."""
    os.makedirs(folder, exist_ok=True)
    notices = _notices(folder)
    until = time.monotonic() + seconds
    try:
        while not there():
            left = until - time.monotonic()
            if left <= 0:
                raise ScriptError(f"nothing came within {seconds:g} s in {folder}")
            if notices is None:
                time.sleep(min(left, 0.02))  # no inotify on this system
            elif select.select([notices], [], [], left)[0]:
                os.read(notices, 65_536)
    finally:
        if notices is not None:
            os.close(notices)


def _notices(folder: str) -> int | None:
    if sys.platform != "linux":
        return None
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_CLOEXEC))
    created, moved_in = 0x100, 0x80
    if fd < 0 or int(libc.inotify_add_watch(fd, os.fsencode(folder), created | moved_in)) < 0:
        return None
    return fd


_VERBS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "put": _put,
    "append": _append,
    "replace": _replace,
    "delete": _delete,
    "move": _move,
    "symlink": _symlink,
    "exec": _exec,
    "settle": _settle,
    "run": _run,
    "commit": _commit,
    "print": _print,
    "turn": _turn,
    "told": _told,
    "exit": _exit,
    "die": _die,
    "die_once": _die_once,
    "wait_for": _wait_for,
    "barrier": _barrier,
}

if __name__ == "__main__":
    sys.exit(main())
