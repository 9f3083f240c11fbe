//! Looks at a directory, and compares it with the look before.
//!
//! File access blocks. [`super::source`] decides when to look.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use super::change::{Change, Found, Problem, SettingsFile};
use crate::{
    name::PluginName,
    wasm::{Digest, MAX_FILE, PluginFile},
};

/// Time after which a missing file counts as removed. Replacing a file by hand leaves a gap: `rm`, then `cp`, or a
/// linker that deletes its output first.
pub(super) const GAP: Duration = Duration::from_millis(500);

/// Age up to which a file is read again at the next look. Two changes within one tick of the file system's clock (4 ms
/// on Linux, 2 s on FAT) have the same time. A file's time may also lie ahead of the system's clock. So a file that has
/// been the same for this long, by a monotonic clock, is not read again.
const FRESH: Duration = Duration::from_secs(2);

/// Upper bound for settings, in bytes. The largest object that Kubernetes stores has 1.5 MiB.
const MAX_SETTINGS: usize = 2 << 20;

/// The directory that a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Folder {
    device: u64,
    inode: u64,
}

impl Folder {
    pub(super) fn at(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok().filter(Metadata::is_dir)?;
        Some(Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// A directory as the last look found it.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// The system's clock. Files' times are compared with it.
    clock: fn() -> SystemTime,
    plugins: BTreeMap<PluginName, Known>,
    problems: Option<Vec<Problem>>,
}

/// The result of a look.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) changes: Vec<Change>,
    /// Time after which to look again, at the latest.
    pub(super) again: Option<Duration>,
}

impl Looked {
    fn again_in(&mut self, wait: Duration) {
        self.again = Some(self.again.map_or(wait, |again| again.min(wait)));
    }
}

/// A plugin as it was reported.
#[derive(Debug)]
struct Known {
    wasm: Seen,
    yaml: Option<Seen>,
    digest: Digest,
    settings: SettingsFile,
    missing_since: Option<Instant>,
    /// Since when the file with the known settings is missing.
    settings_missing_since: Option<Instant>,
}

/// A file's stamp, and since when the file has had it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    stamp: Stamp,
    since: Instant,
}

impl Seen {
    /// Compares a file's stamp with the one of the look before.
    fn new(stamp: Stamp, before: Option<&Self>, now: Instant) -> Self {
        match before.filter(|before| before.stamp.is_of_same_file(&stamp)) {
            Some(before) => {
                let fresh = stamp.fresh && now.saturating_duration_since(before.since) < FRESH;
                Self { stamp: Stamp { fresh, ..stamp }, since: before.since }
            }
            None => Self { stamp, since: now },
        }
    }
}

/// What changes with a file's content, and can be seen without reading the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// `true` if the file changed so shortly before it was read that it may have changed again within the same tick.
    fresh: bool,
}

impl Stamp {
    /// `now` is the system's clock.
    fn of(metadata: &Metadata, now: SystemTime) -> Self {
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        let at = u64::try_from(changed.0).ok().and_then(|s| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(s)));
        let age = at.and_then(|at| now.duration_since(at).ok());
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed,
            fresh: age.is_none_or(|age| age <= FRESH),
        }
    }

    /// `true` if the file is surely the one that was read.
    fn holds(&self, path: &Path) -> bool {
        let is_same = |metadata: Metadata| Self::of(&metadata, SystemTime::UNIX_EPOCH).is_of_same_file(self);
        !self.fresh && fs::metadata(path).is_ok_and(is_same)
    }

    /// `true` if two stamps differ in nothing but `fresh`.
    fn is_of_same_file(&self, other: &Self) -> bool {
        Self { fresh: false, ..self.clone() } == Self { fresh: false, ..other.clone() }
    }
}

