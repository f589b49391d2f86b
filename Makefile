# Works with plain pip; uses uv where it is on PATH.
PYTHON ?= python3.11
BIN    := .venv/bin
INSTALL = $(if $(shell command -v uv),uv pip install --python $(BIN)/python,$(BIN)/python -m pip install)
# The packages are installed side by side, each asking for the others by version.
export DOVETAIL_SIBLINGS := index
META   := $(wildcard requirements*.txt constraints.txt packages/*/pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help run demo tokenizers harnesses test soak test-all test-harness test-transformers test-vllm test-sglang verify-servers lint check fix golden bench bench-prepare bench-frontend bench-gpu fuzz docs docs-site wheels clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## *\(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  %-18s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv .venv
.venv/.run: $(BIN)/python $(META)
	$(INSTALL) -q -r requirements.txt
	@touch $@
.venv/.dev: .venv/.run
	$(INSTALL) -q -r requirements-dev.txt
	@touch $@
.venv/.docs: .venv/.dev requirements-docs.txt
	$(INSTALL) -q -r requirements-docs.txt
	@touch $@

run: .venv/.run  ## fetch the embedded model and serve it on localhost
	@$(BIN)/dovetail serve

demo: .venv/.run  ## play a recorded agent session, live in the terminal: no weights
	@$(BIN)/dovetail demo

.cache/.tokenizers: tools/fetch_tokenizers.py | .venv/.dev
	$(BIN)/python tools/fetch_tokenizers.py
	@touch $@

tokenizers: .cache/.tokenizers  ## fetch the real tokenizers that the tests compare with

# Asked for every time: what npm could not fetch is said every time.
harnesses: .venv/.dev  ## fetch the real clients that the tests run: claude, codex, opencode, pi, openclaw
	$(BIN)/python tools/fetch_harnesses.py
.PHONY: .harnesses-of-test
.harnesses-of-test: .venv/.dev
	@$(BIN)/python tools/fetch_harnesses.py claude codex

# In a network with nothing but loopback, where the system allows one.
PYTEST := $(BIN)/python tools/loopback_only.py $(BIN)/python -m pytest

.cache/.torch: tools/fetch_torch.py tools/environments.py
	$(PYTHON) tools/fetch_torch.py
	@touch $@

# What it cannot fetch it says every time.
.PHONY: .perfetto
.perfetto: .venv/.dev
	@$(BIN)/python tools/fetch_perfetto.py

# The transformers engine has a suite of its own: torch and triton are 2 GB.
test: .venv/.dev .cache/.tokenizers .harnesses-of-test .perfetto  ## every test of every package, one real Claude Code and one real Codex; TESTS="packages/parsers"
	$(PYTEST) -n auto --dist loadfile -m "not harness and not registry and not long and not transformers" $(TESTS)
	$(if $(TESTS),,$(BIN)/python -m pytest -m "registry and not long" tests)

TORCH := $(CURDIR)/.cache/torch/venv/bin/python
test-transformers: .venv/.dev .cache/.tokenizers .cache/.torch  ## the transformers engine on torch, on the CPU
	DOVETAIL_TORCH_PYTHON=$(TORCH) $(PYTEST) -n auto --dist loadfile -rs -m transformers packages/dovetail/tests tests

soak: .venv/.dev .cache/.tokenizers  ## the long suites: 10,000 malformed requests, 20,000 streams, 500 turns, workers
	$(PYTEST) -m "long and not registry and not vllm and not transformers and not sglang" packages tests
	$(BIN)/python -m pytest -m "registry and long" tests

test-harness: .venv/.dev .cache/.tokenizers harnesses  ## real clients through whole sessions: a table of every run
	$(PYTEST) -n auto --dist loadfile -rs tests/harness

test-all: check test soak test-harness test-transformers test-vllm test-sglang fuzz wheels  ## all suites: an hour or more

.cache/.vllm: tools/fetch_vllm.py tools/environments.py
	$(PYTHON) tools/fetch_vllm.py
	@touch $@

VLLM := $(CURDIR)/.cache/vllm/venv/bin/python
test-vllm: .venv/.dev .cache/.tokenizers .harnesses-of-test .cache/.vllm  ## against a real vLLM, transformers and xgrammar, on the CPU
	DOVETAIL_VLLM_PYTHON=$(VLLM) $(BIN)/python -m pytest -m vllm packages/dovetail/tests
	DOVETAIL_TORCH_PYTHON=$(VLLM) $(BIN)/python -m pytest -m transformers packages/dovetail/tests tests
	DOVETAIL_VLLM_PYTHON=$(VLLM) $(BIN)/python -m pytest packages/parsers/tests/test_constraint_engines.py packages/parsers/tests/test_constraint_keywords.py

.cache/.dynamo: tools/fetch_dynamo.py | .venv/.dev
	$(BIN)/python tools/fetch_dynamo.py
	@touch $@

test-sglang: .venv/.dev .cache/.tokenizers .cache/.dynamo  ## the SGLang adapter against Dynamo's mocker
	DOVETAIL_DYNAMO_PYTHON=$(CURDIR)/.cache/dynamo/bin/python $(BIN)/python -m pytest -m sglang -rs packages/dovetail/tests

verify-servers: .venv/.dev .cache/.tokenizers .cache/.vllm .cache/.dynamo  ## judge Dovetail, Dynamo, vLLM and llama.cpp; write the tables of docs/verify.md
	$(BIN)/python tools/loopback_only.py $(BIN)/python tools/verify_servers.py

lint: .venv/.dev  ## format, lint, sizes, vocabulary: seconds
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/check_sizes.py
	$(BIN)/python tools/check_vocabulary.py

check: lint  ## lint, types, imports
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fix: .venv/.dev  ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

golden: docs  ## rewrite every generated file that is kept in the repository; read the diff
	$(BIN)/python packages/protocols/tests/support/golden_transcripts.py

bench: .venv/.dev  ## run the benchmarks
	$(BIN)/python -m benchmarks

bench-prepare: .venv/.dev .cache/.tokenizers .cache/.dynamo  ## what preparing a turn costs, beside Dynamo's frontend; ARGS="--write"
	$(BIN)/python -m benchmarks.prepare --against dynamo $(ARGS)

bench-frontend: .venv/.dev .cache/.tokenizers .cache/.dynamo  ## CPU per streamed token, beside Dynamo's frontend; ARGS="--quick", "--against vllm", "--write"
	$(BIN)/python -m benchmarks.frontend --against dynamo $(ARGS)

bench-gpu: .venv/.dev .cache/.tokenizers  ## time to the first token and tokens a second on this machine's GPU; ARGS="--out DIR --only A,C"
	$(BIN)/python -m benchmarks.gpu.bundle
	$(BIN)/python -m benchmarks.gpu --out .cache/gpu-results $(ARGS)

fuzz: .venv/.dev .cache/.tokenizers  ## throw mutated model output at every family, mutated requests at every codec
	$(BIN)/python tools/fuzz.py
	$(BIN)/python tools/fuzz_requests.py
	$(BIN)/python tools/fuzz_turns.py

docs: .venv/.dev .cache/.tokenizers  ## rewrite the pages, tables and the dashboard that are made from the code
	$(BIN)/python tools/render_models_doc.py
	$(BIN)/python tools/render_settings_doc.py
	$(BIN)/python tools/render_exactness_doc.py
	$(BIN)/python tools/render_dashboard.py

docs-site: .venv/.docs  ## build the documentation site in build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open build/site/index.html"

wheels: .venv/.dev  ## build each wheel into dist/, install it alone in a clean venv, import it
	$(BIN)/python tools/wheels.py dist

clean:  ## remove everything that was made here, .venv too
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
