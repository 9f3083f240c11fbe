//! Has one child, the Deployment `<name>-juice`, which the API server stores in another form than it was sent.
//!
//! Used by `tests/e2e/suite/quiet.rs`.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{
            Container, EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec, PodTemplateSpec, ResourceRequirements,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{LabelSelector, ObjectMeta},
    },
};
use pilothouse_guests::apple::{MyApple, Status};
use pilothouse_sdk::prelude::*;

#[plugin]
fn deploying() -> Plugin {
    Plugin::new("Creates a Deployment.")
        .controller(Controller::of::<MyApple>().owns::<Deployment>().reconcile(reconcile))
}

fn reconcile(_: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let labels = BTreeMap::from([("apple".to_owned(), apple.name().to_owned())]);
    let container = Container {
        name: "juice".to_owned(),
        image: Some("registry.k8s.io/pause:3.10".to_owned()),
        // The reference is atomic, and the server adds an apiVersion to it.
        env: Some(vec![EnvVar {
            name: "NODE".to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: "spec.nodeName".to_owned(),
                    ..ObjectFieldSelector::default()
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        }]),
        // The server stores this as 1.
        resources: Some(ResourceRequirements {
            limits: Some(BTreeMap::from([("cpu".to_owned(), Quantity("1000m".to_owned()))])),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    };
    let deployment = Deployment {
        metadata: ObjectMeta { name: Some(format!("{}-juice", apple.name())), ..ObjectMeta::default() },
        spec: Some(DeploymentSpec {
            replicas: i32::try_from(apple.spec.quantity).ok(),
            selector: LabelSelector { match_labels: Some(labels.clone()), ..LabelSelector::default() },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
            },
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    };
    Ok(Outcome::new().child(deployment).status(Status { available: apple.spec.quantity, ..Status::default() }))
}
