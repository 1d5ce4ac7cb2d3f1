//! All interleavings of threads that read the memory tier's table with the one that changes it, and of threads that pin its
//! memory, by a model checker: the files under test are those of the library, over the checker's atomics and locks.
//!
//! The checker also explores what the orderings allow, so a fence that is missing on another processor fails here.
#![forbid(unsafe_code)]

use loom::thread;

use pins::{PinnedBytes, Pins};
use shelf::{Shelf, ShelfEntry};
use sync::{Arc, AtomicBool, Ordering};

#[allow(dead_code, reason = "the tier uses more of it")]
#[path = "../src/shard/tier/pins.rs"]
mod pins;
#[allow(dead_code, reason = "the tier uses more of it")]
#[path = "../src/shard/tier/shelf.rs"]
mod shelf;

/// What the files take from the standard library, as the checker has it.
mod sync {
    use std::collections::VecDeque;
    use std::sync::OnceLock;

    use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Arc, RwLock};

    pub(crate) use std::collections::BTreeMap as NumberMap;

    pub(crate) const PARTS: usize = 2;

    /// A value that is set once.
    pub(crate) struct Once<T> {
        is_set: AtomicBool,
        value: OnceLock<T>,
    }

    impl<T> Once<T> {
        pub(crate) fn new() -> Once<T> {
            Once { is_set: AtomicBool::new(false), value: OnceLock::new() }
        }

        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            self.value.set(value)?;
            self.is_set.store(true, Ordering::Release);
            Ok(())
        }

        pub(crate) fn get(&self) -> Option<&T> {
            self.is_set.load(Ordering::Acquire).then(|| self.value.get()).flatten()
        }
    }

    /// A queue of any length.
    pub(crate) struct Queue<T>(Mutex<VecDeque<T>>);

    impl<T> Queue<T> {
        pub(crate) fn new() -> Queue<T> {
            Queue(Mutex::new(VecDeque::new()))
        }

        pub(crate) fn push(&self, item: T) {
            self.0.lock().expect("no holder panics").push_back(item);
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.0.lock().expect("no holder panics").is_empty()
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.0.lock().expect("no holder panics").pop_front()
        }
    }
}

const HASH: u64 = 5;

/// Runs `threads` in each interleaving that takes a thread off its processor at most so often; more find nothing new for
/// minutes.
fn explore(threads: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(threads);
}

type Table = Shelf<(), u8>;

/// Returns a table with one entry, filled or not.
fn table(value: Option<u8>) -> (Arc<Table>, Arc<ShelfEntry<(), u8>>) {
    let (table, entry) = (Arc::new(Table::default()), ShelfEntry::new(HASH, ()));
    assert!(table.put(&entry));
    if value.is_some() {
        table.fill(&entry, value);
    }
    (table, entry)
}

fn read(table: &Table) -> Option<u8> {
    table.find(HASH, |()| true).map(|(_, value)| value)
}

/// Runs an owner that takes the entry out and acknowledges the change, in this order or, against the rule, the other way
/// round, beside a reader that knows of the change or not.
fn change_beside_a_reader(acknowledges_first: bool) {
    explore(move || {
        let ((table, entry), acknowledged) = (table(Some(7)), Arc::new(AtomicBool::new(false)));
        let owner = {
            let (table, acknowledged) = (Arc::clone(&table), Arc::clone(&acknowledged));
            thread::spawn(move || {
                if acknowledges_first {
                    acknowledged.store(true, Ordering::Release);
                }
                let is_unlinked = table.take_out(&entry);
                acknowledged.store(true, Ordering::Release);
                // A reader that was in the way is gone by the time of a later turn.
                (table, entry, is_unlinked)
            })
        };
        let is_known = acknowledged.load(Ordering::Acquire);
        let found = read(&table);
        assert!(!is_known || found.is_none(), "the change was acknowledged before");
        assert!(found.is_none_or(|value| value == 7), "all of the bytes are there");
        let (table, entry, is_unlinked) = owner.join().expect("no panic");
        assert!(is_unlinked || table.unlink(&entry));
        assert!(table.is_empty() && read(&table).is_none());
    });
}

#[test]
fn what_a_change_made_invalid_is_not_found_once_it_is_acknowledged() {
    change_beside_a_reader(false);
}

#[test]
#[should_panic(expected = "the change was acknowledged before")]
fn an_invalidation_that_comes_late_is_noticed() {
    change_beside_a_reader(true);
}

#[test]
fn an_entry_that_is_filled_while_it_is_taken_out_is_not_found() {
    explore(|| {
        let ((table, entry), acknowledged) = (table(None), Arc::new(AtomicBool::new(false)));
        let filler = {
            let (table, entry) = (Arc::clone(&table), Arc::clone(&entry));
            thread::spawn(move || table.fill(&entry, Some(7)))
        };
        let owner = {
            let (table, acknowledged) = (Arc::clone(&table), Arc::clone(&acknowledged));
            thread::spawn(move || {
                table.take_out(&entry);
                acknowledged.store(true, Ordering::Release);
            })
        };
        let is_known = acknowledged.load(Ordering::Acquire);
        assert!(!is_known || read(&table).is_none(), "the change was acknowledged before");
        filler.join().expect("no panic");
        owner.join().expect("no panic");
        assert_eq!((read(&table), table.filled()), (None, 1));
    });
}

#[test]
fn each_use_is_handed_to_the_owner_once() {
    explore(|| {
        let (table, _entry) = table(Some(7));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    let (entry, _) = table.find(HASH, |()| true).expect("it stays");
                    table.note(&entry, 10);
                })
            })
            .collect();
        let mut taken = (0, 0);
        let mut take = || {
            while let Some((_, used)) = table.take_used() {
                taken = (taken.0 + used.count, taken.1 + used.bytes);
            }
        };
        take();
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        take();
        assert_eq!(taken, (2, 20));
    });
}

#[test]
fn values_pin_no_more_than_they_may_and_leave_nothing_behind() {
    explore(|| {
        let sum = Arc::new(PinnedBytes::default());
        sum.set_max(8);
        let regions: Vec<_> = (0..2).map(|_| Arc::new(Pins::new(8, &sum))).collect();
        let pinning = |region: &Arc<Pins>| {
            let (region, sum) = (Arc::clone(region), Arc::clone(&sum));
            thread::spawn(move || {
                if region.add() {
                    assert_eq!(sum.get(), 8, "a region that has a value counts, and no other");
                    region.remove();
                }
            })
        };
        let others: Vec<_> = regions.iter().map(pinning).collect();
        if regions[0].add() {
            assert_eq!(sum.get(), 8, "a region that has a value counts, and no other");
            regions[0].remove();
        }
        others.into_iter().for_each(|other| other.join().expect("no panic"));
        assert_eq!(sum.get(), 0);
        assert!(regions[1].add(), "there is room again");
    });
}
