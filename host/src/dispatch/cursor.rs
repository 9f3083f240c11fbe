//! Cursors of pages: where the next page of a list begins.
//!
//! A page may end at an object that the plugin may not read. The cursor of such a page is sealed, so that it does not
//! name the object. Every other cursor is the key itself.
//!
//! Sealed cursors are valid as long as this process runs, because its secret is random. The key is masked by a
//! keystream of SHA-256 over the secret and a tag. The tag is SHA-256 over the secret and the key, so a changed cursor
//! does not open.

use std::{
    fmt::Write as _,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

use pilothouse_core::key::Key;
use sha2::{Digest, Sha256};

/// Prefix of sealed cursors. No key begins with it, as its namespace would be empty.
const SEALED: &str = "//";

/// Bytes of the tag.
const TAG: usize = 16;

static SECRET: LazyLock<[u8; 32]> = LazyLock::new(|| {
    let mut secret = [0; 32];
    for (at, word) in secret.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&RandomState::new().hash_one(at).to_le_bytes());
    }
    secret
});

/// Returns a cursor that does not show the key.
pub(super) fn seal(key: &Key) -> String {
    let text = key.to_string();
    let tag = tag(text.as_bytes());
    let mut cursor = SEALED.to_owned();
    for byte in tag.iter().copied().chain(mask(&tag, text.as_bytes())) {
        let _ = write!(cursor, "{byte:02x}");
    }
    cursor
}

/// Returns the key of a cursor. `None`: it is not a cursor.
pub(super) fn open(cursor: &str) -> Option<Key> {
    let Some(sealed) = cursor.strip_prefix(SEALED) else { return key(cursor) };
    let digits: Vec<u8> = sealed.chars().map(|digit| digit.to_digit(16)?.try_into().ok()).collect::<Option<_>>()?;
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
    let (sealed_tag, text) = bytes.split_first_chunk::<TAG>()?;
    let text: Vec<u8> = mask(sealed_tag, text).collect();
    if tag(&text) != *sealed_tag {
        return None;
    }
    key(std::str::from_utf8(&text).ok()?)
}

fn key(text: &str) -> Option<Key> {
    let (namespace, name) = text.split_once('/').map_or((None, text), |(namespace, name)| (Some(namespace), name));
    let is_one = !name.is_empty() && !name.contains('/') && namespace != Some("");
    is_one.then(|| Key::new(namespace, name))
}

fn tag(text: &[u8]) -> [u8; TAG] {
    let digest = Sha256::new().chain_update(*SECRET).chain_update([0_u8]).chain_update(text).finalize();
    *digest.first_chunk().expect("a digest is longer")
}

/// Masks a text, or unmasks it.
fn mask<'a>(nonce: &'a [u8; TAG], text: &'a [u8]) -> impl Iterator<Item = u8> + 'a {
    text.chunks(32).zip(0_u64..).flat_map(move |(chunk, block)| {
        let hash = Sha256::new().chain_update(*SECRET).chain_update([1_u8]).chain_update(nonce);
        let stream = hash.chain_update(block.to_le_bytes()).finalize();
        chunk.iter().zip(stream).map(|(byte, mask)| byte ^ mask).collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_cursor_opens_and_does_not_show_the_key() {
        let long = "a".repeat(253);
        for key in [Key::new(Some("kube-system"), "root-token"), Key::new(None, "node"), Key::new(Some("n"), &long)] {
            let cursor = seal(&key);
            assert!(!cursor.contains(&*key.name), "{cursor}");
            assert_eq!(open(&cursor), Some(key.clone()));
            assert_eq!(open(&key.to_string()), Some(key));
            let mut other = cursor.clone();
            other.replace_range(2..3, if cursor[2..].starts_with('0') { "1" } else { "0" });
            assert_eq!(open(&other), None);
            assert_eq!(open(&cursor[..cursor.len() - 1]), None);
        }
        for wrong in ["", "/", "//", "//00", "a/", "/a", "a/b/c", "//zz", "//ä"] {
            assert_eq!(open(wrong), None, "{wrong:?}");
        }
    }
}
