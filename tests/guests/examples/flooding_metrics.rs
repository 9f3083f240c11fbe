//! For `bad-*`, changes metrics for ever: with new, very long labels, with values that are not numbers, and of metrics
//! that it does not declare. Its timeout is 300 ms.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, is_bad, well_behaved};
use pilothouse_sdk::{
    contract::pilothouse::plugin::metrics as import,
    metrics::{Counter, Gauge, Histogram},
    prelude::*,
    random,
};

static SEEN: Counter<2> = Counter::new("flood_total", "\"A \\ flood\"").labels(["a", "b"]);
static LEVEL: Gauge<1> = Gauge::new("flood_level", "A level.").labels(["a"]);
static DROPS: Histogram<1> = Histogram::new("flood_drops", "Drops.").labels(["a"]);

#[plugin]
fn flooding_metrics() -> Plugin {
    // Short, because the test waits for it.
    let timeout = Duration::from_millis(300);
    let controller = Controller::of::<MyApple>().owns::<ConfigMap>().timeout(timeout);
    Plugin::new("Floods the host with series.")
        .metric(&SEEN)
        .metric(&LEVEL)
        .metric(&DROPS)
        .controller(controller.reconcile(reconcile))
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) {
        let long = format!("\"}} 1\n{}", "x".repeat(1 << 20));
        // Each call goes on with other labels, so that a slow host comes to its bound, too.
        let begin = u64::from(u32::from_le_bytes(random::array()));
        for number in begin.. {
            let label = number.to_string();
            SEEN.inc([&label, "\"\n\\{}"]);
            LEVEL.set([&format!("{label}{long}")], f64::MAX);
            LEVEL.add([&label], f64::MAX);
            LEVEL.set([&label], f64::NAN);
            DROPS.observe([&label], f64::MAX);
            SEEN.add([&label, ""], -1.0);
            import::add(&long, &[], 1.0);
            import::set("flood_total", &[label.clone(), label.clone()], 1.0);
            import::observe("flood_drops", &vec![label; 1000], 1.0);
        }
    }
    well_behaved(ctx, apple)
}
