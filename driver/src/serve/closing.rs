//! Closes clients' files in threads that may block.
//!
//! close(2) can block on its file: on the unsent data of a lingering socket, or on the process behind a FUSE file.
//! Closing a socket also closes the files in its unread messages. So the server's thread closes only memory files and
//! eventfds, which never block.

use std::any::Any;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Maximum number of threads. While clients block all of them, the rest stays open.
const THREADS_MAX: usize = 16;

type Closed = Box<dyn Any + Send>;

/// Files to close, and the number of threads that close them.
struct Pile {
    waiting: Vec<Closed>,
    threads: usize,
}

static PILE: Mutex<Pile> = Mutex::new(Pile { waiting: Vec::new(), threads: 0 });

fn pile() -> MutexGuard<'static, Pile> {
    PILE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops `what` in another thread.
pub fn close_elsewhere(what: impl Any + Send) {
    let mut pile = pile();
    pile.waiting.push(Box::new(what));
    if pile.threads == THREADS_MAX {
        return tracing::warn!("{} files of clients wait to be closed", pile.waiting.len());
    }
    let name = "adit-closing".to_owned();
    match thread::Builder::new().name(name).spawn(|| while let Some(()) = close_one() {}) {
        Ok(_) => pile.threads += 1,
        // The next call tries again.
        Err(why) => tracing::warn!("cannot start a thread to close clients' files: {why}"),
    }
}

fn close_one() -> Option<()> {
    let next = take();
    next.map(drop)
}

/// Takes the next file to close; a thread that gets none ends.
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

    /// Blocks in its drop until released.
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
