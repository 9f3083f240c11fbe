//! The decisions about faults, without a server.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use proptest::prelude::*;

use super::*;

fn list(of: &str) -> Subject {
    let mut subject = Subject::bare(Verb::List, "test/1");
    of.clone_into(&mut subject.plural);
    subject
}

fn status(code: u16) -> Rule {
    Rule::new(Fault::Status(Answer::code(code)))
}

fn delay(milliseconds: u32, up_to: Option<u32>) -> Rule {
    Rule::new(Fault::Delay(Delay { milliseconds, up_to }))
}

fn code(plan: &Plan) -> Option<u16> {
    match &plan.instead.as_ref()?.what {
        Reply::Answer(answer) => Some(answer.code),
        Reply::Nothing | Reply::End(_) => None,
    }
}

fn hits(faults: &Faults) -> Vec<u64> {
    faults.list().iter().map(|listed| listed.hits).collect()
}

#[test]
fn delays_add_up_before_other_faults() {
    let faults = Faults::new();
    for rule in [status(500), delay(5, None), delay(7, None)] {
        faults.add(rule).unwrap();
    }
    let plan = faults.plan(&list("pods"));
    assert_eq!((plan.delay, code(&plan)), (Duration::from_millis(12), Some(500)));
    assert_eq!(hits(&faults), [1, 1, 1]);
}

#[test]
fn what_another_rule_prevents_is_not_a_hit() {
    let faults = Faults::new();
    let performed = Rule { performed: true, ..status(504) };
    for rule in [Rule::new(Fault::Mangle(Mangle::Json)), performed, status(500), status(503)] {
        faults.add(rule).unwrap();
    }
    assert_eq!(code(&faults.plan(&list("pods"))), Some(500));
    assert_eq!(hits(&faults), [0, 0, 1, 0]);
}

#[test]
fn every_third_is_the_third_and_the_sixth_of_those_that_match() {
    let faults = Faults::new();
    let pods = Requests::to("pods", &[]);
    let often = Often::Every(NonZeroU32::new(3).unwrap());
    faults.add(Rule { often, ..status(500).on(pods) }.times(2)).unwrap();
    let struck: Vec<usize> = (1..=12)
        .filter(|_| {
            assert_eq!(code(&faults.plan(&list("nodes"))), None);
            code(&faults.plan(&list("pods"))).is_some()
        })
        .collect();
    assert_eq!(struck, [3, 6]);
    assert!(!faults.are_any(), "what is over costs nothing");
}

#[test]
fn a_rule_that_is_removed_leaves_the_numbers_of_others_alone() {
    let faults = Faults::new();
    let (first, second) = (faults.add(status(500)).unwrap(), faults.add(status(503)).unwrap());
    assert!(faults.remove(first));
    assert!(!faults.remove(first));
    let third = faults.add(status(504)).unwrap();
    assert_eq!(faults.list().iter().map(|listed| listed.id).collect::<Vec<_>>(), [second, third]);
    assert_eq!((faults.hits(first), faults.hits(second)), (None, Some(0)));
}

proptest! {
    #[test]
    fn a_delay_is_drawn_from_its_range(least in 0..1000u32, more in 0..1000u32, seed: u64) {
        let faults = Faults::new();
        faults.add(Rule { seed: Some(seed), ..delay(least, Some(least + more)) }).unwrap();
        for _ in 0..20 {
            let drawn = faults.plan(&list("pods")).delay.as_millis();
            prop_assert!(u128::from(least) <= drawn && drawn <= u128::from(least + more));
        }
    }

    #[test]
    fn a_chance_is_met_about_as_often_as_it_says(percent in 1..=100u32, seed: u64) {
        let faults = Faults::new();
        let often = Often::Probability(f64::from(percent) / 100.0);
        faults.add(Rule { often, seed: Some(seed), ..status(500) }).unwrap();
        let struck = (0..2000).filter(|_| code(&faults.plan(&list("pods"))).is_some()).count();
        // 7 standard deviations: no seed is that unlucky.
        let expected = 20 * usize::try_from(percent).unwrap();
        prop_assert!(struck.abs_diff(expected) <= 160, "{struck} of 2000 at {percent} %");
    }

    #[test]
    fn a_rule_is_the_same_after_a_journey_through_json(rule in rules()) {
        let text = serde_json::to_string(&rule).unwrap();
        prop_assert_eq!(serde_json::from_str::<Rule>(&text).unwrap(), rule);
    }
}

fn rules() -> impl Strategy<Value = Rule> {
    let number = || prop_oneof![Just(None), any::<u32>().prop_map(Some)];
    let fault = prop_oneof![
        (any::<u32>(), number()).prop_map(|(milliseconds, up_to)| Fault::Delay(Delay { milliseconds, up_to })),
        (200..600u16, number(), "[a-z]{0,3}").prop_map(|(code, retry_after_seconds, text)| {
            let reason = (!text.is_empty()).then_some(text);
            Fault::Status(Answer { reason, retry_after_seconds, body: Content::Html, ..Answer::code(code) })
        }),
        Just(Fault::Hang),
        Just(Fault::Disconnect(By::Close)),
        any::<u32>().prop_map(|after_events| Fault::Truncate(Truncate { by: By::Reset, after_events })),
        Just(Fault::StreamingLists(Streaming::Ignored)),
        (number(), number()).prop_map(|(after_events, after_milliseconds)| {
            Fault::Cut(Cut { after_events, after_milliseconds, error: Some(410) })
        }),
        Just(Fault::RepeatOlder),
        Just(Fault::Mangle(Mangle::Metadata)),
    ];
    let often = prop_oneof![
        Just(Often::Always),
        (1..=u32::MAX).prop_map(|every| Often::Every(NonZeroU32::new(every).unwrap())),
        (1..=8u32).prop_map(|eighths| Often::Probability(f64::from(eighths) / 8.0)),
    ];
    (fault, often, number(), any::<bool>()).prop_map(|(fault, often, for_milliseconds, performed)| {
        let on = Requests { namespace: performed.then(|| "n".to_owned()), ..Requests::to("a.b/c", &[Verb::Apply]) };
        Rule { on, often, for_milliseconds, performed, ..Rule::new(fault) }
    })
}
