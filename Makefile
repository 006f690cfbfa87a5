# make demo: translate with the pairs that ship.  make toy: train a toy pair.  make test, make test-long: the tests.
# make check: lint, types.  make sanitize: the kernels under sanitizers.
PYTHON ?= python3
PIP := .venv/bin/python -m pip --disable-pip-version-check
# Where torch comes from, if not PyPI: make TORCH_INDEX=https://download.pytorch.org/whl/cpu install
TORCH_INDEX ?=

.PHONY: install demo toy test test-long check sanitize bench clean

install: .venv/installed

.venv/installed: setup.py constraints.txt $(wildcard specdec_plugins/decoding/backends/cpu/csrc/*)
	@echo "== making .venv (once; building fairseq takes about three minutes)"
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@echo "== torch and build tools first, so that fairseq builds against them and fetches no torch of its own"
	@$(PIP) install -q -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch numpy cython setuptools wheel ninja
	@echo "== fairseq and the rest"
	@$(PIP) install -q --no-build-isolation -c constraints.txt -e ".[dev]"
	@touch $@

demo: .venv/installed
	.venv/bin/python -m specdec_plugins.commands.demo

toy: .venv/installed
	./train.sh toy

test: .venv/installed
	.venv/bin/python -m pytest -q -rs --durations 10 -n 2 --dist worksteal -m "not long"

test-long: .venv/installed
	.venv/bin/python -m pytest -q -rs --durations 10 -n 2 --dist worksteal -m long

check: .venv/installed
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

sanitize: .venv/installed
	.ci/sanitize

# Text to measure with: the demo's few sentences, unless data/multi30k.sh has fetched a test set or SPECDEC_CORPORA names a folder
BENCH_TEXT ?= $(firstword $(wildcard $(SPECDEC_CORPORA)/multi30k/test2016.en data/prepared/multi30k/raw/test.en) data/demo.txt)

bench: .venv/installed
	@$(PIP) install -q -c constraints.txt -e ".[bench]" --no-build-isolation
	.venv/bin/specdec-benchmark --model data/demo.en-de --input $(BENCH_TEXT)

clean:
	rm -rf .venv build *.egg-info runs/toy specdec_plugins/decoding/backends/cpu/*.so
