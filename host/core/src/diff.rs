//! Decides whether an apply would change anything, so that a reconcile that changes nothing sends no request.
//!
//! A server-side apply states two things: these fields have these values, and this manager owns exactly these fields.
//! It changes nothing if every value is already so and the field set of the manager's last apply names the same fields.
//! The host keeps the field sets of its own managers beside each cached object ([`Object::applied`]). So it can decide
//! without a request, even right after a restart.
//!
//! ```text
//! desired                      owned (fieldsV1)                     live
//! data:                        f:data                               data:
//!   color: red        ◄──────►   f:color: {}            ◄──────►      color: red
//!                                                                     size: small      another writer's, not compared
//! ```
//!
//! The field set carries what a schema would tell. `f:` is a member of a map, `k:` an element of an associative list,
//! and `v:` an element of a set. `{}` is a leaf, owned as a whole: a scalar, or an atomic map or list. The walk
//! descends all three at once.
//!
//! # Guarantees
//!
//! [`holds`] never returns `true` if an apply would change a value. One exception: a null that was applied and is
//! absent counts as equal, since the server drops nulls that a schema does not allow. It returns `false` where only the
//! server could decide. That costs one request that changes nothing, whose answer is remembered ([`Object::settle`]).
//! These are:
//!
//! - values that the server stores in another form: defaults inside an atomic map or list, quantities (`1000m` becomes
//!   `1`), `stringData`, zero values that built-in kinds omit;
//! - a desired empty map or null where another writer has a value;
//! - a desired empty list where another writer has a value, or, unless the kind is built in, where there is none;
//! - sets of non-scalar elements, and lists in which the live object repeats a desired element.
//!
//! For the first of these there is [`is_untouched`], which does not compare values that the server may store in another
//! form. It relies on a rule: another writer's change of a value takes the field out of this manager's field set. The
//! caller must know that `desired` is the text of this manager's last apply.
//!
//! Ownership is as exact, except for two cases that no field set can distinguish. A leaf is either atomic, or was an
//! empty map or a null when it was applied. And no field set names an empty list unless it is atomic. If another writer
//! has put the desired value there, an apply would only add this manager as a second owner, and is not sent. It is sent
//! once the value differs.
//!
//! The writer decides whether an object may be taken over, and sends.

mod fields;
mod tree;

use hashbrown::HashMap;
use serde_json::{Map, Number, Value, value::RawValue};

use self::{
    fields::{Element, Fields},
    tree::{Members, Tree},
};
use crate::object::{Object, Subresource};

/// Members of `metadata` that are the object's identity or the server's own. They are never in field sets (`stripMeta`
/// of the API server's field manager), so an apply that repeats them changes nothing.
const IDENTITY: [&str; 8] =
    ["name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields"];

/// Returns `true` if a server-side apply of `desired` by `manager` would change nothing: the live object has every
/// desired value, and `manager` owns exactly these fields since its last apply.
///
/// `desired` is what the apply would send: a whole object, or for [`Subresource::Status`] an object with `status`. For
/// a kind with a status subresource the server ignores `status` in an apply of the object, so leave it out.
///
/// # Guarantees
///
/// Never panics, whatever the texts. Returns `false` for field sets nested deeper than serde_json's limit of 128. Time
/// and memory are linear in the three texts.
pub fn holds(live: &Object, manager: &str, subresource: Option<Subresource>, desired: &Value) -> bool {
    let rules = Rules { values: Values::Same, built_in: is_built_in(&live.type_meta().api_version) };
    // A manager that owns nothing has no field set.
    text_holds(rules, &live.json(), live.applied(manager, subresource).unwrap_or("{}"), desired)
}

/// Returns `true` if no other writer has changed what `manager` applied, and `desired` is the text of that apply.
///
/// The caller must ensure the second part, for instance by a digest that was applied with the text. `metadata` is
/// compared as in [`holds`]. Elsewhere the walk compares what is owned, and the order of lists:
///
/// - Built-in kinds: values are not compared. The server stores quantities, times and empty values in its own form.
/// - Other kinds: atomic maps and lists may have members from defaults. Everything else must be equal.
///
/// # Guarantees
///
/// As for [`holds`]. A writer of `managedFields` that gives this manager a field changed by another deceives it.
pub fn is_untouched(live: &Object, manager: &str, desired: &Value) -> bool {
    let built_in = is_built_in(&live.type_meta().api_version);
    let values = if built_in { Values::Any } else { Values::Extended };
    live.applied(manager, None)
        .is_some_and(|owned| text_holds(Rules { values, built_in }, &live.json(), owned, desired))
}

