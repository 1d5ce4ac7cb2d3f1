//! A log of the objects that a store removed, for clients that track its contents.
//!
//! The shards of a store share one log. Each removal adds its key, whatever the reason; replacing an object is no removal.
//! A reader keeps a position and reads from there: it sees each removal once, or learns that it missed some and then
//! checks the objects that it knows.
//!
//! The log begins with its first reader, and ends when it has to drop removals that no reader has read. Without a reader a
//! removal costs one load. Positions begin at a random number, so a position of another opening counts as one whose
//! reader missed some.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use adit_driver::runtime::lock;

use crate::model::key::Key;

/// The most bytes that the log keeps: keys, and the overhead of entries.
const BYTES_MAX: usize = 4 << 20;
/// The approximate overhead of an entry, in bytes.
const ENTRY_BYTES: usize = 32;
/// The most entries that one read examines while removals wait.
pub(crate) const READ_MAX: usize = 4096;

/// Removals that are new to a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The keys of the objects, in the order of their removal. A key may have a new object.
    pub keys: Vec<Key>,
    /// The position of the next read.
    pub next: u64,
    /// Whether removals before those of `keys` are missing.
    pub missed_some: bool,
}

/// The log of removals of a store. Clones are the same log.
#[derive(Clone, Debug, Default)]
pub struct Removals(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    has_readers: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// The latest removals, oldest first.
    keys: VecDeque<Box<[u8]>>,
    /// The bytes that they take.
    bytes: usize,
    /// The position behind the latest removal.
    end: u64,
    /// The furthest position of a reader.
    read_end: u64,
}

impl Removals {
    /// Creates a log whose positions begin at about `start`.
    pub(crate) fn new(start: u32) -> Removals {
        let removals = Removals::default();
        // Far from the positions of another start, however much is removed.
        lock(&removals.0.log).end = u64::from(start) << 31;
        removals
    }

    /// Enters the removal of a key's object, if there are readers.
    #[inline]
    pub(crate) fn enter(&self, key: &[u8]) {
        if self.0.has_readers.load(Ordering::Relaxed) {
            self.enter_read(key);
        }
    }

    #[cold]
    fn enter_read(&self, key: &[u8]) {
        let mut log = lock(&self.0.log);
        log.push(key);
        if log.begin() > log.read_end {
            // Its readers have missed removals.
            self.0.has_readers.store(false, Ordering::Relaxed);
            log.clear();
        }
        assert!(log.bytes <= BYTES_MAX, "the log of removals is bounded");
    }

    /// Makes all readers learn that they missed removals, because the keys of removed objects are unknown.
    pub(crate) fn lose_track(&self) {
        if self.0.has_readers.load(Ordering::Relaxed) {
            lock(&self.0.log).clear();
        }
    }

    /// Reads at most `limit` removals of keys that begin with `prefix`, from position `from` on. Without a position it
    /// returns no removals, only the present position.
    pub fn read(&self, prefix: &[u8], from: Option<u64>, limit: usize) -> Removed {
        let mut log = lock(&self.0.log);
        self.0.has_readers.store(true, Ordering::Relaxed);
        let known = from.unwrap_or(log.end);
        let missed_some = !(log.begin()..=log.end).contains(&known);
        let mut removed = Removed {
            keys: Vec::new(),
            next: if missed_some { log.begin() } else { known },
            missed_some,
        };
        let seen = (removed.next - log.begin()) as usize;
        for key in log.keys.iter().skip(seen).take(READ_MAX) {
            if removed.keys.len() >= limit {
                break;
            }
            removed.next += 1;
            if key.starts_with(prefix) {
                removed.keys.push(Key::new(key).expect("it was an object's"));
            }
        }
        log.read_end = log.read_end.max(removed.next);
        removed
    }
}

impl Log {
    /// Returns the position of the oldest removal.
    fn begin(&self) -> u64 {
        self.end - self.keys.len() as u64
    }

    /// Adds a removal, and drops the oldest ones that exceed the limit.
    fn push(&mut self, key: &[u8]) {
        self.keys.push_back(key.into());
        self.bytes += key.len() + ENTRY_BYTES;
        self.end += 1;
        while self.bytes > BYTES_MAX {
            let oldest = self.keys.pop_front().expect("a key is shorter than the log");
            self.bytes -= oldest.len() + ENTRY_BYTES;
        }
    }

