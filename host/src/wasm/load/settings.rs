//! What the engines are set to.

use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, Strategy, WasmBacktraceDetails};

use super::super::{
    memory::{MAX_INSTANCES, MAX_TABLE_ELEMENTS},
    tier::Tier,
};

/// Whether there is a compiler for [`Tier::Baseline`] that is as well kept as the other.
pub(crate) const HAS_BASELINE: bool = cfg!(target_arch = "x86_64");

/// WebAssembly frames a call may use. Deep recursion in a parser takes some hundred kB; wasmtime's own default.
const STACK: usize = 512 << 10;

/// The same for code of [`Tier::Baseline`], which has a place on the stack for each local of a function: one with sixty of which few are
/// needed after its call takes five times as much. What does not overflow it is not to do so before it is optimized.
const BASELINE_STACK: usize = 8 * STACK;

/// What a call's stack has for host functions besides: far more than they need.
const HOST_STACK: usize = 3 << 19;

/// Instances that have a slot of the pool at the same time. Threads do not bound them, as a call that waits for the API server keeps
/// its own; so many wait only where the server is slow, and then it does not matter that the rest is made from nothing.
pub(crate) const SLOTS: u32 = 256;

/// Memories that one component may have in a slot. Each reserves 4 GiB of address space, of which there are 128 TiB.
const SLOT_MEMORIES: u32 = 2;

/// Tables that one component may have in a slot: a guest in Rust has two or three.
const SLOT_TABLES: u32 = 8;

/// Bytes of a memory that its slot keeps after a call, to be overwritten instead of asked for again: what a call on an object of 50 kB
/// touches, or on one of 6 kB four times. What one call has touched is cleaned after each one from then on, at some 10 GB/s.
const KEPT: usize = 192 << 10;

/// Slots that keep something though nothing uses them: 12 MiB at most.
const WARM: u32 = 64;

/// What shapes compiled code of a tier: the same in every process, and for both engines of [`Tier::Optimized`].
pub(crate) fn settings(tier: Tier) -> Config {
    let mut config = Config::new();
    let (strategy, stack) = match tier {
        Tier::Baseline => (Strategy::Winch, BASELINE_STACK),
        Tier::Optimized => (Strategy::Cranelift, STACK),
    };
    config
        .strategy(strategy)
        .epoch_interruption(true)
        .max_wasm_stack(stack)
        .async_stack_size(stack + HOST_STACK)
        .memory_init_cow(true)
        // No language has use for 64 bits here. And where the growth of such a table overflows, the limiter hears of a failure of which it has
        // not granted the beginning.
        .wasm_memory64(false)
        // Nor has any for pages of another size, and there it is the same with memories.
        .wasm_custom_page_sizes(false)
        // Names come from the name section; reading DWARF would keep it in memory, and must not hang on the environment.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable);
    config
}

/// The same with instances from a pool.
pub(crate) fn pooled() -> Config {
    let mut pool = PoolingAllocationConfig::new();
    let all = |each: u32| SLOTS.saturating_mul(each);
    let instances = u32::try_from(MAX_INSTANCES).unwrap_or(u32::MAX);
    pool.total_component_instances(SLOTS)
        .total_stacks(SLOTS)
        // A counter and no memory: what a call may have without a pool.
        .max_core_instances_per_component(instances)
        .total_core_instances(all(instances))
        .max_memories_per_component(SLOT_MEMORIES)
        .total_memories(all(SLOT_MEMORIES))
        .max_tables_per_component(SLOT_TABLES)
        .total_tables(all(SLOT_TABLES))
        .table_elements(MAX_TABLE_ELEMENTS)
        .linear_memory_keep_resident(KEPT)
        .table_keep_resident(KEPT)
        .max_unused_warm_slots(WARM)
        .pagemap_scan(Enabled::Yes);
    let mut config = settings(Tier::Optimized);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}
