//! The allocator of a plugin: it serves a call from memory that exists when the instance starts.
//!
//! Memory that an instance requests while it runs is expensive. The host maps it for the call and unmaps it afterwards,
//! which interrupts every thread of the host. So blocks come from an [`Arena`] inside the instance's initial memory.
//! The arena is all zeros, so neither the plugin's file nor the host stores it, and untouched pages cost nothing. When
//! the arena is full, Rust's default allocator takes over.
//!
//! ```text
//! 0            1 MiB
//! ├─ stack ────┼─ data ─┼─ arena ─────────────────────┤  memory.grow
//!                       │ object │ parsed │ answer │ →│→ default allocator
//! ```
//!
//! [`macro@crate::plugin`] installs it, unless the plugin has another allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::{Cell, UnsafeCell},
};

/// Twice what a call on an object of 50 kB needs. Larger objects are rare and gain little, because they compute for a
/// millisecond anyway. A larger arena would also make the scan after each call longer.
const DEFAULT_BYTES: usize = 256 << 10;

/// The largest alignment that the arena serves: enough for Rust's own types and SIMD.
const ALIGN: usize = 16;

/// An allocator that hands out blocks one after another from `BYTES` of initial memory. When they are used up, Rust's
/// default allocator takes over.
///
/// A freed block is reused if it was the last one. The whole arena is reused when no block is in use. In an instance
/// that serves several calls, that is usually the case after each call. If some memory stays in use between calls, the
/// arena fills up over time, and the default allocator serves from then on.
///
/// `#[plugin]` installs an arena of 256 kB as `#[global_allocator]`. A plugin can install one of another size, or
/// another allocator. Without a `#[global_allocator]`, it has Rust's default one.
///
/// ```
/// use pilothouse_sdk::prelude::*;
///
/// // An arena is for one thread, so for the sandbox only.
/// #[cfg(target_arch = "wasm32")]
/// #[global_allocator]
/// static ALLOCATOR: pilothouse_sdk::Arena<{ 1 << 20 }> = pilothouse_sdk::Arena::new();
///
/// #[plugin(own_allocator)]
/// fn greedy() -> Plugin {
///     Plugin::new("Needs 1 MiB for a call.")
/// }
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct Arena<const BYTES: usize = DEFAULT_BYTES> {
    /// Bytes in use, from the beginning of the memory.
    used: Cell<usize>,
    /// Number of blocks in use.
    blocks: Cell<usize>,
    /// The last field, so that a call touches only its first pages.
    memory: UnsafeCell<Memory<BYTES>>,
}

#[derive(Debug)]
#[repr(C, align(16))]
struct Memory<const BYTES: usize>([u8; BYTES]);

// SAFETY: there are no threads in this configuration.
#[cfg(all(target_arch = "wasm32", not(target_feature = "atomics")))]
#[expect(unsafe_code, reason = "a global allocator must be Sync")]
unsafe impl<const BYTES: usize> Sync for Arena<BYTES> {}

impl<const BYTES: usize> Arena<BYTES> {
    /// Creates an empty arena.
    #[expect(clippy::new_without_default, reason = "it is only created in a static")]
    pub const fn new() -> Self {
        const { assert!(align_of::<Memory<0>>() == ALIGN && BYTES <= isize::MAX as usize / 2) };
        Self { used: Cell::new(0), blocks: Cell::new(0), memory: UnsafeCell::new(Memory([0; BYTES])) }
    }

    /// Returns where its memory begins.
    fn base(&self) -> *mut u8 {
        self.memory.get().cast()
    }

    /// Returns the offset of a block. `None` if it is not in the arena.
    fn offset(&self, block: *mut u8) -> Option<usize> {
        let offset = block.addr().wrapping_sub(self.base().addr());
        (offset < BYTES).then_some(offset)
    }

    /// Allocates a block, if there is room. Its size must not be 0.
    fn take(&self, layout: Layout) -> Option<*mut u8> {
        // No sum overflows: each summand is at most half of the address space.
        let start = (self.used.get() + layout.align() - 1) & !(layout.align() - 1);
        let end = start + layout.size();
        if end > BYTES || layout.align() > ALIGN {
            return None;
        }
        self.used.set(end);
        self.blocks.set(self.blocks.get() + 1);
        Some(self.base().wrapping_add(start))
    }

