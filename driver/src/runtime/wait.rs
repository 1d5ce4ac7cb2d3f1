//! Waiting for room, for memory or for an answer, and shields against panics of foreign code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A wait without a deadline repeats one this long, so that there is one way to wait.
pub(super) const LONG: Duration = Duration::from_secs(3600);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// One waker per thread, so that lists of waiters recognise it and do not grow when a thread retries.
    static OWN: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

/// Runs foreign code on a thread that must survive its panics. Returns `None` if it panicked, which is logged.
pub(super) fn shielded<T>(what: &str, f: impl FnOnce() -> T) -> Option<T> {
    caught(what, f).ok()
}

/// Runs code on a thread that must survive its panics.
///
/// # Errors
/// The panic's message, which is logged with `what` the code did.
pub fn caught<T>(what: &str, f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
        let thread = thread::current();
        let name = thread.name().unwrap_or("?");
        tracing::error!("thread {name} caught a panic while {what}: {text}");
        text.to_owned()
    })
}

/// Locks a mutex even after a panic in another thread: every holder leaves the content consistent.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls a foreign waker. Catches its panic, to protect the calling thread and the other waiters.
pub fn wake(waker: Waker) {
    let _ = shielded("waking a task: see what its waker or future does", || waker.wake());
}

/// Tries; if that does not work, has `want` register the waker and tries again, because it may have begun to work
/// before.
pub fn try_or_want<T>(
    context: &Context<'_>,
    want: impl FnOnce(&Waker),
    mut attempt: impl FnMut() -> Option<T>,
) -> Poll<T> {
    let done = attempt().or_else(|| {
        want(context.waker());
        attempt()
    });
    done.map_or(Poll::Pending, Poll::Ready)
}

/// Blocks the calling thread until `attempt` is ready; returns `None` once `deadline`, if any, has passed. An
/// attempt that is not ready has registered the waker that ends the wait.
pub fn block_until<T>(
    deadline: Option<Instant>,
    mut attempt: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    OWN.with(|waker| {
        loop {
            if let Poll::Ready(done) = attempt(&mut Context::from_waker(waker)) {
                return Some(done);
            }
            match deadline.map_or(LONG, |at| at.saturating_duration_since(Instant::now())) {
                Duration::ZERO => return None,
                left => thread::park_timeout(left),
            }
        }
    })
}

/// Tasks and threads that wait for more of something: room, or memory.
#[derive(Debug, Default)]
pub struct Waiters {
    /// Whether there are any; read without the lock.
    is_wanted: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Waiters {
    /// Adds a waker, to be called once. Try again after this call: what came before it calls no waker.
    pub fn want(&self, waker: &Waker) {
        let mut wakers = lock(&self.wakers);
        if !wakers.iter().any(|waiting| waiting.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        self.is_wanted.store(true, Ordering::Relaxed);
        drop(wakers);
        // Orders `is_wanted` before the next try; pairs with the fence in `call`.
        fence(Ordering::SeqCst);
    }

    /// Calls all wakers, after there is more.
    #[inline]
    pub fn call(&self) {
        // Orders what there is before the look; pairs with the fence in `want`.
        fence(Ordering::SeqCst);
        if self.is_wanted.load(Ordering::Relaxed) {
            self.call_all();
        }
    }

    #[cold]
    fn call_all(&self) {
        let wakers = {
            let mut wakers = lock(&self.wakers);
            self.is_wanted.store(false, Ordering::Relaxed);
            std::mem::take(&mut *wakers)
        };
        wakers.into_iter().for_each(wake);
    }
}

#[cfg(test)]
pub(super) mod tests;
