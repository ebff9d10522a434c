"""An agent that asks a model twice and writes down what it said: `python -I -S asker.py FILE`.

A request that is cut off, or finds nobody, is made again, as agent programs do. It says in each which lane it is and
which step, so that the model's ledger tells how often each was asked.
"""

import http.client
import json
import os
import sys
import time
from urllib.parse import urlsplit

PATIENCE = 60.0


def ask(step: int) -> str:
    """Gives the model's answer to a step."""
    base = urlsplit(os.environ["OPENAI_BASE_URL"])
    said = {"role": "user", "content": f"LANE {os.environ['ROPEWALK_LANE']} STEP {step};"}
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


def main() -> None:
    """Asks twice, and writes a line for each answer."""
    print("asking", flush=True)
    first = ask(1)
    print("asked once", flush=True)
    second = ask(2)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(f"{first.strip()}\n{second.strip()}\n")
    print("done", flush=True)


if __name__ == "__main__":
    main()
