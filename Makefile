PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
FLOOR := build/floor-venv
FLOOR_STAMP := $(FLOOR)/.setup-done

# ARGS goes to `advreg train` or the driver of peers, PYTEST_ARGS to pytest: make train ARGS="--method arch",
# make test PYTEST_ARGS="-n 8". PEERS is the folder with the checkouts, PEERS_PYTHON has what their tests need.
ARGS ?=
PYTEST_ARGS ?=
PEERS ?=
PEERS_PYTHON ?= $(BIN)/python

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup train test slow floor browser chaos peers lint types docs check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install advreg with its development tools

# Always with the constraints: a looser request would pull another torch, gigabytes of it.
$(STAMP): pyproject.toml constraints.txt
	@echo "setup: $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "setup: installing advreg[dev] at the versions in constraints.txt"
	@$(BIN)/python -m pip install --quiet -e ".[dev]" -c constraints.txt
	@touch $@
	@echo "setup: done"

train: setup ## train with the default settings (ARGS="…" for others)
	$(BIN)/advreg train $(ARGS)

test: setup ## run the tests that need neither patience nor a GPU
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

slow: setup ## run the slow tests
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

floor: $(FLOOR_STAMP) ## run the smoke tests on the oldest versions that are supported
	$(FLOOR)/bin/python -m pytest -m smoke tests/smoke tests/hf/test_hooks.py $(PYTEST_ARGS)

$(FLOOR_STAMP): pyproject.toml constraints-floor.txt
	@echo "floor: $(FLOOR) with $$($(PYTHON) --version) and the versions in constraints-floor.txt"
	@$(PYTHON) -m venv --clear $(FLOOR)
	@$(FLOOR)/bin/python -m pip install --quiet -e ".[all]" pytest hypothesis -c constraints-floor.txt
	@touch $@

browser: setup ## open reports in Chromium (apt-get install chromium chromium-driver)
	$(BIN)/python -m pytest -m browser $(PYTEST_ARGS)

chaos: setup ## kill runs at random moments and resume them; a long run (about a quarter of an hour)
	$(BIN)/python tests/chaos.py

peers: $(if $(filter $(BIN)/python,$(PEERS_PYTHON)),setup) ## run transformers' and TRL's own tests with our trainers (PEERS=folder with their checkouts)
	PYTHONPATH=tests $(PEERS_PYTHON) -m peers "$(PEERS)" $(ARGS)

lint: setup ## ruff, and the direction of the imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup ## mypy --strict over src
	$(BIN)/mypy

docs: setup ## build the site into build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint types docs test ## lint, types, docs and test

clean: ## remove the environment, caches and build products (runs/ stays)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
