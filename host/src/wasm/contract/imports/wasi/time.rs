//! The clocks of WASI: virtual time, which begins when the call begins, and which only sleeping moves.

use wasmtime::{Result, component::Resource};

use super::{
    super::{
        super::bindings::wasi::wasi::{
            clocks::{monotonic_clock, wall_clock},
            io::poll::{self, Pollable},
        },
        host_state::HostState,
    },
    WasiCall,
};

const NANOS_PER_MILLI: u64 = 1_000_000;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A pollable that is always ready. The others are numbers of timers, from 1.
pub(super) const READY: u32 = 0;

/// The time of a call in nanoseconds since 1970.
pub(super) struct Wall(u64);

impl Wall {
    pub(super) fn new(millis: u64) -> Self {
        Self(millis.saturating_mul(NANOS_PER_MILLI))
    }
}

/// The monotonic clock of an instance, and its timers.
#[derive(Default)]
pub(super) struct Monotonic {
    /// The latest time that the guest got.
    told: u64,
    /// When each timer is due. `None` for a place that is free.
    timers: Vec<Option<u64>>,
}

impl Monotonic {
    /// Returns when a pollable is ready.
    fn due(&self, pollable: u32) -> u64 {
        let timer = usize::try_from(pollable).ok().and_then(|number| number.checked_sub(1));
        timer.and_then(|place| self.timers.get(place).copied().flatten()).unwrap_or(0)
    }

    /// Creates a timer, and returns its number.
    fn timer(&mut self, due: u64) -> u32 {
        let place = self.timers.iter().position(Option::is_none).unwrap_or_else(|| {
            self.timers.push(None);
            self.timers.len() - 1
        });
        self.timers[place] = Some(due);
        u32::try_from(place + 1).expect("the number of handles has a bound")
    }

    fn end(&mut self, pollable: u32) {
        let timer = usize::try_from(pollable).ok().and_then(|number| number.checked_sub(1));
        if let Some(timer) = timer.and_then(|place| self.timers.get_mut(place)) {
            *timer = None;
        }
    }
}

impl HostState {
    /// Returns the monotonic time. An instance never sees it go back, even if the time of a later call is earlier.
    fn monotonic(&mut self) -> u64 {
        let Wall(wall) = self.call.interfaces.wasi.time;
        let told = &mut self.instance.wasi.clock.told;
        *told = wall.max(*told);
        *told
    }

    /// Moves both clocks forward, until the monotonic one shows `due`.
    fn sleep_until(&mut self, due: u64) {
        let slept = due.saturating_sub(self.monotonic());
        let Wall(wall) = &mut self.call.interfaces.wasi.time;
        *wall = wall.saturating_add(slept);
        self.instance.wasi.clock.told = self.instance.wasi.clock.told.saturating_add(slept);
    }

    fn subscribe(&mut self, due: u64) -> Result<Resource<Pollable>> {
        // The bound of handles is checked first, so that it bounds timers too.
        self.handle::<Pollable>(READY)?;
        Ok(Resource::new_own(self.instance.wasi.clock.timer(due)))
    }
}

impl wall_clock::Host for HostState {
    fn now(&mut self) -> Result<wall_clock::Datetime> {
        self.admit(WasiCall::Clocks, 0)?;
        let Wall(wall) = self.call.interfaces.wasi.time;
        let nanoseconds = u32::try_from(wall % NANOS_PER_SECOND).unwrap_or_default();
        Ok(wall_clock::Datetime { seconds: wall / NANOS_PER_SECOND, nanoseconds })
    }

    fn resolution(&mut self) -> Result<wall_clock::Datetime> {
        self.admit(WasiCall::Clocks, 0)?;
        Ok(wall_clock::Datetime { seconds: 0, nanoseconds: 1 })
    }
}

impl monotonic_clock::Host for HostState {
    fn now(&mut self) -> Result<u64> {
        self.admit(WasiCall::Clocks, 0)?;
        Ok(self.monotonic())
    }

    fn resolution(&mut self) -> Result<u64> {
        self.admit(WasiCall::Clocks, 0)?;
        Ok(1)
    }

    fn subscribe_instant(&mut self, when: u64) -> Result<Resource<Pollable>> {
        self.admit(WasiCall::Clocks, 0)?;
        self.subscribe(when)
    }

    fn subscribe_duration(&mut self, when: u64) -> Result<Resource<Pollable>> {
        self.admit(WasiCall::Clocks, 0)?;
        let due = self.monotonic().saturating_add(when);
        self.subscribe(due)
    }
}

impl poll::Host for HostState {
    /// If no pollable is ready, the guest sleeps until the first one is.
    fn poll(&mut self, pollables: Vec<Resource<Pollable>>) -> Result<Vec<u32>> {
        self.admit(WasiCall::Io, size_of::<u32>() * pollables.len())?;
        let due = |host: &Self, pollable: &Resource<Pollable>| host.instance.wasi.clock.due(pollable.rep());
        let Some(first) = pollables.iter().map(|pollable| due(self, pollable)).min() else {
            return Err(wasmtime::Error::msg("wasi:io/poll was called without a pollable"));
        };
        self.sleep_until(first);
        let now = self.monotonic();
        let ready = (0..).zip(&pollables).filter(|(_, pollable)| due(self, pollable) <= now);
        Ok(ready.map(|(number, _)| number).collect())
    }
}

impl poll::HostPollable for HostState {
    fn ready(&mut self, pollable: Resource<Pollable>) -> Result<bool> {
        self.admit(WasiCall::Io, 0)?;
        Ok(self.instance.wasi.clock.due(pollable.rep()) <= self.monotonic())
    }

    fn block(&mut self, pollable: Resource<Pollable>) -> Result<()> {
        self.admit(WasiCall::Io, 0)?;
        let due = self.instance.wasi.clock.due(pollable.rep());
        self.sleep_until(due);
        Ok(())
    }

    fn drop(&mut self, pollable: Resource<Pollable>) -> Result<()> {
        self.instance.wasi.clock.end(pollable.rep());
        self.drop_handle();
        Ok(())
    }
}
