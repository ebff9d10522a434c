"""The process that merges: reads files from standard input, writes results and refusals to standard output.

It stands apart so that a parser that loops or crashes on what somebody wrote takes no store with it.
"""

from __future__ import annotations

import msgspec

from ropewalk.store.structure.languages import language_of
from ropewalk.store.structure.merging import merge
from ropewalk.store.structure.units import Declined

_MEMORY = 2 << 30


class Task(msgspec.Struct, frozen=True):
    """Is one file in conflict with its three versions; `base` is None where both sides added it."""

    path: bytes
    base: bytes | None
    ours: bytes
    theirs: bytes


class Result(msgspec.Struct, frozen=True):
    """Is the merged content, or why there is none."""

    content: bytes | None
    reason: str = ""


def answer(task: Task) -> Result:
    """Gives the merge of one file."""
    language = language_of(task.path)
    if language is None:
        return Result(None, "the language is not known")
    try:
        return Result(merge(language, task.base, task.ours, task.theirs))
    except Declined as declined:
        return Result(None, str(declined))
    except RecursionError:
        return Result(None, "is nested too deeply")
    except MemoryError:
        return Result(None, "needs too much memory")


def main() -> None:
    """Answers every task on standard input, in order."""
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    except (ValueError, OSError):
        pass  # a lower bound holds already, or the system has none
    with open(0, "rb", closefd=False) as asked:
        tasks = msgspec.msgpack.decode(asked.read(), type=list[Task])
    with open(1, "wb", closefd=False) as told:
        told.write(msgspec.msgpack.encode([answer(task) for task in tasks]))


if __name__ == "__main__":
    main()
