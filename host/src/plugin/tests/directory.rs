//! Looks at a directory, and the system's events that cause them.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::sync::mpsc;

use super::super::{
    Change, Found, Problem, SettingsFile, Source,
    look::{Directory, GAP},
};
use crate::{
    name::PluginName,
    wasm::{Digest, PluginFile},
};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(120);

/// A directory, and looks at it at times that the test chooses.
struct Scene {
    temp: TempDir,
    directory: Directory,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        let temp = TempDir::new().unwrap();
        let directory = Directory::new(temp.path().join("plugins"));
        Self { temp, directory, now: Instant::now() }
    }

    /// An empty directory after its first look.
    fn empty() -> Self {
        let mut scene = Self::new();
        fs::create_dir(scene.path("")).unwrap();
        assert_eq!(scene.look(), [Change::Looked(Vec::new())]);
        scene
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        self.temp.path().join("plugins").join(file)
    }

    fn write(&self, file: &str, content: &str) {
        fs::write(self.path(file), content).unwrap();
    }

    /// Replaces a file atomically.
    fn put(&self, file: &str, content: &str) {
        self.write("new", content);
        fs::rename(self.path("new"), self.path(file)).unwrap();
    }

    fn look(&mut self) -> Vec<Change> {
        self.directory.look(self.now).changes
    }

    fn later(&mut self, by: Duration) -> Vec<Change> {
        self.now += by;
        self.look()
    }
}

fn found(name: &str, wasm: &str, settings: Option<&str>) -> Change {
    Change::Found(Arc::new(Found {
        name: PluginName::new(name).unwrap(),
        wasm: PluginFile::new(wasm.as_bytes().to_vec()).into(),
        digest: Digest::of(wasm.as_bytes()),
        settings: settings.map_or(SettingsFile::Missing, |text| SettingsFile::Text(text.into())),
    }))
}

fn removed(name: &str) -> Change {
    Change::Removed(PluginName::new(name).unwrap())
}

#[test]
fn new_changed_and_removed_files_are_seen() {
    let mut scene = Scene::empty();
    scene.write("red.wasm", "1");
    scene.write("green.wasm", "1");
    assert_eq!(scene.look(), [found("green", "1", None), found("red", "1", None)]);
    assert_eq!(scene.look(), []);
    scene.write("red.wasm", "2");
    assert_eq!(scene.look(), [found("red", "2", None)]);
    fs::remove_file(scene.path("red.wasm")).unwrap();
    assert_eq!(scene.look(), []);
    assert_eq!(scene.later(GAP), [removed("red")]);
    assert_eq!(scene.later(GAP), []);
}

#[test]
fn same_content_is_no_change_however_it_is_written() {
    let mut scene = Scene::empty();
    scene.write("red.wasm", "1");
    scene.write("red.yaml", "enabled: true");
    assert_eq!(scene.look(), [found("red", "1", Some("enabled: true"))]);
    scene.write("red.wasm", "1");
    scene.put("red.wasm", "1");
    scene.write("red.yaml", "enabled: true");
    assert_eq!(scene.look(), []);
}

#[test]
fn two_contents_of_one_size_and_time_are_distinguished() {
    let mut scene = Scene::empty();
    let time = std::time::SystemTime::now();
    for content in ["1", "2", "3"] {
        scene.write("red.wasm", content);
        fs::File::options().write(true).open(scene.path("red.wasm")).unwrap().set_modified(time).unwrap();
        assert_eq!(scene.look(), [found("red", content, None)]);
    }
}

#[test]
fn settings_alone_are_a_change() {
    let mut scene = Scene::empty();
    scene.write("red.wasm", "1");
    assert_eq!(scene.look(), [found("red", "1", None)]);
    scene.write("red.yaml", "a");
    assert_eq!(scene.look(), [found("red", "1", Some("a"))]);
    scene.write("red.yaml", "b");
    assert_eq!(scene.look(), [found("red", "1", Some("b"))]);
    fs::remove_file(scene.path("red.yaml")).unwrap();
    assert_eq!(scene.look(), []);
    assert_eq!(scene.later(GAP), [found("red", "1", None)]);
    scene.write("alone.yaml", "a");
    assert_eq!(scene.look(), []);
}

