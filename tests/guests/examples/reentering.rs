//! For `bad-*` calls the host while the host calls it: for memory, to put an answer there.

#![cfg(target_arch = "wasm32")]
#![expect(unsafe_code, reason = "an allocator is unsafe")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, Ordering},
};

use pilothouse_guests::apple::{self, MyApple, is_bad, well_behaved};
use pilothouse_sdk::{contract::pilothouse::plugin::clock, prelude::*};

/// The system's, which looks at the clock if it is told to.
struct Looking;

static LOOKS: AtomicBool = AtomicBool::new(false);

#[global_allocator]
static ALLOCATOR: Looking = Looking;

// SAFETY: the memory is the system allocator's.
unsafe impl GlobalAlloc for Looking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if LOOKS.load(Ordering::Relaxed) {
            std::hint::black_box(clock::now());
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[plugin(own_allocator)]
fn reentering() -> Plugin {
    apple::plugin("Comes back in.", reconcile)
}

fn reconcile(ctx: &Context, apple: &MyApple) -> Result<Outcome, Error> {
    if is_bad(apple) {
        LOOKS.store(true, Ordering::Relaxed);
        // The answer is the object itself: the host asks for memory to put it in.
        ctx.cache().get::<MyApple>(ctx.key())?;
    }
    well_behaved(ctx, apple)
}
