//! Log lines as JSON: one object a line.
//!
//! The objects are those of `tracing-subscriber`, with the fields of an event beside `message`. A plugin's own fields
//! are an object of their own, so they cannot pass for fields of the host:
//!
//! ```text
//! {"timestamp":"…","level":"INFO","message":"scaled","fields":{"from":"3"},"target":"pilothouse::plugin_log","span":{…},"spans":[…]}
//! ```

use std::{
    fmt::{self, Debug},
    marker::PhantomData,
};

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::{LookupSpan, SpanRef},
};

use crate::wasm::{LOG_FIELDS, LOG_TARGET};

/// Formats an event as JSON.
pub(super) struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let metadata = event.metadata();
        let span = event.parent().and_then(|id| ctx.span(id)).or_else(|| ctx.lookup_current());
        let mut line = Vec::with_capacity(512);
        let mut write = || {
            let mut serializer = serde_json::Serializer::new(&mut line);
            let mut map = serializer.serialize_map(None)?;
            map.serialize_entry("timestamp", &timestamp)?;
            map.serialize_entry("level", metadata.level().as_str())?;
            let mut fields = Fields { map, failed: None, of_plugin: metadata.target() == LOG_TARGET };
            event.record(&mut fields);
            let Fields { mut map, failed, .. } = fields;
            if let Some(error) = failed {
                return Err(error);
            }
            map.serialize_entry("target", metadata.target())?;
            if let Some(span) = &span {
                map.serialize_entry("span", &Span::<S, N>(span, PhantomData))?;
                let spans: Vec<_> = span.scope().from_root().collect();
                let spans: Vec<_> = spans.iter().map(|span| Span::<S, N>(span, PhantomData)).collect();
                map.serialize_entry("spans", &spans)?;
            }
            map.end()
        };
        write().map_err(|_| fmt::Error)?;
        writer.write_str(std::str::from_utf8(&line).map_err(|_| fmt::Error)?)?;
        writer.write_char('\n')
    }
}

/// Writes the fields of an event.
struct Fields<M: SerializeMap> {
    map: M,
    failed: Option<M::Error>,
    /// `true` if a plugin wrote the line.
    of_plugin: bool,
}

impl<M: SerializeMap> Fields<M> {
    fn write(&mut self, field: &Field, value: &(impl Serialize + ?Sized)) {
        if self.failed.is_none() {
            self.failed = self.map.serialize_entry(field.name(), value).err();
        }
    }
}

impl<M: SerializeMap> Visit for Fields<M> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.write(field, &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write(field, &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write(field, &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write(field, &value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.write(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if self.of_plugin && field.name() == LOG_FIELDS {
            // See `LogLine::emit`.
            if let Ok(fields) = RawValue::from_string(format!("{value:#?}")) {
                return self.write(field, &fields);
            }
        }
        self.write(field, &format_args!("{value:?}"));
    }
}

/// A span with its fields and its name.
struct Span<'a, 'b, S: for<'s> LookupSpan<'s>, N>(&'b SpanRef<'a, S>, PhantomData<N>);

impl<S, N> Serialize for Span<'_, '_, S, N>
where
    S: for<'s> LookupSpan<'s>,
    N: for<'s> FormatFields<'s> + 'static,
{
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        let mut map = serializer.serialize_map(None)?;
        let extensions = self.0.extensions();
        // Written by `JsonFields`.
        let fields = extensions.get::<FormattedFields<N>>().map_or("{}", |fields| fields.as_str());
        if let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(fields) {
            for (name, value) in fields {
                map.serialize_entry(&name, &value)?;
            }
        }
        map.serialize_entry("name", self.0.metadata().name())?;
        map.end()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use serde_json::{Value, json};
    use tracing_subscriber::{fmt::format::JsonFields, layer::SubscriberExt};

    use super::*;
    use crate::wasm::{Level, LogLine};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns what `log` logs, without times.
    fn logged(log: impl FnOnce()) -> Vec<Value> {
        let written = Written::default();
        let writer = written.clone();
        let layer = tracing_subscriber::fmt::layer()
            .fmt_fields(JsonFields::new())
            .event_format(Lines)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .map(|line| {
                let mut line: Value = serde_json::from_str(line).unwrap();
                let timestamp = line.as_object_mut().unwrap().remove("timestamp").unwrap();
                assert!(timestamp.as_str().unwrap().ends_with('Z'));
                line
            })
            .collect()
    }

    #[test]
    fn fields_of_an_event_stand_beside_its_message_and_spans_have_theirs() {
        let lines = logged(|| {
            let outer = tracing::info_span!("host", pid = 7);
            let inner = tracing::info_span!(parent: &outer, "reconcile", key = "default/a");
            let _entered = inner.enter();
            tracing::warn!(target: "pilothouse::x", error = %"no\nway", count = 3, ratio = 0.5, ok = false, what = ?[1], "failed");
        });
        let (outer, inner) = (json!({"name": "host", "pid": 7}), json!({"name": "reconcile", "key": "default/a"}));
        let expected = json!({
            "level": "WARN", "message": "failed", "error": "no\nway", "count": 3, "ratio": 0.5, "ok": false, "what": "[1]",
            "target": "pilothouse::x", "span": inner, "spans": [outer, inner],
        });
        assert_eq!(lines, [expected]);
    }

    #[test]
    fn fields_of_a_plugin_are_an_object_that_cannot_pass_for_the_hosts() {
        let fields = [
            ("from", "3"),
            ("level", "ERROR"),
            ("why", "a \"b\"\nc\u{9b}2J"),
            ("from", "4"),
            ("from_2", "5"),
            ("", "{}"),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let lines = logged(|| {
            LogLine::new(Level::Info, "scaled".to_owned(), fields).emit();
            LogLine::new(Level::Warn, "bare".to_owned(), Vec::new()).emit();
        });
        let of_plugin = json!({
            "from": "3", "level": "ERROR", "why": "a \"b\"\nc\\u{9b}2J", "from_2": "4", "from_2_2": "5", "": "{}",
        });
        let line = |level: &str, message: &str, fields: Value| json!({"level": level, "message": message, "fields": fields, "target": LOG_TARGET});
        assert_eq!(lines, [line("INFO", "scaled", of_plugin), line("WARN", "bare", json!({}))]);
    }

    #[test]
    fn a_name_of_the_host_that_looks_like_a_plugins_fields_stays_text() {
        let lines = logged(|| tracing::info!(target: "pilothouse::x", fields = %"{\"a\":1}", "told"));
        assert_eq!(lines[0]["fields"], "{\"a\":1}");
    }
}
