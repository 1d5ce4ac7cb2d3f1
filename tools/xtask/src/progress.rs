//! Shows progress of steps that take longer than two seconds: one line on a terminal, nothing in a pipe.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Shorter steps are not shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// A line on the terminal while this value exists.
pub(crate) struct Progress {
    ticker: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Begins a step called `what`, a phrase such as "building adit".
    pub(crate) fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        let ticker = stderr().is_terminal().then(|| {
            let (stop, stopped) = channel();
            let thread = std::thread::spawn(move || tick(&what, &stopped));
            (stop, thread)
        });
        Self { ticker }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.ticker.take() {
            drop(stop);
            // A panic in the ticker only costs a line on the terminal.
            let _ = thread.join();
        }
    }
}

/// A line on the terminal that its owner updates, and clears before printing anything else.
pub(crate) struct StatusLine {
    is_terminal: bool,
    is_shown: bool,
}

impl StatusLine {
    /// Creates an empty line.
    pub(crate) fn new() -> Self {
        Self { is_terminal: stderr().is_terminal(), is_shown: false }
    }

    /// Replaces the line by `text`.
    pub(crate) fn show(&mut self, text: &str) {
        if self.is_terminal {
            show(&format!("\r{text}\x1b[K"));
            self.is_shown = true;
        }
    }

    /// Clears the line.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            show("\r\x1b[K");
        }
    }
}

fn tick(what: &str, stopped: &std::sync::mpsc::Receiver<()>) {
    let begun = Instant::now();
    let mut wait = PATIENCE;
    let mut line = StatusLine::new();
    while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        line.show(&format!("{what} … {} s", begun.elapsed().as_secs()));
        wait = Duration::from_secs(1);
    }
    line.clear();
}

fn show(text: &str) {
    let mut terminal = stderr().lock();
    // A terminal that is gone is no failure.
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}
