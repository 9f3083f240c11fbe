//! The warnings of kube-apiserver about accepted objects.

use serde_json::Value;

/// Warns of environment variables that a container names twice, because a later apply may drop one of them.
pub(super) fn hidden_variables(object: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for (pointer, path) in [("/spec/template/spec", "spec.template.spec"), ("/spec", "spec")] {
        let Some(spec) = object.pointer(pointer) else { continue };
        for list in ["initContainers", "containers"] {
            for (at, container) in spec[list].as_array().into_iter().flatten().enumerate() {
                let variables = container["env"].as_array().map(Vec::as_slice).unwrap_or_default();
                for (place, variable) in variables.iter().enumerate() {
                    let name = &variable["name"];
                    let before = variables.iter().take(place).any(|before| before["name"] == *name);
                    // A variable that refers to its former value is intended.
                    let builds_on = format!("$({})", name.as_str().unwrap_or_default());
                    if before && !variable["value"].as_str().unwrap_or_default().contains(&builds_on) {
                        warnings.push(format!(
                            "{path}.{list}[{at}].env[{place}]: hides previous definition of {name}, which may be dropped when using apply"
                        ));
                    }
                }
            }
        }
    }
    warnings
}
