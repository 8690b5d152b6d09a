# make run    sets up .venv and runs the SGEMM ladder in the emulator
# make test   sets up the same and runs the tests
# make smoke  runs a few tests of every wing: a minute from a warm kernel cache
# make nightly runs everything at length: more examples, more configurations, planted faults
# make torch  adds torch to the set-up, so that make test runs torch's tests too
# make dask   adds Dask, likewise
# make check  linter, formatter, type checker
# make docs   writes the generated pages anew
# make golden runs the tests and writes anew what registers and spills of kernels are known from

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
# The release that the operators for torch are tested with.
TORCH ?= torch==2.13.0
DASK ?= dask[array,distributed]>=2025.1
# Bytecode is made of what is imported, not of everything that is installed.
PIP_OPTIONS := --quiet --disable-pip-version-check --no-compile

SMOKE := tests/smoke $(addprefix tests/host/test_,ops.py errors.py imports.py words.py headers.py plan.py cli_why.py)

.PHONY: run test smoke nightly torch dask check docs golden clean

run: $(READY)
	@$(VENV)/bin/matmill ladder sgemm --on emulator

test: $(READY)
	@$(VENV)/bin/python -m pytest -n 2 --dist worksteal

smoke: $(READY)
	@$(VENV)/bin/python -m pytest -n 2 --dist worksteal --hypothesis-profile=dev $(SMOKE)

nightly: $(READY)
	@$(VENV)/bin/python -m pytest -n 2 --dist worksteal --exhaustive --hypothesis-profile=nightly
	@$(VENV)/bin/python tests/mutations.py

torch: $(READY)
	@$(VENV)/bin/python -m pip install $(PIP_OPTIONS) '$(TORCH)'

dask: $(READY)
	@$(VENV)/bin/python -m pip install $(PIP_OPTIONS) '$(DASK)'

check: $(READY)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

golden: $(READY)
	@$(VENV)/bin/python -m pytest -n 2 --dist worksteal --golden

docs: $(READY)
	@$(VENV)/bin/python benchmarks/pages.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache

# The stamp is touched last, so an interrupted set-up is taken up again.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; ok = sys.version_info >= (3, 11); ok or sys.exit("matmill needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@echo "Setting up $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install $(PIP_OPTIONS) --editable '.[dev]'
	@touch $@
