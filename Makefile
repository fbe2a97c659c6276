PYTHON ?= python3
# Which versions are installed: `tested`, those that were tested last, into .venv; `newest`, into .venv-newest; or
# `oldest`, the lower bounds of pyproject.toml, into .venv-oldest.
VERSIONS ?= tested
VENV := .venv$(filter-out -tested,-$(VERSIONS))
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
INSTALLED := $(VENV)/.installed
PINS := $(filter-out requirements/newest.txt,requirements/$(VERSIONS).txt)
CONSTRAINED = $(addprefix --constraint ,$(PINS)) $(addprefix --build-constraint ,$(PINS))
SOURCES := pyproject.toml setup.py $(wildcard src/hookboard/*/*.[ch]) $(PINS)
# On the oldest versions the tests that need more groups than these are skipped.
FOR_TESTS := $(if $(filter oldest,$(VERSIONS)),--group test --group frames,--group dev)
# A warning is an error, but for what only the newest versions warn of.
WARNINGS := $(if $(filter newest,$(VERSIONS)),-W default)
# What Python compiles is kept, though the environment says otherwise: each process of the tests would compile all of
# torch and Lightning that it imports, for ten seconds.
export PYTHONDONTWRITEBYTECODE :=
# Options of pytest, such as a folder of tests.
TESTS ?=
# The parts of `make release-check`, in this order.
PARTS ?= agree lint test-all docs install-check
# As many tests at once as this; those that share what is slow to make stay together.
WORKERS ?= 2
SIDE_BY_SIDE = -n $(WORKERS) --dist loadgroup $(WARNINGS)

.PHONY: demo demo-text demo-sick test test-all test-fast test-oldest combinations pins browser lint bench bench-health docs package install-check agree release-check clean

demo: $(RUNS)  ## train on handwritten digits, then look at it in TensorBoard
	$(BIN)/python examples/digits.py fit --config configs/digits.yaml

demo-text: $(RUNS)  ## the same with a character transformer
	$(BIN)/python examples/char_transformer.py fit --config configs/char_transformer.yaml

demo-sick: $(RUNS)  ## the digits with a planted fault: what is said of a sick layer
	$(BIN)/python examples/sick.py digits

test: $(INSTALLED)  ## in four minutes, without what is thorough
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m 'not thorough' $(TESTS)

test-all: $(INSTALLED)  ## the whole suite
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(TESTS)

test-fast: $(INSTALLED)  ## without what compiles, starts processes or a browser, or is large
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m 'not (browser or compiles or spawns or large or thorough)'

test-oldest:  ## the whole suite on the oldest versions that pyproject.toml allows
	$(MAKE) --no-print-directory test-all VERSIONS=oldest

pins: $(INSTALLED)  ## `make pins VERSIONS=newest`, once the tests pass there, makes those the versions that were tested last
	$(BIN)/python .ci/pins.py >requirements/tested.txt

combinations: $(INSTALLED)  ## every two circumstances of a training in one run; SEED=7 tries others, and triples
	COMBINATIONS=all $(BIN)/python -m pytest -n $(WORKERS) $(WARNINGS) tests/combinations

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
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo 'Installing hookboard and what it needs into $(VENV): torch, torchvision, Lightning, TensorBoard, scikit-learn.'
	@echo 'That is 6 GB, most of it CUDA; README.md says how to do without.'
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.3' $(addprefix --constraint ,$(PINS))
	@(while sleep 10; do du -sm $(VENV) | sed 's/\s.*/ MB so far/'; done) & trap "kill $$!" EXIT; \
		$(BIN)/python -m pip install --quiet --no-compile --editable '.[examples]' $(CONSTRAINED) && \
		$(BIN)/python -c 'import hookboard, lightning.pytorch.cli, sklearn.datasets, torchvision'
	@touch $@

$(INSTALLED): $(RUNS)
	$(BIN)/python -m pip install --quiet $(FOR_TESTS) $(CONSTRAINED)
	@touch $@

clean:
	rm -rf .venv .venv-newest .venv-oldest build dist logs .mypy_cache .pytest_cache .ruff_cache
