//! Checks watches, mappings and indexes.

use std::collections::BTreeSet;

use super::{
    super::{Controller, Index, MappedWatch, Mapping, Watch, WatchPattern, raw},
    Name, Problems, bounded, check_names, quoted,
};
use crate::{
    field::FieldPath,
    key::TypeMeta,
    object::Keep,
    predicate::{Condition, Expression, Predicate, Test},
    selector::{self, FieldSelector, Selector},
};

/// Largest number of lists in one `when`, and of conditions in one list. Each is evaluated for every change of the
/// kind.
const MAX_CONDITIONS: usize = 16;
/// Largest number of CEL expressions in a manifest: each takes some hundred microseconds to compile.
const MAX_EXPRESSIONS: usize = 256;
/// Largest field selector in bytes: more than a URL should carry.
const MAX_FIELDS: usize = 1024;

/// The verbs that discovery lists.
const SERVED: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// The list that a watch is in, which decides what it may contain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Owned,
    Other,
}

impl raw::Watch {
    pub(super) fn check(self, at: &str, part: Part, problems: &mut Problems) -> Option<Watch> {
        if self.of.kind == "*" {
            problems.add(&format!("{at}.kind"), "must name one kind: only `observes` takes patterns");
            return None;
        }
        if !self.except.is_empty() {
            problems.add(&format!("{at}.except"), "must be empty: the watch names one kind");
        }
        if !self.with_verbs.is_empty() {
            problems.add(&format!("{at}.with-verbs"), "must be empty: the watch names one kind");
        }
        let of = self.of.clone().check(at, problems);
        self.check_rest(of, at, part, problems)
    }

    /// Checks a watch of the kind `*`.
    pub(super) fn check_pattern(mut self, at: &str, problems: &mut Problems) -> Option<WatchPattern> {
        let of = self.of.clone().check_kinds(at, problems);
        let except: Vec<_> = bounded(std::mem::take(&mut self.except), &format!("{at}.except"), problems)
            .zip(0..)
            .filter_map(|(kinds, place)| kinds.check_kinds(&format!("{at}.except[{place}]"), problems))
            .collect();
        let with_verbs = std::mem::take(&mut self.with_verbs);
        let with_verbs: Vec<_> = bounded(with_verbs, &format!("{at}.with-verbs"), problems).collect();
        for (verb, place) in with_verbs.iter().zip(0..).filter(|(verb, _)| !SERVED.contains(&verb.as_str())) {
            let what = format!("{} is no verb of the API server: there are {}", quoted(verb), SERVED.join(", "));
            problems.add(&format!("{at}.with-verbs[{place}]"), what);
        }
        if self.fields.is_some() {
            problems.add(&format!("{at}.fields"), "must be empty: kinds are selected by different fields");
        }
        let watch = self.check_rest(of, at, Part::Other, problems);
        Some(WatchPattern { watch: watch?, except, with_verbs })
    }

    /// Checks everything but the kind.
    fn check_rest(self, of: Option<TypeMeta>, at: &str, part: Part, problems: &mut Problems) -> Option<Watch> {
        let namespaces = check_names(self.namespaces, &format!("{at}.namespaces"), Name::Label, problems);
        let labels = self.labels.map(|labels| Selector::parse(&labels)).transpose().map_err(|error| {
            problems.add(&format!("{at}.labels"), format!("{}: {}", quoted(&error.selector), error.problem));
        });
        let fields = self.fields.map(|fields| field_selector(&fields)).transpose().map_err(|problem| {
            problems.add(&format!("{at}.fields"), problem);
        });
        let without = check_paths(self.without, &format!("{at}.without"), problems);
        if part == Part::Owned && self.metadata_only {
            problems.add(&format!("{at}.metadata-only"), "must be false: the host compares children whole");
        }
        if part == Part::Owned && !without.is_empty() {
            problems.add(&format!("{at}.without"), "must be empty: the host compares children whole");
        }
        let keep = Keep::new(self.metadata_only, without).map_err(|error| {
            problems.add(&format!("{at}.without"), error.to_string());
        });
        let keep = keep.ok();
        let when = check_when(self.when, keep.as_ref(), &format!("{at}.when"), problems);
        Some(Watch {
            of: of?,
            namespaces,
            labels: labels.ok()?,
            fields: fields.ok()?.filter(|fields| !fields.is_empty()),
            keep: keep?,
            compressed: self.compressed,
            when: when?,
        })
    }
}

