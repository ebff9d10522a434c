"""The program `rw` inside a lane: the tools of the lane's door from a shell, for agents that take none from servers.

It is copied into the lane's door, and runs on a bare Python, with nothing of ours. It prints what a tool says, and ends
with 1 when that is an error, with 2 for a wrong command line, with 3 when the door is out of reach.
"""

import json
import os
import sys
import time
from http.client import HTTPConnection, HTTPException

USAGE = """usage: rw COMMAND …      what a lane may ask of the run that it is part of
  rw ask REGION QUESTION…              what is known of another part of the code
  rw request ABOUT WHAT… --check LINE  a change by those who work on a task or a region
  rw check ID                          what became of a request
  rw progress TEXT… [--percent N]      tells people how far you are
  rw cat [REV:]PATH    rw ls [REV:][PATH]    rw log [REV]    rw show REV
  rw diff OLD NEW [PATH]    rw grep PATTERN [REV]
  rw tools             rw call TOOL JSON
"""
RETRY_SECONDS = 60.0


class Wrong(Exception):
    """The command line is wrong."""


def asked(words: list[str]) -> tuple[str, dict[str, object]]:
    """Gives the tool that words name, and its arguments."""
    name, rest = words[0], words[1:]
    options = {}
    for option in ("--check", "--percent"):
        if option in rest[:-1]:
            at = rest.index(option)
            options[option] = rest[at + 1]
            rest = rest[:at] + rest[at + 2 :]
    if name == "ask" and len(rest) >= 2:
        return "ask_region", {"region": rest[0], "question": " ".join(rest[1:])}
    if name == "request" and len(rest) >= 2 and "--check" in options:
        return "request_change", {"about": rest[0], "what": " ".join(rest[1:]), "check": options["--check"]}
    if name == "check" and len(rest) == 1:
        return "check_request", {"id": rest[0]}
    if name == "progress" and rest:
        percent = {"percent": float(options["--percent"])} if "--percent" in options else {}
        return "report_progress", {"text": " ".join(rest), **percent}
    if name in ("cat", "ls") and len(rest) <= 1:
        rev, colon, path = (rest[0] if rest else "").partition(":")
        if not colon:
            rev, path = "HEAD", rev
        if path or name == "ls":
            return {"cat": "read_file", "ls": "list_dir"}[name], {"rev": rev or "HEAD", "path": path}
    if name == "log" and len(rest) <= 1:
        return "log", {"rev": rest[0]} if rest else {}
    if name == "show" and len(rest) == 1:
        return "show", {"rev": rest[0]}
    if name == "diff" and 2 <= len(rest) <= 3:
        return "diff", dict(zip(("old", "new", "path"), rest, strict=False))
    if name == "grep" and 1 <= len(rest) <= 2:
        return "grep", dict(zip(("pattern", "rev"), rest, strict=False))
    if name == "call" and 1 <= len(rest) <= 2:
        found = json.loads(rest[1]) if len(rest) == 2 else {}
        if isinstance(found, dict):
            return rest[0], found
    raise Wrong


def say(method: str, params: dict[str, object]) -> dict[str, object]:
    """Gives the result of a request; a door that starts anew is waited for."""
    place, token = os.environ["ROPEWALK_DOOR"], os.environ["ROPEWALK_DOOR_TOKEN"]
    host, _, path = place.removeprefix("http://").partition("/")
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    until = time.monotonic() + RETRY_SECONDS
    while True:
        connection = HTTPConnection(host, timeout=600)
        try:
            connection.connect()
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
            continue
        connection.request("POST", f"/{path}", body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        try:
            found = json.loads(data)
        except ValueError:
            raise OSError(f"{answer.status} {data[:200].decode('utf-8', 'replace')}") from None
        if "error" in found:
            raise OSError(str(found["error"].get("message")))
        result: dict[str, object] = found["result"]
        return result


def shown(result: dict[str, object]) -> str:
    """Gives a tool's words; of a file its content."""
    data = result.get("structuredContent")
    if isinstance(data, dict) and isinstance(data.get("content"), str) and data.get("encoding") == "utf8":
        return str(data["content"])
    parts = result.get("content")
    assert isinstance(parts, list)
    return "\n".join(str(part.get("text", "")) for part in parts)


def main(words: list[str]) -> int:
    """Runs `rw COMMAND …`."""
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(USAGE)
        return 0 if words else 2
    try:
        if words == ["tools"]:
            for tool in say("tools/list", {})["tools"]:  # type: ignore[attr-defined]
                sys.stdout.write(f"{tool['name']}: {tool['description']}\n")
            return 0
        name, arguments = asked(words)
        result = say("tools/call", {"name": name, "arguments": arguments})
    except (Wrong, ValueError):
        sys.stderr.write(USAGE)
        return 2
    except KeyError as error:
        sys.stderr.write(f"rw: this is no lane with a door: {error} is not set\n")
        return 3
    except (OSError, HTTPException) as error:
        sys.stderr.write(f"rw: {error}\n")
        return 3
    text = shown(result)
    stream = sys.stderr if result.get("isError") else sys.stdout
    stream.write(text if text.endswith("\n") else text + "\n")
    return 1 if result.get("isError") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
