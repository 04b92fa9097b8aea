# make demo    run notebooks/quickstart.ipynb in a real kernel and print what each rank did
# make test    run every test
# make lab     open JupyterLab on the quickstart
# make lint    lint, types, import contract
# make docs    build the documentation into docs/_build
# make bench   run the benchmarks and write docs/explanation/benchmarks.md; with PEERS=1, install the peers first
# make soak    launch 1,000 runs, end one in three in a random way, count what is left; RUNS=100 for fewer
# make screenshots   make the pictures of the documentation anew, from real runs
# make binder-check  do what Binder does, in an empty environment
# make dist    build the wheel and the sdist, and try them in empty environments with each Python; DIST_ARGS=--help
# make strip   take the outputs out of the notebooks, as they are stored
#
# Each sets up .venv by itself; a second run finds it ready. PYTHON=python3.12 chooses the interpreter, and
# CONSTRAINTS=FILE limits the versions that pip takes, as in CONSTRAINTS=tests/constraints.txt make test.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
CONSTRAINTS ?=
PYTEST_ARGS ?=
RUNS ?= 1000
DIST_ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
FRONTEND := nbproc/notebook/frontend
HOOK := $(BIN)/python $(FRONTEND)/hatch_build.py
ROOT_OPTION := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help demo test test-python test-frontend lab lint docs screenshots binder-check bench soak dist strip bundle chromium

help:
	@sed -n '/^# make/s/^# //p' Makefile

demo: .venv/.demo.stamp bundle
	$(BIN)/python notebooks/run_demo.py

lab: .venv/.demo.stamp bundle
	$(BIN)/jupyter lab $(ROOT_OPTION) notebooks/quickstart.ipynb

test: test-frontend test-python

test-python: .venv/.test.stamp bundle chromium
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-frontend: .venv/.test.stamp $(FRONTEND)/node_modules/.stamp
	$(HOOK) npm run check
	$(HOOK) npm test

lint: .venv/.test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/.docs.stamp bundle
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

screenshots: .venv/.test.stamp bundle chromium
	$(BIN)/python docs/screenshots.py

binder-check:
	$(PYTHON) binder/check.py

# The peers come with the torch that is there: a benchmark that changed what it measures would be none.
bench: .venv/.bench.stamp bundle
	@if [ -n "$(PEERS)" ]; then $(PIP) "torch==$$($(BIN)/python -c 'import torch; print(torch.__version__.partition("+")[0])')" accelerate ipyparallel loky; fi
	$(BIN)/python tests/benchmarks/run.py

soak: .venv/.test.stamp
	$(BIN)/python tests/soak.py $(RUNS)

dist: .venv/.dist.stamp bundle
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tests/release/run.py dist/* $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS)) $(DIST_ARGS)

strip: .venv/.demo.stamp
	$(BIN)/jupyter nbconvert --clear-output --inplace notebooks/*.ipynb

# One stamp for each set of dependencies: pip runs again only if what it would be told has changed.
.venv/.%.stamp: pyproject.toml $(CONSTRAINTS) | .venv/bin/python
	@echo "Setting up .venv for 'make $*': this takes a few minutes the first time."
	$(PIP) hatchling
	@for package in $$($(HOOK) requirements); do $(PIP) "$$package"; done
	$(PIP) --editable '.[$*]'
	@touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "nbproc needs Python 3.10 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv

$(FRONTEND)/node_modules/.stamp: $(FRONTEND)/package-lock.json
	$(HOOK) npm ci --no-audit --no-fund
	@touch $@

# The bundle is built when its sources are newer; the script looks.
bundle: | .venv/.demo.stamp
	@$(HOOK)

# The tests of the view drive JupyterLab in Chromium. On Debian and its relatives it is fetched if that needs no password.
chromium:
	@if command -v chromium chromium-browser google-chrome >/dev/null; then :; \
	elif ! command -v apt-get >/dev/null; then \
	    echo "The tests need Chromium on PATH; install it with your system's package manager." >&2; exit 1; \
	elif [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq chromium >/dev/null; \
	elif sudo -n true 2>/dev/null; then sudo -n apt-get update -qq && sudo -n apt-get install -y -qq chromium >/dev/null; \
	else echo "The tests need Chromium. Get it with:  sudo apt-get update && sudo apt-get install -y chromium" >&2; exit 1; fi
