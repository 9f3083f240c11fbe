//! Tells when a runtime has nothing to do.
//!
//! A paused clock moves by itself whenever the runtime is idle. A task that waits for [`Parked::next`] is woken before
//! that, so time stands still.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

use parking_lot::Mutex;
use tokio::runtime::Builder;

/// Wakes its caller when the runtime is about to sleep.
#[derive(Clone, Default)]
pub(super) struct Parked(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waker: Option<Waker>,
    is_parking: bool,
}

impl Parked {
    /// Runs `work` on this thread, on a runtime whose clock stands still.
    ///
    /// # Errors
    /// The runtime cannot be created.
    pub(super) fn run<T>(work: impl AsyncFnOnce(Self) -> T) -> anyhow::Result<T> {
        let parked = Self::default();
        let parks = parked.clone();
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .on_thread_park(move || parks.park())
            .build()?;
        Ok(runtime.block_on(work(parked)))
    }

    fn park(&self) {
        let mut state = self.0.lock();
        if let Some(waker) = state.waker.take() {
            state.is_parking = true;
            drop(state);
            waker.wake();
        }
    }

    /// Returns when no task of the runtime can go on.
    pub(super) async fn next(&self) {
        let mut has_begun = false;
        poll_fn(|context| {
            let mut state = self.0.lock();
            if !std::mem::replace(&mut has_begun, true) {
                state.is_parking = false;
            }
            if state.is_parking {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        task::yield_now,
        time::{Instant, sleep},
    };

    use super::*;

    #[test]
    fn idle_is_told_after_all_work_and_before_any_time_passes() {
        let seen = Parked::run(async |parked| {
            let (began, seen) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
            let worker = seen.clone();
            tokio::spawn(async move {
                for step in 0..3 {
                    worker.lock().push(step.to_string());
                    yield_now().await;
                }
                sleep(Duration::from_millis(1)).await;
                worker.lock().push("later".to_owned());
            });
            parked.next().await;
            seen.lock().push(format!("idle after {:?}", began.elapsed()));
            sleep(Duration::from_millis(1)).await;
            parked.next().await;
            seen.lock().push(format!("idle after {:?}", began.elapsed()));
            seen.lock().clone()
        });
        assert_eq!(seen.expect("there is a runtime"), ["0", "1", "2", "idle after 0ns", "later", "idle after 1ms"]);
    }
}
