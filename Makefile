# `make demo` and `make test` are the two commands to start with; `make help` lists the others.
# Everything runs in .venv, which the first target that needs it builds from the exact versions in constraints.txt.

PYTHON ?= python3
VENV := .venv
NIGHTLY := .venv-nightly
RIVALS := .venv-rivals
INSTALLED := .venv-dist
STAMP := $(VENV)/.installed
NIGHTLY_STAMP := $(NIGHTLY)/.installed
RIVALS_STAMP := $(RIVALS)/.installed
PY := $(VENV)/bin/python
PYTEST_WORKERS ?= 2
PYTEST_ARGS ?=
PYTEST := -m pytest -n $(PYTEST_WORKERS) --dist worksteal --durations=10

# Containers often have Python write no bytecode. The tests start a hundred processes, each of which would compile the
# package's and the tests' modules anew.
unexport PYTHONDONTWRITEBYTECODE

# What another release of torchax can break.
NIGHTLY_TESTS := tests/compat tests/test_pytrees.py tests/generation/test_parity.py $(wildcard tests/test_activation.py)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-all test-nightly check format bench house dist test-dist docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## build .venv and nothing else

demo: $(STAMP) ## lint, port, run and time a tiny Llama and a tiny HunyuanVideo-1.5 beside torch; compile Llama-2-7B for v5e
	$(PY) -m recipes.llama
	$(PY) -m recipes.hunyuan_video
	$(PY) benchmarks/decode.py --quick
	$(VENV)/bin/tpuport compile llama-2-7b --topology v5e:2x4 --task decode --profile

test: $(STAMP) ## the tests, except the slow ones
	$(PY) $(PYTEST) $(PYTEST_ARGS)

test-all: $(STAMP) ## every test, with more examples of each property
	TPUPORT_THOROUGH=1 $(PY) $(PYTEST) -m "slow or not slow" $(PYTEST_ARGS)

test-nightly: $(NIGHTLY_STAMP) ## the tests that depend on torchax, with the torchax of constraints-nightly.txt
	$(NIGHTLY)/bin/python $(PYTEST) $(PYTEST_ARGS) $(NIGHTLY_TESTS)

check: $(STAMP) ## format, lint, types, the order of the rooms
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) -m pyright
	$(VENV)/bin/lint-imports

format: $(STAMP) ## write the formatting and the fixes that `check` asks for
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

bench: $(STAMP) $(RIVALS_STAMP) ## the measurements that the documentation quotes
	$(PY) benchmarks/decode.py
	$(PY) benchmarks/denoise.py
	$(PY) benchmarks/load.py
	$(PY) -m benchmarks.topology
	$(PY) -m benchmarks.coverage --every 100 --again --stored $(VENV)/coverage-sample.json
	$(PY) benchmarks/lint.py --rival $(RIVALS)/bin/torchfix
	$(PY) -m benchmarks.times --table
	$(PY) benchmarks/attention_cost.py
	$(PY) benchmarks/attention_error.py --plot docs/img/attention-error.svg

house: $(STAMP) ## figures of how readable the package is: branches, names, comments, call chains, import circles
	$(PY) benchmarks/readability.py

dist: $(STAMP) ## a wheel and an sdist to publish, into dist/; the same bytes from the same sources
	@rm -rf dist
	$(PY) -m hatchling build --directory dist

test-dist: dist ## install the wheel and its newest dependencies into an empty environment; doctor, a lint and a port there
	@rm -rf $(INSTALLED)
	$(call make_environment,$(INSTALLED))
	$(INSTALLED)/bin/python -m pip install --quiet dist/*.whl
	cd $(INSTALLED) && bin/python -P ../tests/installed_package.py

docs: $(STAMP) ## the documentation, into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict

clean: ## remove the environments and everything built
	rm -rf $(VENV) $(NIGHTLY) $(RIVALS) $(INSTALLED) site dist .tpuport_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call make_environment,environment): a Python without ensurepip (Debian's, without python3-venv) installs pip from
# outside with its own.
define make_environment
$(PYTHON) -m venv --clear $(1) >/dev/null || { rm -rf $(1) && $(PYTHON) -m venv --without-pip $(1) \
	  && $(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }
endef

# $(call install,environment,constraints): into an empty environment, or over one whose installation was complete.
# The stamp goes before anything changes and comes back last, so an interrupted installation starts over.
define install
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "tpuport needs Python 3.11 or newer, and $(PYTHON) is %d.%d: run make PYTHON=/path/to/python3.11 ..." % v[:2])'
	@if [ -f $(1)/.installed ]; then rm $(1)/.installed; else \
	  $(make_environment); fi
	$(1)/bin/python -m pip install --quiet --constraint $(2) hatchling editables
	$(1)/bin/python -m pip install --quiet --constraint $(2) --no-build-isolation --editable '.[dev,docs]'
	@touch $(1)/.installed
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,$(VENV),constraints.txt)

# The same versions as everywhere, but for the packages that constraints-nightly.txt names.
$(NIGHTLY)-constraints.txt: constraints.txt constraints-nightly.txt
	@sed -n 's/^\([A-Za-z0-9_.-]*==\).*/^\1/p' constraints-nightly.txt > $@.names
	@{ grep -v -f $@.names constraints.txt; cat constraints-nightly.txt; } > $@
	@rm $@.names

$(NIGHTLY_STAMP): pyproject.toml $(NIGHTLY)-constraints.txt
	$(call install,$(NIGHTLY),$(NIGHTLY)-constraints.txt)

# TorchFix wants an older libcst than ours, so it has an environment of its own.
$(RIVALS_STAMP): $(STAMP) constraints-rivals.txt
	@rm -rf $(RIVALS)
	$(PYTHON) -m venv --without-pip $(RIVALS)
	$(PY) -m pip --python $(RIVALS)/bin/python install --quiet --requirement constraints-rivals.txt
	@touch $@
