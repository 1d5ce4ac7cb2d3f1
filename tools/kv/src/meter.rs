//! Shows progress: one line on a terminal, nothing in a pipe.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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
