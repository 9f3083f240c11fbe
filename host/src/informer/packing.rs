//! Compresses what an informer holds, where all who use it ask for that.
//!
//! Whether they do is the registry's to find out, and what is to be done is the store's to say. This does it: on a thread on which
//! nobody waits, and without a lock but to fetch work and to bring back what came of it.

use std::time::Duration;

use pilothouse_core::store::Work;
use tracing::error;

use super::Informer;

/// Changes gather for so long: what has just come is read by those whom it wakes, and is often changed again.
const GATHER: Duration = Duration::from_secs(1);

/// Compresses until the task is aborted. Work that panics, a fault of the host, ends it: what there is stays as it is.
pub(super) async fn run(informer: &Informer) {
    loop {
        informer.unpacked.notified().await;
        tokio::time::sleep(GATHER).await;
        while let Some(work) = informer.packing() {
            match tokio::task::spawn_blocking(move || Work::run(work)).await {
                Ok(done) => informer.packed(done),
                Err(error) => {
                    error!(informer = %informer.key, %error, "cannot compress an informer's objects: they stay as they are");
                    return;
                }
            }
        }
    }
}
