# Thin calls of `nextstate`; each first makes sure that its environment is there.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: install setup demo up down status logs lint test clean

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

test: lint setup
	$(BIN)/pytest $(ARGS)

bench-%: install
	@$(BIN)/python -m bench.$* $(ARGS)

proof-%: setup
	@$(BIN)/pytest tests/proof/$* $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
