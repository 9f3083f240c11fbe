//! What a probe does: it prints, tells the time, draws numbers, and fails in the way that the object asks for.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use pilothouse_e2e::{Host, Plugin, Scene, plugin::Permission};
use serde_json::{Value, json};

use crate::toolchains::{self, root};

pub(crate) async fn python_prints_tells_the_time_draws_numbers_and_raises(scene: Scene) -> Result<()> {
    let probe = Probe::start(&scene, toolchains::python(&root().join("tests/languages/python"))?).await?;
    probe.fails(&scene, "ValueError: no apples left, at probe.py:").await?;
    probe
        .host
        .logs(&["Traceback (most recent call last)", "ValueError: no apples left", "\"plugin\":\"probe\""])
        .await?;
    for result in &probe.results {
        ensure!(result["slept"] == 3600.0 && result["environment"] == 0, "{result}");
        ensure!(result["files"] == "FileNotFoundError" && result["network"] == "PermissionError", "{result}");
    }
    Ok(())
}

pub(crate) async fn javascript_prints_tells_the_time_draws_numbers_and_throws(scene: Scene) -> Result<()> {
    let probe = Probe::start(&scene, toolchains::javascript(&root().join("tests/languages/javascript"))?).await?;
    probe.fails(&scene, "TypeError: no apples left, at javascript-javascript.js:").await?;
    probe.host.logs(&["\"ERROR\"", "TypeError: no apples left", "reconcile@", "\"plugin\":\"probe\""]).await?;
    Ok(())
}

pub(crate) async fn rust_for_wasip2_prints_tells_the_time_draws_numbers_and_panics(scene: Scene) -> Result<()> {
    let probe = Probe::start(&scene, toolchains::rust()?).await?;
    probe.fails(&scene, "no apples left").await?;
    for result in &probe.results {
        ensure!(result["slept"] == 3600.0 && result["files"] == "entity not found", "{result}");
    }
    Ok(())
}

pub(crate) async fn go_prints_tells_the_time_draws_numbers_and_panics(scene: Scene) -> Result<()> {
    let probe = Probe::start(&scene, toolchains::go(&root().join("tests/languages/go"))?).await?;
    probe.fails(&scene, "panic: no apples left, at main.go:").await?;
    probe.host.logs(&["\"ERROR\"", "panic: no apples left", "main.reconcile", "\"plugin\":\"probe\""]).await?;
    for result in &probe.results {
        ensure!(result["slept"] == 3600.0 && result["files"] == "open /etc/passwd: Bad file number", "{result}");
    }
    Ok(())
}

/// A probe that reconciled two objects, each in a fresh instance.
struct Probe {
    host: Host,
    /// What it printed about each object.
    results: [Value; 2],
}

impl Probe {
    async fn start(scene: &Scene, wasm: Vec<u8>) -> Result<Self> {
        let maps = [Permission::to(&["read"], "v1", "ConfigMap")];
        let plugin = Plugin { name: "probe".to_owned(), wasm, yaml: None }.granted(&maps);
        let host = scene.with(&[plugin])?.host().await?;
        host.logs(&["described"]).await?;
        let mut results = [Value::Null, Value::Null];
        for (name, result) in ["one", "two"].into_iter().zip(&mut results) {
            create(scene, name, "no").await?;
            let start = format!("result of {name}: ");
            let line = host.logs(&[&start]).await?;
            let text = line.field("message").and_then(|message| message.strip_prefix(&start));
            let text = text.with_context(|| format!("{} is not the line that was printed", line.text))?;
            *result = serde_json::from_str(text).with_context(|| format!("{text} is not JSON"))?;
        }
        host.warns(&["a warning", "\"plugin\":\"probe\""]).await?;
        let probe = Self { host, results };
        probe.check_time()?;
        probe.check_numbers()?;
        Ok(probe)
    }

    /// Both clocks are those of the call, though a snapshot was taken when the component was built.
    fn check_time(&self) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?.as_secs_f64();
        for result in &self.results {
            let time = result["time"].as_f64().context("no time")?;
            // It slept an hour in no time.
            let slept = result["slept"].as_f64().unwrap_or(0.0);
            ensure!((now - 300.0..now + 1.0).contains(&(time - slept)), "it is {now}, and the plugin says {time}");
        }
        Ok(())
    }

    /// No two instances draw the same numbers.
    fn check_numbers(&self) -> Result<()> {
        let [one, two] = &self.results;
        for source in ["unique", "random"] {
            ensure!(!one[source].is_null() && one[source] != two[source], "{source}: {one} {two}");
        }
        Ok(())
    }

    /// An error that is returned fails a call with its message. One that is thrown does too, and names what was thrown.
    async fn fails(&self, scene: &Scene, thrown: &str) -> Result<()> {
        create(scene, "returns", "returned").await?;
        self.host.warns(&["reconcile failed", "/returns\"", "no pears left"]).await?;
        create(scene, "throws", "thrown").await?;
        self.host.warns(&["reconcile failed", "/throws\"", thrown]).await?;
        Ok(())
    }
}

/// Creates the ConfigMap that tells the probe how to `fail`.
async fn create(scene: &Scene, name: &str, fail: &str) -> Result<()> {
    let object: ConfigMap = serde_json::from_value(json!({
        "metadata": { "name": name }, "data": { "probe": name, "fail": fail },
    }))?;
    scene
        .config_maps()
        .create(&PostParams::default(), &object)
        .await
        .with_context(|| format!("cannot create {name}"))?;
    Ok(())
}
