# Every target sets up what it needs. Requires Rust (cargo) and Python >= 3.10 with venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SLURM_PACKAGES := slurmctld slurmd slurm-client munge
RUST_SOURCES := $(shell find crates -name '*.rs' -o -name 'Cargo.toml') Cargo.toml

.PHONY: build bytecode dev demo test test-rust test-fuzz test-python test-torch test-torch-suite test-engines slurm hadoop lint fuzz sanitize loom bench lab figures faults faults-planted clean

# The environment with a release build of the package in it.
build: $(VENV)/.built

$(VENV)/.deps: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip "maturin>=1.9,<2"
	@touch $@

$(VENV)/.built: $(VENV)/.deps $(RUST_SOURCES) pyproject.toml
	$(BIN)/maturin develop --release --quiet --extras graph,dev
	@touch $@

# The native module without optimisation, for quick turns: after `make build` once. The next target builds the release again.
dev:
	cargo build --quiet -p skyphos-py
	cp target/debug/lib_skyphos.so python/skyphos/.new.so && mv python/skyphos/.new.so python/skyphos/_skyphos.abi3.so
	@rm -f $(VENV)/.built

# PageRank of a real graph on 4 local processes.
demo: build
	$(BIN)/skyphos pagerank data/cit-HepTh.txt.gz -n 4 --top 10 --report demo.html
	@echo "The report is in demo.html"

# Everything: Rust, Python, lint, types, stubs against the binary, doc examples.
test: build lint test-rust test-fuzz test-python

test-rust:
	cargo test --quiet --workspace --exclude skyphos-py

# The corpora of the fuzz targets and mutations of them, without a sanitizer (`make fuzz` has one).
test-fuzz:
	cargo test --quiet --manifest-path fuzz/Cargo.toml --target-dir target

# Tests start thousands of processes: without bytecode (PYTHONDONTWRITEBYTECODE) each would compile the package.
bytecode: build
	$(BIN)/python -m compileall -q python/skyphos

test-python: bytecode
	$(BIN)/python -m pytest
	$(BIN)/python -m pytest --doctest-modules python/skyphos --ignore=python/skyphos/torch

# The backend of torch.distributed. The first time it installs PyTorch: a download of 5 GB.
test-torch: bytecode
	@$(MAKE) --no-print-directory $(VENV)/.torch
	$(BIN)/python -m pytest -rs tests/torch
	$(BIN)/python -m pytest --doctest-modules python/skyphos/torch

$(VENV)/.torch: $(VENV)/.built
	$(BIN)/maturin develop --release --quiet --extras graph,dev,torch,examples
	@touch $@

# PyTorch's generic suite of distributed tests, with Skyphos and with Gloo, for groups of 3 and 4. RANKS="3 8": others.
test-torch-suite: bytecode
	@$(MAKE) --no-print-directory $(VENV)/.torch-suite
	$(BIN)/python tests/torch_suite/run.py --ranks $${RANKS:-3 4}

$(VENV)/.torch-suite: $(VENV)/.built
	$(BIN)/maturin develop --release --quiet --extras graph,dev,torch,torch-suite
	@touch $@

# Launchers and engines (docs/engines.md), the real ones. The first time it installs them: a download of 6 GB, PyTorch most of it.
# Engines that cannot be installed are skipped; pytest prints the reason.
test-engines: bytecode slurm hadoop
	@$(MAKE) --no-print-directory $(VENV)/.engines
	$(BIN)/python -m pytest -rs tests/engines

$(VENV)/.engines: $(VENV)/.built
	$(BIN)/maturin develop --release --quiet --extras graph,dev,ray,dask,spark,torchrun,stores
	@touch $@

# Slurm's daemons, where Debian's packages can be installed; tests start them with a configuration of their own.
slurm:
	@PATH="$$PATH:/usr/sbin:/sbin"; missing=; \
	for tool in slurmctld slurmd srun munged; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y $(SLURM_PACKAGES) >/dev/null; \
	else \
		echo "Slurm is not tested: no$$missing (as root on Debian: apt-get install $(SLURM_PACKAGES))" >&2; \
	fi

# An HDFS of one process, where there are Java and Maven.
HADOOP := target/hadoop
hadoop:
	@if [ -d $(HADOOP) ]; then exit 0; fi; \
	if command -v java >/dev/null && command -v mvn >/dev/null; then \
		mvn -q -B -f tests/engines/hadoop/pom.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(HADOOP).new && \
			mv $(HADOOP).new $(HADOOP); \
	else \
		echo "HDFS is not tested: no Java, or no Maven" >&2; \
	fi

lint: build
	cargo fmt --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --workspace --exclude skyphos-py
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo clippy --quiet --manifest-path fuzz/Cargo.toml --target-dir target --all-targets -- -D warnings
	$(BIN)/ruff check python tests bench examples crates fuzz tools
	$(BIN)/ruff format --check python tests bench examples crates fuzz tools
	$(BIN)/python tools/layers.py
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest skyphos._skyphos

# Each target of fuzz/ for FUZZ_SECONDS (600), one after the other; TARGETS names some. Needs a C++ compiler.
fuzz:
	fuzz/run $(TARGETS)

# The tests of the kernels, and of core with its codecs and shared memory, under AddressSanitizer. Needs a nightly toolchain:
# rustup toolchain install nightly. Allocations that a malformed message asks for may fail, as in a release build.
sanitize:
	ASAN_OPTIONS=allocator_may_return_null=1 RUSTFLAGS=-Zsanitizer=address cargo +nightly test --quiet --lib \
		-p skyphos-types -p skyphos-kernels -p skyphos-core --target $$(rustc -vV | sed -n 's/^host: //p')

# Every order of threads (loom) for the shared-memory ring and for the inbox of ranks in one process.
loom:
	LOOM_MAX_PREEMPTIONS=3 cargo test --quiet --release --manifest-path loom/Cargo.toml --target-dir target/loom

bench: build
	$(BIN)/python bench/run.py

# Skyphos compared with MPICH, Gloo and the limits of the links, in a cluster of network namespaces: needs root and iproute2.
# The first time it installs PyTorch and MPICH (a download of 5 GB).
lab:
	@test "$$(id -u)" = 0 || { echo "make lab makes network namespaces and needs root: sudo make lab" >&2; exit 1; }
	@$(MAKE) --no-print-directory $(VENV)/.lab
	$(BIN)/python bench/lab $(SCENARIOS)

# Half a million simulated groups with faults (docs/faults.md); 35 minutes or more on 2 cores. target/faults.json records the
# seeds that have run, which are then skipped.
faults:
	SKYPHOS_FAULT_SEEDS=$${SEEDS:-500000} SKYPHOS_FAULT_FILE=$(CURDIR)/target/faults.json \
		cargo test --quiet --release -p skyphos --test faults campaign -- --ignored --nocapture

# Checks that the campaign finds bugs: 23 are planted, one by one (docs/faults.md). PLANTED="03 17": only these.
faults-planted:
	$(PYTHON) crates/skyphos/tests/faults/planted/run.py $(PLANTED)

# Figures of the papers, measured again, into docs/figures (docs/reproduction.md): half an hour on a machine without other
# load. Figures from the lab need root; without it the others are drawn, and the missing ones are listed.
figures:
	@$(MAKE) --no-print-directory $(VENV)/.lab
	$(BIN)/python bench/figures $(FIGURES)

$(VENV)/.lab: $(VENV)/.built
	$(BIN)/maturin develop --release --quiet --extras graph,dev,lab
	@touch $@

clean:
	cargo clean
	rm -rf $(VENV)
