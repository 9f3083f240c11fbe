//! Which resources are served, and what is particular about each: names, scope, subresources, schema, columns.
//!
//! Built-in kinds come from the table in `builtin`, custom ones from CustomResourceDefinitions (`crd`). Everything else
//! treats them alike and asks a [`Resource`] where they differ.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use serde_json::Value;

use crate::{
    builtin,
    openapi::{self, Document},
    schema::Schema,
};

/// A resource whatever its version: the key under which objects are kept. Displays as messages name it: `deployments.apps`.
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

/// What names of a kind's objects may look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameRule {
    /// RFC 1123 subdomain, at most 253 characters.
    Subdomain,
    /// RFC 1123 label, at most 63.
    Label,
    /// Anything that fits into a path: RBAC.
    PathSegment,
}

/// What a request that creates an object of the kind does instead of storing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Objects are kept.
    Store,
    /// A question with an answer, as in `SelfSubjectAccessReview`.
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
    /// Where a custom resource's cell is found: Kubernetes' simple JSONPath, such as `.spec.color`.
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
    /// Where its objects are kept.
    pub(crate) storage: GroupResource,
    /// `apiVersion` of the kept objects, where it is not this version's own.
    pub(crate) stored_as: String,
    pub(crate) purpose: Purpose,
    pub(crate) names: NameRule,
    /// Has a `status` subresource.
    pub(crate) status: bool,
    pub(crate) scale: Option<ScalePaths>,
    /// `metadata.generation` counts changes of the spec.
    pub(crate) generation: bool,
    /// PUT may create.
    pub(crate) create_on_update: bool,
    /// From a CustomResourceDefinition.
    pub(crate) custom: bool,
    /// Columns after NAME; none: AGE alone.
    pub(crate) columns: Vec<Column>,
    pub(crate) deprecated: Option<String>,
    /// Field paths by which lists may be selected, besides name and namespace.
    pub(crate) selectable: Vec<String>,
    schema: OnceLock<Arc<Schema>>,
}

impl Resource {
    /// A resource with nothing particular about it.
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

    /// Its name in messages: `deployments.apps`.
    pub(crate) fn group_resource(&self) -> GroupResource {
        GroupResource::new(&self.group, &self.plural)
    }

    /// What its objects look like. A built-in kind's schema is read on first use.
    pub(crate) fn schema(&self) -> &Arc<Schema> {
        self.schema.get_or_init(|| {
            Schema::builtin(&self.group, &self.version, &self.kind).unwrap_or_else(|| Arc::new(Schema::preserve_all()))
        })
    }

    /// The verbs of discovery.
    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        match self.purpose {
            Purpose::Review => &["create"],
            // A slip should not take all of them.
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

/// What one CustomResourceDefinition adds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Defined {
    /// One for each served version, most preferred first; empty while the definition's names are not accepted.
    pub(crate) resources: Vec<Arc<Resource>>,
    /// The names that are taken.
    pub(crate) names: Value,
    pub(crate) group: String,
}

/// Everything that is served at one moment. Replaced as a whole when a CustomResourceDefinition changes.
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
    /// Written when it is first asked for.
    openapi: OnceLock<Document>,
}

impl Version {
    pub(crate) fn openapi(&self, group: &str) -> &Document {
        self.openapi.get_or_init(|| openapi::write(group, self))
    }
}

impl Registry {
    /// The built-in kinds alone.
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

    /// Puts what a CustomResourceDefinition defines in place of what it defined before; `None`: nothing any more.
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

    /// The other definitions of a group: who may already have a name.
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

    /// The resource in its most preferred version.
    pub(crate) fn preferred(&self, of: &GroupResource) -> Option<&Arc<Resource>> {
        let versions = self.groups.get(&*of.group)?;
        versions.iter().flat_map(|version| &version.resources).find(|resource| *resource.plural == *of.resource)
    }

    pub(crate) fn version(&self, group: &str, version: &str) -> Option<&Version> {
        self.groups.get(group)?.iter().find(|found| found.name == version)
    }

    /// Whether a group has built-in kinds: what it does not have is then answered as a `Status`.
    pub(crate) fn is_builtin(&self, group: &str) -> bool {
        self.groups.get(group).is_some_and(|versions| versions.iter().any(|version| version.builtin))
    }

    /// The versions of a group, most preferred first.
    pub(crate) fn versions(&self, group: &str) -> Option<&[Version]> {
        self.groups.get(group).map(Vec::as_slice)
    }

    /// All groups, by name; the core group's is empty.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&str, &[Version])> {
        self.groups.iter().map(|(name, versions)| (name.as_str(), versions.as_slice()))
    }
}

/// Kubernetes' order of versions: `v2` before `v1` before `v1beta2` before `v1beta1` before `v1alpha1` before anything else.
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
