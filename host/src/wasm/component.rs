//! From a file's bytes to a component that fits the contract.
//!
//! ```text
//! bytes ─ header ─┬─ component ────────────────┬─ child ─► Compiled ─ imports, export, types ─► Linked
//!                 └─ core module ─ componentise ┘
//! ```
//!
//! The file may be anything: each way in which it is no plugin has an error that says so.

use std::sync::{Arc, Weak};

use super::{
    Digest, Engine, MAX_FILE,
    code::{Code, Ready},
    error::LoadError,
};

/// The contract's package, as `wit/` names it.
pub(super) const PACKAGE: &str = "pilothouse:plugin@0.1.0";
/// The interfaces of it that a plugin may import (`types` has no functions).
pub(super) const OFFERED: [&str; 5] = ["cache", "client", "clock", "log", "types"];
/// What a plugin must export.
pub(super) const EXPORT: &str = "pilothouse:plugin/controller@0.1.0";
/// What it may export besides: from changed objects to keys.
pub(super) const MAPPER: &str = "pilothouse:plugin/mapper@0.1.0";
/// What it may export besides: to be told of changes.
pub(super) const OBSERVER: &str = "pilothouse:plugin/observer@0.1.0";

/// A plugin's file, compiled.
#[derive(Clone)]
pub struct Compiled {
    engine: Engine,
    code: Arc<Code>,
    digest: Digest,
    size: usize,
}

/// A compiled plugin whose imports and exports fit the contract: ready to be instantiated. Clones share it.
///
/// Its code is mapped while it is called now and then; see [`Engine::unmap_idle`].
#[derive(Clone)]
pub struct Linked {
    pub(super) engine: Engine,
    pub(super) code: Arc<Code>,
    digest: Digest,
    size: usize,
    imports: Arc<[String]>,
    exports: Arc<[String]>,
    /// Whether the component exports it.
    pub(super) mapper: bool,
    /// Whether the component exports it.
    pub(super) observer: bool,
}

impl Compiled {
    pub(super) fn new(engine: &Engine, code: Arc<Code>, digest: Digest, size: usize) -> Self {
        Self { engine: engine.clone(), code, digest, size }
    }

    /// The digest of the file.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Its code, for who does not keep it.
    pub(super) fn code(&self) -> Weak<Code> {
        Arc::downgrade(&self.code)
    }

    /// Checks imports and exports against the contract.
    ///
    /// # Errors
    /// If the component imports what is not offered, lacks the export, or has either with other types.
    pub async fn link(&self) -> Result<Linked, LoadError> {
        let ready = self.engine.ready_plain(&self.code).await?;
        let Ready { imports, exports, mapper, observer, .. } = &*ready;
        Ok(Linked {
            engine: self.engine.clone(),
            code: Arc::clone(&self.code),
            digest: self.digest,
            size: self.size,
            // Copies: what stays does not lie among what goes with the code.
            imports: imports.iter().cloned().collect(),
            exports: exports.iter().cloned().collect(),
            mapper: mapper.is_some(),
            observer: observer.is_some(),
        })
    }
}

impl Linked {
    /// The digest of the file.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Bytes of the file.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The component's imports by name, such as `pilothouse:plugin/cache@0.1.0`: the list of its capabilities.
    pub fn imports(&self) -> &[String] {
        &self.imports
    }

