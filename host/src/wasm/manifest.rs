//! The manifest, from the contract's records to the core's, checked.

use std::collections::BTreeSet;
use std::time::Duration;

use pilothouse_core::key::TypeMeta;
use pilothouse_core::manifest::{Controller, Manifest, Permission, Verb, Watch};
use pilothouse_core::object::Subresource;
use pilothouse_core::selector::Selector;

use super::bindings::exports::pilothouse::plugin::controller as wit;
use super::bindings::pilothouse::plugin::types;

/// A call's deadline where the manifest names none; the contract says so.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Takes the manifest over, or says all that is wrong with it.
pub(super) fn from_wit(manifest: wit::Manifest) -> Result<Manifest, Vec<String>> {
    let mut problems = Vec::new();
    let controllers = manifest
        .controllers
        .into_iter()
        .map(|controller| {
            let name = controller.name;
            let mut watch = |watch: wit::Watch| {
                let labels = watch.labels.as_deref().map(Selector::parse).transpose().unwrap_or_else(|error| {
                    problems.push(format!("controller {name:?}: {error}"));
                    None
                });
                Watch { of: type_meta(&watch.of), namespaces: watch.namespaces, labels }
            };
            let for_ = watch(controller.for_);
            let owns = controller.owns.into_iter().map(watch).collect();
            Controller {
                for_,
                owns,
                max_concurrency: controller.max_concurrency.max(1),
                timeout: controller.timeout_ms.map_or(DEFAULT_TIMEOUT, |ms| Duration::from_millis(ms.into())),
                name,
            }
        })
        .collect();
    let permissions = manifest
        .permissions
        .into_iter()
        .map(|permission| Permission {
            of: type_meta(&permission.of),
            subresource: permission.subresource.map(subresource),
            verbs: permission.verbs.into_iter().map(verb).collect::<BTreeSet<_>>(),
            namespaces: permission.namespaces,
            names: permission.names,
        })
        .collect();
    let manifest = Manifest {
        version: manifest.version,
        description: manifest.description,
        controllers,
        permissions,
        crds: manifest.crds,
        config_schema: manifest.config_schema,
    };
    problems.extend(manifest.problems().iter().map(ToString::to_string));
    if problems.is_empty() { Ok(manifest) } else { Err(problems) }
}

fn type_meta(of: &types::TypeMeta) -> TypeMeta {
    TypeMeta::new(&of.api_version, &of.kind)
}

fn subresource(subresource: types::Subresource) -> Subresource {
    match subresource {
        types::Subresource::Status => Subresource::Status,
        types::Subresource::Scale => Subresource::Scale,
    }
}

fn verb(verb: wit::Verb) -> Verb {
    match verb {
        wit::Verb::Read => Verb::Read,
        wit::Verb::Create => Verb::Create,
        wit::Verb::Update => Verb::Update,
        wit::Verb::Patch => Verb::Patch,
        wit::Verb::Apply => Verb::Apply,
        wit::Verb::Delete => Verb::Delete,
    }
}
