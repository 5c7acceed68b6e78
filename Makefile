# Two commands on a fresh machine: `make demo` and `make test`. Each sets everything up by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test test-slow lint docs bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dphist needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

demo: setup
	mkdir -p demo-output
	$(BIN)/dphist compare --epsilon 0.35 --epsilon 0.349 --delta 1e-5 --max-nonzero 51914 --max-nonzero 10 \
		--plot demo-output/figure.png
	$(BIN)/dphist plan --epsilon 0.35 --delta 1e-5 --max-nonzero 51914

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2

test-slow: setup
	$(BIN)/python -m pytest -n 2 -m slow

docs: setup
	$(BIN)/python docs/generate.py

bench: setup
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/noise_stage.py

clean:
	rm -rf $(VENV) demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
