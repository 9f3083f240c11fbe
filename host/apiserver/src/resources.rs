//! The served resources with their properties: names, scope, subresources, schema and columns.
//!
//! Built-in kinds come from the table in `builtin`, and custom ones from CustomResourceDefinitions (`crd`). Everything
//! else treats them alike, and reads from a [`Resource`] where they differ.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use serde_json::Value;

use crate::{
    builtin,
    convert::Conversion,
    openapi::{self, Document},
    schema::Schema,
};

/// A resource without its version: the key of its collection. Displayed as in messages: `deployments.apps`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupResource {
    pub(crate) group: Arc<str>,
    pub(crate) resource: Arc<str>,
}

impl GroupResource {
    pub(crate) fn new(group: &str, resource: &str) -> Self {
        GroupResource { group: group.into(), resource: resource.into() }
    }

    pub(crate) fn namespaces() -> Self {
        static NAMESPACES: OnceLock<GroupResource> = OnceLock::new();
        NAMESPACES.get_or_init(|| GroupResource::new("", "namespaces")).clone()
    }

    pub(crate) fn crds() -> Self {
        static CRDS: OnceLock<GroupResource> = OnceLock::new();
        CRDS.get_or_init(|| GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions")).clone()
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.resource) } else { write!(f, "{}.{}", self.resource, self.group) }
    }
}

/// The rule for names of a kind's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameRule {
    /// RFC 1123 subdomain, at most 253 characters.
    Subdomain,
    /// RFC 1123 label, at most 63.
    Label,
    /// Anything that fits into a path, for RBAC.
    PathSegment,
}

/// What a create request of the kind does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Stores the object.
    Store,
    /// Answers a review, such as `SelfSubjectAccessReview`.
    Review,
}

/// One of the columns of a Table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) description: String,
    pub(crate) priority: i64,
    /// The path of a custom resource's cell, in Kubernetes' simple JSONPath such as `.spec.color`.
    pub(crate) path: String,
}

/// The JSON paths of a scale subresource, such as `.spec.replicas`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScalePaths {
    pub(crate) spec: String,
    pub(crate) status: String,
    pub(crate) selector: Option<String>,
}

/// One resource in one served version.
#[derive(Debug, Clone)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) namespaced: bool,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    /// The collection of its objects.
    pub(crate) storage: GroupResource,
    /// The `apiVersion` of stored objects.
    pub(crate) stored_as: String,
    /// The webhook that converts objects between versions, if the definition has one.
    pub(crate) conversion: Option<Arc<Conversion>>,
    pub(crate) purpose: Purpose,
    pub(crate) names: NameRule,
    /// Has a `status` subresource.
    pub(crate) status: bool,
    pub(crate) scale: Option<ScalePaths>,
    /// `metadata.generation` counts changes of the spec.
    pub(crate) generation: bool,
    /// PUT may create.
    pub(crate) create_on_update: bool,
    /// `true` if a CustomResourceDefinition defines the resource.
    pub(crate) custom: bool,
    /// Columns after NAME. Empty for only AGE.
    pub(crate) columns: Vec<Column>,
    pub(crate) deprecated: Option<String>,
    /// Selectable field paths, besides name and namespace.
    pub(crate) selectable: Vec<String>,
    schema: OnceLock<Arc<Schema>>,
}

impl Resource {
    /// Creates a resource with default properties.
    pub(crate) fn new(group: &str, version: &str, plural: &str, kind: &str) -> Self {
        let mut resource = Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            singular: kind.to_lowercase(),
            kind: kind.to_owned(),
            list_kind: format!("{kind}List"),
            namespaced: true,
            short_names: Vec::new(),
            categories: Vec::new(),
            storage: GroupResource::new(group, plural),
            stored_as: String::new(),
            conversion: None,
            purpose: Purpose::Store,
            names: NameRule::Subdomain,
            status: false,
            scale: None,
            generation: false,
            create_on_update: false,
            custom: false,
            columns: Vec::new(),
            deprecated: None,
            selectable: Vec::new(),
            schema: OnceLock::new(),
        };
        resource.stored_as = resource.api_version();
        resource
    }

    pub(crate) fn with_schema(self, schema: Arc<Schema>) -> Self {
        Resource { schema: OnceLock::from(schema), ..self }
    }

    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns the resource's name in messages, such as `deployments.apps`.
    pub(crate) fn group_resource(&self) -> GroupResource {
        GroupResource::new(&self.group, &self.plural)
    }

    /// Returns the schema. A built-in kind's schema is parsed at its first use.
    pub(crate) fn schema(&self) -> &Arc<Schema> {
        self.schema.get_or_init(|| {
            Schema::builtin(&self.group, &self.version, &self.kind).unwrap_or_else(|| Arc::new(Schema::preserve_all()))
        })
    }

    /// The verbs of discovery.
    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        match self.purpose {
            Purpose::Review => &["create"],
            // Without deletecollection, so that a mistake cannot delete all namespaces.
            Purpose::Store if self.storage == GroupResource::namespaces() => {
                &["create", "delete", "get", "list", "patch", "update", "watch"]
            }
            Purpose::Store => &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        }
    }

    /// Subresources with the verbs of each.
    pub(crate) fn subresources(&self) -> Vec<(&'static str, &'static [&'static str])> {
        let mut subresources: Vec<(&'static str, &'static [&'static str])> = Vec::new();
        if self.storage == GroupResource::namespaces() {
            subresources.push(("finalize", &["update"]));
        }
        if self.scale.is_some() {
            subresources.push(("scale", &["get", "patch", "update"]));
        }
        if self.status {
            subresources.push(("status", &["get", "patch", "update"]));
        }
        subresources
    }
}

/// The resources of a CustomResourceDefinition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Defined {
    /// A resource for each served version, most preferred first. Empty while the definition's names are not accepted.
    pub(crate) resources: Vec<Arc<Resource>>,
    /// The names that the definition has.
    pub(crate) names: Value,
    pub(crate) group: String,
}

/// All served resources. Replaced as a whole when a CustomResourceDefinition changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Registry {
    /// By group, then version in order of preference.
    groups: BTreeMap<String, Vec<Version>>,
    defined: BTreeMap<String, Defined>,
}

