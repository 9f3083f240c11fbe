//! Measures what each plugin uses, over some minutes.

use std::{collections::BTreeMap, time::Duration};

use pilothouse_core::spread::weight;

/// The time over which processor time is measured.
const WINDOW: Duration = Duration::from_secs(300);

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(10);

/// The weights of the items that this host owns.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// When the present measurement of an item began, and what it had used then.
    since: BTreeMap<Box<str>, (Duration, Duration)>,
    weights: BTreeMap<Box<str>, u16>,
    look_at: Duration,
}

impl Meter {
    /// Looks at what the items use, if that is due. Others than those that are `owned` are not measured.
    pub(super) fn look(
        &mut self,
        now: Duration,
        owned: impl Fn(&str) -> bool,
        used: impl FnOnce() -> BTreeMap<Box<str>, Duration>,
    ) {
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        let used = used();
        self.since.retain(|item, _| used.contains_key(item) && owned(item));
        self.weights.retain(|item, _| owned(item));
        for (item, used) in used.into_iter().filter(|(item, _)| owned(item)) {
            let (began, before) = *self.since.entry(item.clone()).or_insert((now, used));
            let took = now.saturating_sub(began);
            if took >= WINDOW {
                let milli = used.saturating_sub(before).as_millis() * 1_000 / took.as_millis();
                self.since.insert(item.clone(), (now, used));
                self.weights.insert(item, weight(u64::try_from(milli).unwrap_or(u64::MAX)));
            }
        }
    }

    /// Returns the weight of an item, if it was measured.
    pub(super) fn weight(&self, item: &str) -> Option<u16> {
        self.weights.get(item).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_what_the_owner_has_measured_over_five_minutes() {
        let (mut meter, at) = (Meter::default(), Duration::from_secs);
        let used = |apple, pear| [("apple".into(), at(apple)), ("pear".into(), at(pear))].into();
        meter.look(at(0), |_| true, || used(7, 0));
        meter.look(at(299), |_| true, || used(100, 0));
        assert_eq!(meter.weight("apple"), None);
        // Half a core, and nothing.
        meter.look(at(309), |_| true, || used(7 + 155, 0));
        assert_eq!((meter.weight("apple"), meter.weight("pear")), (Some(64), Some(1)));
        // It looks now and then only.
        meter.look(at(310), |_| panic!("not yet"), || panic!("not yet"));
        // Another host owns it for a while.
        meter.look(at(400), |item| item == "pear", || used(170, 0));
        meter.look(at(650), |_| true, || used(170, 0));
        assert_eq!((meter.weight("apple"), meter.weight("pear")), (None, Some(1)));
    }
}
