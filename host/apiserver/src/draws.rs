//! What the server draws: uids, and the ends of generated names.
//!
//! Both are random, as in a cluster, or numbered, so that a test that runs again gets the same.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::object::{name_suffix, new_uid, suffix};

/// Draws uids and the ends of generated names. Random by default.
#[derive(Debug, Default)]
pub(crate) struct Draws {
    /// The next numbers. 0: random.
    uid: AtomicU64,
    suffix: AtomicU64,
}

impl Draws {
    /// Numbers from now on.
    pub(crate) fn number(&self) {
        self.uid.store(1, Ordering::Relaxed);
        self.suffix.store(1, Ordering::Relaxed);
    }

    /// Returns a new uid, a UUID.
    pub(crate) fn uid(&self) -> String {
        match next(&self.uid) {
            Some(number) => uuid::Builder::from_random_bytes(u128::from(number).to_be_bytes()).into_uuid().to_string(),
            None => new_uid(),
        }
    }

    /// Returns the end of a generated name: five characters.
    pub(crate) fn suffix(&self) -> String {
        match next(&self.suffix) {
            Some(number) => {
                let digit = |place| u8::try_from(number / 27_u64.pow(place) % 27).unwrap_or_default();
                suffix([4, 3, 2, 1, 0].map(digit))
            }
            None => name_suffix(),
        }
    }
}

/// Returns the next number, or `None` if nothing is numbered.
fn next(number: &AtomicU64) -> Option<u64> {
    number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (next > 0).then(|| next + 1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_random_until_they_are_numbered() {
        let draws = Draws::default();
        assert_ne!((draws.uid(), draws.suffix()), (draws.uid(), draws.suffix()));
        let drawn = || {
            draws.number();
            [draws.uid(), draws.uid(), draws.suffix(), draws.suffix()]
        };
        let [one, two] =
            ["00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"].map(str::to_owned);
        assert_eq!(drawn(), [one, two, "bbbbc".to_owned(), "bbbbd".to_owned()]);
        assert_eq!(drawn(), drawn());
    }
}