#[derive(Debug, Clone)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) resources: Vec<Arc<Resource>>,
    builtin: bool,
    /// Created at its first request.
    openapi: OnceLock<Document>,
}

impl Version {
    pub(crate) fn openapi(&self, group: &str) -> &Document {
        self.openapi.get_or_init(|| openapi::write(group, self))
    }
}

impl Registry {
    /// Returns a registry with only the built-in kinds.
    pub(crate) fn builtin() -> Self {
        let mut registry = Registry::default();
        for resource in builtin::resources() {
            registry.add(Arc::new(resource));
        }
        registry
    }

    fn add(&mut self, resource: Arc<Resource>) {
        let versions = self.groups.entry(resource.group.clone()).or_default();
        let builtin = !resource.custom;
        match versions.iter_mut().find(|version| version.name == resource.version) {
            Some(version) => {
                version.builtin |= builtin;
                version.resources.push(resource);
                version.resources.sort_by(|a, b| a.plural.cmp(&b.plural));
                version.openapi = OnceLock::new();
            }
            None => {
                let name = resource.version.clone();
                versions.push(Version { name, resources: vec![resource], builtin, openapi: OnceLock::new() });
                versions.sort_by_key(|version| std::cmp::Reverse(priority(&version.name)));
            }
        }
    }

    /// Replaces the resources of a CustomResourceDefinition. `None` removes them.
    pub(crate) fn define(&mut self, crd: &str, defined: Option<Defined>) {
        if let Some(before) = self.defined.remove(crd) {
            let versions = self.groups.entry(before.group.clone()).or_default();
            for version in versions.iter_mut() {
                version.resources.retain(|kept| !before.resources.iter().any(|gone| Arc::ptr_eq(gone, kept)));
                version.openapi = OnceLock::new();
            }
            versions.retain(|version| !version.resources.is_empty());
            if versions.is_empty() {
                self.groups.remove(&before.group);
            }
        }
        if let Some(defined) = defined {
            for resource in &defined.resources {
                self.add(Arc::clone(resource));
            }
            self.defined.insert(crd.to_owned(), defined);
        }
    }

    /// Returns the other definitions of a group, which may already have a name.
    pub(crate) fn definitions(&self, group: &str, except: &str) -> impl Iterator<Item = &Defined> {
        self.defined
            .iter()
            .filter(move |(name, defined)| name.as_str() != except && defined.group == group)
            .map(|(_, defined)| defined)
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let version = self.version(group, version)?;
        version.resources.iter().find(|resource| resource.plural == plural)
    }

    pub(crate) fn find_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.version(group, version)?.resources.iter().find(|resource| resource.kind == kind)
    }

    /// Returns a resource in its most preferred version.
    pub(crate) fn preferred(&self, of: &GroupResource) -> Option<&Arc<Resource>> {
        let versions = self.groups.get(&*of.group)?;
        versions.iter().flat_map(|version| &version.resources).find(|resource| *resource.plural == *of.resource)
    }

    /// Returns the other served resources with the same objects: other versions of a custom resource, or the other
    /// group of events.
    pub(crate) fn equivalents(&self, of: &Resource) -> Vec<Arc<Resource>> {
        let versions = self.groups.values().flatten();
        let all = versions.flat_map(|version| &version.resources).filter(|found| found.storage == of.storage);
        all.filter(|found| found.api_version() != of.api_version()).cloned().collect()
    }

    pub(crate) fn version(&self, group: &str, version: &str) -> Option<&Version> {
        self.groups.get(group)?.iter().find(|found| found.name == version)
    }

    /// `true` if a group has built-in kinds. Unknown resources of such a group are answered with a `Status`.
    pub(crate) fn is_builtin(&self, group: &str) -> bool {
        self.groups.get(group).is_some_and(|versions| versions.iter().any(|version| version.builtin))
    }

    /// Returns the versions of a group, most preferred first.
    pub(crate) fn versions(&self, group: &str) -> Option<&[Version]> {
        self.groups.get(group).map(Vec::as_slice)
    }

    /// Returns all groups by name. The core group's name is empty.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&str, &[Version])> {
        self.groups.iter().map(|(name, versions)| (name.as_str(), versions.as_slice()))
    }
}

/// Returns a version's priority in Kubernetes' order: `v2`, `v1`, `v1beta2`, `v1beta1`, `v1alpha1`, and then any other.
/// Greater is preferred.
pub(crate) fn priority(version: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let other = (0, 0, 0, std::cmp::Reverse(version.to_owned()));
    let Some(rest) = version.strip_prefix('v') else { return other };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, rest) = rest.split_at(digits);
    let Ok(major) = major.parse::<u64>() else { return other };
    let (stability, minor) = match rest {
        "" => return (3, major, 0, std::cmp::Reverse(String::new())),
        _ if rest.starts_with("beta") => (2, &rest["beta".len()..]),
        _ if rest.starts_with("alpha") => (1, &rest["alpha".len()..]),
        _ => return other,
    };
    match minor.parse::<u64>() {
        Ok(minor) => (stability, major, minor, std::cmp::Reverse(String::new())),
        Err(_) => other,
    }
}
