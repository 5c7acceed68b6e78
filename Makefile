# `make demo` and `make test` work from a fresh clone, in any order: each installs what it needs into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP = python -m pip --disable-pip-version-check install --quiet
INSTALL = $(BIN)/$(PIP) -c constraints.txt
# Otherwise each of the many short test processes would recompile everything it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo browser lint test test-slow docs pictures site bench dist versions supply-chain peers \
	constraints clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dphist needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Compiling all installed modules takes longer than the demo; Python compiles those it imports.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --no-compile -e '.[frames,plot]'
	@touch $@

# Compile once, because otherwise both test processes would; the packages' own tests are not needed.
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --no-compile -e '.[dev]'
	@$(BIN)/python -m compileall -qq -x '/tests/' $(VENV)/lib || true
	@touch $(VENV)/.demo $@

setup: $(VENV)/.dev ## Install dphist and all development tools into .venv

demo: RELEASE = release demo-output/log.parquet --user user_id --item query --epsilon 1 --delta 1e-6
demo: $(VENV)/.demo ## Release a synthetic search log, verify it and report on it, in demo-output/
	@mkdir -p demo-output
	@echo "1. Input: a synthetic search log, with many queries that only one user searched for"
	@$(BIN)/python examples/search_log/make_log.py --output demo-output/log.parquet
	@$(BIN)/python examples/purchases/make_shop.py --output demo-output/shop.sqlite --orders > /dev/null
	@echo
	@echo "2. Release: how many users searched for each query?"
	@echo '$$ dphist $(RELEASE) --output demo-output/demo-queries.parquet --force' | fold -s -w 100
	@$(BIN)/dphist $(RELEASE) --dry-run > demo-output/demo-plan.txt
	@$(BIN)/dphist $(RELEASE) --output demo-output/demo-queries.parquet --force > demo-output/demo-release.txt
	@fold -s -w 100 demo-output/demo-release.txt
	@echo
	@echo "3. Counts and true numbers of users (only synthetic data may be compared like this)"
	@$(BIN)/python examples/search_log/look.py demo-output/log.parquet demo-output/demo-queries.parquet
	@echo
	@echo "4. Verify: recipients can check the result against its certificate"
	@echo '$$ dphist verify demo-output/demo-queries.parquet'
	@$(BIN)/dphist verify demo-output/demo-queries.parquet
	@echo
	@echo "5. Report: what the release guarantees and how accurate it is, as a web page"
	@echo '$$ dphist report demo-output/demo-queries.parquet --output demo-output/demo-report.html --force'
	@$(BIN)/dphist report demo-output/demo-queries.parquet --output demo-output/demo-report.html --force
	@echo
	@echo "6. Compare: noise and threshold of every mechanism, for the budgets in the paper's figure"
	@$(BIN)/dphist compare --epsilon 0.35 --epsilon 0.349 --delta 1e-5 --max-nonzero 51914 --max-nonzero 10 \
		--plot demo-output/demo-figure.png --force > demo-output/demo-comparison.txt
	@sed -n 1,10p demo-output/demo-comparison.txt
	@echo
	@echo "Files in demo-output:"
	@echo "  demo-report.html                       open this one in a browser"
	@echo "  demo-queries.parquet                   the released counts, with their certificate next to it"
	@echo "  demo-release.txt, demo-comparison.txt  the output of steps 2 and 6; demo-figure.png: step 6 as a chart"
	@echo "  demo-plan.txt                          the plan for step 2 (dphist release --dry-run reads no events)"
	@echo "  log.parquet, orders.csv, shop.sqlite   synthetic data for the commands in README.md and docs/"
	@echo "Next, to run those commands: cd demo-output && . ../.venv/bin/activate"

lint: setup ## Check formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# For the tests of the report and the explore page.
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		echo "Installing Chromium with apt-get for the browser tests" && { apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; } \
		>/dev/null 2>&1; } || echo "Chromium not found (apt-get install chromium): browser tests are skipped."

# Chromium is installed while lint and type checks run. One of the two test processes runs all Spark tests, because Spark
# itself needs the rest of two cores.
test: ## Check formatting, lint and types, then run the tests
	@$(MAKE) --no-print-directory -j 2 lint browser
	$(BIN)/python -m pytest -n 2 --dist loadscope

test-slow: setup ## Run the long statistical tests
	DPHIST_TESTS=thorough $(BIN)/python -m pytest -n 2 --dist loadscope -m "slow or hypothesis"

docs: setup ## Write the generated pages of docs/
	$(BIN)/python docs/generate.py

.PHONY: figures
figures: setup ## Draw the figures and tables of docs/analysis.md and docs/rounds.md; DATA=DIR measures anew
	$(BIN)/python docs/figures.py $(if $(DATA),--data $(DATA))

pictures: setup demo browser ## Take the screenshots in docs/images
	$(BIN)/python docs/pictures.py

site: docs ## Build the documentation site in site/
	PYTHONPATH=docs $(BIN)/zensical build --clean --strict

bench: setup ## Run the benchmarks
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/noise_stage.py
	$(BIN)/python benchmarks/release.py

dist: setup ## Build the wheel and the sdist in dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist

$(BIN)/uv: | $(VENV)/.dev
	$(INSTALL) 'uv>=0.9'

versions: $(BIN)/uv ## Try every supported Python with the oldest and the newest dependencies
	$(BIN)/python tools/versions.py

supply-chain: $(BIN)/uv ## Sizes, licences, SBOM and known vulnerabilities of what is installed
	$(BIN)/python tools/supply_chain.py

# Takes about half an hour and installs each tool into .venv-peers/. DATA is a folder of real data.
peers: setup ## Compare with other tools: docs/peers.md
	$(BIN)/python benchmarks/peers.py $(if $(DATA),--data '$(DATA)')
	$(BIN)/python docs/generate.py

# With the oldest supported Python, so that all supported versions can install these packages.
constraints: ## Update constraints.txt to the newest versions (needs Python 3.11)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "constraints.txt is written with Python 3.11; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv --clear .venv-constraints
	.venv-constraints/bin/$(PIP) -e '.[dev]'
	{ sed -n '/^#/p' constraints.txt; .venv-constraints/bin/python -m pip freeze --exclude-editable | grep ==; } \
		> constraints.new
	mv constraints.new constraints.txt
	rm -rf .venv-constraints

clean: ## Remove .venv, .venv-peers, demo-output, dist, site and caches
	rm -rf $(VENV) .venv-peers demo-output dist site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
