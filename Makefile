# Everything runs in a private virtual environment; nothing but Python 3.11+ and the package registries is needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help demo reproduce test lint types imports unit system bench docs clean

help: ## Show the targets.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; say make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY) ## Build, sign, push to a folder store, fetch, verify and run: the main job on embedded defaults.
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python docs/demo.py

reproduce: $(READY) ## Build every artifact twice, under conditions as unlike as can be had, and compare.
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.reproduce

test: lint types imports unit ## Lint, types, direction of imports, and the tests.

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

unit: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -m 'not system' -n 2 --cov --cov-report=term:skip-covered --cov-fail-under=80

system: $(READY) ## Tests against the real toolchain sources and public Go programs.
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -m system

bench: $(READY) ## Our cost as ratios against peers, each pair in one run.
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/run.py

docs: $(READY) ## Write the generated pages of docs/ again.
	$(BIN)/python -m meshbuild.cli.reference

clean: ## Remove what was built, the virtual environment and the project's own state (keys and store included).
	rm -rf dist .meshbuild $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
