//! Shows progress: one line on a terminal, nothing in a pipe.

use std::fmt;
use std::time::{Duration, Instant};

use crate::human;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Time after which a command shows a line.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between updates.
const INTERVAL: Duration = Duration::from_millis(500);

/// A line on standard error, cleared on drop.
#[derive(Debug)]
pub struct Meter {
    bar: ProgressBar,
    shown: Instant,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::new()
    }
}

impl Meter {
    /// Creates an empty line.
    pub fn new() -> Meter {
        // Hidden unless standard error is a terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template("{wide_msg}").expect("the template is valid"));
        Meter { bar, shown: Instant::now() }
    }

    /// Creates a line that appears once the command has taken two seconds.
    pub fn of_long_work() -> Meter {
        let mut meter = Meter::new();
        meter.shown += PATIENCE - INTERVAL;
        meter
    }

    /// Updates the line with how much of the work is done.
    pub fn show_bytes(&mut self, done: u64, all: u64) {
        self.show(|_| format!("{} of {}", human::capacity(done), human::capacity(all)));
    }

    /// Updates the line if it is time to; `line` gets the time since the last update.
    pub fn show(&mut self, line: impl FnOnce(Duration) -> String) {
        let since = self.shown.elapsed();
        if since >= INTERVAL && !self.bar.is_hidden() {
            self.shown = Instant::now();
            self.bar.set_message(line(since));
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A line with a wait such as `waiting for nvme0n1` and its seconds, once it takes two, until this is dropped.
#[derive(Debug)]
pub struct WaitLine(ProgressBar);

impl WaitLine {
    /// Begins the wait.
    pub fn begin(what: &str) -> WaitLine {
        let what = human::printable(what);
        let line = move |state: &ProgressState, line: &mut dyn fmt::Write| {
            let waited = state.elapsed();
            if waited >= PATIENCE {
                // A terminal that has gone away is no failure.
                let _ = write!(line, "{what} … {} s", waited.as_secs());
            }
        };
        let style = ProgressStyle::with_template("{line}").expect("the template is valid");
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(style.with_key("line", line));
        if !bar.is_hidden() {
            bar.enable_steady_tick(INTERVAL);
        }
        WaitLine(bar)
    }
}

impl Drop for WaitLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
