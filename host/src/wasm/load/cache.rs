//! Keeps compiled code on disk, so that a file is not compiled at every start.
//!
//! ```text
//! <dir>/                         mode 0700, owned by the host's user; nobody else may write to it
//!   <key>.cwasm                  0600; code │ 8 bytes: magic │ 32 bytes: SHA-256 of key and code
//!   pilothouse-tmp-……            being written, locked by its writer
//!   <digest>-<tier>.compiling    0600; a compilation that runs, or ended with the host: see `attempt.rs`
//! ```
//!
//! The key is a digest of the plugin's file and of everything that shapes its code. So an entry is either right or
//! missing, and nothing is ever invalidated.
//!
//! Code is mapped and run as it lies on disk, and the engine does not notice a damaged byte. Therefore the directory
//! must belong to the host alone, and a file's checksum is verified each time it is opened. Read access reveals only
//! what the plugin's file reveals.
//!
//! Somebody with write access to a parent directory, such as the volume of a pod, can replace the directory. That gains
//! nothing: the host uses a file only if it belongs to the host's user and nobody else may write to it, or if it is the
//! one just written.
//!
//! # Guarantees
//! - **Files appear whole**: a file is written under another name, synced, and renamed. The next start removes what a
//!   killed process left.
//! - **Hosts may share a directory**: a file that one host removes stays valid for another that has it open.
//! - **Bounded size**: files in use, and others up to the bound. The least recently used files are removed first.

