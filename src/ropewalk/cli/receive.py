"""The face of a store's git hooks: `pre-receive` and `proc-receive`, run by git in `repo.git`."""

from __future__ import annotations

import os
import sys

import msgspec

from ropewalk.board import rules
from ropewalk.core.errors import InvalidError, RopewalkError
from ropewalk.core.ids import check_agent
from ropewalk.remote import receiving
from ropewalk.remote.receiving import Answer, Command, Push
from ropewalk.remote.tokens import EVERYTHING, Rights
from ropewalk.store.store import Store


def run(name: str) -> int:
    """Runs one hook on standard input and output, in the repository that is the working folder."""
    try:
        if name == "pre-receive":
            return _pre_receive()
        if name == "proc-receive":
            return _proc_receive()
        raise InvalidError(f"there is no hook {name!r}")
    except RopewalkError as error:
        print(f"error: {error.code} {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 1


def _caller(options: list[str]) -> Push:
    """Gives who pushes: a token's identity, a push option, a variable, or the user that git runs as."""
    fixed = os.environ.get("ROPEWALK_PUSHER")
    if fixed:
        rights = msgspec.json.decode(os.environ.get("ROPEWALK_RIGHTS", "{}"), type=Rights)
        return Push(check_agent(fixed), rights, options, is_known=True)
    named = next((option[6:] for option in options if option.startswith("agent=")), None)
    named = named or os.environ.get("ROPEWALK_AGENT")
    if not named:
        import getpass

        user = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in getpass.getuser().lower())
        named = f"git/{user or 'somebody'}"
    return Push(check_agent(named), EVERYTHING, options)


def _pre_receive() -> int:
    count = int(os.environ.get("GIT_PUSH_OPTION_COUNT") or 0)
    options = [os.environ.get(f"GIT_PUSH_OPTION_{number}", "") for number in range(count)]
    # names of refs are bytes, whatever the locale says
    given = sys.stdin.buffer.read().decode("utf-8", "surrogateescape").rstrip("\n").split("\n")
    refused = receiving.refusals(receiving.parse(given), _caller(options))
    for line in refused:
        print(f"refused: {line}", file=sys.stderr)
    return 1 if refused else 0


def _proc_receive() -> int:
    def act(commands: list[Command], options: list[str], atomic: bool) -> list[Answer]:
        push = _caller(options)._replace(atomic=atomic)
        with Store(os.path.dirname(os.getcwd())) as store:
            answers = receiving.receive(store, commands, push, rules.refusals)
        for answer in answers:
            for line in answer.lines:
                print(line, file=sys.stderr)
        sys.stderr.flush()
        return answers

    def write(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    receiving.converse(sys.stdin.buffer, write, act)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1] if len(sys.argv) == 2 else ""))
