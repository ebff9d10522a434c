"""Standing decisions: Markdown files whose front matter says which paths they govern.

```
---
status: accepted
governs:
  - src/store/**
---
# Objects wait in the journal
```
A file without front matter is a document, and governs nothing. Its name without `.md` is its id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from ropewalk.plan.globs import is_match, witness
from ropewalk.plan.packets import unquoted_items
from ropewalk.plan.rolecards import Governing

STATUSES = ("proposed", "accepted", "superseded", "rejected")
STANDING = ("", "accepted")
"""Are the statuses of decisions that hold."""
_KEY = re.compile(r"(id|status|governs|superseded_by):(?:[ \t]+(.*?))?[ \t]*\Z")
_ITEM = re.compile(r"[ \t]*-[ \t]+(.*?)[ \t]*\Z")
_TITLE = re.compile(r"^# +(\S.*?) *#*$", re.MULTILINE)


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """Is one decision: its id, the file it is in, its title, its status, and the globs that it governs."""

    id: str
    path: str
    title: str = ""
    status: str = ""
    governs: tuple[str, ...] = ()
    superseded_by: str = ""
    text: str = ""

    @property
    def stands(self) -> bool:
        """Says whether it holds."""
        return self.status in STANDING

    @property
    def governing(self) -> Governing:
        """Gives it as a prompt takes it."""
        return Governing(self.id, self.title, self.governs, self.text)


class Fault(msgspec.Struct, frozen=True):
    """Is what is wrong with a decision."""

    path: str
    severity: Literal["hard", "warn"]
    text: str


def parse(path: str, text: str) -> tuple[Decision, list[str]]:
    """Gives the decision of a file, and what is wrong with its form."""
    faults: list[str] = []
    values: dict[str, str] = {}
    governs: tuple[str, ...] = ()
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    body = lines
    if lines[0].rstrip() == "---":
        end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
        if end is None:
            faults.append("its front matter has no end")
            end = 0
        body = lines[end + 1 :]
        current = ""
        for number, line in enumerate(lines[1:end], 2):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            item, match = _ITEM.match(line), _KEY.match(line)
            if item is not None and current == "governs":
                governs += tuple(unquoted_items(item[1]))
            elif match is None:
                faults.append(f"line {number}: {line.strip()[:80]!r} is no field of a decision")
            elif match[1] == "governs":
                current = "governs"
                governs += tuple(unquoted_items((match[2] or "").strip("[]")))
            else:
                current = ""
                values[match[1]] = "".join(unquoted_items(match[2] or "")[:1])
    whole = "\n".join(body).strip("\n")
    title = _TITLE.search(whole)
    stem = path.rsplit("/", 1)[-1].removesuffix(".md")
    made = Decision(values.get("id") or stem, path, title[1] if title else stem, values.get("status", ""), governs,
                    values.get("superseded_by", ""), whole)  # fmt: skip
    return made, faults


def read(files: Mapping[str, str]) -> list[Decision]:
    """Gives the decisions of files by their paths, in the order of these; what is wrong with them is the lint's."""
    return [parse(path, files[path])[0] for path in sorted(files)]


def standing(found: Sequence[Decision]) -> list[Decision]:
    """Gives those that hold and govern something."""
    return [one for one in found if one.stands and one.governs]


def touching(found: Sequence[Decision], paths: Sequence[str]) -> list[Decision]:
    """Gives the standing decisions that govern any of some paths or globs."""
    return [one for one in standing(found) if any(witness(glob, p) is not None for glob in one.governs for p in paths)]


def lint(files: Mapping[str, str], paths: Sequence[str] | None = None) -> list[Fault]:
    """Gives what is wrong with decisions; `paths` are the tree's files, None where they are not known."""
    found: list[Fault] = []
    ids: dict[str, str] = {}
    made = [(path, *parse(path, files[path])) for path in sorted(files)]
    known = {one.id for _, one, _ in made}
    for path, one, faults in made:
        found += [Fault(path, "hard", words) for words in faults]
        if one.id in ids:
            found.append(Fault(path, "hard", f"its id {one.id!r} is that of {ids[one.id]}, too"))
        ids.setdefault(one.id, path)
        if one.status and one.status not in STATUSES:
            found.append(Fault(path, "hard", f"its status {one.status[:40]!r} is none of {', '.join(STATUSES)}"))
        if one.superseded_by and one.superseded_by not in known:
            found.append(Fault(path, "hard", f"it is superseded by {one.superseded_by[:80]!r}, which is no decision"))
        if one.status == "superseded" and not one.superseded_by:
            found.append(Fault(path, "warn", "it is superseded, and does not say by what (superseded_by)"))
        for glob in one.governs:
            if glob.startswith(("/", "~")) or ".." in glob.split("/"):
                found.append(Fault(path, "hard", f"{glob[:80]!r} is not a path inside the tree"))
            elif paths is not None and one.stands and not any(is_match(p, [glob]) for p in paths):
                found.append(Fault(path, "warn", f"it governs {glob[:80]!r}, and there is no such file"))
        if one.stands and not one.governs:
            found.append(Fault(path, "warn", "it governs nothing: its front matter has no `governs`"))
    return found


def new(number: int, title: str, governs: Sequence[str], digits: int = 3) -> tuple[str, str]:
    """Gives the name and the text of a new decision's file."""
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "decision"
    listed = "".join(f"  - {msgspec.json.encode(glob).decode() if '#' in glob else glob}\n" for glob in governs)
    head = f"---\nstatus: accepted\ngoverns:{'' if governs else ' []'}\n{listed}---\n"
    body = f"# {title.strip()}\n\n## Decision\n\n\n## Why\n\n\n## Rejected\n\n"
    return f"{number:0{digits}d}-{words}.md", f"{head}{body}"


def next_number(names: Sequence[str]) -> int:
    """Gives the number of the next decision beside files of some names."""
    return max((int(match[1]) for name in names if (match := re.match(r"(\d{1,6})\b", name))), default=0) + 1
