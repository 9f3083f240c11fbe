//! The state that a guest's store holds, and the rules of every host call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use pilothouse_core::object::{Object, Subresource};
use wasmtime::Result;

use super::{
    super::{
        super::{
            MAX_TRANSFER,
            limits::Limits,
            memory::{Limiter, PluginMemory},
        },
        bindings::pilothouse::plugin::types,
    },
    Import, Imports, InstanceState, State,
};
use crate::guests::without_core;

/// The host's data of one instance. [`CallState`] is new for each call.
pub(crate) struct HostState {
    pub(super) instance: InstanceState,
    pub(crate) call: CallState,
    pub(crate) limiter: Limiter,
    pub(crate) delay: TurnDelay,
    limits: Limits,
}

/// What the host knows of one call.
pub(crate) struct CallState {
    door: Door,
    pub(crate) began: Instant,
    pub(crate) budget: Duration,
    pub(crate) interfaces: State,
    /// Host calls so far.
    calls: u32,
    /// Bytes of their arguments and answers.
    bytes: usize,
}

impl CallState {
    fn begin(imports: Option<Arc<dyn Imports>>, budget: Duration) -> Self {
        let interfaces = State::new(imports.as_deref());
        let door = imports.map_or(Door::Closed, Door::Open);
        Self { door, began: Instant::now(), budget, interfaces, calls: 0, bytes: 0 }
    }
}

/// Whether a call may use imports.
enum Door {
    /// In `describe`, and after a call.
    Closed,
    Open(Arc<dyn Imports>),
}

/// Upper bound of the extra time of a delayed call, as a multiple of its budget.
const LATE: u32 = 9;

/// Time that a computing call spent waiting: for its next turn, for its plugin's share, or for a core. It does not
/// count against the budget.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnDelay(Arc<AtomicU64>);

impl TurnDelay {
    /// Yields to other tasks, and adds the time until the call runs again.
    pub(crate) async fn give_way(self) {
        let without_core = without_core();
        let left = Instant::now();
        // The engine's plain `Yield` wakes itself at once, and starves the runtime's timers and sockets while a guest
        // is busy.
        tokio::task::yield_now().await;
        let waited = u64::try_from((without_core + left.elapsed()).as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(waited, Ordering::Relaxed);
    }

    /// Returns how long after its start a call of this budget may run, as far as is known now.
    pub(crate) fn allows(&self, budget: Duration) -> Duration {
        let waited = Duration::from_nanos(self.0.load(Ordering::Relaxed)).saturating_add(without_core());
        budget.saturating_add(waited.min(budget.saturating_mul(LATE)))
    }
}

/// An import was called from `describe` or `convert`.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("{} was called where no import may be called", .0.name())]
pub(crate) struct Closed(pub(crate) Import);

/// A call exceeded a limit on host calls. Holds the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// Host calls.
    #[error("called the host more than {0} times in one call")]
    Calls(u32),
    /// Bytes of their arguments and answers.
    #[error("exchanged more than {} MiB with the host in one call", .0 >> 20)]
    Bytes(usize),
    /// Bytes that the host copies at once: the arguments of a host call, or an answer.
    #[error("handed more than {} MiB to the host at once", MAX_TRANSFER >> 20)]
    AtOnce,
}

impl HostState {
    /// Creates the state for an instance's first call, which has `budget` from now. `held` is the memory of all the
    /// plugin's instances.
    pub(crate) fn new(imports: Option<Arc<dyn Imports>>, limits: Limits, held: PluginMemory, budget: Duration) -> Self {
        Self {
            instance: InstanceState::default(),
            call: CallState::begin(imports, budget),
            limiter: Limiter::new(limits.memory, limits.total_memory, held),
            delay: TurnDelay::default(),
            limits,
        }
    }

    /// Starts the next call into the same instance.
    pub(crate) fn again(&mut self, imports: Option<Arc<dyn Imports>>, budget: Duration) {
        self.call = CallState::begin(imports, budget);
        self.limiter.again();
        self.delay.0.store(0, Ordering::Relaxed);
    }

