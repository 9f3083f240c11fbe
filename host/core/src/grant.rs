//! What a plugin may do: what its manifest asks for and the administrator allows.
//!
//! ```text
//! manifest: permissions ──┐
//!                         ├─► Grants ─► check(verb, kind, namespace, name) ─► go on │ Denied
//! <name>.yaml: grants ────┘
//! ```
//!
//! Both sides must allow an access. The administrator's side is a file beside the component ([`AdminFile`]):
//!
//! ```yaml
//! config: { greeting: hello }
//! grants:
//!   - { apiVersion: stable.example.com/v1, kind: MyApple, verbs: [read] }
//!   - { apiVersion: stable.example.com/v1, kind: MyApple/status, verbs: [apply] }
//!   - { apiVersion: v1, kind: ConfigMap, verbs: [read, apply, delete], namespaces: [default] }
//! ```
//!
//! ```
//! use pilothouse_core::grant::Grants;
//! use pilothouse_core::key::TypeMeta;
//! use pilothouse_core::manifest::{Permission, Verb};
//!
//! let config_maps = TypeMeta::new("v1", "ConfigMap");
//! let asked = [Permission {
//!     of: config_maps.clone(), subresource: None, verbs: [Verb::Read].into(), namespaces: vec![], names: vec![],
//! }];
//! let denied = Grants::new(&asked, &[]).check(Verb::Read, &config_maps, None, Some("default"), Some("a"));
//! assert!(denied.is_err());
//! ```
//!
//! The host reads the file, and checks each read and write.

mod account;
mod file;
mod http;
mod rights;
mod yaml;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

pub use self::{
    account::{ActAs, By, ServiceAccount},
    file::{AdminFile, GrantRule, Kinds, Limits, Parts},
    http::{HttpDenied, HttpGranted, HttpHeader, HttpRule},
    rights::{Changes, LeaseScope, Right, Rights},
};
use crate::{
    http::Url,
    key::{Key, TypeMeta, selects_version},
    manifest::{HttpPermission, Manifest, Permission, Verb, Watch},
    object::Subresource,
};

/// What one plugin may do.
#[derive(Clone, Debug)]
pub struct Grants {
    asked: Vec<Permission>,
    allowed: Allowed,
    http: http::HttpGrants,
    /// What the plugin's service account may read of the cache. `None` if the plugin has no account of its own.
    rights: Option<Arc<Rights>>,
}

/// Rights are not compared: they change by themselves.
impl PartialEq for Grants {
    fn eq(&self, other: &Self) -> bool {
        (&self.asked, &self.allowed, &self.http) == (&other.asked, &other.allowed, &other.http)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Allowed {
    Rules(Vec<GrantRule>),
    /// `dev`: everything that is asked for.
    AllAsked,
}

/// The namespaces in which a plugin may read a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// No namespace: the kind may not be read.
    None,
    /// All namespaces, and cluster-scoped objects.
    All,
    /// These namespaces, sorted.
    Some(Vec<String>),
}

/// Objects of a kind that a plugin may read: those with one of the names in one of the namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readable {
    /// Empty for every namespace and cluster-scoped objects.
    pub namespaces: Vec<String>,
    /// Empty for every name.
    pub names: Vec<String>,
}

/// A scope in which an informer looks for objects that a plugin may read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// `None` for every namespace and cluster-scoped objects.
    pub namespace: Option<String>,
    /// `None` for every name.
    pub name: Option<String>,
}

/// The part of a permission that is asked for and not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The verbs, and their namespaces. If these are empty: everywhere except in `allowed_in`.
    pub permission: Permission,
    /// Namespaces in which the verbs are allowed, if they are asked for everywhere.
    pub allowed_in: Vec<String>,
}

/// The side that does not allow an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LackedBy {
    /// The plugin does not ask for it, so the administrator cannot allow it.
    Manifest,
    /// The plugin asks for it, and the administrator's file does not allow it.
    Administrator,
}

/// A read or write that is not granted. The message is for the plugin's author and the administrator: it names the
/// access, the side that does not allow it, and the line to add.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Denied {
    /// The verb.
    pub verb: Verb,
    /// The kind.
    pub of: TypeMeta,
    /// The subresource, if any.
    pub subresource: Option<Subresource>,
    /// The namespace; `None` for cluster-scoped objects, or for all namespaces.
    pub namespace: Option<String>,
    /// The object's name; `None` for any.
    pub name: Option<String>,
    /// The side that does not allow it.
    pub by: LackedBy,
}