#[test]
fn unreadable_settings_are_reported() {
    let mut scene = Scene::empty();
    scene.write("red.wasm", "1");
    fs::write(scene.path("red.yaml"), b"\xff\xfe").unwrap();
    let changes = scene.look();
    let [Change::Found(found)] = &*changes else { panic!("{changes:?}") };
    assert_eq!(found.settings, SettingsFile::Unreadable("is not UTF-8 text".to_owned()));
    fs::remove_file(scene.path("red.yaml")).unwrap();
    fs::create_dir(scene.path("red.yaml")).unwrap();
    let changes = scene.look();
    let [Change::Found(found)] = &*changes else { panic!("{changes:?}") };
    assert_eq!(found.settings, SettingsFile::Unreadable("it is not a regular file".to_owned()));
    assert_eq!(scene.look(), []);
}

#[test]
fn half_written_file_is_seen_again_when_it_is_complete() {
    let mut scene = Scene::empty();
    scene.write("red.wasm", "\0asm");
    assert_eq!(scene.look(), [found("red", "\0asm", None)]);
    scene.write("red.wasm", "\0asm and the rest");
    assert_eq!(scene.look(), [found("red", "\0asm and the rest", None)]);
}

#[test]
fn file_that_is_away_for_a_moment_is_not_removed() {
    let mut scene = Scene::empty();
    scene.write("red.wasm", "1");
    scene.look();
    for content in ["1", "2"] {
        fs::remove_file(scene.path("red.wasm")).unwrap();
        let looked = scene.directory.look(scene.now);
        assert_eq!((looked.changes, looked.again), (Vec::new(), Some(GAP)));
        scene.now += GAP / 2;
        let looked = scene.directory.look(scene.now);
        assert_eq!((looked.changes, looked.again), (Vec::new(), Some(GAP / 2)));
        scene.write("red.wasm", content);
        let expected = if content == "1" { Vec::new() } else { vec![found("red", content, None)] };
        assert_eq!(scene.later(GAP), expected);
    }
}

#[test]
fn temporary_files_of_editors_and_volumes_are_let_be() {
    let mut scene = Scene::empty();
    for file in [
        ".red.wasm.swp",
        ".red.wasm",
        "..data",
        "red.wasm~",
        "red.wasm.swp",
        "red.wasm.tmp",
        "#red.wasm#",
        ".#red.wasm",
        "4913",
        "red.wasm.bak",
        "red.wat",
        "README.md",
    ] {
        scene.write(file, "x");
    }
    assert_eq!(scene.look(), []);
}

#[test]
fn invalid_names_are_reported_and_other_plugins_load() {
    let mut scene = Scene::empty();
    scene.write("My Apple.wasm", "1");
    scene.write("red.wasm", "1");
    scene.write("red.yml", "enabled: true");
    fs::create_dir(scene.path("green.wasm")).unwrap();
    symlink("nowhere", scene.path("lost.wasm")).unwrap();
    let problem = |file: &str, message: &str| Problem { path: scene.path(file), message: message.to_owned() };
    let expected = [
        found("red", "1", None),
        Change::Looked(vec![
            problem(
                "My Apple.wasm",
                "plugin name \"My Apple\" may only have lower-case letters, digits and `-`, and must begin and end with a \
                 letter or a digit: rename the file and its settings: mv 'My Apple.wasm' my-apple.wasm",
            ),
            problem("red.yml", "is not read: the settings of plugin red belong into red.yaml"),
            problem("green.wasm", "cannot read the plugin: it is not a regular file"),
            problem("lost.wasm", "cannot read the plugin: No such file or directory (os error 2)"),
        ]),
    ];
    assert_eq!(scene.look(), expected);
    // It is reported once.
    assert_eq!(scene.look(), []);
    fs::remove_file(scene.path("My Apple.wasm")).unwrap();
    fs::remove_file(scene.path("red.yml")).unwrap();
    fs::remove_dir(scene.path("green.wasm")).unwrap();
    fs::remove_file(scene.path("lost.wasm")).unwrap();
    assert_eq!(scene.look(), [Change::Looked(Vec::new())]);
}

