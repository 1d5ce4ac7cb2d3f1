//! Blocking the calling thread until an attempt succeeds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(super) fn waker_of(thread: Thread) -> Waker {
    Waker::from(Arc::new(Unpark(thread)))
}

thread_local! {
    /// One waker per thread, so that lists of waiters recognise it and do not grow when a thread retries.
    static OWN: Waker = waker_of(thread::current());
}

/// Calls a foreign waker. Catches a panic, to protect the calling thread and the other waiters.
pub(super) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!(
            "a store caught a panic while waking a task: see what its waker or future does"
        );
    }
}

/// Repeats `attempt` until it succeeds or `deadline` passes. An attempt that is given a waker arranges for it to be
/// called when a retry may succeed, then tries once more.
pub(super) fn until<T>(
    deadline: Instant,
    mut attempt: impl FnMut(Option<&Waker>) -> Option<T>,
) -> Option<T> {
    if let Some(done) = attempt(None) {
        return Some(done);
    }
    let waker = OWN.with(Waker::clone);
    loop {
        if let Some(done) = attempt(Some(&waker)) {
            return Some(done);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    #[test]
    fn a_waker_that_is_called_ends_the_wait() {
        let (asked, there) = (Mutex::new(None::<Waker>), Mutex::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let waker = loop {
                    if let Some(waker) = asked.lock().expect("no panic").take() {
                        break waker;
                    }
                    thread::yield_now();
                };
                *there.lock().expect("no panic") = true;
                waker.wake();
            });
            let found = until(Instant::now() + Duration::from_secs(60), |waker| {
                if let Some(waker) = waker {
                    *asked.lock().expect("no panic") = Some(waker.clone());
                }
                there.lock().expect("no panic").then_some(5)
            });
            assert_eq!(found, Some(5));
        });
    }

    #[test]
    fn what_never_works_ends_with_the_deadline() {
        let mut attempts = 0;
        let deadline = Instant::now() + Duration::from_millis(2);
        let found: Option<()> = until(deadline, |_| {
            attempts += 1;
            None
        });
        assert!(found.is_none() && attempts >= 2 && Instant::now() >= deadline);
    }
}