    /// Frees a block.
    fn give(&self, offset: usize, size: usize) {
        let blocks = self.blocks.get() - 1;
        self.blocks.set(blocks);
        if blocks == 0 {
            self.used.set(0);
        } else if offset + size == self.used.get() {
            self.used.set(offset);
        }
    }

    /// Resizes a block in place. Returns `false` if that is not possible.
    fn resize(&self, offset: usize, old: usize, new: usize) -> bool {
        if offset + old != self.used.get() {
            return new <= old;
        }
        let fits = new <= BYTES - offset;
        if fits {
            self.used.set(offset + new);
        }
        fits
    }
}

// SAFETY: blocks in the arena do not overlap, because each begins where the used part ends. That end moves back only
// over the last block, when it is freed or shrinks, or when no block is left. Other blocks belong to the default
// allocator. Nothing here panics, so nothing unwinds.
#[expect(unsafe_code, reason = "an allocator is unsafe")]
unsafe impl<const BYTES: usize> GlobalAlloc for Arena<BYTES> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.take(layout) {
            Some(block) => block,
            // SAFETY: guaranteed by the caller.
            None => unsafe { default_alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.offset(block) {
            Some(offset) => self.give(offset, layout.size()),
            // SAFETY: guaranteed by the caller, and the block is not in the arena.
            None => unsafe { default_dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(offset) = self.offset(block) else {
            // SAFETY: guaranteed by the caller, and the block is not in the arena.
            return unsafe { System.realloc(block, layout, size) };
        };
        if self.resize(offset, layout.size(), size) {
            return block;
        }
        // SAFETY: the caller guarantees that the new size with the old alignment is a layout, and that the old block
        // has its size. The new block is a different one, because the old one is still in use.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

// Separate functions, because the code above is inlined into each allocation.

#[cold]
#[inline(never)]
#[expect(unsafe_code, reason = "an allocator is called unsafely")]
unsafe fn default_alloc(layout: Layout) -> *mut u8 {
    // SAFETY: guaranteed by the caller.
    unsafe { System.alloc(layout) }
}

#[cold]
#[inline(never)]
#[expect(unsafe_code, reason = "an allocator is called unsafely")]
unsafe fn default_dealloc(block: *mut u8, layout: Layout) {
    // SAFETY: guaranteed by the caller.
    unsafe { System.dealloc(block, layout) }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "an allocator is called unsafely")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 4096;

    fn arena() -> Box<Arena<BYTES>> {
        Box::new(Arena::new())
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("the layout is valid")
    }

    /// A block, and the value of each of its bytes.
    struct Block {
        at: *mut u8,
        layout: Layout,
        mark: u8,
    }

    impl Block {
        fn new(arena: &Arena<BYTES>, layout: Layout, mark: u8) -> Self {
            // SAFETY: no layout here has a size of 0.
            let at = unsafe { arena.alloc(layout) };
            assert!(!at.is_null() && at.addr().is_multiple_of(layout.align()), "{at:?} for {layout:?}");
            let mut block = Self { at, layout, mark };
            block.bytes().fill(mark);
            block
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: the block has this layout, and no other block overlaps it. That is what the test checks.
            unsafe { std::slice::from_raw_parts_mut(self.at, self.layout.size()) }
        }

        fn resize(&mut self, arena: &Arena<BYTES>, size: usize) {
            let kept = self.layout.size().min(size);
            // SAFETY: the block has this layout.
            self.at = unsafe { arena.realloc(self.at, self.layout, size) };
            self.layout = layout(size, self.layout.align());
            assert!(!self.at.is_null() && self.at.addr().is_multiple_of(self.layout.align()));
            let mark = self.mark;
            assert!(self.bytes().iter().take(kept).all(|byte| *byte == mark));
            self.bytes().fill(mark);
        }

        fn give(self, arena: &Arena<BYTES>) {
            // SAFETY: the block has this layout, and is not used again.
            unsafe { arena.dealloc(self.at, self.layout) };
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize, usize),
        Give(prop::sample::Index),
        Resize(prop::sample::Index, usize),
        /// Resizes the last block.
        ResizeLast(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let size = || prop_oneof![1..64_usize, 1..2 * BYTES];
        let block = any::<prop::sample::Index>;
        prop_oneof![
            (size(), 0..7_u32).prop_map(|(size, power)| Step::Take(size, 1 << power)),
            block().prop_map(Step::Give),
            (block(), size()).prop_map(|(block, size)| Step::Resize(block, size)),
            size().prop_map(Step::ResizeLast),
        ]
    }

    proptest! {
        #[test]
        fn blocks_keep_their_content(steps in prop::collection::vec(step(), 1..200)) {
            let arena = arena();
            let mut blocks: Vec<Block> = Vec::new();
            for (mark, step) in (0..=u8::MAX).cycle().zip(steps) {
                match step {
                    Step::Take(size, align) => blocks.push(Block::new(&arena, layout(size, align), mark)),
                    Step::Give(block) if !blocks.is_empty() => {
                        blocks.swap_remove(block.index(blocks.len())).give(&arena);
                    }
                    Step::Resize(block, size) if !blocks.is_empty() => {
                        let block = block.index(blocks.len());
                        blocks[block].resize(&arena, size);
                    }
                    Step::ResizeLast(size) => blocks.iter_mut().next_back().into_iter().for_each(|block| block.resize(&arena, size)),
                    Step::Give(_) | Step::Resize(..) => {}
                }
                for block in &mut blocks {
                    let mark = block.mark;
                    prop_assert!(block.bytes().iter().all(|byte| *byte == mark));
                }
                let in_arena = blocks.iter().filter(|block| arena.offset(block.at).is_some()).count();
                prop_assert_eq!(arena.blocks.get(), in_arena);
            }
            blocks.into_iter().for_each(|block| block.give(&arena));
            prop_assert_eq!((arena.blocks.get(), arena.used.get()), (0, 0));
        }
    }

    #[test]
    fn calls_that_free_everything_reuse_the_arena() {
        let arena = arena();
        for _ in 0..1000 {
            let blocks = [100, 200, 300].map(|size| Block::new(&arena, layout(size, 8), 1));
            assert_eq!(arena.used.get(), 104 + 200 + 300);
            blocks.into_iter().for_each(|block| block.give(&arena));
        }
    }

    #[test]
    fn last_block_grows_and_shrinks_in_place() {
        let arena = arena();
        let _first = Block::new(&arena, layout(10, 1), 1);
        let mut last = Block::new(&arena, layout(10, 1), 2);
        let at = last.at;
        for (size, taken) in [(20, 30), (15, 25), (BYTES - 10, BYTES)] {
            last.resize(&arena, size);
            assert_eq!((last.at, arena.used.get()), (at, taken));
        }
        last.give(&arena);
        assert_eq!(arena.used.get(), 10);
    }

    #[test]
    fn what_does_not_fit_comes_from_the_default_allocator() {
        let arena = arena();
        let mut inside = Block::new(&arena, layout(BYTES, 1), 1);
        let outside = Block::new(&arena, layout(1, 1), 2);
        assert_eq!((arena.offset(inside.at), arena.offset(outside.at), arena.blocks.get()), (Some(0), None, 1));
        outside.give(&arena);
        inside.resize(&arena, BYTES + 1);
        assert_eq!((arena.offset(inside.at), arena.blocks.get(), arena.used.get()), (None, 0, 0));
        inside.give(&arena);
        let aligned = Block::new(&arena, layout(1, 2 * ALIGN), 3);
        assert_eq!(arena.offset(aligned.at), None);
        aligned.give(&arena);
    }

    #[test]
    fn reused_memory_is_zeroed_on_request() {
        let arena = arena();
        Block::new(&arena, layout(100, 1), 1).give(&arena);
        // SAFETY: the layout has a size that is not 0, and the bytes are the block's.
        let zeros = unsafe { std::slice::from_raw_parts(arena.alloc_zeroed(layout(100, 1)), 100) };
        assert_eq!((arena.offset(zeros.as_ptr().cast_mut()), zeros), (Some(0), &[0; 100][..]));
    }
}
