//! The trace of a run: always a hash, and text on request.

use std::fmt::Arguments;

/// The hash and the text of a run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    hash: u64,
    steps: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    pub(crate) fn new(is_kept: bool) -> Trace {
        Trace { hash: 0, steps: 0, lines: is_kept.then(Vec::new) }
    }

    /// Advances to the next action of the schedule.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
    }

    /// Adds numbers that distinguish this run from others, with their meaning.
    pub(crate) fn note(&mut self, numbers: &[u64], text: Arguments<'_>) {
        for number in numbers {
            let mixed = (self.hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.hash = mixed ^ (mixed >> 29);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>4}  {text}", self.steps));
        }
    }

    /// Returns the hash, equal for identical runs.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Takes the text, if kept.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}
