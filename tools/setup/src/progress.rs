//! Shows waits: one line on a terminal after two seconds, nothing in a pipe.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::human::printable;

/// Shorter waits are not shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between updates.
const TICK: Duration = Duration::from_millis(250);

/// Shows a line while this thread is blocked by a program or a slow write.
pub(crate) struct Ticker(Option<(Sender<()>, JoinHandle<()>)>);

impl Ticker {
    /// Shows `what` from now until this value is dropped.
    pub(crate) fn start(what: String) -> Ticker {
        if !io::stderr().is_terminal() {
            return Ticker(None);
        }
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            let (mut line, begun) = (WaitLine::new(&what), Instant::now());
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                line.show(begun.elapsed());
            }
        });
        Ticker(Some((stop, thread)))
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            // A panic there only costs a line on the terminal.
            let _ = thread.join();
        }
    }
}

/// A line on the terminal, cleared when dropped.
pub(crate) struct WaitLine {
    what: String,
    terminal: bool,
    shown_s: u64,
}

impl WaitLine {
    /// Creates a line for a wait such as `waiting for nvme0n1`.
    pub(crate) fn new(what: &str) -> WaitLine {
        WaitLine { what: printable(what), terminal: io::stderr().is_terminal(), shown_s: 0 }
    }

    /// Updates the elapsed time once a second.
    pub(crate) fn show(&mut self, waited: Duration) {
        if self.terminal && waited >= PATIENCE && waited.as_secs() > self.shown_s {
            self.shown_s = waited.as_secs();
            // A terminal that has gone away is no failure.
            let _ = write!(io::stderr(), "\r{} … {} s\x1b[K", self.what, self.shown_s);
        }
    }
}

impl Drop for WaitLine {
    fn drop(&mut self) {
        if self.shown_s > 0 {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
