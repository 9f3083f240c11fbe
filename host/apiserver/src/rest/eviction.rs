//! The `eviction` subresource of Pods: deletes a Pod if its PodDisruptionBudget allows it.
//!
//! No controller counts healthy Pods here. So a budget allows what its status says, as somebody wrote it.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    Answer, Call,
    delete::{self, Options},
};
use crate::{
    object::{Object, is_deleting, name, set_at},
    request::Params,
    resources::{GroupResource, Resource},
    selector::{Selector, label_selector_text},
    status::{Result, Status},
};

/// Evicts the Pod that the request names.
pub(crate) async fn evict(call: &mut Call<'_>, eviction: &Value, params: &Params) -> Result<Answer> {
    let options = Options::parse(&eviction["deleteOptions"], params)?;
    let Some(pod) = call.current() else { return Err(call.not_found()) };
    if !is_free(&pod.value) {
        take_from_budget(call, &pod).await?;
    }
    delete::delete(call, &options).await?;
    let success = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(Answer::Made(StatusCode::CREATED, success))
}

/// `true` if a Pod counts for no budget.
fn is_free(pod: &Value) -> bool {
    is_deleting(pod) || matches!(pod["status"]["phase"].as_str(), None | Some("Pending" | "Succeeded" | "Failed"))
}

/// Takes one disruption from the budget of a Pod. Fails if there is none left.
async fn take_from_budget(call: &Call<'_>, pod: &Object) -> Result<()> {
    let registry = call.server.registry();
    let Some(budgets) = registry.find("policy", "v1", "poddisruptionbudgets") else { return Ok(()) };
    loop {
        let of_namespace = crate::object::Key::new(&call.key.namespace, "");
        let (found, _) = super::list::list(call.server, budgets, &of_namespace, &Params::default(), None).await?;
        let mut matching = Vec::new();
        for budget in found {
            if selects(&budget.value, pod, budgets)? {
                matching.push(budget);
            }
        }
        let budget = match matching.as_slice() {
            [] => return Ok(()),
            [budget] => budget,
            _ => {
                let why =
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                return Err(Status::internal(why));
            }
        };
        let (value, status) = (&budget.value, &budget.value["status"]);
        let number = |field: &str| status[field].as_i64().unwrap_or_default();
        if number("observedGeneration") < value["metadata"]["generation"].as_i64().unwrap_or_default() {
            let why = format!("The disruption budget {} is still being processed by the server.", name(value));
            return Err(Status::over_budget(&why, 10));
        }
        if number("disruptionsAllowed") <= 0 {
            let (needs, has) = (number("desiredHealthy"), number("currentHealthy"));
            let why =
                format!("The disruption budget {} needs {needs} healthy pods and has {has} currently", name(value));
            return Err(Status::over_budget(&why, 0));
        }
        let mut next = value.clone();
        set_at(&mut next, &["status", "disruptionsAllowed"], (number("disruptionsAllowed") - 1).into());
        if call.dry_run || call.server.update(budgets, budget, next).is_ok() {
            return Ok(());
        }
    }
}

fn selects(budget: &Value, pod: &Object, budgets: &Resource) -> Result<bool> {
    let selector = &budget["spec"]["selector"];
    Ok(!selector.is_null() && Selector::parse(&label_selector_text(selector), "", budgets)?.matches(&pod.value))
}

/// Reads the log of a Pod. There is no kubelet, so there are no lines.
pub(crate) fn log(call: &Call<'_>, container: &str) -> Result<()> {
    let Some(pod) = call.current() else { return Err(call.not_found()) };
    let names: Vec<&str> = pod.value["spec"]["containers"].as_array().into_iter().flatten().map(name_of).collect();
    let pod_name = name(&pod.value);
    match (container, names.as_slice()) {
        ("", [_]) => {}
        ("", _) => {
            let names = names.join(" ");
            return Err(Status::bad_request(format!(
                "a container name must be specified for pod {pod_name}, choose one of: [{names}]"
            )));
        }
        (container, names) if !names.contains(&container) => {
            return Err(Status::bad_request(format!("container {container} is not valid for pod {pod_name}")));
        }
        _ => {}
    }
    match pod.value["spec"]["nodeName"].as_str().unwrap_or_default() {
        "" => Ok(()),
        node => Err(Status::not_found(&GroupResource::new("", "nodes"), node)),
    }
}

fn name_of(container: &Value) -> &str {
    container["name"].as_str().unwrap_or_default()
}