/// An access that a plugin attempts.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    verb: Verb,
    of: &'a TypeMeta,
    subresource: Option<Subresource>,
    namespace: Option<&'a str>,
    name: Option<&'a str>,
}

impl Grants {
    /// Grants what is both asked for and allowed.
    pub fn new(asked: &[Permission], allowed: &[GrantRule]) -> Self {
        Self {
            asked: asked.to_vec(),
            allowed: Allowed::Rules(allowed.to_vec()),
            http: http::HttpGrants::default(),
            rights: None,
        }
    }

    /// Grants everything that is asked for: for `dev`, where one person runs the host and writes the plugin.
    pub fn all_asked(asked: &[Permission]) -> Self {
        Self { asked: asked.to_vec(), allowed: Allowed::AllAsked, http: http::HttpGrants::default(), rights: None }
    }

    /// Grants requests to the servers that are both asked for and allowed. If everything that is asked for is granted,
    /// so are these, with addresses that are not public.
    #[must_use]
    pub fn with_http(mut self, asked: &[HttpPermission], allowed: &[HttpRule]) -> Self {
        self.http = http::HttpGrants { asked: asked.to_vec(), rules: allowed.to_vec() };
        self
    }

    /// Returns the part of these requests that the same administrator's rules allow.
    #[must_use]
    pub fn for_asked(&self, asked: &[Permission], http: &[HttpPermission]) -> Self {
        let http = http::HttpGrants { asked: http.to_vec(), rules: self.http.rules.clone() };
        Self { asked: asked.to_vec(), allowed: self.allowed.clone(), http, rights: self.rights.clone() }
    }

    /// Returns these grants for a plugin whose service account has `rights`.
    #[must_use]
    pub fn with_rights(&self, rights: Arc<Rights>) -> Self {
        Self { rights: Some(rights), ..self.clone() }
    }

    /// What the plugin's service account may read of the cache. `None` if the plugin has no account of its own.
    pub fn rights(&self) -> Option<&Arc<Rights>> {
        self.rights.as_ref()
    }

    /// Checks a request to a server outside the API: may the plugin send `method` to the scheme, host and port of
    /// `url`?
    ///
    /// # Errors
    /// [`HttpDenied`] if the manifest does not ask for it or the administrator does not allow it.
    pub fn check_http(&self, method: &str, url: &Url) -> Result<HttpGranted, HttpDenied> {
        self.http.check(method, url, self.allowed == Allowed::AllAsked)
    }

    /// Returns the requests that are asked for and not allowed, in the order of the manifest. Used for warnings.
    pub fn refused_http(&self) -> Vec<String> {
        if self.allowed == Allowed::AllAsked { Vec::new() } else { self.http.refused().collect() }
    }

