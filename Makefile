# Everything is set up by itself: `make demo` and `make test` need Python 3.11 or newer and make, nothing else.
# PYTHON=/path/to/python3 chooses the interpreter that .venv is made with; PYTEST_ARGS adds to the pytest command line.

SHELL := /bin/sh
BIN := .venv/bin
# Much of it is waiting for servers: six keep two cores busy.
WORKERS ?= 6
PYTEST := $(BIN)/python -m pytest
# Whatever the shell says: hundreds of processes, each of which would compile all of jsplan for itself.
export PYTHONDONTWRITEBYTECODE :=
# Hundreds of servers write their stores: into memory, where that has 8 GB left (containers often have 64 MB).
ifeq ($(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8000000 { print "large" }'),large)
export TMPDIR := /dev/shm
endif
# A name on PATH may be a shim without an interpreter behind it, so each is run before it is taken.
ifndef PYTHON
PYTHON := $(shell for name in python3.13 python3.12 python3.11 python3 python; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$name" && break; done)
endif

# Lint first, tests last: the last line is the summary of the tests.
.NOTPARALLEL:

.PHONY: help setup setup-spark spark-classes demo test lint types imports pytest test-matrix compat soak bench docs docs-pages demo-svg reports format lock build release clean

help: ## what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

setup: ## .venv with everything that development needs
	@if [ -z "$(PYTHON)" ]; then \
		echo "jsplan needs Python 3.11 or newer, and there is none on PATH. Name one with: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi
	@"$(PYTHON)" tools/bootstrap.py

setup-spark: ## the same with PySpark, for backfill
	@"$(PYTHON)" tools/bootstrap.py spark

spark-classes: setup-spark ## once: an archive of the classes of Spark, which starts faster with it
	@$(BIN)/python -m tools.spark_classes

demo: setup-spark ## plan, apply, drift and backfill on embedded nats-servers, hub and leaf
	@$(BIN)/python examples/demo.py

test: lint types imports pytest ## everything that has to pass

lint: setup ## ruff: rules and format; the words of docs/glossary.md
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/python -m tools.lint_words

# In a new clone the other core compiles the tests meanwhile, as pytest rewrites them: else each of the workers would, for 12 s of CPU each.
types: setup-spark ## mypy --strict over package and tests
	@test -d tests/__pycache__ || $(PYTEST) --collect-only -qq >/dev/null 2>&1 & \
		echo $(BIN)/mypy && $(BIN)/mypy; status=$$?; wait; exit $$status

imports: setup-spark ## the imports between the packages
	@$(BIN)/lint-imports --no-logo

pytest: setup-spark ## the tests alone
	$(PYTEST) -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-matrix: spark-classes ## the release, the reports in a browser, the tests marked `matrix` against every supported nats-server, and Spark 4.0 and 4.1
	$(PYTEST) -m download tests/access tests/install tests/sandbox tests/facts tests/planning tests/workflows tests/render tests/examples
	@for server in $$($(BIN)/python -m jsplan.sandbox.versions); do \
		echo "== $$("$$server" --version)"; \
		JSPLAN_NATS_SERVER="$$server" $(PYTEST) -n $(WORKERS) --dist worksteal -m matrix $(PYTEST_ARGS) || exit 1; \
	done
	@$(BIN)/python -m tools.spark_releases

compat: spark-classes ## every rule against one release, and the page of releases: make compat VERSION=2.15.2
	server="$$($(BIN)/python -m jsplan.sandbox.versions $(VERSION))" && \
		JSPLAN_NATS_SERVER="$$server" $(PYTEST) -n $(WORKERS) --dist worksteal -m matrix $(PYTEST_ARGS)
	@$(BIN)/python -m tools.make_docs

soak: spark-classes ## long runs
	$(PYTEST) -n 3 --dist worksteal -m soak --timeout 7200 $(PYTEST_ARGS)
	$(PYTEST) -m "hypothesis and not soak and not download and not jnats" --hypothesis-profile open $(PYTEST_ARGS)

bench: setup ## what the performance claims are measured with, as JSON
	@for script in benchmarks/*.py; do $(BIN)/python "$$script" || exit 1; done

bench-check: setup ## measure the ratios to bare clients, and compare them with benchmarks/results.json
	@$(BIN)/python -m tools.bench check

bench-record: setup ## measure them into benchmarks/results.json, and write docs/reference/benchmarks.md; half an hour
	@$(BIN)/python -m tools.bench record
	@$(BIN)/python -m tools.make_docs

demo-svg: setup-spark ## run the demo and draw what it prints, into docs/images/
	@$(BIN)/python -m tools.make_demo_svg

reports: setup ## plan a change on embedded servers and show it, into docs/reports/ and docs/images/; needs a Chromium
	@$(BIN)/python -m tools.make_reports

docs-pages: setup ## write the generated pages under docs/reference/ and the schemas anew
	@$(BIN)/python -m tools.make_schemas
	@$(BIN)/python -m tools.make_docs
	@$(BIN)/python -m tools.make_combinations

docs: setup ## the documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: setup ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

COMPILE := uv pip compile --universal --python-version 3.11 --quiet --no-annotate --generate-hashes --custom-compile-command 'make lock' --upgrade
lock: setup ## newest versions into the lock files, with their hashes; needs uv
	$(COMPILE) --extra dev pyproject.toml -o requirements-dev.lock
	for extra in spark release sandbox; do \
		$(COMPILE) -c requirements-dev.lock --extra $$extra pyproject.toml -o requirements-$$extra.lock || exit; done
	$(COMPILE) -c requirements-dev.lock pyproject.toml -o requirements-run.lock
	printf 'hatchling\nsetuptools\n' | $(COMPILE) -c requirements-release.lock - -o requirements-build.lock

release: setup ## sdist, wheel, jsplan.pyz, SBOM and checksums, into dist/; two runs make the same bytes
	@$(BIN)/python -m tools.release dist

build: setup ## sdist and wheel, into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build

clean: ## what was made here, .venv included
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
