PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: test test-fast lint clean

test: $(INSTALLED)  ## the whole suite
	$(BIN)/python -m pytest

test-fast: $(INSTALLED)  ## without what trains, spawns processes or needs a lot of memory
	$(BIN)/python -m pytest -m 'not slow'

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

clean:
	rm -rf .venv logs .mypy_cache .pytest_cache .ruff_cache
