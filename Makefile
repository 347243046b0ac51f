# Everything a developer or CI calls. `make help` lists it.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.stamp
LOCAL   := $(BIN)/python -m elps.local
WORKERS ?= 2
SHARDS  ?= 2
SCHEDULERS ?= 1
ALL     ?=
# Whether `up` leaves a running stack that is larger as it is; set for the targets that only use one.
AT_LEAST =
ARGS    ?=

# Three test processes for two cores: tests of whole stacks wait more than they compute. One broker serves all.
# Files in their order: those of the slow tests come first, and nobody waits for one at the end.
XDIST   := -n 3 --dist loadfile --no-loadscope-reorder

# What `make chaos` runs before it: more of what `make test` has some of.
THOROUGH := -n 2 --dist loadfile -m thorough tests/unit tests/simulation tests/e2e tests/integration

.DEFAULT_GOAL := help
.PHONY: help setup lint format schema type test unit integration e2e fuzz simulation chaos soak cover bench up down status clean demo elastic newcomers
.SUFFIXES:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything in it; fetch RabbitMQ and Redis if they are missing
	@$(LOCAL) fetch
	@echo "elps is set up: make up, make test, or $(BIN)/elps --help"

# Keyed on pyproject.toml: done again only when that changes.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "elps needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) -V). Try: make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "the module venv is missing. On Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev --editable .
	@touch $(STAMP)

lint: $(STAMP) type ## Style, formatting, types, import rules, and that the descriptions in docs/ are up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m elps.contracts.schema --check docs/job.schema.json
	$(BIN)/python -m elps.messaging.described --check docs/asyncapi.json

type: $(STAMP) ## Check the types
	$(BIN)/mypy

format: $(STAMP) ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: $(STAMP) ## Write docs/job.schema.json and docs/asyncapi.json anew
	$(BIN)/python -m elps.contracts.schema --write docs/job.schema.json
	$(BIN)/python -m elps.messaging.described --write docs/asyncapi.json

test: setup ## All tests but chaos, the thorough and the long ones, and the benchmarks; some 8 minutes on two cores
	$(BIN)/pytest $(XDIST) -m 'not long and not thorough' --ignore=tests/bench --ignore=tests/chaos tests $(ARGS)

unit: $(STAMP) ## Tests without input or output
	$(BIN)/pytest -m 'not long' tests/unit $(ARGS)

integration: setup ## Tests with a real broker and store, those of the contracts included
	$(BIN)/pytest -m 'not long' tests/contract tests/integration $(ARGS)

e2e: setup ## Whole jobs
	$(BIN)/pytest -m 'not long' tests/e2e $(ARGS)

fuzz: $(STAMP) ## The tests without input or output with examples drawn anew, what was found kept for the next time
	$(BIN)/pytest $(XDIST) -m 'not long' --hypothesis-profile=fuzz --timeout=3600 tests/unit $(ARGS)

# With SEED that one alone, told line by line.
simulation: $(STAMP) ## All services in one thread and virtual time, while everything fails; one seed, with its story: SEED=4711
	$(if $(SEED),cd tests && ../$(BIN)/python -m simulation $(SEED),$(BIN)/pytest tests/simulation $(ARGS))

# With KILLS the seeded run alone, told as it happens.
chaos: setup ## The thorough tests; then kill, freeze and cut off (ARGS='-m long' for the long ones); the seeded run alone: SEED=4711 KILLS=20
	$(if $(KILLS)$(ARGS),,$(BIN)/pytest $(THOROUGH))
	SEED=$(SEED) KILLS=$(KILLS) $(BIN)/pytest $(if $(KILLS),-s tests/chaos/test_chaos_run.py,-m 'not long' tests/chaos) $(ARGS)

soak: setup ## Short jobs and failures for SOAK_S=1200 seconds; whoever is not hit stays as large as it is
	SOAK_S=$(SOAK_S) SEED=$(SEED) $(BIN)/pytest -s -m long tests/chaos/test_chaos_soak.py $(ARGS)

cover: $(STAMP) ## Which lines the tests without input or output reach
	$(BIN)/coverage run -m pytest -m 'not long' tests/unit $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

bench: setup ## Measure; prints JSON lines
	@for file in tests/bench/bench_*.py; do $(BIN)/python $$file $(ARGS) || exit 1; done

# One line in place of a usage text; in the environment the value is safe from the shell.
up: export COUNT_OF_WORKERS := $(WORKERS)
up: export COUNT_OF_SHARDS := $(SHARDS)
up: export COUNT_OF_SCHEDULERS := $(SCHEDULERS)
up: $(STAMP) ## Start a private RabbitMQ, Redis and all services, or change their number [WORKERS=2] [SHARDS=2] [SCHEDULERS=1]
	@for name in WORKERS SHARDS SCHEDULERS; do \
	  eval "count=\$$COUNT_OF_$$name"; \
	  { test "$$count" -ge 1 && test "$$count" -le 256; } 2>/dev/null || \
	    { echo "$$name=$$count: expected a whole number from 1 to 256, as in: make up $$name=2" >&2; exit 2; }; \
	done
	@$(LOCAL) up --workers $(WORKERS) --shards $(SHARDS) --schedulers $(SCHEDULERS) $(AT_LEAST)

down: $(STAMP) ## Checkpoint running jobs and end all of it
	@$(LOCAL) down

status: $(STAMP) ## Show the processes of the stack
	@$(LOCAL) status || true   # python -m elps.local status tells programs by its exit code

clean: $(STAMP) ## End the stack and remove its data and logs [ALL=1: the unpacked RabbitMQ and Redis too]
	@$(LOCAL) clean $(if $(ALL),--all)

demo elastic newcomers: AT_LEAST = --at-least
demo: up ## Start the stack, or take a running one as large as it is, and train a few jobs on real data
	@$(BIN)/python examples/demo.py $(ARGS)

elastic: WORKERS = 4
elastic: SHARDS = 3
elastic: up ## Watch a job grow, shrink and change its shards while it trains
	@$(BIN)/python examples/elastic.py $(ARGS)

newcomers: WORKERS = 4
newcomers: up ## Watch newcomers get their first results from a full cluster, at the cost of a job that trains on
	@$(BIN)/python examples/newcomers.py $(ARGS)
