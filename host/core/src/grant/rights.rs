//! What a plugin's service account may read of the shared cache.
//!
//! The host's own account fills the cache. So the API server does not judge these reads, and the host asks it what the
//! account may do: for each scope that the plugin has a lease on. A scope whose answer is not known yet counts as
//! denied.
//!
//! A read that concerns a denied scope is refused as a whole. If it left out the scope's objects, the plugin would take
//! them for deleted.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use super::{Scope, ServiceAccount};
use crate::{
    informer::InformerKey,
    key::{Key, TypeMeta},
};

/// The objects that a lease shows, as an authorizer knows them. It does not know selectors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseScope {
    /// The kind.
    pub of: TypeMeta,
    /// Its part.
    pub scope: Scope,
}

impl From<&InformerKey> for LeaseScope {
    fn from(key: &InformerKey) -> Self {
        let scope =
            Scope { namespace: key.namespace.as_deref().map(str::to_owned), name: key.name().map(str::to_owned) };
        Self { of: key.of.clone(), scope }
    }
}

/// Whether the account may read a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    /// It may get, list and watch the scope's objects.
    Given,
    /// It may not: what it lacks, for people.
    Lacking(Arc<str>),
}

/// What an answer of the API server changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Scopes that may not be read any more, or that turn out to be denied: what the account lacks.
    pub lost: Vec<(LeaseScope, Arc<str>)>,
    /// Scopes that were denied, and may be read now.
    pub regained: Vec<LeaseScope>,
    /// Scopes of which nothing was known, and that may be read.
    pub given: Vec<LeaseScope>,
}

impl Changes {
    /// `true` if nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.lost.is_empty() && self.regained.is_empty() && self.given.is_empty()
    }
}

/// The rights of one plugin's account. All grants of the plugin share them.
#[derive(Debug)]
pub struct Rights {
    account: ServiceAccount,
    known: RwLock<BTreeMap<TypeMeta, BTreeMap<Scope, Right>>>,
}

impl Rights {
    /// Creates the rights of an account of which nothing is known. It may read nothing.
    pub fn unknown(account: ServiceAccount) -> Self {
        Self { account, known: RwLock::default() }
    }

    /// The account.
    pub fn account(&self) -> &ServiceAccount {
        &self.account
    }

    /// Returns what is known of a scope.
    pub fn of(&self, lease: &LeaseScope) -> Option<Right> {
        self.read(|known| known.get(&lease.of)?.get(&lease.scope).cloned())
    }

    /// Records what the API server answered, and returns what that changes.
    pub fn record(&self, answers: impl IntoIterator<Item = (LeaseScope, Right)>) -> Changes {
        let mut changes = Changes::default();
        let known = &mut *self.known.write().unwrap_or_else(PoisonError::into_inner);
        for (lease, right) in answers {
            let before = known.entry(lease.of.clone()).or_default().insert(lease.scope.clone(), right.clone());
            match (before, right) {
                (None, Right::Given) => changes.given.push(lease),
                (Some(Right::Lacking(_)), Right::Given) => changes.regained.push(lease),
                (None | Some(Right::Given), Right::Lacking(why)) => changes.lost.push((lease, why)),
                (Some(Right::Given), Right::Given) | (Some(Right::Lacking(_)), Right::Lacking(_)) => {}
            }
        }
        changes
    }

    /// Forgets the scopes that the plugin has no lease on any more.
    pub fn retain(&self, mut is_leased: impl FnMut(&LeaseScope) -> bool) {
        let known = &mut *self.known.write().unwrap_or_else(PoisonError::into_inner);
        for (of, scopes) in known.iter_mut() {
            scopes.retain(|scope, _| is_leased(&LeaseScope { of: of.clone(), scope: scope.clone() }));
        }
        known.retain(|_, scopes| !scopes.is_empty());
    }

    /// Returns `true` if the account may read this object of the cache.
    pub fn may_see(&self, of: &TypeMeta, key: &Key) -> bool {
        let given = |(scope, right): (&Scope, &Right)| {
            *right == Right::Given && scope.covers(key.namespace.as_deref(), Some(&key.name))
        };
        self.read(|known| known.get(of).is_some_and(|scopes| scopes.iter().any(given)))
    }

    /// Checks a read of the cache: of one object, or of all in a namespace or everywhere.
    ///
    /// # Errors
    /// What the account lacks to see all that the read concerns.
    pub fn check(&self, of: &TypeMeta, namespace: Option<&str>, name: Option<&str>) -> Result<(), String> {
        self.read(|known| {
            let Some(scopes) = known.get(of) else {
                return Err(format!("it is not known yet whether the service account {} may read {of}", self.account));
            };
            let given = |scope: &Scope| {
                let covers = |given: &Scope| given.covers(scope.namespace.as_deref(), scope.name.as_deref());
                scopes.iter().any(|(given, right)| *right == Right::Given && covers(given))
            };
            let wanted = Scope { namespace: namespace.map(str::to_owned), name: name.map(str::to_owned) };
            if given(&wanted) {
                return Ok(());
            }
            let lacking = scopes.iter().find_map(|(scope, right)| match right {
                Right::Lacking(why) if scope.overlaps(&wanted) && !given(scope) => Some(why),
                _ => None,
            });
            lacking.map_or(Ok(()), |why| Err(self.message(why)))
        })
    }

