# Two commands: `make demo` and `make test`. Both set up all they need below this folder.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo demo-spark test start lint torture soak lock bench dist setup clean help

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: setup  ## Scale a local App Service Plan on a real load trace, with everything embedded
	@exec $(BIN)/python -m devstack demo

demo-spark: setup  ## All five Spark jobs on larger data
	@$(BIN)/python -m spark_jobs.java
	@exec $(BIN)/python -m devstack demo-spark

test: setup  ## Run all tests
	@$(BIN)/python -m devstack browser
	@$(BIN)/python -m devstack postgres
	@$(BIN)/python -m spark_jobs.java
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

start: setup  ## Start the local stack and the functions (with func where it is on PATH)
	@exec $(BIN)/python -m devstack start

lint: $(READY)  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup  ## Run the benchmarks
	$(BIN)/python -m benchmarks

torture: setup  ## Thousands of fleets in virtual time, hundreds of real kills, new examples of every property (more than an hour)
	TORTURE=1 TORTURE_SEEDS=5000 TORTURE_KILLS=200 $(BIN)/python -m pytest -n 2 --timeout 3600 tests/torture tests/faults tests/spark tests/properties tests/unit

soak: setup  ## Memory of a consumer during five minutes of total throttling
	$(BIN)/python -m benchmarks.consumer_memory

dist: $(READY)  ## Build the wheel, and beside it what spark-submit is given
	$(BIN)/uv build --quiet --wheel --out-dir dist
	cp spark_jobs/entry_point.py dist/tidemark_spark.py
	@ls dist/*.whl dist/*.py

lock: $(READY)  ## Resolve the dependencies anew and write the lock files
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --upgrade pyproject.toml -o requirements.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --upgrade --extra dev pyproject.toml -o requirements.lock

setup: $(READY)  ## Install Python and Node packages
	@$(BIN)/python -m devstack setup

$(READY): pyproject.toml requirements.lock requirements-worker.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else "Tidemark needs Python 3.11 to 3.13; found %d.%d. Name another one: make PYTHON=python3.12 ..." % v)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python -r requirements-worker.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(READY)

clean:  ## Remove everything the commands above made
	rm -rf .venv .devstack demo-report spark-output dist devstack/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
