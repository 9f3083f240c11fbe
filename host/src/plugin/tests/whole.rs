//! From a directory's files to the revision that serves.

use std::{fs, time::Duration};

use tempfile::TempDir;
use tokio::sync::mpsc;

use super::{
    super::*,
    life::{GRANTS, World, failure, serving},
};
use crate::wasm::testing::Guest;

#[tokio::test]
async fn files_lead_to_what_serves_whatever_is_done_to_them() {
    let temp = TempDir::new().unwrap();
    let path = |file: &str| temp.path().join(file);
    let mut world = World::new(Mode::Granted);
    // So seldom that only events can report the changes.
    let source = Source::new(temp.path()).poll_every(Duration::from_secs(3600));
    let (send, mut changes) = mpsc::channel(16);
    let looking = tokio::spawn(source.run(send));
    let passing = tokio::spawn({
        let to = world.changes.clone();
        async move {
            while let Some(change) = changes.recv().await {
                to.send(change).await.unwrap();
            }
        }
    });
    fs::write(path("red.yaml"), GRANTS).unwrap();
    let good = Guest::new().file();

    // Half-written, and then completed.
    fs::write(path("red.wasm"), &good[..good.len() / 2]).unwrap();
    let status = world.until(|status| status.state == State::Failed).await;
    assert_eq!(failure(&status).0, Stage::Compile);
    fs::write(path("red.wasm"), &good).unwrap();
    let status = world.until(Status::is_ready).await;
    assert_eq!(serving(&status), "1.0.0");

    // Garbage in its place, and then something good.
    fs::write(path("red.wasm"), "garbage").unwrap();
    let status = world.until(|status| status.last_failure.is_some()).await;
    assert_eq!((status.state, serving(&status)), (State::Active, "1.0.0"));
    fs::write(path("red.new"), Guest::new().version("1.1.0").file()).unwrap();
    fs::rename(path("red.new"), path("red.wasm")).unwrap();
    let status = world.until(Status::is_ready).await;
    assert_eq!(serving(&status), "1.1.0");

    // The settings alone.
    fs::write(path("red.new"), format!("config: {{ colour: red }}\n{GRANTS}")).unwrap();
    fs::rename(path("red.new"), path("red.yaml")).unwrap();
    world.until(|status| status.state == State::Linked).await;
    world.until(Status::is_ready).await;
    assert_eq!(&**world.latest().revision.config(), "{\"colour\":\"red\"}");

    fs::remove_file(path("red.wasm")).unwrap();
    world.until(|status| status.state == State::Gone).await;
    assert_eq!(world.calls(), ["+1.0.0", "+1.1.0", "+1.1.0", "-"]);
    looking.abort();
    passing.abort();
}
