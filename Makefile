# make demo: translate with the pairs that ship; needs no fairseq.  make test, make test-long: the tests.  make check: lint, types.
# make toy: train a toy pair.  make wheel: wheels in dist/.  make sanitize: the kernels under sanitizers.  make install: everything.
PYTHON ?= python3
PIP := .venv/bin/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install -q -c constraints.txt --no-build-isolation
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard specdec_plugins/decoding/backends/cpu/csrc/*)
# PyPI's torch for Linux is the CUDA build, several gigabytes. Take the CPU build instead, unless CUDA=1 is given, or pip is
# configured with indexes or folders of its own, such as a company's mirror, which must decide.
CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_INDEX ?= $(if $(CUDA),,$(shell $(PYTHON) -m pip config list 2>/dev/null | grep -Eq 'index|find-links' || echo $(CPU_INDEX)))

.PHONY: install demo toy test test-long check sanitize bench wheel index clean

install: .venv/all

# What translates and scores on CPUs. This CPU's kernels compile while packages are fetched; those for others come with all the rest.
DEPENDENCIES := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")
.venv/base: $(SOURCES)
	@echo "== making .venv: the CPU kernels and a few packages (once, about half a minute)"
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@$(INSTALL) setuptools wheel
	@SPECDEC_KERNELS=best $(INSTALL) --no-deps -e . & package=$$!; \
	    .venv/bin/python -c '$(DEPENDENCIES)' | $(INSTALL) -r /dev/stdin && wait $$package
	@touch $@

# The same, and what trains, tests and checks. fairseq requires torchaudio, which only its speech tasks import. PyPI's build needs
# CUDA's torch; beside another it does not load, and transformers, which imports what is installed, would fail with it.
.venv/all: .venv/base $(if $(CUDA),.venv/cuda)
	@echo "== PyTorch, fairseq and the tools (once; building fairseq takes about three minutes)"
	@.venv/bin/python setup.py -q build_ext --inplace & kernels=$$!; \
	    $(INSTALL) --no-compile $(addprefix --extra-index-url ,$(TORCH_INDEX)) torch && wait $$kernels
	@$(INSTALL) cython ninja
	@$(INSTALL) "specdec-seq2seq[dev]"
	@.venv/bin/python -c "import torchaudio" 2>/dev/null || $(PIP) uninstall -q -y torchaudio
	@touch $@

# Once: pip would keep the CPU build.
.venv/cuda: | .venv/base
	@$(PIP) uninstall -q -y torch 2>/dev/null
	@touch $@

demo: .venv/base
	.venv/bin/python -m specdec_plugins.commands.demo

toy: .venv/all
	./train.sh toy

test: .venv/all
	.venv/bin/python -m pytest -q -rs --durations 10 -n 2 --dist worksteal -m "not long"

test-long: .venv/all
	.venv/bin/python -m pytest -q -rs --durations 10 -n 2 --dist worksteal -m long

check: .venv/all
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

sanitize: .venv/all
	.ci/sanitize

# Text to measure with: the demo's few sentences, unless data/multi30k.sh has fetched a test set or SPECDEC_CORPORA names a folder
BENCH_TEXT ?= $(firstword $(wildcard $(SPECDEC_CORPORA)/multi30k/test2016.en data/prepared/multi30k/raw/test.en) data/demo.txt)

bench: .venv/all
	@$(INSTALL) "specdec-seq2seq[bench]"
	.venv/bin/specdec-benchmark --model data/demo.en-de --input $(BENCH_TEXT)

# Wheels for glibc from 2.28 on and for musl, with the kernels for every x86-64 CPU: their platforms and zig's names for them.
# They are built from the source distribution, so that it is known to be whole. GCC compiles the first and zig links it, as zig has
# old glibc's symbols; zig's own code for AVX-512 takes up to 1.2 times as long with 32 rows. For musl zig does both; what tells CPUs
# apart is from GCC's library, as zig has none.
MANYLINUX := manylinux_2_28_x86_64=x86_64-linux-gnu.2.28
MUSLLINUX := musllinux_1_2_x86_64=x86_64-linux-musl
WHEELS ?= $(MANYLINUX) $(MUSLLINUX)
BUILD := build/zig/bin

build/zig/ready: constraints.txt
	@echo "== zig (once)"
	@test -x $(BUILD)/python || $(PYTHON) -m venv build/zig
	@$(BUILD)/python -m pip install -q --disable-pip-version-check -c constraints.txt setuptools ziglang auditwheel
	@touch $@

wheel: build/zig/ready
	rm -rf dist
	$(BUILD)/python setup.py -q sdist -d dist
	@set -e; zig=$$PWD/$(BUILD)/python-zig; export ZIG_GLOBAL_CACHE_DIR=$$PWD/build/zig/cache; \
	for wheel in $(WHEELS); do \
	    echo "== $${wheel%=*}"; \
	    case $$wheel in \
	        many*) export CC=gcc CXX="$$PWD/.ci/c++-glibc $$zig $${wheel#*=}" LDFLAGS=-s ;; \
	        *) export CC="$$zig cc -target $${wheel#*=}" CXX="$$zig c++ -target $${wheel#*=}" \
	            LDFLAGS="-s $$(gcc -print-libgcc-file-name)" ;; \
	    esac; \
	    $(BUILD)/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist \
	        --config-settings=--build-option=--plat-name=$${wheel%=*} dist/*.tar.gz; \
	done
	$(BUILD)/python .ci/check-wheels dist/*.whl

# For scripts: where torch comes from, empty for where pip looks anyway.
index:
	@echo $(TORCH_INDEX)

clean:
	rm -rf .venv build dist *.egg-info runs/toy specdec_plugins/decoding/backends/cpu/*.so