    /// The component's exports by name, such as `pilothouse:plugin/controller@0.1.0`.
    pub fn exports(&self) -> &[String] {
        &self.exports
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("digest", &self.digest).field("size", &self.size).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Linked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Linked")
            .field("digest", &self.digest)
            .field("size", &self.size)
            .field("imports", &self.imports)
            .field("exports", &self.exports)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Layer {
    Module,
    Component,
}

/// Reads the eight bytes that every binary begins with: `\0asm`, version, layer, both little-endian.
pub(super) fn header(file: &[u8]) -> Result<Layer, LoadError> {
    const MAGIC: &[u8] = b"\0asm";
    if file.is_empty() {
        return Err(LoadError::Empty);
    }
    if file.len() > MAX_FILE {
        return Err(LoadError::Large(file.len()));
    }
    if !file.starts_with(MAGIC) {
        if MAGIC.starts_with(file) {
            return Err(LoadError::Short(file.len()));
        }
        let text = file.trim_ascii_start();
        if text.starts_with(b"(module") || text.starts_with(b"(component") || text.starts_with(b";;") {
            return Err(LoadError::Text);
        }
        return Err(LoadError::Magic(beginning(file)));
    }
    let Some(&[v0, v1, l0, l1]) = file.get(MAGIC.len()..MAGIC.len() + 4) else {
        return Err(LoadError::Short(file.len()));
    };
    match (u16::from_le_bytes([v0, v1]), u16::from_le_bytes([l0, l1])) {
        (1, 0) => Ok(Layer::Module),
        // The component model's binary format is at version 0x0d until it is final.
        (0x0d, 1) => Ok(Layer::Component),
        (version, layer) => Err(LoadError::Version { version, layer }),
    }
}

/// The first bytes for people, with a word for what is met often.
fn beginning(file: &[u8]) -> String {
    let kind = match file {
        [0x7f, b'E', b'L', b'F', ..] => " (an ELF program)",
        [0x1f, 0x8b, ..] => " (a gzip archive)",
        [b'P', b'K', 3, 4, ..] => " (a zip archive)",
        [b'#', b'!', ..] => " (a script)",
        [b'<', ..] => " (HTML or XML)",
        [b'{', ..] => " (JSON)",
        _ => "",
    };
    let shown = file.get(..8).unwrap_or(file);
    format!("\"{}\"{kind}", shown.escape_ascii())
}

/// Whether `name` is an import that the linker has, or one compatible with it.
pub(super) fn offered(name: &str) -> bool {
    OFFERED.iter().any(|interface| fits(name, interface))
}

/// Whether `name` is `interface` of the contract, in a version compatible with ours: 0.1.x, as the engine's linker sees it.
pub(super) fn fits(name: &str, interface: &str) -> bool {
    name.strip_prefix("pilothouse:plugin/")
        .and_then(|rest| rest.strip_prefix(interface))
        .and_then(|rest| rest.strip_prefix("@0.1."))
        .is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|b| b.is_ascii_digit()))
}

/// What a component without our export has.
pub(super) fn found(exports: &[String]) -> String {
    if let Some(other) = exports.iter().find(|name| name.starts_with("pilothouse:plugin/controller@")) {
        return format!("it was built for another version of the contract, and exports {other}");
    }
    match exports {
        [] => "it exports nothing".to_owned(),
        names => format!("it exports {}", names.join(", ")),
    }
}

/// The causes of an engine's error in one line.
pub(super) fn chain(error: &wasmtime::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_tells_what_a_file_is() {
        let said = |file: &[u8]| header(file).map_err(|e| e.to_string());
        assert_eq!(said(b"\0asm\x01\0\0\0rest"), Ok(Layer::Module));
        assert_eq!(said(b"\0asm\x0d\0\x01\0rest"), Ok(Layer::Component));
        for (file, error) in [
            (&b""[..], "the file is empty"),
            (b"\0as", "the file ends after 3 bytes, within WebAssembly's header: it is incomplete"),
            (b"\0asm\x01\0", "the file ends after 6 bytes, within WebAssembly's header: it is incomplete"),
            (
                b"\0asm\x02\0\0\0",
                "the file is WebAssembly of version 2, layer 0, which this host does not know: it takes components and core \
                 modules",
            ),
            (b"\n  (module)", "the file is WebAssembly text: assemble it first, for example with `wasm-tools parse`"),
            (
                b"\x7fELF\x02\x01\x01\0\0",
                "the file is not WebAssembly: it begins with \"\\x7fELF\\x02\\x01\\x01\\x00\" (an ELF program)",
            ),
            (b"hello\xff", "the file is not WebAssembly: it begins with \"hello\\xff\""),
            (&vec![0; MAX_FILE + 1], "the file has 67108865 bytes, and at most 67108864 are allowed"),
        ] {
            assert_eq!(said(file), Err(error.to_owned()));
        }
    }

    #[test]
    fn only_compatible_versions_of_the_contract_fit() {
        assert!(fits("pilothouse:plugin/cache@0.1.0", "cache"));
        assert!(fits("pilothouse:plugin/cache@0.1.12", "cache"));
        for other in [
            "pilothouse:plugin/cache@0.2.0",
            "pilothouse:plugin/cache@0.1.",
            "pilothouse:plugin/cache@0.1.0-rc",
            "pilothouse:plugin/cache",
            "pilothouse:plugin/caches@0.1.0",
            "wasi:io/cache@0.1.0",
        ] {
            assert!(!fits(other, "cache"), "{other}");
        }
    }
}