impl Directory {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, clock: SystemTime::now, plugins: BTreeMap::new(), problems: None }
    }

    /// Looks at the directory, and returns what changed since the look before. `now` is monotonic.
    pub(super) fn look(&mut self, now: Instant) -> Looked {
        let mut problems = Vec::new();
        let mut looked = Looked { changes: Vec::new(), again: None };
        match self.names(&mut problems) {
            Ok(names) => {
                for (name, stem) in &names {
                    self.look_at(name, stem, now, &mut looked, &mut problems);
                }
                self.sweep(&names, now, &mut looked);
            }
            Err(error) => {
                let message = match error.kind() {
                    io::ErrorKind::NotFound => "the directory does not exist".to_owned(),
                    io::ErrorKind::NotADirectory => "is not a directory".to_owned(),
                    _ => format!("cannot read the directory: {error}"),
                };
                problems.push(Problem { path: self.path.clone(), message });
            }
        }
        if self.problems.as_ref() != Some(&problems) {
            self.problems = Some(problems.clone());
            looked.changes.push(Change::Looked(problems));
        }
        looked
    }

    /// Returns the plugins that have a file, with the stem of its name.
    fn names(&self, problems: &mut Vec<Problem>) -> io::Result<BTreeMap<PluginName, String>> {
        let mut names = BTreeMap::<PluginName, String>::new();
        let mut misnamed = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let file = entry?.file_name();
            match kind(&file) {
                Kind::Plugin(stem, Ok(name)) => {
                    let passed_over = match names.get(&name) {
                        // Of two files of one plugin, the one that has its name counts, else the first in order.
                        Some(other) if rank(&name, other) < rank(&name, &stem) => Some(stem),
                        _ => names.insert(name.clone(), stem),
                    };
                    if let Some(stem) = passed_over {
                        misnamed.push((name, format!("{stem}.wasm")));
                    }
                }
                Kind::Plugin(stem, Err(message)) => {
                    let remedy = PluginName::suggested(&stem).map_or_else(
                        || "rename the file".to_owned(),
                        |name| format!("rename the file and its settings: mv '{stem}.wasm' {name}.wasm"),
                    );
                    problems.push(Problem { path: self.path.join(&file), message: format!("{message}: {remedy}") });
                }
                Kind::Yml(name) => misnamed.push((name, file.to_string_lossy().into_owned())),
                Kind::Other => {}
            }
        }
        for (name, file) in misnamed {
            let Some(stem) = names.get(&name) else { continue };
            let message = if file.ends_with(".wasm") {
                format!("is not read: plugin {name} is read from {stem}.wasm; remove one of the two")
            } else {
                format!("is not read: the settings of plugin {name} belong into {stem}.yaml")
            };
            problems.push(Problem { path: self.path.join(&file), message });
        }
        // The order of a directory's entries is arbitrary.
        problems.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(names)
    }

    /// Returns the path of a plugin's settings: beside its file under the same stem, or else under the plugin's name.
    fn settings_of(&self, name: &PluginName, stem: &str) -> PathBuf {
        let [beside, named] = [stem, name.as_str()].map(|stem| self.path.join(format!("{stem}.yaml")));
        if is_missing(&beside) { named } else { beside }
    }

    fn look_at(
        &mut self,
        name: &PluginName,
        stem: &str,
        now: Instant,
        looked: &mut Looked,
        problems: &mut Vec<Problem>,
    ) {
        let (wasm, yaml) = (self.path.join(format!("{stem}.wasm")), self.settings_of(name, stem));
        if let Some(known) = self.plugins.get_mut(name) {
            known.missing_since = None;
            let yaml_holds = match &known.yaml {
                Some(seen) => seen.stamp.holds(&yaml),
                None => matches!(known.settings, SettingsFile::Missing) && is_missing(&yaml),
            };
            if yaml_holds && known.wasm.stamp.holds(&wasm) {
                return;
            }
        }
        let clock = (self.clock)();
        let (bytes, stamp) = match read(&wasm, MAX_FILE, clock) {
            Ok(read) => read,
            // It was removed since the directory was read. The next look reports that.
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&wasm).is_err() => return,
            Err(error) => {
                problems.push(Problem { path: wasm, message: format!("cannot read the plugin: {error}") });
                return;
            }
        };
        let (settings, yaml) = match read(&yaml, MAX_SETTINGS, clock) {
            Ok((text, stamp)) => match String::from_utf8(text) {
                Ok(text) => (SettingsFile::Text(text.into()), Some(stamp)),
                Err(_) => (SettingsFile::Unreadable("is not UTF-8 text".to_owned()), Some(stamp)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => (SettingsFile::Missing, None),
            Err(error) => (SettingsFile::Unreadable(error.to_string()), None),
        };
        let before = self.plugins.get(name);
        let yaml = yaml.map(|stamp| Seen::new(stamp, before.and_then(|before| before.yaml.as_ref()), now));
        let wasm = Seen::new(stamp, before.map(|before| &before.wasm), now);
        let (mut settings, mut yaml, mut settings_missing_since) = (settings, yaml, None);
        if let (Some(before), SettingsFile::Missing) = (before, &settings)
            && before.settings != SettingsFile::Missing
        {
            // A plugin keeps its grants for the moment in which the file is replaced.
            let since = before.settings_missing_since.unwrap_or(now);
            let missing = now.saturating_duration_since(since);
            if missing < GAP {
                looked.again_in(GAP - missing);
                (settings, yaml) = (before.settings.clone(), before.yaml.clone());
                settings_missing_since = Some(since);
            }
        }
        let file = PluginFile::new(bytes);
        let digest = file.digest();
        let known =
            Known { wasm, yaml, digest, settings: settings.clone(), missing_since: None, settings_missing_since };
        let before = self.plugins.insert(name.clone(), known);
        if before.is_none_or(|before| before.digest != digest || before.settings != settings) {
            let found = Found { name: name.clone(), wasm: file.into(), digest, settings };
            looked.changes.push(Change::Found(Arc::new(found)));
        }
    }

    /// Reports and forgets plugins whose file has been missing for [`GAP`].
    fn sweep(&mut self, present: &BTreeMap<PluginName, String>, now: Instant, looked: &mut Looked) {
        self.plugins.retain(|name, known| {
            if present.contains_key(name) {
                return true;
            }
            let missing = now.saturating_duration_since(*known.missing_since.get_or_insert(now));
            if missing >= GAP {
                looked.changes.push(Change::Removed(name.clone()));
                return false;
            }
            looked.again_in(GAP - missing);
            true
        });
    }
}

