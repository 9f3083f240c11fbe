//! Plugins with a service account of their own.

use anyhow::{Context, Result, ensure};
use pilothouse_e2e::{Host, Plugin, Scene, ServiceAccount, account::is_judged, eventually, plugin::Permission};
use pilothouse_real::audit::Event;
use serde_json::{Value, json};

const APPLES: &str = "stable.example.com";

/// A rule of a Role.
fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

/// What the example plugin needs in its namespace.
fn all_rules() -> Vec<Value> {
    vec![
        rule(APPLES, "myapples", &["get", "list", "watch"]),
        rule(APPLES, "myapples/status", &["patch"]),
        rule("", "configmaps", &["get", "list", "watch", "create", "patch", "delete"]),
    ]
}

/// Returns the example plugin in the test's namespace, with this account.
fn myapple(scene: &Scene, account: &Value) -> Result<Plugin> {
    Plugin::myapple()?.confined_to(&scene.namespace).with("serviceAccount", account)
}

async fn row(host: &mut Host, plugin: &str) -> Result<Value> {
    let rows = host.plugins().await?;
    rows.into_iter().find(|row| row["plugin"] == plugin).context("the plugin has no row")
}

pub(crate) async fn writes_are_judged_as_the_plugins_account(scene: Scene) -> Result<()> {
    let account = ServiceAccount::create(scene.client(), &scene.namespace, "apples").await?;
    let mut rules = all_rules();
    rules[2] = rule("", "configmaps", &["get", "list", "watch", "patch", "delete"]);
    account.may(&rules.into()).await?;
    let create = json!({"resource": "configmaps", "verb": "create", "namespace": scene.namespace});
    is_judged(
        &scene.client(),
        &json!({"group": APPLES, "resource": "myapples", "verb": "watch", "namespace": scene.namespace}),
        &account.user(),
        true,
    )
    .await?;
    let mut audit = scene.cluster.audit();
    let name = format!("{}/apples", scene.namespace);
    let mut host = scene.with(&[myapple(&scene, &json!(name))?])?.host().await?;
    ensure!(row(&mut host, "myapple").await?["account"] == format!("{name} by impersonation"));

    let gala = scene.apple("gala");
    gala.create(2).await?;
    let user = account.user();
    // The log has the quotes escaped.
    let why = [&*user, "cannot create resource", "configmaps"];
    gala.is_not_ready_because(&why).await?;
    host.logs(&why).await?;
    ensure!(gala.children().await?.is_empty(), "it has children");
    account.may(&all_rules().into()).await?;
    is_judged(&scene.client(), &create, &account.user(), true).await?;
    gala.settles().await?;

    // The same account by a token of its own.
    let by_token = json!({"namespace": scene.namespace, "name": "apples", "by": "token", "expirationSeconds": 600});
    scene.with(&[myapple(&scene, &by_token)?])?;
    eventually("the plugin has tokens", async || {
        let account = row(&mut host, "myapple").await?["account"].take();
        ensure!(account == format!("{name} by token"), "it sends as {account}");
        Ok(())
    })
    .await?;
    gala.scale(1).await?;
    gala.settles().await?;
    scene.apple("fuji").create(1).await?.settles().await?;
    host.ready().await?;

    if let Some(audit) = &mut audit {
        let events = audit.more()?;
        let (events, namespace) = (&events, &scene.namespace);
        let own = |group: &str, resource: &str| {
            let is_about = |event: &&Event| {
                let about = &event.object_ref;
                about.namespace == *namespace && (&*about.api_group, &*about.resource) == (group, resource)
            };
            let sent = events.iter().filter(|event| event.user_agent.starts_with("pilothouse/") && event.is_write());
            sent.filter(is_about).collect::<Vec<_>>()
        };
        let maps = own("", "configmaps");
        ensure!(maps.len() >= 4, "{maps:?}");
        for event in maps.iter().chain(&own(APPLES, "myapples")) {
            ensure!(event.account() == account.user(), "{event:?}");
        }
        let by = |is_impersonated: bool| maps.iter().any(|event| event.impersonated_user.is_some() == is_impersonated);
        ensure!(by(true) && by(false), "{maps:?}");
    }
    Ok(())
}

pub(crate) async fn invariant_7_a_right_that_is_lost_stops_the_reads_of_the_cache(mut scene: Scene) -> Result<()> {
    scene.check_accounts_every_second();
    let account = ServiceAccount::create(scene.client(), &scene.namespace, "apples").await?;
    account.may(&all_rules().into()).await?;
    let reads = |resource: &str, group: &str| json!({"group": group, "resource": resource, "verb": "watch", "namespace": scene.namespace});
    is_judged(&scene.client(), &reads("myapples", APPLES), &account.user(), true).await?;
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    let beside = Permission::of_myapple().map(|permission| permission.within(&other));
    let beside = Plugin::myapple()?.named("beside").granted(&beside);
    let own = myapple(&scene, &json!(format!("{}/apples", scene.namespace)))?;
    let mut host = scene.with(&[own, beside])?.host().await?;
    let gala = scene.apple("gala");
    gala.create(2).await?.settles().await?;

    // It may still write.
    let mut rules = all_rules();
    rules[0] = rule(APPLES, "myapples", &["get"]);
    account.may(&rules.into()).await?;
    let lost = format!("may not list, watch myapples.{APPLES} in the namespace {}", scene.namespace);
    let lost = format!("the service account {}/apples {lost}", scene.namespace);
    host.warns(&["the plugin does not see what it caches", &lost]).await?;
    let detail = host.readiness_of("myapple").await?;
    ensure!(detail.starts_with("-]plugin myapple") && detail.contains(&lost), "{detail}");
    let warnings = row(&mut host, "myapple").await?["warnings"].take();
    ensure!(warnings.to_string().contains(&lost), "{warnings}");
    gala.scale(3).await?;
    let elsewhere = scene.apple_in(&other, "fuji");
    elsewhere.create(1).await?.settles().await?;
    ensure!(gala.children().await?.len() == 2, "it was reconciled");

    account.may(&all_rules().into()).await?;
    host.logs(&["the plugin sees this again", "MyApple"]).await?;
    gala.settles().await?;
    host.ready().await
}

pub(crate) async fn an_account_that_cannot_be_checked_or_impersonated_is_named(scene: Scene) -> Result<()> {
    let host_account = ServiceAccount::create(scene.client(), &scene.namespace, "host").await?;
    let account = ServiceAccount::create(scene.client(), &scene.namespace, "apples").await?;
    account.may(&all_rules().into()).await?;
    host_account
        .may(&json!([rule(APPLES, "myapples", &["list", "watch"]), rule("", "configmaps", &["list", "watch"]),]))
        .await?;
    let kubeconfig = host_account.kubeconfig(&scene.cluster.kubeconfig(), scene.folder()).await?;
    let name = json!(format!("{}/apples", scene.namespace));
    // The kind is there before: this host may not install it.
    let first = scene.with(&[Plugin::myapple()?.confined_to(&scene.namespace)])?.host().await?;
    drop(first);
    let [itself, status, maps] = Permission::of_myapple().map(|permission| permission.within(&scene.namespace));
    let plugin = Plugin::myapple()?.granted(&[itself, status, maps]).with("serviceAccount", &name)?;
    let mut host = scene.with(&[plugin])?.host_as(kubeconfig)?;
    let asks = "cannot ask the API server what the service account";
    host.warns(&[asks, &host_account.user(), "cannot create resource", "subjectaccessreviews"]).await?;
    let detail = host.readiness_of("myapple").await?;
    ensure!(detail.contains(asks), "{detail}");
    Ok(())
}
