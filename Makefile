# Every target sets up .venv by itself on a fresh machine (Python 3.11 to 3.13, about 1.2 GB, a minute or two).
# `make PYTHON=python3.12 test` picks the interpreter; remove .venv to change it.

usable = for p in python3 python3.12 python3.11 python3.13; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done
PYTHON ?= $(shell $(usable))
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: quickstart test test-all lint format schema hooks

quickstart: $(STAMP)  ## from nothing to a promoted checkpoint
	$(BIN)/headrace run examples/calculator/calculator.toml

test: lint  ## what CI runs
	$(BIN)/python -m pytest -m "not slow"

test-all: lint  ## with the cross-checks that take minutes
	$(BIN)/python -m pytest

lint: $(STAMP)  ## what the commit hook runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

format: $(STAMP)  ## mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: $(STAMP)  ## regenerate the JSON Schema and the reference of the configuration
	$(BIN)/python -m schemas.json_schema examples/run.schema.json
	$(BIN)/python -m schemas.reference docs/configuration.md

hooks: $(STAMP)  ## run `make lint` before every commit
	$(BIN)/prek install

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 to 3.13 found; install one or give PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
