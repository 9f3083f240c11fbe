//! The warnings of kube-apiserver about accepted objects.

use std::collections::HashSet;

use serde_json::Value;

/// Where built-in kinds have the spec of a Pod: Pods, workloads, CronJobs and PodTemplates.
const POD_SPECS: [&[&str]; 4] = [
    &["spec"],
    &["spec", "template", "spec"],
    &["spec", "jobTemplate", "spec", "template", "spec"],
    &["template", "spec"],
];

/// Warns of environment variables that a container names again, because a later apply may drop one of them.
pub(super) fn hidden_variables(object: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for path in POD_SPECS {
        let Some(spec) = path.iter().try_fold(object, |value, member| value.get(member)) else { continue };
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            for (at, container) in spec[list].as_array().into_iter().flatten().enumerate() {
                let mut names = HashSet::new();
                for (place, variable) in container["env"].as_array().into_iter().flatten().enumerate() {
                    let name = variable["name"].as_str().unwrap_or_default();
                    if !names.insert(name) && hides(variable, name) {
                        let path = path.join(".");
                        warnings.push(format!(
                            "{path}.{list}[{at}].env[{place}]: hides previous definition of {name:?}, which may be dropped when using apply"
                        ));
                    }
                }
            }
        }
    }
    warnings
}

/// `true` unless the variable adds something to its former value, which is intended.
fn hides(variable: &Value, name: &str) -> bool {
    let (former, value) = (format!("$({name})"), variable["value"].as_str().unwrap_or_default());
    !variable["valueFrom"].is_null() || value == former || !value.contains(&former)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_variable_that_is_named_again_is_warned_of_unless_it_adds_to_its_former_value() {
        let variable = |value: &str| json!({ "name": "A", "value": value });
        let from = json!({ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } });
        let env = json!([variable("a"), variable("a"), variable(""), variable("$(A)"), from, variable("$(A) $(A)")]);
        let other = json!({ "env": [{ "name": "B" }, { "name": "A" }] });
        let pod = json!({ "containers": [other, { "env": env }], "initContainers": [{ "env": env }] });
        for (object, path) in [
            (json!({ "spec": pod }), "spec"),
            (json!({ "spec": { "template": { "spec": pod } } }), "spec.template.spec"),
            (
                json!({ "spec": { "jobTemplate": { "spec": { "template": { "spec": pod } } } } }),
                "spec.jobTemplate.spec.template.spec",
            ),
            (json!({ "template": { "spec": pod } }), "template.spec"),
        ] {
            let expected = [("initContainers[0]", 1..5), ("containers[1]", 1..5)].map(|(container, places)| {
                let text = |place| format!(r#"{path}.{container}.env[{place}]: hides previous definition of "A", which may be dropped when using apply"#);
                places.map(text).collect::<Vec<_>>()
            });
            assert_eq!(hidden_variables(&object), expected.concat());
        }
        assert!(hidden_variables(&json!({ "spec": { "containers": [{ "env": "A" }, 7] } })).is_empty());
    }
}
