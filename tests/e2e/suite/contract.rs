//! Promises of the contract that need a host and an API server to be tested.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use pilothouse_e2e::{Apple, Host, Plugin, Scene, eventually, plugin::Permission};
use serde_json::{Value, from_value, json};

pub(crate) async fn invariant_3_a_plugin_sees_its_own_writes_in_the_same_call(scene: Scene) -> Result<()> {
    let (_host, gala) = served_by(&scene, "imperative").await?;
    gala.create(1).await?;
    let status = gala.status_is("what it saw", |status| status["available"] == 1).await?;
    for saw in ["SawCreate", "SawPatch", "SawDelete"] {
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let condition = conditions.iter().find(|condition| condition["type"] == saw);
        ensure!(condition.is_some_and(|condition| condition["status"] == "True"), "{saw} is not true: {status}");
    }
    Ok(())
}

pub(crate) async fn a_child_that_may_be_adopted_is_taken_over(scene: Scene) -> Result<()> {
    let (_host, gala) = served_by(&scene, "adopting").await?;
    let theirs: ConfigMap =
        from_value(json!({"metadata": {"name": "gala-shared"}, "data": {"adopted": "no", "mine": "yes"}}))?;
    gala.maps.create(&PostParams::default(), &theirs).await?;
    gala.create(1).await?;
    eventually("it is a child", async || {
        let [child]: [ConfigMap; 1] =
            gala.children().await?.try_into().map_err(|children| anyhow::anyhow!("the children are {children:?}"))?;
        let data = json!(child.data);
        ensure!(data == json!({"adopted": "yes", "mine": "yes"}), "it has {data}");
        Ok(())
    })
    .await
}

pub(crate) async fn a_child_whose_fields_are_immutable_is_replaced_only_if_the_plugin_asks_for_it(
    scene: Scene,
) -> Result<()> {
    let (host, gala) = served_by(&scene, "replacing").await?;
    gala.create(1).await?;
    let has = async |quantity: &str| {
        eventually("its child has the quantity", async || {
            let fixed = gala.maps.get("gala-fixed").await?;
            ensure!(json!(fixed.data) == json!({"quantity": quantity}), "it has {:?}", fixed.data);
            Ok(fixed.metadata.uid)
        })
        .await
    };
    let first = has("1").await?;
    gala.scale(2).await?;
    let second = has("2").await?;
    ensure!(first != second, "it was not created again");

    gala.set(json!({"color": "kept", "quantity": 3})).await?;
    host.warns(&["reconcile failed", "gala-fixed", "return the child with `replace`"]).await?;
    ensure!(has("2").await? == second, "it was replaced though the plugin did not ask for it");
    gala.set(json!({"color": "green"})).await?;
    has("3").await?;
    Ok(())
}

pub(crate) async fn a_status_that_its_own_children_made_old_is_left_to_the_next_call_and_to_no_further_one(
    scene: Scene,
) -> Result<()> {
    let (mut host, gala) = served_by(&scene, "stepping").await?;
    let status = gala.create(5).await?.status_is("5", |status| status["available"] == 5).await?;
    let conditions = status["conditions"].as_array().context("no condition")?;
    let written: Vec<&str> = conditions.iter().filter_map(|condition| condition["type"].as_str()).collect();
    ensure!(written == ["At2", "At4", "At5"], "its status was written {written:?}");
    let deferred = [("plugin", "stepping"), ("verb", "apply"), ("result", "deferred")];
    let deferred = host.metrics().await?.sum("pilothouse_writes_total", &deferred);
    ensure!(deferred == 3.0, "{deferred} statuses were left to the next call");
    Ok(())
}

pub(crate) async fn a_status_is_not_left_to_a_call_that_waits_nor_for_children_that_were_not_read(
    scene: Scene,
) -> Result<()> {
    let elsewhere = format!("{}-elsewhere", scene.namespace);
    scene.create_namespace(&elsewhere).await?;
    let rare =
        Plugin::guest("stepping")?.granted(&Permission::of_myapple()).limited(&json!({"reconcilesPerSecond": 50}))?;
    let unread = Plugin::guest("adopting")?.confined_to(&elsewhere);
    let plugins = [Plugin::myapple()?.confined_to("nowhere"), rare, unread];
    let mut host = scene.with(&plugins)?.host().await?;
    let status = scene.apple("gala").create(3).await?.status_is("3", |status| status["available"] == 3).await?;
    let conditions = status["conditions"].as_array().context("no condition")?;
    let written: Vec<&str> = conditions.iter().filter_map(|condition| condition["type"].as_str()).collect();
    ensure!(written == ["At1", "At2", "At3"], "its status was written {written:?}");
    let fuji = scene.apple_in(&elsewhere, "fuji");
    fuji.create(1).await?.status_is("1", |status| status["available"] == 1).await?;
    let deferred = host.metrics().await?.sum("pilothouse_writes_total", &[("result", "deferred")]);
    ensure!(deferred == 0.0, "{deferred} statuses were left to the next call");
    Ok(())
}

