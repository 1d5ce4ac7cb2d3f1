//! Numbers of passed and failed checks.

/// Numbers of passed and failed checks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub passed: u32,
    pub failed: u32,
}

impl Tally {
    /// Counts a check.
    pub(crate) fn count(&mut self, passed: bool) {
        if passed {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
    }

    /// Adds other checks.
    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}