    /// Checks one access.
    ///
    /// `namespace` is `None` for cluster-scoped objects, and for requests over all namespaces. Both need a permission
    /// and a rule without namespaces. `name` is `None` for accesses that concern no single object: lists, and creating
    /// under a generated name. They need a permission and a rule without names.
    ///
    /// For a list that a plugin may read only in part, check each object, and ask [`Self::readable_namespaces`] where
    /// to look.
    ///
    /// # Errors
    /// [`Denied`] if the manifest does not ask for the access or the administrator does not allow it.
    pub fn check(
        &self,
        verb: Verb,
        of: &TypeMeta,
        subresource: Option<Subresource>,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Result<(), Denied> {
        self.lacked_by(Wanted { verb, of, subresource, namespace, name }).map_or(Ok(()), |by| {
            Err(Denied {
                verb,
                of: of.clone(),
                subresource,
                namespace: namespace.map(str::to_owned),
                name: name.map(str::to_owned),
                by,
            })
        })
    }

    /// Returns `true` if the plugin may see this object of the cache: it is granted, and the plugin's service account
    /// may read it. Every path by which cached objects reach a plugin checks this on delivery.
    ///
    /// Costs some ten nanoseconds for each permission and rule, and allocates nothing.
    pub fn may_see(&self, of: &TypeMeta, key: &Key) -> bool {
        self.may_read(of, key) && self.rights.as_ref().is_none_or(|rights| rights.may_see(of, key))
    }

    /// Returns `true` if the plugin may see this object in an answer of the API server, which has judged the plugin's
    /// service account itself.
    pub fn may_read(&self, of: &TypeMeta, key: &Key) -> bool {
        let (namespace, name) = (key.namespace.as_deref(), Some(&*key.name));
        self.lacked_by(Wanted { verb: Verb::Read, of, subresource: None, namespace, name }).is_none()
    }

    /// Checks a read of the cache that is granted: may the plugin's service account see all that the read concerns?
    ///
    /// # Errors
    /// What the account lacks.
    pub fn check_rights(&self, of: &TypeMeta, namespace: Option<&str>, name: Option<&str>) -> Result<(), String> {
        self.rights.as_ref().map_or(Ok(()), |rights| rights.check(of, namespace, name))
    }

    fn lacked_by(&self, wanted: Wanted<'_>) -> Option<LackedBy> {
        if !self.asked.iter().any(|permission| permission.covers(wanted)) {
            return Some(LackedBy::Manifest);
        }
        match &self.allowed {
            Allowed::AllAsked => None,
            Allowed::Rules(rules) if rules.iter().any(|rule| rule.covers(wanted)) => None,
            Allowed::Rules(_) => Some(LackedBy::Administrator),
        }
    }

    /// Returns what the plugin may read of a kind: the overlap of every permission with every rule. Parts may appear
    /// twice.
    pub fn readable(&self, of: &TypeMeta) -> Vec<Readable> {
        let reads = |asked: &&Permission| {
            asked.verbs.contains(&Verb::Read) && asked.subresource.is_none() && asked.of.selects(of)
        };
        let mut readable = Vec::new();
        for asked in self.asked.iter().filter(reads) {
            match &self.allowed {
                Allowed::AllAsked => {
                    readable.push(Readable { namespaces: asked.namespaces.clone(), names: asked.names.clone() });
                }
                Allowed::Rules(rules) => {
                    let rules = rules.iter().filter(|rule| rule.verbs.contains(&Verb::Read) && rule.is_for(of, None));
                    readable.extend(rules.filter_map(|rule| {
                        let namespaces = in_both(&asked.namespaces, &rule.namespaces)?;
                        Some(Readable { namespaces, names: in_both(&asked.names, &rule.names)? })
                    }));
                }
            }
        }
        readable
    }

    /// Returns `true` if the plugin may read kinds that a pattern selects.
    pub fn reads_some_of(&self, pattern: &TypeMeta) -> bool {
        let asks = |asked: &Permission| {
            asked.verbs.contains(&Verb::Read) && asked.subresource.is_none() && asked.of.selects(pattern)
        };
        let overlaps = |one: &str, other: &str| selects_version(one, other) || selects_version(other, one);
        let allows = |rule: &GrantRule| {
            rule.verbs.contains(&Verb::Read)
                && !matches!(rule.parts, Parts::One(_))
                && overlaps(&rule.api_version, &pattern.api_version)
        };
        self.asked.iter().any(asks)
            && match &self.allowed {
                Allowed::AllAsked => true,
                Allowed::Rules(rules) => rules.iter().any(allows),
            }
    }

    /// Returns the readable part of a watch.
    pub fn readable_of(&self, watch: &Watch) -> Vec<Readable> {
        let readable = self.readable(&watch.of).into_iter().filter_map(|Readable { namespaces, mut names }| {
            let namespaces = in_both(&watch.namespaces, &namespaces)?;
            let all = names.is_empty();
            names.retain(|name| watch.fields.as_ref().is_none_or(|fields| fields.admits("metadata.name", name)));
            (all || !names.is_empty()).then_some(Readable { namespaces, names })
        });
        readable.collect()
    }

    /// Returns the scopes of informers that hold the readable part of a watch. If only names are granted, each name is
    /// a scope. So one Secret needs neither all Secrets in memory nor a role that may list them all.
    ///
    /// With more than `most` names, the scopes are the namespaces of these names. Other objects there are held and not
    /// shown.
    pub fn scopes(&self, watch: &Watch, most: usize) -> Vec<Scope> {
        let mut readable = self.readable_of(watch);
        // Wider ones first, as they cover others.
        readable.sort_by_key(|readable| (!readable.names.is_empty(), !readable.namespaces.is_empty()));
        let mut whole: BTreeSet<Option<String>> = BTreeSet::new();
        let mut named: BTreeSet<(Option<String>, String)> = BTreeSet::new();
        for Readable { namespaces, names } in &readable {
            for namespace in places(namespaces) {
                if whole.contains(&None) || whole.contains(&namespace) {
                    continue;
                }
                if names.is_empty() {
                    whole.insert(namespace);
                    continue;
                }
                for name in names {
                    if named.len() <= most && !named.contains(&(None, name.clone())) {
                        named.insert((namespace.clone(), name.clone()));
                    }
                }
            }
        }
        if named.len() > most {
            named.clear();
            whole.extend(readable.iter().flat_map(|readable| places(&readable.namespaces)));
        }
        if whole.contains(&None) {
            return vec![Scope { namespace: None, name: None }];
        }
        let whole = whole.into_iter().map(|namespace| Scope { namespace, name: None });
        whole.chain(named.into_iter().map(|(namespace, name)| Scope { namespace, name: Some(name) })).collect()
    }

    /// Returns the namespaces in which the plugin may read objects of a kind: all of them, or those with granted names.
    pub fn readable_namespaces(&self, of: &TypeMeta) -> Namespaces {
        let mut some = BTreeSet::new();
        for Readable { namespaces, .. } in self.readable(of) {
            if namespaces.is_empty() {
                return Namespaces::All;
            }
            some.extend(namespaces);
        }
        if some.is_empty() { Namespaces::None } else { Namespaces::Some(some.into_iter().collect()) }
    }

    /// Returns what the plugin may do: the overlap of every permission with every rule. Parts may appear twice.
    pub fn allowed(&self) -> Vec<Permission> {
        let Allowed::Rules(rules) = &self.allowed else { return self.asked.clone() };
        self.asked.iter().flat_map(|asked| rules.iter().filter_map(|rule| rule.overlap(asked))).collect()
    }

    /// Returns what is asked for and not allowed, in the order of the manifest. Used for warnings.
    pub fn refused(&self) -> Vec<Refused> {
        let Allowed::Rules(rules) = &self.allowed else { return Vec::new() };
        self.asked.iter().flat_map(|asked| refused_of(asked, rules)).collect()
    }

    /// Returns the blocks `grants:` and `http:` that allow everything that is asked for, to paste into the
    /// administrator's file. Ends with a line break.
    pub fn yaml(manifest: &Manifest) -> String {
        let mut yaml = Self::yaml_of(&manifest.permissions);
        if !manifest.http.is_empty() {
            yaml.push_str("http:\n");
            manifest.http.iter().for_each(|asked| yaml.push_str(&format!("  - {}\n", http::rule_of(asked))));
        }
        yaml
    }

    fn yaml_of(asked: &[Permission]) -> String {
        if asked.is_empty() {
            return "grants: []\n".to_owned();
        }
        let lines = asked.iter().map(|asked| format!("  - {}\n", yaml::rule(asked)));
        std::iter::once("grants:\n".to_owned()).chain(lines).collect()
    }
}

/// Returns the refused part of one permission, with verbs grouped that are refused in the same places.
fn refused_of(asked: &Permission, rules: &[GrantRule]) -> Vec<Refused> {
    let mut by_place: BTreeMap<(Vec<String>, Vec<String>), BTreeSet<Verb>> = BTreeMap::new();
    for &verb in &asked.verbs {
        let rules = || {
            let fits = |rule: &&GrantRule| rule.verbs.contains(&verb) && rule.is_for(&asked.of, asked.subresource);
            rules.iter().filter(fits)
        };
        // In a namespace, several rules together may allow the names.
        let all_names = |in_namespace: &dyn Fn(&GrantRule) -> bool| {
            let here = || rules().filter(|rule| in_namespace(rule));
            here().any(|rule| rule.names.is_empty())
                || !asked.names.is_empty()
                    && asked.names.iter().all(|name| here().any(|rule| rule.names.contains(name)))
        };
        let everywhere = |rule: &GrantRule| rule.namespaces.is_empty();
        if all_names(&everywhere) {
            continue;
        }
        let allowed_in =
            |namespace: &String| all_names(&|rule| everywhere(rule) || rule.namespaces.contains(namespace));
        let place = if asked.namespaces.is_empty() {
            let named: BTreeSet<&String> = rules().flat_map(|rule| &rule.namespaces).collect();
            (Vec::new(), named.into_iter().filter(|namespace| allowed_in(namespace)).cloned().collect())
        } else {
            let refused: Vec<String> =
                asked.namespaces.iter().filter(|namespace| !allowed_in(namespace)).cloned().collect();
            if refused.is_empty() {
                continue;
            }
            (refused, Vec::new())
        };
        by_place.entry(place).or_default().insert(verb);
    }
    let refused = by_place.into_iter().map(|((namespaces, allowed_in), verbs)| Refused {
        permission: Permission { verbs, namespaces, ..asked.clone() },
        allowed_in,
    });
    refused.collect()
}

/// Returns each of these namespaces, or `None` for all if the list is empty.
fn places(namespaces: &[String]) -> impl Iterator<Item = Option<String>> {
    namespaces.is_empty().then_some(None).into_iter().chain(namespaces.iter().cloned().map(Some))
}

/// Returns the overlap of two lists, where an empty list means all. `None` if there is no overlap.
fn in_both(one: &[String], other: &[String]) -> Option<Vec<String>> {
    match (one, other) {
        (all, some) | (some, all) if all.is_empty() => Some(some.to_vec()),
        (one, other) => {
            let both: Vec<_> = one.iter().filter(|listed| other.contains(listed)).cloned().collect();
            (!both.is_empty()).then_some(both)
        }
    }
}

/// Returns `true` if the list includes the name; an empty list includes all.
fn includes(list: &[String], one: Option<&str>) -> bool {
    list.is_empty() || one.is_some_and(|one| list.iter().any(|listed| listed == one))
}

impl Permission {
    fn covers(&self, wanted: Wanted<'_>) -> bool {
        self.verbs.contains(&wanted.verb)
            && self.of.selects(wanted.of)
            && self.subresource == wanted.subresource
            && includes(&self.namespaces, wanted.namespace)
            && includes(&self.names, wanted.name)
    }
}

impl GrantRule {
    fn covers(&self, wanted: Wanted<'_>) -> bool {
        self.verbs.contains(&wanted.verb)
            && self.is_for(wanted.of, wanted.subresource)
            && includes(&self.namespaces, wanted.namespace)
            && includes(&self.names, wanted.name)
    }

