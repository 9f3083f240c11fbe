//! The conditions of a Deployment, which have two times: of the last change of the status, and of the last word.

use k8s_openapi::{
    api::apps::v1::{DeploymentCondition, ReplicaSetCondition},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};

pub(super) const AVAILABLE: &str = "Available";
pub(super) const PROGRESSING: &str = "Progressing";
pub(super) const FAILURE: &str = "ReplicaFailure";

/// Reasons of `Available`.
pub(super) const ENOUGH: &str = "MinimumReplicasAvailable";
pub(super) const TOO_FEW: &str = "MinimumReplicasUnavailable";

/// Reasons of `Progressing`.
pub(super) const CREATED: &str = "NewReplicaSetCreated";
pub(super) const FOUND: &str = "FoundNewReplicaSet";
pub(super) const UPDATED: &str = "ReplicaSetUpdated";
pub(super) const COMPLETE: &str = "NewReplicaSetAvailable";
pub(super) const TIMED_OUT: &str = "ProgressDeadlineExceeded";
pub(super) const CREATE_ERROR: &str = "ReplicaSetCreateError";
pub(super) const PAUSED: &str = "DeploymentPaused";
pub(super) const RESUMED: &str = "DeploymentResumed";

pub(super) type Conditions = Vec<DeploymentCondition>;

pub(super) fn new(type_: &str, status: &str, reason: &str, message: String, now: Timestamp) -> DeploymentCondition {
    DeploymentCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: Some(Time(now)),
        last_update_time: Some(Time(now)),
    }
}

pub(super) fn get<'a>(conditions: &'a Conditions, type_: &str) -> Option<&'a DeploymentCondition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

pub(super) fn has_reason(conditions: &Conditions, type_: &str, reason: &str) -> bool {
    get(conditions, type_).is_some_and(|condition| condition.reason.as_deref() == Some(reason))
}

/// Sets a condition. One of the same status and reason stays as it is, with its message and its times.
pub(super) fn set(conditions: &mut Conditions, condition: DeploymentCondition) {
    let known = get(conditions, &condition.type_);
    if known.is_none_or(|known| known.status != condition.status || known.reason != condition.reason) {
        renew(conditions, condition);
    }
}

/// Sets a condition. The time of its last transition stays if the status does.
pub(super) fn renew(conditions: &mut Conditions, mut condition: DeploymentCondition) {
    if let Some(known) = get(conditions, &condition.type_).filter(|known| known.status == condition.status) {
        condition.last_transition_time.clone_from(&known.last_transition_time);
    }
    remove(conditions, &condition.type_);
    conditions.push(condition);
}

pub(super) fn remove(conditions: &mut Conditions, type_: &str) {
    conditions.retain(|condition| condition.type_ != type_);
}

/// Returns the condition of a ReplicaSet as one of its Deployment.
pub(super) fn of_set(condition: ReplicaSetCondition) -> DeploymentCondition {
    let ReplicaSetCondition { last_transition_time, message, reason, status, type_ } = condition;
    DeploymentCondition {
        last_update_time: last_transition_time.clone(),
        last_transition_time,
        message,
        reason,
        status,
        type_,
    }
}

#[cfg(test)]
mod tests {
    use super::{COMPLETE, PROGRESSING, TIMED_OUT, UPDATED, get, new, remove, renew, set};

    #[test]
    fn times_tell_transitions_from_updates() {
        let at = |second: i64| k8s_openapi::jiff::Timestamp::from_second(second).expect("a time");
        let condition = |status: &str, reason: &str, second: i64| {
            new(PROGRESSING, status, reason, format!("at {second}"), at(second))
        };
        let mut conditions = Vec::new();
        let mut look = |change: &dyn Fn(&mut super::Conditions)| {
            change(&mut conditions);
            let condition = get(&conditions, PROGRESSING).expect("it is there");
            let second = |time: &Option<super::Time>| time.as_ref().map(|time| time.0.as_second());
            let (moved, updated) = (second(&condition.last_transition_time), second(&condition.last_update_time));
            (condition.message.clone().unwrap_or_default(), moved, updated, conditions.len())
        };
        let shows = |second: i64, moved: i64| (format!("at {second}"), Some(moved), Some(second), 1);
        assert_eq!(look(&|all| set(all, condition("True", UPDATED, 1))), shows(1, 1));
        assert_eq!(look(&|all| set(all, condition("True", UPDATED, 2))), shows(1, 1), "nothing new");
        assert_eq!(look(&|all| renew(all, condition("True", UPDATED, 3))), shows(3, 1), "the same again");
        assert_eq!(look(&|all| set(all, condition("True", COMPLETE, 4))), shows(4, 1), "another reason");
        assert_eq!(look(&|all| set(all, condition("False", TIMED_OUT, 5))), shows(5, 5), "another status");
        remove(&mut conditions, PROGRESSING);
        assert_eq!(conditions, []);
    }
}