#[test]
fn a_file_as_cargo_names_it_is_taken_with_its_settings_under_either_name() {
    let mut scene = Scene::empty();
    scene.write("my_operator.wasm", "1");
    scene.write("my-operator.yaml", "enabled: true");
    let nothing = Change::Looked(Vec::new());
    assert_eq!(scene.look(), [found("my-operator", "1", Some("enabled: true"))]);
    // Settings under the file's own stem come first.
    scene.write("my_operator.yaml", "enabled: false");
    assert_eq!(scene.look(), [found("my-operator", "1", Some("enabled: false"))]);
    // Of two files of one plugin, the one under its name counts, and the other is named.
    scene.write("my-operator.wasm", "2");
    let problem = Problem {
        path: scene.path("my_operator.wasm"),
        message: "is not read: plugin my-operator is read from my-operator.wasm; remove one of the two".to_owned(),
    };
    let changes = scene.look();
    assert_eq!(changes, [found("my-operator", "2", Some("enabled: true")), Change::Looked(vec![problem])]);
    fs::remove_file(scene.path("my-operator.wasm")).unwrap();
    assert_eq!(scene.look(), [found("my-operator", "1", Some("enabled: false")), nothing]);
}

#[test]
fn directory_that_comes_late_goes_and_returns_loses_nothing() {
    let mut scene = Scene::new();
    let missing = [Change::Looked(vec![Problem {
        path: scene.temp.path().join("plugins"),
        message: "the directory does not exist".to_owned(),
    }])];
    assert_eq!(scene.look(), missing);
    fs::create_dir(scene.path("")).unwrap();
    scene.write("red.wasm", "1");
    scene.write("green.wasm", "1");
    let nothing = Change::Looked(Vec::new());
    assert_eq!(scene.look(), [found("green", "1", None), found("red", "1", None), nothing.clone()]);
    fs::rename(scene.path(""), scene.temp.path().join("away")).unwrap();
    assert_eq!(scene.later(GAP), missing);
    assert_eq!(scene.later(GAP * 10), []);
    // The directory returns with one file changed and one removed.
    fs::write(scene.temp.path().join("away/red.wasm"), "2").unwrap();
    fs::remove_file(scene.temp.path().join("away/green.wasm")).unwrap();
    fs::rename(scene.temp.path().join("away"), scene.path("")).unwrap();
    assert_eq!(scene.look(), [found("red", "2", None), nothing]);
    assert_eq!(scene.later(GAP), [removed("green")]);
}

/// As the kubelet does it: a directory named after the time, a link `..data` to it, and links to the files through
/// `..data`.
fn config_map(directory: &Path, revision: &str, files: &[(&str, &str)]) {
    fs::create_dir(directory.join(revision)).unwrap();
    for (file, content) in files {
        fs::write(directory.join(revision).join(file), content).unwrap();
    }
    symlink(revision, directory.join("..data_tmp")).unwrap();
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    for (file, _) in files {
        if fs::symlink_metadata(directory.join(file)).is_err() {
            symlink(Path::new("..data").join(file), directory.join(file)).unwrap();
        }
    }
}

#[test]
fn config_map_volume_is_followed_through_its_links() {
    let mut scene = Scene::empty();
    let plugins = scene.path("");
    config_map(&plugins, "..2026_11_21_1", &[("red.wasm", "1"), ("red.yaml", "a")]);
    assert_eq!(scene.look(), [found("red", "1", Some("a"))]);
    config_map(&plugins, "..2026_11_21_2", &[("red.wasm", "2"), ("red.yaml", "b")]);
    fs::remove_dir_all(plugins.join("..2026_11_21_1")).unwrap();
    assert_eq!(scene.look(), [found("red", "2", Some("b"))]);
    assert_eq!(scene.look(), []);
}