impl raw::MappedWatch {
    pub(super) fn check(self, at: &str, problems: &mut Problems) -> Option<MappedWatch> {
        let mapping = match self.mapping {
            raw::Mapping::Owner => Some(Mapping::Owner),
            raw::Mapping::AnyOwner => Some(Mapping::AnyOwner),
            raw::Mapping::SameKey => Some(Mapping::SameKey),
            raw::Mapping::Plugin => Some(Mapping::Plugin),
            // Whether the index is declared is checked when all indexes are known.
            raw::Mapping::Index(name) => Some(Mapping::Index(name)),
            raw::Mapping::Label(label) if selector::is_label_key(&label) => Some(Mapping::Label(label)),
            raw::Mapping::Label(label) => {
                problems.add(&format!("{at}.mapping.label"), format!("{} is no label key", quoted(&label)));
                None
            }
        };
        let watch = self.watch.check(&format!("{at}.watch"), Part::Other, problems);
        Some(MappedWatch { watch: watch?, mapping: mapping? })
    }
}

impl raw::Index {
    pub(super) fn check(self, at: &str, problems: &mut Problems) -> Option<Index> {
        let well_formed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if !(1..=63).contains(&self.name.len()) || !self.name.bytes().all(well_formed) {
            let rule = "must be 1 to 63 letters, digits, `-`, `_` and `.`";
            problems.add(&format!("{at}.name"), format!("{} {rule}", quoted(&self.name)));
        }
        let of = self.of.check(at, problems);
        let path = check_path(&self.path, &format!("{at}.path"), problems);
        Some(Index { name: self.name, of: of?, path: path? })
    }
}

/// Checks the indexes. `cached`: what controllers cache; `None` if part of it could not be read, as an index may be of
/// that part.
pub(super) fn check_indexes(
    indexes: Vec<raw::Index>,
    cached: Option<&[&Watch]>,
    problems: &mut Problems,
) -> Vec<Index> {
    let mut names = BTreeSet::new();
    let mut checked = Vec::new();
    for (index, place) in bounded(indexes, "indexes", problems).zip(0..) {
        let at = format!("indexes[{place}]");
        if !names.insert(index.name.clone()) {
            problems.add(&format!("{at}.name"), format!("{} names another index already", quoted(&index.name)));
        }
        let Some(index) = index.check(&at, problems) else { continue };
        if let Some(cached) = cached {
            let mut of_kind = cached.iter().filter(|watch| watch.of == index.of).peekable();
            if of_kind.peek().is_none() {
                problems.add(&at, format!("no controller is for, owns, watches or reads {}", index.of));
            } else if !of_kind.any(|watch| watch.keep.keeps(&index.path)) {
                let what = format!("{} is not cached: `metadata-only` or `without` leave it out", index.path);
                problems.add(&format!("{at}.path"), what);
            }
        }
        checked.push(index);
    }
    checked
}

/// Checks that a mapping's index exists and is of the controller's kind.
pub(super) fn check_mappings(controllers: &[Controller], indexes: &[Index], problems: &mut Problems) {
    for (controller, place) in controllers.iter().zip(0..) {
        for (mapped, watch) in controller.watches.iter().zip(0..) {
            let Mapping::Index(name) = &mapped.mapping else { continue };
            let at = format!("controllers[{place}].watches[{watch}].mapping.index");
            let of = &controller.for_.of;
            match indexes.iter().find(|index| index.name == *name) {
                None => problems.add(&at, format!("none of `indexes` has the name {}", quoted(name))),
                Some(index) if index.of != *of => {
                    problems.add(&at, format!("{} is an index of {}, and not of {of}", quoted(name), index.of));
                }
                Some(_) => {}
            }
        }
    }
}

