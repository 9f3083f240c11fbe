//! The manifest, from the contract's records to the core's.

use pilothouse_core::manifest::raw;
use pilothouse_core::manifest::{Invalid, Manifest, Verb};

use super::bindings::exports::pilothouse::plugin::controller as wit;
use super::bindings::pilothouse::plugin::types;
use super::host::subresource;

/// Takes the manifest over, or says all that is wrong with it.
pub(super) fn from_wit(manifest: wit::Manifest) -> Result<Manifest, Invalid> {
    raw::Manifest {
        version: manifest.version,
        description: manifest.description,
        controllers: manifest.controllers.into_iter().map(controller).collect(),
        permissions: manifest.permissions.into_iter().map(permission).collect(),
        crds: manifest.crds,
        config_schema: manifest.config_schema,
        ..raw::Manifest::default()
    }
    .check()
}

fn controller(controller: wit::Controller) -> raw::Controller {
    raw::Controller {
        name: controller.name,
        for_: watch(controller.for_),
        owns: controller.owns.into_iter().map(watch).collect(),
        max_concurrency: controller.max_concurrency,
        timeout_ms: controller.timeout_ms,
        ..raw::Controller::default()
    }
}

fn watch(watch: wit::Watch) -> raw::Watch {
    raw::Watch { of: type_meta(watch.of), namespaces: watch.namespaces, labels: watch.labels, ..raw::Watch::default() }
}

fn permission(permission: wit::Permission) -> raw::Permission {
    raw::Permission {
        of: type_meta(permission.of),
        subresource: permission.subresource.map(subresource),
        verbs: permission.verbs.into_iter().map(verb).collect(),
        namespaces: permission.namespaces,
        names: permission.names,
    }
}

fn type_meta(of: types::TypeMeta) -> raw::TypeMeta {
    raw::TypeMeta { api_version: of.api_version, kind: of.kind }
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
