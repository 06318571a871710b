# make demo and make test do all set-up: an environment in .venv, the native library, the package.
# Options: PYTHON (interpreter of the environment), JOBS (parallel jobs of build and tests),
# PYTEST_ARGS (for example PYTEST_ARGS="tests/mesh -x").

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

CORES := $(shell getconf _NPROCESSORS_ONLN)
JOBS ?= $(if $(filter 1,$(CORES)),1,2)
PYTEST_ARGS ?=
# Cases of each test that has more: `make test`, unless PYTEST_ARGS chooses tests; `make test-all`,
# of the larger sample; `make test-nightly`.
CASES := 2
MANY_CASES := 3
NIGHTLY_CASES := 12
# A worker that is done takes tests from the other; until then each goes through its files in order.
PARALLEL := -n $(JOBS) --dist worksteal
VENV := .venv
BIN := $(VENV)/bin
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The environment carries its interpreter's version in the name of its stamp. Naming another
# interpreter replaces it; naming none keeps the one that is there.
VERSION_OF = import sys; print(".".join(map(str, sys.version_info[:3])))
ifeq ($(origin PYTHON),undefined)
PYTHON := python3
CREATED := $(firstword $(wildcard $(VENV)/.created-*))
endif
ifeq ($(CREATED),)
CREATED := $(VENV)/.created-$(shell $(PYTHON) -c '$(VERSION_OF)' 2>/dev/null)
endif
TOOLS := $(VENV)/.tools
PACKAGE := $(VENV)/.package
TEST_PACKAGES := $(VENV)/.test-packages
MODEL_PACKAGES := $(VENV)/.model-packages
LINT_PACKAGES := $(VENV)/.lint-packages
DOCS_PACKAGES := $(VENV)/.docs-packages

NATIVE_SOURCES := CMakeLists.txt python/distir_ext/_version.py $(shell find src tests/native -name "*.cc" -o -name "*.h") src/exports.map
CXX_FILES = $(shell find src tests -name '*.h' -o -name '*.cc')
INSTALL := $(BIN)/python -m pip install --quiet
EDITABLE := $(BIN)/python -m pip install --verbose --no-build-isolation \
  --config-settings=editable.mode=redirect --editable
INSTALL_LOG := $(VENV)/install.log
# Of what pip prints: downloads, and the steps of the compilation, every tenth where it is no terminal.
define PROGRESS
while IFS= read -r line; do \
  if [[ "$$line" =~ ^\ *Downloading\ [^\ ]*[.]whl ]]; then echo "$$line"; fi; \
  if [[ "$$line" =~ \[([1-9][0-9]*)/([0-9]+)\] ]]; then \
    step="$${BASH_REMATCH[1]}" of="$${BASH_REMATCH[2]}"; \
    if [ -t 1 ]; then printf "\r  compiling [$$step/$$of]"; [ "$$step" != "$$of" ] || echo; \
    elif [ $$((step % 10)) = 0 ] || [ "$$step" = "$$of" ]; then echo "  compiling [$$step/$$of]"; fi; \
  fi; \
done
endef

.PHONY: help demo test test-all test-nightly test-models asan tsan fuzz soak lint tidy format docs wheel clean

help:
	@echo "make demo         install into $(VENV) and run the demonstration"
	@echo "make test         install into $(VENV) and run a sample of the tests: a few cases of each, without the slowest"
	@echo "make test-all     install torch, transformers, jax and ray too; larger samples, and the tests of models"
	@echo "make test-nightly the tests of test-all with three times as many cases, and slow ones: an hour"
	@echo "make test-models  install torch and transformers too and run the tests of real models"
	@echo "make asan         run the tests with AddressSanitizer and UBSan in the native library"
	@echo "make tsan         run the tests with ThreadSanitizer in the native library"
	@echo "make fuzz         give parsers changed inputs for FUZZ_SECONDS (600)"
	@echo "make soak         use sessions of all kinds in all ways for SOAK_SECONDS (3600)"
	@echo "make lint         check formatting, types and the order of includes and imports"
	@echo "make tidy         check the C++ sources with clang-tidy (minutes)"
	@echo "make format       format Python and C++"
	@echo "make docs         build the documentation into build/docs/html; warnings are errors"
	@echo "make wheel        build the wheel into dist/"
	@echo "make clean        remove $(VENV) and everything built"

demo: $(PACKAGE)
	@$(BIN)/distir demo

test: $(PACKAGE) $(TEST_PACKAGES)
	@$(BIN)/python -m pytest $(PARALLEL) $(if $(PYTEST_ARGS),,--cases $(CASES)) $(PYTEST_ARGS)

test-all: $(PACKAGE) $(TEST_PACKAGES) $(MODEL_PACKAGES)
	@$(BIN)/python -m pytest $(PARALLEL) --sample large --cases $(MANY_CASES) -m "not gpu and not multihost and not slow" $(PYTEST_ARGS)

test-nightly: $(PACKAGE) $(TEST_PACKAGES) $(MODEL_PACKAGES)
	@$(BIN)/python -m pytest $(PARALLEL) --sample nightly --cases $(NIGHTLY_CASES) -m "not gpu and not multihost" $(PYTEST_ARGS)