    /// Returns the part of a permission that the rule allows. A permission may name kinds by a pattern.
    fn overlap(&self, asked: &Permission) -> Option<Permission> {
        let kind = match &self.kinds {
            Kinds::All => &*asked.of.kind,
            Kinds::One(kind) if *asked.of.kind == **kind || *asked.of.kind == *"*" => kind,
            Kinds::One(_) => return None,
        };
        let part = match self.parts {
            Parts::All => true,
            Parts::Object => asked.subresource.is_none(),
            Parts::One(part) => asked.subresource == Some(part),
        };
        let api_version = if selects_version(&self.api_version, &asked.of.api_version) {
            &*asked.of.api_version
        } else if selects_version(&asked.of.api_version, &self.api_version) {
            &self.api_version
        } else {
            return None;
        };
        let verbs: BTreeSet<Verb> = self.verbs.intersection(&asked.verbs).copied().collect();
        if !part || verbs.is_empty() {
            return None;
        }
        Some(Permission {
            of: TypeMeta::new(api_version, kind),
            subresource: asked.subresource,
            verbs,
            namespaces: in_both(&self.namespaces, &asked.namespaces)?,
            names: in_both(&self.names, &asked.names)?,
        })
    }

    fn is_for(&self, of: &TypeMeta, subresource: Option<Subresource>) -> bool {
        let kind = match &self.kinds {
            Kinds::All => true,
            Kinds::One(kind) => **kind == *of.kind,
        };
        let part = match self.parts {
            Parts::All => true,
            Parts::Object => subresource.is_none(),
            Parts::One(part) => subresource == Some(part),
        };
        kind && part && selects_version(&self.api_version, &of.api_version)
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not granted: {} {}", self.verb, self.of)?;
        if let Some(subresource) = self.subresource {
            write!(f, "/{subresource}")?;
        }
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => write!(f, " {namespace}/{name}")?,
            (Some(namespace), None) => write!(f, " in namespace {namespace}")?,
            (None, Some(name)) => write!(f, " {name}")?,
            (None, None) => f.write_str(" in all namespaces")?,
        }
        let rule = yaml::rule(&Permission {
            of: self.of.clone(),
            subresource: self.subresource,
            verbs: [self.verb].into(),
            namespaces: self.namespace.iter().cloned().collect(),
            names: Vec::new(),
        });
        match self.by {
            LackedBy::Manifest => {
                f.write_str(": the plugin's manifest does not ask for it; ")?;
                if self.verb == Verb::Read && self.subresource.is_none() {
                    f.write_str("to read the cache, name the kind in `reads` of the controller; for a request, ")?;
                }
                write!(f, "it must have a permission like {rule}")
            }
            LackedBy::Administrator => {
                write!(f, ": the administrator's file does not allow it; add under grants: - {rule}")
            }
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbs: Vec<_> = self.permission.verbs.iter().map(|verb| verb.as_str()).collect();
        write!(f, "{} {}", verbs.join(", "), self.permission.of)?;
        if let Some(subresource) = self.permission.subresource {
            write!(f, "/{subresource}")?;
        }
        if !self.permission.names.is_empty() {
            write!(f, " named {}", self.permission.names.join(", "))?;
        }
        if !self.permission.namespaces.is_empty() {
            write!(f, " in {}", self.permission.namespaces.join(", "))?;
        }
        if !self.allowed_in.is_empty() {
            write!(f, " everywhere (allowed in {})", self.allowed_in.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
