//! Has the children that `spec.color` lists as JSON, unchanged, of fourteen kinds that many operators create.
//!
//! Used by `tests/e2e/suite/quiet.rs`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pilothouse_guests::apple::{MyApple, Status};
use pilothouse_sdk::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Defines one type for each kind. The types of `k8s_openapi` would leave out empty fields.
macro_rules! kinds {
    ($($name:ident $api_version:literal $kind:literal),+ $(,)?) => {
        $(
            #[derive(Object, Deserialize, Serialize)]
            #[object(api_version = $api_version, kind = $kind)]
            struct $name {
                metadata: ObjectMeta,
                #[serde(flatten)]
                rest: Map<String, Value>,
            }
        )+

        #[plugin]
        fn furnishing() -> Plugin {
            let controller = Controller::of::<MyApple>();
            $(let controller = controller.owns::<$name>();)+
            Plugin::new("Creates the listed children.").controller(controller.reconcile(reconcile))
        }

        fn child(outcome: Outcome, mut child: Value) -> Result<Outcome, Error> {
            let kind = child["kind"].as_str().unwrap_or_default().to_owned();
            if let Some(child) = child.as_object_mut() {
                child.remove("apiVersion");
                child.remove("kind");
            }
            match kind.as_str() {
                $($kind => Ok(outcome.child(serde_json::from_value::<$name>(child).map_err(Error::terminal)?)),)+
                _ => Err(Error::terminal(format!("{kind} is not a kind of child"))),
            }
        }
    };
}

kinds! {
    StatefulSet "apps/v1" "StatefulSet",
    Deployment "apps/v1" "Deployment",
    DaemonSet "apps/v1" "DaemonSet",
    Autoscaler "autoscaling/v2" "HorizontalPodAutoscaler",
    NetworkPolicy "networking.k8s.io/v1" "NetworkPolicy",
    Ingress "networking.k8s.io/v1" "Ingress",
    Secret "v1" "Secret",
    Service "v1" "Service",
    Claim "v1" "PersistentVolumeClaim",
    Job "batch/v1" "Job",
    CronJob "batch/v1" "CronJob",
    DisruptionBudget "policy/v1" "PodDisruptionBudget",
    Role "rbac.authorization.k8s.io/v1" "Role",
    RoleBinding "rbac.authorization.k8s.io/v1" "RoleBinding",
}

fn reconcile(_: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let children: Vec<Value> = serde_json::from_str(&apple.spec.color).map_err(Error::terminal)?;
    let outcome = children.into_iter().try_fold(Outcome::new(), child)?;
    Ok(outcome.status(Status { available: apple.spec.quantity, ..Status::default() }))
}
