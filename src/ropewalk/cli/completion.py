"""Completion for bash, zsh and fish: a short script for each that asks `rw completion words` for candidates."""

from __future__ import annotations

from typing import Any

from ropewalk.core.errors import RopewalkError, UsageError

BASH = """\
# rw completion bash: put `source <(rw completion bash)` into ~/.bashrc
_ropewalk() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o bashdefault -o default -F _ropewalk rw ropewalk
"""
ZSH = """\
#compdef rw ropewalk
# rw completion zsh: put `source <(rw completion zsh)` into ~/.zshrc, after compinit
_ropewalk() {
    local -a found
    found=(${(f)"$(${words[1]} completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _ropewalk rw ropewalk
"""
FISH = """\
# rw completion fish: put `rw completion fish | source` into ~/.config/fish/config.fish
function __ropewalk
    set -l words (commandline -opc)
    set -l program $words[1]
    set -e words[1]
    $program completion words -- $words (commandline -ct) 2>/dev/null
end
complete -c rw -a '(__ropewalk)'
complete -c ropewalk -a '(__ropewalk)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
GLOBAL_FLAGS = ("--store", "--repo", "--as", "--json", "--human", "--help")
REV_FIELDS = {"rev", "rev_path", "head", "heads", "onto", "parent", "advance", "changeset", "target", "expect_target",
              "a", "b", "from_", "to", "base", "branch", "into", "old", "new", "revs"}  # fmt: skip
LIMIT = 500


def run(words: list[str]) -> int:
    """Prints a shell's script, or candidates for the last of some words, one a line."""
    from ropewalk.cli.main import write

    if words[:2] == ["words", "--"]:
        write("".join(f"{one}\n" for one in candidates(words[2:])).encode("utf-8", "surrogateescape"))
        return 0
    if words in (["--help"], ["-h"]):
        write(b"usage: rw completion bash|zsh|fish\n\nPrint the completion script of a shell: bash, zsh or fish.\n")
        return 0
    if len(words) != 1 or words[0] not in SCRIPTS:
        raise UsageError("completion takes a shell: bash, zsh or fish", hint="run `rw completion bash`")
    write(SCRIPTS[words[0]].encode("utf-8"))
    return 0


def candidates(words: list[str]) -> list[str]:
    """Gives what the last of the words may become: commands, options, refs, workspaces; nothing on any error."""
    before, current = (words[:-1], words[-1]) if words else ([], "")
    try:
        found = _offers(before, current)
    except (RopewalkError, OSError):
        return []
    return sorted({one for one in found if one.startswith(current)})[:LIMIT]


def _offers(before: list[str], current: str) -> list[str]:
    from ropewalk.cli.main import SPECIAL, _leading
    from ropewalk.operations import registry

    if before and before[-1] in ("--store", "--repo", "--as"):
        return []
    leading, rest = _leading(before)
    names = registry.names()
    if not rest:
        return [*GLOBAL_FLAGS] if current.startswith("-") else [*(n.split(" ")[0] for n in names), *SPECIAL]
    if rest[0] in registry.GROUPS and len(rest) == 1:
        return [n.split(" ")[1] for n in names if n.startswith(rest[0] + " ")]
    if rest[0] == "help":
        return [
            n.split(" ")[len(rest) - 1]
            for n in names
            if n.split(" ")[: len(rest) - 1] == rest[1:] and n.count(" ") >= len(rest) - 1
        ]
    if rest[0] == "completion":
        return list(SCRIPTS)
    if rest[0] == "mcp":
        return ["core", "full"] if rest[-1] == "--profile" else ["--profile", *GLOBAL_FLAGS]
    name = (registry.split(rest) or ("", []))[0]
    if registry.family_of(name) is None:
        return []
    return _operation_offers(registry.load(name), leading, rest, current)


def _operation_offers(operation: Any, leading: list[str], rest: list[str], current: str) -> list[str]:
    from ropewalk.cli.parse import parser

    actions = parser(operation)._option_string_actions
    if current.startswith("-"):
        return list(actions)
    pending = actions.get(rest[-1])
    if pending is not None and pending.nargs != 0:
        return _values(operation, pending.dest, leading, current)
    if operation.name == "schema":
        from ropewalk.operations import registry

        return registry.names()
    fields = [word.rstrip("*?") for word in operation.command.positional]
    if operation.command.rev_path:
        fields.append("rev_path")
    return [one for field in fields for one in _values(operation, field, leading, current)]


def _values(operation: Any, field: str, leading: list[str], current: str) -> list[str]:
    """Gives what a field may be: refs for revisions, names of workspaces for `ws` commands."""
    if field == "name" and operation.name.startswith("ws "):
        return [str(row["name"]) for row in _ask("ws list", {}, leading).get("workspaces", [])]
    if field in REV_FIELDS or (field == "name" and operation.name.startswith("ref ")):
        return [str(row["name"]) for row in _ask("ref list", {"limit": LIMIT}, leading).get("refs", [])]
    return []


def _ask(name: str, request: dict[str, Any], leading: list[str]) -> dict[str, Any]:
    from ropewalk.cli.main import make_context
    from ropewalk.cli.special import split_globals
    from ropewalk.operations import envelope, registry

    store, agent, _ = split_globals(leading)
    context = make_context(store, agent, alone=True)
    try:
        body = envelope.answer(registry.load(name), context, request).envelope
    finally:
        context.close()
    return dict(body["result"]) if body["ok"] else {}
