//! Keeps in a static how many calls its instance has served, and puts a hundred times that, and the quantity, into status.available.

use std::sync::atomic::{AtomicU32, Ordering};

use pilothouse_guests::apple::{self, MyApple, Status};
use pilothouse_sdk::prelude::*;

#[plugin]
fn remembering() -> Plugin {
    Plugin::new("Remembers.").reuse_instances().controller(apple::counting().reconcile(reconcile))
}

fn reconcile(_: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let calls = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    Ok(Outcome::new().status(Status { available: calls * 100 + apple.spec.quantity, ..Status::default() }))
}
