//! Posts changes to Slack and to webhooks.
//!
//! A post that fails is logged and counted, and not repeated: a retry would repeat the whole call, with the lines and
//! posts of its other changes. The log has every change.

use std::{cell::Cell, fmt::Write, time::Duration};

use pilothouse_sdk::{
    http::{self, Http, HttpPermission},
    metrics::Counter,
    prelude::*,
};
use serde_json::{Value, json};

use crate::{Report, config::Config};

/// Posts, by target and result.
pub(crate) static NOTIFICATIONS: Counter<2> =
    Counter::new("kubediff_notifications_total", "Posts to Slack and to webhooks.").labels(["target", "result"]);

/// A call takes 10 s at most, and may have several targets.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Differences in a message. Slack cuts longer texts.
const SHOWN: usize = 20;

/// Characters of a value in a message.
const VALUE: usize = 200;

/// A server that gets reports.
pub(crate) struct Target {
    /// The label of the metric.
    name: &'static str,
    url: String,
    body: Box<dyn Fn(&Report<'_>) -> Value>,
    /// `true` after a post that got no answer. The rest of the call does without this target, so that it ends in time.
    is_away: Cell<bool>,
}

/// Returns the targets of a configuration.
pub(crate) fn targets(config: &Config) -> Vec<Target> {
    let objects = config.objects;
    let webhooks = config.webhooks.iter().map(|webhook| {
        let body = move |report: &Report<'_>| webhook_body(report, objects);
        Target { name: "webhook", url: webhook.url.clone(), body: Box::new(body), is_away: Cell::new(false) }
    });
    let slack = config.slack.clone().map(|slack| {
        let url = slack.url;
        let body = move |report: &Report<'_>| slack_body(report, slack.channel.as_deref(), slack.title.as_deref());
        Target { name: "slack", url, body: Box::new(body), is_away: Cell::new(false) }
    });
    webhooks.chain(slack).collect()
}

impl Target {
    /// Returns the permission that it needs.
    ///
    /// # Errors
    /// Fails if its URL is not valid.
    pub(crate) fn permission(&self) -> Result<HttpPermission, http::Error> {
        Ok(HttpPermission::for_url(&self.url)?.methods(["POST"]))
    }

    /// Posts a change.
    pub(crate) fn send(&self, http: &Http<'_>, report: &Report<'_>) {
        if self.is_away.get() {
            return NOTIFICATIONS.inc([self.name, "skipped"]);
        }
        let sent = http.post(&self.url).json(&(self.body)(report)).timeout(TIMEOUT).send();
        match sent.and_then(http::Response::error_for_status).map(|answer| rejection(&answer)) {
            Ok(None) => NOTIFICATIONS.inc([self.name, "success"]),
            Ok(Some(why)) => self.failed(&why),
            Err(error) => {
                self.is_away.set(error.status().is_none());
                self.failed(&error.to_string());
            }
        }
    }

    fn failed(&self, why: &str) {
        NOTIFICATIONS.inc([self.name, "error"]);
        // Without the URL, which may be a secret.
        warn!("cannot post a change", target = self.name, error = why);
    }
}

/// Returns why Slack's API did not accept a message. It answers with status 200.
fn rejection(answer: &http::Response) -> Option<String> {
    let body: Value = answer.json().ok()?;
    (body["ok"] == false).then(|| body["error"].as_str().unwrap_or("it gave no reason").to_owned())
}

fn webhook_body(report: &Report<'_>, objects: bool) -> Value {
    let mut body = json!({
        "event": report.event.as_str(), "time": report.time.to_string(), "apiVersion": report.of.api_version, "kind": report.of.kind,
        "name": report.key.name, "differences": report.differences,
    });
    let mut set =
        |member: &str, value: Value| drop(body.as_object_mut().map(|body| body.insert(member.to_owned(), value)));
    if let Some(namespace) = &report.key.namespace {
        set("namespace", json!(namespace));
    }
    if objects {
        for (member, object) in [("old", report.old), ("new", report.new)] {
            if let Some(object) = object {
                set(member, object.clone());
            }
        }
    }
    body
}

fn slack_body(report: &Report<'_>, channel: Option<&str>, title: Option<&str>) -> Value {
    let mut text = title.map(|title| format!("*{}*: ", escaped(title))).unwrap_or_default();
    let what = escaped(&format!("{} {}", report.of, report.key));
    // Writing to a String cannot fail.
    let _ = write!(text, "{what} {}", report.event.as_str());
    for difference in report.differences.iter().take(SHOWN) {
        let side = |value: &Option<Value>| value.as_ref().map_or_else(|| "nothing".to_owned(), short);
        let (old, new) = (side(&difference.old), side(&difference.new));
        let _ = write!(text, "\n• `{}`: {} → {}", escaped(&difference.path.to_string()), escaped(&old), escaped(&new));
    }
    if report.differences.len() > SHOWN {
        let _ = write!(text, "\n• and {} more", report.differences.len() - SHOWN);
    }
    match channel {
        Some(channel) => json!({"channel": channel, "text": text}),
        None => json!({ "text": text }),
    }
}

/// Returns a value on one line, cut to some characters.
pub(crate) fn short(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if text.chars().count() <= VALUE { text } else { text.chars().take(VALUE - 1).chain(['…']).collect() }
}

/// Escapes what Slack reads as markup of its own.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
