//! What is going on, for anything that takes longer than two seconds: one line on a terminal, nothing in a pipe.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Shorter steps stay silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// A line on the terminal for as long as this value lives.
pub(crate) struct Progress {
    ticker: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Begins a step called `what` (a phrase such as "building adit").
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
            // A panic in the ticker costs a line on the terminal and nothing else.
            let _ = thread.join();
        }
    }
}

/// One line on the terminal that its owner changes, and takes away before anything else is printed.
pub(crate) struct Line {
    is_terminal: bool,
    is_shown: bool,
}

impl Line {
    /// A line that shows nothing yet.
    pub(crate) fn new() -> Self {
        Self { is_terminal: stderr().is_terminal(), is_shown: false }
    }

    /// Shows `text` in the place of what was there.
    pub(crate) fn show(&mut self, text: &str) {
        if self.is_terminal {
            show(&format!("\r{text}\x1b[K"));
            self.is_shown = true;
        }
    }

    /// Shows nothing.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            show("\r\x1b[K");
        }
    }
}

fn tick(what: &str, stopped: &std::sync::mpsc::Receiver<()>) {
    let begun = Instant::now();
    let mut wait = PATIENCE;
    let mut line = Line::new();
    while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        line.show(&format!("{what} … {} s", begun.elapsed().as_secs()));
        wait = Duration::from_secs(1);
    }
    line.clear();
}

fn show(text: &str) {
    let mut terminal = stderr().lock();
    // Nobody is left to tell when the terminal is gone.
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}
