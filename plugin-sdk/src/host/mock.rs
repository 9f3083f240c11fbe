//! The mock host behind an interface, in native tests.

use std::{cell::RefCell, rc::Rc, thread::LocalKey};

/// The mock host behind one interface on this thread, while a test calls the plugin. `F` is the trait of the interface.
pub(crate) struct Mock<F: ?Sized>(RefCell<Option<Rc<F>>>);

impl<F: ?Sized> Mock<F> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new(None))
    }

    pub(crate) fn get(&self) -> Rc<F> {
        self.0.borrow().clone().expect(
            "there is no host here: in native tests, call the plugin through pilothouse_sdk::mock::MockHost; a \
             plugin must not call the host while it describes itself",
        )
    }
}

/// Calls `f` with `mock` behind an interface. Takes the mock away again afterwards, even if `f` panics.
pub(crate) fn with_mock<F: ?Sized, T>(interface: &'static LocalKey<Mock<F>>, mock: Rc<F>, f: impl FnOnce() -> T) -> T {
    struct Restore<F: ?Sized + 'static>(&'static LocalKey<Mock<F>>, Option<Rc<F>>);
    impl<F: ?Sized> Drop for Restore<F> {
        fn drop(&mut self) {
            self.0.with(|current| current.0.replace(self.1.take()));
        }
    }
    let _restore = Restore(interface, interface.with(|current| current.0.replace(Some(mock))));
    f()
}