use std::{
    collections::HashSet,
    fmt,
    fs::{self, DirBuilder, File, TryLockError},
    hash::{Hash, Hasher},
    io::{self, Read as _, Seek as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use super::{attempt, digest::Digest};

/// Version of the files' format, of the conversion of core modules, and of the rules for components. Increase it when
/// one of them changes, for example with a new version of wit-component. The engine's settings and version are part of
/// the key anyway.
const FORMAT: u32 = 4;

/// Magic bytes before the checksum.
const MARK: [u8; 8] = *b"phcode\0\x01";

/// Bytes that follow the compiler's output in a file.
pub(crate) const SEAL: usize = MARK.len() + 32;

/// Upper bound of a cache directory in bytes: about 500 plugins in Rust, or 30 with an embedded interpreter.
pub const CACHE_BYTES: u64 = 1 << 30;

/// Prefix of files that are being written. The directory may hold files of others.
const TEMPORARY: &str = "pilothouse-tmp-";
/// Suffix of files with code.
const CODE: &str = ".cwasm";

/// Why a directory cannot hold compiled code.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// It cannot be created or read.
    #[error("cannot use {} for compiled code", .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// It is not a directory.
    #[error("{} is not a directory", .0.display())]
    Directory(PathBuf),
    /// Its owner could place code there that this host runs.
    #[error("{} belongs to user {owner}, and this host runs as user {user}: choose another directory", dir.display())]
    Owner {
        /// The directory.
        dir: PathBuf,
        /// The owner's user id.
        owner: u32,
        /// The host's user id.
        user: u32,
    },
    /// Others may write to it, and could place code there that this host runs.
    #[error(
        "other users than the owner may write to {} (mode {mode:04o}): make it 0700, or choose a directory below it, which the host creates",
        dir.display()
    )]
    Mode {
        /// The directory.
        dir: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Why a cached file is not used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Damage {
    #[error("another user may have written it")]
    Foreign,
    #[error("it is incomplete")]
    Short,
    #[error("its checksum does not match")]
    Checksum,
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

/// The name of one component's code under one engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// Creates the key of a plugin's file under an engine.
    pub(crate) fn new(engine: &wasmtime::Engine, file: Digest) -> Self {
        let mut hash = Hashing(Sha256::new());
        (FORMAT, env!("CARGO_PKG_VERSION")).hash(&mut hash);
        engine.precompile_compatibility_hash().hash(&mut hash);
        file.hash(&mut hash);
        Self(hash.0.finalize().into())
    }

    fn file_name(&self) -> String {
        format!("{self}{CODE}")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// SHA-256 as a hasher: the standard hasher is not stable enough for disk.
struct Hashing(Sha256);

impl Hasher for Hashing {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest: [u8; 32] = self.0.clone().finalize().into();
        digest.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
    }
}

/// Returns the bytes that follow `code` in a file.
pub(crate) fn seal(key: &Key, code: &[u8]) -> [u8; SEAL] {
    sealed(Sha256::new_with_prefix(key.0).chain_update(code))
}

fn sealed(hash: Sha256) -> [u8; SEAL] {
    let mut seal = [0; SEAL];
    let (mark, sum) = seal.split_at_mut(MARK.len());
    mark.copy_from_slice(&MARK);
    sum.copy_from_slice(&hash.finalize());
    seal
}

/// Checks that a file holds the whole code of `key`.
pub(crate) fn verify(file: &File, key: &Key) -> Result<(), Damage> {
    let unreadable = |error: io::Error| Damage::Unreadable(error.to_string());
    let mut file = file;
    file.rewind().map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let code = length.checked_sub(SEAL as u64).ok_or(Damage::Short)?;
    let mut hash = Sha256::new_with_prefix(key.0);
    let mut part = vec![0; 128 << 10];
    let mut left = code;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(part.len());
        let read = file.read(part.get_mut(..most).unwrap_or_default()).map_err(unreadable)?;
        if read == 0 {
            return Err(Damage::Short);
        }
        hash.update(part.get(..read).unwrap_or_default());
        left -= read as u64;
    }
    let mut seal = [0; SEAL];
    file.read_exact(&mut seal).map_err(|_| Damage::Short)?;
    if !seal.starts_with(&MARK) {
        return Err(Damage::Short);
    }
    if seal == sealed(hash) { Ok(()) } else { Err(Damage::Checksum) }
}

/// A directory of compiled code.
#[derive(Debug)]
pub struct Cache {
    dir: PathBuf,
    /// Bound in bytes of all files together.
    most: u64,
}

impl Cache {
    /// Opens `dir`, or creates it. Removes the unfinished files of killed processes.
    ///
    /// # Errors
    /// If the directory cannot be used, or if others may write to it.
    pub fn open(dir: &Path, most: u64) -> Result<Self, CacheError> {
        let io = |error| CacheError::Io(dir.to_owned(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
        let data = fs::metadata(dir).map_err(io)?;
        let user = rustix::process::geteuid().as_raw();
        if !data.is_dir() {
            return Err(CacheError::Directory(dir.to_owned()));
        }
        if data.uid() != user {
            return Err(CacheError::Owner { dir: dir.to_owned(), owner: data.uid(), user });
        }
        if data.mode() & 0o022 != 0 {
            return Err(CacheError::Mode { dir: dir.to_owned(), mode: data.mode() & 0o7777 });
        }
        let cache = Self { dir: dir.to_owned(), most };
        cache.sweep().map_err(io)?;
        attempt::sweep(dir, SystemTime::now()).map_err(io)?;
        Ok(cache)
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the verified code of `key`, or `None` if there is none. A damaged file is removed.
    pub(crate) fn find(&self, key: &Key) -> Result<Option<File>, Damage> {
        let path = self.dir.join(key.file_name());
        let unreadable = |error: io::Error| Damage::Unreadable(error.to_string());
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        };
        let data = file.metadata().map_err(unreadable)?;
        let ours = data.is_file() && data.uid() == rustix::process::geteuid().as_raw() && data.mode() & 0o022 == 0;
        match if ours { verify(&file, key) } else { Err(Damage::Foreign) } {
            Ok(()) => {
                // Records the last use. If that fails, the file is only removed earlier.
                let _ = file.set_modified(SystemTime::now());
                Ok(Some(file))
            }
            Err(damage) => {
                // If it cannot be removed, the new compilation replaces it.
                let _ = fs::remove_file(&path);
                Err(damage)
            }
        }
    }

    /// Creates a temporary file. Dropped, it is removed.
    pub(crate) fn begin(&self) -> io::Result<NamedTempFile> {
        loop {
            // The crate creates temporary files with mode 0600.
            let file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.dir)?;
            // Another starting host may have removed it before it was locked.
            match file.as_file().try_lock() {
                Ok(()) if file.as_file().metadata()?.nlink() > 0 => return Ok(file),
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// Renames the file to its key. Removes the least recently used files beyond the bound, but none of `used`.
    ///
    /// # Errors
    /// If the file system fails. The open file stays valid.
    pub(crate) fn keep(&self, key: &Key, file: NamedTempFile, used: &HashSet<Key>) -> io::Result<()> {
        let kept = file.persist(self.dir.join(key.file_name())).map_err(|error| error.error)?;
        drop(kept);
        let mut used: HashSet<String> = used.iter().map(Key::file_name).collect();
        used.insert(key.file_name());
        self.shrink(&used)
    }

    fn shrink(&self, used: &HashSet<String>) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // An entry without metadata was removed by another host.
            if let (true, Ok(data)) = (is_code(&name), entry.metadata()) {
                files.push((data.modified().unwrap_or(SystemTime::UNIX_EPOCH), data.len(), name));
            }
        }
        files.sort();
        let mut all: u64 = files.iter().map(|(_, length, _)| length).sum();
        for (_, length, name) in files {
            if all <= self.most {
                break;
            }
            if !used.contains(&name) {
                let _ = fs::remove_file(self.dir.join(name));
                all -= length;
            }
        }
        Ok(())
    }

    /// Removes temporary files without a writer. A process that ends releases its locks.
    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                continue;
            }
            let Ok(file) = File::open(entry.path()) else { continue };
            if file.try_lock().is_ok() {
                // Removed while locked: otherwise its new writer could take the lock in between.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// Returns `true` if the file is the host's. Other files are never removed.
fn is_code(name: &str) -> bool {
    let key = name.strip_suffix(CODE).unwrap_or_default();
    key.len() == 2 * size_of::<Key>() && key.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
