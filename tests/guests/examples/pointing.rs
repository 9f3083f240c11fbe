//! Counts the objects of the kind that `spec.color` names, such as `example.com/v1/Pear`, in the namespace of the
//! MyApple. Any other color names no kind.
//!
//! The condition `Counted` has the number, or why the kind cannot be read.
//!
//! Used by `tests/e2e/suite/watches.rs`.

use pilothouse_guests::apple::{self, MyApple, found};
use pilothouse_sdk::prelude::*;

#[plugin]
fn pointing() -> Plugin {
    let everything = Permission::to(TypeMeta::new("*", "*")).verbs([Verb::Read]);
    let controller = apple::counting().reconcile(reconcile);
    Plugin::new("Counts what it is pointed at.").controller(controller).permission(everything)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    let mut status = apple::counted(apple);
    let Some((api_version, kind)) = apple.spec.color.rsplit_once('/') else {
        found(ctx, &mut status, "Counted", "nothing");
        return Ok(Outcome::new().watches::<Dynamic>([]).status(status));
    };
    let of = TypeMeta::new(api_version, kind);
    let keys: Result<Vec<Key>, _> = ctx.cache().list_dynamic(of.clone()).beside(ctx.key()).keys().collect();
    found(ctx, &mut status, "Counted", keys.map_or_else(|error| error.to_string(), |keys| keys.len().to_string()));
    Ok(Outcome::new().watch(Watch::to(of)).status(status))
}
