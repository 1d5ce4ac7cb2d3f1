//! A table of objects in memory that any thread reads by itself, while one thread, the owner, changes it.
//!
//! | who | does |
//! |---|---|
//! | the owner | puts an entry in, and takes it out before it acknowledges what made it invalid |
//! | a filler | fills the entry once, on any thread, or gives it up |
//! | a reader | finds a filled entry by its hash, shares the bytes, and counts the use |
//!
//! Invariants:
//!
//! - An entry that was taken out before a reader began to look is not found, whether it was filled before, meanwhile or
//!   after: a reader looks at [`ShelfEntry::is_gone`] once it has the bytes. So the owner waits for no reader: it marks
//!   the entry, and unlinks it when no reader is in its way.
//! - Each use is handed to the owner once ([`Shelf::take_used`]), without a lock: an entry is in the list of those used
//!   at most once.
//!
//! The file names no type of the store's, so that a model checker runs it as it is (`kvstore/tests/interleavings`).

use super::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, NumberMap, Once, Ordering, PARTS, Queue, RwLock,
};

/// An object: what is known of it, and its bytes once there.
pub(crate) struct ShelfEntry<M, V> {
    hash: u64,
    /// What is known of it.
    pub(crate) meta: M,
    /// `None` once it was given up.
    value: Once<Option<V>>,
    is_gone: AtomicBool,
    /// Uses that were not handed to the owner.
    uses: AtomicU64,
    /// The bytes that they delivered.
    used_bytes: AtomicU64,
}

/// Uses of an entry since the owner last took them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    /// Their number.
    pub(crate) count: u64,
    /// The bytes that they delivered.
    pub(crate) bytes: u64,
}

impl<M, V: Clone> ShelfEntry<M, V> {
    /// Creates an entry to be filled; `hash` is that of its key.
    pub(crate) fn new(hash: u64, meta: M) -> Arc<ShelfEntry<M, V>> {
        let (is_gone, uses, used_bytes) =
            (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(ShelfEntry { hash, meta, value: Once::new(), is_gone, uses, used_bytes })
    }

    /// Returns the hash of its key.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the bytes if it is filled, also if it was taken out since.
    pub(crate) fn value(&self) -> Option<V> {
        self.peek().cloned()
    }

    /// Like [`ShelfEntry::value`], without sharing them.
    pub(crate) fn peek(&self) -> Option<&V> {
        self.value.get().and_then(Option::as_ref)
    }

    /// Returns whether it may still be filled.
    pub(crate) fn is_open(&self) -> bool {
        self.value.get().is_none()
    }

    /// Returns whether it was given up instead of filled.
    pub(crate) fn is_given_up(&self) -> bool {
        self.value.get().is_some_and(Option::is_none)
    }

    /// Returns whether the owner has taken it out.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}

type Part<M, V> = RwLock<NumberMap<u64, Arc<ShelfEntry<M, V>>>>;

/// The table.
pub(crate) struct Shelf<M, V> {
    parts: Box<[Part<M, V>]>,
    len: AtomicUsize,
    /// Entries that were filled, ever.
    filled: AtomicU64,
    used: Queue<Arc<ShelfEntry<M, V>>>,
}

impl<M, V> Default for Shelf<M, V> {
    fn default() -> Shelf<M, V> {
        let parts = (0..PARTS).map(|_| RwLock::new(NumberMap::default())).collect();
        Shelf { parts, len: AtomicUsize::new(0), filled: AtomicU64::new(0), used: Queue::new() }
    }
}

impl<M, V: Clone> Shelf<M, V> {
    fn part(&self, hash: u64) -> &Part<M, V> {
        &self.parts[hash as usize % PARTS]
    }

    /// Returns whether it has no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Puts an entry in. Returns false if one with the same hash is there.
    pub(crate) fn put(&self, entry: &Arc<ShelfEntry<M, V>>) -> bool {
        let mut part = self.part(entry.hash).write().expect("no holder panics");
        if part.contains_key(&entry.hash) {
            return false;
        }
        part.insert(entry.hash, Arc::clone(entry));
        self.len.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Takes an entry out: no reader that begins after this finds it. Returns false if a reader is in the way of
    /// unlinking it, which [`Shelf::unlink`] has to do later.
    pub(crate) fn take_out(&self, entry: &ShelfEntry<M, V>) -> bool {
        entry.is_gone.store(true, Ordering::Release);
        self.unlink(entry)
    }

    /// Removes an entry that was taken out from the table, if no reader is in the way; returns whether it did.
    pub(crate) fn unlink(&self, entry: &ShelfEntry<M, V>) -> bool {
        let Ok(mut part) = self.part(entry.hash).try_write() else { return false };
        let unlinked = part.remove(&entry.hash);
        drop(part);
        assert!(unlinked.is_some(), "an entry is unlinked once");
        self.len.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Fills an entry, or gives it up with `None`, which the owner learns as a use. Only the first call for it counts.
    pub(crate) fn fill(&self, entry: &Arc<ShelfEntry<M, V>>, value: Option<V>) {
        let is_given_up = value.is_none();
        if entry.value.set(value).is_err() {
            return;
        }
        if is_given_up {
            self.used.push(Arc::clone(entry));
        } else {
            self.filled.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many entries were ever filled.
    pub(crate) fn filled(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }

    /// Returns a filled entry of the key with this hash which `is_it` recognizes, and its bytes.
    pub(crate) fn find(
        &self,
        hash: u64,
        is_it: impl Fn(&M) -> bool,
    ) -> Option<(Arc<ShelfEntry<M, V>>, V)> {
        let part = self.part(hash).read().expect("no holder panics");
        let entry = Arc::clone(part.get(&hash).filter(|entry| is_it(&entry.meta))?);
        drop(part);
        let value = entry.value()?;
        // Last: what was taken out before this call began is seen to be gone.
        (!entry.is_gone()).then_some((entry, value))
    }

    /// Counts a use of an entry that delivered `bytes`.
    pub(crate) fn note(&self, entry: &Arc<ShelfEntry<M, V>>, bytes: u64) {
        entry.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        // The first use since the owner looked puts it in the list. Pairs with the swap in `take_used`.
        if entry.uses.fetch_add(1, Ordering::AcqRel) == 0 {
            self.used.push(Arc::clone(entry));
        }
    }

    /// Returns whether an entry was used since the last was taken. This costs less than a pop, of which each turn would
    /// make one in vain.
    #[inline]
    pub(crate) fn has_used(&self) -> bool {
        !self.used.is_empty()
    }

    /// Takes an entry that was used, and its uses since the last time; the owner's half of [`Shelf::note`].
    pub(crate) fn take_used(&self) -> Option<(Arc<ShelfEntry<M, V>>, Used)> {
        let entry = self.used.pop()?;
        let count = entry.uses.swap(0, Ordering::AcqRel);
        let bytes = entry.used_bytes.swap(0, Ordering::Relaxed);
        Some((entry, Used { count, bytes }))
    }
}
