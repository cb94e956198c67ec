# Every target sets up what it needs; nothing is done again while nothing has changed.

PYTHON ?= python3
TORCH ?= torch==2.13.0
PROMPT ?= The capital of France is
CASE ?=

export HEADWISE_REQUIRE_NATIVE = 1
export HEADWISE_MODELS ?= $(CURDIR)/.models
export PIP_DISABLE_PIP_VERSION_CHECK = 1

BIN := .venv/bin
SOURCES := $(wildcard csrc/*.h csrc/*.cpp csrc/*/*.h csrc/*/*.cpp)
CORE := pyproject.toml CMakeLists.txt $(filter-out csrc/tests/%,$(SOURCES))
KERNELS := CMakeFiles/kernels_*.dir/csrc/kernels/*.o
JOBS ?= $(shell nproc)
COMMA := ,
HOOK := --jaxtyping-packages=headwise,beartype.beartype
HOOKED := tests/laws tests/parity tests/kernels
# Long stories of small calls, which the hook makes four times as long.
PLAIN := $(wildcard tests/laws/test_cache*.py) tests/kernels/test_stored.py
# Tests of one file share what they set up; threads that wait leave the cores to other processes.
QUICK = OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -m "not slow and not real" \
  -n $(JOBS) --dist loadfile

.PHONY: setup demo test test-core test-real test-all bench check fmt symbols stubs clean
.PHONY: asan memcheck neon count torch-sdpa

# Ends with a message where a command is not there: $(call need,command,how to get it)
need = command -v $(1) > /dev/null || { echo "make $@: $(1) is missing; get it by: $(2)"; exit 1; }

# Builds the C++ test driver, which knows no Python: $(call driver,folder,arguments of CMake)
driver = $(call need,cmake,apt-get install cmake) && mkdir -p build/$(1) && \
  cmake -S . -B build/$(1) -DHEADWISE_TESTS=ON $(2) > build/$(1)/configure.log && \
  cmake --build build/$(1) --parallel $(JOBS) > build/$(1)/build.log 2>&1 || \
  { cat build/$(1)/*.log; exit 1; }

# An object of a kernel may define one global symbol and no weak one: a function compiled for two
# instruction sets under one name would be merged, and an old processor would run the new code.
# $(call one_symbol,nm,objects)
one_symbol = test -n "$(strip $(2))" || { echo "no objects of kernels under build/"; exit 1; }; \
  for object in $(2); do \
    found=$$($(1) --defined-only --extern-only $$object | grep -c ' [TDBRWVu] '); \
    if [ "$$found" != 1 ]; then $(1) -C --defined-only --extern-only $$object; \
      echo "$$object defines $$found global symbols, not one"; exit 1; fi; done

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

test: .venv/.ready test-core
	@echo "== tests with checked shapes"
	@$(QUICK) $(HOOK) $(HOOKED) $(addprefix --ignore=,$(PLAIN))
	@echo "== laws of caches"
	@$(QUICK) $(PLAIN)
	@echo "== all other tests"
	@$(QUICK) $(addprefix --ignore=,$(HOOKED))

test-core:
	@echo "== kernels without Python"
	@$(call driver,core,-DCMAKE_CXX_FLAGS=-g -DHEADWISE_WARNINGS_ARE_ERRORS=ON)
	@build/core/test_kernels

asan:
	@echo "== kernels under the address and undefined-behaviour sanitizers"
	@$(call driver,asan,-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="-O1 \
	  -fsanitize=address$(COMMA)undefined -fno-sanitize-recover=all -fno-omit-frame-pointer")
	@ASAN_OPTIONS=detect_leaks=1 build/asan/test_kernels --cases 120

# valgrind knows no AVX-512, so the sets with it are left out.
memcheck:
	@echo "== kernels under valgrind: scalar and avx2"
	@$(call need,valgrind,apt-get install valgrind)
	@$(call driver,core,-DCMAKE_CXX_FLAGS=-g -DHEADWISE_WARNINGS_ARE_ERRORS=ON)
	@valgrind --quiet --error-exitcode=1 --leak-check=full --show-leak-kinds=definite \
	  --errors-for-leak-kinds=definite \
	  --child-silent-after-fork=yes build/core/test_kernels --isa scalar --isa avx2 --cases 24

neon:
	@echo "== kernels for 64-bit Arm, on an emulated processor"
	@$(call need,aarch64-linux-gnu-g++,apt-get install g++-aarch64-linux-gnu)
	@$(call need,qemu-aarch64,apt-get install qemu-user)
	@$(call driver,neon,-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static \
	  -DOpenMP_gomp_LIBRARY=$$(aarch64-linux-gnu-g++ -print-file-name=libgomp.a) \
	  -DHEADWISE_WARNINGS_ARE_ERRORS=ON)
	@$(call one_symbol,aarch64-linux-gnu-nm,$$(echo build/neon/$(KERNELS)))
	@qemu-aarch64 build/neon/test_kernels --cases 60

# Counts are those of one compiler's code; seconds would be those of a machine.
count:
	@echo "== instructions of fixed calls"
	@$(call need,valgrind,apt-get install valgrind)
	@$(call driver,core,-DCMAKE_CXX_FLAGS=-g -DHEADWISE_WARNINGS_ARE_ERRORS=ON)
	@grep -v '^#' csrc/tests/instructions.txt | { failed=0; while read call set stored; do \
	  found=$$(valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
	    --toggle-collect='headwise::attend(*' --toggle-collect='headwise::attend_backward(*' \
	    build/core/test_kernels --isa $$set --count $$call 2>&1 | sed -n 's/.*Collected : //p'); \
	  echo "$$call $$set $$found" | awk -v stored=$$stored '{ ratio = $$3 / stored; \
	    printf "%-9s %-7s %10d, %.3f of the stored %d\n", $$1, $$2, $$3, ratio, stored; \
	    exit ratio < 0.97 || ratio > 1.03 }' || failed=1; done; \
	  [ $$failed = 0 ] || { echo "if the change is meant, write it to csrc/tests/instructions.txt"; \
	    exit 1; }; }

test-real: .venv/.ready
	@echo "== tests on real weights"
	@$(BIN)/python -m pytest -q -m real

test-all: .venv/.ready
	@HEADWISE_THOROUGH=1 $(BIN)/python -m pytest -q

# Torch's own tests, test/test_transformers.py of its repository, are named by SUITE.
torch-sdpa: .venv/.ready
	@echo "== torch's tests of attention, with and without the patch"
	@$(BIN)/python -m pip install --quiet expecttest
	@$(BIN)/python -m tests.parity.torch_sdpa_suite $(SUITE)

bench: .venv/.ready
	@$(BIN)/python -m benchmarks.run $(CASE)

check: .venv/.ready symbols stubs
	@echo "== format, lint, types, layers"
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/clang-format --dry-run --Werror $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

symbols: .venv/.ready
	@echo "== symbols of the kernels"
	@$(call one_symbol,nm,$(wildcard build/*-*/$(KERNELS) build/core/$(KERNELS)))

stubs: .venv/.ready
	@echo "== stub of the extension"
	@$(BIN)/python -m nanobind.stubgen -q -m headwise._native._kernels -o .venv/_kernels.pyi
	@diff -u src/headwise/_native/_kernels.pyi .venv/_kernels.pyi || \
	  { echo "copy .venv/_kernels.pyi over the stored stub if the change is meant"; exit 1; }

fmt: .venv/.ready
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix --quiet .
	@$(BIN)/clang-format -i $(SOURCES)

clean:
	rm -rf .venv build dist
