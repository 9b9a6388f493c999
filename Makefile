# Two commands set everything up on a fresh machine: `make quickstart` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help quickstart train-quickstart test check bench schema clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Uni-Agent needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.run-installed: $(BIN)/python pyproject.toml requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --constraint requirements/cpu.txt --editable '.[embedded]'
	@touch $@

$(VENV)/.dev-installed: $(BIN)/python pyproject.toml requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --constraint requirements/cpu.txt --editable '.[embedded,datasets,ray,renderers,tinker,train,dev]'
	@touch $@ $(VENV)/.run-installed $(VENV)/.train-installed

$(VENV)/.train-installed: $(BIN)/python pyproject.toml requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --constraint requirements/cpu.txt --editable '.[embedded,train]'
	@touch $@ $(VENV)/.run-installed

quickstart: $(VENV)/.run-installed  ## run the quickstart policy on the shell-basics suite, in sandboxes on this host
	$(BIN)/uni-agent run configs/quickstart.yaml

train-quickstart: $(VENV)/.train-installed  ## train the quickstart policy on the same tasks with verl, on the CPU
	$(BIN)/uni-agent run configs/quickstart_train.yaml

test: check  ## lint, types and all tests; what CI runs
	$(BIN)/python -m pytest -q -n auto --durations=10

check: $(VENV)/.dev-installed  ## the fast half: lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/.dev-installed  ## benchmarks; results as JSON on stdout
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/gateway.py --quick

schema: $(VENV)/.run-installed  ## write the JSON schema that the YAML files point at
	$(BIN)/uni-agent schema --write

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info
