//! How far something is: one line on a terminal, nothing in a pipe.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Between two changes of the line.
const INTERVAL: Duration = Duration::from_millis(500);

/// A line on standard error that is gone when this value is.
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
    /// Shows nothing yet.
    pub fn new() -> Meter {
        // Hides itself where standard error is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template("{wide_msg}").expect("the template is valid"));
        Meter { bar, shown: Instant::now() }
    }

    /// Shows what `line` makes of the time since it was asked last, if it is time to.
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
