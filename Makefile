# Works with plain pip; uses uv if it is on the PATH.
PYTHON ?= python3.11
BIN    := .venv/bin
INSTALL = $(if $(shell command -v uv),uv pip install --python $(BIN)/python,$(BIN)/python -m pip install)
# The packages are installed together; each depends on the others by version.
export DOVETAIL_SIBLINGS := index
META   := $(wildcard requirements*.txt constraints.txt packages/*/pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help run demo tokenizers harnesses test soak test-all test-browser test-ui test-harness test-clients test-transformers test-vllm test-sglang test-fleet test-fleet-vllm test-fleet-dynamo test-fleet-frontends test-ray verify-servers lint check fix golden bench bench-prepare bench-frontend bench-gpu fuzz attack docs docs-site wheels clean

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

run: .venv/.run  ## download the embedded model and serve it on localhost
	@$(BIN)/dovetail serve smollm2-agent

demo: .venv/.run  ## replay a recorded agent session in the terminal, without weights; ARGS=--live runs the embedded model
	@$(BIN)/dovetail demo $(ARGS)

.cache/.tokenizers: tools/fetch_tokenizers.py | .venv/.dev
	$(BIN)/python tools/fetch_tokenizers.py
	@touch $@

tokenizers: .cache/.tokenizers  ## download the tokenizers that the tests use

# Not cached: each run reports what npm could not download.
harnesses: .venv/.dev  ## download the clients that the tests run: claude, codex, opencode, pi, openclaw
	$(BIN)/python tools/fetch_harnesses.py
.PHONY: .harnesses-of-test
.harnesses-of-test: .venv/.dev
	@$(BIN)/python tools/fetch_harnesses.py claude codex

# Tests run in a network namespace with only loopback, if the system allows it.
PYTEST := $(BIN)/python tools/loopback_only.py $(BIN)/python -m pytest

.cache/.torch: tools/fetch_torch.py tools/environments.py
	$(PYTHON) tools/fetch_torch.py
	@touch $@

# Not cached: each run reports what could not be downloaded.
.PHONY: .perfetto
.perfetto: .venv/.dev
	@$(BIN)/python tools/fetch_perfetto.py

.PHONY: .axe
.axe: .venv/.dev
	@$(BIN)/python tools/fetch_axe.py

# The transformers engine has a separate suite, since torch and triton take 2 GB.
test: .venv/.dev .cache/.tokenizers .harnesses-of-test .perfetto .axe  ## run the tests of all packages, with the real Claude Code and Codex; TESTS="packages/parsers"
	$(PYTEST) -n auto --dist loadfile -m "not harness and not registry and not long and not transformers and not browser and not fleet and not ray" $(TESTS)
	$(if $(TESTS),,$(BIN)/python -m pytest -m "registry and not long" tests)

TORCH := $(CURDIR)/.cache/torch/venv/bin/python
test-transformers: .venv/.dev .cache/.tokenizers .cache/.torch  ## test the transformers engine with torch on the CPU
	DOVETAIL_TORCH_PYTHON=$(TORCH) $(PYTEST) -n auto --dist loadfile -rs -m transformers packages/dovetail/tests tests

soak: .venv/.dev .cache/.tokenizers  ## run the long tests: 10,000 malformed requests, 20,000 streams, 500 turns, workers
	$(PYTEST) -m "long and not registry and not vllm and not transformers and not sglang and not browser and not fleet" packages tests
	$(BIN)/python -m pytest -m "registry and long" tests

# Uses the Chromium on PATH, or the program in DOVETAIL_BROWSER.
test-browser: .venv/.dev  ## load hostile web pages in a real Chromium
	$(PYTEST) -rs -m browser packages/dovetail/tests

# Also part of `make test`, where a browser is installed.
test-ui: .venv/.dev .axe  ## test the web UI in a real Chromium
	$(PYTEST) -rs -m ui packages/dovetail/tests/ui

test-harness: .venv/.dev .cache/.tokenizers harnesses  ## run complete sessions of real clients, and print a table of the runs
	$(PYTEST) -n auto --dist loadfile -rs tests/harness

# Resolves the newest versions at run time, so CI does not run it.
test-clients: .venv/.dev .cache/.tokenizers  ## test the newest versions of the clients and SDKs in addition to the pinned ones, and print a table; ARGS="--only claude --newest"
	$(BIN)/python tools/test_clients.py $(ARGS)

test-all: check test soak test-browser attack test-harness test-transformers test-vllm test-sglang test-fleet test-ray fuzz wheels  ## run all suites, which takes an hour or more

.cache/.vllm: tools/fetch_vllm.py tools/environments.py
	$(PYTHON) tools/fetch_vllm.py
	@touch $@

VLLM := $(CURDIR)/.cache/vllm/venv/bin/python
test-vllm: .venv/.dev .cache/.tokenizers .harnesses-of-test .cache/.vllm  ## test against the real vLLM, transformers and xgrammar on the CPU
	DOVETAIL_VLLM_PYTHON=$(VLLM) $(BIN)/python -m pytest -m vllm packages/dovetail/tests
	DOVETAIL_TORCH_PYTHON=$(VLLM) $(BIN)/python -m pytest -m transformers packages/dovetail/tests tests
	DOVETAIL_VLLM_PYTHON=$(VLLM) $(BIN)/python -m pytest packages/parsers/tests/test_constraint_engines.py packages/parsers/tests/test_constraint_keywords.py

.cache/.dynamo: tools/fetch_dynamo.py | .venv/.dev
	$(BIN)/python tools/fetch_dynamo.py
	@touch $@

test-sglang: .venv/.dev .cache/.tokenizers .cache/.dynamo  ## test the SGLang adapter against Dynamo's mocker
	DOVETAIL_DYNAMO_PYTHON=$(CURDIR)/.cache/dynamo/bin/python $(BIN)/python -m pytest -m sglang -rs packages/dovetail/tests

.cache/.kv: tools/fetch_kv.py tools/fetch_ray.py tools/environments.py packages/dovetail/pyproject.toml
	$(PYTHON) tools/fetch_kv.py
	@touch $@

# Tests of single engines have markers of their own and also run with these engines.
# Each part takes less than 20 minutes. What is in no list belongs to the last part.
FLEET        := $(BIN)/python -m pytest -m fleet -rs --durations=5
FLEET_VLLM   := $(addprefix packages/dovetail/tests/,routing/test_kv_index.py server/test_serve_kv_events.py simulate/test_simulated_hit_rate.py engines/vllm server/test_deploy_kubernetes.py)
FLEET_DYNAMO := $(addprefix packages/dovetail/tests/,engines/dynamo server/test_serve_dynamo.py)
test-fleet: test-fleet-vllm test-fleet-dynamo test-fleet-frontends  ## test replicas and frontends together, with the real vLLM and Dynamo on the CPU; it has three parts

test-fleet-vllm: .venv/.dev .cache/.tokenizers .cache/.vllm .cache/.dynamo .cache/.kv  ## test KV events, the index and the simulator with real vLLM servers
	DOVETAIL_VLLM_PYTHON=$(VLLM) DOVETAIL_DYNAMO_PYTHON=$(CURDIR)/.cache/dynamo/bin/python DOVETAIL_KV_PYTHON=$(CURDIR)/.cache/kv/venv/bin/python $(FLEET) $(FLEET_VLLM)

test-fleet-dynamo: .venv/.dev .cache/.tokenizers .cache/.dynamo  ## test the engine `dynamo` with Dynamo's frontend and mockers
	DOVETAIL_DYNAMO_PYTHON=$(CURDIR)/.cache/dynamo/bin/python $(FLEET) $(FLEET_DYNAMO)

test-fleet-frontends: .venv/.dev .cache/.tokenizers  ## test several frontends on a Redis and a Redis Cluster, with 200 streams
	$(FLEET) packages/dovetail/tests $(addprefix --ignore=,$(FLEET_VLLM) $(FLEET_DYNAMO))

.cache/.ray: tools/fetch_ray.py tools/environments.py packages/dovetail/pyproject.toml
	$(PYTHON) tools/fetch_ray.py
	@touch $@

# Not a part of test-fleet: Ray takes 500 MB and starts a dozen processes.
test-ray: .venv/.dev .cache/.tokenizers .cache/.ray  ## test frontends in a local Ray Serve
	DOVETAIL_RAY_PYTHON=$(CURDIR)/.cache/ray/venv/bin/python $(BIN)/python -m pytest -m ray -rs packages/dovetail/tests

verify-servers: .venv/.dev .cache/.tokenizers .cache/.vllm .cache/.dynamo  ## verify Dovetail, Dynamo, vLLM and llama.cpp, and write the tables of docs/verify.md
	$(BIN)/python tools/loopback_only.py $(BIN)/python tools/verify_servers.py

lint: .venv/.dev  ## check format, lint, sizes and vocabulary, which takes seconds
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/check_sizes.py
	$(BIN)/python tools/check_vocabulary.py

check: lint  ## run lint, and check types and import layers, which takes a minute
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fix: .venv/.dev  ## format the code and apply ruff's fixes
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

golden: docs  ## regenerate all generated files of the repository; review the diff
	$(BIN)/python packages/protocols/tests/support/golden_transcripts.py

bench: .venv/.dev  ## run the benchmarks
	$(BIN)/python -m benchmarks

bench-prepare: .venv/.dev .cache/.tokenizers .cache/.dynamo  ## measure the preparation of a turn, compared with Dynamo's frontend; ARGS="--write"
	$(BIN)/python -m benchmarks.prepare --against dynamo $(ARGS)

bench-frontend: .venv/.dev .cache/.tokenizers .cache/.dynamo  ## measure CPU per streamed token, compared with Dynamo's frontend, in nine minutes; ARGS="--full", "--quick", "--against embedded", "--write"
	$(BIN)/python -m benchmarks.frontend --against dynamo $(ARGS)

bench-gpu: .venv/.dev .cache/.tokenizers  ## measure time to first token and tokens per second on this machine's GPU; ARGS="--out DIR --only A,C"
	$(BIN)/python -m benchmarks.gpu.bundle
	$(BIN)/python -m benchmarks.gpu --out .cache/gpu-results $(ARGS)

fuzz: .venv/.dev .cache/.tokenizers  ## fuzz every parser family with mutated output, and every codec with mutated requests
	$(BIN)/python tools/fuzz.py
	$(BIN)/python tools/fuzz_requests.py
	$(BIN)/python tools/fuzz_turns.py

# Every scenario has a time limit. The exit status is 1 if one fails.
attack: .venv/.dev .cache/.tokenizers  ## attack real servers from outside, and print measurements with their limits; ARGS="--quick --seed 1 --only NAME"
	$(BIN)/python tools/loopback_only.py $(BIN)/python tools/attack.py $(ARGS)

docs: .venv/.dev .cache/.tokenizers  ## regenerate the pages, tables and the dashboard that are derived from the code
	$(BIN)/python tools/render_models_doc.py
	$(BIN)/python tools/render_settings_doc.py
	$(BIN)/python tools/render_fields_doc.py
	$(BIN)/python tools/render_exactness_doc.py
	$(BIN)/python tools/render_dashboard.py

docs-site: .venv/.docs  ## build the documentation site in build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open build/site/index.html"

wheels: .venv/.dev  ## build the wheels into dist/, and test each alone in a clean venv
	$(BIN)/python tools/wheels.py dist

clean:  ## remove all build results, including .venv but not .cache
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
