# Every command of the project. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --durations=20

.DEFAULT_GOAL := help
.PHONY: help setup lint format quick simulation simulate integration faults faults-quick game-day spark spark-faults test-platform servers manifests test test-all demo bench bench-report bench-pipelines bench-debezium bench-spark soak types fuzz memory-safety coverage lock dist clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.installed ## Create the virtual environment from requirements.lock

$(VENV)/.installed: requirements.lock pyproject.toml setup.py $(wildcard src/pgsluice/native/*.p*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock  # the lock file lists all dependencies
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

lint: setup ## Check style, types and the import order
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

quick: setup ## Run the tests that need no server (takes seconds)
	$(PYTEST) tests/unit tests/property -q -n 2

coverage: setup ## Measure the branch coverage of the core, which has to be 100 %
	$(PYTEST) tests/unit tests/property -q -n 2 --cov --cov-report=term-missing
	$(BIN)/coverage report --include='$(CORE)' --fail-under=100

CORE := src/pgsluice/lsn.py,src/pgsluice/errors.py,src/pgsluice/finding.py,src/pgsluice/pgoutput/*,src/pgsluice/relation.py,src/pgsluice/identity.py,src/pgsluice/record.py,src/pgsluice/rows.py,src/pgsluice/transaction.py,src/pgsluice/waiting.py,src/pgsluice/transactions.py,src/pgsluice/avro/*,src/pgsluice/pgbinary/*,src/pgsluice/tables.py,src/pgsluice/envelope.py,src/pgsluice/cut.py,src/pgsluice/progress.py,src/pgsluice/checkpoint.py,src/pgsluice/resending.py,src/pgsluice/history.py,src/pgsluice/snapshot.py,src/pgsluice/layout.py,src/pgsluice/round.py,src/pgsluice/loads.py,src/pgsluice/commands.py

simulation: setup ## Simulate hundreds of worlds with a scripted PostgreSQL and a scripted Kafka, and disable each rule once
	$(PYTEST) tests/simulation -q -n 2

simulate: setup ## Simulate more of these worlds (SEEDS=1000000), or others (SEED=1000)
	$(BIN)/python -m tests.simulation --seed $(or $(SEED),0) --seeds $(or $(SEEDS),10000) --workers 2

integration: setup ## Run the tests with a real PostgreSQL and a real Kafka
	$(BIN)/python -m sandbox fetch
	$(call SIDE_BY_SIDE,tests/integration)

# If tests have failed (pytest's exit code is 1), run only the failed tests once more.
ONCE_MORE = { test $$? = 1 && $(PYTEST) $(1) --last-failed; }

# Three processes, because most tests wait most of the time.
define SIDE_BY_SIDE
	$(PYTEST) $(1) -q -n 3 --dist loadfile --no-loadscope-reorder $(SELECTED) || $(call ONCE_MORE,$(1) -q $(SELECTED))
endef

faults-quick: setup ## Kill daemons, servers and brokers at random, and check that nothing is lost (takes minutes)
	$(PYTEST) tests/faults -q

faults: setup ## The same for longer: make faults KILLS=500 [SEED=n [ROUND=n]] [VERSION=14|16|18] [WITHOUT=rule]
	$(BIN)/python -m tests.faults --kills $(or $(KILLS),500) $(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND)) $(if $(VERSION),--version $(VERSION)) $(if $(WITHOUT),--without '$(WITHOUT)')

game-day: setup ## Break a running pipeline in about twenty ways, and repair it as the runbook says: make game-day [SEED=n] [ONLY="walsender slot"]
	$(BIN)/python -m sandbox fetch
	$(BIN)/python -m tests.gameday $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

spark: setup ## Run the tests of the Spark side, and failed tests once more
	$(PYTEST) tests/spark -n 2 --dist loadfile --no-loadscope-reorder $(SELECTED) || $(call ONCE_MORE,tests/spark $(SELECTED))

spark-faults: setup ## Disable each rule of mirrors in turn, then kill drivers at chosen steps: make spark-faults KILLS=100 [SEED=n]
	$(PYTEST) tests/spark/test_rules.py -q
	$(BIN)/python -m tests.spark --kills $(or $(KILLS),100) $(if $(SEED),--seed $(SEED))

test-platform: setup ## Run the tests of image, Compose file, systemd unit, chart, alerts and dashboard (fetches tools, needs root)
	$(BIN)/python -m sandbox tools
	$(BIN)/python -m sandbox tools compose kube-apiserver etcd helm-4  # the first build takes twenty minutes
	$(PYTEST) tests/platform -q || $(call ONCE_MORE,tests/platform -q)

manifests: setup ## Render deploy/kubernetes, the chart's README and its copies of files (needs Go the first time)
	$(BIN)/python -m sandbox.chart

servers: setup # Run the tests of integration and test-platform in parallel
	$(BIN)/python -m sandbox fetch
	mkdir -p build && { nice -n 19 $(BIN)/python -m sandbox tools > build/tools.log 2>&1 & }  # tests wait for the tools that they need
	$(call SIDE_BY_SIDE,tests/integration tests/platform)

test: SELECTED = $(if $(filter all,$(PGSLUICE_TEST_VERSIONS)),,-m 'not long')
test: lint coverage simulation servers faults-quick spark ## Run everything that has to pass, on PostgreSQL 10, 14, 16 and 18

test-all: export PGSLUICE_TEST_VERSIONS := all
test-all: test ## The same, with the tests that take long, and on every version of PostgreSQL from 10 to 18

demo: setup ## Show changes on their way from PostgreSQL to Kafka and Spark, and compare the tables (KEEP=1 leaves it running)
	$(BIN)/python -m sandbox.demo $(if $(KEEP),--keep)

bench: setup ## Measure events per second, compared with a client that discards the same WAL (takes minutes)
	$(BIN)/python -m bench

bench-report: setup ## Measure all figures of docs/performance.md, and write the page, in fifty minutes (ONLY="orders-20 latency memory", RUNS=5, SCALE=0.1)
	$(BIN)/python -m bench --report $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS)) $(if $(SCALE),--scale $(SCALE))

bench-pipelines: setup ## Compare one pipeline with two pipelines that have half of its tables each
	$(BIN)/python -m bench.pipelines

bench-debezium: setup ## Measure pgsluice beside Debezium in Kafka Connect, in half an hour (ONLY="orders-20 live", RUNS=1, SCALE=0.1)
	$(BIN)/python -m bench.debezium $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS)) $(if $(SCALE),--scale $(SCALE))

bench-spark: setup ## Measure the Spark side: compared with hand-written jobs, audits, memory of the driver (ONLY="decode audit", RUNS=1, SCALE=0.1)
	$(BIN)/python -m bench.spark $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS)) $(if $(SCALE),--scale $(SCALE))

soak: setup ## Run a mixed load for MINUTES=60, and fail if memory, threads, file descriptors or tasks grow
	$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),60)

types: setup ## Send values of every type through real servers: make types COUNT=5000 [SEED=n]
	$(BIN)/python -m tests.types --count $(or $(COUNT),1000) --seed $(or $(SEED),1)

fuzz: setup ## Try a million mutated inputs each on the decoder, both twins, the readers of service topics, and the HTTP server
	$(BIN)/python -m tests.fuzz.pgoutput --count 1000000
	$(BIN)/python -m tests.fuzz.rows --count 1000000
	$(BIN)/python -m tests.fuzz.topics --count 1000000
	$(BIN)/python -m tests.fuzz.http --count 1000000

memory-safety: setup ## Fuzz and test the compiled modules under AddressSanitizer
	rm -rf build/safety && mkdir -p build/safety && cp -r src setup.py pyproject.toml README.md LICENSE build/safety
	find build/safety -name '*.so' -delete
	cd build/safety && CFLAGS='-fsanitize=address -fno-omit-frame-pointer -O1 -g' LDFLAGS=-fsanitize=address \
		$(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace
	LD_PRELOAD=$$(cc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
		PGSLUICE_SPEEDUPS=require PYTHONPATH=build/safety/src $(BIN)/python -m tests.fuzz.rows --count $(or $(COUNT),200000)
	LD_PRELOAD=$$(cc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
		PGSLUICE_SPEEDUPS=require PYTHONPATH=build/safety/src $(PYTEST) tests/unit/test_rows.py tests/unit/kafka/test_runs.py tests/unit/pgoutput/test_copy.py -q

COMPILE := $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

lock: ## Renew requirements.lock, then the lock files of the image
	$(COMPILE) --extra aws --extra confluent --extra dev --extra otel --extra spark --output-file requirements.lock pyproject.toml
	$(COMPILE) --extra confluent --constraint requirements.lock --output-file deploy/image/runtime.lock pyproject.toml
	$(COMPILE) --all-build-deps --only-build-deps --constraint requirements.lock --output-file deploy/image/build.lock pyproject.toml

dist: setup ## Build a release (sdist and wheels) into dist/, check it, install it and run it (TWICE=1: build it twice, and compare)
	$(BIN)/python -m sandbox fetch
	$(BIN)/python -m sandbox.release $(if $(TWICE),--twice)

clean: ## Remove everything that was built, but keep the downloaded servers in the cache
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
