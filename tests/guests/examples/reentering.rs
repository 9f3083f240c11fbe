//! For `bad-*`, calls `clock` from its allocator, while the host asks it for memory for a result.
//!
//! Used by `tests/e2e/suite/hostile.rs`.

#![cfg(target_arch = "wasm32")]
#![expect(unsafe_code, reason = "an allocator is unsafe")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, Ordering},
};

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::{contract::pilothouse::plugin::clock, prelude::*};

/// The system's allocator. It calls the clock while the flag is set.
struct Looking;

static LOOKS: AtomicBool = AtomicBool::new(false);

#[global_allocator]
static ALLOCATOR: Looking = Looking;

// SAFETY: the system allocator owns the memory.
unsafe impl GlobalAlloc for Looking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if LOOKS.load(Ordering::Relaxed) {
            std::hint::black_box(clock::now());
        }
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[plugin(own_allocator)]
fn reentering() -> Plugin {
    apple::plugin("Calls the host from its allocator.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) {
        LOOKS.store(true, Ordering::Relaxed);
        // The result is an object, for which the host asks for memory.
        ctx.cache().get::<MyApple>(ctx.key())?;
    }
    well_behaved(ctx, apple)
}
