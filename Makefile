# Two commands do everything: `make run` and `make test`. Both make the virtual environment they need.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
UV := $(BIN)/uv
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
# tests of whole programs, other people's clients and servers, and every door: 'make test' runs them, too
WHOLE := cli conformance interop interaction transports providers/upstream test_docs.py test_examples.py test_promises.py test_start.py

.PHONY: help run demo test check lint types house unit generate lock clean

help: ## Show these commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml requirements/bootstrap.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Toolyard needs Python 3.11 or newer. Name one with PYTHON=…")'
	@test -x $(UV) || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/bootstrap.txt; }
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes --requirement requirements/dev.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

run: $(READY) ## Serve the example yard over HTTP, at http://127.0.0.1:8321/mcp
	@echo "'make demo' shows what an agent sees of a yard with hundreds of tools." >&2
	@$(BIN)/toolyard serve examples/bank.py --transport http || [ $$? -eq 130 ]

demo: $(READY) ## Show what an agent sees of a yard with hundreds of tools
	@$(BIN)/toolyard demo

test: $(READY) ## Everything: gates, all tests, coverage, other Pythons that are installed
	@scripts/test

check: $(READY) ## The fast part: lint, types, house, unit tests
	@$(MAKE) --no-print-directory --output-sync=target -j 2 types lint house unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright

house: $(READY)
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate.py --check

unit: $(READY)
	$(BIN)/pytest -q -n 2 $(addprefix --ignore=tests/,$(WHOLE))

generate: $(READY) ## Write the generated pages of docs/reference anew
	$(BIN)/python scripts/generate.py

lock: $(READY) ## Lock the dependencies anew, with hashes and without addresses
	scripts/lock

clean: ## Remove what the other commands made
	rm -rf $(VENV) .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
