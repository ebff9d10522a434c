"""What goes on beside writers and readers: gc, backups that are restored and checked, imports, and stock git."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from storekit import STOCK, child_env

_REFUSED = "this repository belongs to a ropewalk store"
"""What stock git says where it would pack refs: it goes no further, and that is meant."""


class Chores:
    """Runs each chore again and again in a thread of its own, with `counts` of what was done, and `failures`."""

    def __init__(self, store: str, folder: str, seed: int) -> None:
        self.store, self.folder = store, folder
        self.repo = os.path.join(store, "repo.git")
        self.random = random.Random(seed)
        self.stop = threading.Event()
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}
        self.heads: set[str] = set()
        self.backups: list[tuple[int, str]] = []
        self.imported = ""
        self.source = os.path.join(folder, "source")
        self.mirror = os.path.join(folder, "mirror")
        self.threads = [
            threading.Thread(target=self._loop, args=(chore,))
            for chore in (self.gc, self.backup, self.importing, self.clone, self.fetch, self.stock_gc, self.fsck)
        ]

    def start(self) -> None:
        """Starts all chores."""
        self.git("init", "--quiet", "-b", "main", self.source)
        self.git("clone", "--quiet", "--mirror", f"file://{self.repo}", self.mirror)
        for thread in self.threads:
            thread.start()

    def finish(self) -> None:
        """Lets each chore come to its end."""
        self.stop.set()
        for thread in self.threads:
            thread.join(600)

    def _loop(self, chore: Callable[[], None]) -> None:
        try:
            while not self.stop.is_set():
                began = time.perf_counter()
                chore()
                self.slowest[chore.__name__] = max(self.slowest.get(chore.__name__, 0.0), time.perf_counter() - began)
        except Exception as error:
            self.failures.append(f"{chore.__name__}: {type(error).__name__}: {error}")

    def git(self, *words: str, stdin: bytes | None = None, ok: bool = True) -> tuple[int, str]:
        """Runs the installed git as a person would and gives (exit code, all that it printed)."""
        done = subprocess.run(["git", *words], input=stdin, env=STOCK, capture_output=True, timeout=600)
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        if ok and done.returncode:
            raise AssertionError(f"git {words} ended with {done.returncode}: {said[-2000:]}")
        return done.returncode, said

    def rw(self, *words: str, store: str | None = None, kill_after: float | None = None) -> Any:
        """Runs a command that must succeed and gives its result; None when it was killed."""
        argv = [sys.executable, "-m", "ropewalk.cli.main", *words, "--store", store or self.store, "--as", "soak/chore"]
        while True:
            began = time.perf_counter()
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     env=child_env())  # fmt: skip
            try:
                out, err = child.communicate(timeout=kill_after or 900)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
                if kill_after is None:
                    raise
                self.counts[f"{words[0]} killed"] += 1
                return None
            if child.returncode == 6 and time.perf_counter() - began >= 10:
                self.counts[f"{words[0]} busy"] += 1  # the writer lock was not to be had within its bound
                continue
            if child.returncode:
                said = f"{out.decode()[:2000]} {err.decode()[:2000]}"
                raise AssertionError(f"rw {words} ended with {child.returncode}: {said}")
            return msgspec.json.decode(out)["result"]

    def gc(self) -> None:
        """Collects; each fourth time the command is killed at a moment that is drawn."""
        kill = self.random.uniform(0.1, 1.5) if self.random.random() < 0.25 else None
        if self.rw("gc", kill_after=kill) is not None:
            self.counts["gc"] += 1
        self.stop.wait(1)  # without a pause there would be nothing to collect

    def backup(self) -> None:
        """Backs up, restores, and checks what was restored with our verification and stock git's."""
        saved, back = os.path.join(self.folder, "backup"), os.path.join(self.folder, "restored")
        made = self.rw("backup", saved)
        self.rw("restore", saved, store=back)
        found = self.rw("verify", "--deep", store=back)
        if found["problems"]:
            raise AssertionError(f"a restored backup: {found['problems'][:3]}")
        row = self.rw("op", "log", "-n", "1", store=back)["ops"][0]
        if row["op"] != made["op"]:
            raise AssertionError(f"a backup of operation {made['op']} holds {row['op']}")
        repo = os.path.join(back, "repo.git")
        self.git("--git-dir", repo, "fsck", "--full", "--strict", "--no-dangling")
        self.backups.append((made["op"], self.git("--git-dir", repo, "rev-parse", "refs/heads/main")[1].strip()))
        self.counts["backup"] += 1
        shutil.rmtree(saved)
        shutil.rmtree(back)

    def importing(self) -> None:
        """Lets a repository grow by a few commits, or by so many that they come in as a pack, and imports it."""
        many = 200 if self.random.random() < 0.3 else 3
        number = self.counts["import"]
        lines = ["from refs/heads/main^0\n"] if number else []
        stream = ""
        for n in range(many):
            text = f"{number} {n} {self.random.getrandbits(64):x}\n"
            stream += f"commit refs/heads/main\ncommitter stock <stock@example.com> {1_700_000_000 + n} +0000\n"
            stream += "data 2\nx\n" + ("".join(lines) if n == 0 else "")
            stream += f"M 100644 inline d{n % 7}/f{n}.txt\ndata {len(text)}\n{text}"
        self.git("-C", self.source, "fast-import", "--quiet", stdin=stream.encode())
        head = self.git("-C", self.source, "rev-parse", "main")[1].strip()
        found = self.rw("git", "import", self.source, "--ref", "main", "--into", "imported")
        if found["head_changeset"] != head or not found["ref_moved"]:
            raise AssertionError(f"an import of {head} gave {found}")
        if (
            self.rw("ref", "list")["refs"]
            and self.git("--git-dir", self.repo, "rev-parse", "imported")[1].strip() != head
        ):
            raise AssertionError("stock git does not see what was imported")
        self.imported = head
        self.counts["import"] += 1
        self.stop.wait(2)

    def clone(self) -> None:
        """Clones, plain or as a mirror, and checks every object of the clone."""
        there = os.path.join(self.folder, "clone")
        kind = "--mirror" if self.random.random() < 0.5 else "--no-checkout"
        self.git("clone", "--quiet", kind, f"file://{self.repo}", there)
        git_dir = there if kind == "--mirror" else os.path.join(there, ".git")
        self.git("--git-dir", git_dir, "fsck", "--full", "--strict")
        ref = "refs/heads/main" if kind == "--mirror" else "refs/remotes/origin/main"
        self.heads.add(self.git("--git-dir", git_dir, "rev-parse", ref)[1].strip())
        self.counts["clone"] += 1
        shutil.rmtree(there)

    def fetch(self) -> None:
        """Fetches into a mirror that is kept, pruning refs, and checks it."""
        # its own collection in the background would go on while it is checked
        quiet = ("-c", "gc.auto=0", "-c", "maintenance.auto=false")
        self.git("--git-dir", self.mirror, *quiet, "fetch", "--quiet", "--prune", "origin")
        self.heads.add(self.git("--git-dir", self.mirror, "rev-parse", "refs/heads/main")[1].strip())
        self.counts["fetch"] += 1
        if self.counts["fetch"] % 5 == 0:
            self.git("--git-dir", self.mirror, "fsck", "--full", "--strict")

    def stock_gc(self) -> None:
        """Clean-ups of stock git: as they are, where the hook stops them, and without the step it stops them at."""
        for words in (
            ("gc", "--quiet"),
            ("gc", "--quiet", "--prune=now"),
            ("-c", "gc.packRefs=false", "gc", "--quiet"),
            ("-c", "gc.packRefs=false", "gc", "--quiet", "--prune=now"),
            ("prune", "--expire=now"),
            ("repack", "-a", "-d", "--quiet"),
        ):
            code, said = self.git("--git-dir", self.repo, *words, ok=False)
            self.counts["stock gc"] += 1
            self.counts[f"git {' '.join(words)}: {code}"] += 1
            if code and _REFUSED not in said and "precious" not in said:
                self.counts[
                    f"git {' '.join(words)} said {said.strip().splitlines()[-1][:150] if said.strip() else ''}"
                ] += 1
            if self.stop.wait(1):
                return

    def fsck(self) -> None:
        """Lets stock git check the store's own repository."""
        code, said = self.git("--git-dir", self.repo, "fsck", "--full", "--strict", "--no-dangling", ok=False)
        if code:
            # In any repository that is written to, git's check may meet what came or went after it began: it lists
            # packs and loose files once, and reads refs after them. A git that starts now must find what it names.
            for line in said.splitlines():
                pack = re.search(r"packfile (\S+\.pack)\b", line)
                loose = re.search(r"/objects/([0-9a-f]{2})/([0-9a-f]{38})\b", line)
                named = re.findall(r"\b[0-9a-f]{40}\b", line.replace(pack[1], "") if pack else line)
                named += [loose[1] + loose[2]] if loose else []
                for oid in named:
                    code, _ = self.git("--git-dir", self.repo, "cat-file", "-e", oid, ok=False)
                    if code:  # what a killed or refused write left is nobody's, and may go
                        _, reached = self.git("--git-dir", self.repo, "rev-list", "--objects", "--all", ok=False)
                        assert oid not in reached, f"git misses {oid}, which a ref reaches"
                if not named and (pack is None or os.path.exists(pack[1])):
                    raise AssertionError(f"git fsck ended with {code}: {said[-2000:]}")
            self.counts["fsck that met what came or went"] += 1
        self.counts["fsck"] += 1
        self.stop.wait(0.5)
