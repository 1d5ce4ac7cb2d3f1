//! An index while it is filled from the media, with millions of objects that come in no order.
//!
//! An object's entry is written at once, behind the one before it. Its id *waits* to be linked into the hash table until
//! many have come that belong near each other there. A large table is in no cache, and the addresses of its pages are in
//! none either: to link ids as they come would be to wait for memory each time.
//!
//! Every live entry is in the table or waits, and those of one key wait in the order in which they came. The last of a key
//! counts: when it is linked, the one before goes.
//!
//! It does not know what the objects are, nor which of them are to stay.

use super::{GROUP, Index, NewObject, Refused, Walk};
use crate::error::Result;
use crate::model::object::ObjectId;

/// Most objects that wait for one span of the table.
const WAITING_MAX: usize = 1024;

/// An object that is not in the table.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    hash: u64,
    id: ObjectId,
}

/// An index that is being filled.
///
/// Calls that link objects are given a `gone`, which is told each id that is free now, since a later object has its key.
#[derive(Debug)]
pub struct Loading {
    index: Index,
    /// By the span of the table where they belong.
    waiting: Vec<Vec<Waiting>>,
}

impl Loading {
    /// Nothing yet; for `objects_max` objects, and for `spare` more until [`Index::shed_spare`], as more may come than
    /// there were at any one time.
    ///
    /// # Errors
    /// As [`Index::new`].
    pub fn new(objects_max: u32, spare: u32, hash_key: [u64; 2]) -> Result<Loading> {
        let index = Index::with_spare(objects_max, spare, hash_key)?;
        let waiting = vec![Vec::new(); index.slots.spans()];
        Ok(Loading { index, waiting })
    }

    /// Adds an object, in place of any other of its key; none if there is no room for it.
    ///
    /// # Panics
    /// As [`Index::insert`] does.
    #[inline]
    pub fn put(&mut self, new: NewObject<'_>, gone: &mut impl FnMut(ObjectId)) -> Option<ObjectId> {
        let hash = self.index.hash(new.key);
        let Some(id) = self.index.keep(new) else { return self.put_full(hash, new, gone) };
        let span = self.index.slots.span(hash);
        self.waiting[span].push(Waiting { hash, id });
        if self.waiting[span].len() == WAITING_MAX {
            self.link(span, gone);
        }
        Some(id)
    }

    /// The same where no entry is free: one is if the object, or another that waits, has the key of an earlier one.
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
                self.index.replace(id, new.object, new.checksums);
                Some(id)
            }
            Err(Refused::Full) => None,
        }
    }

    /// The object with this key.
    pub fn find(&mut self, key: &[u8], gone: &mut impl FnMut(ObjectId)) -> Option<ObjectId> {
        let hash = self.index.hash(key);
        self.link(self.index.slots.span(hash), gone);
        self.index.find_hashed(hash, key)
    }

    /// The index, with all objects in its table.
    pub fn linked(&mut self, gone: &mut impl FnMut(ObjectId)) -> &mut Index {
        for span in 0..self.waiting.len() {
            self.link(span, gone);
        }
        &mut self.index
    }

    /// The index, without the objects that wait.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The same, to be changed.
    pub fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    /// The index once all objects were linked.
    ///
    /// # Panics
    /// If some wait.
    pub fn into_index(self) -> Index {
        assert!(self.waiting.iter().all(Vec::is_empty), "all objects were linked");
        self.index
    }

    /// Links the objects that wait for a span.
    fn link(&mut self, span: usize, gone: &mut impl FnMut(ObjectId)) {
        let Loading { index, waiting } = self;
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
    /// Puts an object into the table; gives the one of the same key that goes for it.
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
