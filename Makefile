# Each target is a thin line over a script; `make` alone lists them. PYTHON and VENV may be set from outside.
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
BIN     = $(VENV)/bin
TESTS  ?=

.PHONY: help run build test soak check bench peer lock clean venv
export VENV

help:
	@echo "make run [ARGS='--port 8080']   build what is missing, then start dist/model.exe"
	@echo "make build [ARGS='--name x']    dist/model.exe"
	@echo "make check                      format, lint, types, rules of the house"
	@echo "make test [TESTS=tests/unit]    check, build, then every test"
	@echo "make soak                       ten minutes of random requests against the engine, audited at every step"
	@echo "make bench [ARGS=single]        measure, against llama.cpp's own programs and llama_cpp.server"
	@echo "make peer                       llama.cpp's own programs, to measure against"
	@echo "make clean                      remove what was built (not the cache of compiled wheels and models)"

venv:
	@$(PYTHON) -m spec.environment dev

run:
	@$(PYTHON) build.py --run -- $(ARGS)

build:
	@$(PYTHON) build.py $(ARGS)

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_house.py

test: check build
	$(BIN)/python -m pytest $(TESTS)

soak: venv
	CAPSULE_FUZZ_SECONDS=$${CAPSULE_FUZZ_SECONDS:-600} $(BIN)/python -m pytest -q tests/contract/test_engine_fuzz.py

bench: venv
	@$(PYTHON) build.py
	$(BIN)/python -m tests.bench $(if $(ARGS),$(ARGS),all)

peer:
	@$(PYTHON) -m spec.peer $(ARGS)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Needs uv. Pins stand in pyproject.toml; the lock files hold every package behind them, for each system and Python, with hashes.
UV     ?= uv
LOCK    = $(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock"
lock:
	$(LOCK) pyproject.toml -o spec/lock/runtime.txt
	$(LOCK) --group build -c spec/lock/runtime.txt -o spec/lock/build.txt
	$(LOCK) --group dev -c spec/lock/runtime.txt -c spec/lock/build.txt -o spec/lock/dev.txt
	$(LOCK) --group native -c spec/lock/runtime.txt -o spec/lock/native.txt
