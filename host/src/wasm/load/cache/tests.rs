#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{io::Write as _, os::unix::fs::PermissionsExt as _, sync::Barrier, time::Duration};

use tempfile::TempDir;

use super::*;

struct TempCache {
    above: TempDir,
    engine: wasmtime::Engine,
}

impl TempCache {
    fn new() -> Self {
        Self { above: tempfile::tempdir().unwrap(), engine: wasmtime::Engine::default() }
    }

    fn dir(&self) -> PathBuf {
        self.above.path().join("code")
    }

    fn cache(&self, most: u64) -> Cache {
        Cache::open(&self.dir(), most).unwrap()
    }

    fn key(&self, file: &[u8]) -> Key {
        Key::new(&self.engine, Digest::of(file))
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(self.dir()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Returns the path of the file for `key`.
    fn path(&self, key: &Key) -> PathBuf {
        self.dir().join(key.file_name())
    }
}

fn write(cache: &Cache, key: &Key, code: &[u8]) -> NamedTempFile {
    let mut file = cache.begin().unwrap();
    file.write_all(code).unwrap();
    file.write_all(&seal(key, code)).unwrap();
    file
}

fn keep(cache: &Cache, key: &Key, code: &[u8]) {
    cache.keep(key, write(cache, key, code), &HashSet::new()).unwrap();
}

fn found(cache: &Cache, key: &Key) -> Result<Option<Vec<u8>>, Damage> {
    let Some(mut file) = cache.find(key)? else { return Ok(None) };
    let mut all = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut all).unwrap();
    all.truncate(all.len() - SEAL);
    Ok(Some(all))
}

#[test]
fn kept_code_is_found_by_another_host_under_its_key_alone() {
    let place = TempCache::new();
    let (key, other) = (place.key(b"a"), place.key(b"b"));
    keep(&place.cache(CACHE_BYTES), &key, b"code");
    let cache = place.cache(CACHE_BYTES);
    assert_eq!(found(&cache, &key), Ok(Some(b"code".to_vec())));
    assert_eq!(found(&cache, &other), Ok(None));
    assert_eq!(fs::metadata(place.path(&key)).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(place.dir()).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn key_differs_by_file_and_by_settings_of_the_engine() {
    let mut config = wasmtime::Config::new();
    config.epoch_interruption(true);
    let other = wasmtime::Engine::new(&config).unwrap();
    let place = TempCache::new();
    let digest = Digest::of(b"a");
    assert_eq!(place.key(b"a"), Key::new(&wasmtime::Engine::default(), digest));
    assert_ne!(place.key(b"a"), place.key(b"b"));
    assert_ne!(place.key(b"a"), Key::new(&other, digest));
}

#[test]
fn every_damaged_byte_is_noticed_and_the_file_removed() {
    let place = TempCache::new();
    let (cache, key) = (place.cache(CACHE_BYTES), place.key(b"a"));
    let whole = [b"code".as_slice(), &seal(&key, b"code")].concat();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        keep(&cache, &key, b"");
        fs::write(place.path(&key), &damaged).unwrap();
        assert!(found(&cache, &key).is_err(), "byte {at}");
        assert_eq!(found(&cache, &key), Ok(None), "byte {at}");
    }
}

#[test]
fn file_that_is_cut_or_longer_or_of_another_key_is_noticed() {
    let place = TempCache::new();
    let (cache, key) = (place.cache(CACHE_BYTES), place.key(b"a"));
    let whole = [b"code".as_slice(), &seal(&key, b"code")].concat();
    let foreign = [b"code".as_slice(), &seal(&place.key(b"b"), b"code")].concat();
    let longer = [&whole, b"x".as_slice()].concat();
    let mut wrong: Vec<&[u8]> = (0..whole.len()).map(|end| &whole[..end]).collect();
    wrong.extend([&*foreign, &*longer]);
    for bytes in wrong {
        keep(&cache, &key, b"");
        fs::write(place.path(&key), bytes).unwrap();
        assert!(found(&cache, &key).is_err(), "{} bytes", bytes.len());
    }
}

#[test]
fn file_that_others_may_write_is_not_used() {
    let place = TempCache::new();
    let (cache, key) = (place.cache(CACHE_BYTES), place.key(b"a"));
    keep(&cache, &key, b"code");
    fs::set_permissions(place.path(&key), fs::Permissions::from_mode(0o620)).unwrap();
    assert_eq!(found(&cache, &key), Err(Damage::Foreign));
    assert_eq!(found(&cache, &key), Ok(None));
}

#[test]
fn directory_that_others_may_write_is_refused_with_what_to_do() {
    let place = TempCache::new();
    fs::create_dir(place.dir()).unwrap();
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o770)).unwrap();
    let error = Cache::open(&place.dir(), CACHE_BYTES).unwrap_err().to_string();
    let dir = place.dir().display().to_string();
    let advice = "make it 0700, or choose a directory below it, which the host creates";
    assert_eq!(error, format!("other users than the owner may write to {dir} (mode 0770): {advice}"));
    // An empty volume of a pod, for example. The host creates its own directory in it.
    Cache::open(&place.dir().join("pilothouse"), CACHE_BYTES).unwrap();
}

