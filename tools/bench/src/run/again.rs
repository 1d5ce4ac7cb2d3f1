//! I/Os that failed and are to be sent again, each in its time.

use adit_driver::Time;

/// Those that wait. There are never more than a job has in flight.
#[derive(Debug)]
pub(crate) struct Again<W> {
    waiting: Vec<(Time, W)>,
}

impl<W> Again<W> {
    /// None, with room for `depth`.
    pub(crate) fn new(depth: usize) -> Again<W> {
        Again { waiting: Vec::with_capacity(depth) }
    }

    /// Adds one that is due at `due`.
    pub(crate) fn push(&mut self, due: Time, work: W) {
        self.waiting.push((due, work));
    }

    /// The first that is due by `now`.
    #[inline]
    pub(crate) fn take(&mut self, now: Time) -> Option<W> {
        if self.waiting.is_empty() {
            return None;
        }
        let index = self.waiting.iter().position(|(due, _)| *due <= now)?;
        Some(self.waiting.remove(index).1)
    }

    /// When the first is due; none where none waits.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.waiting.iter().map(|(due, _)| *due).min()
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes all of them out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = W> {
        self.waiting.drain(..).map(|(_, work)| work)
    }

    /// Forgets all of them.
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
