//! An index being filled from the media with millions of objects in no particular order.
//!
//! An object's entry is written at once, behind the previous one. Its id *waits* to be linked into the hash table
//! until many ids have gathered that belong near each other there. A large table exceeds the caches and the TLB, so
//! linking each id on arrival would wait for memory every time.
//!
//! Every live entry is in the table or waits, and the entries of one key wait in the order of their arrival. The last
//! one of a key counts: linking it frees the previous one.
//!
//! This module does not know the contents of objects, nor which of them will stay.

use super::ahead::Ahead;
use super::{GROUP, Index, NewObject, Refused, Walk};
use crate::error::Result;
use crate::model::key::KeyHasher;
use crate::model::object::ObjectId;

/// Limit of objects that wait for one span of the table.
const WAITING_MAX: usize = 1024;

/// An object that is not in the table yet.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    hash: u64,
    id: ObjectId,
}

/// An index that is being filled.
///
/// Calls that link objects take a callback `gone`, which receives the id of each object that a later one with its key
/// replaces.
#[derive(Debug)]
pub struct Loading {
    index: Index,
    /// Indexed by the span of the table where they belong.
    waiting: Vec<Vec<Waiting>>,
    ahead: Ahead,
}

impl Loading {
    /// Creates an empty index for `objects_max` objects, and for `spare` more until [`Index::shed_spare`], because
    /// more objects may arrive than there were at any one time.
    ///
    /// # Errors
    /// As [`Index::new`].
    pub fn new(objects_max: u32, spare: u32, hasher: KeyHasher) -> Result<Loading> {
        let index = Index::with_spare(objects_max, spare, hasher)?;
        let waiting = vec![Vec::new(); index.slots.spans()];
        Ok(Loading { index, waiting, ahead: Ahead::new() })
    }

    /// Prepares for about this many objects.
    pub fn expect(&mut self, objects: u64) {
        self.ahead.expect(objects);
    }

    /// Adds an object, replacing any other with its key. Returns `None` if there is no room.
    ///
    /// # Panics
    /// As [`Index::insert`] does.
    #[inline]
    pub fn put(&mut self, new: NewObject<'_>, gone: &mut impl FnMut(ObjectId)) -> Option<ObjectId> {
        let hash = self.index.hash(new.key);
        let Some(id) = self.index.keep(new) else { return self.put_full(hash, new, gone) };
        self.ahead.taken(id.0, &mut self.index.entries);
        let waiting = &mut self.waiting[self.index.slots.span(hash)];
        waiting.push(Waiting { hash, id });
        if waiting.len() == WAITING_MAX {
            let span = self.index.slots.span(hash);
            self.link(span, gone);
        }
        Some(id)
    }

    /// Adds an object when no entry is free. One becomes free if the object, or another that waits, has the key of an
    /// earlier one.
    #[cold]
    fn put_full(
        &mut self,
        hash: u64,
        new: NewObject<'_>,
        gone: &mut impl FnMut(ObjectId),
    ) -> Option<ObjectId> {
        match self.linked(gone).insert_hashed(hash, new) {
            Ok(id) => Some(id),
            Err(Refused::Present(id)) => {
                gone(id);
                self.index.replace(id, new.object, new.checksums);
                Some(id)
            }
            Err(Refused::Full) => None,
        }
    }

    /// Returns the object with this key.
    pub fn find(&mut self, key: &[u8], gone: &mut impl FnMut(ObjectId)) -> Option<ObjectId> {
        let hash = self.index.hash(key);
        self.link(self.index.slots.span(hash), gone);
        self.index.find_hashed(hash, key)
    }

    /// Links all objects into the table and returns the index.
    pub fn linked(&mut self, gone: &mut impl FnMut(ObjectId)) -> &mut Index {
        for span in 0..self.waiting.len() {
            self.link(span, gone);
        }
        &mut self.index
    }

    /// Returns the index, without the objects that wait.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Returns the index for changes.
    pub fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    /// Returns the index after all objects were linked.
    ///
    /// # Panics
    /// If some wait.
    pub fn into_index(self) -> Index {
        assert!(self.waiting.iter().all(Vec::is_empty), "all objects were linked");
        self.index
    }

    fn link(&mut self, span: usize, gone: &mut impl FnMut(ObjectId)) {
        let Loading { index, waiting, .. } = self;
        for group in waiting[span].chunks(GROUP) {
            index.touch_slots(group.iter().map(|one| one.hash));
            for one in group {
                index.link(*one).into_iter().for_each(&mut *gone);
            }
        }
        waiting[span].clear();
    }
}

impl Index {
    /// Links an object into the table. Returns the earlier object with the same key, which this replaces.
    #[inline]
    fn link(&mut self, Waiting { hash, id }: Waiting) -> Option<ObjectId> {
        match self.slots.find(hash, |other| self.is_same_key(other, id.0)) {
            Walk::Empty { position } => {
                self.slots.put(position, hash, id.0);
                None
            }
            Walk::Found { position, id: earlier } => {
                self.slots.exchange(position, id.0);
                self.release(ObjectId(earlier));
                Some(ObjectId(earlier))
            }
        }
    }
}
