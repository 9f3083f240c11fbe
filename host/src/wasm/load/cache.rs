//! Compiled code on disk, so that a file is compiled once and not at every start.
//!
//! ```text
//! <dir>/                         made 0700, of the user that the host runs as; nobody else may write to it
//!   <key>.cwasm                  0600; code │ 8 bytes: what this is │ 32 bytes: SHA-256 of key and code
//!   pilothouse-tmp-……            being written, locked by who writes it
//!   <digest>-<tier>.compiling    0600; a file that is being compiled, or was when the host ended: see `attempt.rs`
//! ```
//!
//! The key is a digest of the plugin's file and of all that shapes its code: so a file is right or not there, and nothing has to be
//! invalidated. Code is mapped and run as it lies there, and the engine does not notice a damaged byte of it. That is why the
//! directory must be the host's alone, and why each file is read through and compared with its checksum once, when it is opened. Who may
//! only read it learns what a plugin's file says anyway, and changes nothing.
//!
//! Whoever may write to a directory above, as to the volume of a pod, can put another in this one's place. It gains nothing: a file is used
//! only if it belongs to this user, who alone may write to it, or if it is the very one that was just written.
//!
//! # Guarantees
//! - A file appears as a whole: it is written under another name, synced, and renamed. What a killed process leaves is removed at
//!   the next start, and not while its writer lives.
//! - Hosts may share a directory. A file that one removes stays what it is for another that has it open.
//! - Together the files take no more than the bound, and those that this process uses. The longest unused go first.

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

/// The form of the files, how a core module becomes a component, and what a component may hold: counted up where one of them changes, by
/// a new version of wit-component for one. Settings and version of the engine are in the key of their own accord.
const FORMAT: u32 = 3;

/// What a file ends with, before its checksum.
const MARK: [u8; 8] = *b"phcode\0\x01";

/// Bytes of a file that follow what the compiler wrote.
pub(crate) const SEAL: usize = MARK.len() + 32;

/// What the files of a directory take together, in bytes: five hundred plugins in Rust, or thirty with an interpreter inside.
pub const CACHE_BYTES: u64 = 1 << 30;

/// Names of files that are being written begin so. Others may have files in the directory.
const TEMPORARY: &str = "pilothouse-tmp-";
/// Names of the others end so.
const CODE: &str = ".cwasm";

/// Why a directory cannot hold compiled code.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Neither there nor to be made, or not to be read.
    #[error("cannot use {} for compiled code", .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// Something else of that name.
    #[error("{} is no directory", .0.display())]
    Directory(PathBuf),
    /// Who owns it could put code there that this host runs.
    #[error("{} belongs to user {owner}, and this host runs as user {user}: choose a directory of its own", dir.display())]
    Owner {
        /// The directory.
        dir: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        user: u32,
    },
    /// Who may write to it could put code there that this host runs.
    #[error(
        "{} may be written by others than its owner (mode {mode:04o}): make it 0700, or choose a directory below it, which the host makes itself",
        dir.display()
    )]
    Mode {
        /// The directory.
        dir: PathBuf,
        /// Its permissions.
        mode: u32,
    },
}

/// Why a file of the directory is not used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Damage {
    #[error("others than this host may have written it")]
    Foreign,
    #[error("it is incomplete")]
    Short,
    #[error("its checksum is another")]
    Checksum,
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

/// The name of one component's code under one engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// Of a plugin's file under an engine.
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

/// SHA-256 for whoever can be hashed: the standard hasher is not meant to be kept on disk.
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

/// What is to follow `code` in a file.
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

/// Reads a file through: is it the whole code of `key`?
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
    /// Bytes of all files together.
    most: u64,
}

impl Cache {
    /// Takes `dir`, which is made where it is not there. Removes what killed processes left unfinished in it.
    ///
    /// # Errors
    /// If it cannot be used, or somebody else may write to it.
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

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The code of `key`, verified; none where it is not there. A file that will not do is removed.
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
                // The time it was used last, for who removes the oldest. Without it, it only goes too early.
                let _ = file.set_modified(SystemTime::now());
                Ok(Some(file))
            }
            Err(damage) => {
                // Compiled anew it takes this one's place, even if it cannot be removed.
                let _ = fs::remove_file(&path);
                Err(damage)
            }
        }
    }

    /// A new file, for this process alone. Dropped, it is gone.
    pub(crate) fn begin(&self) -> io::Result<NamedTempFile> {
        loop {
            // 0600 is how temporary files are made.
            let file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.dir)?;
            // Another host that starts may have seen it before it was locked, and have removed it.
            match file.as_file().try_lock() {
                Ok(()) if file.as_file().metadata()?.nlink() > 0 => return Ok(file),
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// Gives the file its name: from now on it is found. Removes the longest unused files beyond the bound, but none of `used`.
    ///
    /// # Errors
    /// If the file system refuses. The file is as good as before, for who has it open.
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
            // Who is gone meanwhile was removed by another host.
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

    /// Removes what nobody writes any more: a process that ends lets go of its locks, however it ends.
    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                continue;
            }
            let Ok(file) = File::open(entry.path()) else { continue };
            if file.try_lock().is_ok() {
                // Still locked: who has just made it would take it for its own otherwise.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// Whether a file of that name is the host's: nobody else's is removed.
fn is_code(name: &str) -> bool {
    let key = name.strip_suffix(CODE).unwrap_or_default();
    key.len() == 2 * size_of::<Key>() && key.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