test-models: $(PACKAGE) $(TEST_PACKAGES) $(MODEL_PACKAGES)
	@$(BIN)/python -m pytest $(PARALLEL) -m models tests/models tests/interop/torch tests/packaging $(PYTEST_ARGS)

lint: $(PACKAGE) $(LINT_PACKAGES)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@echo clang-format --dry-run --Werror; $(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/python .ci/check_layers.py

tidy: $(PACKAGE) $(LINT_PACKAGES)
	$(BIN)/python $(BIN)/run-clang-tidy.py -quiet -j $(JOBS) -p build/py3-none-* \
	  -clang-tidy-binary $(BIN)/clang-tidy '$(CURDIR)/src/.*'

# The sanitizer's library comes first in a Python that is not instrumented itself. A finding ends the
# process that made it; its report goes to a file, as pytest captures what processes print. What
# was freed is kept apart for a while, but less than tests allow a process to grow.
asan: SANITIZER := address
tsan: SANITIZER := thread
asan tsan: $(PACKAGE) $(TEST_PACKAGES)
	@$(BIN)/cmake -S . -B build/$@ -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DDISTIR_SANITIZE=$(SANITIZER) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -Dtvm_ffi_ROOT="$$($(BIN)/tvm-ffi-config --cmakedir)" >/dev/null
	@$(BIN)/cmake --build build/$@
	@rm -f build/$@/report.*
	@status=0; export DISTIR_EXT_LIBRARY=$(CURDIR)/build/$@/libdistir_ext.so; \
	  export ASAN_OPTIONS=detect_leaks=0:handle_sigill=1:allocator_may_return_null=1:quarantine_size_mb=16:log_path=$(CURDIR)/build/$@/report; \
	  export TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1:suppressions=$(CURDIR)/.ci/tsan_suppressions:log_path=$(CURDIR)/build/$@/report; \
	  compiler="$${CXX:-c++}"; \
	  LD_PRELOAD="$$($$compiler -print-file-name=lib$@.so) $$($$compiler -print-file-name=libstdc++.so)" \
	    $(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS) || status=$$?; \
	  for report in build/$@/report.*; do \
	    if grep -qs "^SUMMARY:" "$$report"; then cat "$$report"; status=1; fi; \
	  done; \
	  exit $$status

# What is found lies in build/fuzz, and goes into tests/fuzz/corpus with its mend.
FUZZ_SECONDS ?= 600
fuzz: $(PACKAGE) $(TEST_PACKAGES)
	@$(BIN)/python -m tests.fuzz $(FUZZ_SECONDS)

# Says what was lost, hung or left, and the seed of what it did.
SOAK_SECONDS ?= 3600
soak: $(PACKAGE) $(TEST_PACKAGES)
	@$(BIN)/python -m tests.soak $(SOAK_SECONDS)

format: $(PACKAGE) $(LINT_PACKAGES)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_FILES)

docs: $(PACKAGE) $(DOCS_PACKAGES)
	@$(BIN)/python -m sphinx --quiet --builder html --fail-on-warning --keep-going --nitpicky \
	  --doctree-dir build/docs/doctrees docs build/docs/html
	@echo "The documentation is in build/docs/html/index.html"

wheel: $(PACKAGE)
	$(BIN)/python -m pip wheel --no-build-isolation --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@command -v $(PYTHON) >/dev/null \
	  || { echo "error: no $(PYTHON); install Python 3.10 or later (Debian: apt install python3 python3-venv)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "error: $$($(PYTHON) --version) is too old, Python 3.10 or later is needed; name one with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "error: $(PYTHON) cannot create environments (no venv or ensurepip); Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null \
	  || { echo "error: no C++ compiler; Debian and Ubuntu: apt install g++"; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(TOOLS): $(CREATED) pyproject.toml
	@echo "Installing the build tools"
	@$(INSTALL) --upgrade 'pip>=25.1'
	@$(INSTALL) --group build
	@touch $@

$(PACKAGE): $(TOOLS) $(NATIVE_SOURCES)
	@echo "Building and installing distir_ext with its dependencies (apache-tvm is large)"
	@$(EDITABLE) . 2>&1 | tee $(INSTALL_LOG) | $(PROGRESS) \
	  || { tail -n 50 $(INSTALL_LOG); echo "error: the installation failed; $(INSTALL_LOG) has all of its output"; exit 1; }
	@touch $@

$(TEST_PACKAGES): pyproject.toml | $(PACKAGE)
	@$(INSTALL) 'distir-ext[test]'
	@touch $@

$(MODEL_PACKAGES): pyproject.toml | $(PACKAGE)
	@echo "Installing torch, transformers, onnx, jax and ray"
	@$(INSTALL) 'distir-ext[jax,ray,torch]'
	@touch $@

$(LINT_PACKAGES): pyproject.toml | $(PACKAGE)
	@$(INSTALL) 'distir-ext[lint,test]'
	@touch $@

$(DOCS_PACKAGES): pyproject.toml | $(PACKAGE)
	@$(INSTALL) 'distir-ext[docs]'
	@touch $@
