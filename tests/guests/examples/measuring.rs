//! Measures each object. Then it fails for `bad-*`, and does as a well-behaved guest for others.
//!
//! Used by `tests/e2e/suite/metrics.rs`.

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::{
    metrics::{Counter, Gauge, Histogram},
    prelude::*,
};

static SEEN: Counter<1> = Counter::new("apples_seen_total", "Reconciles of apples.").labels(["color"]);
static QUANTITY: Gauge<2> =
    Gauge::new("apples_quantity", "Quantity of the apple that was last seen.").labels(["color", "size"]);
static QUANTITIES: Histogram =
    Histogram::new("apples_quantities", "Quantities of the apples that were seen.").buckets(&[1.0, 5.0]);
static NEVER: Counter = Counter::new("apples_eaten_total", "Apples eaten.");

#[plugin]
fn measuring() -> Plugin {
    Plugin::new("Measures apples.")
        .metric(&SEEN)
        .metric(&QUANTITY)
        .metric(&QUANTITIES)
        .metric(&NEVER)
        .controller(Controller::of::<MyApple>().owns::<ConfigMap>().when(Predicate::generation()).reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let (color, quantity) = (apple.spec.color.as_str(), f64::from(apple.spec.quantity));
    SEEN.inc([color]);
    QUANTITY.set([color, &apple.spec.size], quantity);
    QUANTITIES.observe([], quantity);
    assert!(!is_bad(apple), "a bad apple");
    well_behaved(ctx, apple)
}
