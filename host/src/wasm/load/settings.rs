//! The engines' settings.

use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, Strategy, WasmBacktraceDetails};

use super::super::{
    memory::{MAX_INSTANCES, MAX_TABLE_ELEMENTS},
    tier::Tier,
};

/// `true` if a well-maintained compiler for [`Tier::Baseline`] exists for this platform.
pub(crate) const HAS_BASELINE: bool = cfg!(target_arch = "x86_64");

/// Bytes of stack for WebAssembly, wasmtime's default. Deep recursion in a parser takes a few hundred kB.
const STACK: usize = 512 << 10;

/// Bytes of stack for code of [`Tier::Baseline`], which has a stack slot for each local. A function with sixty locals,
/// most of them unused after its call, takes five times as much. A call that fits an optimized stack must fit here.
const BASELINE_STACK: usize = 8 * STACK;

/// Bytes of a call's stack for host functions: far more than they need.
const HOST_STACK: usize = 3 << 19;

/// Slots of the pool. Threads do not bound the instances: a call that waits for the API server keeps its slot. More
/// calls wait only if the server is slow, and then a slower start does not matter.
pub(crate) const SLOTS: u32 = 256;

/// Memories of a component in a slot. Each reserves 4 GiB of address space, out of 128 TiB.
const SLOT_MEMORIES: u32 = 2;

/// Tables of a component in a slot. A guest in Rust has two or three.
const SLOT_TABLES: u32 = 8;

/// Bytes of a memory that stay in its slot after a call, and are cleared instead of mapped again. A call on an object
/// of 50 kB touches as much, and one on 6 kB a quarter. Every later call clears what one call has touched, at about 10
/// GB/s.
const KEPT: usize = 192 << 10;

/// Unused slots that keep memory: 12 MiB at most.
const WARM: u32 = 64;

/// Returns the settings that shape a tier's code. They are the same in every process, and for both engines of
/// [`Tier::Optimized`].
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
        // No language needs 64 bits here. Also, if the growth of such a table overflows, the limiter hears of a failure
        // whose start it never granted.
        .wasm_memory64(false)
        // No language needs other page sizes. The limiter has the same problem with their memories.
        .wasm_custom_page_sizes(false)
        // Names come from the name section. DWARF would stay in memory, and its use would depend on the environment.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable);
    config
}

/// Returns the settings of the pool's engine.
pub(crate) fn pooled() -> Config {
    let mut pool = PoolingAllocationConfig::new();
    let all = |each: u32| SLOTS.saturating_mul(each);
    let instances = u32::try_from(MAX_INSTANCES).unwrap_or(u32::MAX);
    pool.total_component_instances(SLOTS)
        .total_stacks(SLOTS)
        // A counter that takes no memory: the limit without a pool.
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
