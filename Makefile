# `make demo` and `make test` are the two commands to start with; `make help` lists the others.
# Everything runs in .venv, which the first target that needs it builds from the exact versions in constraints.txt.

PYTHON ?= python3
ANY_PYTHON := $(PYTHON)
VENV := .venv
NEWEST := .venv-newest
OLDEST := .venv-oldest
LIBRARIES := .venv-libraries
RIVALS := .venv-rivals
INSTALLED := .venv-dist
STAMP := $(VENV)/.installed
NEWEST_STAMP := $(NEWEST)/.installed
OLDEST_STAMP := $(OLDEST)/.installed
LIBRARIES_STAMP := $(LIBRARIES)/.installed
RIVALS_STAMP := $(RIVALS)/.installed
PY := $(VENV)/bin/python
PYTEST_WORKERS ?= 2
PYTEST_ARGS ?=
PYTEST := -m pytest -n $(PYTEST_WORKERS) --dist worksteal --durations=10
# Of `test-newest`: a file of exact versions in place of the newest, such as constraints-newest.txt; more requirements.
PINS ?=
WITH ?= 'torchax>=0.0.14.dev0'

# Containers often have Python write no bytecode. The tests start a hundred processes, each of which would compile the
# package's and the tests' modules anew.
unexport PYTHONDONTWRITEBYTECODE

# What a release of transformers, diffusers, accelerate or PEFT can break, in a few minutes: imports, private names,
# language models and pipelines beside torch, adapters, a recipe.
LIBRARY_TESTS := tests/test_import.py tests/compat/test_probes.py tests/generation/test_parity.py tests/compilation/test_adapters.py \
  $(foreach name,FluxPipeline WanPipeline StableDiffusionPipeline,'tests/diffusion/test_pipeline_families.py::test_a_family[$(name)]') \
  tests/recipes/test_llama_recipe.py::test_the_tiny_llama_on_a_mesh_says_what_torch_says

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-all test-newest test-oldest test-libraries combinations check format bench house dist test-dist docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## build .venv and nothing else

demo: $(STAMP) ## lint, port, run and time a tiny Llama and a tiny HunyuanVideo-1.5 beside torch; compile Llama-2-7B for v5e
	$(PY) -m recipes.llama
	$(PY) -m recipes.hunyuan_video
	$(PY) benchmarks/decode.py --quick
	$(VENV)/bin/tpuport compile llama-2-7b --topology v5e:2x4 --task decode --profile

test: $(STAMP) ## the tests, except the slow ones
	$(call run_tests,$(VENV))

test-all: $(STAMP) ## every test, with more examples of each property
	TPUPORT_THOROUGH=1 $(PY) $(PYTEST) -m "slow or not slow" $(PYTEST_ARGS)

test-newest: $(NEWEST_STAMP) ## the tests with the newest release of everything, on the newest Python of this machine
	$(call run_tests,$(NEWEST))

test-oldest: $(OLDEST_STAMP) ## the tests with the lowest supported versions, on Python 3.11
	$(call run_tests,$(OLDEST))

test-libraries: $(LIBRARIES_STAMP) ## a sample of the tests with the newest transformers, diffusers, accelerate and PEFT
	PYTHONPATH=. $(LIBRARIES)/bin/python -m tpuport doctor
	PYTHONPATH=. $(LIBRARIES)/bin/python $(PYTEST) -m "slow or not slow" $(PYTEST_ARGS) $(LIBRARY_TESTS)

combinations: $(STAMP) ## write what the tests gave in each environment into the table of docs/install.md
	$(PY) docs/gen_combinations.py $(wildcard .venv*/tests.xml)

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
	$(PY) benchmarks/import_time.py
	$(PY) benchmarks/load.py
	$(PY) -m benchmarks.topology
	$(PY) -m benchmarks.coverage --every 100 --again --stored $(VENV)/coverage-sample.json
	$(PY) benchmarks/lint.py --rival $(RIVALS)/bin/torchfix
	$(PY) -m benchmarks.times --table
	$(PY) benchmarks/attention_cost.py
	$(PY) benchmarks/attention_error.py --plot docs/img/attention-error.svg

