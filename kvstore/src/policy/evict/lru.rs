//! Exact LRU eviction.
//!
//! One queue in the order of use. A victim is the last object that is not leased. The search passes over leased
//! objects, so it takes at most one step more than their bounded number. In practice it takes few, because leased
//! objects were looked up recently.

use super::links::Links;
use super::policy::Policy;
use crate::model::object::ObjectId;

/// The only queue, from the most recently used to the least.
const USED: u32 = 0;

/// Exact LRU.
#[derive(Debug)]
pub struct Lru {
    links: Links,
}

impl Lru {
    /// Creates an empty order for ids below `objects_max`.
    pub fn new(objects_max: u32) -> Lru {
        Lru { links: Links::new(objects_max, 1) }
    }
}

impl Policy for Lru {
    fn inserted(&mut self, id: ObjectId, _key_hash: u64) {
        self.links.push_front(USED, id);
    }

    fn restore(&mut self, objects: &mut dyn Iterator<Item = (ObjectId, u8)>) {
        self.links.fill_by_age(USED, objects);
    }

    fn touched(&mut self, id: ObjectId) {
        self.links.unlink(id);
        self.links.push_front(USED, id);
    }

    fn removed(&mut self, id: ObjectId) {
        self.links.unlink(id);
    }

    fn evicted(&mut self, id: ObjectId, _key_hash: u64) {
        self.links.unlink(id);
    }

    fn victim(&mut self, is_leased: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId> {
        let mut at = self.links.back(USED);
        while let Some(id) = at {
            if !is_leased(id) {
                return at;
            }
            at = self.links.before(id);
        }
        None
    }

    fn follower(&self, id: ObjectId) -> Option<ObjectId> {
        self.links.before(id)
    }

    fn memory_bytes(&self) -> usize {
        self.links.memory_bytes()
    }
}
