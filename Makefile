# Two commands on a fresh machine: `make demo` and `make test`. Each sets everything up by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup browser demo test test-slow lint docs pictures site bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dphist needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

demo: RELEASE = release demo-output/log.parquet --user user_id --item query \
	--epsilon 1 --delta 1e-6 --max-items-per-user 20
demo: setup
	@mkdir -p demo-output
	@echo "1. A search log: made up, with a long tail of queries that one person alone has searched"
	@$(BIN)/python examples/search_log/make_log.py --output demo-output/log.parquet
	@echo
	@echo "2. What a release would mean, before any event is read: dphist release ... --dry-run"
	@$(BIN)/dphist $(RELEASE) --dry-run > demo-output/plan.txt
	@sed -n '/^The mechanism/,/^Other bounds/{/^Other bounds/!p}' demo-output/plan.txt
	@echo
	@echo "3. The release: how many users searched for what?"
	@echo '$$ dphist $(RELEASE) --output demo-output/queries.parquet --force' | fold -s -w 100
	@$(BIN)/dphist $(RELEASE) --output demo-output/queries.parquet --force > demo-output/release.txt
	@fold -s -w 100 demo-output/release.txt
	@echo
	@echo "4. What it kept of the log (a look that only a made-up log allows)"
	@$(BIN)/python examples/search_log/look.py demo-output/log.parquet demo-output/queries.parquet
	@echo
	@echo "5. Anyone who gets the two files can check them: dphist verify demo-output/queries.parquet"
	@$(BIN)/dphist verify demo-output/queries.parquet
	@echo
	@echo "6. What it means, for whoever answers for it: dphist report demo-output/queries.parquet"
	@$(BIN)/dphist report demo-output/queries.parquet --output demo-output/report.html --force
	@echo
	@echo "7. All mechanisms compared, and the figure of the paper: dphist compare ... --plot demo-output/figure.png"
	@$(BIN)/dphist compare --epsilon 0.35 --epsilon 0.349 --delta 1e-5 --max-nonzero 51914 --max-nonzero 10 \
		--plot demo-output/figure.png --force > demo-output/comparison.txt
	@sed -n 1,10p demo-output/comparison.txt
	@echo
	@echo "All of it is in demo-output: log.parquet, plan.txt, queries.parquet with its certificate, release.txt,"
	@echo "report.html (open it in a browser), comparison.txt, figure.png."
	@echo "Next: examples/search_log, examples/purchases, examples/words."

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Pages are looked at in a real browser: Debian's, where it can be had; else those tests are skipped.
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		echo "Installing Chromium with apt-get, for the tests of pages" && { apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; } \
		>/dev/null 2>&1; } || echo "No Chromium (apt-get install chromium): tests of pages are skipped."

# Three processes on two cores: one of them has Spark, which waits more than it computes.
# The browser comes while the packages are installed and the types are checked.
test:
	@$(MAKE) --no-print-directory -j 2 lint browser
	$(BIN)/python -m pytest -n 3 --dist loadscope

test-slow: setup
	$(BIN)/python -m pytest -n 2 --dist loadscope -m slow

docs: setup
	$(BIN)/python docs/generate.py

# The screenshots of the documentation, one of them of the demo's report.
pictures: demo browser
	$(BIN)/python docs/pictures.py

site: docs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[site]'
	$(BIN)/zensical build

bench: setup
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/noise_stage.py
	$(BIN)/python benchmarks/release.py

clean:
	rm -rf $(VENV) demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
