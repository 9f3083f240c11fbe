//! Shows events, one line each: what changed, which plugin was called, what it wrote, and how long each took.
//!
//! A layer of `tracing` that shows the events of target `pilothouse::feed`. A plugin's own log lines pass through as log lines.

use std::{
    fmt::Write as _,
    io::{IsTerminal, Write as _},
};

use jiff::{Zoned, tz::TimeZone};
use tracing::{
    Event, Subscriber,
    span::{Attributes, Id},
};
use tracing_subscriber::{
    Layer,
    fmt::{format::Writer, time::FormatTime},
    layer::Context,
    registry::LookupSpan,
};

use super::fields::{self, Fields};

/// Shows the feed on standard output.
pub(super) struct Feed {
    colour: bool,
    clock: Clock,
}

/// The local time of day.
#[derive(Clone)]
pub(super) struct Clock(TimeZone);

impl Default for Clock {
    fn default() -> Self {
        Self(TimeZone::system())
    }
}

impl Clock {
    fn now(&self) -> String {
        Zoned::now().with_time_zone(self.0.clone()).strftime("%H:%M:%S%.3f").to_string()
    }
}

impl FormatTime for Clock {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        writer.write_str(&self.now())
    }
}

/// Returns `true` if standard output is a terminal and `NO_COLOR` is not set (no-color.org).
pub(super) fn coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

const DIM: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const CYAN: &str = "\x1b[36m";
const PLAIN: &str = "\x1b[0m";

impl Feed {
    pub(super) fn new() -> Self {
        Self { colour: coloured(), clock: Clock::default() }
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colour { format!("{colour}{text}{PLAIN}") } else { text.to_owned() }
    }

    /// Returns the line of one event. `around` are the fields of the reconcile that it belongs to.
    fn line(&self, event: &Fields, around: &Fields) -> Option<String> {
        let field = |name| event.get(name);
        let mut line = String::new();
        match field("what") {
            "changed" => {
                let _ = write!(
                    line,
                    "{} {} {} {}  {}",
                    self.paint(CYAN, "changed   "),
                    field("kind"),
                    self.paint(BOLD, field("object")),
                    field("change"),
                    self.paint(
                        DIM,
                        format!(
                            "wakes {}/{} {} {}",
                            field("plugin"),
                            field("controller"),
                            field("wakes"),
                            field("why")
                        )
                        .trim_end()
                    ),
                );
            }
            "mapped" => {
                let _ = write!(
                    line,
                    "{} {}  {}",
                    self.paint(CYAN, "mapped    "),
                    self.paint(BOLD, field("object")),
                    self.paint(DIM, &format!("wakes {}/{} {}", field("plugin"), field("controller"), field("wakes"))),
                );
            }
            "outdated" => {
                let _ = write!(
                    line,
                    "{} what {} read had changed before  {}",
                    self.paint(CYAN, "outdated  "),
                    self.paint(BOLD, field("wakes")),
                    self.paint(DIM, &format!("wakes {}/{} {}", field("plugin"), field("controller"), field("wakes"))),
                );
            }
            "observed" => {
                let _ = write!(
                    line,
                    "{} {} by {}  {}",
                    self.paint(CYAN, "observed  "),
                    self.paint(BOLD, field("object")),
                    field("plugin"),
                    self.paint(DIM, field("took")),
                );
            }
            "wrote" => {
                let _ = write!(
                    line,
                    "{}   {} {} {}  {}",
                    self.paint(GREEN, "wrote     "),
                    past(field("verb")),
                    field("kind"),
                    self.paint(BOLD, field("object")),
                    self.paint(DIM, field("took")),
                );
            }
            "refused" => {
                let _ = write!(
                    line,
                    "{}   {} {} {}: {}",
                    self.paint(RED, "refused   "),
                    field("verb"),
                    field("kind"),
                    self.paint(BOLD, field("object")),
                    field("error"),
                );
            }
            "reconciled" => {
                let error = field("error");
                let (colour, word) = if error.is_empty() { (GREEN, "reconciled") } else { (RED, "failed    ") };
                let _ = write!(
                    line,
                    "{} {} by {}: {} written, {} unchanged  {}",
                    self.paint(colour, word),
                    self.paint(BOLD, around.get("key")),
                    around.get("plugin"),
                    field("written"),
                    field("unchanged"),
                    self.paint(DIM, &format!("{} in all, {} in the plugin", field("took"), field("in_guest"))),
                );
                if !error.is_empty() {
                    let _ = write!(line, ": {error}");
                }
            }
            _ => return None,
        }
        Some(line)
    }
}

