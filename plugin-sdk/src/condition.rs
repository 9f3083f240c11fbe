//! Conditions in an object's status, by the rules of Kubernetes.
//!
//! ```
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use pilothouse_sdk::mock::MockHost;
//! use pilothouse_sdk::prelude::*;
//!
//! #[derive(serde::Deserialize, serde::Serialize)]
//! struct Status { conditions: Conditions }
//!
//! fn reconcile(ctx: &Context, map: &ConfigMap) -> Result<Outcome, Error> {
//!     let mut conditions = Conditions::default(); // or those in the object's status
//!     let filled = map.data.as_ref().is_some_and(|data| !data.is_empty());
//!     conditions.set(ctx.condition("Ready", filled, "Counted", "the ConfigMap has data"));
//!     Ok(Outcome::new().status(Status { conditions }))
//! }
//!
//! fn plugin() -> Plugin {
//!     Plugin::new("Reports whether a ConfigMap has data.")
//!         .controller(Controller::of::<ConfigMap>().reconcile(reconcile))
//! }
//!
//! let mut map = ConfigMap::default();
//! map.metadata.name = Some("m".into());
//! map.metadata.namespace = Some("default".into());
//! let outcome = MockHost::new(plugin).with(map).reconcile(("default", "m")).expect("it succeeds");
//! assert!(!outcome.status::<Status>().conditions.is_true("Ready"));
//! ```

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// `True`, `False` or `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition is true.
    True,
    /// The condition is false.
    False,
    /// It is not known whether the condition is true.
    Unknown,
}

impl ConditionStatus {
    /// Returns the value in an object.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// The `conditions` of a status: one for each type, in the order in which they were first set.
///
/// Its JSON schema is a list that server-side apply merges by `type`, so other field managers can add conditions of
/// their own. The schema has the limits that Kubernetes sets for conditions.
///
/// ```
/// use pilothouse_sdk::Conditions;
///
/// let conditions: Conditions = serde_json::from_str(
///     r#"[{"type": "Ready", "status": "True", "reason": "Done", "message": "",
///          "lastTransitionTime": "2026-01-01T00:00:00Z"}]"#,
/// )
/// .unwrap();
/// assert!(conditions.is_true("Ready"));
/// assert!(!conditions.is_true("Stalled"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Conditions(Vec<Condition>);

impl Conditions {
    /// Returns the condition of a type.
    pub fn get(&self, type_: &str) -> Option<&Condition> {
        self.0.iter().find(|condition| condition.type_ == type_)
    }

    /// Returns `true` if there is a condition of this type with the status `True`.
    pub fn is_true(&self, type_: &str) -> bool {
        self.get(type_).is_some_and(|condition| condition.status == ConditionStatus::True.as_str())
    }

    /// Iterates over all conditions.
    pub fn iter(&self) -> impl Iterator<Item = &Condition> {
        self.0.iter()
    }

    /// Iterates over the conditions that `before` lacks, or has with another status. For Events on a transition.
    ///
    /// ```
    /// use pilothouse_sdk::Conditions;
    /// use serde_json::{from_value, json};
    ///
    /// let conditions = |ready: &str| -> Conditions {
    ///     let time = "2026-01-01T00:00:00Z";
    ///     let of = |name, status| json!({"type": name, "status": status, "reason": "R", "message": "", "lastTransitionTime": time});
    ///     from_value(json!([of("Ready", ready), of("Stored", "True")])).unwrap()
    /// };
    /// let (before, after) = (conditions("False"), conditions("True"));
    /// let changed: Vec<&str> = after.transitions(&before).map(|condition| condition.type_.as_str()).collect();
    /// assert_eq!(changed, ["Ready"]);
    /// ```
    pub fn transitions(&self, before: &Self) -> impl Iterator<Item = &Condition> {
        self.iter().filter(move |new| before.get(&new.type_).is_none_or(|old| old.status != new.status))
    }

    /// Returns `true` if there is no condition.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces the condition of the same type, or adds `new` at the end.
    ///
    /// If `status` stays the same, `lastTransitionTime` stays, too. So a reconcile that finds nothing new changes
    /// nothing.
    pub fn set(&mut self, new: Condition) {
        match self.0.iter_mut().find(|old| old.type_ == new.type_) {
            Some(old) if old.status == new.status => {
                let last_transition_time = old.last_transition_time.clone();
                *old = Condition { last_transition_time, ..new };
            }
            Some(old) => *old = new,
            None => self.0.push(new),
        }
    }

    /// Removes the condition of a type.
    pub fn remove(&mut self, type_: &str) {
        self.0.retain(|condition| condition.type_ != type_);
    }
}

pub(crate) fn at(
    now: Timestamp,
    observed_generation: Option<i64>,
    type_: String,
    status: ConditionStatus,
    reason: String,
    message: String,
) -> Condition {
    // Kubernetes stores whole seconds. A fraction would differ from the stored value.
    let seconds = Timestamp::from_second(now.as_second()).expect("a timestamp without its fraction is in range");
    Condition {
        type_,
        status: status.as_str().to_owned(),
        reason,
        message,
        observed_generation,
        last_transition_time: Time(seconds),
    }
}

impl JsonSchema for Conditions {
    fn schema_name() -> Cow<'static, str> {
        "Conditions".into()
    }

    fn inline_schema() -> bool {
        true
    }

    /// The limits are those of `Condition` in Kubernetes' `meta/v1`.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type", "status", "lastTransitionTime", "reason", "message"],
                "properties": {
                    "type": {
                        "type": "string",
                        "maxLength": 316,
                        "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                    },
                    "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                    "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
                    "lastTransitionTime": { "type": "string", "format": "date-time" },
                    "reason": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": 1024,
                        "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    },
                    "message": { "type": "string", "maxLength": 32768 },
                },
            },
        })
    }
}
