//! Compresses the objects of an informer if all its leases allow it.
//!
//! The registry decides whether, and the store decides what. This task does the work on a blocking thread. It takes the
//! informer's lock only to fetch work and to store the result.

use std::time::Duration;

use pilothouse_core::store::Work;
use tracing::error;

use super::Informer;

/// Delay before new objects are compressed. The reconciles that they wake read them first, and often change them again.
const GATHER: Duration = Duration::from_secs(1);

/// Compresses until the task is aborted. A panic, which is a fault of the host, ends compression and leaves the objects
/// as they are.
pub(super) async fn run(informer: &Informer) {
    loop {
        informer.unpacked.notified().await;
        tokio::time::sleep(GATHER).await;
        while let Some(work) = informer.packing() {
            match tokio::task::spawn_blocking(move || Work::run(work)).await {
                Ok(done) => informer.packed(done),
                Err(error) => {
                    error!(informer = %informer.key, %error, "cannot compress an informer's objects; they stay uncompressed");
                    return;
                }
            }
        }
    }
}
