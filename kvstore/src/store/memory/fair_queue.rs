//! A queue for a scarce resource, in order of arrival.
//!
//! A returned amount goes to queued requests before newcomers. A request that fits may overtake larger ones that do
//! not, but the first in the queue at most [`OVERTAKES_MAX`] times.

use std::collections::BTreeMap;
use std::task::Waker;

use smallvec::SmallVec;

/// How often the first in the queue may be overtaken.
const OVERTAKES_MAX: u32 = 64;
/// How many requests that do not fit are skipped in search of one that does.
const LOOKS_MAX: u32 = 16;

/// The wakers of the requests that were granted. Call them without a lock.
pub(crate) type Served = SmallVec<[Waker; 4]>;

/// Numbered requests for grants `G`.
pub(crate) struct FairQueue<G> {
    waiting: BTreeMap<u64, QueuedRequest>,
    /// Grants not yet collected.
    granted: BTreeMap<u64, G>,
    next: u64,
    /// How often the first request was overtaken.
    overtaken: u32,
}

struct QueuedRequest {
    amount: usize,
    waker: Waker,
}

impl<G> Default for FairQueue<G> {
    fn default() -> FairQueue<G> {
        FairQueue { waiting: BTreeMap::new(), granted: BTreeMap::new(), next: 0, overtaken: 0 }
    }
}

impl<G> FairQueue<G> {
    /// Returns whether every request was granted.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a request at the end; `waker` is called once it is granted. Call [`FairQueue::serve`] afterwards.
    pub(crate) fn enter(&mut self, amount: usize, waker: Waker) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, QueuedRequest { amount, waker });
        number
    }

    /// Grants the requests for which `take` has enough, in order.
    pub(crate) fn serve(&mut self, mut take: impl FnMut(usize) -> Option<G>) -> Served {
        let (mut served, mut passed, mut from) = (Served::new(), 0, 0);
        while let Some((&number, waiting)) = self.waiting.range(from..).next() {
            if passed > LOOKS_MAX || (passed > 0 && self.overtaken >= OVERTAKES_MAX) {
                break;
            }
            match take(waiting.amount) {
                Some(grant) => {
                    self.overtaken = if passed > 0 { self.overtaken + 1 } else { 0 };
                    self.granted.insert(number, grant);
                    served.extend(self.waiting.remove(&number).map(|waiting| waiting.waker));
                }
                None => passed += 1,
            }
            from = number + 1;
        }
        served
    }

    /// Collects a grant, once.
    pub(crate) fn collect(&mut self, number: u64) -> Option<G> {
        self.granted.remove(&number)
    }

    /// Removes a request and returns its grant if it was not collected. Call [`FairQueue::serve`] afterwards.
    pub(crate) fn leave(&mut self, number: u64) -> Option<G> {
        if self.waiting.keys().next() == Some(&number) {
            self.overtaken = 0;
        }
        self.waiting.remove(&number);
        self.granted.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A queue for a number of equal things.
    #[derive(Default)]
    struct Things {
        queue: FairQueue<usize>,
        free: usize,
    }

    impl Things {
        fn enter(&mut self, amount: usize) -> u64 {
            let number = self.queue.enter(amount, Waker::noop().clone());
            self.give(0);
            number
        }

        fn give(&mut self, amount: usize) -> Served {
            self.free += amount;
            let free = &mut self.free;
            self.queue.serve(|amount| {
                *free = free.checked_sub(amount)?;
                Some(amount)
            })
        }

        fn has(&mut self, number: u64) -> bool {
            self.queue.collect(number).is_some()
        }
    }

    #[test]
    fn requests_of_one_size_are_served_in_order() {
        let mut things = Things::default();
        let numbers = [2, 2, 2].map(|amount| things.enter(amount));
        things.give(1);
        assert!(numbers.iter().all(|number| !things.has(*number)));
        things.give(3);
        assert_eq!(numbers.map(|number| things.has(number)), [true, true, false]);
        assert!(!things.has(numbers[0]), "it is collected once");
        things.give(2);
        assert!(things.has(numbers[2]) && things.queue.is_empty());
    }

    #[test]
    fn small_ones_overtake_a_large_one_but_not_for_ever() {
        let mut things = Things::default();
        let large = things.enter(10);
        let mut overtakes = 0;
        while {
            let small = things.enter(1);
            things.give(1);
            things.has(small)
        } {
            overtakes += 1;
        }
        assert_eq!(overtakes, OVERTAKES_MAX);
        // From now on, returned things are kept for the first in line.
        things.give(9);
        assert!(things.has(large));
        let last = things.enter(1);
        things.give(2);
        assert!(things.has(last));
    }

    #[test]
    fn a_request_that_leaves_gives_back_its_grant_and_its_place() {
        let mut things = Things::default();
        let (large, small) = (things.enter(10), things.enter(5));
        things.give(4);
        assert_eq!(things.queue.leave(large), None);
        things.give(1);
        assert_eq!(things.queue.leave(small), Some(5), "granted, not collected");
        assert!(things.queue.is_empty() && things.queue.granted.is_empty());
    }

    #[test]
    fn each_request_that_is_served_is_woken_once() {
        let mut things = Things::default();
        let count = Arc::new(Count::default());
        for _ in 0..3 {
            things.queue.enter(1, Waker::from(Arc::clone(&count)));
        }
        let served = things.give(2);
        assert_eq!(served.len(), 2);
        served.into_iter().for_each(Waker::wake);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert_eq!(things.give(0).len(), 0);
    }
}