/// Groups with a dot in their name whose kinds are part of kube-apiserver.
///
/// Groups with maps of structs are left out (`apiextensions.k8s.io`, `resource.k8s.io`): in a field set, an entry of
/// such a map that lost its members looks like an atomic value.
const BUILT_IN: [&str; 14] = [
    "admissionregistration.k8s.io",
    "apiregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// Returns `true` if the kind's type is a Go struct of kube-apiserver. The group of a CustomResourceDefinition must
/// have a dot.
fn is_built_in(api_version: &str) -> bool {
    match api_version.split_once('/') {
        None => true,
        Some((group, _)) => !group.contains('.') || BUILT_IN.contains(&group),
    }
}

/// How two values are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    /// Equal as JSON.
    Same,
    /// As `Same`, but live maps may have more members.
    Extended,
    /// Not at all: the field set alone decides.
    Any,
}

/// How the walk compares.
#[derive(Clone, Copy)]
struct Rules {
    values: Values,
    /// `true` for a built-in kind, for which an empty list equals an absent one.
    built_in: bool,
}

impl Rules {
    /// For `metadata`, whose values every kind stores as sent.
    const STRICT: Self = Self { values: Values::Same, built_in: false };

    fn agree(self, desired: &Value, live: Option<&Tree<'_>>) -> bool {
        match (self.values, live) {
            (Values::Any, _) => true,
            (Values::Same, Some(live)) => same(desired, live),
            (Values::Extended, Some(live)) => extends(desired, live),
            (_, None) => false,
        }
    }

    /// Returns `true` if absence or null is a built-in kind's form of this empty list.
    fn is_no_list(self, desired: &Value, live: Option<&Tree<'_>>) -> bool {
        self.built_in && matches!(live, None | Some(Tree::Null)) && desired.as_array().is_some_and(Vec::is_empty)
    }
}

/// [`holds`] and [`is_untouched`] on the texts.
fn text_holds(rules: Rules, live: &str, owned: &str, desired: &Value) -> bool {
    let Some(owned) = Fields::parse(owned) else { return false };
    // Parses only the top-level members that are needed: a status costs no walk through the spec.
    let Ok(live) = serde_json::from_str::<Members<'_, &RawValue>>(live) else { return false };
    let live = |name: &str| live.get(name).map(|raw| serde_json::from_str::<Tree<'_>>(raw.get())).transpose();
    let (Value::Object(desired), Some(mut owned)) = (desired, owned.into_members()) else { return false };

    for name in ["apiVersion", "kind"] {
        owned.remove(name);
    }
    if !owned.names().all(|name| desired.contains_key(name)) {
        return false;
    }
    desired.iter().all(|(name, desired)| {
        let Ok(live) = live(name) else { return false };
        match name.as_str() {
            "apiVersion" | "kind" => live.is_some_and(|live| same(desired, &live)),
            "metadata" => metadata(owned.remove(name), desired, live.as_ref()),
            _ => member(rules, owned.get(name), desired, live.as_ref()),
        }
    })
}

/// `metadata` has one schema in every kind: its lists and maps are not atomic, and the server omits empty ones.
fn metadata(owned: Option<Fields<'_>>, desired: &Value, live: Option<&Tree<'_>>) -> bool {
    let (Value::Object(desired), Some(Tree::Map(live))) = (desired, live) else { return false };
    let Some(mut owned) = owned.unwrap_or(Fields::Leaf).into_members() else { return false };
    for name in IDENTITY {
        owned.remove(name);
    }
    owned.names().all(|name| desired.contains_key(name))
        && desired.iter().all(|(name, desired)| {
            let (owned, live) = (owned.get(name), live.get(name));
            match (name.as_str(), desired) {
                (name, desired) if IDENTITY.contains(&name) => {
                    desired.is_null() || live.is_some_and(|live| same(desired, live))
                }
                ("labels" | "annotations", Value::Object(map)) if map.is_empty() => owned == Some(&Fields::Leaf),
                ("labels" | "annotations" | "ownerReferences" | "finalizers", Value::Null) => {
                    owned == Some(&Fields::Leaf)
                }
                ("ownerReferences" | "finalizers", Value::Array(list)) if list.is_empty() => owned.is_none(),
                ("labels" | "annotations" | "ownerReferences" | "finalizers", _) if owned == Some(&Fields::Leaf) => {
                    false
                }
                _ => member(Rules::STRICT, owned, desired, live),
            }
        })
}

/// Compares a member of a map, whether or not the field set names it.
fn member(rules: Rules, owned: Option<&Fields<'_>>, desired: &Value, live: Option<&Tree<'_>>) -> bool {
    match owned {
        Some(owned) => node(rules, owned, desired, live),
        None if rules.is_no_list(desired, live) => true,
        // Nothing in it is owned, so it can only consist of empty lists. Equal as a whole, since it may be part of an
        // atomic value.
        None => of_empty_lists(desired) && live.is_some_and(|live| same(desired, live)),
    }
}

fn of_empty_lists(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => !map.is_empty() && map.values().all(of_empty_lists),
        _ => false,
    }
}

