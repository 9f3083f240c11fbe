//! Does as a well-behaved guest, and declares a metric of the guest `measuring` with another type.
//!
//! Used by `tests/e2e/suite/metrics.rs`.

use pilothouse_guests::apple::{MyApple, plugin, well_behaved};
use pilothouse_sdk::{metrics::Histogram, prelude::*};

static QUANTITY: Histogram = Histogram::new("apples_quantity", "Quantities of apples.");

#[plugin]
fn mismeasuring() -> Plugin {
    plugin("Measures apples in another way.", reconcile).metric(&QUANTITY)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    QUANTITY.observe([], f64::from(apple.spec.quantity));
    well_behaved(ctx, apple)
}
