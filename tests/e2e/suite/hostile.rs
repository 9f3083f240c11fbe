//! Plugins that loop, trap, use up what there is, and talk nonsense: each costs itself a call, and nobody else anything.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use pilothouse_e2e::{Apple, Host, Plugin, Scene, eventually};

/// The colors that the guest `nonsense` takes as instructions, each another mistake.
const MISTAKES: [&str; 12] = [
    "foreign-kind",
    "no-json",
    "no-object",
    "no-name",
    "bad-name",
    "other-namespace",
    "twice",
    "nul",
    "deep",
    "status-no-json",
    "status-list",
    "status-type",
];

pub(crate) async fn invariant_8_a_plugin_that_loops_costs_itself_one_call(scene: Scene) -> Result<()> {
    have_no_children(&is_contained(&scene, "looping").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_traps_costs_itself_one_call(scene: Scene) -> Result<()> {
    have_no_children(&is_contained(&scene, "trapping").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_exhausts_memory_costs_itself_one_call(scene: Scene) -> Result<()> {
    have_no_children(&is_contained(&scene, "hungry").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_exhausts_its_stack_costs_itself_one_call(scene: Scene) -> Result<()> {
    have_no_children(&is_contained(&scene, "recursing").await?).await
}

pub(crate) async fn invariant_8_a_plugin_that_answers_too_much_costs_itself_one_call(scene: Scene) -> Result<()> {
    let bad = is_contained(&scene, "huge").await?;
    // The children come first, and are as they should be.
    for apple in bad {
        ensure!(apple.children().await?.len() == 1, "a bad one has no child");
    }
    Ok(())
}

pub(crate) async fn invariant_8_a_plugin_that_answers_nonsense_costs_itself_one_call(scene: Scene) -> Result<()> {
    let (mut host, elsewhere) = beside_myapple(&scene, "nonsense").await?;
    let bad = MISTAKES.map(|mistake| (mistake, scene.apple(&format!("bad-{mistake}"))));
    for (mistake, apple) in &bad {
        apple.create_with(mistake, 1).await?;
    }
    scene.apple("good").create(1).await?.status_is("good", |status| status["available"] == 1).await?;
    eventually("every mistake was noticed", async || {
        let log = host.log()?;
        let unnoticed = MISTAKES.iter().find(|mistake| {
            let key = format!("{}/bad-{mistake}", scene.namespace);
            !log.iter().any(|line| line.text.contains("reconcile failed") && line.text.contains(&key))
        });
        ensure!(unnoticed.is_none(), "of {unnoticed:?} the log says nothing");
        Ok(())
    })
    .await?;
    for (mistake, apple) in &bad {
        let children = apple.children().await?;
        ensure!(children.is_empty() || *mistake == "twice", "{mistake} has children: {children:?}");
    }
    others_go_on(&scene, &mut host, &elsewhere).await
}

pub(crate) async fn a_plugin_that_cannot_be_used_is_refused_with_the_reason(scene: Scene) -> Result<()> {
    let reasons = [
        ("describe_calls", "clock.now"),
        ("describe_fails", "nothing suits me"),
        ("describe_loops", "deadline"),
        ("describe_nonsense", "No Name!"),
        ("describe_traps", "trapped"),
        ("describe_unexported", "does not export pilothouse:plugin/mapper@0.1.0"),
        ("greedy", "test:greedy/secrets"),
    ];
    // An underscore is no part of a plugin's name.
    let reasons = reasons.map(|(guest, reason)| (guest, guest.replace('_', "-"), reason));
    let mut plugins = vec![Plugin::myapple()?];
    for (guest, name, _) in &reasons {
        plugins.push(Plugin::guest(guest)?.named(name));
    }
    let mut host = scene.with(&plugins)?.starting_host()?;
    for (_, name, reason) in &reasons {
        eventually(&format!("/readyz says why {name} is refused"), async || {
            let told = host.readiness_of(name).await?;
            ensure!(told.contains("failed") && told.contains(reason), "it says: {told}");
            Ok(())
        })
        .await?;
        let failures = host.metrics().await?.sum("pilothouse_plugin_load_failures_total", &[("plugin", name)]);
        ensure!(failures > 0.0, "the failure of {name} is not counted");
    }
    scene.apple("gala").create(2).await?.settles().await
}

/// Of the guest, two objects that it fails on, which are returned, and one that it does not fail on; of myapple, others.
async fn is_contained(scene: &Scene, guest: &str) -> Result<[Apple; 2]> {
    let (mut host, elsewhere) = beside_myapple(scene, guest).await?;
    let bad = [scene.apple("bad-1"), scene.apple("bad-2")];
    for apple in &bad {
        apple.create(1).await?;
    }
    let good = scene.apple("good");
    good.create(1).await?.status_is("good", |status| status["available"] == 1).await?;
    // A server that refuses a request as too large ends its connection, and whoever is next on it tries again.
    eventually("the good one has its child", async || {
        ensure!(good.maps.get_opt("good-good").await?.is_some(), "it has none");
        Ok(())
    })
    .await?;

    // Tried again, and failing again.
    let controller = format!("{guest}/");
    eventually("its failures are counted", async || {
        let errors = host.metrics().await?.sum_where("controller_runtime_reconcile_total", |label| {
            label("controller").starts_with(&controller) && label("result") == "error"
        });
        ensure!(errors >= 3.0, "{errors} errors");
        Ok(())
    })
    .await?;
    others_go_on(scene, &mut host, &elsewhere).await?;
    for apple in &bad {
        let object = apple.get().await?;
        ensure!(object.data.get("status").is_none(), "a bad one has a status: {}", object.data["status"]);
    }
    Ok(bad)
}

async fn have_no_children(bad: &[Apple]) -> Result<()> {
    for apple in bad {
        ensure!(apple.children().await?.is_empty(), "a bad one has children");
    }
    Ok(())
}

/// A host with `guest` for the scene's namespace, and the example plugin for another, whose name is returned.
async fn beside_myapple(scene: &Scene, guest: &str) -> Result<(Host, String)> {
    let other = format!("{}-other", scene.namespace);
    scene.create_namespace(&other).await?;
    let plugins = [Plugin::myapple()?.confined_to(&other), Plugin::guest(guest)?.confined_to(&scene.namespace)];
    let host = scene.with(&plugins)?.host().await?;
    Ok((host, other))
}

/// While the guest fails: the other plugin serves, the health endpoint answers, and the other plugin has no errors.
async fn others_go_on(scene: &Scene, host: &mut Host, elsewhere: &str) -> Result<()> {
    let apples = ["gala", "fuji", "idared"].map(|name| scene.apple_in(elsewhere, name));
    try_join_all(apples.iter().map(async |apple| apple.create(3).await?.settles().await)).await?;
    let (code, _) = host.get("/healthz").await?;
    ensure!(code == 200, "/healthz answers {code}");
    let errors = host.metrics().await?.sum_where("controller_runtime_reconcile_total", |label| {
        label("controller").starts_with("myapple/") && label("result") == "error"
    });
    ensure!(errors == 0.0, "{errors} reconciles of the other plugin failed");
    Ok(())
}
