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

/// The export `admission`, which [`Plugin::validate`](crate::Plugin::validate) and
/// [`Plugin::mutate`](crate::Plugin::mutate) need.
///
/// ```compile_fail
/// use k8s_openapi::api::core::v1::Pod;
/// use pilothouse_sdk::prelude::*;
///
/// #[plugin]
/// fn reviews() -> Plugin { // instead of `Plugin<Admission>`
///     Plugin::new("Cannot be.").validate(Webhook::of::<Pod>("pods"), |_, _| Ok(Decision::allow()))
/// }
/// ```
#[derive(Debug)]
pub enum Admission {}

/// The export `conversion`, which [`Plugin::crd_versions`](crate::Plugin::crd_versions) needs.
#[derive(Debug)]
pub enum Conversion {}

/// The optional exports of a plugin: `()`, one of [`Mapper`], [`Observer`], [`Admission`] and [`Conversion`], or a tuple of
/// several of them in this order.
pub trait Exports: sealed::Sealed + 'static {
    /// `true` if `mapper` is one of them.
    const MAPPER: bool;
    /// `true` if `observer` is one of them.
    const OBSERVER: bool;
    /// `true` if `admission` is one of them.
    const ADMISSION: bool;
    /// `true` if `conversion` is one of them.
    const CONVERSION: bool;
}

/// [`Exports`] with `mapper`.
#[diagnostic::on_unimplemented(
    message = "a plugin that maps by a function must export `mapper`, and this one does not",
    note = "the functions that build the plugin must return `Plugin<Mapper>` and `Controller<Mapper>`, or a tuple such as \
            `Plugin<(Mapper, Observer)>` if it has other exports too"
)]
pub trait ExportsMapper: Exports {}

/// [`Exports`] with `observer`.
#[diagnostic::on_unimplemented(
    message = "a plugin that observes must export `observer`, and this one does not",
    note = "the functions that build the plugin must return `Plugin<Observer>`, or a tuple such as \
            `Plugin<(Mapper, Observer)>` if it has other exports too"
)]
pub trait ExportsObserver: Exports {}

/// [`Exports`] with `admission`.
#[diagnostic::on_unimplemented(
    message = "a plugin with webhooks must export `admission`, and this one does not",
    note = "the functions that build the plugin must return `Plugin<Admission>`, or a tuple such as \
            `Plugin<(Observer, Admission)>` if it has other exports too"
)]
pub trait ExportsAdmission: Exports {}

/// [`Exports`] with `conversion`.
#[diagnostic::on_unimplemented(
    message = "a plugin that converts objects must export `conversion`, and this one does not",
    note = "the functions that build the plugin must return `Plugin<Conversion>`, or a tuple such as \
            `Plugin<(Admission, Conversion)>` if it has other exports too"
)]
pub trait ExportsConversion: Exports {}

mod sealed {
    pub trait Sealed {}
}

/// Implements [`Exports`] for a set of exports: whether `mapper`, `observer`, `admission` and `conversion` are in it.
macro_rules! exports {
    ($($set:ty: $mapper:tt $observer:tt $admission:tt $conversion:tt;)+) => {
        $(
            impl sealed::Sealed for $set {}

            impl Exports for $set {
                const MAPPER: bool = exports!(@is $mapper);
                const OBSERVER: bool = exports!(@is $observer);
                const ADMISSION: bool = exports!(@is $admission);
                const CONVERSION: bool = exports!(@is $conversion);
            }

            exports!(@has $mapper ExportsMapper $set);
            exports!(@has $observer ExportsObserver $set);
            exports!(@has $admission ExportsAdmission $set);
            exports!(@has $conversion ExportsConversion $set);
        )+
    };
    (@is x) => { true };
    (@is -) => { false };
    (@has x $has:ident $set:ty) => { impl $has for $set {} };
    (@has - $has:ident $set:ty) => {};
}

exports! {
    (): - - - -;
    Mapper: x - - -;
    Observer: - x - -;
    Admission: - - x -;
    Conversion: - - - x;
    (Mapper, Observer): x x - -;
    (Mapper, Admission): x - x -;
    (Mapper, Conversion): x - - x;
    (Observer, Admission): - x x -;
    (Observer, Conversion): - x - x;
    (Admission, Conversion): - - x x;
    (Mapper, Observer, Admission): x x x -;
    (Mapper, Observer, Conversion): x x - x;
    (Mapper, Admission, Conversion): x - x x;
    (Observer, Admission, Conversion): - x x x;
    (Mapper, Observer, Admission, Conversion): x x x x;
}
