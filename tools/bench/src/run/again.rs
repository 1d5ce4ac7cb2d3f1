//! Failed I/Os that wait for their retry.

use adit_driver::Time;

/// The waiting I/Os; never more than a job has in flight.
#[derive(Debug)]
pub(crate) struct Again<W> {
    waiting: Vec<(Time, W)>,
}

impl<W> Again<W> {
    /// Creates an empty set with room for `depth`.
    pub(crate) fn new(depth: usize) -> Again<W> {
        Again { waiting: Vec::with_capacity(depth) }
    }

    /// Adds an I/O to retry at `due`.
    pub(crate) fn push(&mut self, due: Time, work: W) {
        self.waiting.push((due, work));
    }

    /// Takes an I/O that is due by `now`.
    #[inline]
    pub(crate) fn take(&mut self, now: Time) -> Option<W> {
        if self.waiting.is_empty() {
            return None;
        }
        let index = self.waiting.iter().position(|(due, _)| *due <= now)?;
        Some(self.waiting.remove(index).1)
    }

    /// Returns the earliest due time; `None` if there are no I/Os.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.waiting.iter().map(|(due, _)| *due).min()
    }

    /// Returns whether there are no I/Os.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Removes and returns all I/Os.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = W> {
        self.waiting.drain(..).map(|(_, work)| work)
    }

    /// Drops all I/Os.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_waits_for_its_time_and_the_first_goes_first() {
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let mut again = Again::new(4);
        for (due, name) in [(20, 'a'), (10, 'b'), (10, 'c')] {
            again.push(at(due), name);
        }
        assert_eq!(again.take(at(9)), None);
        let taken: String = std::iter::from_fn(|| again.take(at(10))).collect();
        assert_eq!((taken.as_str(), again.is_empty()), ("bc", false));
        assert_eq!((again.take(at(20)), again.is_empty()), (Some('a'), true));
    }
}
