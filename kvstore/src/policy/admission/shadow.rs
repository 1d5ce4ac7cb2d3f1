//! A small LRU cache of hashes, to estimate the hits of a large cache.

use crate::catalog::hash::NumberMap;
use crate::model::object::ObjectId;
use crate::policy::evict::{Lru, Policy};

/// Hashes in LRU order.
#[derive(Debug)]
pub(super) struct Shadow {
    order: Lru,
    ids: NumberMap<u64, ObjectId>,
    /// Indexed by id.
    hashes: Vec<u64>,
    objects_max: usize,
}

impl Shadow {
    pub(super) fn new(objects_max: u32) -> Shadow {
        assert!(objects_max > 0, "a cache has room");
        Shadow {
            order: Lru::new(objects_max),
            ids: NumberMap::with_capacity_and_hasher(objects_max as usize, Default::default()),
            hashes: Vec::with_capacity(objects_max as usize),
            objects_max: objects_max as usize,
        }
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        // A hash map has one extra byte per pair.
        self.ids.capacity() * (size_of::<(u64, ObjectId)>() + 1)
            + self.hashes.capacity() * size_of::<u64>()
            + self.order.memory_bytes()
    }

    /// Returns whether a hash is present, and marks it as used.
    pub(super) fn hit(&mut self, hash: u64) -> bool {
        let id = self.ids.get(&hash).copied();
        id.map(|id| self.order.touched(id)).is_some()
    }

    /// Adds a hash that is not present.
    pub(super) fn put(&mut self, hash: u64) {
        let id = self.room();
        let before = self.ids.insert(hash, id);
        assert!(before.is_none(), "what is there is hit");
        self.hashes[id.0 as usize] = hash;
        self.order.inserted(id, hash);
    }

    fn room(&mut self) -> ObjectId {
        if self.hashes.len() < self.objects_max {
            self.hashes.push(0);
            return ObjectId(self.hashes.len() as u32 - 1);
        }
        let victim = self.order.victim(&mut |_| false).expect("nothing is leased here");
        let hash = self.hashes[victim.0 as usize];
        self.order.evicted(victim, hash);
        self.ids.remove(&hash);
        victim
    }
}
