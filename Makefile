PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo demo-text test test-fast lint bench clean

demo: $(INSTALLED)  ## train on handwritten digits, then look at it in TensorBoard
	$(BIN)/python examples/digits.py fit --config configs/digits.yaml
	@printf '\nTo look inside, run\n\n    $(BIN)/tensorboard --logdir logs/digits\n\n'

demo-text: $(INSTALLED)  ## the same with a character transformer
	$(BIN)/python examples/char_transformer.py fit --config configs/char_transformer.yaml
	@printf '\nTo look inside, run\n\n    $(BIN)/tensorboard --logdir logs/char_transformer\n\n'

test: $(INSTALLED)  ## the whole suite
	$(BIN)/python -m pytest

test-fast: $(INSTALLED)  ## without what trains, spawns processes or needs a lot of memory
	$(BIN)/python -m pytest -m 'not slow'

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)  ## what it costs, as ratios to the bare step
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/pictures.py

$(INSTALLED): pyproject.toml setup.py src/hookboard/measure/_native.c
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[examples]' --group dev
	@touch $@

clean:
	rm -rf .venv logs .mypy_cache .pytest_cache .ruff_cache
