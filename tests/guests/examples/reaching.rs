//! Uses what `client` has beside single objects: lists, scales, reviews, several requests at once, evictions and logs.
//! Reports each result in a condition.
//!
//! Used by `tests/e2e/suite/reaching.rs`.

use k8s_openapi::api::{
    apps::v1::Deployment,
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::{ConfigMap, Pod},
};
use pilothouse_guests::apple::{self, MyApple, counted, found};
use pilothouse_sdk::{
    client::{self, Call, Subresource},
    prelude::*,
};

#[plugin]
fn reaching() -> Plugin {
    Plugin::new("Reaches into the cluster.")
        .controller(apple::counting().reconcile(reconcile))
        .permission(Permission::of::<ConfigMap>().verbs([Verb::Read]))
        .permission(Permission::of::<Deployment>().scale().verbs([Verb::Read, Verb::Patch]))
        .permission(Permission::of::<SelfSubjectAccessReview>().verbs([Verb::Create]))
        .permission(Permission::of::<Pod>().subresource(Subresource::Eviction).verbs([Verb::Create]))
        .permission(Permission::of::<Pod>().subresource(Subresource::Log).verbs([Verb::Read]))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let client = ctx.client();
    let beside = |suffix: &str| ctx.key().beside(format!("{}-{suffix}", apple.name()));
    let mut status = counted(apple);

    let labels = format!("of={}", apple.name());
    let listed: Vec<String> = client
        .list::<ConfigMap>()
        .beside(ctx.key())
        .labels(&labels)
        .page_size(3)
        .into_iter()
        .map(|map| map.map(|map| map.name().to_owned()))
        .collect::<Result<_, _>>()?;
    found(ctx, &mut status, "Listed", listed.join(" "));
    let everywhere = client.list::<ConfigMap>().into_iter().next();
    found(ctx, &mut status, "ListedEverywhere", how(everywhere.unwrap_or_else(|| unreachable!("there is one"))));

    let calls = listed.iter().map(String::as_str).chain(["missing"]).map(|name| Call::get(ctx.key().beside(name)));
    let (read, failed): (Vec<_>, Vec<_>) =
        client.all::<ConfigMap>(calls).into_iter().partition(|answer| answer.is_ok());
    let failed = failed.into_iter().next().map(how).unwrap_or_default();
    found(ctx, &mut status, "Batch", format!("{} {failed}", read.len()));

    let before = client.get_scale::<Deployment>(beside("web"))?;
    client.scale::<Deployment>(beside("web"), before.desired + 1)?;
    let after = client.get_scale::<Deployment>(beside("web"))?;
    found(ctx, &mut status, "Scaled", format!("{} {}", before.desired, after.desired));

    let attributes = ResourceAttributes {
        resource: Some("nodes".into()),
        verb: Some("list".into()),
        ..ResourceAttributes::default()
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let allowed = client.create(&review)?.status.map(|status| status.allowed);
    found(ctx, &mut status, "Reviewed", format!("{allowed:?}"));

    found(ctx, &mut status, "Log", how(client.logs(beside("free")).tail(10).read()));
    found(ctx, &mut status, "LogOfNone", how(client.logs(beside("none")).read()));
    found(ctx, &mut status, "Evicted", how(client.evict(beside("free"))));
    found(ctx, &mut status, "EvictedGuarded", how(client.evict(beside("guarded"))));
    found(ctx, &mut status, "ReadPod", how(client.get::<Pod>(beside("guarded"))));
    Ok(Outcome::new().status(status))
}

fn how<T>(answer: Result<T, client::Error>) -> String {
    match answer {
        Ok(_) => "ok".to_owned(),
        Err(client::Error::NotGranted(_)) => "not granted".to_owned(),
        Err(error) => error.reason().map_or_else(|| error.to_string(), |reason| reason.to_string()),
    }
}