    /// Returns a message for each scope that may not be read.
    pub fn lacking(&self) -> Vec<String> {
        self.read(|known| {
            let all = known.values().flat_map(BTreeMap::values);
            let mut all: Vec<_> = all
                .filter_map(|right| match right {
                    Right::Lacking(why) => Some(self.message(why)),
                    Right::Given => None,
                })
                .collect();
            all.dedup();
            all
        })
    }

    fn message(&self, why: &str) -> String {
        format!("the service account {} {why}", self.account)
    }

    fn read<T>(&self, look: impl FnOnce(&BTreeMap<TypeMeta, BTreeMap<Scope, Right>>) -> T) -> T {
        look(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Scope {
    /// Returns `true` if it includes all of this: a namespace or all, and a name or all.
    fn covers(&self, namespace: Option<&str>, name: Option<&str>) -> bool {
        (self.namespace.is_none() || self.namespace.as_deref() == namespace)
            && (self.name.is_none() || self.name.as_deref() == name)
    }

    /// Returns `true` if an object may be in both.
    fn overlaps(&self, other: &Self) -> bool {
        let meet = |one: &Option<String>, other: &Option<String>| one.is_none() || other.is_none() || one == other;
        meet(&self.namespace, &other.namespace) && meet(&self.name, &other.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(namespace: Option<&str>, name: Option<&str>) -> Scope {
        Scope { namespace: namespace.map(str::to_owned), name: name.map(str::to_owned) }
    }

    fn maps(namespace: Option<&str>, name: Option<&str>) -> LeaseScope {
        LeaseScope { of: TypeMeta::new("v1", "ConfigMap"), scope: scope(namespace, name) }
    }

    fn rights(answers: &[(LeaseScope, Right)]) -> Rights {
        let rights = Rights::unknown(ServiceAccount { namespace: "o".to_owned(), name: "p".to_owned() });
        rights.record(answers.iter().cloned());
        rights
    }

    fn lacking(what: &str) -> Right {
        Right::Lacking(what.into())
    }

    #[test]
    fn a_read_that_concerns_a_denied_scope_is_refused_as_a_whole() {
        let rights = rights(&[
            (maps(Some("a"), None), Right::Given),
            (maps(Some("b"), None), lacking("may not list in b")),
            (maps(Some("b"), Some("shared")), Right::Given),
        ]);
        let of = TypeMeta::new("v1", "ConfigMap");
        let denied = Err("the service account o/p may not list in b".to_owned());
        assert_eq!(rights.check(&of, Some("a"), None), Ok(()));
        assert_eq!(rights.check(&of, Some("a"), Some("x")), Ok(()));
        assert_eq!(rights.check(&of, Some("b"), Some("shared")), Ok(()));
        assert_eq!(rights.check(&of, Some("b"), Some("x")), denied);
        assert_eq!(rights.check(&of, Some("b"), None), denied);
        assert_eq!(rights.check(&of, None, None), denied);
        // The plugin has no lease there. The reader says so.
        assert_eq!(rights.check(&of, Some("c"), None), Ok(()));
        for (namespace, name, visible) in
            [("a", "x", true), ("b", "x", false), ("b", "shared", true), ("c", "x", false)]
        {
            assert_eq!(rights.may_see(&of, &Key::new(Some(namespace), name)), visible, "{namespace}/{name}");
        }
        assert_eq!(rights.lacking(), ["the service account o/p may not list in b"]);
    }

    #[test]
    fn what_is_not_known_is_denied() {
        let (rights, of) = (rights(&[]), TypeMeta::new("v1", "ConfigMap"));
        assert!(!rights.may_see(&of, &Key::new(Some("a"), "x")));
        assert!(rights.check(&of, Some("a"), None).is_err());
    }

    #[test]
    fn a_wider_scope_that_is_given_makes_up_for_a_narrower_one() {
        let rights = rights(&[(maps(None, None), Right::Given), (maps(Some("b"), None), lacking("no"))]);
        assert_eq!(rights.check(&TypeMeta::new("v1", "ConfigMap"), None, None), Ok(()));
        let denied_wide = self::rights(&[(maps(None, None), lacking("no")), (maps(Some("b"), None), Right::Given)]);
        assert_eq!(denied_wide.check(&TypeMeta::new("v1", "ConfigMap"), Some("b"), None), Ok(()));
        assert!(denied_wide.check(&TypeMeta::new("v1", "ConfigMap"), None, None).is_err());
    }

    #[test]
    fn changes_name_what_is_lost_and_what_comes_back() {
        let (a, b) = (maps(Some("a"), None), maps(Some("b"), None));
        let rights = rights(&[]);
        let first = rights.record([(a.clone(), Right::Given), (b.clone(), lacking("no"))]);
        assert_eq!((first.given, first.lost), (vec![a.clone()], vec![(b.clone(), "no".into())]));
        assert!(rights.record([(a.clone(), Right::Given), (b.clone(), lacking("still no"))]).is_empty());
        let swapped = rights.record([(a.clone(), lacking("gone")), (b.clone(), Right::Given)]);
        assert_eq!((swapped.regained, swapped.lost), (vec![b.clone()], vec![(a.clone(), "gone".into())]));
        rights.retain(|scope| *scope == b);
        assert_eq!((rights.of(&a), rights.of(&b)), (None, Some(Right::Given)));
    }
}