house: $(STAMP) ## figures of the package: branches, names, comments, call chains, import circles; private names of libraries
	$(PY) benchmarks/readability.py
	$(PY) benchmarks/private_names.py

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
	rm -rf $(VENV) $(NEWEST) $(OLDEST) $(LIBRARIES) $(RIVALS) $(INSTALLED) site dist .tpuport_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call make_environment,environment): a Python without ensurepip (Debian's, without python3-venv) installs pip from
# outside with its own.
define make_environment
$(PYTHON) -m venv --clear $(1) >/dev/null || { rm -rf $(1) && $(PYTHON) -m venv --without-pip $(1) \
	  && $(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }
endef

# $(call run_tests,environment): all of them leave their counts for `make combinations`.
define run_tests
	$(1)/bin/python $(PYTEST) $(or $(PYTEST_ARGS),--junitxml=$(1)/tests.xml)
endef

# $(call find_python,minor versions): the first of these Pythons on PATH or of pyenv, else PYTHON.
find_python = $(shell for minor in $(1); do \
	for python in python3.$$minor $$(pyenv root 2>/dev/null)/versions/3.$$minor.*/bin/python; do \
	$$python -c '' 2>/dev/null && echo $$python && exit; done; done; echo $(ANY_PYTHON))

# $(call install,environment,pip's options,more requirements): into an empty environment, or over one whose installation
# was complete. The stamp goes before anything changes and comes back last, so an interrupted installation starts over.
define install
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "tpuport needs Python 3.11 or newer, and $(PYTHON) is %d.%d: run make PYTHON=/path/to/python3.11 ..." % v[:2])'
	@if [ -f $(1)/.installed ]; then rm $(1)/.installed; else \
	  $(make_environment); fi
	$(1)/bin/python -m pip install --quiet $(2) hatchling editables
	$(1)/bin/python -m pip install --quiet $(2) --no-build-isolation --editable '.[dev,docs]' $(3)
	$(1)/bin/python -m pip freeze --exclude-editable > $(1)/versions.txt
	@touch $(1)/.installed
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,$(VENV),--constraint constraints.txt)

# Each time as of today, unless PINS says what to take.
$(NEWEST_STAMP): PYTHON = $(call find_python,15 14 13 12)
$(NEWEST_STAMP): FORCE
	$(call install,$(NEWEST),$(if $(PINS),--constraint $(PINS),--upgrade --upgrade-strategy eager),$(WITH))

$(OLDEST_STAMP): PYTHON = $(call find_python,11)
$(OLDEST_STAMP): pyproject.toml constraints-oldest.txt
	$(call install,$(OLDEST),--constraint constraints-oldest.txt)

# Over .venv, of which it sees every package: torch and jax stay as they are, and only what the newest of these four
# asks for comes in beside them.
$(LIBRARIES_STAMP): $(STAMP) FORCE
	@rm -rf $(LIBRARIES)
	@$(PYTHON) -m venv --without-pip $(LIBRARIES)
	@$(PY) -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(LIBRARIES)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth
	@grep -E '^(torch|torchax|jax|jaxlib|libtpu|numpy)==' constraints.txt > $(LIBRARIES)/constraints.txt
	$(PY) -m pip --python $(LIBRARIES)/bin/python install --quiet --upgrade --constraint $(LIBRARIES)/constraints.txt \
	  transformers diffusers accelerate peft
	@touch $@

FORCE:

# TorchFix wants an older libcst than ours, so it has an environment of its own.
$(RIVALS_STAMP): $(STAMP) constraints-rivals.txt
	@rm -rf $(RIVALS)
	$(PYTHON) -m venv --without-pip $(RIVALS)
	$(PY) -m pip --python $(RIVALS)/bin/python install --quiet --requirement constraints-rivals.txt
	@touch $@
