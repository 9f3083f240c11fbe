//! Events in the mock host: written once, after the status, and as permitted.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use pilothouse_sdk::{Event, events::Error as EventError, mock::MockHost, prelude::*};
use serde_json::json;

fn pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some("web".into());
    pod.metadata.namespace = Some("default".into());
    pod
}

fn shown(host: &MockHost) -> Vec<String> {
    host.events().iter().map(ToString::to_string).collect()
}

/// Has a child, and a status that says so. Reports the difference as an Event, as it sees it.
fn reconcile(ctx: &Context, pod: &Pod) -> Result<Outcome, Error> {
    let mut card = ConfigMap::default();
    card.metadata.name = Some("card".into());
    let is_new = ctx.cache().get::<ConfigMap>(ctx.key().beside("card"))?.is_none();
    let outcome = Outcome::new().child(card).status(json!({"phase": "Running"}));
    let outcome = if is_new { outcome.event(Event::normal("Filling", "it gets a card")) } else { outcome };
    Ok(if pod.status.is_some() { outcome } else { outcome.event(Event::normal("Started", "it runs")) })
}

fn starts() -> Plugin {
    Plugin::new("Starts Pods.").controller(Controller::of::<Pod>().owns::<ConfigMap>().events().reconcile(reconcile))
}

#[test]
fn a_transition_that_a_repeated_call_reports_twice_is_one_event() {
    let mut host = MockHost::new(starts).with(pod());
    host.settle(("default", "web")).expect("it settles");
    assert_eq!(
        shown(&host),
        ["Normal Filling v1 Pod default/web: it gets a card", "Normal Started v1 Pod default/web: it runs"]
    );
    assert!(host.get::<Pod>(("default", "web")).is_some_and(|pod| pod.status.is_some()));
}

#[test]
fn an_event_of_a_call_whose_child_cannot_be_written_is_not_told_again() {
    let mut host = MockHost::new(starts).with(pod());
    host.fail_child::<ConfigMap>(("default", "card"), "no room");
    host.settle(("default", "web")).expect_err("its child fails");
    // The status was written all the same.
    assert_eq!(
        shown(&host),
        ["Normal Filling v1 Pod default/web: it gets a card", "Normal Started v1 Pod default/web: it runs"]
    );
    host.mend();
    host.settle(("default", "web")).expect("it settles");
    assert_eq!(host.events().iter().map(|event| event.count).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn each_failed_attempt_counts_its_event() {
    fn fails(_: &Context, _: &Pod) -> Result<Outcome, Error> {
        Err(Error::retry("refused").with_event(Event::warning("Unreachable", "the registry does not answer")))
    }
    let plugin = || -> Plugin { Plugin::new("Fails.").controller(Controller::of::<Pod>().events().reconcile(fails)) };
    let mut host = MockHost::new(plugin).with(pod());
    host.settle(("default", "web")).expect_err("it fails");
    assert_eq!(shown(&host), ["Warning Unreachable v1 Pod default/web: the registry does not answer (x2)"]);
    // After ten minutes it is another Event.
    host.advance(Duration::from_secs(601));
    host.settle(("default", "web")).expect_err("it fails");
    assert_eq!(host.events().len(), 2);
}

fn tells(of: Event) -> impl Fn(&Context, &Pod) -> Result<Outcome, Error> + 'static {
    move |_, _| Ok(Outcome::new().event(of.clone()))
}

#[test]
#[should_panic(
    expected = "the host does not write the Event \"Seen\": not granted: create v1 Event in namespace default: the plugin's \
                manifest does not ask for it"
)]
fn an_event_without_the_permission_fails_the_test() {
    let plugin = || -> Plugin {
        let controller = Controller::of::<Pod>().reconcile(tells(Event::normal("Seen", "it is there")));
        Plugin::new("Tells.").controller(controller)
    };
    let mut host = MockHost::new(plugin).with(pod());
    let _ = host.settle(("default", "web"));
}

#[test]
fn an_event_that_the_administrator_refuses_is_left_out() {
    let mut host = MockHost::new(starts).refuse(Permission::events()).with(pod());
    host.settle(("default", "web")).expect("it settles");
    assert_eq!(shown(&host), [""; 0]);
}

#[test]
fn events_are_about_any_object_that_the_plugin_can_read() {
    fn about(ctx: &Context, _: &Pod) -> Result<Outcome, Error> {
        ctx.events().record(Event::warning("Full", "no room").about::<Node>(Key::cluster("n1")))?;
        let missing = ctx.events().record(Event::normal("Full", "").about::<Node>(Key::cluster("n2")));
        assert!(matches!(missing, Err(EventError::Invalid(why)) if why.contains("is not in the cache")));
        let unread = ctx.events().record(Event::normal("Full", "").about::<ConfigMap>(("default", "m")));
        assert!(matches!(unread, Err(EventError::NotGranted(_))));
        assert!(matches!(ctx.events().record(Event::normal("so full", "")), Err(EventError::Invalid(_))));
        Ok(Outcome::new())
    }
    let plugin = || -> Plugin {
        let controller = Controller::of::<Pod>().reads::<Node>().events().reconcile(about);
        Plugin::new("Tells.").controller(controller)
    };
    let mut node = Node::default();
    node.metadata.name = Some("n1".into());
    let host = MockHost::new(plugin).with(pod()).with(node);
    host.reconcile(("default", "web")).expect("it succeeds");
    assert_eq!(shown(&host), ["Warning Full v1 Node n1: no room"]);
}

#[test]
fn an_outcome_with_an_event_that_is_not_valid_is_discarded() {
    let plugin = || -> Plugin {
        let controller = Controller::of::<Pod>().events().reconcile(tells(Event::normal("it is seen", "")));
        Plugin::new("Tells.").controller(controller)
    };
    let failure = MockHost::new(plugin).with(pod()).reconcile(("default", "web")).expect_err("it is not valid");
    let expected = "plugin gave an unusable answer: event 0: the reason \"it is seen\" of an Event is not one word";
    assert!(failure.message.starts_with(expected), "{failure}");
}
