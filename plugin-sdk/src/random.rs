//! Random numbers from the host's generator, fit for passwords and keys.
//!
//! Draw a number once and keep it, for example in a Secret that is read first. A child with random content would be
//! applied again at each call.
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use k8s_openapi::{ByteString, api::core::v1::{ConfigMap, Secret}};
//! use pilothouse_sdk::mock::MockHost;
//! use pilothouse_sdk::{prelude::*, random};
//!
//! /// Creates a Secret with a password beside each ConfigMap. A password that exists is kept.
//! fn reconcile(ctx: &Context, settings: &ConfigMap) -> Result<Outcome, Error> {
//!     let name = format!("{}-password", settings.name());
//!     let old = ctx.cache().get::<Secret>(ctx.key().beside(&name))?.and_then(|secret| secret.data);
//!     let mut secret = Secret::default();
//!     secret.metadata.name = Some(name);
//!     secret.data = Some(match old {
//!         Some(data) => data,
//!         None => BTreeMap::from([("password".to_owned(), ByteString(random::bytes(32)))]),
//!     });
//!     Ok(Outcome::new().child(secret))
//! }
//!
//! fn plugin() -> Plugin {
//!     let controller = Controller::of::<ConfigMap>().owns::<Secret>().without_status().reconcile(reconcile);
//!     Plugin::new("Makes passwords.").controller(controller)
//! }
//!
//! let mut settings = ConfigMap::default();
//! settings.metadata.name = Some("web".into());
//! settings.metadata.namespace = Some("default".into());
//!
//! // The numbers of the mock follow from a seed, so the test can be repeated.
//! let mut host = MockHost::new(plugin).with(settings).seed(7);
//! host.settle(("default", "web")).expect("it settles");
//! let secret: Secret = host.get(("default", "web-password")).expect("it was created");
//! assert_eq!(secret.data.unwrap()["password"].0.len(), 32);
//! ```

use crate::host;

host::interface!(random {
    fn bytes(count: u32) -> Vec<u8>;
});

/// Bytes that the host gives at once.
const AT_ONCE: u32 = 64 << 10;

/// Returns `count` random bytes.
pub fn bytes(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fill(&mut bytes);
    bytes
}

/// Returns a random array, such as a key: `let key: [u8; 32] = random::array();`.
pub fn array<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

/// Returns a random number from the whole range.
pub fn u64() -> u64 {
    u64::from_le_bytes(array())
}

/// Fills `bytes` with random bytes. More than 64 KiB take several calls of the host.
///
/// # Panics
/// Panics if the host breaks the contract and returns another number of bytes.
pub fn fill(mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        let count = u32::try_from(bytes.len()).map_or(AT_ONCE, |all| all.min(AT_ONCE));
        let drawn = import::bytes(count);
        let (now, later) = bytes.split_at_mut(drawn.len().min(bytes.len()));
        assert!(now.len() == drawn.len() && !drawn.is_empty(), "the host returned another number of bytes");
        now.copy_from_slice(&drawn);
        bytes = later;
    }
}
