# Two commands: `make demo` and `make test`. Both set up all they need below this folder.
PYTHON ?= python3
BIN := .venv/bin
# Images for containers switch off Python's cache of compiled modules. Here hundreds of processes import the same packages.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: pictures demo demo-spark test start lint docs reference torture soak lock bench dist sbom setup setup-demo clean help

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: setup-demo  ## Scale a local App Service Plan on a real load trace, with everything embedded
	@exec $(BIN)/python -m devstack demo

demo-spark: setup  ## Five of the Spark jobs on larger data
	@$(BIN)/python -m spark_jobs.java
	@exec $(BIN)/python -m devstack demo-spark

test:  ## Run all tests
	@$(PYTHON) devstack/setup/environment.py test
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations 10 --durations-min 5

start: setup-demo  ## Start the local stack and the functions (with func where it is on PATH)
	@exec $(BIN)/python -m devstack start

lint: setup  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs:  ## Build the site of docs/ and check its links
	@$(PYTHON) devstack/documentation/site.py $(REPOSITORY)

reference: setup  ## Write the pages of docs/reference that come from the code
	@$(BIN)/python -m devstack.documentation.reference

pictures: setup  ## Make the pictures of the docs anew
	$(BIN)/python docs/images/draw.py

bench: setup  ## Run the benchmarks
	$(BIN)/python -m benchmarks

torture: setup  ## Thousands of fleets in virtual time, hundreds of real kills, new examples of every property (more than an hour)
	TORTURE=1 TORTURE_SEEDS=5000 TORTURE_KILLS=200 $(BIN)/python -m pytest -n auto --timeout 3600

soak: setup  ## Memory of a consumer during five minutes of total throttling
	$(BIN)/python -m benchmarks.consumer_memory

dist: setup  ## Build source distributions and wheels of library and program, and beside them what spark-submit is given
	rm -f dist/*.whl dist/*.tar.gz
	$(BIN)/uv build --quiet --out-dir dist .
	$(BIN)/uv build --quiet --out-dir dist cli
	cp spark_jobs/__main__.py dist/tidemark_spark.py
	@ls dist/*.whl dist/*.tar.gz dist/*.py

sbom:  ## Write bills of materials (CycloneDX) of what the functions and the image hold
	@$(PYTHON) devstack/setup/sbom.py dist

COMPILE := $(BIN)/uv pip compile --quiet --no-header --no-annotate --generate-hashes --upgrade
DEVELOPMENT := dev devstack publisher azure-monitor otlp data-lake decoders postgres spark yaml
STACK := autoscaler consumer devstack publisher
lock: setup  ## Resolve the dependencies anew and write the lock files, with a hash of each file that may be installed
	$(COMPILE) --universal --python-version 3.11 $(DEVELOPMENT:%=--extra %) --no-emit-package tidemark-azure pyproject.toml cli/pyproject.toml -o requirements.lock
	$(COMPILE) --universal --python-version 3.11 --group cli/pyproject.toml:functions --constraint requirements.lock -o requirements.txt
	$(COMPILE) --universal --python-version 3.11 --group cli/pyproject.toml:process --constraint requirements.lock -o infra/consumer/requirements.txt
	$(COMPILE) --universal --python-version 3.11 $(STACK:%=--extra %) --no-emit-package tidemark-azure --constraint requirements.lock pyproject.toml cli/pyproject.toml -o devstack/requirements.txt
	$(COMPILE) --universal --python-version 3.13 --no-deps --group worker -o requirements-worker.txt
	$(COMPILE) --universal --python-version 3.11 --group docs -o requirements-docs.txt

setup:  ## Install what development needs: Python and Node packages
	@$(PYTHON) devstack/setup/environment.py dev

setup-demo:  ## Install what the local stack and the demo need
	@$(PYTHON) devstack/setup/environment.py demo

clean:  ## Remove everything the commands above made
	rm -rf .venv .site .devstack demo-report *-output dist devstack/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
