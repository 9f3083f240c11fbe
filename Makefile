# One way to do each job; .ci/run calls the same.
#
# Needs rustup (or cargo), a C compiler and make. What else is needed is installed, and said.

CARGO   ?= cargo
TARGET  := $(or $(CARGO_TARGET_DIR),target)
# What runs on this machine and not in the sandbox. Every job names the same packages: Cargo would compile the engine again for
# another choice, as that has other features. With the last, these are those that tests have.
NATIVE  := -p pilothouse -p pilothouse-e2e -p pilothouse-real -p pilothouse-features
# The same for what is linked as one: each program takes minutes.
SHIPPED := --release -p pilothouse -p pilothouse-bench
TESTED  := --workspace --exclude pilothouse-guests

.DEFAULT_GOAL := help
.PHONY: help build release plugins guests demo demo-check test model test-real test-languages test-newcomer fixtures real-assets image fuzz fmt lint doc book deny bench soak soak-plugins failover clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: plugins ## Build the host (target/debug/pilothouse) and the plugins (target/plugins)
	@echo "building the host: some minutes the first time, for the WebAssembly compiler in it"
	$(CARGO) build $(NATIVE)

release: plugins ## Build the host as it is shipped and measured (target/release/pilothouse): takes longer, and reconciles sooner
	@echo "building the host as it is shipped: ten minutes and more the first time"
	$(CARGO) build $(SHIPPED) --bin pilothouse

plugins: ## Build the plugins (target/plugins/*.wasm)
	@sh plugins/build.sh plugins

guests: ## Build the guests of the tests (target/guests/*.wasm)
	@sh plugins/build.sh guests

