"""An agent that asks a model twice and builds a file on what it said and on what its task needs: `builder.py < PROMPT`.

The line of its prompt that begins with `#do` says what to build. A request that is cut off, or finds nobody, is made
again, as agent programs do; each names task, kind of turn and step, so that the model's ledger tells how often each was
asked. `python -I -S` runs it; it needs nothing but Python.
"""

import hashlib
import http.client
import json
import os
import sys
import time
from urllib.parse import urlsplit

PATIENCE = 200.0
SHARED = "list.txt"


def ask(task: str, step: int) -> str:
    """Gives the model's answer to a step."""
    base = urlsplit(os.environ["OPENAI_BASE_URL"])
    kind = "conflict" if "ROPEWALK_CONFLICT" in os.environ else "work"
    said = {"role": "user", "content": f"TASK {task} {kind} STEP {step} LANE {os.environ['ROPEWALK_LANE']};"}
    body = json.dumps({"model": "gpt-5", "stream": True, "messages": [said]})
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    until = time.monotonic() + PATIENCE
    while True:
        made = http.client.HTTPConnection("127.0.0.1", base.port or 80, timeout=30)
        try:
            made.request("POST", f"{base.path}/chat/completions", body, headers)
            got = made.getresponse()
            data = got.read()
            if got.status == 200 and data.endswith(b"data: [DONE]\n\n"):
                return _text(data)
            if got.status < 500 and got.status != 429:
                sys.stderr.write(f"{got.status} {data[:300]!r}\n")
                sys.exit(1)
        except (OSError, http.client.HTTPException):
            pass
        finally:
            made.close()
        if time.monotonic() > until:
            sys.stderr.write("no answer came\n")
            sys.exit(1)
        time.sleep(0.05)


def _text(data: bytes) -> str:
    parts = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
    deltas = [choice["delta"].get("content") or "" for part in parts for choice in part.get("choices") or []]
    return "".join(deltas)


def built(first: str, second: str, needs: list[bytes]) -> str:
    """Gives what is in a task's file: both answers, and what the files that it needs hold, by their hashes."""
    return "".join(f"{line}\n" for line in (first, second, *(hashlib.sha256(one).hexdigest() for one in needs)))


def joined(text: str, mine: str) -> str:
    """Gives a list with a line of one's own in it, whatever conflict is marked there."""
    marks = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")
    lines = {line for line in text.splitlines() if line and not line.startswith(marks)}
    return "".join(f"{line}\n" for line in sorted(lines | {mine}))


def _read(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


def main() -> None:
    """Builds."""
    words = next(line for line in sys.stdin.read().splitlines() if line.startswith("#do "))
    task = json.loads(words[4:])
    name = task["name"]
    print("asking", flush=True)
    first = ask(name, 1).strip()
    print("asked once", flush=True)
    second = ask(name, 2).strip()
    if task["shared"]:
        text = _read(SHARED).decode()
        with open(SHARED, "w", encoding="utf-8") as file:
            file.write(joined(text, name))
    text = built(first, second, [_read(need) for need in task["needs"]])
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    print("done", flush=True)


if __name__ == "__main__":
    main()
