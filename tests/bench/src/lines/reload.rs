//! Time from the replacement of a plugin's file until the new revision serves, while its objects keep changing.

use std::{pin::pin, time::Duration};

use anyhow::{Context, Result};
use futures::future::{Either, select, try_join_all};
use pilothouse_e2e::{Apple, Plugin};
use serde_json::json;
use tokio::{
    runtime::Runtime,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    controllers::{
        Stage,
        host::{Host, Says},
    },
    statistics::percentile,
};

const NAMESPACE: &str = "changing";
/// Number of objects: enough that no object changes often enough to open a breaker.
const APPLES: usize = 40;
/// Number of ConfigMaps of each.
const CHILDREN: u32 = 3;
/// Interval of 140 changes a second.
const EVERY: Duration = Duration::from_micros(7_143);
const COLORS: [&str; 3] = ["green", "red", "yellow"];
const REVISIONS: u8 = 12;
/// Pause between two revisions, and before the first.
const PAUSE: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(60);

/// Milliseconds: median and maximum. The line fails if a change was lost: in the end all children must match their
/// specs.
pub(super) fn measure() -> Result<Vec<f64>> {
    Runtime::new().context("cannot start a runtime")?.block_on(async {
        let stage = Stage::set().await?;
        stage.create_namespace(NAMESPACE).await?;
        let plugin = Plugin::myapple()?.confined_to(NAMESPACE);
        let mut host = Host::start(&stage, Says::Typed, std::slice::from_ref(&plugin))?;
        timeout(LIMIT, host.serves(2)).await.context("the plugins do not serve")??;
        let client = stage.cluster.client();
        let apples: Vec<Apple> =
            (0..APPLES).map(|number| Apple::new(client.clone(), NAMESPACE, &format!("apple-{number}"))).collect();
        try_join_all(apples.iter().map(|apple| apple.create(CHILDREN))).await?;
        let revisions = async {
            let mut took = Vec::new();
            for number in 1..=REVISIONS {
                sleep(PAUSE).await;
                let reloaded = timeout(LIMIT, host.reloads(&plugin.clone().revision(number))).await;
                took.push(reloaded.context("the new revision does not serve")??.as_secs_f64() * 1e3);
            }
            anyhow::Ok(took)
        };
        let took = match select(pin!(change(&apples)), pin!(revisions)).await {
            Either::Left((ended, _)) => return Err(ended.err().context("it ends only where it fails")?),
            Either::Right((took, _)) => took?,
        };
        try_join_all(apples.iter().map(Apple::settles)).await?;
        let at = |percent| percentile(&took, percent).context("nothing was measured");
        Ok(vec![at(50.0)?, at(100.0)?])
    })
}

/// Changes one object after another, for ever. Each change concerns all of its children.
async fn change(apples: &[Apple]) -> Result<()> {
    let mut next = interval(EVERY);
    next.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for (turn, apple) in apples.iter().cycle().enumerate() {
        next.tick().await;
        apple.set(json!({"color": COLORS[turn / APPLES % COLORS.len()]})).await?;
    }
    Ok(())
}
