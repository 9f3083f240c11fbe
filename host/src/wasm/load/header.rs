//! Reads what kind of file a plugin's file is.

use super::{super::MAX_FILE, error::LoadError};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Module,
    Component,
}

/// Reads the first eight bytes of a binary: `\0asm`, version, layer, both little-endian.
pub(crate) fn header(file: &[u8]) -> Result<Layer, LoadError> {
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

/// Quotes the first bytes, and names file types that are often mistaken for plugins.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_shows_the_kind_of_a_file() {
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
}
