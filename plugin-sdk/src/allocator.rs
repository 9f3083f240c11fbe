//! The allocator of a plugin: a call's blocks one after another in memory that is there from the beginning.
//!
//! Memory that an instance asks for while it runs costs more than what it is for: the host has it mapped, and taken away again before the next
//! instance, which interrupts every thread of the host. So blocks come from an [`Arena`], which is part of the memory that an
//! instance begins with. It is of zeros, of which neither the plugin's file nor the host holds a copy, and what a call does not touch costs
//! nothing. A call that needs more than the arena has goes on with Rust's usual allocator.
//!
//! ```text
//! 0            1 MiB
//! ├─ stack ────┼─ data ─┼─ arena ─────────────────────┤  memory.grow
//!                       │ object │ parsed │ answer │ →│→ usual allocator
//! ```
//!
//! [`macro@crate::plugin`] makes it the plugin's, unless it is told that there is another.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::{Cell, UnsafeCell},
};

/// What a call on an object of 50 kB takes, twice. Larger ones are rare, and gain little: they compute for a millisecond. And what is
/// there is looked through after a call.
const USUAL: usize = 256 << 10;

/// Where a block may lie: what Rust's own types and SIMD ask for. What asks for more is not the arena's.
const ALIGN: usize = 16;

/// The allocator of a plugin: blocks one after another, from `BYTES` of memory that is there when an instance begins; and from Rust's usual
/// allocator where that does not do.
///
/// A block that is given back is used again if it was the last, and the whole arena when nobody holds a block of it: after a call, in an
/// instance that is kept, as a rule. Where something stays for the next call, the arena is used up sooner or later, and the usual allocator
/// serves from then on.
///
/// `#[plugin]` makes one of 256 kB the plugin's `#[global_allocator]`. A plugin whose calls need more, and one that is made without that
/// macro, may have one of another size; so may a plugin have a wholly other one, or, where it declares none, Rust's usual one:
///
/// ```
/// use pilothouse_sdk::prelude::*;
///
/// // It is not for several threads, and so for the sandbox only.
/// #[cfg(target_arch = "wasm32")]
/// #[global_allocator]
/// static ALLOCATOR: pilothouse_sdk::Arena<{ 1 << 20 }> = pilothouse_sdk::Arena::new();
///
/// #[plugin(own_allocator)]
/// fn greedy() -> Plugin {
///     Plugin::new("Needs a MiB for a call.")
/// }
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct Arena<const BYTES: usize = USUAL> {
    /// How much of the memory is taken, from its beginning.
    taken: Cell<usize>,
    /// Blocks in it that somebody holds.
    held: Cell<usize>,
    /// After the others, so that a call touches none of its pages but the first ones.
    memory: UnsafeCell<Memory<BYTES>>,
}

#[derive(Debug)]
#[repr(C, align(16))]
struct Memory<const BYTES: usize>([u8; BYTES]);

// SAFETY: there are no threads where this is compiled.
#[cfg(all(target_arch = "wasm32", not(target_feature = "atomics")))]
#[expect(unsafe_code, reason = "a global allocator is shared by threads, where there are some")]
unsafe impl<const BYTES: usize> Sync for Arena<BYTES> {}

impl<const BYTES: usize> Arena<BYTES> {
    /// One of which nothing is taken.
    #[expect(clippy::new_without_default, reason = "it is made where a static is, and there by a constant")]
    pub const fn new() -> Self {
        const { assert!(align_of::<Memory<0>>() == ALIGN && BYTES <= isize::MAX as usize / 2) };
        Self { taken: Cell::new(0), held: Cell::new(0), memory: UnsafeCell::new(Memory([0; BYTES])) }
    }

    /// Where its memory begins.
    fn base(&self) -> *mut u8 {
        self.memory.get().cast()
    }

    /// Whether a block lies in it, and from where on.
    fn offset(&self, block: *mut u8) -> Option<usize> {
        let offset = block.addr().wrapping_sub(self.base().addr());
        (offset < BYTES).then_some(offset)
    }

    /// Takes a block of a size that is not 0, if there is room.
    fn take(&self, layout: Layout) -> Option<*mut u8> {
        // No sum overflows, as neither summand is more than half of what there is.
        let start = (self.taken.get() + layout.align() - 1) & !(layout.align() - 1);
        let end = start + layout.size();
        if end > BYTES || layout.align() > ALIGN {
            return None;
        }
        self.taken.set(end);
        self.held.set(self.held.get() + 1);
        Some(self.base().wrapping_add(start))
    }

    /// Takes a block back.
    fn give(&self, offset: usize, size: usize) {
        let held = self.held.get() - 1;
        self.held.set(held);
        if held == 0 {
            self.taken.set(0);
        } else if offset + size == self.taken.get() {
            self.taken.set(offset);
        }
    }

    /// Makes a block larger or smaller where it is, if it can.
    fn resize(&self, offset: usize, old: usize, new: usize) -> bool {
        if offset + old != self.taken.get() {
            return new <= old;
        }
        let fits = new <= BYTES - offset;
        if fits {
            self.taken.set(offset + new);
        }
        fits
    }
}

