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

fn tick(what: &str, stopped: &std::sync::mpsc::Receiver<()>) {
    let begun = Instant::now();
    let mut wait = PATIENCE;
    let mut shown = false;
    while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        show(&format!("\r{what} … {} s\x1b[K", begun.elapsed().as_secs()));
        shown = true;
        wait = Duration::from_secs(1);
    }
    if shown {
        show("\r\x1b[K");
    }
}

fn show(text: &str) {
    let mut terminal = stderr().lock();
    // Nobody is left to tell when the terminal is gone.
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}
