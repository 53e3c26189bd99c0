# Everything is done by cargo and the scripts in tools/; `make help` lists the targets.

PREFIX ?= /usr/local
export PATH := $(HOME)/.cargo/bin:$(PATH)
BINARY = $(or $(CARGO_TARGET_DIR),target)/release/lasthop

.DEFAULT_GOAL := help
.PHONY: help demo demo-ovn build check test test-systemd lint bench figures lab chaos soak install deb clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: ## two Linux guests talk through the switch (installs what is missing); DEMO=qemu for QEMU's
	@demo/run

demo-ovn: ## OVN on three hosts in namespaces, with Linux guests, and a gateway that dies (as root)
	@demo/ovn

build: ## the release binary, target/release/lasthop
	@tools/deps build
	cargo build --release --locked

check: ## formatting, clippy, the plan of the crates, the crates' fast tests; before each commit
	@tools/deps lint
	@tools/check

test: ## lints, the crates' tests, real guests (installs what is missing)
	@tools/deps lint
	@tools/test

test-systemd: build ## package and service under systemd, in a virtual machine with a disk of its own; as root, some ten minutes
	@tools/deps systemd
	cargo build --release --locked -p lasthop-frontend --example numbered
	@tests/systemd/run

lint: ## formatting, clippy, the plan of the crates, licences
	@tools/deps lint
	@tools/lint

bench: build ## next to DPDK's vhost forwarder, OVS-DPDK and the bare algorithm; SUITE=quick for a first look
	@tools/deps bench
	@bench/run $(if $(SUITE),--suite $(SUITE) --rounds 3 --seconds 0.5)
	@bench/uml-vs-testpmd

figures: build ## the papers' workloads as figures in docs/results/img, in half an hour at most; SUITE=full for longer; as root
	@tools/deps bench
	@bench/figures $(if $(SUITE),--suite $(SUITE))

lab: ## the simulator: its validation, and the papers' figures in docs/results/img; a minute
	@tools/deps build
	cargo build --release --locked -p lasthop-lab
	$(or $(CARGO_TARGET_DIR),target)/release/lasthop-lab validate
	$(or $(CARGO_TARGET_DIR),target)/release/lasthop-lab figures --pictures docs/results/img
	$(or $(CARGO_TARGET_DIR),target)/release/lasthop-lab io-figures --pictures docs/results/img

chaos: ## random trouble over random traffic for an hour; SECONDS=n SEED=n GUESTS=n WORKERS=n
	@tools/deps build
	CHAOS_SECONDS=$(or $(SECONDS),3600) $(if $(SEED),CHAOS_SEED=$(SEED)) $(if $(GUESTS),CHAOS_GUESTS=$(GUESTS)) \
	    $(if $(WORKERS),CHAOS_WORKERS=$(WORKERS)) cargo test --release --locked -p lasthop --test chaos

soak: ## property tests and chaos with random input for ten minutes; SECONDS=n
	@tools/deps build
	@tools/soak $(SECONDS)

install: build ## the binary, manual pages, completions, systemd's units, below $(DESTDIR)$(PREFIX)
	@tools/install-files $(BINARY) $(DESTDIR)$(PREFIX) $(PREFIX)

deb: build ## a Debian package, in target/deb
	@tools/deps deb
	@tools/deb $(BINARY) $(dir $(BINARY))../deb

clean: ## what was built
	cargo clean
