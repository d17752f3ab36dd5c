# make up          install Paceline into .venv, fetch the model, serve on 127.0.0.1:8080   (make up ARGS="--port 9000")
# make up TORCH=1  with torch as well, which runs the models that the cpu engine does not; set where there is an NVIDIA GPU
# make test        install what the tests need as well, run them                           (make test ARGS="-k gateway")
# make clients     install agents and SDKs outside the checkout, once, and run them against a mesh: needs node 20 and npm
# make check       lint, format, types, import rules
#
# The second run of each takes seconds: an install is repeated only after pyproject.toml or constraints.txt changed.

PYTHON ?= python3
# Where torch comes from on a machine without an NVIDIA GPU; elsewhere PyPI's CUDA build is installed.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
ARGS ?=

BIN := .venv/bin
TORCH_PIN := $(shell grep '^torch==' constraints.txt)
INPUTS := $(firstword $(shell cat pyproject.toml constraints.txt | cksum))
INSTALLED := .venv/.installed-$(INPUTS)
WITH_TORCH := .venv/.torch-$(INPUTS)
TESTABLE := .venv/.testable-$(INPUTS)
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip --quiet --quiet install --constraint constraints.txt

ifeq ($(shell nvidia-smi >/dev/null 2>&1 && echo yes),yes)
TORCH ?= 1
TORCH_FROM := the CUDA build, some 3 GB
TORCH_OPTIONS :=
else
TORCH ?= 0
TORCH_FROM := the CPU build, some 200 MB
# An index that cannot be reached costs a second, not minutes: pip then takes torch from wherever else it finds it.
TORCH_OPTIONS := --retries 0 --timeout 10 --extra-index-url $(TORCH_INDEX)
endif

.PHONY: up test clients check
.SILENT:

up: $(INSTALLED) $(if $(filter 1,$(TORCH)),$(WITH_TORCH))
	$(BIN)/paceline up $(ARGS)

test: $(TESTABLE)
	$(BIN)/python -m pytest --ignore tests/clients $(ARGS)

clients: $(TESTABLE)
	$(BIN)/python -m tests.clients.installed
	$(BIN)/python -m pytest tests/clients $(ARGS)

check: $(TESTABLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Paceline needs Python 3.11 or newer and '$(PYTHON)' is not: name one with 'make PYTHON=python3.12 ...'." >&2; \
	  exit 1; }
	echo "Creating .venv with $$($(PYTHON) --version)"
	$(PYTHON) -m venv .venv

$(INSTALLED): | $(BIN)/python
	$(PIP) pip
	echo "Installing Paceline and its services"
	$(PIP) --editable '.[all]'
	rm -f .venv/.installed-* .venv/.torch-* .venv/.testable-*
	touch $@

$(WITH_TORCH): $(INSTALLED)
	echo "Installing $(TORCH_PIN), $(TORCH_FROM)"
	$(PIP) $(TORCH_OPTIONS) $(TORCH_PIN)
	touch $@

$(TESTABLE): $(WITH_TORCH)
	echo "Installing what the checks and tests need"
	$(PIP) --editable '.[all,dev]'
	touch $@