    /// Ends the call. Later host calls fail.
    pub(crate) fn close(&mut self) {
        let imports = match std::mem::replace(&mut self.call.door, Door::Closed) {
            Door::Open(imports) => Some(imports),
            Door::Closed => None,
        };
        self.call.interfaces.finish(imports.as_deref());
    }

    /// Starts a host call: checks the limits, and counts the call and the bytes of its arguments. Fails in `describe`.
    pub(crate) fn open(&mut self, import: impl Into<Import>, bytes: usize) -> Result<Arc<dyn Imports>> {
        let import = import.into();
        self.admit(import, bytes)?.ok_or_else(|| wasmtime::Error::new(Closed(import)))
    }

    /// As [`Self::open`], for an import that has an answer in `describe` too. Returns `None` there.
    pub(crate) fn admit(&mut self, import: impl Into<Import>, bytes: usize) -> Result<Option<Arc<dyn Imports>>> {
        let imports = match &self.call.door {
            Door::Open(imports) => Some(Arc::clone(imports)),
            Door::Closed => None,
        };
        if self.call.calls >= self.limits.host_calls {
            return Err(wasmtime::Error::new(Excess::Calls(self.limits.host_calls)));
        }
        self.call.calls += 1;
        self.exchange(bytes)?;
        if let Some(imports) = &imports {
            imports.called(import.into());
        }
        Ok(imports)
    }

    /// Ends a host call: counts the bytes of its answer.
    pub(crate) fn give<T>(&mut self, answer: T, bytes: impl FnOnce(&T) -> usize) -> Result<T> {
        self.exchange(bytes(&answer))?;
        Ok(answer)
    }

    /// Returns what is left of the call's time.
    pub(crate) fn left(&self) -> Duration {
        self.delay.allows(self.call.budget).saturating_sub(self.call.began.elapsed())
    }

    fn exchange(&mut self, bytes: usize) -> Result<()> {
        self.call.bytes = self.call.bytes.saturating_add(bytes);
        if self.call.bytes > self.limits.host_bytes {
            return Err(wasmtime::Error::new(Excess::Bytes(self.limits.host_bytes)));
        }
        Ok(())
    }
}

impl types::Host for HostState {}

/// Converts a subresource of the contract.
pub(crate) fn subresource(subresource: types::Subresource) -> Subresource {
    match subresource {
        types::Subresource::Status => Subresource::Status,
        types::Subresource::Scale => Subresource::Scale,
        types::Subresource::Eviction => Subresource::Eviction,
        types::Subresource::Log => Subresource::Log,
        types::Subresource::Approval => Subresource::Approval,
        types::Subresource::EphemeralContainers => Subresource::EphemeralContainers,
        types::Subresource::Resize => Subresource::Resize,
    }
}

/// Returns an object as the contract's JSON text.
pub(crate) fn json(object: &Arc<Object>) -> String {
    object.json().into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use std::num::NonZeroUsize;

    use tokio::runtime::Handle;

    use super::*;
    use crate::guests::Guests;

    #[tokio::test]
    async fn time_without_a_core_extends_a_call() {
        let guests = Guests::start(NonZeroUsize::MIN, &Handle::current(), || ()).unwrap();
        let budget = Duration::from_secs(1);
        let stands = async move {
            let delay = TurnDelay::default();
            // As if the kernel had given the core to others.
            std::thread::sleep(Duration::from_millis(20));
            let in_its_turn = delay.allows(budget);
            delay.clone().give_way().await;
            (in_its_turn, delay.allows(budget))
        };
        let account = guests.account(&"waiting".parse().unwrap());
        let (in_its_turn, later) = account.spawn(stands).ended().await.unwrap();
        assert!(in_its_turn >= budget + Duration::from_millis(20), "{in_its_turn:?}");
        assert!(later >= budget + Duration::from_millis(20), "{later:?}");
    }

    #[test]
    fn next_call_has_a_deadline_of_its_own() {
        let mut state = HostState::new(None, Limits::default(), PluginMemory::default(), Duration::from_secs(1));
        let earlier = state.call.began - Duration::from_millis(1);
        state.call.began = earlier;
        state.again(None, Duration::from_secs(2));
        assert!(state.call.began > earlier);
        assert_eq!(state.call.budget, Duration::from_secs(2));
    }
}
