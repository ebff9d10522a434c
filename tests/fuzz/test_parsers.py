"""Our own parsers on any bytes: what they can't read is a typed error of theirs. In full by a search for new paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from parser_targets import SEEDS, TARGETS

FULL = bool(os.environ.get("RWTEST_FULL"))
SECONDS = int(os.environ.get("RWTEST_FUZZ_SECONDS", "30"))
ATHERIS = "atheris==3.0.0"


def mutated(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """Gives a seed with parts cut, doubled, and overwritten."""

    def change(seed: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
        for at, length, fresh in edits:
            at %= len(seed) + 1
            seed = seed[:at] + fresh + seed[at + length :]
        return seed

    edit = st.tuples(st.integers(0, 60_000), st.integers(0, 40), st.binary(max_size=12))
    return st.one_of(st.binary(max_size=200), st.builds(change, st.sampled_from(seeds), st.lists(edit, max_size=4)))


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)

    @settings(max_examples=2000 if FULL else 150, derandomize=True, deadline=None, database=None,
              phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(mutated(SEEDS[name]))
    def many(data: bytes) -> None:
        TARGETS[name](data)

    many()


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives a Python with this package's needs and atheris, in an environment of its own."""
    folder = tmp_path_factory.mktemp("searcher")
    online = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    if proxy := online.get("RWTEST_PROXY"):
        online["https_proxy"] = proxy
    for line in ([sys.executable, "-m", "venv", folder], [folder / "bin/python", "-m", "pip", "install", "--quiet",
                 "--no-cache-dir", "--disable-pip-version-check", ATHERIS, "apsw", "blake3", "msgspec"]):  # fmt: skip
        done = subprocess.run(line, env=online, capture_output=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr.decode()
    return folder / "bin/python"


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="takes half a minute a parser, and atheris; runs with RWTEST_FULL=1")
@pytest.mark.parametrize("name", TARGETS)
def test_a_search_for_new_paths_finds_no_fault(name: str, searcher: Path, tmp_path: Path) -> None:
    program = Path(__file__).with_name("atheris_parsers.py")
    done = subprocess.run([searcher, program, name, str(SECONDS)], cwd=tmp_path, capture_output=True, check=False,
                          timeout=SECONDS + 300)  # fmt: skip
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-4000:]
    assert b"Done" in done.stderr, "the search did not run"
