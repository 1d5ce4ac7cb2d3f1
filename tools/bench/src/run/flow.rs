//! `flow`: jobs with the same `flow_id` share I/Os in proportion to their weights.
//!
//! A job waits while its part of the group's I/Os is greater than its part of the group's weights. The parts of all
//! running jobs come to one whole on both sides, so there is always a job that need not wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The running jobs of one `flow_id` together.
#[derive(Debug, Default)]
pub(crate) struct Group {
    ios: AtomicU64,
    weight: AtomicU64,
}

/// A running job's part of its group, which it leaves on drop.
#[derive(Debug)]
pub(crate) struct Share {
    group: Arc<Group>,
    ios: u64,
    weight: u64,
}

impl Share {
    /// Joins the group.
    pub(crate) fn join(group: Arc<Group>, weight: u32) -> Share {
        let weight = u64::from(weight);
        group.weight.fetch_add(weight, Relaxed);
        Share { group, ios: 0, weight }
    }

    /// Returns whether the job must wait for the others.
    #[inline]
    pub(crate) fn is_ahead(&self) -> bool {
        self.ios * self.group.weight.load(Relaxed) > self.weight * self.group.ios.load(Relaxed)
    }

    /// Counts an I/O.
    #[inline]
    pub(crate) fn count(&mut self) {
        self.ios += 1;
        self.group.ios.fetch_add(1, Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.group.ios.fetch_sub(self.ios, Relaxed);
        self.group.weight.fetch_sub(self.weight, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives each share in turn an I/O unless it is ahead, so often, and returns the counts.
    fn go(shares: &mut [Share], turns: usize) -> Vec<u64> {
        let before: Vec<u64> = shares.iter().map(|share| share.ios).collect();
        for _ in 0..turns {
            shares.iter_mut().filter(|share| !share.is_ahead()).for_each(Share::count);
        }
        shares.iter().zip(before).map(|(share, before)| share.ios - before).collect()
    }

    #[test]
    fn shares_are_in_proportion_to_the_weights_of_those_that_run() {
        let group = Arc::new(Group::default());
        let mut shares: Vec<Share> =
            [1, 2, 3].map(|weight| Share::join(group.clone(), weight)).into();
        let near = |counts: &[u64], parts: &[u64]| {
            let one = counts.iter().sum::<u64>() / parts.iter().sum::<u64>();
            counts.iter().zip(parts).all(|(count, part)| count.abs_diff(one * part) <= 3)
        };
        let counts = go(&mut shares, 6000);
        assert!(near(&counts, &[1, 2, 3]), "{counts:?}");
        shares.pop();
        let counts = go(&mut shares, 6000);
        assert!(near(&counts, &[1, 2]), "{counts:?}");
        shares.pop();
        assert_eq!(go(&mut shares, 100), [100], "alone");
    }
}
