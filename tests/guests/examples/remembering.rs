//! Reuses its instances. `status.available` is a hundred times the calls that its instance has served, plus the
//! quantity.
//!
//! Used by `tests/e2e/suite/instances.rs`.

use std::sync::atomic::{AtomicU32, Ordering};

use pilothouse_guests::apple::{self, MyApple, Status};
use pilothouse_sdk::prelude::*;

#[plugin]
fn remembering() -> Plugin {
    Plugin::new("Counts the calls of an instance.").reuse_instances().controller(apple::counting().reconcile(reconcile))
}

fn reconcile(_: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let calls = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    Ok(Outcome::new().status(Status { available: calls * 100 + apple.spec.quantity, ..Status::default() }))
}
