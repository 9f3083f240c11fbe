//! The memory of a process after a big informer has stopped.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::{
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pilothouse_core::{key::TypeMeta, object::Object};

use super::config_maps;
use crate::{
    allocator::{self, Freed},
    informer::{
        Informer, InformerKey,
        lease::LeaseRequest,
        registry::{DriverTask, Registry},
    },
};

/// Objects of the big informer, 128 MB in all.
const OBJECTS: usize = 8_000;

/// Bytes of each. Small enough for the allocator to take them from its heaps.
const SIZE: usize = 16 << 10;

/// How long the system may take. It needs some milliseconds.
const WITHIN: Duration = Duration::from_secs(60);

/// Set in the process that the test starts.
const ALONE: &str = "PILOTHOUSE_TEST_ALONE";

/// Measures in a process of its own, because the memory of other tests would count.
#[test]
fn invariant_12_memory_of_a_stopped_informer_goes_back_to_the_system() {
    if std::env::var_os(ALONE).is_some() {
        return fill_and_stop();
    }
    let (_, module) = module_path!().split_once("::").expect("the module is in a crate");
    let name = format!("{module}::invariant_12_memory_of_a_stopped_informer_goes_back_to_the_system");
    let mut alone = Command::new(std::env::current_exe().expect("a test has a file"));
    let ended = alone.args(["--exact", &name]).env(ALONE, "1").output().expect("the test can be started");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains(" 1 passed"), "{said}");
}

fn fill_and_stop() {
    allocator::give_back_large_buffers();
    let registry = Arc::new(Registry::new(Box::new(|_| DriverTask(None))));
    let acquire = |of: &TypeMeta| registry.acquire(LeaseRequest::new(InformerKey::all(of.clone()), "test"));
    let (maps, secrets) = (config_maps(), TypeMeta::new("v1", "Secret"));
    let (big, small) = (acquire(&maps), acquire(&secrets));
    let before = resident_pages();

    // On a thread of their own, as in the host: the allocator has an arena for each thread. The small objects that stay
    // lie between the big ones, so that no heap can shrink.
    let informers = (big.informer(), small.informer());
    let fill = move || {
        for number in 0..OBJECTS {
            informers.0.upsert(object(&maps, number, SIZE));
            informers.1.upsert(object(&secrets, number, 0));
        }
    };
    thread::spawn(fill).join().expect("objects can be stored");
    let filled = resident_pages();
    let bytes = |informers: &[Arc<Informer>]| informers.iter().map(|informer| informer.size().1).sum::<usize>();
    let mut freed = Freed::default();
    assert!(!freed.is_due(0, bytes(&registry.all())));

    drop(big);
    registry.tend();
    assert_eq!(registry.all().len(), 1);
    assert!(freed.is_due(0, bytes(&registry.all())));
    allocator::give_back_freed();
    let (began, enough) = (Instant::now(), before + (filled - before) / 2);
    while resident_pages() > enough {
        assert!(began.elapsed() < WITHIN, "{before} pages, filled {filled}, now {}", resident_pages());
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(small.informer().size().0, OBJECTS);
}

fn object(of: &TypeMeta, number: usize, size: usize) -> Object {
    let text = format!("{number:08x}").repeat(size / 8);
    let metadata =
        format!(r#"{{"namespace":"default","name":"o{number}","uid":"{number}","resourceVersion":"{}"}}"#, number + 1);
    let json = format!(r#"{{"metadata":{metadata},"data":{{"text":"{text}"}}}}"#);
    Object::parse(json.as_bytes(), of).expect("it is an object")
}

/// Pages that the process has in memory: the second number of `statm` in proc_pid_statm(5).
fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages")
}