fn node(rules: Rules, owned: &Fields<'_>, desired: &Value, live: Option<&Tree<'_>>) -> bool {
    // A built-in kind omits structs and lists of which only empty values were applied.
    let is_left_out = rules.values == Values::Any && live.is_none();
    match (owned, desired, live) {
        // Owned and absent: the server drops nulls where they are not allowed. A removal by another writer would have
        // removed the field from this manager's set too.
        (Fields::Leaf, Value::Null, None) => true,
        (Fields::Leaf, desired, live) if rules.is_no_list(desired, live) => true,
        // If the value is not atomic, the apply would own nothing in it, and give up the empty map or null that made it
        // a leaf.
        (Fields::Leaf, Value::Object(_), _) if of_empty_lists(desired) && rules.values == Values::Same => false,
        (Fields::Leaf, desired, live) => rules.agree(desired, live),
        (Fields::Members(owned), Value::Object(desired), live) if is_left_out || matches!(live, Some(Tree::Map(_))) => {
            let live = |name: &str| match live {
                Some(Tree::Map(live)) => live.get(name),
                _ => None,
            };
            owned.names().all(|name| desired.contains_key(name))
                && desired.iter().all(|(name, desired)| member(rules, owned.get(name), desired, live(name)))
        }
        (Fields::Elements { keys, elements }, Value::Array(desired), Some(Tree::List(live))) => {
            associative(rules, keys, elements, desired, live)
        }
        (Fields::Set(owned), Value::Array(desired), Some(Tree::List(live))) => set(owned, desired, live),
        _ => false,
    }
}

/// Returns `true` if the desired elements are exactly the owned ones, and the live list has them once, in the same
/// relative order (an apply would reorder them).
fn associative(rules: Rules, keys: &[String], owned: &[Element<'_>], desired: &[Value], live: &[Tree<'_>]) -> bool {
    let mut by_key = HashMap::with_capacity(owned.len());
    for element in owned {
        let Some(key) = key_as_applied(keys, element) else { return false };
        if by_key.insert(key, element).is_some() {
            return false;
        }
    }
    let places = places(live, |element| match element {
        Tree::Map(members) => key_of(keys, |name| members.get(name).map(Scalar::of_tree)),
        _ => None,
    });
    let mut order = Order::default();
    desired.len() == owned.len()
        && desired.iter().all(|desired| {
            // Removed, so that a second desired element of the same key finds none.
            let key = desired.as_object().and_then(|desired| key_of(keys, |name| desired.get(name).map(Scalar::of)));
            let Some(element) = key.and_then(|key| by_key.remove(&key)) else { return false };
            let full_key =
                element.key.iter().map(|value| Scalar::of(value).map(Some)).collect::<Option<ElementKey<'_>>>();
            let Some(place) = full_key.and_then(|key| order.next(places.get(&key))) else { return false };
            // A leaf element is atomic, or has lost all its applied members: compare its values.
            let values = match (&element.fields, rules.values) {
                (Fields::Leaf, Values::Any) => Values::Same,
                (_, values) => values,
            };
            node(Rules { values, ..rules }, &element.fields, desired, live.get(place))
        })
}

/// The values of an element's keys as applied; `None` for a key that was left to the schema's default.
type ElementKey<'a> = Vec<Option<Scalar<'a>>>;

/// The field set has a defaulted key's value too, but then the element's own fields do not name the key.
fn key_as_applied<'a>(keys: &[String], element: &'a Element<'_>) -> Option<ElementKey<'a>> {
    let named = |name| !matches!(&element.fields, Fields::Members(members) if members.get(name).is_none());
    let values = keys.iter().zip(&element.key);
    values.map(|(name, value)| if named(name) { Scalar::of(value).map(Some) } else { Some(None) }).collect()
}

/// Returns the key of a list element with these `members`; `None` if a value at a key is not a scalar.
fn key_of<'a>(keys: &[String], members: impl Fn(&str) -> Option<Option<Scalar<'a>>>) -> Option<ElementKey<'a>> {
    keys.iter().map(|name| members(name).map_or(Some(None), |scalar| scalar.map(Some))).collect()
}