fn field_selector(text: &str) -> Result<FieldSelector, String> {
    if text.len() > MAX_FIELDS {
        return Err(format!("has {} bytes; at most {MAX_FIELDS} are taken", text.len()));
    }
    FieldSelector::parse(text).map_err(|error| format!("{}: {}", quoted(&error.selector), error.problem))
}

fn check_paths(paths: Vec<String>, at: &str, problems: &mut Problems) -> Vec<FieldPath> {
    let mut checked = Vec::new();
    for (path, place) in bounded(paths, at, problems).zip(0..) {
        let at = format!("{at}[{place}]");
        let Some(path) = check_path(&path, &at, problems) else { continue };
        if checked.contains(&path) {
            problems.add(&at, format!("{path} is there already"));
        } else {
            checked.push(path);
        }
    }
    checked
}

fn check_path(path: &str, at: &str, problems: &mut Problems) -> Option<FieldPath> {
    let parsed = FieldPath::parse(path);
    parsed.map_err(|error| problems.add(at, format!("{}: {} at byte {}", quoted(path), error.what, error.at))).ok()
}

/// `keep`: what is kept of the objects, if known.
fn check_when(
    when: Vec<Vec<raw::Condition>>,
    keep: Option<&Keep>,
    at: &str,
    problems: &mut Problems,
) -> Option<Predicate> {
    let before = problems.count;
    let too_many = |list: usize, at: &str, problems: &mut Problems| {
        if list > MAX_CONDITIONS {
            problems.add(at, format!("has {list} entries; at most {MAX_CONDITIONS} are taken"));
        }
    };
    too_many(when.len(), at, problems);
    let mut any = Vec::new();
    for (conditions, place) in when.into_iter().take(MAX_CONDITIONS).zip(0..) {
        let at = format!("{at}[{place}]");
        too_many(conditions.len(), &at, problems);
        if conditions.is_empty() {
            problems.add(&at, "is empty, so every change matters: leave `when` out");
        }
        let conditions = conditions.into_iter().take(MAX_CONDITIONS).zip(0..);
        any.push(conditions.filter_map(|(one, place)| one.check(keep, &format!("{at}[{place}]"), problems)).collect());
    }
    (problems.count == before).then(|| Predicate::new(any))
}

impl raw::Condition {
    fn check(self, keep: Option<&Keep>, at: &str, problems: &mut Problems) -> Option<Condition> {
        // Both sides would lack the field, so the condition could not see it change.
        let is_cut = |field: &&FieldPath| keep.is_some_and(|keep| !keep.keeps(field));
        let cut = |field: &FieldPath| {
            format!("{field} is not cached, and never seen to change: `metadata-only` or `without` leave it out")
        };
        let test = match self.test {
            raw::Test::Generation => Test::Generation,
            raw::Test::Labels => Test::Labels,
            raw::Test::Annotations => {
                let annotations = FieldPath::top("metadata").member("annotations");
                if is_cut(&&annotations) {
                    problems.add(at, cut(&annotations));
                }
                Test::Annotations
            }
            raw::Test::Finalizers => Test::Finalizers,
            raw::Test::Deletion => Test::Deletion,
            raw::Test::ResourceVersion => Test::ResourceVersion,
            raw::Test::Cel(text) => {
                let at = format!("{at}.cel");
                problems.expressions += 1;
                if problems.expressions > MAX_EXPRESSIONS {
                    problems.add(&at, format!("a manifest has at most {MAX_EXPRESSIONS} expressions"));
                    return None;
                }
                let compiled = Expression::compile(&text);
                let compiled =
                    compiled.map_err(|error| problems.add(&at, format!("{}: {}", quoted(&text), error.0))).ok()?;
                if let Some(field) = compiled.fields().iter().find(is_cut) {
                    problems.add(&at, format!("{}: {}", quoted(&text), cut(field)));
                }
                Test::Cel(compiled)
            }
        };
        Some(Condition { test, negated: self.negated })
    }
}
