//! A table of objects in memory that any thread reads while one thread, the owner, changes it.
//!
//! | role | action |
//! |---|---|
//! | the owner | puts an entry in, and takes it out before it acknowledges the change that made it invalid |
//! | a filler | fills the entry once, on any thread, or abandons it |
//! | a reader | finds a filled entry by its hash, shares the bytes, and counts the use |
//!
//! Invariants:
//!
//! - A reader never finds an entry that was taken out before its lookup began, whenever the entry was filled: the
//!   reader checks [`ShelfEntry::is_gone`] after it has the bytes. So the owner waits for no reader: it marks the
//!   entry, and unlinks it when no reader blocks that.
//! - Each use reaches the owner once ([`Shelf::take_used`]), without a lock: an entry is in the list of used ones at
//!   most once.
//!
//! This file names no type of the store, so that a model checker runs it unchanged (`kvstore/tests/interleavings`).

use super::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, NumberMap, Once, Ordering, PARTS, Queue, RwLock,
};

/// An object: its metadata, and its bytes once they are filled in.
pub(crate) struct ShelfEntry<M, V> {
    hash: u64,
    /// Metadata of the object.
    pub(crate) meta: M,
    /// `None` once the entry was abandoned.
    value: Once<Option<V>>,
    is_gone: AtomicBool,
    /// Uses that the owner has not yet taken.
    uses: AtomicU64,
    /// The bytes that these uses delivered.
    used_bytes: AtomicU64,
}

/// Uses of an entry since the owner last took them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    /// Number of uses.
    pub(crate) count: u64,
    /// The bytes that they delivered.
    pub(crate) bytes: u64,
}

impl<M, V: Clone> ShelfEntry<M, V> {
    /// Creates an entry to be filled, under the hash of its key.
    pub(crate) fn new(hash: u64, meta: M) -> Arc<ShelfEntry<M, V>> {
        let (is_gone, uses, used_bytes) =
            (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(ShelfEntry { hash, meta, value: Once::new(), is_gone, uses, used_bytes })
    }

    /// Returns the hash of the key.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the bytes if the entry was filled, even if it was taken out since.
    pub(crate) fn value(&self) -> Option<V> {
        self.peek().cloned()
    }

    /// Borrows the bytes that [`ShelfEntry::value`] shares.
    pub(crate) fn peek(&self) -> Option<&V> {
        self.value.get().and_then(Option::as_ref)
    }

    /// Returns whether the entry may still be filled.
    pub(crate) fn is_open(&self) -> bool {
        self.value.get().is_none()
    }

    /// Returns whether the entry was abandoned.
    pub(crate) fn is_given_up(&self) -> bool {
        self.value.get().is_some_and(Option::is_none)
    }

    /// Returns whether the owner has taken the entry out.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}

type Part<M, V> = RwLock<NumberMap<u64, Arc<ShelfEntry<M, V>>>>;

/// The table.
pub(crate) struct Shelf<M, V> {
    parts: Box<[Part<M, V>]>,
    len: AtomicUsize,
    /// Total number of entries filled.
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

    /// Returns whether the table has no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Puts an entry in. Returns false if the table has one with the same hash.
    pub(crate) fn put(&self, entry: &Arc<ShelfEntry<M, V>>) -> bool {
        let mut part = self.part(entry.hash).write().expect("no holder panics");
        if part.contains_key(&entry.hash) {
            return false;
        }
        part.insert(entry.hash, Arc::clone(entry));
        self.len.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Takes an entry out: lookups that begin later do not find it. Returns false if a reader blocks unlinking; call
    /// [`Shelf::unlink`] later.
    pub(crate) fn take_out(&self, entry: &ShelfEntry<M, V>) -> bool {
        entry.is_gone.store(true, Ordering::Release);
        self.unlink(entry)
    }

    /// Unlinks an entry that was taken out. Returns false if a reader blocks that.
    pub(crate) fn unlink(&self, entry: &ShelfEntry<M, V>) -> bool {
        let Ok(mut part) = self.part(entry.hash).try_write() else { return false };
        let unlinked = part.remove(&entry.hash);
        drop(part);
        assert!(unlinked.is_some(), "an entry is unlinked once");
        self.len.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Fills an entry, or abandons it with `None`, which the owner sees as a use. Later calls have no effect.
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

    /// Returns the total number of entries filled.
    pub(crate) fn filled(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }

    /// Returns the filled entry with this hash whose metadata `is_it` accepts, and its bytes.
    pub(crate) fn find(
        &self,
        hash: u64,
        is_it: impl Fn(&M) -> bool,
    ) -> Option<(Arc<ShelfEntry<M, V>>, V)> {
        let part = self.part(hash).read().expect("no holder panics");
        let entry = Arc::clone(part.get(&hash).filter(|entry| is_it(&entry.meta))?);
        drop(part);
        let value = entry.value()?;
        // This check comes last, so that it sees any entry that was taken out before this call began.
        (!entry.is_gone()).then_some((entry, value))
    }

    /// Counts a use of an entry that delivered `bytes`.
    pub(crate) fn note(&self, entry: &Arc<ShelfEntry<M, V>>, bytes: u64) {
        entry.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        // The first use since the owner took them lists the entry. Pairs with the swap in `take_used`.
        if entry.uses.fetch_add(1, Ordering::AcqRel) == 0 {
            self.used.push(Arc::clone(entry));
        }
    }

    /// Returns whether any entry has uses to take. This is cheaper than a pop, which would fail in most turns.
    #[inline]
    pub(crate) fn has_used(&self) -> bool {
        !self.used.is_empty()
    }

    /// Takes a used entry and its uses since the last call. Only the owner calls it.
    pub(crate) fn take_used(&self) -> Option<(Arc<ShelfEntry<M, V>>, Used)> {
        let entry = self.used.pop()?;
        let count = entry.uses.swap(0, Ordering::AcqRel);
        let bytes = entry.used_bytes.swap(0, Ordering::Relaxed);
        Some((entry, Used { count, bytes }))
    }
}
