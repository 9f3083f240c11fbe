//! Remembers the API server's answers for a short time, within bounds.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::authentication::v1::UserInfo;
use pilothouse_core::rate::Rate;
use tokio::time::Instant;

use super::{Key, PER_USER, STRANGERS};

/// Time for which a valid token counts as valid, as in controller-runtime.
const VALID: Duration = Duration::from_secs(60);

/// Time for which a token that is not valid counts as such.
const INVALID: Duration = Duration::from_secs(10);

/// Time for which a right is kept. A right that is withdrawn ends within it.
const ALLOWED: Duration = Duration::from_secs(60);

/// Time for which a denial is kept. Whoever grants a right does not wait long for it.
const DENIED: Duration = Duration::from_secs(10);

/// Tokens that are or were valid. Beyond them, the one that was reviewed first is forgotten.
const USERS: usize = 256;

/// Tokens that are not valid.
const REJECTED: usize = 1_024;

/// Decisions about one user. Beyond them, the one that ends first is forgotten.
const DECISIONS: usize = 64;

/// What is known of a token.
pub(super) enum Known {
    Valid(Arc<UserInfo>),
    Invalid,
    /// It has to be reviewed again.
    WasValid,
    Never,
}

pub(super) struct Cache {
    origin: Instant,
    users: HashMap<Key, User>,
    /// Until when each of these tokens counts as not valid.
    rejected: HashMap<Key, Instant>,
    /// What is used of [`STRANGERS`].
    strangers: Duration,
}

struct User {
    info: Arc<UserInfo>,
    valid_until: Instant,
    /// Whether a verb of a path is allowed, and until when that counts.
    decisions: HashMap<(String, String), (bool, Instant)>,
    /// What is used of [`PER_USER`].
    used: Duration,
}

impl Cache {
    pub(super) fn new(now: Instant) -> Self {
        Self { origin: now, users: HashMap::new(), rejected: HashMap::new(), strangers: Duration::ZERO }
    }

    /// Returns what is known of a token.
    pub(super) fn user(&self, key: &Key, now: Instant) -> Known {
        match (self.users.get(key), self.rejected.get(key)) {
            (Some(user), _) if user.valid_until > now => Known::Valid(user.info.clone()),
            (Some(_), _) => Known::WasValid,
            (None, Some(until)) if *until > now => Known::Invalid,
            (None, _) => Known::Never,
        }
    }

    /// Remembers the answer to a review of a token. Returns whose it is.
    pub(super) fn learn(&mut self, key: Key, answer: Option<UserInfo>, now: Instant) -> Option<Arc<UserInfo>> {
        let Some(info) = answer else {
            self.users.remove(&key);
            self.rejected.retain(|_, until| *until > now);
            make_room(&mut self.rejected, REJECTED, |until| *until);
            self.rejected.insert(key, now + INVALID);
            return None;
        };
        self.rejected.remove(&key);
        let (info, valid_until) = (Arc::new(info), now + VALID);
        match self.users.get_mut(&key) {
            Some(user) => {
                // Another name or other groups have other rights.
                if *user.info != *info {
                    user.decisions.clear();
                }
                (user.info, user.valid_until) = (info.clone(), valid_until);
            }
            None => {
                make_room(&mut self.users, USERS, |user| user.valid_until);
                let user = User { info: info.clone(), valid_until, decisions: HashMap::new(), used: Duration::ZERO };
                self.users.insert(key, user);
            }
        }
        Some(info)
    }

    /// Returns whether the token's user may do `verb` with `path`, if that is known.
    pub(super) fn decision(&self, key: &Key, verb: &str, path: &str, now: Instant) -> Option<bool> {
        let (allowed, until) = self.users.get(key)?.decisions.get(&(verb.to_owned(), path.to_owned()))?;
        (*until > now).then_some(*allowed)
    }

    /// Remembers whether the token's user may do `verb` with `path`.
    pub(super) fn decide(&mut self, key: &Key, verb: &str, path: &str, allowed: bool, now: Instant) {
        let Some(user) = self.users.get_mut(key) else { return };
        let decision = (verb.to_owned(), path.to_owned());
        if !user.decisions.contains_key(&decision) {
            user.decisions.retain(|_, (_, until)| *until > now);
            make_room(&mut user.decisions, DECISIONS, |(_, until)| *until);
        }
        user.decisions.insert(decision, (allowed, now + if allowed { ALLOWED } else { DENIED }));
    }

    /// Takes one of the reviews of tokens that were never valid.
    ///
    /// # Errors
    /// The time to wait, if none is left.
    pub(super) fn take_stranger(&mut self, now: Instant) -> Result<(), Duration> {
        take(STRANGERS, &mut self.strangers, now - self.origin)
    }

    /// Takes one of the reviews of what the token's user may do.
    ///
    /// # Errors
    /// The time to wait, if none is left.
    pub(super) fn take_user(&mut self, key: &Key, now: Instant) -> Result<(), Duration> {
        let since = now - self.origin;
        self.users.get_mut(key).map_or(Ok(()), |user| take(PER_USER, &mut user.used, since))
    }
}

fn take(rate: Rate, used: &mut Duration, now: Duration) -> Result<(), Duration> {
    let wait = rate.wait(*used, now);
    if !wait.is_zero() {
        return Err(wait);
    }
    *used = rate.take(*used, now);
    Ok(())
}

/// Removes entries, the one that ends first before others, until there is room for one more.
fn make_room<K: Clone + Eq + std::hash::Hash, V>(
    entries: &mut HashMap<K, V>,
    most: usize,
    end: impl Fn(&V) -> Instant,
) {
    while entries.len() >= most {
        let first = entries.iter().min_by_key(|(_, entry)| end(entry)).map(|(key, _)| key.clone());
        let Some(first) = first else { return };
        entries.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_be_bytes());
        key
    }

    fn user(name: &str) -> UserInfo {
        UserInfo { username: Some(name.to_owned()), ..UserInfo::default() }
    }

    #[test]
    fn everything_that_is_remembered_has_a_bound() {
        let now = Instant::now();
        let mut cache = Cache::new(now);
        for number in 0..2_000 {
            // Not all at once, so that the first ones end first.
            let then = now + Duration::from_millis(u64::try_from(number).unwrap_or_default());
            cache.learn(key(number), Some(user("a")), then);
            cache.learn(key(10_000 + number), None, then);
            cache.decide(&key(number), "get", "/metrics", true, then);
        }
        assert_eq!((cache.users.len(), cache.rejected.len()), (USERS, REJECTED));
        assert!(cache.users.contains_key(&key(1_999)) && !cache.users.contains_key(&key(0)));
        for number in 0..200 {
            cache.decide(&key(1_999), "get", &format!("/debug/{number}"), false, now);
        }
        assert_eq!(cache.users[&key(1_999)].decisions.len(), DECISIONS);
    }

    #[test]
    fn user_with_other_groups_is_judged_anew() {
        let now = Instant::now();
        let mut cache = Cache::new(now);
        cache.learn(key(1), Some(user("a")), now);
        cache.decide(&key(1), "get", "/metrics", true, now);
        cache.learn(key(1), Some(user("a")), now);
        assert_eq!(cache.decision(&key(1), "get", "/metrics", now), Some(true));
        cache.learn(key(1), Some(UserInfo { groups: Some(vec!["g".to_owned()]), ..user("a") }), now);
        assert_eq!(cache.decision(&key(1), "get", "/metrics", now), None);
    }
}
