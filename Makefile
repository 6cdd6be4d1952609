# Two commands: `make reproduce` and `make test`. Each sets up what it needs first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# An active virtual or conda environment is used as it is; otherwise .venv is made.
ifneq ($(VIRTUAL_ENV)$(CONDA_PREFIX),)
  PYTHON ?= python
  ENVIRONMENT := $(or $(VIRTUAL_ENV),$(CONDA_PREFIX))
else
  BASE_PYTHON ?= python3
  PYTHON := .venv/bin/python
  ENVIRONMENT := $(CURDIR)/.venv
endif

TORCH := torch==2.13.0
BUILD := build/skb
INSTALLED := $(ENVIRONMENT)/.topk-lab-installed
STAGE = @printf '\n== %s (%(%H:%M:%S)T)\n'

.PHONY: help setup build test test-gpu reproduce notebooks lint clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

.venv/bin/python:
	$(BASE_PYTHON) -m venv .venv

$(INSTALLED): pyproject.toml constraints.txt $(if $(findstring .venv,$(PYTHON)),.venv/bin/python)
	$(STAGE) 'set-up'
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"Python 3.11 or newer is required, got {v.major}.{v.minor}")'
	@$(PYTHON) -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' || $(PYTHON) -m pip install --quiet $(TORCH)
	$(PYTHON) -m pip install --quiet -c constraints.txt scikit-build-core cmake ninja ziglang
	$(PYTHON) -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

setup: $(INSTALLED)  ## Install the package and what it needs

build: $(INSTALLED)  ## Compile the kernels that changed
	$(STAGE) 'kernels'
	@$(PYTHON) -m cmake -S kernels -B $(BUILD) -G Ninja -DPython_EXECUTABLE="$$($(PYTHON) -c 'import sys; print(sys.executable)')" > /dev/null
	@$(PYTHON) -m cmake --build $(BUILD)
	@$(PYTHON) topk_lab/toolchain.py show $(BUILD)/manifest.json

test: export TOPK_LAB_REQUIRE := numba,torch,gfx90a,gfx942,gfx950
test: build  ## Compare kernels with Numba: the Numba twins and the compiled AMD code on a CPU
	$(STAGE) 'tests'
	@time $(PYTHON) -m pytest -n 2 -m 'not gpu'

# Sets nothing up: a device node's own environment is used (make test-gpu PYTHON=python3).
test-gpu: export TOPK_LAB_REQUIRE := gpu
test-gpu: export PYTHONPATH := $(CURDIR)
test-gpu:  ## Run the device tests: needs a HIP or CUDA device, torch, Numba and pytest
	@$(PYTHON) -m pytest tests/gpu -m gpu

reproduce: build  ## Re-run the sources' own test lists, evaluate every claim, write report/index.html
	$(STAGE) 'reproduce'
	@$(PYTHON) -m topk_lab reproduce

notebooks: build  ## Execute the notebooks and write the .ipynb beside their sources
	$(PYTHON) -m topk_lab notebooks

lint:  ## Check style
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

clean:  ## Remove what was built
	rm -rf build report dist
