# Two commands: `make run` starts a cluster here, `make test` runs every test. Both install what is missing.
.PHONY: run test quick tidy nightly night monitoring test-vm screens fuzz sweep sweep-cluster sweep-mirror sweep-coded bench cost chaos tools lint build dist

# Reports name the commit of the program that made them (docs/json.md#provenance). Outside a checkout there is none.
build dist run: export EBB_COMMIT ?= $(shell git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null)

build:
	cargo build --release -p ebb

# With every optimisation: what figures are measured on.
dist:
	cargo build --profile dist -p ebb

# Without the laboratory and the simulators, which would double the time until a cluster runs; with them, where `make
# build` has built them.
run:
	cargo build --release -p ebb $(if $(wildcard target/release/deps/libebb_sim-*.rlib),,--no-default-features)
	./target/release/ebb dev

# Real clients (boto3, awscli, rclone, restic) for the S3 tests.
tools:
	./scripts/install-test-tools

lint:
	./scripts/lint

# The house, its pages and its papers, in seconds: what any other run begins with.
tidy:
	cargo fmt --all --check
	cargo xtask tidy

# Every test. It needs nothing but a Rust toolchain and a C compiler: what is missing is installed where that is
# allowed, else the tests that need it are skipped, by name.
test: tidy tools
	cargo xtask test

# What the last change concerns: the crates that it touched, and those that depend on them; of clusters of processes
# only README's.
quick: tidy
	cargo xtask test --quick

# Each night, with other seeds each time: every test, also those that take minutes; then the searches, the disturbers
# and the fuzzers for longer.
nightly: export EBB_SEEDS ?= 20000
nightly: tidy tools
	$(MAKE) --keep-going night sweep chaos fuzz

night:
	EBB_SEEDS=2000 cargo xtask test --night

# The alert rules in a real Prometheus, which watches a cluster shift gears twice and a server fail.
monitoring: tools
	cargo test --locked -p ebb --test all -- --ignored --nocapture metrics::

# A server in a virtual machine that powers off, boots, suspends and resumes; also a part of `make test`, where QEMU and
# a kernel are there.
test-vm: tools
	cargo test --locked -p ebb --test all -- --ignored --nocapture power_vm::

# Pictures of every view of the page, at both widths, light and dark: to be looked at after a change of it.
screens: export EBB_SCREENS ?= $(CURDIR)/target/screens
screens: tools
	cargo test --locked -p ebb-web -- --ignored --nocapture screens

# Every parser of bytes from outside, for EBB_FUZZ_SECONDS each: first by the tests' own mutations, then guided by
# coverage. `make test` has a short form of the first.
fuzz: export EBB_FUZZ_SECONDS ?= 60
fuzz:
	cargo test --workspace --locked made_up -- --nocapture
	SECONDS_EACH=$(EBB_FUZZ_SECONDS) ./scripts/fuzz

# The fault searches for a night, with other seeds each time: the cluster and what is above its chunks, the mirror, the
# schedules of coded sets, which take longer. EBB_FIRST and EBB_SEEDS say which.
sweep: export EBB_SEEDS ?= 100000
sweep: export EBB_FIRST ?= $(shell date +%s)00000
sweep: sweep-cluster sweep-mirror sweep-coded
sweep-cluster:
	cargo test --release -p ebb-sim --test all no_seed -- --nocapture
sweep-mirror:
	cargo test --release -p ebb-mirror --test all -- --nocapture no_seed an_older_copy_is_never
sweep-coded:
	EBB_SEEDS=$$(($$EBB_SEEDS / 20)) cargo test --release -p ebb-chunkserver --test all random_schedules -- --nocapture

# Random events against processes under verified load, with another seed each time (EBB_SEED=N repeats one run): servers
# are killed, paused, emptied, put back to older copies, slow, full; processes of each kind stand still for longer than
# every lease, have hung disks, wrong clocks, no descriptors, peers that they do not reach or that never answer; a
# volume is served twice; directories come back emptied, older, damaged, exchanged; servers of an erasure-coded pool
# fail; a served mirror is killed. `make test` has short forms.
chaos: export EBB_SEED ?= $(shell date +%s)
chaos:
	EBB_CHAOS_EVENTS=500 EBB_AMNESIA_TRIES=1000 EBB_MIRROR_KILLS=200 EBB_POOL_EVENTS=200 \
		cargo test --profile dist -p ebb --test all -- --nocapture disturb::

bench: dist
	./scripts/bench

# Cycles per operation, user and kernel, beside nginx and qemu-nbd (docs/cost.md). Needs root, perf and fio.
cost: dist
	./scripts/cost