/// As [`associative`], for elements that are their own keys.
fn set(owned: &[Value], desired: &[Value], live: &[Tree<'_>]) -> bool {
    let Some(mut named) =
        owned.iter().map(|value| Scalar::of(value).map(|key| (key, ()))).collect::<Option<HashMap<_, _>>>()
    else {
        return false;
    };
    let places = places(live, Scalar::of_tree);
    let mut order = Order::default();
    desired.len() == owned.len()
        && desired.iter().all(|desired| {
            let Some(value) = Scalar::of(desired) else { return false };
            named.remove(&value).is_some() && order.next(places.get(&value)).is_some()
        })
}

/// The positions of each key in a list.
enum Positions {
    Once(usize),
    Repeated,
}

fn places<'a, K: Eq + std::hash::Hash>(
    live: &'a [Tree<'a>],
    key: impl Fn(&'a Tree<'a>) -> Option<K>,
) -> HashMap<K, Positions> {
    let mut places = HashMap::with_capacity(live.len());
    for (place, element) in live.iter().enumerate() {
        if let Some(key) = key(element) {
            places.entry(key).and_modify(|seen| *seen = Positions::Repeated).or_insert(Positions::Once(place));
        }
    }
    places
}

/// Hands out positions while each is behind the previous one.
#[derive(Default)]
struct Order {
    from: usize,
}

impl Order {
    fn next(&mut self, place: Option<&Positions>) -> Option<usize> {
        match place {
            Some(&Positions::Once(place)) if place >= self.from => {
                self.from = place + 1;
                Some(place)
            }
            _ => None,
        }
    }
}

/// Returns `true` if both are equal as JSON, numbers by value.
fn same(desired: &Value, live: &Tree<'_>) -> bool {
    match (desired, live) {
        (Value::Array(desired), Tree::List(live)) => {
            desired.len() == live.len() && desired.iter().zip(live).all(|(desired, live)| same(desired, live))
        }
        (Value::Object(desired), Tree::Map(live)) => same_map(desired, live),
        _ => matches!((Scalar::of(desired), Scalar::of_tree(live)), (Some(a), Some(b)) if a == b),
    }
}

/// Returns `true` if both are equal as JSON, apart from additional members of live maps, which are defaults.
fn extends(desired: &Value, live: &Tree<'_>) -> bool {
    match (desired, live) {
        (Value::Array(desired), Tree::List(live)) => {
            desired.len() == live.len() && desired.iter().zip(live).all(|(desired, live)| extends(desired, live))
        }
        (Value::Object(desired), Tree::Map(live)) => {
            desired.iter().all(|(name, desired)| match live.get(name) {
                Some(live) => extends(desired, live),
                // The server drops nulls where they are not allowed.
                None => desired.is_null(),
            })
        }
        _ => same(desired, live),
    }
}

fn same_map(desired: &Map<String, Value>, live: &Members<'_, Tree<'_>>) -> bool {
    desired.len() == live.len()
        && desired.iter().all(|(name, desired)| live.get(name).is_some_and(|live| same(desired, live)))
}

/// A scalar for comparison and look-up: `1` and `1.0` are equal.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Scalar<'a> {
    Null,
    Bool(bool),
    Whole(i128),
    /// The bits of a number that is not whole, or exceeds 64 bits.
    Float(u64),
    Text(&'a str),
}

impl<'a> Scalar<'a> {
    fn of(value: &'a Value) -> Option<Self> {
        Some(match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(value) => Self::number(value)?,
            Value::String(value) => Self::Text(value),
            Value::Array(_) | Value::Object(_) => return None,
        })
    }

    fn of_tree(tree: &'a Tree<'_>) -> Option<Self> {
        Some(match tree {
            Tree::Null => Self::Null,
            Tree::Bool(value) => Self::Bool(*value),
            Tree::Number(value) => Self::number(value)?,
            Tree::Text(value) => Self::Text(value),
            Tree::List(_) | Tree::Map(_) => return None,
        })
    }

    fn number(number: &Number) -> Option<Self> {
        if let Some(whole) = number.as_i128() {
            return Some(Self::Whole(whole));
        }
        let float = number.as_f64()?;
        // Exact: below 2^64 the conversion loses nothing of a whole float.
        let whole = (float.fract() == 0.0 && float.abs() < 18_446_744_073_709_551_616.0).then_some(float as i128);
        Some(whole.map_or(Self::Float(float.to_bits()), Self::Whole))
    }
}

#[cfg(test)]
mod tests;
