//! The fields of an event, and of the reconcile in which it happened, for layers of `tracing`.

use std::{collections::BTreeMap, fmt::Debug};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{layer::Context, registry::LookupSpan};

/// The span whose fields are kept.
const RECONCILE: &str = "reconcile";

/// Fields of an event or of a span, by name.
#[derive(Default)]
pub(super) struct Fields(BTreeMap<&'static str, String>);

impl Fields {
    /// Returns a field, or an empty text.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Returns a field that is there and not empty.
    pub(super) fn optional(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty()).cloned()
    }

    /// Returns `true` if the field is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the fields except one, as text.
    pub(super) fn without(&self, other: &str) -> String {
        let rest = self.0.iter().filter(|(name, _)| **name != other);
        rest.map(|(name, value)| format!(" {name}={value}")).collect()
    }
}

impl FromIterator<(&'static str, String)> for Fields {
    fn from_iter<T: IntoIterator<Item = (&'static str, String)>>(fields: T) -> Self {
        Self(fields.into_iter().collect())
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

/// Keeps the fields of a new span for [`read`], if it is that of a reconcile.
pub(super) fn keep<S>(attributes: &Attributes<'_>, id: &Id, context: &Context<'_, S>)
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let Some(span) = context.span(id).filter(|span| span.name() == RECONCILE) else { return };
    let mut fields = Fields::default();
    attributes.record(&mut fields);
    span.extensions_mut().insert(fields);
}

/// Calls `read` with the fields of an event, and with those of its reconcile, of which there are none outside of one.
pub(super) fn read<S, T>(event: &Event<'_>, context: &Context<'_, S>, read: impl FnOnce(&Fields, &Fields) -> T) -> T
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let (mut fields, none) = (Fields::default(), Fields::default());
    event.record(&mut fields);
    match context.event_scope(event).and_then(|mut scope| scope.find(|span| span.name() == RECONCILE)) {
        Some(span) => read(&fields, span.extensions().get::<Fields>().unwrap_or(&none)),
        None => read(&fields, &none),
    }
}