fn past(verb: &str) -> &str {
    match verb {
        "apply" => "applied",
        "create" => "created",
        "update" => "updated",
        "patch" => "patched",
        "delete" => "deleted",
        other => other,
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Feed {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        fields::keep(attributes, id, &context);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if event.metadata().target() != "pilothouse::feed" {
            return;
        }
        if let Some(line) = fields::read(event, &context, |event, around| self.line(event, around)) {
            let time = self.clock.now();
            // The host goes on without a reader.
            let _ = writeln!(std::io::stdout(), "{} {line}", self.paint(DIM, &time));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&'static str, &str)]) -> Fields {
        pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
    }

    #[test]
    fn lines_say_what_happened_to_what_and_how_long_it_took() {
        let feed = Feed { colour: false, clock: Clock(TimeZone::UTC) };
        let around = fields(&[("key", "default/a"), ("plugin", "myapple")]);
        let line = |pairs| feed.line(&fields(pairs), &around);
        insta::assert_snapshot!(
            line(&[("what", "changed"), ("kind", "MyApple"), ("object", "default/a"), ("change", "spec.quantity: 3 → 5"), ("plugin", "myapple"), ("controller", "apples"), ("wakes", "default/a")]).unwrap_or_default(),
            @"changed    MyApple default/a spec.quantity: 3 → 5  wakes myapple/apples default/a"
        );
        insta::assert_snapshot!(
            line(&[("what", "changed"), ("kind", "Secret"), ("object", "default/s"), ("change", "created"), ("plugin", "myapple"), ("controller", "apples"), ("wakes", "default/a"), ("why", "by what it read")]).unwrap_or_default(),
            @"changed    Secret default/s created  wakes myapple/apples default/a by what it read"
        );
        insta::assert_snapshot!(
            line(&[("what", "wrote"), ("verb", "apply"), ("kind", "ConfigMap"), ("object", "default/a-0"), ("took", "1.2ms")]).unwrap_or_default(),
            @"wrote        applied ConfigMap default/a-0  1.2ms"
        );
        insta::assert_snapshot!(
            line(&[("what", "reconciled"), ("written", "2"), ("unchanged", "1"), ("took", "4ms"), ("in_guest", "1ms")]).unwrap_or_default(),
            @"reconciled default/a by myapple: 2 written, 1 unchanged  4ms in all, 1ms in the plugin"
        );
        insta::assert_snapshot!(
            line(&[("what", "mapped"), ("object", "Secret default/s"), ("plugin", "myapple"), ("controller", "apples"), ("wakes", "default/a")]).unwrap_or_default(),
            @"mapped     Secret default/s  wakes myapple/apples default/a"
        );
        insta::assert_snapshot!(
            line(&[("what", "outdated"), ("plugin", "myapple"), ("controller", "apples"), ("wakes", "default/a")]).unwrap_or_default(),
            @"outdated   what default/a read had changed before  wakes myapple/apples default/a"
        );
        insta::assert_snapshot!(
            line(&[("what", "observed"), ("object", "Pod default/p"), ("plugin", "myapple"), ("took", "80µs")]).unwrap_or_default(),
            @"observed   Pod default/p by myapple  80µs"
        );
        assert_eq!(line(&[("what", "unheard of")]), None);
    }
}
