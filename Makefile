# What a person types in a clone. Needs git, make and python3 with its venv module (Debian: python3-venv).
# Everything is put into .venv below the clone; a second run finds its stamp and goes straight to work.

PYTHON ?= python3
PYTEST_FLAGS ?= -q -n auto
BENCH_FLAGS ?= --quick
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# programs and the packages that bring them
# npm is one of them where Node.js is not there already
DEBIAN := npm:npm git:git strace:strace sshd:openssh-server ssh:openssh-client lighttpd:lighttpd gpg:gnupg curl:curl openssl:openssl bwrap:bubblewrap gh:gh zsh:zsh fish:fish \
  mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs ip:iproute2 cc:gcc nsenter:util-linux
# not below a home: root's is closed to the user that lanes run as
CLIS := RWTEST_CLIS=1 RWTEST_CLIS_DIR=$(or $(RWTEST_CLIS_DIR),/var/tmp/ropewalk-test-clis-$(shell id -u))
DOC_TESTS := $(wildcard tests/docs) tests/test_house.py tests/test_layers.py

.PHONY: demo test test-clis test-full check format bench lock debian clean

demo: .venv/run.stamp  ## a whole run on a copy of this repository: plan, conflict, repair, kill, proof; in a temporary folder
	@$(BIN)/rw demo --human

test: debian .venv/dev.stamp  ## all tests but the slow ones; with CI=true the real agent programs too
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not slow and not clis"
	@if [ "$$CI" = true ]; then $(MAKE) --no-print-directory test-clis; fi

test-clis: debian .venv/dev.stamp  ## real agent programs from npm (2 GB) against the scripted model server
	@$(CLIS) $(BIN)/python tests/clis/install.py --at-once 2
	@$(CLIS) $(BIN)/python -m pytest $(PYTEST_FLAGS) -n 4 -m clis tests/clis

test-full: debian .venv/dev.stamp  ## all tests, every attack whole; writes the table of docs/reliability.md
	@rm -f .venv/sweep.jsonl
	@RWTEST_FULL=1 RWTEST_RACE_ROUNDS=5 RWTEST_MERGE_ROUNDS=24 RWTEST_SWEEP_RESULTS=$(CURDIR)/.venv/sweep.jsonl \
	  $(BIN)/python -m pytest $(PYTEST_FLAGS)
	@$(BIN)/python -m tests.crash.table .venv/sweep.jsonl

check: .venv/dev.stamp  ## format, lint, types, layers, and the tests of house and documents
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest -q $(DOC_TESTS)

format: .venv/dev.stamp  ## mends what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: .venv/run.stamp  ## the numbers of docs/performance.md (BENCH_FLAGS=--full for all of them)
	@$(BIN)/python bench/all.py $(BENCH_FLAGS)

lock: .venv/lock/stamp  ## requirements.lock anew, from the ranges in pyproject.toml
	@.venv/lock/bin/python .ci/lock.py

# what tests need beside Python; root gets it, anybody else is told
debian:
	@missing=""; PATH="$$PATH:/usr/sbin:/sbin"; \
	for pair in $(DEBIAN); do command -v $${pair%%:*} >/dev/null || missing="$$missing $${pair##*:}"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing$$missing" >&2; apt-get -qq update; \
	  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends $$missing >/dev/null; \
	else echo "the tests need$$missing: sudo apt-get install$$missing" >&2; exit 1; fi

.venv/made.stamp:
	@$(PYTHON) -m venv .venv || { echo "python3 has no venv module: sudo apt-get install python3-venv" >&2; exit 1; }
	@touch $@

.venv/run.stamp: .venv/made.stamp requirements.lock pyproject.toml
	@echo "installing ropewalk into .venv" >&2
	@sed '/^# development/,$$d' requirements.lock > .venv/run.lock
	@$(PIP) install --require-hashes -r .venv/run.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

.venv/dev.stamp: .venv/run.stamp
	@echo "installing what development needs into .venv" >&2
	@$(PIP) install --require-hashes -r requirements.lock
	@touch $@

.venv/lock/stamp: .venv/made.stamp
	@$(PYTHON) -m venv .venv/lock
	@.venv/lock/bin/python -m pip --quiet install "pip-tools>=7.4"
	@touch $@

clean:  ## removes what the other targets made
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
