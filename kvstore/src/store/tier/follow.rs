//! The thread that fits the memory tier to memory.
//!
//! It reads files and allocates memory, which the shards' threads must not. It is one of the store's threads: a store is
//! closed when it has ended, because it holds the store's devices.

use std::convert::Infallible;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use adit_driver::runtime::caught;

use super::super::core::Core;
use super::super::exit::{Exit, Leaving};
use crate::error::Result;

/// How often memory is evaluated. The files of `/proc` and of control groups take less than 1 ms to read.
const EVALUATE_EVERY: Duration = Duration::from_millis(100);

/// The thread, while there is one. Dropping the sender ends it.
#[derive(Default)]
pub(in crate::store) struct Follower(Mutex<Option<Sender<Infallible>>>);

impl Follower {
    /// Starts the thread unless there is one, or the store is being closed.
    ///
    /// # Errors
    /// [`adit_driver::Error::Refused`] if the system grants no thread.
    pub(in crate::store) fn start(&self, core: &Arc<Core>, exit: &Arc<Exit>) -> Result<()> {
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            return Ok(());
        }
        let Some(leaving) = exit.join() else { return Ok(()) };
        let (sender, ended) = mpsc::channel();
        let core = Arc::clone(core);
        let builder = thread::Builder::new().name("adit-kv-tier".to_owned());
        builder.spawn(move || follow(leaving, core, ended)).map_err(|why| {
            let fix = "raise the limit on processes (ulimit -u)";
            adit_driver::Error::refused("the memory tier's thread", "start", why, fix)
        })?;
        *thread = Some(sender);
        Ok(())
    }

    /// Tells the thread to end, and does not wait for it.
    pub(in crate::store) fn stop(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Evaluates memory until `ended` says so. `leaving` is dropped last, when the devices are released.
fn follow(mut leaving: Leaving, core: Arc<Core>, ended: Receiver<Infallible>) {
    let followed = caught("it fitted the memory tier to memory, which is a bug", || {
        while ended.recv_timeout(EVALUATE_EVERY) == Err(RecvTimeoutError::Timeout) {
            core.fit_tier(&|| ended.try_recv() == Err(TryRecvError::Empty));
        }
    });
    if let Err(why) = followed {
        // A tier that takes no notice of memory may use up the machine's.
        leaving.died(&why);
    }
    drop(core);
    drop(leaving);
}