# The examples of all plugins that `make plugins` builds.
$(TARGET)/demo: $(foreach crate,$(wildcard plugins/*/Cargo.toml),$(wildcard $(dir $(crate))examples/*.yaml))
	@rm -rf $@ && mkdir -p $@
	@for file in $^; do cp $$file $@/$$(echo $$file | cut -d/ -f2)-$$(basename $$file); done

demo: build $(TARGET)/demo ## From a fresh clone to a reconciled MyApple; stays up, needs no cluster
	@echo "To see a reload: change plugins/myapple/src/lib.rs, and run 'make plugins' in another terminal."
	@$(TARGET)/debug/pilothouse dev --plugins $(TARGET)/plugins --controllers --manifests $(TARGET)/demo

demo-check: build $(TARGET)/demo ## The same unattended: checks what it sees, and ends
	@$(TARGET)/debug/demo-check \
		$(TARGET)/debug/pilothouse dev --plugins $(TARGET)/plugins --controllers --manifests $(TARGET)/demo

test: build guests ## All tests that need no real API server
	$(CARGO) test $(TESTED) --exclude pilothouse-real

model: ## Check in all orders of steps and faults that hosts which share plugins never act for the same one (docs/design/leases.md)
	$(CARGO) run -q --locked --manifest-path tests/model/Cargo.toml --target-dir $(TARGET)/model

test-real: build guests real-assets ## The end-to-end tests against a real etcd and kube-apiserver
	$(CARGO) test $(TESTED) --test cluster --test process -- --include-ignored
	PILOTHOUSE_E2E=real $(CARGO) test $(TESTED) --test suite

test-languages: build ## SDKs, examples, templates and docs/getting-started.md in all languages, as far as their toolchains are here
	$(CARGO) test $(TESTED) --test languages --test newcomer

test-newcomer: build ## What docs/getting-started.md says, from an empty directory to an edit that reloads, in Rust and Python
	$(CARGO) test $(TESTED) --test newcomer -- --skip javascript --skip typescript --skip steps::go

fixtures: ## Build the fixtures of a version of the contract again, VERSION=0.1.0: only on purpose, see tests/fixtures/README.md
	@sh tests/fixtures/build.sh $(VERSION)

real-assets: ## Find or build etcd, kube-apiserver, kube-controller-manager, kubectl and Helm
	@$(CARGO) build $(NATIVE) --bin real-assets
	@$(TARGET)/debug/real-assets

# Each image has its SBOM beside it, made of what `cargo auditable` has put into the host.
image: ## Build the image of the host as it is shipped, for amd64 and, with a cross compiler, arm64 (target/image)
	@for tool in cargo-auditable auditable2cdx; do \
		command -v $$tool >/dev/null || { echo "installing $$tool"; $(CARGO) install --locked $$tool; } || exit 1; \
	done
	@here=$$(rustc -vV | sed -n 's/^host: //p'); \
	for machine in x86_64 aarch64; do \
		triple=$$machine-unknown-linux-gnu; linker=$$machine-linux-gnu-gcc; built=$(TARGET)/release; cross=; \
		if [ $$triple != $$here ]; then \
			if ! command -v $$linker >/dev/null || ! rustup target list --installed | grep -qx $$triple; then \
				echo "no image for $$machine: it needs 'rustup target add $$triple' and $$linker (on Debian from gcc-$$(echo $$machine | tr _ -)-linux-gnu)"; \
				continue; \
			fi; \
			built=$(TARGET)/$$triple/release; \
			cross="--target $$triple --config target.$$triple.linker=\"$$linker\""; \
		fi; \
		echo "building the host for $$machine as it is shipped: ten minutes and more the first time"; \
		$(CARGO) auditable build --locked $(SHIPPED) --bin pilothouse $$cross && \
		image=$$(sh deploy/image.sh $$built/pilothouse $(TARGET)/image) && \
		auditable2cdx $$built/pilothouse >"$${image%.tar}.cdx.json" && \
		echo "$$image" || exit 1; \
	done

# Seconds for each target.
FUZZ_SECONDS ?= 60
FUZZ = $(abspath $(TARGET))/fuzz

# What is tried grows in target/fuzz, from the seeds in host/core/fuzz/corpus. Without a sanitizer, as there is no unsafe code in what is
# fuzzed: so stable Rust does.
fuzz: ## Look for bytes that a parser and serde_json read differently, FUZZ_SECONDS=60 for each target
	@command -v cargo-fuzz >/dev/null || { echo "installing cargo-fuzz"; $(CARGO) install --locked cargo-fuzz; }
	@cd host/core && for target in object list selector; do \
		echo "fuzzing $$target for $(FUZZ_SECONDS) s"; \
		mkdir -p "$(FUZZ)/corpus/$$target" && \
		$(CARGO) fuzz build --sanitizer none --target-dir "$(FUZZ)" $$target && \
		{ $(CARGO) fuzz run --sanitizer none --target-dir "$(FUZZ)" $$target "$(FUZZ)/corpus/$$target" fuzz/corpus/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -max_len=8192 -timeout=10 -dict=fuzz/json.dict -print_final_stats=1 \
			>"$(FUZZ)/$$target.log" 2>&1 || { tail -n 60 "$(FUZZ)/$$target.log"; exit 1; }; } && \
		grep number_of_executed_units "$(FUZZ)/$$target.log" || exit 1; \
	done

fmt: ## Check formatting
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path host/core/fuzz/Cargo.toml --check

lint: ## Clippy, warnings are errors
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc: ## Documentation without warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

book: ## The pages of docs as a book (target/book/index.html)
	@command -v mdbook >/dev/null || { echo "installing mdbook"; $(CARGO) install --locked mdbook; }
	mdbook build --dest-dir "$(abspath $(TARGET))/book"

# Without optimization it is built in half the time, and it reads a lock file.
deny: ## Licences, bans and sources of dependencies; advisories where their database can be reached
	@command -v cargo-deny >/dev/null || { echo "installing cargo-deny"; $(CARGO) install --locked --debug cargo-deny; }
	$(CARGO) deny --log-level error check licenses bans sources
	@if $(CARGO) deny fetch db >/dev/null 2>&1; then $(CARGO) deny --log-level error check advisories; \
	else echo "advisories not checked: their database cannot be reached from here"; fi

# The first run compiles 1,000 plugins that differ, some ten minutes long, and keeps them in target/bench-cache.
bench: plugins ## Measure, beside budgets and peers (target/bench.json); LINE=name for one line, BENCH_OBJECTS=10000 for smaller caches
	@sh plugins/build.sh guests plugin
	@echo "building what is measured as it is shipped: ten minutes and more the first time"
	$(CARGO) build $(SHIPPED)
	@PILOTHOUSE_BIN=$(abspath $(TARGET))/release/pilothouse $(TARGET)/release/pilothouse-bench $(LINE)

soak: build ## Ten minutes of every fault, with 25 informers (target/soak.json); SECONDS=n, SEED=n
	@$(TARGET)/debug/soak $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

soak-plugins: build ## Ten minutes of kubediff, deployment and resource-watch on 1,000 objects, with faults (target/soak-plugins.json); SECONDS=n, SEED=n
	@$(TARGET)/debug/soak --plugins $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

failover: build real-assets ## Strike the acting one of several hosts fifty times, on a real API server (target/failover.json); ROUNDS=n, SEED=n
	@$(TARGET)/debug/failover $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(if $(REPLICAS),--replicas $(REPLICAS))

clean: ## Remove what was built here (not the real API server's binaries)
	$(CARGO) clean
