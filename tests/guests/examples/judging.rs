//! Watches ConfigMaps with 256 slow CEL expressions. For `bad-*`, it has a child with 2,000 members that changes with
//! each change of the MyApple.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use pilothouse_guests::apple::{MyApple, config_map, is_bad, well_behaved};
use pilothouse_sdk::prelude::*;

/// Expressions that create a list of all members.
const COSTLY: [&str; 4] = [
    "object.data.map(k, k).size()",
    "object.data.filter(k, k != '').size()",
    "object.data.map(k, k).reverse().size()",
    "object.data.map(k, k).sort().size()",
];

#[plugin]
fn judging() -> Plugin {
    let maps = Watch::of::<ConfigMap>().when((1..=16).map(list).reduce(Predicate::or).expect("there are some"));
    let controller = Controller::of::<MyApple>()
        .owns::<ConfigMap>()
        .watches_with(maps, Mapping::label("judged"))
        .reconcile(reconcile);
    Plugin::new("Has slow predicates.").controller(controller)
}

/// All conditions but the last are true, so that all are evaluated.
fn list(number: usize) -> Predicate {
    let costly = (0..15).map(|n| format!("{} != {}", COSTLY[n % COSTLY.len()], 10_000 + number * 100 + n));
    let never = format!("size('') == {number}");
    costly.chain([never]).map(Predicate::cel).reduce(Predicate::and).expect("there are some")
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let outcome = well_behaved(ctx, apple)?;
    if !is_bad(apple) {
        return Ok(outcome);
    }
    info!("judging");
    let mut large = config_map(&format!("{}-large", apple.name()), &[("quantity", &apple.spec.quantity.to_string())]);
    let members: BTreeMap<_, _> = (0..2_000).map(|n| (format!("member-{n}"), "x".repeat(36))).collect();
    large.data.get_or_insert_default().extend(members);
    Ok(outcome.child(large))
}
