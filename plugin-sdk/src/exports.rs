//! What a plugin's component exports besides `describe` and `reconcile`: part of its type, so that it cannot be forgotten.
//!
//! A [`Plugin`](crate::Plugin) that uses neither is a `Plugin` and nothing is said. One that uses one of them says so where
//! `#[plugin]` reads it, in the type that the function returns: the compiler refuses it otherwise, and the host need not.

/// Exports `mapper`: what [`Mapping::with`](crate::Mapping::with) needs.
///
/// ```compile_fail
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
/// use pilothouse_sdk::prelude::*;
///
/// #[plugin]
/// fn maps() -> Plugin { // instead of `Plugin<Mapper>`
///     let beside = Mapping::with(|_, change: &Change<Secret>| Ok(vec![change.key()]));
///     let controller = Controller::of::<ConfigMap>().watches(beside).reconcile(|_, _| Ok(Outcome::new()));
///     Plugin::new("Cannot be.").controller(controller)
/// }
/// ```
#[derive(Debug)]
pub enum Mapper {}

/// Exports `observer`: what [`Plugin::observe`](crate::Plugin::observe) needs.
///
/// ```compile_fail
/// use k8s_openapi::api::core::v1::Secret;
/// use pilothouse_sdk::prelude::*;
///
/// #[plugin]
/// fn observes() -> Plugin { // instead of `Plugin<Observer>`
///     Plugin::new("Cannot be.").observe(Watch::of::<Secret>(), |_, _| Ok(()))
/// }
/// ```
#[derive(Debug)]
pub enum Observer {}

/// Which of the optional exports a plugin has: `()`, [`Mapper`], [`Observer`], or `(Mapper, Observer)`.
pub trait Exports: sealed::Sealed + 'static {
    /// Whether `mapper` is one.
    const MAPPER: bool;
    /// Whether `observer` is one.
    const OBSERVER: bool;
}

/// Those that have `mapper`.
#[diagnostic::on_unimplemented(
    message = "a plugin that maps by a function exports `mapper`, and this one does not",
    note = "let the functions around it return `Plugin<Mapper>` and `Controller<Mapper>`, or `Plugin<(Mapper, Observer)>` if it \
            observes too"
)]
pub trait ExportsMapper: Exports {}

/// Those that have `observer`.
#[diagnostic::on_unimplemented(
    message = "a plugin that observes exports `observer`, and this one does not",
    note = "let the functions around it return `Plugin<Observer>`, or `Plugin<(Mapper, Observer)>` if it maps by a function too"
)]
pub trait ExportsObserver: Exports {}

impl Exports for () {
    const MAPPER: bool = false;
    const OBSERVER: bool = false;
}

impl Exports for Mapper {
    const MAPPER: bool = true;
    const OBSERVER: bool = false;
}

impl Exports for Observer {
    const MAPPER: bool = false;
    const OBSERVER: bool = true;
}

impl Exports for (Mapper, Observer) {
    const MAPPER: bool = true;
    const OBSERVER: bool = true;
}

impl ExportsMapper for Mapper {}
impl ExportsMapper for (Mapper, Observer) {}
impl ExportsObserver for Observer {}
impl ExportsObserver for (Mapper, Observer) {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl Sealed for super::Mapper {}
    impl Sealed for super::Observer {}
    impl Sealed for (super::Mapper, super::Observer) {}
}
