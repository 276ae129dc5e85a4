# `make check` and `make test` set themselves up; a second run installs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINE := .engines/serving
ENGINE_PYTHON ?= $(ENGINE)/bin/python
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help check prove test compile lint mutants mutmut conformance serving poc clean

help:
	@echo "make check   prove every claim (sets up $(VENV) on the first run)"
	@echo "make prove   the same by two solvers, the known faults and the mutants"
	@echo "make test    run the tests on the CPU"
	@echo "make compile compile every kernel for NVIDIA and AMD GPUs, without one"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make mutants break each formula by one edit and see that a claim notices"
	@echo "make mutmut  break the source of invariants and see that a test notices; takes half an hour"
	@echo "make conformance  hold released vLLMs against the formulas, on a CPU (RELEASES=0.32.0 for one)"
	@echo "make serving serve a tiny model in vLLM on a CPU with the guard on"
	@echo "make poc     the reference case, unguarded and guarded"
	@echo "make clean   remove $(VENV) and caches"

check: $(VENV)/.check
	$(BIN)/python -m proofs.check

prove: $(VENV)/.test
	$(BIN)/python -m proofs.check --ceilings proofs/ceilings.json
	$(BIN)/python -m proofs.check --solver both
	$(BIN)/python -m proofs.catalogue
	$(BIN)/python -m proofs.mutants

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto --dist loadfile

serving: $(VENV)/.test $(if $(filter $(ENGINE)/bin/python,$(ENGINE_PYTHON)),$(ENGINE)/.ready)
	$(ENGINE_PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	ROWBOUND_ENGINE_PYTHON=$(abspath $(ENGINE_PYTHON)) $(BIN)/python -m pytest -n 0 tests/serving

compile: $(VENV)/.test
	$(BIN)/python -m kernels.compile

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

mutants: $(VENV)/.check
	$(BIN)/python -m proofs.mutants

mutmut: $(VENV)/.mutation
	$(BIN)/mutmut run
	$(BIN)/python tests/invariants/survivors.py

conformance:
	$(PYTHON) tests/conformance/engines.py $(RELEASES)

poc: $(VENV)/.test
	$(BIN)/python -m guard.poc --unguarded
	$(BIN)/python -m guard.poc

# A stamp is newer than what it was installed from; the checker's set-up needs neither torch nor a test tool.
$(VENV)/.check: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("rowbound needs Python 3.11 or newer; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.check
	$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/.lint: $(VENV)/.test
	$(PIP) --editable '.[lint]'
	@touch $@

$(VENV)/.mutation: $(VENV)/.test
	$(PIP) --editable '.[mutation]'
	@touch $@

# The guard beside the engine of `make conformance`, which stays as it is: an environment that only looks into it.
$(ENGINE)/.ready: tests/conformance/engines.py constraints.txt
	$(PYTHON) tests/conformance/engines.py --environment
	rm -rf $(ENGINE)
	$(PYTHON) -m venv $(ENGINE)
	.engines/env/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(ENGINE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/engine.pth"
	@touch $@

clean:
	rm -rf $(VENV) .engines mutants build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
