//! What is being waited for: one line on a terminal after two seconds, nothing in a pipe.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Shorter waits stay silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// A line on the terminal, cleared when dropped.
pub(crate) struct Line<'a> {
    what: &'a str,
    terminal: bool,
    shown_s: u64,
}

impl<'a> Line<'a> {
    /// For a wait that is called `what` (`waiting for nvme0n1`).
    pub(crate) fn new(what: &'a str) -> Line<'a> {
        Line { what, terminal: io::stderr().is_terminal(), shown_s: 0 }
    }

    /// Shows how long it has been, once a second.
    pub(crate) fn show(&mut self, waited: Duration) {
        if self.terminal && waited >= PATIENCE && waited.as_secs() > self.shown_s {
            self.shown_s = waited.as_secs();
            // A terminal that went away takes nothing with it.
            let _ = write!(io::stderr(), "\r{} … {} s\x1b[K", self.what, self.shown_s);
        }
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if self.shown_s > 0 {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
