# Every command of the project. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --durations=20

.DEFAULT_GOAL := help
.PHONY: help setup lint format quick unit simulation simulate integration faults faults-quick game-day spark spark-faults test-platform servers manifests test test-all demo bench bench-report bench-pipelines bench-debezium bench-spark soak types fuzz memory-safety coverage lock dist clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.installed ## Make the virtual environment from requirements.lock

$(VENV)/.installed: requirements.lock pyproject.toml setup.py $(wildcard src/pgsluice/native/*.p*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock  # the lock is complete: nothing is left to resolve
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

lint: setup ## Style, types, import order
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

quick: setup ## Tests that need no server: seconds
	$(PYTEST) tests/unit tests/property -q -n 2

coverage: setup ## Branch coverage of the core, which has to be complete
	$(PYTEST) tests/unit tests/property -q -n 2 --cov --cov-report=term-missing
	$(BIN)/coverage report --include='$(CORE)' --fail-under=100

CORE := src/pgsluice/lsn.py,src/pgsluice/errors.py,src/pgsluice/finding.py,src/pgsluice/pgoutput/*,src/pgsluice/relation.py,src/pgsluice/record.py,src/pgsluice/rows.py,src/pgsluice/transaction.py,src/pgsluice/waiting.py,src/pgsluice/transactions.py,src/pgsluice/avro/*,src/pgsluice/pgbinary/*,src/pgsluice/tables.py,src/pgsluice/envelope.py,src/pgsluice/cut.py,src/pgsluice/progress.py,src/pgsluice/checkpoint.py,src/pgsluice/resending.py,src/pgsluice/history.py,src/pgsluice/snapshot.py,src/pgsluice/layout.py,src/pgsluice/round.py,src/pgsluice/loads.py,src/pgsluice/commands.py

simulation: setup ## Hundreds of worlds of a scripted PostgreSQL and a scripted Kafka, and every rule taken out once
	$(PYTEST) tests/simulation -q -n 2

simulate: setup ## More of these worlds (SEEDS=1000000), or others (SEED=1000)
	$(BIN)/python -m tests.simulation --seed $(or $(SEED),0) --seeds $(or $(SEEDS),10000) --workers 2

integration: setup ## Tests on a real PostgreSQL and a real Kafka
	$(BIN)/python -m sandbox fetch
	$(call SIDE_BY_SIDE,tests/integration)

# After a run in which tests have failed (pytest's exit code 1), run these tests once more, alone.
ONCE_MORE = { test $$? = 1 && $(PYTEST) $(1) --last-failed; }

# Three processes, because most tests wait most of the time.
define SIDE_BY_SIDE
	$(PYTEST) $(1) -q -n 3 --dist loadfile --no-loadscope-reorder $(SELECTED) || $(call ONCE_MORE,$(1) -q $(SELECTED))
endef

faults-quick: setup ## Some fifteen random kills of everything: minutes
	$(PYTEST) tests/faults -q

faults: setup ## The long run: make faults KILLS=500 [SEED=n [ROUND=n]] [VERSION=14|16|18]
	$(BIN)/python -m tests.faults --kills $(or $(KILLS),500) $(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND)) $(if $(VERSION),--version $(VERSION)) $(if $(WITHOUT),--without '$(WITHOUT)')

game-day: setup ## Break a running pipeline in some twenty ways, and repair it as the runbook says: make game-day [SEED=n] [ONLY="walsender slot"]
	$(BIN)/python -m sandbox fetch
	$(BIN)/python -m tests.gameday $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

spark: setup ## Tests of the Spark side; what fails runs once more
	$(PYTEST) tests/spark -n 2 --dist loadfile --no-loadscope-reorder $(SELECTED) || $(call ONCE_MORE,tests/spark $(SELECTED))

spark-faults: setup ## The rules of a mirror taken out one by one, and drivers killed at named steps: make spark-faults KILLS=100 [SEED=n]
	$(PYTEST) tests/spark/test_rules.py -q
	$(BIN)/python -m tests.spark --kills $(or $(KILLS),100) $(if $(SEED),--seed $(SEED))

test-platform: setup ## Image, Compose, systemd unit, chart, alerts and dashboard, run for real (tools are fetched; root is needed)
	$(BIN)/python -m sandbox tools
	$(BIN)/python -m sandbox tools compose kube-apiserver etcd helm-4  # twenty minutes, once
	$(PYTEST) tests/platform -q || $(call ONCE_MORE,tests/platform -q)

manifests: setup ## Render deploy/kubernetes, and make what the chart has from elsewhere (needs Go once)
	$(BIN)/python -m sandbox.chart

servers: setup # What integration and test-platform do, side by side
	$(BIN)/python -m sandbox fetch
	mkdir -p build && { nice -n 19 $(BIN)/python -m sandbox tools > build/tools.log 2>&1 & }  # who needs one waits for it
	$(call SIDE_BY_SIDE,tests/integration tests/platform)

test: SELECTED = $(if $(filter all,$(PGSLUICE_TEST_VERSIONS)),,-m 'not long')
test: lint coverage simulation servers faults-quick spark ## Everything that has to pass, on PostgreSQL 10, 14, 16 and 18

test-all: export PGSLUICE_TEST_VERSIONS := all
test-all: test ## The same and the tests that take long, on every version of PostgreSQL from 10 to 18

demo: setup ## PostgreSQL to Kafka to Spark, compared table by table (KEEP=1 leaves it running)
	$(BIN)/python -m sandbox.demo $(if $(KEEP),--keep)

bench: setup ## Events per second, beside a bare drain of the same WAL: minutes
	$(BIN)/python -m bench

bench-report: setup ## All that docs/performance.md tells, which it writes: fifty minutes (ONLY="orders-20 latency memory", RUNS=5, SCALE=0.1)
	$(BIN)/python -m bench --report $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS)) $(if $(SCALE),--scale $(SCALE))

bench-pipelines: setup ## One pipeline beside two, each of half the tables
	$(BIN)/python -m bench.pipelines

bench-spark: setup ## The Spark side beside jobs by hand, audits, memory of the driver (ONLY="decode audit", RUNS=1, SCALE=0.1)
	$(BIN)/python -m bench.spark $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS)) $(if $(SCALE),--scale $(SCALE))

soak: setup ## A mixed load for MINUTES=60; fails if memory, threads, file descriptors or tasks grow
	$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),60)

types: setup ## Values of every type through real servers: make types COUNT=5000 [SEED=n]
	$(BIN)/python -m tests.types --count $(or $(COUNT),1000) --seed $(or $(SEED),1)

fuzz: setup ## A million mutated inputs for the decoder, for one twin against the other, for readers of service topics, and for the HTTP server
	$(BIN)/python -m tests.fuzz.pgoutput --count 1000000
	$(BIN)/python -m tests.fuzz.rows --count 1000000
	$(BIN)/python -m tests.fuzz.topics --count 1000000
	$(BIN)/python -m tests.fuzz.http --count 1000000

memory-safety: setup ## The same for the compiled modules under AddressSanitizer
	rm -rf build/safety && mkdir -p build/safety && cp -r src setup.py pyproject.toml README.md LICENSE build/safety
	find build/safety -name '*.so' -delete
	cd build/safety && CFLAGS='-fsanitize=address -fno-omit-frame-pointer -O1 -g' LDFLAGS=-fsanitize=address \
		$(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace
	LD_PRELOAD=$$(cc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
		PGSLUICE_SPEEDUPS=require PYTHONPATH=build/safety/src $(BIN)/python -m tests.fuzz.rows --count $(or $(COUNT),200000)
	LD_PRELOAD=$$(cc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
		PGSLUICE_SPEEDUPS=require PYTHONPATH=build/safety/src $(PYTEST) tests/unit/test_rows.py tests/unit/kafka/test_runs.py tests/unit/pgoutput/test_copy.py -q

COMPILE := $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

lock: ## Renew requirements.lock, and after it the locks of the image
	$(COMPILE) --extra aws --extra confluent --extra dev --extra otel --extra spark --output-file requirements.lock pyproject.toml
	$(COMPILE) --extra confluent --constraint requirements.lock --output-file deploy/image/runtime.lock pyproject.toml
	$(COMPILE) --all-build-deps --only-build-deps --constraint requirements.lock --output-file deploy/image/build.lock pyproject.toml

dist: setup ## Build a release into dist/: sdist and wheels, checked, installed and run (TWICE=1: built twice and compared)
	$(BIN)/python -m sandbox fetch
	$(BIN)/python -m sandbox.release $(if $(TWICE),--twice)

clean: ## Remove what was built; the servers' downloads stay in the cache
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
