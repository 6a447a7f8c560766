# Every target sets up what it needs; Python >= 3.11, make and git are enough.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Each starts servers of its own, about 150 MB. A test and its server take turns, so two cores have work for three.
JOBS ?= 3
ALL_JOBS ?= 4

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check model mutants torture zombies late-commits torture-smoke fuzz stateful bench bench-quick bench-memory bench-dashboard bench-gate bench-scrape size scale scaling scaling-measure newest lowest format docs site screenshots release-check release lock clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

REFUSE_OLD_PYTHON := $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tasks_app needs Python 3.11 or newer. Run: make PYTHON=python3.12 " + "$(MAKECMDGOALS)")'

setup: $(READY)  ## make .venv with everything pinned

$(READY): requirements/dev.txt pyproject.toml
	@$(REFUSE_OLD_PYTHON)
	@echo "setting up .venv (once) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)  ## watch a shop's day on real PostgreSQL, Valkey and Celery
	@$(BIN)/tasks-app demo $(ARGS)

# Or each process that a test starts would compile the whole package anew.
test test-all: export PYTHONDONTWRITEBYTECODE =
# Jobs that are done take tests from the others; tests/conftest.py puts files that take long first.
PYTEST := -m pytest -q -n $(JOBS) --dist worksteal
test: $(READY)  ## the first tier of the suite, on servers of its own (three minutes)
	@$(BIN)/python $(PYTEST) -m "not test_all" $(ARGS)

# ONLY="tests/broker -k beat" for a part, POSTGRES=16 or a server's URL, PACKAGES=newest or lowest
test-all: $(READY) $(PACKAGES)  ## both tiers (half an hour); ONLY=, POSTGRES=, PACKAGES=: CONTRIBUTING.md
	@$(if $(PACKAGES),.venv-$(PACKAGES)/bin,$(BIN))/python -m tests.everything --jobs $(ALL_JOBS) --only "$(ONLY)" --postgres "$(POSTGRES)" -- $(ARGS)

check: $(READY)  ## format, lint, types, floors, budgets, the quick part of the model
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m dev.budget
	@$(BIN)/python -m dev.verification --quick

model: $(READY)  ## every configuration and mutant of the protocol's model (minutes)
	@$(BIN)/python -m dev.verification

mutants: $(READY)  ## take one rule after the other out of the product: does a test notice? (half an hour)
	@$(BIN)/python -m dev.torture.mutants $(ARGS)

torture: $(READY)  ## each of 80 kinds of faults alone, three seeds, and a table (an hour)
	@$(BIN)/python -m dev.torture matrix $(ARGS)

zombies: $(READY)  ## a thousand processes stopped beyond their lease; all that they write is refused (minutes)
	@$(BIN)/python -m dev.torture.zombies $(ARGS)

late-commits: $(READY)  ## 2,000 producers' transactions held up to 20 s; none may be missed (minutes)
	@$(BIN)/python -m dev.torture.late $(ARGS)

torture-smoke: $(READY)  ## kill -9 everything during 20,000 tasks, then count (about 3 minutes)
	@$(BIN)/python -m dev.torture $(ARGS)

COUNT ?= 10000
SEED ?= $(shell date +%s)
fuzz: $(READY)  ## forged messages, odd payloads, a canary; COUNT=10000 of them, replay with SEED=
	@FUZZ_COUNT=$(COUNT) FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -s --timeout 900 --hypothesis-seed=$(SEED) \
		tests/fuzz tests/broker/test_flower.py tests/pool/tasks/test_browse.py $(ARGS)

EXAMPLES ?= 2000
stateful: $(READY)  ## the pool's verbs against a model, batches of any key and file; EXAMPLES=2000 days, replay with SEED=
	@echo "SEED=$(SEED)"
	@STATEFUL_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -s --hypothesis-seed=$(SEED) tests/pool/test_stateful.py \
		tests/pool/test_stateful.py tests/runtime/test_odd_handlers.py tests/batch/test_restarts.py tests/batch/test_files.py $(ARGS)

bench: $(READY)  ## measure us and the peers, write docs/performance.md (half an hour; be alone on the machine)
	@$(BIN)/python -m dev.benchmarks run --minutes 33 $(ARGS); status=$$?; \
		$(BIN)/python -m dev.benchmarks report && exit $$status

bench-quick: $(READY)  ## the main rows of it, once (minutes)
	@$(BIN)/python -m dev.benchmarks run --quick $(ARGS)

scale: $(READY)  ## what a task costs in a pool of a million rows, state by state (minutes)
	@$(BIN)/python -m dev.benchmarks.scale $(ARGS)

scaling: $(READY)  ## compute what docs/scaling.md says of many cores and hosts (a minute)
	@$(BIN)/python -m dev.benchmarks.simulation page

