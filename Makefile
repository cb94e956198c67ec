# Every target sets up what it needs; nothing is done again while nothing has changed.

PYTHON ?= python3
TORCH ?= torch==2.13.0
PROMPT ?= The capital of France is
CASE ?=

export HEADWISE_REQUIRE_NATIVE = 1
export HEADWISE_MODELS ?= $(CURDIR)/.models
export PIP_DISABLE_PIP_VERSION_CHECK = 1

BIN := .venv/bin
CORE := pyproject.toml CMakeLists.txt $(wildcard csrc/*.h csrc/*.cpp csrc/*/*.h csrc/*/*.cpp)
OBJECTS = $(wildcard build/*/CMakeFiles/kernels_*.dir/csrc/kernels/*.o)
HOOK := --jaxtyping-packages=headwise,beartype.beartype
HOOKED := tests/laws tests/parity tests/kernels

.PHONY: setup demo test test-real test-all bench check fmt symbols stubs clean

setup: .venv/.ready

.venv/.torch:
	@echo "== making .venv and installing $(TORCH)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet "$(TORCH)"
	@touch $@

.venv/.ready: .venv/.torch $(CORE)
	@echo "== building and installing headwise (about a minute)"
	@$(BIN)/python -m pip install --quiet --editable ".[all]" \
	  --config-settings=build-dir=build/{wheel_tag} \
	  --config-settings=cmake.define.HEADWISE_WARNINGS_ARE_ERRORS=ON
	@touch $@

demo: .venv/.ready
	@$(BIN)/headwise generate "$(PROMPT)" --max-new-tokens 64 --stats

test: .venv/.ready
	@echo "== tests with checked shapes"
	@$(BIN)/python -m pytest -q -m "not slow and not real" $(HOOK) $(HOOKED)
	@echo "== all other tests"
	@$(BIN)/python -m pytest -q -m "not slow and not real" $(addprefix --ignore=,$(HOOKED))

test-real: .venv/.ready
	@echo "== tests on real weights"
	@$(BIN)/python -m pytest -q -m real

test-all: .venv/.ready
	@HEADWISE_THOROUGH=1 $(BIN)/python -m pytest -q

bench: .venv/.ready
	@$(BIN)/python -m benchmarks.run $(CASE)

check: .venv/.ready symbols stubs
	@echo "== format, lint, types, layers"
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/clang-format --dry-run --Werror $(wildcard csrc/*.h csrc/*.cpp csrc/*/*.h csrc/*/*.cpp)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

# An object of a kernel may define one global symbol and no weak one: a function compiled for two
# instruction sets under one name would be merged, and an old processor would run the new code.
symbols: .venv/.ready
	@echo "== symbols of the kernels"
	@test -n "$(OBJECTS)" || { echo "no objects of kernels under build/"; exit 1; }
	@for object in $(OBJECTS); do \
	  found=$$(nm --defined-only --extern-only $$object | grep -c ' [TDBRWVu] '); \
	  if [ "$$found" != 1 ]; then nm -C --defined-only --extern-only $$object; \
	    echo "$$object defines $$found global symbols, not one"; exit 1; fi; done

stubs: .venv/.ready
	@echo "== stub of the extension"
	@$(BIN)/python -m nanobind.stubgen -q -m headwise._native._kernels -o .venv/_kernels.pyi
	@diff -u src/headwise/_native/_kernels.pyi .venv/_kernels.pyi || \
	  { echo "copy .venv/_kernels.pyi over the stored stub if the change is meant"; exit 1; }

fmt: .venv/.ready
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix --quiet .
	@$(BIN)/clang-format -i $(wildcard csrc/*.h csrc/*.cpp csrc/*/*.h csrc/*/*.cpp)

clean:
	rm -rf .venv build dist
