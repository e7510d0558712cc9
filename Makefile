# Two commands on a fresh machine: make demo, make test. Both install what they need into .venv.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done || echo python3)
VENV ?= .venv
RUN := $(VENV)/bin/python
ARGS ?=

.PHONY: help setup develop demo test check types style audit fuzz chaos bench docs experiments clean
.DEFAULT_GOAL := help

help:  ## what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready  ## install what a run needs into .venv

develop: $(VENV)/.ready-dev  ## and what the tests need: checkers, and the trainers that learners can be attached to

$(VENV)/.ready: pyproject.toml constraints.txt tools/setup_venv.py
	@$(if $(PYTHON),$(PYTHON),python3) tools/setup_venv.py $(VENV) train,dashboard
	@touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt tools/setup_venv.py
	@$(if $(PYTHON),$(PYTHON),python3) tools/setup_venv.py $(VENV) train,dashboard,dev,docs
	@touch $(VENV)/.ready $@

demo: setup  ## a syncer and four learners on this machine train a small language model (ARGS='--rounds 200')
	@$(RUN) -m gruppetto demo $(ARGS)

# Tests that start no processes share the cores. Those that do mostly wait, and run two at once, unless they say something
# about time: these have the machine to themselves.
LIVE = $(sort $(shell grep -rl 'mark\.live' tests))
test: develop  ## all tests (ARGS='tests/protocol -x')
ifeq ($(strip $(ARGS)),)
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -m "not live" -n auto --maxprocesses 8 --dist worksteal
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -m "live and not alone" -n 2 --dist worksteal $(LIVE)
	@$(RUN) -m pytest -m "live and alone" $(LIVE)
else
	@$(RUN) -m pytest $(ARGS)
endif

check: develop  ## style, types, who may import whom, and that the documentation can be built
	@$(MAKE) --no-print-directory -j 2 types docs style

types: develop
	$(RUN) -m mypy

style: develop
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(VENV)/bin/lint-imports

audit: develop  ## known weaknesses in the pinned dependencies, where pip-audit and its service are to be had
	@$(RUN) tools/audit.py

fuzz: setup  ## try to break the protocol for a minute: random faults in virtual time (ARGS='--seconds 600 --first 100000')
	@$(RUN) -m gruppetto fuzz $(or $(ARGS),--seconds 60)

chaos: setup  ## a real run on this machine while things go wrong in it, with a verdict (ARGS=examples/chaos/storm.toml)
	@$(RUN) -m gruppetto chaos $(or $(ARGS),examples/chaos/everything.toml)

bench: setup  ## speed against the limits of this machine
	@$(RUN) benchmarks/merge.py
	@$(RUN) benchmarks/encoding.py
	@$(RUN) benchmarks/round_trip.py
	@$(RUN) benchmarks/shards.py
	@$(RUN) benchmarks/persist.py
	@$(RUN) benchmarks/attach_overhead.py
	@$(RUN) benchmarks/step_times.py
	@$(RUN) benchmarks/simulator.py
	@$(RUN) benchmarks/proxy.py
	@$(RUN) benchmarks/donation.py
	@$(RUN) benchmarks/ranks.py
	@$(RUN) benchmarks/dashboard.py
	@$(RUN) benchmarks/calibration.py
	@$(RUN) benchmarks/malformed.py --messages 10000
	@$(RUN) benchmarks/transport.py
	@$(RUN) benchmarks/pacing.py
	@$(RUN) benchmarks/many_learners.py

experiments: setup  ## what the paper claims, asked again coarsely, seed by seed as far as an hour goes (ARGS='--minutes 240 --workers 8'); then see docs/evidence.md
	@$(RUN) -m gruppetto experiment all --quick --minutes 55 $(ARGS)

docs: develop  ## the documentation as a site: site/index.html
	@$(RUN) -m sphinx -n -W --keep-going -q -d site/.doctrees docs site

clean:  ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
