//! Blocking the calling thread until something works out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker of `thread`.
pub(super) fn waker_of(thread: Thread) -> Waker {
    Waker::from(Arc::new(Unpark(thread)))
}

thread_local! {
    /// One for each thread: lists of who waits know it again, and do not grow while a thread asks over and over.
    static OWN: Waker = waker_of(thread::current());
}

/// Calls a waker, which may be anything: whoever does has to survive it, and so have the others that wait.
pub(super) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::error!(
            "a store caught a panic while waking a task: see what its waker or future does"
        );
    }
}

/// Attempts until something comes of it or `deadline` passes. An attempt that is given a waker has it called when
/// another may work, and looks once more after that.
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