/// Waits for a change. The time is a limit, not a pause.
async fn next(changes: &mut mpsc::Receiver<Change>) -> Change {
    tokio::time::timeout(LIMIT, changes.recv()).await.expect("no change was seen").unwrap()
}

#[tokio::test]
async fn events_of_the_system_lead_to_a_look() {
    let scene = Scene::empty();
    let (send, mut changes) = mpsc::channel(16);
    // So seldom that only events can report the changes.
    let source = Source::new(scene.path("")).poll_every(Duration::from_secs(3600));
    let running = tokio::spawn(source.run(send));
    assert_eq!(next(&mut changes).await, Change::Looked(Vec::new()));
    scene.put("red.wasm", "1");
    assert_eq!(next(&mut changes).await, found("red", "1", None));
    scene.put("red.wasm", "2");
    assert_eq!(next(&mut changes).await, found("red", "2", None));
    scene.put("red.yaml", "a");
    assert_eq!(next(&mut changes).await, found("red", "2", Some("a")));
    fs::remove_file(scene.path("red.wasm")).unwrap();
    assert_eq!(next(&mut changes).await, removed("red"));
    config_map(&scene.path(""), "..1", &[("blue.wasm", "1")]);
    assert_eq!(next(&mut changes).await, found("blue", "1", None));
    config_map(&scene.path(""), "..2", &[("blue.wasm", "2")]);
    assert_eq!(next(&mut changes).await, found("blue", "2", None));
    drop(changes);
    tokio::time::timeout(LIMIT, running).await.expect("it goes on for nobody").unwrap();
}

#[tokio::test]
async fn plugins_whose_place_is_taken_are_not_reported() {
    let scene = Scene::empty();
    let (send, mut changes) = mpsc::channel(16);
    scene.put("blue.wasm", "1");
    let source = Source::new(scene.path("")).without([PluginName::new("blue").unwrap()]);
    let running = tokio::spawn(source.run(send));
    assert_eq!(next(&mut changes).await, Change::Looked(Vec::new()));
    fs::remove_file(scene.path("blue.wasm")).unwrap();
    scene.put("red.wasm", "1");
    assert_eq!(next(&mut changes).await, found("red", "1", None));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn directory_is_looked_at_where_no_event_comes() {
    let scene = Scene::new();
    let (send, mut changes) = mpsc::channel(16);
    let running = tokio::spawn(Source::new(scene.path("")).run(send));
    assert!(matches!(&next(&mut changes).await, Change::Looked(problems) if problems.len() == 1));
    // A directory that does not exist has no events.
    let elsewhere = scene.temp.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("red.wasm"), "1").unwrap();
    fs::rename(elsewhere, scene.path("")).unwrap();
    assert_eq!(next(&mut changes).await, found("red", "1", None));
    assert_eq!(next(&mut changes).await, Change::Looked(Vec::new()));
    running.abort();
}

#[tokio::test]
async fn directory_behind_a_link_that_turns_is_watched_anew() {
    let temp = TempDir::new().unwrap();
    let turn = |to: &str| {
        symlink(to, temp.path().join("turn")).unwrap();
        fs::rename(temp.path().join("turn"), temp.path().join("plugins")).unwrap();
    };
    for revision in ["one", "two"] {
        fs::create_dir(temp.path().join(revision)).unwrap();
        fs::write(temp.path().join(revision).join("red.wasm"), revision).unwrap();
    }
    turn("one");
    let (send, mut changes) = mpsc::channel(16);
    let source = Source::new(temp.path().join("plugins")).poll_every(Duration::from_millis(20));
    let running = tokio::spawn(source.run(send));
    assert_eq!(next(&mut changes).await, found("red", "one", None));
    assert_eq!(next(&mut changes).await, Change::Looked(Vec::new()));
    turn("two");
    assert_eq!(next(&mut changes).await, found("red", "two", None));
    fs::write(temp.path().join("two/new"), "1").unwrap();
    fs::rename(temp.path().join("two/new"), temp.path().join("two/green.wasm")).unwrap();
    assert_eq!(next(&mut changes).await, found("green", "1", None));
    running.abort();
}