// SAFETY: blocks in the arena do not overlap, as each begins where what is taken ends; that goes back only over the last block as it is
// given back or becomes smaller, or when there is none. Blocks elsewhere are the usual allocator's. Nothing unwinds: nothing here panics.
#[expect(unsafe_code, reason = "that is what an allocator is")]
unsafe impl<const BYTES: usize> GlobalAlloc for Arena<BYTES> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.take(layout) {
            Some(block) => block,
            // SAFETY: what the caller vouches for.
            None => unsafe { usual_alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.offset(block) {
            Some(offset) => self.give(offset, layout.size()),
            // SAFETY: what the caller vouches for, and it is not the arena's.
            None => unsafe { usual_dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(offset) = self.offset(block) else {
            // SAFETY: what the caller vouches for, and it is not the arena's.
            return unsafe { System.realloc(block, layout, size) };
        };
        if self.resize(offset, layout.size(), size) {
            return block;
        }
        // SAFETY: the caller vouches that the new size with the old alignment is a layout, and that the old block is as large as it says. The
        // new one is another, as the old one is still held.
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

// Apart, as what allocates has the above in its own code.

#[cold]
#[inline(never)]
#[expect(unsafe_code, reason = "that is how an allocator is called")]
unsafe fn usual_alloc(layout: Layout) -> *mut u8 {
    // SAFETY: what the caller vouches for.
    unsafe { System.alloc(layout) }
}

#[cold]
#[inline(never)]
#[expect(unsafe_code, reason = "that is how an allocator is called")]
unsafe fn usual_dealloc(block: *mut u8, layout: Layout) {
    // SAFETY: what the caller vouches for.
    unsafe { System.dealloc(block, layout) }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "that is how an allocator is called")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 4096;

    fn arena() -> Box<Arena<BYTES>> {
        Box::new(Arena::new())
    }

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("it is one")
    }

    /// A block, and what every byte of it is.
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
            // SAFETY: it was taken with this layout, and nobody else has it: that is what is tested.
            unsafe { std::slice::from_raw_parts_mut(self.at, self.layout.size()) }
        }

        fn resize(&mut self, arena: &Arena<BYTES>, size: usize) {
            let kept = self.layout.size().min(size);
            // SAFETY: it was taken with this layout.
            self.at = unsafe { arena.realloc(self.at, self.layout, size) };
            self.layout = layout(size, self.layout.align());
            assert!(!self.at.is_null() && self.at.addr().is_multiple_of(self.layout.align()));
            let mark = self.mark;
            assert!(self.bytes().iter().take(kept).all(|byte| *byte == mark));
            self.bytes().fill(mark);
        }

        fn give(self, arena: &Arena<BYTES>) {
            // SAFETY: it was taken with this layout, and is not used any more.
            unsafe { arena.dealloc(self.at, self.layout) };
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize, usize),
        Give(prop::sample::Index),
        Resize(prop::sample::Index, usize),
        /// Of the block that was taken last.
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
        fn blocks_keep_what_is_in_them_whatever_becomes_of_others(steps in prop::collection::vec(step(), 1..200)) {
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
                let held = blocks.iter().filter(|block| arena.offset(block.at).is_some()).count();
                prop_assert_eq!(arena.held.get(), held);
            }
            blocks.into_iter().for_each(|block| block.give(&arena));
            prop_assert_eq!((arena.held.get(), arena.taken.get()), (0, 0));
        }
    }

    #[test]
    fn calls_that_give_everything_back_take_no_more_than_one_of_them() {
        let arena = arena();
        for _ in 0..1000 {
            let blocks = [100, 200, 300].map(|size| Block::new(&arena, layout(size, 8), 1));
            assert_eq!(arena.taken.get(), 104 + 200 + 300);
            blocks.into_iter().for_each(|block| block.give(&arena));
        }
    }

    #[test]
    fn last_block_grows_and_shrinks_where_it_is() {
        let arena = arena();
        let _first = Block::new(&arena, layout(10, 1), 1);
        let mut last = Block::new(&arena, layout(10, 1), 2);
        let at = last.at;
        for (size, taken) in [(20, 30), (15, 25), (BYTES - 10, BYTES)] {
            last.resize(&arena, size);
            assert_eq!((last.at, arena.taken.get()), (at, taken));
        }
        last.give(&arena);
        assert_eq!(arena.taken.get(), 10);
    }

    #[test]
    fn what_does_not_fit_is_the_usual_allocators() {
        let arena = arena();
        let mut inside = Block::new(&arena, layout(BYTES, 1), 1);
        let outside = Block::new(&arena, layout(1, 1), 2);
        assert_eq!((arena.offset(inside.at), arena.offset(outside.at), arena.held.get()), (Some(0), None, 1));
        outside.give(&arena);
        inside.resize(&arena, BYTES + 1);
        assert_eq!((arena.offset(inside.at), arena.held.get(), arena.taken.get()), (None, 0, 0));
        inside.give(&arena);
        let aligned = Block::new(&arena, layout(1, 2 * ALIGN), 3);
        assert_eq!(arena.offset(aligned.at), None);
        aligned.give(&arena);
    }

    #[test]
    fn memory_that_was_used_before_is_given_as_zeros_where_that_is_asked() {
        let arena = arena();
        Block::new(&arena, layout(100, 1), 1).give(&arena);
        // SAFETY: the layout has a size that is not 0, and the bytes are the block's.
        let zeros = unsafe { std::slice::from_raw_parts(arena.alloc_zeroed(layout(100, 1)), 100) };
        assert_eq!((arena.offset(zeros.as_ptr().cast_mut()), zeros), (Some(0), &[0; 100][..]));
    }
}