pub(crate) async fn a_status_that_was_left_to_a_call_without_one_is_written_after_it(scene: Scene) -> Result<()> {
    let (mut host, _) = served_by(&scene, "stepping").await?;
    for color in ["silent", "failing", "panicking"] {
        scene.apple(color).create_with(color, 5).await?.status_is("1", |status| status["available"] == 1).await?;
    }
    let deferred = host.metrics().await?.sum("pilothouse_writes_total", &[("result", "deferred")]);
    ensure!(deferred == 3.0, "{deferred} statuses were left to the next call");
    Ok(())
}

pub(crate) async fn a_plugin_that_asks_to_be_called_again_is(scene: Scene) -> Result<()> {
    let (_host, gala) = served_by(&scene, "counting").await?;
    gala.create(10).await?.status_is("10", |status| status["available"] == 10).await?;
    Ok(())
}

pub(crate) async fn a_failed_call_is_retried_and_learns_why(scene: Scene) -> Result<()> {
    let (_host, gala) = served_by(&scene, "failing").await?;
    gala.create_with("retry", 1).await?;
    let status = gala.status_is("what it was told", |status| status["available"] == 1).await?;
    let message = &status["conditions"][0]["message"];
    ensure!(message == "attempt 3, last error: attempt 2 failed", "unexpected message: {message}");
    Ok(())
}

pub(crate) async fn a_terminal_failure_is_not_tried_again_until_something_changes(scene: Scene) -> Result<()> {
    let (mut host, gala) = served_by(&scene, "failing").await?;
    gala.create_with("terminal", 1).await?.status_is("7", |status| status["available"] == 7).await?;
    // A later object has been reconciled twice, with a change in between, while the failed one waits.
    let fuji = scene.apple("fuji");
    fuji.create_with("retry", 1).await?.status_is("1", |status| status["available"] == 1).await?;
    let metrics = host.metrics().await?;
    let terminal = metrics.sum("controller_runtime_terminal_reconcile_errors_total", &[]);
    // Its own status update may wake it once more.
    ensure!((1.0..=2.0).contains(&terminal), "{terminal} terminal failures");
    let given_up = given_up(&mut host).await?;
    let [of] = given_up.as_slice() else { anyhow::bail!("given up: {given_up:?}") };
    let why = of["error"].as_str().is_some_and(|why| !why.is_empty());
    ensure!(of["key"] == format!("{}/gala", scene.namespace) && why, "{of}");
    let (_, table) = host.get("/debug/plugins").await?;
    ensure!(table.contains("/gala was given up at"), "{table}");

    gala.set(json!({"color": "green"})).await?;
    gala.status_is("1", |status| status["available"] == 1).await?;
    eventually("it is not given up any more", async || {
        let given_up = self::given_up(&mut host).await?;
        ensure!(given_up.is_empty(), "{given_up:?}");
        Ok(())
    })
    .await
}

/// Returns the keys on which the plugin `failing` gave up, from `/debug/plugins`.
async fn given_up(host: &mut Host) -> Result<Vec<Value>> {
    let rows = host.plugins().await?;
    let row = rows.iter().find(|row| row["plugin"] == "failing");
    let keys = row.and_then(|row| row["controllers"][0]["given_up"].as_array());
    Ok(keys.with_context(|| format!("no keys in {rows:?}"))?.clone())
}

pub(crate) async fn invariant_10_a_call_in_flight_at_sigterm_is_finished(scene: Scene) -> Result<()> {
    let (mut host, gala) = served_by(&scene, "slow").await?;
    // It takes tenths of a second, or seconds on a slow machine, which is within the host's grace.
    gala.create(50).await?;
    eventually("the call is in flight", async || {
        let working = host.metrics().await?.sum("controller_runtime_active_workers", &[]);
        ensure!(working == 1.0, "{working} workers are at work");
        Ok(())
    })
    .await?;
    host.terminate().await?;
    let status = gala.get().await?.data["status"].take();
    ensure!(status["available"] == 1, "its status is {status}");
    ensure!(gala.children().await?.len() == 1, "it has no child");
    Ok(())
}

/// Starts a host with `guest` for the scene's namespace, and names a MyApple there that does not exist yet. The example
/// plugin brings the kind and is confined to another namespace.
pub(crate) async fn served_by(scene: &Scene, guest: &str) -> Result<(Host, Apple)> {
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    let guest = Plugin::guest(guest)?.named(&guest.replace('_', "-"));
    let plugins = [Plugin::myapple()?.confined_to(&other), guest];
    let host = scene.with(&plugins)?.host().await?;
    Ok((host, scene.apple("gala")))
}
