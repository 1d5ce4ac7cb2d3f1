//! Closes what clients handed over, in threads that may wait.
//!
//! close(2) can wait for its file: for data that a lingering socket has not got rid of, for the process behind a FUSE file.
//! A socket that is closed closes the files in messages that were not read. So the server's thread closes neither; only
//! memory files and eventfds, which never wait.

use std::any::Any;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Threads at a time. While clients keep all of them waiting, the rest stays open.
const THREADS_MAX: usize = 16;

type Closed = Box<dyn Any + Send>;

/// Files to close, and how many threads close them.
struct Pile {
    waiting: Vec<Closed>,
    threads: usize,
}

static PILE: Mutex<Pile> = Mutex::new(Pile { waiting: Vec::new(), threads: 0 });

fn pile() -> MutexGuard<'static, Pile> {
    PILE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has another thread drop `what`.
pub(super) fn close_elsewhere(what: impl Any + Send) {
    let mut pile = pile();
    pile.waiting.push(Box::new(what));
    if pile.threads == THREADS_MAX {
        return tracing::warn!("{} files of clients wait to be closed", pile.waiting.len());
    }
    let name = "adit-closing".to_owned();
    match thread::Builder::new().name(name).spawn(|| while let Some(()) = close_one() {}) {
        Ok(_) => pile.threads += 1,
        // The next call tries again.
        Err(why) => tracing::warn!("no thread to close a client's files: {why}"),
    }
}

fn close_one() -> Option<()> {
    let next = take();
    next.map(drop)
}

/// The next thing to close; the thread that gets nothing ends.
fn take() -> Option<Closed> {
    let mut pile = pile();
    let next = pile.waiting.pop();
    if next.is_none() {
        pile.threads -= 1;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Waits when it is dropped, until it is let go.
    struct Stuck(Receiver<()>);

    impl Drop for Stuck {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    struct Tells(Sender<()>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn what_cannot_be_closed_keeps_only_its_thread_waiting() {
        let (sender, told) = channel();
        let mut locks: Vec<Sender<()>> = Vec::new();
        for _ in 0..THREADS_MAX - 1 {
            let (lock, stuck) = channel();
            close_elsewhere(Stuck(stuck));
            locks.push(lock);
        }
        close_elsewhere(Tells(sender.clone()));
        told.recv_timeout(PATIENCE).expect("one thread is left");
        let (lock, stuck) = channel();
        close_elsewhere(Stuck(stuck));
        locks.push(lock);
        close_elsewhere(Tells(sender));
        drop(locks);
        told.recv_timeout(PATIENCE).expect("threads go on when they can");
    }
}
