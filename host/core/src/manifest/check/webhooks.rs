//! Checks webhooks.

use std::{collections::BTreeSet, time::Duration};

use super::{
    super::{DEFAULT_REVIEW, MAX_REVIEW, Webhook, WebhookRule, WebhookType, raw},
    Name, Problems, bounded, check_watches, quoted,
};
use crate::selector::{Requirement, Selector};

/// Largest number of webhooks of a plugin. Each is one more call for every request that it reviews.
const MAX_WEBHOOKS: usize = 16;
/// Largest number of match conditions of a webhook, as at the API server.
const MAX_MATCH_CONDITIONS: usize = 64;
/// Largest CEL expression of a match condition in bytes.
const MAX_EXPRESSION: usize = 4 << 10;

pub(super) fn check_webhooks(webhooks: Vec<raw::Webhook>, problems: &mut Problems) -> Vec<Webhook> {
    if webhooks.len() > MAX_WEBHOOKS {
        problems.add("webhooks", format!("has {} entries; at most {MAX_WEBHOOKS} are taken", webhooks.len()));
    }
    let mut names = BTreeSet::new();
    let webhooks = webhooks.into_iter().take(MAX_WEBHOOKS).zip(0..);
    let checked = webhooks.filter_map(|(webhook, place)| {
        let at = format!("webhooks[{place}]");
        if !names.insert(webhook.name.clone()) {
            problems.add(&format!("{at}.name"), format!("{} names another webhook already", quoted(&webhook.name)));
        }
        webhook.check(&at, problems)
    });
    checked.collect()
}

impl raw::Webhook {
    fn check(self, at: &str, problems: &mut Problems) -> Option<Webhook> {
        if !Name::Label.fits(&self.name) {
            problems.add(&format!("{at}.name"), format!("{} {}", quoted(&self.name), Name::Label));
        }
        if self.rules.is_empty() {
            problems.add(&format!("{at}.rules"), "is empty, so the webhook would review nothing");
        }
        let rules: Vec<_> = bounded(self.rules, &format!("{at}.rules"), problems).collect();
        for (rule, place) in rules.iter().zip(0..) {
            check_rule(rule, &format!("{at}.rules[{place}]"), problems);
        }
        let timeout = self.timeout_seconds.map_or(DEFAULT_REVIEW, |seconds| Duration::from_secs(seconds.into()));
        if !(Duration::from_secs(1)..=MAX_REVIEW).contains(&timeout) {
            let rule = format!("the API server waits 1 to {} s", MAX_REVIEW.as_secs());
            problems.add(&format!("{at}.timeout-seconds"), format!("is {}, and {rule}", timeout.as_secs()));
        }
        let namespaces = check_selector(self.namespaces, &format!("{at}.namespaces"), problems);
        let labels = check_selector(self.labels, &format!("{at}.labels"), problems);
        check_conditions(&self.match_conditions, &format!("{at}.match-conditions"), problems);
        if self.reinvoke && self.of_type == WebhookType::Validating {
            problems.add(&format!("{at}.reinvoke"), "must be false: only mutating webhooks are called again");
        }
        let reads = check_watches(self.reads, &format!("{at}.reads"), problems);
        Some(Webhook {
            name: self.name,
            of_type: self.of_type,
            rules,
            on_failure: self.on_failure,
            timeout,
            namespaces: namespaces?,
            labels: labels?,
            match_conditions: self.match_conditions,
            reinvoke: self.reinvoke,
            reads,
        })
    }
}

fn check_rule(rule: &WebhookRule, at: &str, problems: &mut Problems) {
    let group = |text: &str| text.is_empty() || Name::Subdomain.fits(text);
    let resource = |text: &str| {
        let (name, part) = text.split_once('/').unwrap_or((text, "*"));
        [name, part].iter().all(|word| *word == "*" || Name::Label.fits(word))
    };
    let mut check = |list: &[String], name: &str, form: &str, fits: &dyn Fn(&str) -> bool| {
        let at = format!("{at}.{name}");
        if list.is_empty() {
            problems.add(&at, "is empty, so the rule matches nothing");
        }
        // The list is the plugin's; the API server bounds the whole configuration.
        for one in list.iter().filter(|one| *one != "*" && !fits(one)) {
            problems.add(&at, format!("{} is not {form}", quoted(one)));
        }
    };
    check(&rule.api_groups, "api-groups", "a group, such as apps, or the empty text for the core group", &group);
    check(&rule.api_versions, "api-versions", "a version, such as v1", &|text| Name::Label.fits(text));
    check(&rule.resources, "resources", "a resource in plural, such as pods or pods/status", &resource);
    if rule.operations.is_empty() {
        problems.add(&format!("{at}.operations"), "is empty, so the rule matches nothing");
    }
}

