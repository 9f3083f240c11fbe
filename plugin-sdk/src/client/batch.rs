//! Several requests at once.

use super::{Error, Patch, Subresource, decode, decode_written, encode, import, wire};
use crate::{Key, Object, contract::pilothouse::plugin::client::Propagation};

/// Requests that the host sends at once.
const AT_ONCE: usize = 64;

/// One request of [`Client::all`](super::Client::all), whose answer is a `T`.
///
/// Its functions are those of [`Client`](super::Client).
#[derive(Debug)]
#[must_use = "a request is not sent before Client::all"]
pub struct Call<T> {
    /// The request, unless its object cannot be serialized.
    wire: Result<wire::Call, Error>,
    /// Decodes the answer to this request.
    decode: fn(&wire::Call, &str) -> Result<T, Error>,
}

impl<K: Object> Call<K> {
    /// Reads an object from the API server.
    pub fn get(key: impl Into<Key>) -> Self {
        Self { wire: Ok(wire::Call::Get((K::type_meta(), key.into(), None))), decode: |_, answer| decode(answer) }
    }

    /// Creates an object.
    pub fn create(object: &K) -> Self {
        Self::writing(object, wire::Call::Create)
    }

    /// Replaces an object.
    pub fn update(object: &K) -> Self {
        Self::writing(object, |object| wire::Call::Update((object, None)))
    }

    /// Applies an object by server-side apply. A field that another manager owns with another value is a conflict.
    pub fn apply(object: &K) -> Self {
        Self::writing(object, |object| wire::Call::Apply((object, None, false)))
    }

    /// Applies an object by server-side apply, and takes over fields from other managers.
    pub fn force_apply(object: &K) -> Self {
        Self::writing(object, |object| wire::Call::Apply((object, None, true)))
    }

    /// Patches an object.
    pub fn patch(key: impl Into<Key>, patch: &Patch) -> Self {
        let wire = wire::Call::Patch((K::type_meta(), key.into(), patch.0.clone(), None));
        Self { wire: Ok(wire), decode: |_, answer| decode(answer) }
    }

    /// Reads or writes the status of the object instead. Has no effect on `create`.
    pub fn status(mut self) -> Self {
        if let Ok(
            wire::Call::Get((.., part))
            | wire::Call::Update((_, part))
            | wire::Call::Patch((.., part))
            | wire::Call::Apply((_, part, _)),
        ) = &mut self.wire
        {
            *part = Some(Subresource::Status);
        }
        self
    }

    fn writing(object: &K, call: fn(String) -> wire::Call) -> Self {
        let decode = |call: &wire::Call, answer: &str| match call {
            wire::Call::Create(sent) | wire::Call::Update((sent, _)) | wire::Call::Apply((sent, ..)) => {
                decode_written(answer, sent)
            }
            _ => decode(answer),
        };
        Self { wire: encode(object).map(call), decode }
    }
}

impl Call<()> {
    /// Deletes an object. Its dependents are deleted in the background.
    pub fn delete<K: Object>(key: impl Into<Key>) -> Self {
        let anything = wire::Preconditions { uid: None, resource_version: None };
        let wire = wire::Call::Delete((K::type_meta(), key.into(), Propagation::Background, anything));
        Self { wire: Ok(wire), decode: |_, _| Ok(()) }
    }
}

/// Sends the requests, 64 at once. Returns their answers in the same order.
pub(super) fn all<T>(calls: impl IntoIterator<Item = Call<T>>) -> Vec<Result<T, Error>> {
    let mut calls = calls.into_iter().peekable();
    let mut results = Vec::new();
    while calls.peek().is_some() {
        let (mut sent, mut decoders) = (Vec::new(), Vec::new());
        for Call { wire, decode } in calls.by_ref().take(AT_ONCE) {
            decoders.push(wire.map(|wire| {
                sent.push(wire);
                decode
            }));
        }
        let answers = if sent.is_empty() { Vec::new() } else { import::send(&sent) };
        let mut answers = sent.iter().zip(answers);
        results.extend(decoders.into_iter().map(|decode| {
            let decode = decode?;
            let missing = || Error::Unreachable("the host did not answer this request".to_owned());
            let (call, answer) = answers.next().ok_or_else(missing)?;
            decode(call, &answer?)
        }));
    }
    results
}
