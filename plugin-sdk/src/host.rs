//! The functions that the host offers, as the rest of the crate calls them.
//!
//! Each interface of the contract has one file: [`cache`](crate::cache), [`client`](crate::client), `clock`,
//! [`features`](crate::features) (`host`), [`http`](crate::http), [`log`](crate::log), [`metrics`](crate::metrics) and
//! [`random`](crate::random). [`interface!`] lists its functions there.
//!
//! The target decides where a call goes, and no trait object does. So the linker removes a function that a plugin never
//! calls, and the function does not appear among the component's imports.

#[cfg(not(target_arch = "wasm32"))]
mod mock;

/// Declares the functions of one interface, in a module `import`.
///
/// - In the sandbox, they are the component's imports.
/// - Natively, each calls the mock host of the running test. The mock implements the trait `import::Functions`.
///
/// ```text
/// interface!(clock {
///     fn now() -> u64;
/// });
/// ```
macro_rules! interface {
    ($interface:ident {
        $(fn $function:ident($($name:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)+
    }) => {
        #[cfg(target_arch = "wasm32")]
        use $crate::contract::pilothouse::plugin::$interface as import;

        #[cfg(not(target_arch = "wasm32"))]
        pub(crate) mod import {
            #[allow(clippy::allow_attributes, unused_imports, reason = "some interfaces have no types of their own")]
            use $crate::contract::pilothouse::plugin::$interface::*;
            use $crate::host::Mock;

            /// The functions of the interface, for the mock host.
            pub(crate) trait Functions {
                $(fn $function(&self, $($name: $type),*) $(-> $result)?;)+
            }

            thread_local! {
                pub(crate) static MOCK: Mock<dyn Functions> = const { Mock::new() };
            }

            $(pub(crate) fn $function($($name: $type),*) $(-> $result)? {
                MOCK.with(Mock::get).$function($($name),*)
            })+
        }
    };
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use self::mock::{Mock, with_mock};
pub(crate) use interface;
