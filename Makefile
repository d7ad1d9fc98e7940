# 'make run' starts an example, 'make test' checks everything. Each command makes the virtual environment it needs.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
UV := $(BIN)/uv
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
# Slow tests, which start programs, real clients and real servers. 'make check' leaves them out, 'make test' runs them.
WHOLE := agents/test_api.py agents/test_sdks.py cli conformance console inject/test_sdks.py interop interaction jobs/test_kills.py jobs/test_worker_kills.py jobs/test_workers.py launch monitor/test_blocked_loop.py packs/test_example.py probe policy/test_dodges_by_arguments.py policy/test_switch_rounds.py runtimes state/test_replicas.py test_attacks.py transports providers/openapi/real providers/upstream test_docs.py test_examples.py test_promises.py test_start.py

.PHONY: help run demo test soak check lint types house unit generate lock clean

help: ## Show these commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml requirements/bootstrap.txt requirements/dev.txt $(wildcard packs/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Callyard needs Python 3.11 or newer. Set it with PYTHON=…")'
	@test -x $(UV) || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/bootstrap.txt; }
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes --requirement requirements/dev.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@for pack in $(wildcard packs/*/pyproject.toml); do $(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable $$(dirname $$pack) || exit 1; done
	@touch $@

# The trap keeps the shell alive on Ctrl-C, which ends only the server; otherwise make would print "*** Interrupt".
run: $(READY) ## Serve the example yard at http://127.0.0.1:8321/mcp, with a console; CALLYARD_PORT=8399 make run takes another port
	@trap : INT; PATH="$(abspath $(BIN)):$$PATH" $(BIN)/callyard serve examples/bank.toml || [ $$? -eq 130 ]

demo: $(READY) ## Show what an agent sees of a yard with hundreds of tools
	@$(BIN)/callyard demo
	@printf "\n   First type '. %s/activate', which puts 'callyard' on your PATH.\n" $(BIN)

test: $(READY) ## Everything: lint, types, layers, all tests, coverage, core tests on other Pythons; about 35 minutes on 2 cores
	@VENV=$(VENV) scripts/test

soak: $(READY) ## Long runs: more examples, more attacks, more kills, more documents; a tenth of them is in 'make test'
	scripts/install-test-packages
	CI_ATTACKS=full $(BIN)/pytest -q tests/runtimes/test_attacks.py
	CI_EXAMPLES=20000 $(BIN)/pytest -q -n 2 tests/test_promises.py
	CI_RECORDS=10000000 $(BIN)/pytest -q tests/monitor/test_metrics.py
	CI_EXAMPLES=1000 $(BIN)/pytest -q -n 2 $$(grep -rlE '^from hypothesis' tests --include='test_*.py' | grep -v test_promises.py)
	KILLS=50 $(BIN)/pytest -q -s tests/jobs/test_kills.py
	WORKER_KILLS=100 $(BIN)/pytest -q -s tests/jobs/test_worker_kills.py
	EDITS=1000 $(BIN)/pytest -q -s packs/darkroom/tests/test_kills.py
	KILLS=100 ACTIONS=1000 $(BIN)/pytest -q -s packs/browser/tests
	APPROVALS=100 $(BIN)/pytest -q -s tests/policy/test_kills.py
	ROUNDS=100 $(BIN)/pytest -q -s tests/policy/test_switch_rounds.py
	INCIDENT_RUNS=100 $(BIN)/pytest -q tests/monitor/test_incidents.py
	CUTS=1000 $(BIN)/pytest -q -s tests/state/test_redis_bad_days.py
	REPLICA_ROUNDS=10 $(BIN)/pytest -q -s tests/transports/http/test_replicas.py
	CI_IMAGE=18321 $(BIN)/pytest -q tests/test_deploy.py
	PROBES=1000 WATCH_RUNS=100 $(BIN)/pytest -q tests/probe
	CI_DOCUMENTS=all CI_OPERATIONS=500 $(BIN)/pytest -q tests/providers/openapi/real

check: $(READY) ## The fast part: lint, types, layers, unit tests; under two minutes
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
	CI_EXAMPLES=100 $(BIN)/pytest -q -n 2 $(addprefix --ignore=tests/,$(WHOLE)) tests $(filter-out packs/browser/tests,$(wildcard packs/*/tests)) $(addprefix --ignore=packs/darkroom/tests/,test_engines.py test_kills.py)

generate: $(READY) ## Write the generated pages of docs/reference
	$(BIN)/python scripts/generate.py

lock: $(READY) ## Lock the dependencies, with hashes and without addresses of package indexes
	VENV=$(VENV) scripts/lock

clean: ## Remove the virtual environments and everything else the commands made
	rm -rf $(VENV) .venv-3.* .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