#[test]
fn directory_that_others_may_only_read_is_used() {
    let place = TempCache::new();
    fs::create_dir(place.dir()).unwrap();
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    keep(&place.cache(CACHE_BYTES), &place.key(b"a"), b"code");
    assert_eq!(fs::metadata(place.path(&place.key(b"a"))).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn directory_that_takes_the_place_of_another_brings_no_code_that_others_may_have_written() {
    let place = TempCache::new();
    let (cache, key) = (place.cache(CACHE_BYTES), place.key(b"a"));
    keep(&cache, &key, b"code");
    // Somebody with write access to the parent directory can do this, and can compute a checksum.
    fs::rename(place.dir(), place.above.path().join("old")).unwrap();
    fs::create_dir(place.dir()).unwrap();
    fs::write(place.path(&key), [b"evil".as_slice(), &seal(&key, b"evil")].concat()).unwrap();
    let theirs = rustix::process::geteuid().is_root();
    if theirs {
        std::os::unix::fs::chown(place.path(&key), Some(1), None).unwrap();
    } else {
        fs::set_permissions(place.path(&key), fs::Permissions::from_mode(0o666)).unwrap();
    }
    assert_eq!(found(&cache, &key), Err(Damage::Foreign));
    assert_eq!(found(&cache, &key), Ok(None));
}

#[test]
fn directory_that_cannot_be_made_or_is_none_is_refused() {
    let place = TempCache::new();
    fs::write(place.dir(), "").unwrap();
    for dir in [place.dir(), place.dir().join("below")] {
        assert!(matches!(Cache::open(&dir, CACHE_BYTES), Err(CacheError::Io(named, _)) if named == dir));
    }
}

#[test]
fn unfinished_files_of_killed_writers_are_removed_at_the_next_start() {
    let place = TempCache::new();
    let cache = place.cache(CACHE_BYTES);
    let living = cache.begin().unwrap();
    let killed = cache.begin().unwrap();
    // As a killed process leaves it: with the file, without the lock.
    let (_, path) = killed.keep().unwrap();
    assert!(path.exists());
    drop(place.cache(CACHE_BYTES));
    assert!(!path.exists());
    assert!(living.path().exists());
    drop(living);
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn longest_unused_go_first_and_those_in_use_never() {
    let place = TempCache::new();
    let cache = place.cache(CACHE_BYTES);
    let keys = [b"a", b"b", b"c", b"d"].map(|file| place.key(file));
    let [a, b, c, d] = &keys;
    for (key, age) in [(a, 40), (b, 30), (c, 20)] {
        keep(&cache, key, &[0; 1000]);
        let file = File::options().write(true).open(place.path(key)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    // The lookup makes `a` the youngest; `b` is in use.
    assert!(found(&cache, a).is_ok_and(|code| code.is_some()));
    let small = Cache { most: 3 * (1000 + SEAL as u64), ..cache };
    small.keep(d, write(&small, d, &[0; 1000]), &HashSet::from([*b])).unwrap();
    let mut left = [a, b, d].map(Key::file_name);
    left.sort();
    assert_eq!(place.names(), left);
    // A used file is kept, even if it alone exceeds the bound.
    let none = Cache { most: 0, ..small };
    none.keep(c, write(&none, c, &[0; 1000]), &HashSet::new()).unwrap();
    assert_eq!(place.names(), [c.file_name()]);
}

#[test]
fn files_of_others_are_left_alone() {
    let place = TempCache::new();
    drop(place.cache(CACHE_BYTES));
    let others = ["notes.cwasm", "tmp-notes.txt"];
    others.iter().for_each(|name| fs::write(place.dir().join(name), [0; 1000]).unwrap());
    let key = place.key(b"a");
    keep(&place.cache(0), &key, &[0; 1000]);
    keep(&place.cache(0), &place.key(b"b"), &[0; 1000]);
    let mut left = [place.key(b"b").file_name(), others[0].to_owned(), others[1].to_owned()];
    left.sort();
    assert_eq!(place.names(), left);
}

#[test]
fn a_removed_file_stays_valid_while_it_is_open() {
    let place = TempCache::new();
    let (cache, key) = (place.cache(CACHE_BYTES), place.key(b"a"));
    keep(&cache, &key, b"code");
    let open = cache.find(&key).unwrap().unwrap();
    fs::remove_file(place.path(&key)).unwrap();
    assert_eq!(verify(&open, &key), Ok(()));
}

#[test]
fn hosts_that_write_and_read_the_same_at_once_see_it_whole_or_not_at_all() {
    let place = TempCache::new();
    let key = place.key(b"a");
    let code = vec![7; 300_000];
    let barrier = Barrier::new(6);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                barrier.wait();
                for _ in 0..20 {
                    // Each opens the cache, which removes abandoned files.
                    keep(&place.cache(CACHE_BYTES), &key, &code);
                }
            });
            scope.spawn(|| {
                let cache = place.cache(CACHE_BYTES);
                barrier.wait();
                for _ in 0..60 {
                    assert!(found(&cache, &key).unwrap().is_none_or(|found| found == code));
                }
            });
        }
    });
    assert_eq!(place.names(), [key.file_name()]);
}
