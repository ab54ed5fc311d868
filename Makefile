# Everything a contributor runs. Each target makes the .venv it needs, so a fresh clone and Python 3.11 suffice.

.DEFAULT_GOAL := help
.PHONY: help run tour check test unit bench faults mutants format clean

# python3.11 if it runs, else python3; choose another with `make PYTHON=... check`.
PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)

# How long the fault campaign is: `make faults ROUNDS=1000`.
ROUNDS ?= 100

# Which mutants are planted, how many or by words: `make mutants MUTANTS=20`, `make mutants MUTANTS='dedup lease'`.
MUTANTS ?=

# Which benchmarks are run: `make bench BENCH=journal`.
BENCH ?= journal queues logs pipeline server

# Passed to the benchmarks and to pytest: `make bench BENCH_ARGS=--quick`, `make test PYTEST_ARGS='-k rot'`.
BENCH_ARGS ?=
PYTEST_ARGS ?=

# Passed to the server: `make run SERVE_ARGS='--tls-self-signed'`.
SERVE_ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq
CODE := $(wildcard src tests benchmarks examples docs/images tools)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: .venv/.ready-server  ## serve ./data on http://127.0.0.1:8080 (SERVE_ARGS='--port 9000')
	@$(BIN)/penstock serve --data-dir data --log-encoding console $(SERVE_ARGS)

tour: .venv/.ready-cli  ## a tour of the queues, without a server
	$(BIN)/python examples/tour.py

check: .venv/.ready-dev  ## format, lint, types, import arrows, the generated twin
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy --strict $(CODE)
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/twin.py --check

# Those that mostly wait, for Spark, for sockets, for the disk, run beside the others; what they say follows. Exit code 5: none was chosen.
BESIDE := tests/faults tests/server tests/pipeline
test: .venv/.ready-dev  ## every test but the long campaigns
	@$(BIN)/python -m pytest $(BESIDE) $(PYTEST_ARGS) > .venv/tests-beside.log 2>&1 & beside=$$!; \
	$(BIN)/python -m pytest $(addprefix --ignore ,$(BESIDE)) $(PYTEST_ARGS); first=$$?; \
	wait $$beside; second=$$?; cat .venv/tests-beside.log; \
	[ $$first -eq 0 ] || [ $$first -eq 5 ] || exit $$first; [ $$second -eq 0 ] || [ $$second -eq 5 ] || exit $$second

unit: .venv/.ready-dev  ## the quick ones only
	$(BIN)/python -m pytest tests/unit -m "not campaign and not lengthy" $(PYTEST_ARGS)

bench: .venv/.ready-bench  ## measure against the disk and other queues (BENCH=... BENCH_ARGS=...)
	set -e; for each in $(BENCH); do $(BIN)/python -m benchmarks.$$each $(BENCH_ARGS); done

faults: .venv/.ready-dev  ## the long fault campaign (ROUNDS=100)
	PENSTOCK_FAULT_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -m campaign -o timeout=0 -o faulthandler_timeout=0 $(PYTEST_ARGS)

mutants: .venv/.ready-dev  ## plant faults one by one; the tests must notice each (MUTANTS=20)
	$(BIN)/python tests/mutants/run.py $(MUTANTS)

format: .venv/.ready-dev  ## rewrite the code as `check` wants it
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

clean:  ## remove the .venv, caches and build products
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are newer than pyproject.toml while the .venv matches it.
.venv/.ready-cli: pyproject.toml | .venv/bin/python
	@$(PIP) --editable '.[cli]'
	@touch $@

.venv/.ready-server: pyproject.toml | .venv/bin/python
	@$(PIP) --editable '.[server]'
	@touch .venv/.ready-cli $@

.venv/.ready-dev: pyproject.toml | .venv/bin/python
	@$(PIP) --editable '.[dev]'
	@touch .venv/.ready-cli .venv/.ready-server $@

.venv/.ready-bench: pyproject.toml | .venv/bin/python
	@$(PIP) --editable '.[bench]'
	@touch .venv/.ready-cli .venv/.ready-server .venv/.ready-dev $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "Penstock needs Python 3.11 or later; '$(PYTHON)' is not. Try: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "setting up .venv (once) …"
	@$(PYTHON) -m venv .venv
