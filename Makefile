# Ottla's errands. `make help` lists them; each one sets up what it needs.

VENV    := .venv
BIN     := $(VENV)/bin
PYTHON  ?= $(shell command -v python3.11 || command -v python3)
CORE    := $(VENV)/.core
STAMP   := $(VENV)/.installed
WORKERS ?= 2
# Much of a test of Spark is waiting for a process that starts, or for one that was killed.
SPARK_WORKERS ?= 3
SIM_ROUNDS ?= 2000
SIM_SEED   ?= 1
SEEDS      ?= 1000
TROUBLES   ?= 100
SOAK_KILLS   ?= 20
SOAK_MINUTES ?= 5
SOAK_SEED    ?= 1
SOAK_SEEDS   ?= 1
# A Python built with the compiler's profile (Debian's, Docker's) is some 15 % faster than one without.
BENCH_PYTHON ?= $(BIN)/python
PYTEST  := $(BIN)/pytest -n $(WORKERS) -rs

.DEFAULT_GOAL := help
.PHONY: help install system run tour demo test quick lint format unit scenarios cuts troubles sim clients cluster compat spark soak delta bench bench-peers bench-cluster bench-spark docs dist clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

install: $(STAMP) ## .venv with Ottla and everything its tests need

# The broker, its commands and the pytest plugin: what `make run` waits for.
$(CORE): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
	@echo "Setting up $(VENV) for the broker and its commands, once: some 15 seconds …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(STAMP): $(CORE)
	@echo "Adding what tests, Spark and benchmarks need, once: 1.4 GB, some minutes …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

system: ## kcat, PostgreSQL, nftables, promtool, curl and jq from the system's packages, where that is possible
	@sh scripts/system-packages.sh

run: $(CORE) ## a broker on 127.0.0.1:9092 with its data in ./ottla-data
	@exec $(BIN)/ottla start --listen 127.0.0.1:9092 --data-dir ./ottla-data

tour: install ## topics, messages, a group, a crash and what is left after it
	@$(BIN)/python scripts/tour.py

demo: install ## orders, a pipeline on Spark, its totals as they come, and a picture of the run (demo.png)
	@$(BIN)/python scripts/demo.py

test: install system ## everything that must pass, and a line for each part
	@$(BIN)/python scripts/parts.py lint unit scenarios cuts troubles clients spark

quick: install ## what takes a few minutes of it, for between two edits
	@$(BIN)/python scripts/parts.py lint unit

lint: install ## style, types, and the direction of dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## rewrites the code in the house's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

unit: install ## the parts, each alone
	$(PYTEST) tests/unit

scenarios: install ## the whole broker in a process of its own
	$(PYTEST) tests/scenarios

cuts: install ## a hundred power cuts of a whole broker, and as many on disks in other trouble
	$(PYTEST) tests/sim

troubles: install ## clusters in trouble, in virtual time: TROUBLES seeds
	$(BIN)/python -m ottla.testing.sim --seeds $(TROUBLES) --workers $(WORKERS)

sim: install ## thousands: SEEDS clusters in trouble, SIM_ROUNDS power cuts of a broker and lives of a log, from SIM_SEED on
	$(BIN)/python -m ottla.testing.sim --seed $(SIM_SEED) --seeds $(SEEDS) --workers $(WORKERS)
	SIM_ROUNDS=$(SIM_ROUNDS) SIM_SEED=$(SIM_SEED) $(PYTEST) tests/sim tests/unit/log/test_crash_points.py

clients: install ## real Kafka clients in Python, Java, Go, JavaScript and C
	$(PYTEST) tests/clients

spark: install ## a real Spark that reads and writes, its own Kafka connector beside it
	$(BIN)/pytest -n $(SPARK_WORKERS) -rs tests/spark

soak: install ## pipelines killed SOAK_KILLS times, SOAK_MINUTES with a dying broker, for SOAK_SEEDS seeds from SOAK_SEED
	$(BIN)/python scripts/soak.py --first $(SOAK_SEED) --seeds $(SOAK_SEEDS) --kills $(SOAK_KILLS) --minutes $(SOAK_MINUTES)

delta: ## Delta sinks, with the newest Spark that Delta is made for, in an environment of its own
	test -x .cache/delta/bin/python || $(PYTHON) -m venv .cache/delta
	.cache/delta/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' 'pyspark==4.2.*'
	.cache/delta/bin/pytest -p no:xdist tests/spark/pipelines/test_delta.py

cluster: install system ## three real processes under load: stopped, cut off, with disks that hang or are full
	$(BIN)/pytest -rs tests/cluster

compat: install ## franz-go's own test suite against Ottla: one node, then three with three replicas
	$(BIN)/python tests/compat/run.py
	$(BIN)/python tests/compat/run.py --nodes 3

bench-peers: install ## the same loads on Ottla and on Apache Kafka, in turn, as ratios
	$(BENCH_PYTHON) -m bench peers
	$(BENCH_PYTHON) -m bench peers --pinned

bench-cluster: install ## three nodes beside three of Kafka, kills of leaders, a follower that comes back
	$(BENCH_PYTHON) -m bench peers --cluster
	$(BENCH_PYTHON) -m bench kills
	$(BENCH_PYTHON) -m bench returns

bench-spark: install ## Spark's format("ottla") against its format("kafka"), as ratios
	$(BENCH_PYTHON) -m bench spark

bench: install ## figures: messages per second, CPU per message, memory, start
	$(BENCH_PYTHON) -m bench

docs: install ## the references in docs/reference, from the code
	$(BIN)/python scripts/generate_docs.py

dist: install ## wheel and sdist, installed elsewhere and tried out
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python scripts/try_dist.py dist

clean: ## removes what can be made again; data and .venv stay
	rm -rf dist build .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
