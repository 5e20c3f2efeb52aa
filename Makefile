# `make demo` and `make test` set up all that they need in .venv and then do their work.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
NATIVE := $(shell find custom_ops -name '*.cc' -o -name '*.h' -o -name '*.inc')
SOURCES := $(shell git ls-files '*.py')
CPP_SOURCES := $(shell git ls-files 'custom_ops/*.cc' 'custom_ops/*.h' 'tests/*.cc' 'tests/*.h' 'benchmarks/*.cc')

# What `make test` runs: all but the marked tests (pyproject.toml says what each mark means), and of
# those the few that are `smoke` too. `make test-rest` runs what it leaves out.
FAST := smoke or not (mpi or sanitizers or comparison or levels or slow)
PYTEST := $(BIN)/python -m pytest -q -n 2

.PHONY: setup demo baselines test test-rest test-full check format bench clean

setup: $(STAMP)

$(VENV)/.packages: pyproject.toml setup.py constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; name a Python 3.11 or newer: make PYTHON=python3 ..." >&2; exit 1; }
	@command -v $${CXX:-g++} >/dev/null || { echo "make: no C++ compiler ($${CXX:-g++}); on Debian and Ubuntu: apt-get install g++" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "make: python's venv module is missing; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip setuptools wheel
	$(BIN)/python -m pip install --quiet --constraint constraints.txt tensorflow-cpu
	touch $@

$(STAMP): $(VENV)/.packages $(NATIVE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev,demo,mpi,baselines]'
	touch $@

demo: setup
	$(BIN)/python examples/places.py

# Horovod, the first time 5 to 20 minutes; the wheel stays in the user's cache.
baselines: setup
	$(BIN)/python baselines/build_horovod.py

# Two tests run side by side: most keep one core busy. `pytest -n 0` runs them one after the other.
test: setup
	$(PYTEST) -m "$(FAST)" tests

# Horovod's tests are skipped until `make baselines` has built it once.
test-rest: setup
	$(BIN)/python baselines/build_horovod.py --if-built
	$(PYTEST) -m "not ($(FAST))" tests

test-full: test
	$(MAKE) test-rest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP_SOURCES)
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_SOURCES)

bench: setup
	$(BIN)/python benchmarks/bench.py

clean:
	rm -rf $(VENV) build *.egg-info tf_dslide/*.so tf_dslide/_build_info.json