scaling-measure: $(READY)  ## measure what that is computed from, and check it, again (half an hour; be alone on the machine)
	@$(BIN)/python -m dev.benchmarks.simulation measure costs && $(BIN)/python -m dev.benchmarks.simulation measure checks

size: $(READY)  ## what the database of TASKS_APP_DATABASE_URL can do (half a minute); ARGS="--cores 4 --database-cores 8"
	@$(BIN)/python -m dev.benchmarks.sizing $(ARGS)

bench-dashboard: $(READY)  ## p95 of each page over a million completed tasks (minutes)
	@$(BIN)/python -m dev.benchmarks.dashboard $(ARGS)

bench-memory: $(READY)  ## watch the memory of children over a million tasks
	@$(BIN)/python -m dev.benchmarks run --scenario memory $(ARGS)

bench-scrape: $(READY)  ## what a scrape takes beside a million rows, and they on disk (two minutes)
	@$(BIN)/python -m dev.benchmarks.scrape $(ARGS)

bench-gate: $(READY)  ## has something become slower than dev/benchmarks/gate.json says? (two minutes)
	@$(BIN)/python -m dev.benchmarks gate $(ARGS)

# PACKAGES= of test-all: the newest or the oldest of all that pyproject allows, in an environment of its own.
SHOWN := grep -E '^(alembic|billiard|celery|kombu|psycopg|pydantic|redis|sqlalchemy) '
newest: $(READY)
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python .venv-newest
	@$(BIN)/uv pip install --quiet --upgrade --python .venv-newest/bin/python -r requirements/dev.in -e '.[demo,encryption]'
	@$(BIN)/uv pip list --python .venv-newest/bin/python | $(SHOWN)

lowest: $(READY)
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python .venv-lowest
	@$(BIN)/uv pip compile --quiet --resolution lowest-direct --python .venv-lowest/bin/python pyproject.toml --extra demo --extra encryption -o .venv-lowest/lowest.txt
	@$(BIN)/uv pip install --quiet --python .venv-lowest/bin/python -r requirements/dev.in -e '.[demo,encryption]' -c .venv-lowest/lowest.txt
	@$(BIN)/uv pip list --python .venv-lowest/bin/python | $(SHOWN)

format: $(READY)  ## let ruff format and fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(READY)  ## write the pages that come from the code: API, settings, commands, schema, SQL
	@$(BIN)/python -m dev.documents
	@$(BIN)/python -m tests.docs.payload_types
	@$(BIN)/python -m tests.docs.sql_page

SITE := .tasks_app/site
$(SITE)/.venv/.ready: requirements/site.txt
	@$(REFUSE_OLD_PYTHON)
	@echo "setting up $(SITE)/.venv (once) ..."
	@$(PYTHON) -m venv $(SITE)/.venv
	@$(SITE)/.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/site.txt
	@touch $@

site: $(READY) $(SITE)/.venv/.ready  ## build the documentation as a web site: .tasks_app/site/html/index.html
	@$(BIN)/python -m dev.documents site
	@$(BIN)/python -m tests.docs.sql_page
	@rm -rf $(SITE)/html
	@$(SITE)/.venv/bin/sphinx-build -q -E -W --keep-going -b site -c dev/documents/site -d $(SITE)/read . $(SITE)/html
	@echo "$(SITE)/html/index.html"

screenshots: $(READY)  ## take the dashboard's pictures anew, of a shop on real servers (two minutes; needs chromium)
	@$(BIN)/python -m dev.documents.screenshots $(ARGS)

RELEASE := .tasks_app/release/.venv
$(RELEASE)/.ready: requirements/release.txt
	@$(REFUSE_OLD_PYTHON)
	@echo "setting up $(RELEASE) (once) ..."
	@$(PYTHON) -m venv $(RELEASE)
	@$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/release.txt
	@touch $@

release-check: $(RELEASE)/.ready  ## build sdist, wheel and bill of materials in dist/, and try each extra as users do (minutes)
	@$(RELEASE)/bin/python -m dev.release check

release: $(RELEASE)/.ready  ## VERSION=0.2.0: give the package and the unreleased changes that version
	@test -n "$(VERSION)" || { echo "Say which: make release VERSION=0.2.0"; exit 2; }
	@$(RELEASE)/bin/python -m dev.release version "$(VERSION)"

PIN := ../$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
lock: $(READY)  ## pin the newest versions that pyproject allows
	@$(BIN)/python -m pip install --quiet uv
	@cd requirements && $(PIN) --upgrade ../pyproject.toml --extra demo --extra otel --extra encryption dev.in -o dev.txt
	@cd requirements && $(PIN) -c dev.txt ../pyproject.toml --extra cli --extra dashboard --extra flower image.in -o image.txt
	@cd requirements && $(PIN) --upgrade site.in -o site.txt
	@cd requirements && $(PIN) --upgrade release.in -o release.txt

clean:  ## remove .venv and ./.tasks_app
	@rm -rf .venv .venv-newest .venv-lowest .tasks_app
