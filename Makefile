# Every target sets up what it needs and can be run again. `make` alone lists them.

BIN := .venv/bin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help venv bubblewrap chromium up test lint chaos proof bench audit sbom clean requirements hooks

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 22

venv: ## install the pinned requirements into .venv (uv if on PATH, else pip)
	@PYTHON="$(PYTHON)" scripts/venv

bubblewrap: ## install bubblewrap for the tests of sandboxes, where this machine allows it
	@scripts/bubblewrap

chromium: ## install Chromium for the tests of the dashboard, where this machine allows it
	@scripts/chromium

up: venv ## start everything on this machine; Ctrl-C stops it (REPO= is a git repository for agents)
	@$(BIN)/overnight up $(if $(REPO),--allow-repo "$(REPO)")

lint: venv ## style, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests, faults and measurements start hundreds of processes: each would compile every module if none
# were kept.
test chaos proof bench: export PYTHONDONTWRITEBYTECODE :=

test: venv bubblewrap chromium lint ## lint, then every test but the long ones, in two processes
	$(BIN)/pytest -n 2

chaos: venv ## break everything for a minute and check what is left (SECONDS=, SEED=)
	$(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

# What ten minutes of chaos must have seen to prove anything.
proof: PROVEN := submissions acknowledged=10000,kill=200,crash postgres=20,hang postgres=5,flush redis=20
proof: PROVEN := $(PROVEN),fill redis=10,fill disk=10,areas audited=3
proof: PROVEN := $(PROVEN),commands completed=100,tasks of HTTP agents completed=100
proof: venv bubblewrap chromium ## the long tests: more examples, every fault, mixed stress, ten minutes of chaos, mutants
	$(BIN)/pytest -m "proof or hypothesis" --hypothesis-profile=proof --timeout=3600
	$(BIN)/python -m tests.chaos --seconds 600 --seed 47 --tasks 10500 --at-least "$(PROVEN)"
	$(BIN)/python -m tests.chaos.mutants --chaos

bench: venv ## measure this machine against other queues (QUICK=1 for a short trial, NAME= picks one)
	@benchmarks/peers/install || echo "Without the other queues: measuring this one and Celery alone." >&2
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(NAME)

audit: venv ## compare the pinned requirements with known advisories (STRICT=1 fails offline)
	@scripts/audit

sbom: venv ## write what a release is made of to dist/sbom.cdx.json (CycloneDX)
	@$(BIN)/python scripts/sbom.py

# The servers of a running `overnight up` live in .overnight: stop them before taking it away.
clean: ## stop everything; remove .venv, caches and all local data
	@[ ! -d .overnight ] || PYTHON="$(PYTHON)" scripts/venv
	@[ ! -d .overnight ] || OVERNIGHT_HOME=.overnight $(BIN)/overnight down
	rm -rf .overnight .venv .venv-peers .venv-audit .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

hooks: venv ## check style, types and import layers before each commit
	git config core.hooksPath .githooks

requirements: ## pin the dependencies again (UPGRADE=1 takes newer ones)
	@PYTHON="$(PYTHON)" UPGRADE="$(UPGRADE)" scripts/requirements
