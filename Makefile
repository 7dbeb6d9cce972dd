# Thin calls of `nextstate`; each first makes sure that its environment is there.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: install setup demo up down status logs lint test audit clean

install:
	@test -n "$(PYTHON)" || { echo "nextstate: Python 3.11 or later is needed" >&2; exit 1; }
	@$(PYTHON) -m gateway.local.environments $(VENV)

setup: install
	@$(BIN)/nextstate setup

demo up down status logs: install
	@$(BIN)/nextstate $@ $(ARGS)

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Processes share the tests by file, each with a database server of its own; one has the engine.
test: lint setup
	$(BIN)/pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

bench-%: install
	@$(BIN)/python -m bench.$* $(ARGS)

# All that is held of the wire. What `test` tries too is here with the counts of a proof, and what
# has passed is not run again until something changes (tests/proof/wire/progress.py).
WIRE := tests/proof/wire $(filter-out %/test_dashboard.py,$(wildcard tests/contract/test_*.py)) \
	$(wildcard tests/unit/test_wire_*.py tests/unit/test_tokens_*.py) tests/unit/test_records_reply.py \
	tests/integration/test_gateway_traps.py tests/integration/test_gateway_sglang.py \
	tests/integration/test_token_checks.py

proof-wire: setup
	@$(BIN)/pytest $(WIRE) $(ARGS)

proof-%: setup
	@$(BIN)/pytest tests/proof/$* $(ARGS)

# Asks the network, so that `test` does not. Strict: what the index cannot tell of is no pass.
audit: install
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet pip-audit==2.10.1
	build/audit/bin/pip-audit --strict --no-deps --disable-pip -r locks/app.txt -r locks/dev.txt -r locks/engine-cpu.txt

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
