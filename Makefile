# Everything runs in .venv, which `make setup` builds from requirements.lock; nothing else is needed than Python and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SECONDS ?=
SEED ?=
CASES ?=
KIND ?=

.PHONY: help setup demo test-fast test test-all check docs bench soak interop clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv with everything the other targets use

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(STAMP)

demo: setup ## a million messages with the power cut in the middle: is one lost, does one come early or twice?
	@mkdir -p build
	$(BIN)/bookstand demo --report build/demo-report.html

test-fast: setup ## the tests of the core that take no second each
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not long and not slow" tests/proto tests/storage tests/ledger tests/cursor tests/delivery

test: setup ## the tests without those marked long
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not long"

test-all: setup ## all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: setup ## lint, types, import rules, contents of the wheel
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/packaging

docs: setup ## the site, into build/site; a link to nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: setup ## every figure beside its baseline
	$(BIN)/python -m benchmarks

soak: setup ## long campaigns: SECONDS=… SEED=… or CASES=… KIND=…; writes build/soak.json
	$(BIN)/python -m tests.soak $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES)) $(if $(KIND),--kind $(KIND))

interop: setup ## let the originals read what bookstand writes, and use what it serves (needs Maven and a JDK)
	$(BIN)/python -m tests.interop

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info
