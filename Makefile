# One way to do each job; .ci/run calls the same.
#
# Needs rustup (or cargo), a C compiler and make. What else is needed is installed, and said.

CARGO   ?= cargo
TARGET  := $(or $(CARGO_TARGET_DIR),target)
# The real API server's binaries are built with Go, once, into a cache folder outside this tree.
E2E     := $(CARGO) test --release -p pilothouse-e2e

.DEFAULT_GOAL := help
.PHONY: help build plugins guests demo demo-check test test-real real-assets fmt lint doc deny bench clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: plugins ## Build the host (target/release/pilothouse) and the plugins (target/plugins)
	@echo "building the host: some minutes the first time, for the WebAssembly compiler in it"
	$(CARGO) build --release -p pilothouse

plugins: ## Build the plugins (target/plugins/*.wasm)
	@sh plugins/build.sh plugins

guests: ## Build the guests of the tests (target/guests/*.wasm)
	@sh plugins/build.sh guests

demo: build ## From a fresh clone to a reconciled MyApple; stays up, needs no cluster
	@echo "To see a reload: change plugins/myapple/src/lib.rs, and run 'make plugins' in another terminal."
	@$(TARGET)/release/pilothouse dev --plugins $(TARGET)/plugins --manifests plugins/myapple/examples

demo-check: build ## The same unattended: checks what it sees, and ends
	@$(CARGO) run --quiet --release -p pilothouse-e2e --bin demo-check -- \
		$(TARGET)/release/pilothouse dev --plugins $(TARGET)/plugins --manifests plugins/myapple/examples

test: build guests ## All tests that need no real API server
	$(CARGO) test --release --workspace --exclude pilothouse-guests --exclude pilothouse-real

test-real: build guests real-assets ## The end-to-end tests against a real etcd and kube-apiserver
	$(CARGO) test --release -p pilothouse-real
	PILOTHOUSE_E2E=real $(E2E)

real-assets: ## Find or build etcd, kube-apiserver, kube-controller-manager and kubectl
	@$(CARGO) run --quiet --release -p pilothouse-real --bin real-assets

fmt: ## Check formatting
	$(CARGO) fmt --all --check

lint: ## Clippy, warnings are errors
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc: ## Documentation without warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

deny: ## Licences, bans and sources of dependencies; advisories where their database can be reached
	@command -v cargo-deny >/dev/null || { echo "installing cargo-deny"; $(CARGO) install --locked cargo-deny; }
	$(CARGO) deny --log-level error check licenses bans sources
	@if $(CARGO) deny fetch db >/dev/null 2>&1; then $(CARGO) deny --log-level error check advisories; \
	else echo "advisories not checked: their database cannot be reached from here"; fi

clean: ## Remove what was built here (not the real API server's binaries)
	$(CARGO) clean