    /// Drops all removals, so that every reader has missed some.
    fn clear(&mut self) {
        (self.keys, self.bytes) = (VecDeque::new(), 0);
        self.end += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn key(number: u64) -> Key {
        Key::new(&[&b"k"[..], &number.to_be_bytes(), &[7; 500]].concat()).expect("short enough")
    }

    /// Reads all removals.
    fn read_all(removals: &Removals, from: &mut u64) -> (Vec<Key>, bool) {
        let (mut keys, mut missed_some) = (Vec::new(), false);
        loop {
            let read = removals.read(b"", Some(*from), 1000);
            missed_some |= read.missed_some;
            keys.extend(read.keys);
            if std::mem::replace(from, read.next) == read.next && !read.missed_some {
                return (keys, missed_some);
            }
        }
    }

    #[test]
    fn without_readers_there_is_no_log() {
        let removals = Removals::new(3);
        (0..10).for_each(|number| removals.enter(key(number).as_bytes()));
        assert_eq!(lock(&removals.0.log).keys.capacity(), 0);
        let mut from = removals.read(b"", None, 10).next;
        assert_eq!(read_all(&removals, &mut from), (Vec::new(), false));
        removals.enter(key(11).as_bytes());
        assert_eq!(read_all(&removals, &mut from), (vec![key(11)], false));
    }

    #[test]
    fn what_nobody_reads_ends_the_log_and_is_told_later() {
        let removals = Removals::default();
        let mut from = removals.read(b"", None, 10).next;
        let kept = BYTES_MAX / (key(0).as_bytes().len() + ENTRY_BYTES);
        (0..kept as u64).for_each(|number| removals.enter(key(number).as_bytes()));
        assert!(removals.0.has_readers.load(Ordering::Relaxed));
        removals.enter(key(0).as_bytes());
        assert!(!removals.0.has_readers.load(Ordering::Relaxed));
        assert_eq!(lock(&removals.0.log).keys.capacity(), 0, "its memory is free");
        (0..9).for_each(|number| removals.enter(key(number).as_bytes()));
        assert_eq!(read_all(&removals, &mut from), (Vec::new(), true));
        removals.enter(key(5).as_bytes());
        assert_eq!(read_all(&removals, &mut from), (vec![key(5)], false));
    }

    #[test]
    fn a_position_of_another_log_is_one_that_missed_some() {
        let (one, other) = (Removals::new(5), Removals::new(4));
        let (at, behind) = (one.read(b"", None, 1).next, other.read(b"", None, 1).next);
        assert!(one.read(b"", Some(behind), 1).missed_some);
        assert!(other.read(b"", Some(at), 1).missed_some);
        assert!(other.read(b"", Some(u64::MAX), 1).missed_some);
        assert!(!other.read(b"", Some(behind), 1).missed_some);
    }

    #[test]
    fn a_read_has_the_keys_with_a_prefix_and_is_bounded() {
        let removals = Removals::default();
        let from = removals.read(b"", None, 1).next;
        (0..2 * READ_MAX).for_each(|_| removals.enter(b"other"));
        removals.enter(b"mine/1");
        let first = removals.read(b"mine/", Some(from), 9);
        assert_eq!((first.keys.len(), first.next), (0, from + READ_MAX as u64));
        let second = removals.read(b"mine/", Some(first.next), 9);
        let third = removals.read(b"mine/", Some(second.next), 9);
        assert_eq!((second.keys.len(), third.keys), (0, vec![Key::new(b"mine/1").expect("short")]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Two readers, one of which may fall behind: each learns of every removal once and in order, or that it missed
        /// some, and then of those after a point.
        #[test]
        fn each_removal_is_told_once_or_a_reader_missed_some(
            steps in vec((0_u64..6000, any::<bool>(), any::<bool>(), 0_u8..20), 1..24),
        ) {
            let removals = Removals::new(1);
            let mut readers = [(); 2].map(|()| (removals.read(b"", None, 1).next, 0));
            let mut entered = 0;
            for (more, first, second, loss) in steps {
                for number in entered..entered + more {
                    removals.enter(key(number).as_bytes());
                }
                entered += more;
                let is_lost = loss == 0;
                if is_lost {
                    removals.lose_track();
                }
                for ((from, heard), reads) in readers.iter_mut().zip([first || is_lost, second || is_lost]) {
                    if !reads {
                        continue;
                    }
                    let (keys, missed_some) = read_all(&removals, from);
                    if missed_some {
                        prop_assert!(is_lost || entered - *heard > (BYTES_MAX / 600) as u64);
                        *heard = entered - keys.len() as u64;
                    }
                    prop_assert_eq!(keys, (*heard..entered).map(key).collect::<Vec<_>>());
                    prop_assert!(!is_lost || missed_some);
                    *heard = entered;
                }
                prop_assert!(lock(&removals.0.log).bytes <= BYTES_MAX);
            }
        }
    }
}
