# Everything sets itself up: a bare Python 3.11+ is enough. `make help` lists the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
DEMO   ?= .venv-demo
PEERS  ?= .venv-peers
PORT   ?=

.DEFAULT_GOAL := help
.PHONY: help demo venv test test-slow proof test-peers lint format benchmarks benchmarks-peers sample-logs clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "badput needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 ..." >&2; exit 2; }

# A venv is made under a stamp that names its inputs; a half-made one has no stamp and is made again.
$(VENV)/.ready: pyproject.toml constraints.txt | check-python
	@rm -f $@
	@echo "Installing badput with trainer and tests into $(VENV): some minutes the first time ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt --upgrade pip
	$(PIP) install -c constraints.txt -e '.[all]' --group test --group adapters --group lint
	@touch $@

$(DEMO)/.ready: pyproject.toml constraints.txt | check-python
	@rm -f $@
	@echo "Installing badput and its app into $(DEMO): about a minute the first time ..."
	@test -x $(DEMO)/bin/python || $(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -e '.[app]'
	@touch $@

demo: $(DEMO)/.ready  ## open the app on the sample runs (no torch; PORT=8600 picks the port)
	$(DEMO)/bin/badput demo $(if $(PORT),--port $(PORT))

venv: $(VENV)/.ready  ## install everything into .venv and run nothing

test: $(VENV)/.ready  ## run every test but the slow and GPU ones
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-slow: $(VENV)/.ready  ## run the slow tests too
	$(BIN)/python -m pytest -m "not gpu"

proof: $(VENV)/.ready  ## the trainer's 64 configurations against its oracle, bit by bit
	$(BIN)/python -m badput_trainer.proof

test-peers: $(VENV)/.ready $(PEERS)/.ready  ## run Google's own library on the same timelines and compare
	BADPUT_PEERS=$(PEERS) BADPUT_REQUIRE=ml-goodput-measurement $(BIN)/python -m pytest tests/ledger/test_google_library.py

lint: $(VENV)/.ready  ## formatter, linter, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/.ready  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(PEERS)/.ready: pyproject.toml benchmarks/constraints.txt | check-python
	@rm -f $@
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check -q install -c benchmarks/constraints.txt -e '.[trainer]' \
	  ml-goodput-measurement opentelemetry-sdk tensorboard wandb prometheus-client zeus
	@touch $@

benchmarks-peers: $(PEERS)/.ready  ## install what the benchmarks compare with, in a venv of its own

benchmarks: $(VENV)/.ready  ## print what recording costs, beside the peers if they are installed
	$(if $(wildcard $(PEERS)/.ready),$(PEERS),$(VENV))/bin/python benchmarks/overhead.py
	$(BIN)/python benchmarks/kills.py
	$(BIN)/python benchmarks/trainer_overhead.py
	$(BIN)/python benchmarks/disk.py
	$(BIN)/python benchmarks/parts.py
	$(BIN)/python benchmarks/books.py 16x6250 256x20000

sample-logs: $(VENV)/.ready  ## make the runs of sample_logs/ again
	$(BIN)/python sample_logs/make.py

clean:  ## remove what the targets made
	rm -rf $(VENV) $(DEMO) $(PEERS) .pytest_cache .ruff_cache .hypothesis dist build
