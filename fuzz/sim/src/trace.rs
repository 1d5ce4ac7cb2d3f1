//! What happened in a run: always as a hash, as text when somebody wants to read it.

use std::fmt::Arguments;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    hash: u64,
    steps: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    /// `is_kept`: as text, too.
    pub(crate) fn new(is_kept: bool) -> Trace {
        Trace { hash: 0, steps: 0, lines: is_kept.then(Vec::new) }
    }

    /// Goes on to the next action of the schedule.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
    }

    /// Notes numbers that tell this run from others, and what they mean.
    pub(crate) fn note(&mut self, numbers: &[u64], text: Arguments<'_>) {
        for number in numbers {
            let mixed = (self.hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.hash = mixed ^ (mixed >> 29);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>4}  {text}", self.steps));
        }
    }

    /// Equal for runs in which the same happened.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The text, if it was kept.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}
