# Everything a fresh Debian or Ubuntu machine needs besides this file: Python 3.10 or newer, git, make.
PYTHON ?= python3
PYTEST_ARGS ?=
DEMO_ARGS ?=
# Interpreters that `make packages` tries: all that are named here, else that of .venv.
PYTHONS ?=
BIN := .venv/bin
# Of each folder of the tests what finds most for its time: some 60 s of one core in all.
SMOKE := graph codegen/test_epilogue_texts.py engine/test_layout.py engine/test_dependencies.py \
  passes/test_remove_identity.py passes/test_fold_constants.py ops/test_op_runner.py \
  kernels/test_selector.py kernels/test_conv_stationary.py backends/test_backends.py \
  runtime_abi/test_bridge.py delegation/test_report.py delegation/test_delegate_state.py \
  cache/test_codec.py cache/test_source.py compiled_model/test_compiled_model.py \
  zoo/test_writer.py tools/test_cli.py project/test_structure.py
# Software devices compile in one thread, which takes most of a demo's time: another process compiles
# the demo's second model meanwhile.
COMPILE_SECOND := $(BIN)/litegpu cache --warm=deeplabv3_257_mv_gpu >/dev/null 2>&1 & \
  trap "kill $$! 2>/dev/null" EXIT INT;
export PYTHON
LITEGPU_MODELS ?= $(abspath $(wildcard ../shared/models))
export LITEGPU_MODELS
# Programs that the tests start would compile every module of litegpu anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup test smoke runtimes packages oldest lint format demo site clean

help:
	@echo "make demo    classify and segment a picture on the GPU; installs only what that needs"
	@echo "make test    install everything, then run the tests (PYTEST_ARGS='-k conv' narrows them)"
	@echo "make smoke   a minute of the tests: some of each folder, on every backend"
	@echo "make runtimes  run the tests of the bridge in older runtimes too"
	@echo "make packages  build the wheel and the sdist, and try them in clean environments"
	@echo "make oldest  run a part of the tests with the oldest versions that are allowed (needs uv)"
	@echo "make lint    ruff, formatting and mypy"
	@echo "make format  let ruff fix and format the code"
	@echo "make setup   install what the tools and tests need, and nothing else"
	@echo "make site    build the documentation site into out/site"
	@echo "make clean   remove .venv, out/ and the caches"

setup:
	@sh scripts/setup

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

smoke: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS) $(addprefix tests/,$(SMOKE))

runtimes: setup
	$(BIN)/python scripts/check_runtimes.py

packages: setup
	$(BIN)/python scripts/check_packages.py --keep dist $(PYTHONS)

oldest:
	sh scripts/check_oldest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@find src -name '*.py' | xargs wc -l | awk '$$1 > 500 && $$2 != "total" {print "warning: " $$2 " has " $$1 " lines"}'

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo:
	@sh scripts/setup demo
	@$(if $(DEMO_ARGS),,$(COMPILE_SECOND))$(BIN)/litegpu demo $(DEMO_ARGS)

site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv .runtimes .oldest dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
