use super::*;

const NOW: Duration = Duration::from_secs(10_000);

/// Judges messages about `a` that come `apart`. Returns the name and the count of each.
fn judged(
    events: &mut Correlator<&'static str, &'static str>,
    messages: &[&str],
    apart: Duration,
) -> Vec<Option<(String, u32)>> {
    let mut now = NOW;
    let mut names = 0;
    messages
        .iter()
        .map(|message| {
            now += apart;
            let act = events.judge(now, &"a", &"Failed", message, || {
                names += 1;
                format!("a.{names}")
            });
            act.map(|act| (act.name, act.count))
        })
        .collect()
}

#[test]
fn the_same_is_counted_for_ten_minutes() {
    let written = |apart| judged(&mut Correlator::new(), &["no", "never", "no"], apart);
    let one = |name: &str, count| Some((name.to_owned(), count));
    assert_eq!(written(Duration::from_secs(300)), [one("a.1", 1), one("a.2", 1), one("a.1", 2)]);
    assert_eq!(written(Duration::from_secs(301)), [one("a.1", 1), one("a.2", 1), one("a.3", 1)]);
}

#[test]
fn later_ones_of_many_different_messages_are_combined() {
    let messages: Vec<String> = (0..13).map(|number| format!("no {number}")).collect();
    let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
    let mut events = Correlator::new();
    let written = judged(&mut events, &messages, Duration::ZERO);
    let names: Vec<_> = written.iter().flatten().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(names[9..], [("a.10", 1), ("a.11", 1), ("a.11", 2), ("a.11", 3)]);
    let act = events.judge(NOW, &"a", &"Failed", "no 77", || unreachable!("it is taken together"));
    assert_eq!(act.map(|act| act.message).as_deref(), Some("(combined from similar events): no 77"));
    // Those that were written by themselves are.
    let act = events.judge(NOW, &"a", &"Failed", "no 1", || unreachable!("it is there"));
    assert_eq!(act, Some(Act { name: "a.2".into(), count: 2, message: "no 1".into() }));
}

#[test]
fn an_object_gets_25_at_once_and_then_one_each_five_minutes() {
    let mut events = Correlator::new();
    let written = judged(&mut events, &["no"; 40], Duration::ZERO);
    assert_eq!(written.iter().flatten().count(), 25);
    assert!(events.judge(NOW, &"b", &"Failed", "no", || "b.1".into()).is_some());
    let written = judged(&mut events, &["no"; 10], Duration::from_secs(300));
    assert_eq!(written.iter().flatten().count(), 10);
}

#[test]
fn remembered_events_are_bounded_and_the_recent_ones_stay() {
    let mut recent = Recent::new();
    for number in 0..5 * REMEMBERED {
        *recent.entry(0, || 0) += 1;
        recent.entry(number + 1, || 0);
        assert!(recent.young.len() + recent.old.len() <= 2 * REMEMBERED);
    }
    assert_eq!(*recent.entry(0, || 0), 5 * REMEMBERED);
}
