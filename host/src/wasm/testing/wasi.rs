//! Functions of WASI that a [`Guest`](super::Guest) can call: `$wasi:io/poll.poll`.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::path::Path;

use wit_parser::{Resolve, WorldId};

/// What toolchains import and the host refuses.
const REFUSED: &str = "
    package test:wasi;

    world all {
        include pilothouse:wasi/served;
        import wasi:filesystem/preopens@0.2.3;
        import wasi:sockets/instance-network@0.2.3;
        import wasi:sockets/tcp-create-socket@0.2.3;
        import wasi:http/types@0.2.3;
    }

    package wasi:filesystem@0.2.3 {
        interface types {
            resource descriptor {}
        }
        interface preopens {
            use types.{descriptor};
            get-directories: func() -> list<tuple<descriptor, string>>;
        }
    }

    package wasi:sockets@0.2.3 {
        interface network {
            resource network {}
            enum error-code { unknown, access-denied }
        }
        interface instance-network {
            use network.{network};
            instance-network: func() -> network;
        }
        interface tcp {
            resource tcp-socket {}
        }
        interface tcp-create-socket {
            use network.{error-code};
            use tcp.{tcp-socket};
            create-tcp-socket: func(ipv6: bool) -> result<tcp-socket, error-code>;
        }
    }

    package wasi:http@0.2.3 {
        interface types {
            use wasi:io/streams@0.2.12.{input-stream};
            resource fields {
                constructor();
            }
            read: func(source: borrow<input-stream>);
        }
    }
";

/// Interface, function and core signature.
pub(super) const FUNCTIONS: [(&str, &str, &str); 43] = [
    ("wasi:cli/environment@0.2.12", "get-environment", "(param i32)"),
    ("wasi:cli/environment@0.2.12", "get-arguments", "(param i32)"),
    ("wasi:cli/environment@0.2.12", "initial-cwd", "(param i32)"),
    ("wasi:cli/exit@0.2.12", "exit", "(param i32)"),
    ("wasi:cli/exit@0.2.12", "exit-with-code", "(param i32)"),
    ("wasi:cli/stdin@0.2.12", "get-stdin", "(result i32)"),
    ("wasi:cli/stdout@0.2.12", "get-stdout", "(result i32)"),
    ("wasi:cli/stderr@0.2.12", "get-stderr", "(result i32)"),
    ("wasi:cli/terminal-stdin@0.2.12", "get-terminal-stdin", "(param i32)"),
    ("wasi:cli/terminal-stdout@0.2.12", "get-terminal-stdout", "(param i32)"),
    ("wasi:cli/terminal-stderr@0.2.12", "get-terminal-stderr", "(param i32)"),
    ("wasi:clocks/monotonic-clock@0.2.12", "now", "(result i64)"),
    ("wasi:clocks/monotonic-clock@0.2.12", "resolution", "(result i64)"),
    ("wasi:clocks/monotonic-clock@0.2.12", "subscribe-instant", "(param i64) (result i32)"),
    ("wasi:clocks/monotonic-clock@0.2.12", "subscribe-duration", "(param i64) (result i32)"),
    ("wasi:clocks/wall-clock@0.2.12", "now", "(param i32)"),
    ("wasi:clocks/wall-clock@0.2.12", "resolution", "(param i32)"),
    ("wasi:io/poll@0.2.12", "[method]pollable.ready", "(param i32) (result i32)"),
    ("wasi:io/poll@0.2.12", "[method]pollable.block", "(param i32)"),
    ("wasi:io/poll@0.2.12", "[resource-drop]pollable", "(param i32)"),
    ("wasi:io/poll@0.2.12", "poll", "(param i32 i32 i32)"),
    ("wasi:io/streams@0.2.12", "[method]input-stream.read", "(param i32 i64 i32)"),
    ("wasi:io/streams@0.2.12", "[method]input-stream.blocking-read", "(param i32 i64 i32)"),
    ("wasi:io/streams@0.2.12", "[method]input-stream.skip", "(param i32 i64 i32)"),
    ("wasi:io/streams@0.2.12", "[method]input-stream.subscribe", "(param i32) (result i32)"),
    ("wasi:io/streams@0.2.12", "[resource-drop]input-stream", "(param i32)"),
    ("wasi:io/streams@0.2.12", "[method]output-stream.check-write", "(param i32 i32)"),
    ("wasi:io/streams@0.2.12", "[method]output-stream.write", "(param i32 i32 i32 i32)"),
    ("wasi:io/streams@0.2.12", "[method]output-stream.blocking-write-and-flush", "(param i32 i32 i32 i32)"),
    ("wasi:io/streams@0.2.12", "[method]output-stream.blocking-flush", "(param i32 i32)"),
    ("wasi:io/streams@0.2.12", "[method]output-stream.subscribe", "(param i32) (result i32)"),
    ("wasi:io/streams@0.2.12", "[method]output-stream.blocking-splice", "(param i32 i32 i64 i32)"),
    ("wasi:io/streams@0.2.12", "[resource-drop]output-stream", "(param i32)"),
    ("wasi:random/random@0.2.12", "get-random-bytes", "(param i64 i32)"),
    ("wasi:random/random@0.2.12", "get-random-u64", "(result i64)"),
    ("wasi:random/insecure@0.2.12", "get-insecure-random-bytes", "(param i64 i32)"),
    ("wasi:random/insecure@0.2.12", "get-insecure-random-u64", "(result i64)"),
    ("wasi:random/insecure-seed@0.2.12", "insecure-seed", "(param i32)"),
    ("wasi:filesystem/preopens@0.2.3", "get-directories", "(param i32)"),
    ("wasi:sockets/instance-network@0.2.3", "instance-network", "(result i32)"),
    ("wasi:sockets/tcp-create-socket@0.2.3", "create-tcp-socket", "(param i32 i32)"),
    ("wasi:http/types@0.2.3", "[constructor]fields", "(result i32)"),
    ("wasi:http/types@0.2.3", "read", "(param i32)"),
];

/// Returns the name of a function in a guest's text.
pub(super) fn name(interface: &str, function: &str) -> String {
    let interface = interface.split('@').next().unwrap();
    format!("${interface}.{}", function.replace(['[', ']'], "."))
}

/// Returns the world that has all of these functions.
pub(super) fn world(resolve: &mut Resolve) -> WorldId {
    let served = Path::new(env!("CARGO_MANIFEST_DIR")).join("wit/wasi.wit");
    resolve.push_file(&served).unwrap();
    let package = resolve.push_str("refused.wit", REFUSED).unwrap();
    resolve.select_world(&[package], Some("all")).unwrap()
}

/// Writes a text to `stdout` or `stderr`. The text must be short.
pub(crate) fn prints(stream: &str, text: &str) -> String {
    let bytes: String = (640..)
        .zip(text.bytes())
        .map(|(at, byte)| format!("(i32.store8 (i32.const {at}) (i32.const {byte}))"))
        .collect();
    format!(
        "{bytes} (call $wasi:io/streams..method.output-stream.blocking-write-and-flush \
         (call $wasi:cli/{stream}.get-{stream}) (i32.const 640) (i32.const {}) (i32.const 512))",
        text.len()
    )
}
