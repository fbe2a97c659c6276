PYTHON ?= python3
BIN := .venv/bin
RUNS := .venv/.runs
INSTALLED := .venv/.installed
OLDEST := .venv-oldest
OLDEST_INSTALLED := $(OLDEST)/.installed
SOURCES := pyproject.toml setup.py $(wildcard src/hookboard/*/*.[ch])
# Which tests `make test` and `make test-oldest` run: all.
TESTS ?=
# The parts of `make release-check`, in this order.
PARTS ?= agree lint test docs install-check
# As many tests at once as this; those that share what is slow to make stay together.
WORKERS ?= 2
SIDE_BY_SIDE = -n $(WORKERS) --dist loadgroup

.PHONY: demo demo-text demo-sick test test-fast test-oldest combinations browser lint bench bench-health docs package install-check agree release-check clean

demo: $(RUNS)  ## train on handwritten digits, then look at it in TensorBoard
	$(BIN)/python examples/digits.py fit --config configs/digits.yaml

demo-text: $(RUNS)  ## the same with a character transformer
	$(BIN)/python examples/char_transformer.py fit --config configs/char_transformer.yaml

demo-sick: $(RUNS)  ## the digits with a planted fault: what is said of a sick layer
	$(BIN)/python examples/sick.py digits

test: $(INSTALLED)  ## the whole suite
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(TESTS)

test-fast: $(INSTALLED)  ## without what compiles, starts processes or a browser, or is large
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m 'not (browser or compiles or spawns or large)'

test-oldest: $(OLDEST_INSTALLED)  ## the whole suite on the oldest versions that pyproject.toml allows
	$(OLDEST)/bin/python -m pytest $(SIDE_BY_SIDE) $(TESTS)

combinations: $(INSTALLED)  ## every two circumstances of a training in one run; SEED=7 tries others, and triples
	COMBINATIONS=all $(BIN)/python -m pytest -n $(WORKERS) tests/combinations

browser:  ## Chromium from Debian, for the tests that look at the tab; without it they are skipped
	command -v chromium || (apt-get -qq update && apt-get -qq install --yes chromium)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

bench: $(INSTALLED)  ## what it costs, as ratios to the bare step
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/pictures.py

bench-health: $(INSTALLED)  ## what HealthMonitor finds, beside the rules of other tools
	$(BIN)/python -m benchmarks.health

docs: $(INSTALLED)  ## the documents as a site, into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

package: $(INSTALLED)  ## the wheel and the source distribution, into dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

install-check: package  ## install both into a bare environment, as a stranger does, and train the digits
	PYTHON=$(PYTHON) .ci/install dist

agree:  ## changelog, citation and tag name the version of the package
	$(PYTHON) .ci/agree.py

release-check:  ## all that a release needs, from a clean clone; it publishes nothing
	@test -z "$$(git status --porcelain)" || { git status --short; echo 'Commit or remove this first.'; exit 1; }
	@for part in $(PARTS); do echo "== make $$part"; $(MAKE) --no-print-directory $$part || exit 1; done
	@$(PYTHON) .ci/agree.py
	@echo 'All parts passed. Do what is named "before a tag" above, if anything is, then push one: that publishes.'

# What the examples need and no more. pip is silent for minutes while it downloads and unpacks: the size grows instead.
# It would also compile all of torch, for half a minute: what the examples import is compiled here instead.
$(RUNS): $(SOURCES)
	@test -d .venv || $(PYTHON) -m venv .venv
	@echo 'Installing hookboard and what it needs into .venv: torch, torchvision, Lightning, TensorBoard, scikit-learn.'
	@echo 'That is 6 GB, most of it CUDA; README.md says how to do without.'
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@(while sleep 10; do du -sm .venv | sed 's/\s.*/ MB so far/'; done) & trap "kill $$!" EXIT; \
		$(BIN)/python -m pip install --quiet --no-compile --editable '.[examples]' && \
		$(BIN)/python -c 'import hookboard, lightning.pytorch.cli, sklearn.datasets, torchvision'
	@touch $@

$(INSTALLED): $(RUNS)
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

$(OLDEST_INSTALLED): $(SOURCES) requirements/oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(OLDEST)/bin/python -m pip install --quiet --editable '.[examples,notebook]' --group test --constraint requirements/oldest.txt
	@touch $@

clean:
	rm -rf .venv $(OLDEST) build dist logs .mypy_cache .pytest_cache .ruff_cache
