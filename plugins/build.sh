#!/bin/sh
# Builds every plugin in plugins/ and every guest in tests/guests/ for wasm32-unknown-unknown. Copies them to
# target/plugins/<name>.wasm and target/guests/<name>.wasm, each with its <name>.yaml beside it.
#
#   plugins/build.sh                  all of them
#   plugins/build.sh plugins          only the plugins
#   plugins/build.sh guests           only the guests
#   plugins/build.sh guests plugin    only the guests, with the profile of plugins: a slower build of faster code
#
# PLUGIN_PROFILE=guest builds the plugins as the guests of tests are built: soon, because they share all dependencies.
#
# A file with the same content is not touched, and a new file is renamed into place. So a host that watches the
# directory reloads exactly what changed. CARGO_TARGET_DIR is respected.
set -eu

what=${1:-all}
guest_profile=${2:-guest}
plugin_profile=${PLUGIN_PROFILE:-plugin}
case $what in
    all | plugins | guests) ;;
    *) echo "usage: $0 [all|plugins|guests [PROFILE]]" >&2; exit 2 ;;
esac

cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
triple=wasm32-unknown-unknown
cargo=${CARGO:-cargo}
extra=

say() { echo "plugins: $*"; }

# Debian 12's packages of a compiler, its sources and a linker for wasm32, for machines without access to rustup.
debian_packages="rustc-web cargo-web rust-web-src lld-22"

has_target() { # succeeds if the compiler has the standard library of the target
    libdir=$("${RUSTC:-rustc}" --print target-libdir --target $triple 2>/dev/null) && [ -d "$libdir" ]
}

use_debian() {
    if ! { [ -x /usr/bin/cargo ] && [ -x /usr/bin/rustc ] && command -v wasm-ld-22 >/dev/null \
        && ls -d /usr/src/rustc-*/library >/dev/null 2>&1; }; then
        if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
            say "installing Debian's packages: $debian_packages"
            # shellcheck disable=SC2086
            apt-get update -q && apt-get install -y $debian_packages
        else
            say "cannot get the target $triple. Either:" >&2
            say "  rustup target add $triple" >&2
            say "  apt-get install $debian_packages    (as root, on Debian 12)" >&2
            exit 1
        fi
    fi
    say "falling back to Debian's compiler, which builds the standard library too: the first build takes a minute longer"
    export RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld-22
    cargo=/usr/bin/cargo
    extra=-Zbuild-std=std,panic_abort
}

if has_target; then
    :
elif command -v rustup >/dev/null; then
    say "adding the target $triple to the Rust toolchain"
    rustup target add $triple || use_debian
else
    use_debian
fi

install_file() { # <from> <to>
    if cmp -s "$1" "$2"; then
        state=unchanged
    else
        # Hidden and in the same directory, so that the rename is atomic and no host loads half a file.
        hidden=$(dirname "$2")/.$(basename "$2").$$
        cp "$1" "$hidden"
        mv -f "$hidden" "$2"
        state=new
    fi
}

deliver() { # <name> <wasm> <yaml> <directory>
    mkdir -p "$4"
    # The grants come first, so that a host that loads the plugin at once finds them.
    if [ -f "$3" ]; then install_file "$3" "$4/$1.yaml"; fi
    install_file "$2" "$4/$1.wasm"
    say "$4/$1.wasm  $(($(wc -c <"$2") / 1024)) kB  $state"
}

build() { # <profile> <cargo arguments...>
    # shellcheck disable=SC2086
    "$cargo" build --target $triple $extra --profile "$@"
}

if [ "$what" != guests ]; then
    set -- "$plugin_profile"
    for manifest in plugins/*/Cargo.toml; do
        set -- "$@" -p "$(basename "$(dirname "$manifest")")"
    done
    say "building the plugins"
    build "$@"
    for manifest in plugins/*/Cargo.toml; do
        name=$(basename "$(dirname "$manifest")")
        deliver "$name" "$target/$triple/$plugin_profile/$(echo "$name" | tr - _).wasm" "plugins/$name/$name.yaml" "$target/plugins"
    done
fi

if [ "$what" != plugins ]; then
    say "building the guests of the tests"
    build "$guest_profile" -p pilothouse-guests --examples
    for source in tests/guests/examples/*.rs; do
        name=$(basename "$source" .rs)
        deliver "$name" "$target/$triple/$guest_profile/examples/$name.wasm" "tests/guests/examples/$name.yaml" "$target/guests"
    done
fi
