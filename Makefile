# Everything a clone needs: python3 (3.10 or newer, with venv) and make.

PYTHON ?= python3
PIP_INDEX ?=
TORCH_INDEX ?=
BENCH ?= recovery node_loss rendezvous snapshots agent
KILLS ?= 200
FAULTS ?= 500
RUNS ?= 200
SEED ?=

VENV_PYTHON := .venv/bin/python

# Needs no network: a machine with a GPU often has a torch with CUDA already, and nothing is installed for it.
DRY ?=
GPU_PYTHON ?= $(if $(or $(DRY),$(wildcard $(VENV_PYTHON))),$(VENV_PYTHON),$(PYTHON))
REPORT ?=

# Each process of a job would compile this repository's modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-roles test test-all test-airflow lint bench soak endings node-check hang-corpus gpu docs site environment lock sbom peers clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  Variables (make VARIABLE=value ...):"
	@echo "    PYTHON       the interpreter for .venv, 3.10 or newer (python3)"
	@echo "    PIP_INDEX    the package index to use instead of pip's own"
	@echo "    TORCH_INDEX  one more index, for example one with CPU wheels of torch (the plain one brings CUDA)"
	@echo "    BENCH        the benchmarks that make bench runs (those beside other launchers)"
	@echo "    KILLS, SEED  how many processes make soak and make endings kill (200), and the seed of a run to repeat"
	@echo "    FAULTS       how many faults of all kinds it makes after that (500)"
	@echo "    DRY, REPORT  DRY=1 runs make gpu without a GPU; where its JSON report goes (.make/gpu-report.json)"
	@echo "    GPU_PYTHON   the interpreter of make gpu, whose torch has CUDA (.venv, or else PYTHON)"
	@echo "    RUNS         how many DAG runs of a real Airflow make soak kills in (200)"

demo: environment  ## train a network through a kill, in an Airflow DAG on this machine
	@$(VENV_PYTHON) -m dags_examples.demo

demo-roles: environment  ## learn to balance a pole with three roles, through the kill of a rollout and of a trainer rank
	@$(VENV_PYTHON) -m dags_examples.demo_roles

test: environment  ## lint, types, unit tests, wheel tests, and a fast sample of the live tests
	@$(VENV_PYTHON) tools/check.py

test-all: environment  ## everything: also long live tests, long property tests, and a real Airflow
	@$(VENV_PYTHON) tools/check.py --all

test-airflow: environment  ## kill, clear, mark, delete and pause in a real Airflow; writes docs/reference/airflow-matrix.md (half an hour)
	@$(VENV_PYTHON) -m tests.airflow --report docs/reference/airflow-matrix.md

lint: environment  ## ruff, mypy and import-linter alone
	@$(VENV_PYTHON) tools/check.py lint

bench: environment peers  ## run the benchmarks named by BENCH, the other launchers beside ours
	@for name in $(BENCH); do echo "== $$name"; $(VENV_PYTHON) -m benchmarks.$$name || exit 1; done

node-check: environment  ## check 2 to 9 nodes of this machine, of which some are ill, in every way that is known
	@$(VENV_PYTHON) -m tests.live.node_check

gpu: $(if $(DRY),environment)  ## prove what is CUDA's and NCCL's own on one NVIDIA GPU (9 minutes); DRY=1 plays it on the CPU
	@$(GPU_PYTHON) -m benchmarks.gpu $(if $(DRY),--dry) $(if $(REPORT),--report "$(REPORT)")

hang-corpus: environment  ## hang, and be slow, in every way that is known, ten times each, and write docs/benchmarks/hang-corpus.md (an hour)
	@$(VENV_PYTHON) -m tests.live.hang_corpus --report docs/benchmarks/hang-corpus.md
	@$(VENV_PYTHON) -m tests.live.slow_corpus --report docs/benchmarks/hang-corpus.md

soak: environment  ## kill, stop, tear and fill what real jobs and a real Airflow have, at random, and see that nothing is lost (hours)
	@$(VENV_PYTHON) -m tests.soak --kills $(KILLS) $(if $(SEED),--seed $(SEED))
	@$(VENV_PYTHON) -m tests.soak.endings --kills $(KILLS) $(if $(SEED),--seed $(SEED))
	@$(VENV_PYTHON) -m tests.soak.chaos --faults $(FAULTS) --calm $(if $(SEED),--seed $(SEED))
	@$(VENV_PYTHON) -m tests.airflow --random $(RUNS) $(if $(SEED),--seed $(SEED))

endings: environment  ## kill one worker in each of KILLS runs, idle and loaded, and count the runs that end (an hour)
	@$(VENV_PYTHON) -m tests.soak.endings --kills $(KILLS) $(if $(SEED),--seed $(SEED))

docs: environment  ## write the reference, the JSON schemas, and what else the docs show of the code
	@$(VENV_PYTHON) -m rallypoint.job.schema docs/reference
	@$(VENV_PYTHON) tools/states.py
	@$(VENV_PYTHON) tools/supervision_page.py
	@$(VENV_PYTHON) tools/operators_page.py
	@$(VENV_PYTHON) tools/help_page.py
	@$(VENV_PYTHON) tools/run_flags.py
	@$(VENV_PYTHON) tools/arguments_page.py

site: environment  ## build the documentation site into .make/site; a broken link or a missing image fails
	@$(VENV_PYTHON) tools/site.py

lock:  ## write constraints-hashed.txt: the pins of constraints.txt with the hashes of their files
	@$(PYTHON) tools/lock.py --index "$(PIP_INDEX)"

sbom:  ## write dist/sbom.cdx.json, the software bill of materials of a release
	@$(PYTHON) tools/sbom.py --output dist/sbom.cdx.json

peers:  ## create or refresh .make/peers, the other launchers (bench does it by itself)
	@$(PYTHON) tools/peers.py --index "$(PIP_INDEX)" --extra-index "$(TORCH_INDEX)"

environment:  ## create or refresh .venv (the others do it by themselves)
	@$(PYTHON) tools/environment.py --index "$(PIP_INDEX)" --extra-index "$(TORCH_INDEX)"

clean:  ## remove .venv and everything that was made here
	rm -rf .venv .make .demo .demo-roles build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
