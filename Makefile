# make report and make test create the environment themselves; nothing else is needed but Python, git and make.
PYTHON ?= python3
MODEL ?= bolt-nano
SERIES ?= bundled:leisure_jobs,co2,seattle_heat
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup report sweep-demo pictures test test-core test-studies test-site house core test-hard exhaustive campaigns mutants figures-check test-latest test-minimal test-sdist lint typecheck docs conformance planted-scores compression-scores bench notebook clean
.DEFAULT_GOAL := report

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt requirements-nodeps.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -c constraints.txt -e ".[static,notebook,docs,dev,all]"
	$(BIN)/python -m pip install --no-deps -r requirements-nodeps.txt
	@touch $@

report: $(STAMP)
	$(BIN)/tsfm-lens report $(MODEL) --data $(SERIES) --horizon 24 --out report

# go on with a sweep that was stopped, or show what it found, by the same command
sweep-demo: $(STAMP)
	$(BIN)/tsfm-lens sweep examples/sweep-demo.yaml --store sweep-demo.store --engine processes --workers 2
	$(BIN)/tsfm-lens sweep report sweep-demo.store --out sweep-report

# the pictures of README, the site and the card for links, from the code at hand; needs a Chromium
pictures: $(STAMP)
	$(BIN)/python tools/draw_pictures.py

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 $(TESTS)

# the suite in three parts, for three machines: the core, the studies, and what speaks of the repository
SITE_TESTS := $(wildcard tests/test_*.py)
CORE_TESTS := $(filter-out tests/studies/ tests/__pycache__/,$(wildcard tests/*/))
test-core: $(STAMP)
	$(BIN)/python -m pytest -n 2 $(CORE_TESTS)

test-studies: $(STAMP)
	$(BIN)/python -m pytest -n 2 tests/studies

test-site: $(STAMP)
	$(BIN)/python -m pytest -n 2 $(SITE_TESTS)

# the suite while four busy processes run: plain kernels, AVX2 kernels, two threads; HARD=avx2 runs one of them
test-hard: $(STAMP)
	$(BIN)/python tools/suite_under_load.py $(HARD) -- $(TESTS)

# further models, seeds and mechanisms of what tests try on some
exhaustive: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m exhaustive $(TESTS)

# thousands of generated cases a kind; TSFM_LENS_CASES sets how many
campaigns: $(STAMP)
	$(BIN)/python -m pytest -m campaign

# faults planted in a copy of the package, each of which tests must notice; ONLY="hooks probes" plants those of some
mutants: $(STAMP)
	$(BIN)/python tools/mutants.py $(ONLY)

# every figure in a browser, with long names and units, negative values, one and forty series, on the
# screen and in both columns of print: no text that overlaps or is cut; some eight minutes
figures-check: $(STAMP)
	$(BIN)/python -m pytest -m campaign -o log_cli=true --log-cli-level=INFO tests/viz/test_words.py

# the newest versions that pyproject.toml allows, in an environment of its own; torch stays as it is, since every other
# build of it is gigabytes
LATEST := .venv-latest/bin
test-latest:
	test -x $(LATEST)/python || $(PYTHON) -m venv .venv-latest
	echo torch==2.13.0 > .venv-latest/torch.txt
	$(LATEST)/python -m pip install --quiet --upgrade pip
	$(LATEST)/python -m pip install torch==2.13.0
	$(LATEST)/python -m pip install --upgrade --upgrade-strategy eager -c .venv-latest/torch.txt -e ".[static,notebook,docs,dev,all]"
	$(LATEST)/python -m pip install --no-deps -r requirements-nodeps.txt
	$(LATEST)/python -m pytest -n 2 $(TESTS)

# every command with the mandatory dependencies alone, in an environment of its own
MINIMAL := .venv-minimal/bin
test-minimal:
	test -x $(MINIMAL)/python || $(PYTHON) -m venv .venv-minimal
	$(MINIMAL)/python -m pip install --quiet --upgrade pip
	$(MINIMAL)/python -m pip install -c constraints.txt torch==2.13.0
	$(MINIMAL)/python -m pip install -c constraints.txt -e . pytest
	$(MINIMAL)/python -m pytest -p no:cacheprovider --noconftest -o addopts=--import-mode=importlib tests/minimal

# the source distribution, unpacked where nothing else is, passes its own suite; TESTS="tests/models" runs a part
test-sdist: $(STAMP)
	set -e; package=$$(mktemp -d); trap 'rm -rf "$$package"' EXIT; python=$(abspath $(BIN))/python; \
	$$python -m hatchling build -t sdist -d "$$package"; \
	mkdir "$$package/source"; tar -xzf "$$package"/*.tar.gz -C "$$package/source" --strip-components 1; \
	cd "$$package/source"; PYTHONPATH="$$PWD" $$python -m pytest -n 2 $(TESTS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

house: $(STAMP)
	@$(BIN)/python tools/house.py

# the tests of the core where there are no studies; what speaks of the whole repository is left to make test
core: $(STAMP)
	set -e; package=$$(mktemp -d); trap 'rm -rf "$$package"' EXIT; python=$(abspath $(BIN))/python; \
	git ls-files -z | grep -zv '/studies/' | xargs -0 cp --parents -t "$$package"; \
	cd "$$package"; PYTHONPATH="$$PWD" $$python -m pytest -n 2 -k "not generated" $(or $(TESTS),$(CORE_TESTS) tests/test_house.py)

typecheck: $(STAMP)
	$(BIN)/mypy

# the site in docs/_build/html; a warning, such as a link that leads nowhere, ends it
docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

conformance: $(STAMP)
	$(BIN)/python -m pytest -m published

# every probe and explanation on models whose mechanism is known; ONLY=gate-chronos METHOD=shapley measures a part
planted-scores: $(STAMP)
	$(BIN)/python -m tsfm_lens.studies.bench.planted --out docs/planted.md $(addprefix --model ,$(ONLY)) $(if $(METHOD),--method "$(METHOD)") $(addprefix --since ,$(SINCE))

# rise of the error by method of compression, on sources that did not calibrate
compression-scores: $(STAMP)
	$(BIN)/python -m benchmarks.compress quality --out docs/compressing.md

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[bench]"
	$(BIN)/python -m benchmarks

notebook: $(STAMP)
	$(BIN)/python -m pytest tests/test_examples.py

clean:
	rm -rf .venv .venv-latest .venv-minimal docs/_build docs/_cache report sweep-demo.store sweep-report bench dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
