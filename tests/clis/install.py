"""Installs the agent programs of `clis.json` from npm, each into a folder of its own, and says what is there.

    python tests/clis/install.py [--into DIR] [--only NAME,NAME] [--at-once N] [--seconds N] [--check]

What is there in the right version is left as it is, so a folder that is kept between runs is a cache. A program is
installed beside its place and moved there when it is whole. One line of JSON a program: name, version, folder, what
was done, seconds, megabytes. Ends with 1 when a program is missing at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("clis.json")


def default_folder() -> Path:
    """Gives where the programs are kept: `RWTEST_CLIS_DIR`, else below the person's home, whatever HOME says."""
    named = os.environ.get("RWTEST_CLIS_DIR")
    return Path(named or Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache" / "ropewalk-test-clis")


def wanted() -> dict[str, dict[str, Any]]:
    """Gives the list: package, version, binary and bound of time by name."""
    found: dict[str, dict[str, Any]] = json.loads(LIST.read_text(encoding="utf-8"))
    return found


def place(folder: Path, name: str) -> Path:
    """Gives the folder of a program's pinned version."""
    return folder / f"{name}-{wanted()[name]['version']}"


def binary(folder: Path, name: str) -> Path | None:
    """Gives a program's binary, nothing where its pinned version is not there."""
    one = wanted()[name]
    held = place(folder, name) / "node_modules"
    found = held / ".bin" / one["binary"]
    try:
        version = json.loads((held / one["package"] / "package.json").read_text(encoding="utf-8"))["version"]
    except OSError:
        return None
    return found if version == one["version"] and found.exists() else None


def install(folder: Path, name: str, until: float) -> dict[str, Any]:
    """Installs a program and gives the line about it."""
    one, begun, target = wanted()[name], time.monotonic(), place(folder, name)
    line = {"name": name, "version": one["version"], "folder": str(target), "done": "kept"}
    if binary(folder, name) is None:
        made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
        try:
            (made / "package.json").write_text('{"private": true}\n', encoding="utf-8")
            words = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--save-exact"]
            words += ["--fetch-timeout=60000", f"{one['package']}@{one['version']}"]
            bound = max(1.0, min(float(one["seconds"]), until - time.monotonic()))
            done = subprocess.run(
                words, cwd=made, capture_output=True, stdin=subprocess.DEVNULL, timeout=bound, text=True
            )
            if done.returncode == 0:
                shutil.rmtree(target, ignore_errors=True)
                made.rename(target)
                line["done"] = "installed"
            else:
                line |= {"done": "failed", "said": done.stderr.strip()[-500:]}
        except (OSError, subprocess.TimeoutExpired) as error:
            line |= {"done": "failed", "said": str(error)}
        finally:
            shutil.rmtree(made, ignore_errors=True)
    if line["done"] != "failed" and binary(folder, name) is None:
        line["done"] = "failed"
    # a file of two names is one
    there = [p.lstat() for p in target.rglob("*")] if target.is_dir() else []
    size = sum({one.st_ino: one.st_blocks * 512 for one in there}.values())
    return {**line, "seconds": round(time.monotonic() - begun, 1), "megabytes": size >> 20}


def main() -> int:
    """Installs what is asked for, and gives the exit code."""
    parser = argparse.ArgumentParser(description="Installs the agent programs that tests start.")
    parser.add_argument("--into", type=Path, default=default_folder(), help="the folder that holds them")
    parser.add_argument("--only", default=",".join(wanted()), help="names, with commas (default: all)")
    parser.add_argument("--at-once", type=int, default=3, help="how many installations run at once")
    parser.add_argument("--seconds", type=float, default=900.0, help="the bound for all of them")
    parser.add_argument("--check", action="store_true", help="install nothing, say what is there")
    given = parser.parse_args()
    names = [name for name in given.only.split(",") if name]
    if unknown := [name for name in names if name not in wanted()]:
        parser.error(f"no such program: {', '.join(unknown)}")
    given.into.mkdir(parents=True, exist_ok=True)
    if given.check:
        for name in names:
            found = binary(given.into, name)
            print(json.dumps({"name": name, "version": wanted()[name]["version"], "binary": found and str(found)}))
        return 0 if all(binary(given.into, name) for name in names) else 1
    until = time.monotonic() + given.seconds
    with ThreadPoolExecutor(given.at_once) as pool:
        lines = list(pool.map(lambda name: install(given.into, name, until), names))
    for line in lines:
        print(json.dumps(line))
    return 1 if any(line["done"] == "failed" for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
