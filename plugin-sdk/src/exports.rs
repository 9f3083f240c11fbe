//! The optional exports of a plugin, as part of its type.
//!
//! A [`Plugin`](crate::Plugin) without optional exports is a plain `Plugin`. Otherwise the function under `#[plugin]`
//! names the exports in its return type. The compiler rejects a plugin that uses an export and does not name it.

/// The export `mapper`, which [`Mapping::with`](crate::Mapping::with) needs.
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

/// The export `observer`, which [`Plugin::observe`](crate::Plugin::observe) needs.
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

/// The optional exports of a plugin: `()`, [`Mapper`], [`Observer`], or `(Mapper, Observer)`.
pub trait Exports: sealed::Sealed + 'static {
    /// `true` if `mapper` is one of them.
    const MAPPER: bool;
    /// `true` if `observer` is one of them.
    const OBSERVER: bool;
}

/// [`Exports`] with `mapper`.
#[diagnostic::on_unimplemented(
    message = "a plugin that maps by a function must export `mapper`, and this one does not",
    note = "the functions that build the plugin must return `Plugin<Mapper>` and `Controller<Mapper>`, or \
            `Plugin<(Mapper, Observer)>` if it observes too"
)]
pub trait ExportsMapper: Exports {}

/// [`Exports`] with `observer`.
#[diagnostic::on_unimplemented(
    message = "a plugin that observes must export `observer`, and this one does not",
    note = "the functions that build the plugin must return `Plugin<Observer>`, or `Plugin<(Mapper, Observer)>` if it maps \
            by a function too"
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
