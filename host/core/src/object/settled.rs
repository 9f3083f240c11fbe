//! Notes, beside a version of an object, that an apply would change nothing in it.

use std::{
    hash::{BuildHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
};

use super::{Appliers, Object, Subresource};
use crate::json::{ParseError, Reader};

/// Not part of the object: two objects with different notes are equal.
#[derive(Debug, Default)]
pub(super) struct Note(Mutex<Notes>);

#[derive(Clone, Debug, Default)]
struct Notes {
    object: Option<Settled>,
    /// Almost always absent.
    status: Option<Box<SettledStatus>>,
}

#[derive(Clone, Copy, Debug)]
struct Settled {
    /// Digest of what was applied.
    digest: u64,
    /// Digest of what must not have changed since.
    lasting: u64,
    /// Noted of an earlier version, and not yet checked for this one.
    inherited: bool,
}

/// Digests of what was applied, and of the status that resulted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SettledStatus {
    digest: u64,
    lasting: u64,
}

impl Note {
    fn update<T>(&self, change: impl FnOnce(&mut Notes) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn copy(&self) -> Notes {
        self.update(|notes| notes.clone())
    }

    fn object(&self) -> Option<Settled> {
        self.update(|notes| notes.object)
    }
}

impl Clone for Note {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.copy()))
    }
}

impl PartialEq for Note {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Note {}

impl Appliers {
    /// Takes over the notes of an earlier version.
    pub(super) fn inherit(&self, older: &Self) {
        let Notes { object, status } = older.note.copy();
        let object = object.map(|settled| Settled { inherited: true, ..settled });
        self.note.update(|own| *own = Notes { object, status });
    }
}

impl Object {
    /// Notes that an apply with this digest would change nothing. The digest covers whatever decides what is sent.
    ///
    /// The note holds for later versions as long as only their status differs. Only the last note counts. An object
    /// that none of the host's managers has applied takes none.
    ///
    /// Use the same `hash` for all calls with one digest, and keep it secret from the writers of objects.
    pub fn settle(&self, digest: u64, hash: &impl BuildHasher) {
        if let (Some(appliers), Ok(lasting)) = (&self.applied, self.lasting(hash)) {
            appliers.note.update(|notes| notes.object = Some(Settled { digest, lasting, inherited: false }));
        }
    }

    /// Notes that an apply of the status with this digest would change nothing. Otherwise like
    /// [`settle`](Self::settle).
    pub fn settle_status(&self, digest: u64, hash: &impl BuildHasher) {
        if let (Some(appliers), Ok(lasting)) = (&self.applied, self.lasting_status(hash)) {
            appliers.note.update(|notes| notes.status = Some(Box::new(SettledStatus { digest, lasting })));
        }
    }

    /// Returns `true` if [`settle_status`](Self::settle_status) noted this digest and the status has not changed since.
    pub fn is_status_settled(&self, digest: u64, hash: &impl BuildHasher) -> bool {
        let noted =
            self.applied.as_ref().and_then(|appliers| appliers.note.update(|notes| notes.status.as_deref().copied()));
        noted.is_some_and(|noted| {
            noted.digest == digest && self.lasting_status(hash).is_ok_and(|lasting| lasting == noted.lasting)
        })
    }

    /// Returns `true` if [`settle`](Self::settle) noted this digest of this version, or of an earlier one from which
    /// only the status differs.
    pub fn is_settled(&self, digest: u64, hash: &impl BuildHasher) -> bool {
        let Some(appliers) = &self.applied else { return false };
        match appliers.note.object().filter(|settled| settled.digest == digest) {
            None => false,
            Some(Settled { inherited: false, .. }) => true,
            Some(settled) => {
                let is_as_it_was = self.lasting(hash).is_ok_and(|lasting| lasting == settled.lasting);
                let known = is_as_it_was.then_some(Settled { inherited: false, ..settled });
                appliers.note.update(|notes| notes.object = known);
                is_as_it_was
            }
        }
    }

    /// Returns a digest of all that an apply depends on: everything except the status and the version, and what was
    /// applied.
    fn lasting(&self, hash: &impl BuildHasher) -> Result<u64, ParseError> {
        let (mut hasher, json) = (hash.build_hasher(), self.json());
        let mut reader = Reader::new(&json);
        reader.enter_object("text")?;
        while let Some(name) = reader.member()? {
            match &*name.decode() {
                "status" => drop(reader.skip()?),
                "metadata" => {
                    reader.enter_object("metadata")?;
                    while let Some(name) = reader.member()? {
                        let value = reader.skip()?;
                        if name.decode() != "resourceVersion" {
                            (name.raw(), value).hash(&mut hasher);
                        }
                    }
                }
                _ => (name.raw(), reader.skip()?).hash(&mut hasher),
            }
        }
        for applied in self.applied.iter().flat_map(|appliers| appliers.all()) {
            if applied.subresource != Some(Subresource::Status) {
                (&applied.manager, &applied.fields, applied.subresource).hash(&mut hasher);
            }
        }
        Ok(hasher.finish())
    }

    /// Returns a digest of the status and of what was applied to it.
    fn lasting_status(&self, hash: &impl BuildHasher) -> Result<u64, ParseError> {
        let (mut hasher, json) = (hash.build_hasher(), self.json());
        let mut reader = Reader::new(&json);
        reader.enter_object("text")?;
        while let Some(name) = reader.member()? {
            let value = reader.skip()?;
            if name.decode() == "status" {
                value.hash(&mut hasher);
            }
        }
        for applied in self.applied.iter().flat_map(|appliers| appliers.all()) {
            if applied.subresource == Some(Subresource::Status) {
                (&applied.manager, &applied.fields).hash(&mut hasher);
            }
        }
        Ok(hasher.finish())
    }
}
