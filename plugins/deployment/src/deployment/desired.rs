//! What a Deployment asks for, with the defaults of `apps/v1`.

use k8s_openapi::{api::apps::v1::DeploymentSpec, apimachinery::pkg::util::intstr::IntOrString};
use pilothouse_sdk::Error;

/// A Deployment's spec without its template and selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Desired {
    pub(super) replicas: i32,
    pub(super) strategy: Strategy,
    pub(super) min_ready_seconds: i32,
    /// Old ReplicaSets that are kept. `None` for all.
    pub(super) history: Option<i32>,
    /// Seconds without progress after which a rollout counts as failed. `None` for never.
    pub(super) deadline: Option<i32>,
    pub(super) paused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    Recreate,
    RollingUpdate {
        /// Pods that there may be in excess of `replicas`.
        surge: i32,
        /// Pods that may be unavailable.
        unavailable: i32,
    },
}

impl Desired {
    /// # Errors
    /// Fails if the strategy is unknown, or if one of its bounds is neither a number nor a percentage.
    pub(super) fn of(spec: &DeploymentSpec) -> Result<Self, Error> {
        let unless_endless =
            |value: Option<i32>, default: i32| Some(value.unwrap_or(default)).filter(|v| *v != i32::MAX);
        let replicas = spec.replicas.unwrap_or(1);
        Ok(Self {
            replicas,
            strategy: strategy(spec, replicas)?,
            min_ready_seconds: spec.min_ready_seconds.unwrap_or_default(),
            history: unless_endless(spec.revision_history_limit, 10),
            deadline: unless_endless(spec.progress_deadline_seconds, 600),
            paused: spec.paused.unwrap_or_default(),
        })
    }

    pub(super) fn surge(&self) -> i32 {
        match self.strategy {
            Strategy::Recreate => 0,
            Strategy::RollingUpdate { surge, .. } => surge,
        }
    }

    /// Returns how many Pods may be unavailable: at most as many as there are.
    pub(super) fn unavailable(&self) -> i32 {
        match self.strategy {
            Strategy::Recreate => 0,
            Strategy::RollingUpdate { unavailable, .. } => unavailable.min(self.replicas),
        }
    }

    /// Returns how many Pods there may be during a rollout.
    pub(super) fn most(&self) -> i32 {
        self.replicas.saturating_add(self.surge())
    }
}

fn strategy(spec: &DeploymentSpec, replicas: i32) -> Result<Strategy, Error> {
    let strategy = spec.strategy.clone().unwrap_or_default();
    match strategy.type_.as_deref() {
        Some("Recreate") => Ok(Strategy::Recreate),
        None | Some("" | "RollingUpdate") => {
            let update = strategy.rolling_update.unwrap_or_default();
            let surge = pods("maxSurge", update.max_surge.as_ref(), replicas, Round::Up)?;
            let unavailable = pods("maxUnavailable", update.max_unavailable.as_ref(), replicas, Round::Down)?;
            // With neither, nothing could ever move.
            let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
            Ok(Strategy::RollingUpdate { surge, unavailable })
        }
        Some(other) => {
            Err(Error::terminal(format!("spec.strategy.type: {other:?} is neither Recreate nor RollingUpdate")))
        }
    }
}

#[derive(Clone, Copy)]
enum Round {
    Up,
    Down,
}

/// Resolves a number of Pods, or a percentage of the replicas. The default is 25 %.
fn pods(field: &str, value: Option<&IntOrString>, replicas: i32, round: Round) -> Result<i32, Error> {
    let percent = match value {
        Some(IntOrString::Int(pods)) => return Ok(*pods),
        Some(IntOrString::String(text)) => text.strip_suffix('%').and_then(|percent| percent.parse::<i32>().ok()),
        None => Some(25),
    };
    let Some(percent) = percent else {
        let text = value.map(|value| format!("{value:?}")).unwrap_or_default();
        let path = format!("spec.strategy.rollingUpdate.{field}");
        return Err(Error::terminal(format!("{path}: {text} is neither a number nor a percentage such as 25%")));
    };
    let hundredths = i64::from(percent) * i64::from(replicas);
    let pods = match round {
        Round::Up => hundredths.div_euclid(100) + i64::from(hundredths.rem_euclid(100) > 0),
        Round::Down => hundredths.div_euclid(100),
    };
    Ok(i32::try_from(pods).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::{Desired, Strategy};

    fn desired(mut spec: Value) -> Result<Desired, String> {
        (spec["selector"], spec["template"]) = (json!({}), json!({}));
        Desired::of(&from_value(spec).expect("a spec")).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_apps_v1() {
        let expected = Desired {
            replicas: 1,
            strategy: Strategy::RollingUpdate { surge: 1, unavailable: 0 },
            min_ready_seconds: 0,
            history: Some(10),
            deadline: Some(600),
            paused: false,
        };
        assert_eq!(desired(json!({})), Ok(expected));
        let endless = json!({"revisionHistoryLimit": i32::MAX, "progressDeadlineSeconds": i32::MAX});
        assert_eq!(desired(endless), Ok(Desired { history: None, deadline: None, ..expected }));
    }

    #[test]
    fn bounds_are_numbers_or_percentages() {
        for (replicas, surge, unavailable, expected) in [
            (10, json!(3), json!(2), (3, 2)),
            // A surge is rounded up, and what may be unavailable is rounded down.
            (10, json!("25%"), json!("25%"), (3, 2)),
            (2, json!("1%"), json!("0%"), (1, 0)),
            (1, json!("0%"), json!("1%"), (0, 1)),
            (2, json!("25%"), json!("1%"), (1, 0)),
            (4, json!(0), json!("100%"), (0, 4)),
            // Not both are zero, and no more Pods are unavailable than there are.
            (2, json!(0), json!("10%"), (0, 1)),
            (1, json!(0), json!(5), (0, 1)),
            (0, json!("25%"), json!("25%"), (0, 0)),
        ] {
            let update = json!({"maxSurge": surge, "maxUnavailable": unavailable});
            let spec = json!({"replicas": replicas, "strategy": {"rollingUpdate": update}});
            let desired = desired(spec.clone()).expect("it is valid");
            assert_eq!((desired.surge(), desired.unavailable()), expected, "{spec}");
        }
    }

    #[test]
    fn recreate_has_no_bounds() {
        let desired = desired(json!({"replicas": 4, "strategy": {"type": "Recreate"}})).expect("it is valid");
        assert_eq!((desired.strategy, desired.surge(), desired.unavailable()), (Strategy::Recreate, 0, 0));
    }

    #[test]
    fn what_is_not_valid_is_named() {
        let error = desired(json!({"strategy": {"type": "Slowly"}})).expect_err("it is refused");
        assert_eq!(error, "spec.strategy.type: \"Slowly\" is neither Recreate nor RollingUpdate");
        let error = desired(json!({"strategy": {"rollingUpdate": {"maxSurge": "some"}}})).expect_err("it is refused");
        assert!(error.starts_with("spec.strategy.rollingUpdate.maxSurge: "), "{error}");
    }
}
