# One file for people and for CI. Every target makes what it needs, and none does it twice.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Also where PYTHONDONTWRITEBYTECODE is set: each process would compile what it imports.
COMPILE := $(BIN)/python -m compileall -q src apps/src

.DEFAULT_GOAL := help
.PHONY: help demo etl cdc test test-all check lint bench soak guarantees coverage docs docs-picture console-pictures setup environment services postgresql kafka chromium prometheus nginx goaccess registry clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(VENV)/.installed ## live web statistics, checked against offline SQL; LOG=file for your own
	$(BIN)/eddyline demo $(if $(LOG),--log '$(LOG)') $(ARGS)

etl: setup ## log lines through a flaky service into PostgreSQL, with live views; LOG=file for your own
	$(BIN)/eddyline etl $(if $(LOG),--log '$(LOG)') $(ARGS)

cdc: setup ## PostgreSQL, live views, and Delta, Kafka and PostgreSQL as targets, all killed meanwhile
	$(BIN)/eddyline cdc --kafka-jars .kafka $(ARGS)

test: setup ## the whole default test suite
	$(BIN)/pytest -q -n 2 --dist loadfile

test-all: setup ## the same and the slow tests
	$(BIN)/pytest -q -n 2 --dist loadfile -m ""

check: environment services lint ## lint, types, import contracts and the fast tests: no JVM, under a minute
	$(BIN)/pytest -q -m "not spark and not kafka and not slow"

lint: $(VENV)/.installed-dev ## lint, types and import contracts alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed ## all benchmarks, or NAME=one
	$(BIN)/eddyline bench $(NAME) $(ARGS)

soak: setup ## random changes and faults for MINUTES (120), then live must equal offline; writes docs/soak.md
	$(BIN)/python tests/soak.py --minutes $(or $(MINUTES),120) --write docs/soak.md

guarantees: setup ## run the tests that kill, slow ones too, or TESTS=some; writes docs/guarantees.md
	PYTHONPATH=tests $(BIN)/pytest -q -n0 -m guarantee -p guarantees $(TESTS)

coverage: setup ## try all of Spark's functions in live views; writes docs/coverage.md
	$(BIN)/python tests/functions.py

docs: setup ## what the docs take from the code, and the site in build/site; a dead link is an error
	$(BIN)/python tests/errors_page.py
	$(BIN)/python docs/options_table.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-picture: $(VENV)/.installed ## run the demo and draw docs/demo.svg from its output
	$(BIN)/eddyline demo --lines 30000 | $(BIN)/python docs/picture.py

console-pictures: setup ## run the console's browser tests, and copy their screenshots into docs/
	$(BIN)/pytest -q -n0 tests/test_console_pages.py tests/test_console_graph.py tests/test_console_pipelines.py
	for name in overview graph graph-search view-dark narrow view-epochs view-actions ask sources sinks pipelines tasks \
	    dead-letters letter requests settings; do \
	    cp build/console/$$name.png docs/console-$$name.png; done

# Two things at a time: the Python environment, and what comes from apt and Maven.
setup:
	@$(MAKE) --no-print-directory -j 2 environment services

environment: $(VENV)/.installed-dev $(VENV)/.warm
	@:

# One after the other: apt has one lock.
services:
	@for service in postgresql chromium prometheus nginx goaccess kafka; do $(MAKE) --silent --no-print-directory $$service; done

# The tests start Spark often: with an archive of its classes 3.5 seconds faster.
$(VENV)/.warm: $(VENV)/.installed-dev
	@$(BIN)/eddyline warm-up && touch $@ || true

# A server for the tests of the catalog, which skip without one.
postgresql:
	@ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1 || command -v pg_ctl >/dev/null || \
	    .ci/install postgresql || echo "PostgreSQL can't be installed from apt: its tests skip."

# The browser of the console's tests, which skip without it.
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	    .ci/install chromium || echo "Chromium can't be installed from apt: the browser tests skip."

# A server that a test lets scrape the console; unpacked, so that no service of the machine is started.
prometheus: .prometheus/usr/bin/prometheus

.prometheus/usr/bin/prometheus:
	@rm -rf .prometheus && mkdir .prometheus
	@cd .prometheus && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb \
	    || echo "Prometheus can't be fetched from apt: its test skips."

# A web server that the guard's test floods; unpacked, for the same reason.
nginx:
	@command -v nginx >/dev/null || $(MAKE) --no-print-directory .nginx/usr/sbin/nginx

.nginx/usr/sbin/nginx:
	@rm -rf .nginx && mkdir .nginx
	@cd .nginx && apt-get download -qq nginx && dpkg-deb -x nginx_*.deb . && rm nginx_*.deb \
	    || echo "nginx can't be fetched from apt: its test skips."

# Another counter of access logs, with which a test compares the web statistics; unpacked, for the same reason.
goaccess:
	@command -v goaccess >/dev/null || $(MAKE) --no-print-directory .goaccess/usr/bin/goaccess

.goaccess/usr/bin/goaccess:
	@rm -rf .goaccess && mkdir .goaccess
	@cd .goaccess && apt-get download -qq goaccess libmaxminddb0 \
	    && for package in *.deb; do dpkg-deb -x $$package . || exit 1; done && rm *.deb \
	    || echo "GoAccess can't be fetched from apt: its test skips."

# A broker for the tests of queues on Kafka, which skip without one.
kafka: .kafka/.fetched

.kafka/.fetched: tests/kafka/pom.xml
	@command -v mvn >/dev/null || .ci/install maven || true
	@rm -rf .kafka
	@mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.kafka \
	    && touch $@ || echo "Kafka can't be fetched with Maven: the tests of queues on it skip."

# A schema registry for a slow test, which fetches it itself.
registry: .registry/.fetched

.registry/.fetched:
	@command -v mvn >/dev/null || .ci/install maven
	@rm -rf .registry && mkdir .registry
	@mvn --quiet --batch-mode dependency:copy -DoutputDirectory=$(CURDIR)/.registry \
	    -Dartifact=io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all
	@tar -xzf .registry/*.tar.gz -C .registry && rm .registry/*.tar.gz && touch $@

clean: ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Debian's python3.11 has no ensurepip: there the pip of the machine fills the environment.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
	    rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $@ install --quiet pip; }

$(VENV)/.installed: pyproject.toml apps/pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV); the first time takes a minute or two."
	$(BIN)/python -m pip install --quiet --editable . --editable 'apps[dns,places]'
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml apps/pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV); the first time takes a minute or two."
	$(BIN)/python -m pip install --quiet --editable '.[dev]' --editable 'apps[bench,dns,places]'
	@$(COMPILE)
	@touch $@ $(VENV)/.installed
