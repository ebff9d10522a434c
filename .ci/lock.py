"""Makes requirements.lock: exact versions and hashes, the runtime's first, then what development adds to it.

`make demo` installs the first part alone, and so needs no second file. Run it by `make lock`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = "# development"
HEAD = """\
# Made by `make lock` with Python 3.11; versions and hashes of everything, no addresses.
# The packages that ropewalk itself and its build need. `make demo` installs these alone.
"""


def compiled(sources: list[str], constraint: Path | None) -> dict[str, str]:
    """Gives the pinned packages of some requirements: name to its lines."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, out = Path(folder, "in.txt"), Path(folder, "out.txt")
        limit = [f"-c {constraint}"] if constraint else []
        wanted.write_text("\n".join([*sources, *limit]) + "\n", encoding="utf-8")
        argv = [sys.executable, "-m", "piptools", "compile", "--quiet", "--generate-hashes", "--strip-extras",
                "--allow-unsafe", "--no-annotate", "--no-header", "--no-emit-index-url", "--no-emit-trusted-host",
                "--no-emit-find-links", "--output-file", str(out), str(wanted)]  # fmt: skip
        subprocess.run(argv, check=True, cwd=ROOT, timeout=900)
        text = "\n".join(line for line in out.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text.strip())
    return {block.split("==")[0]: block for block in blocks if "==" in block}


def main() -> int:
    """Writes the file."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    build = [*project["build-system"]["requires"], "editables"]
    runtime = compiled([*project["project"]["dependencies"], *build], None)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as pins:
        pins.write("\n".join(block.split(" ")[0] for block in runtime.values()) + "\n")
        pins.flush()
        more = [line for name, lines in extras.items() if name != "all" for line in lines]
        everything = compiled([*project["project"]["dependencies"], *build, *more], Path(pins.name))
    added = {name: block for name, block in everything.items() if name not in runtime}
    text = HEAD + "\n".join(runtime.values()) + f"\n\n{MARK}\n" + "\n".join(added.values()) + "\n"
    if "://" in text:
        raise SystemExit("an address is in the lock; it must hold none")
    (ROOT / "requirements.lock").write_text(text, encoding="utf-8")
    print(f"requirements.lock: {len(runtime)} packages to run, {len(added)} more to develop")
    return 0


if __name__ == "__main__":
    sys.exit(main())