/// What a file is, by its name.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// A name that ends in `.wasm`: its stem, and the plugin's name or what is wrong with it.
    Plugin(String, Result<PluginName, String>),
    /// `<name>.yml`.
    Yml(PluginName),
    Other,
}

fn kind(file: &OsStr) -> Kind {
    let text = file.to_string_lossy();
    // Editors and ConfigMap volumes keep such files (`.myapple.wasm.swp`, `..data`).
    if text.starts_with('.') {
        return Kind::Other;
    }
    if let Some(stem) = text.strip_suffix(".wasm") {
        // A path that is not UTF-8 cannot be opened by its lossy text.
        let name = if file.to_str().is_some() {
            PluginName::of_file(stem).map_err(|error| error.to_string())
        } else {
            Err("the file's name is not UTF-8 text".to_owned())
        };
        return Kind::Plugin(stem.to_owned(), name);
    }
    match text.strip_suffix(".yml").map(PluginName::of_file) {
        Some(Ok(name)) => Kind::Yml(name),
        _ => Kind::Other,
    }
}

/// Sorts the files of one plugin: the first one counts.
fn rank<'a>(name: &PluginName, stem: &'a str) -> (bool, &'a str) {
    (stem != name.as_str(), stem)
}

fn is_missing(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Reads a file, and returns its content with the stamp of that content.
fn read(path: &Path, max: usize, clock: SystemTime) -> io::Result<(Vec<u8>, Stamp)> {
    let metadata = fs::metadata(path)?;
    // Opening a pipe would block until somebody writes.
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let limit = u64::try_from(max).unwrap_or(u64::MAX);
    let large = || io::Error::other(format!("it has more than the {max} bytes that are allowed"));
    if metadata.len() > limit {
        return Err(large());
    }
    let mut file = File::open(path)?;
    let before = Stamp::of(&file.metadata()?, clock);
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(max).saturating_add(1));
    file.by_ref().take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(large());
    }
    let after = Stamp::of(&file.metadata()?, clock);
    // A file that was written while it was read is read again at the next look.
    let fresh = before.fresh || after != before;
    Ok((bytes, Stamp { fresh, ..before }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use super::*;

    #[test]
    fn a_file_from_the_future_is_read_until_it_has_been_the_same_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let (wasm, yaml) = (dir.path().join("a.wasm"), dir.path().join("a.yaml"));
        fs::write(&wasm, "code").unwrap();
        fs::write(&yaml, "enabled: true\n").unwrap();
        let an_hour_ago = || SystemTime::now() - Duration::from_secs(3600);
        let mut directory = Directory { clock: an_hour_ago, ..Directory::new(dir.path().to_owned()) };
        let is_read_again = |directory: &Directory| {
            let known = &directory.plugins[&PluginName::new("a").unwrap()];
            let yaml_holds = known.yaml.as_ref().is_some_and(|seen| seen.stamp.holds(&yaml));
            (!known.wasm.stamp.holds(&wasm), !yaml_holds)
        };
        let start = Instant::now();
        directory.look(start);
        assert_eq!(is_read_again(&directory), (true, true));
        directory.look(start + FRESH / 2);
        assert_eq!(is_read_again(&directory), (true, true));
        directory.look(start + FRESH);
        assert_eq!(is_read_again(&directory), (false, false));

        fs::write(&wasm, "other code").unwrap();
        let looked = directory.look(start + FRESH * 2);
        assert!(matches!(*looked.changes, [Change::Found(_)]), "{looked:?}");
        assert_eq!(is_read_again(&directory), (true, false));
    }

    #[test]
    fn settings_that_are_away_for_a_moment_stay_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let (wasm, yaml) = (dir.path().join("a.wasm"), dir.path().join("a.yaml"));
        fs::write(&wasm, "code").unwrap();
        fs::write(&yaml, "enabled: true\n").unwrap();
        let mut directory = Directory::new(dir.path().to_owned());
        let start = Instant::now();
        let found = |looked: &Looked| match &*looked.changes {
            [Change::Found(found)] => Some(found.settings.clone()),
            _ => None,
        };
        directory.look(start);

        fs::remove_file(&yaml).unwrap();
        let looked = directory.look(start + Duration::from_secs(1));
        assert_eq!((looked.changes.len(), looked.again), (0, Some(GAP)));
        // A new plugin's file in between does not make it one without settings.
        fs::write(&wasm, "other code").unwrap();
        let looked = directory.look(start + Duration::from_secs(1) + GAP / 2);
        assert_eq!(found(&looked), Some(SettingsFile::Text("enabled: true\n".into())));
        assert_eq!(looked.again, Some(GAP / 2));
        fs::write(&yaml, "enabled: false\n").unwrap();
        let looked = directory.look(start + Duration::from_secs(1) + GAP / 2);
        assert_eq!(found(&looked), Some(SettingsFile::Text("enabled: false\n".into())));

        fs::remove_file(&yaml).unwrap();
        directory.look(start + Duration::from_secs(5));
        let looked = directory.look(start + Duration::from_secs(5) + GAP);
        assert_eq!(found(&looked), Some(SettingsFile::Missing));
    }
}