fn check_selector(text: Option<String>, at: &str, problems: &mut Problems) -> Option<Option<Selector>> {
    let Some(text) = text else { return Some(None) };
    match Selector::parse(&text) {
        Ok(selector) => {
            let numeric = |one: &Requirement| matches!(one, Requirement::Greater(..) | Requirement::Less(..));
            if selector.requirements().iter().any(numeric) {
                problems.add(at, format!("{}: a webhook's selector cannot compare by < and >", quoted(&text)));
                return None;
            }
            Some(Some(selector))
        }
        Err(error) => {
            problems.add(at, format!("{}: {}", quoted(&error.selector), error.problem));
            None
        }
    }
}

fn check_conditions(conditions: &[(String, String)], at: &str, problems: &mut Problems) {
    if conditions.len() > MAX_MATCH_CONDITIONS {
        problems.add(at, format!("has {} entries; at most {MAX_MATCH_CONDITIONS} are taken", conditions.len()));
    }
    let mut names = BTreeSet::new();
    for ((name, expression), place) in conditions.iter().zip(0..).take(MAX_MATCH_CONDITIONS) {
        let at = format!("{at}[{place}]");
        if !Name::Label.fits(name) {
            problems.add(&at, format!("{} {}", quoted(name), Name::Label));
        } else if !names.insert(name) {
            problems.add(&at, format!("{} is there already", quoted(name)));
        }
        if expression.trim().is_empty() {
            problems.add(&at, "has no expression");
        }
        if expression.len() > MAX_EXPRESSION {
            problems.add(&at, format!("has {} bytes; at most {MAX_EXPRESSION} are taken", expression.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{FailurePolicy, Operation},
        *,
    };

    fn images() -> raw::Webhook {
        raw::Webhook {
            name: "images".to_owned(),
            of_type: WebhookType::Validating,
            rules: vec![WebhookRule {
                api_groups: vec![String::new()],
                api_versions: vec!["v1".to_owned()],
                resources: vec!["pods".to_owned(), "pods/*".to_owned()],
                operations: vec![Operation::Create],
            }],
            on_failure: FailurePolicy::Fail,
            timeout_seconds: None,
            namespaces: Some("team in (a, b)".to_owned()),
            labels: None,
            match_conditions: vec![("not-system".to_owned(), "true".to_owned())],
            reinvoke: false,
            reads: Vec::new(),
        }
    }

    fn problems(webhooks: Vec<raw::Webhook>) -> Vec<String> {
        let manifest = raw::Manifest { version: "1".to_owned(), webhooks, ..raw::Manifest::default() };
        manifest
            .check()
            .err()
            .map_or_else(Vec::new, |invalid| invalid.problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn plugin_of_webhooks_only_is_taken() {
        assert_eq!(problems(vec![images()]), Vec::<String>::new());
    }

    #[test]
    fn every_mistake_of_a_webhook_is_named() {
        let rule = WebhookRule {
            api_groups: Vec::new(),
            api_versions: vec!["V1".to_owned()],
            resources: vec!["Pods".to_owned()],
            operations: Vec::new(),
        };
        let wrong = raw::Webhook {
            name: "Images".to_owned(),
            rules: vec![rule],
            timeout_seconds: Some(31),
            namespaces: Some("a>5".to_owned()),
            labels: Some("=".to_owned()),
            match_conditions: vec![("a".to_owned(), " ".to_owned()), ("a".to_owned(), "x".repeat(5000))],
            reinvoke: true,
            ..images()
        };
        let found = problems(vec![wrong, raw::Webhook { rules: Vec::new(), ..images() }, images()]);
        let at: Vec<&str> = found.iter().filter_map(|problem| problem.split_once(": ")).map(|(at, _)| at).collect();
        assert_eq!(
            at,
            [
                "webhooks[0].name",
                "webhooks[0].rules[0].api-groups",
                "webhooks[0].rules[0].api-versions",
                "webhooks[0].rules[0].resources",
                "webhooks[0].rules[0].operations",
                "webhooks[0].timeout-seconds",
                "webhooks[0].namespaces",
                "webhooks[0].labels",
                "webhooks[0].match-conditions[0]",
                "webhooks[0].match-conditions[1]",
                "webhooks[0].match-conditions[1]",
                "webhooks[0].reinvoke",
                "webhooks[1].rules",
                "webhooks[2].name",
            ],
            "{found:?}"
        );
    }

    #[test]
    fn webhooks_are_bounded_and_what_they_read_needs_a_permission() {
        let many = (0..17).map(|number| raw::Webhook { name: format!("w{number}"), ..images() }).collect();
        assert_eq!(problems(many), ["webhooks: has 17 entries; at most 16 are taken"]);
        let of = raw::TypeMeta { api_version: "v1".to_owned(), kind: "ConfigMap".to_owned() };
        let reads = vec![raw::Watch { of, ..raw::Watch::default() }];
        let found = problems(vec![raw::Webhook { reads, ..images() }]);
        assert!(found[0].starts_with("webhooks[0].reads[0]: watching v1 ConfigMap needs a permission"), "{found:?}");
    }
}
