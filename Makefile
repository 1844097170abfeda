# make run    set everything up, generate from tiny, check the golden tokens
# make test   set everything up, lint, type-check, unit tests, notebooks, docs
# Variables: PYTHON=python3.12   TORCH_INDEX=https://download.pytorch.org/whl/cpu
#            WORKERS=4   TESTS=tests/formats (with make unit)

PYTHON ?= python3
TORCH_INDEX ?=
WORKERS ?= 2
TESTS ?= tests
VENV := .venv
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt
NOTEBOOKS := $(wildcard notebooks/*.ipynb)

.PHONY: help run test check lint unit nbtest lab notebooks golden clean

help:
	@echo "run        generate from the shipped model and check its golden tokens"
	@echo "test       lint, types, unit tests, notebooks, docs (what CI runs; also: check)"
	@echo "golden     check every golden token, in torch and on simulated kernels (minutes)"
	@echo "lab        open JupyterLab on the notebooks"
	@echo "notebooks  run the notebooks again, in place"
	@echo "clean      remove the virtual environment and caches"

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 15) else \
	  "Python 3.11 to 3.14 is needed, this is " + sys.version.split()[0] + ": make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# A stamp per set of packages: pip runs again only when what it reads has changed.
$(VENV)/.core: pyproject.toml constraints.txt | $(PY)
	@echo "installing dslearn into $(VENV), a minute or two"
	$(INSTALL) -e .
	@touch $@

$(VENV)/.full: pyproject.toml constraints.txt | $(PY)
	@echo "installing dslearn with its notebooks and dev extras into $(VENV), a few minutes"
	$(INSTALL) -e '.[notebooks,dev]'
	@touch $(VENV)/.core $@

run: $(VENV)/.core
	$(PY) -m dslearn golden --show

golden: $(VENV)/.core
	$(PY) -m dslearn golden --check
	DSLEARN_BACKEND=sim $(PY) -m dslearn golden --check

test: lint unit nbtest

check: test

lint: $(VENV)/.full
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# One thread per worker: two workers that each ask for every core spend their time waiting.
unit: $(VENV)/.full
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n $(WORKERS) $(TESTS)

nbtest: $(VENV)/.full
ifneq ($(NOTEBOOKS),)
	$(PY) -m pytest -q --nbval --nbval-current-env --nbval-sanitize-with tests/nbval.cfg \
	  --nbval-cell-timeout 300 --nbval-kernel-startup-timeout 120 -p no:cacheprovider notebooks
endif

lab: $(VENV)/.full
	$(PY) -m jupyterlab --notebook-dir=notebooks

notebooks: $(VENV)/.full
	$(PY) -m nbconvert --to notebook --execute --inplace \
	  --ExecutePreprocessor.record_timing=False \
	  --NotebookExporter.preprocessors=nbconvert.preprocessors.CoalesceStreamsPreprocessor $(NOTEBOOKS)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
