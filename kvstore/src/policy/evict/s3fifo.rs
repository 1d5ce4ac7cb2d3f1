//! S3-FIFO (Yang, Zhang, Qiu, Yue, Vigfusson: "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! New objects enter a small queue, a tenth of all objects. Those hit twice there move to the main queue; the rest are
//! evicted and remembered as ghosts, the latest as many as there are objects ([`Recent`]: 6.4 bytes each). An object
//! that returns while its ghost exists goes to the main queue at once. Main objects that were hit go round again, once
//! per hit, for up to three hits. A hit moves nothing; it is only counted.
//!
//! A leased object at the back of a queue goes to its front, because it is in use. A search for a victim ends: it
//! passes through the small queue once, then through the main one four times, because hits are counted up to three.
//! It passes only leased objects and those hit since the last search, so a limit on the leased ones keeps searches
//! short.

use super::links::{Links, Queue};
use super::policy::Policy;
use crate::model::object::ObjectId;
use crate::policy::recent::Recent;

const SMALL: Queue = 0;
const MAIN: Queue = 1;
/// One of this many objects is in the small queue.
const SMALL_SHARE: u32 = 10;
const HITS_MAX: u32 = 3;
/// Hits that move an object from the small queue to the main one.
const HITS_TO_MAIN: u32 = 2;
/// Bit of a mark: the object is in the main queue. The bits below it count the hits.
const IN_MAIN: u32 = 4;

/// S3-FIFO over objects, regardless of their sizes.
#[derive(Debug)]
pub struct S3Fifo {
    links: Links,
    /// The length of each queue.
    lens: [u32; 2],
    /// Keys evicted from the small queue, as many as there are objects.
    ghosts: Recent,
}

impl S3Fifo {
    /// Creates empty queues for ids below `objects_max`.
    pub fn new(objects_max: u32) -> S3Fifo {
        S3Fifo {
            links: Links::new(objects_max, 2),
            lens: [0; 2],
            ghosts: Recent::new(objects_max as usize),
        }
    }

    fn hits(&self, id: ObjectId) -> u32 {
        self.links.mark(id) & HITS_MAX
    }

    fn queue(&self, id: ObjectId) -> Queue {
        if self.links.mark(id) & IN_MAIN == 0 { SMALL } else { MAIN }
    }

    fn push(&mut self, queue: Queue, id: ObjectId, hits: u32) {
        self.links.push_front(queue, id);
        self.links.set_mark(id, hits | if queue == MAIN { IN_MAIN } else { 0 });
        self.lens[queue as usize] += 1;
    }

    fn take(&mut self, id: ObjectId) -> Queue {
        let queue = self.queue(id);
        self.links.unlink(id);
        self.lens[queue as usize] -= 1;
        queue
    }

    /// Moves an object to the front of a queue.
    fn requeue(&mut self, id: ObjectId, queue: Queue, hits: u32) {
        self.take(id);
        self.push(queue, id, hits);
    }

    /// Like [`Policy::victim`], but gives up after `leased_max` leased objects.
    pub(crate) fn victim_within(
        &mut self,
        leased_max: u32,
        is_leased: &mut dyn FnMut(ObjectId) -> bool,
    ) -> Option<ObjectId> {
        let mut search = Search { is_leased, leased_left: leased_max };
        let [small, main] = self.lens.map(u64::from);
        if small * u64::from(SMALL_SHARE) < small + main
            && let Some(id) = self.main_victim(&mut search)
        {
            return Some(id);
        }
        // The main search also covers what the small queue passes on.
        self.small_victim(&mut search).or_else(|| self.main_victim(&mut search))
    }

    fn small_victim(&mut self, search: &mut Search<'_>) -> Option<ObjectId> {
        for _ in 0..self.lens[SMALL as usize] {
            let id = self.links.back(SMALL).expect("as many objects as are counted");
            let hits = self.hits(id);
            match (search.is_leased(id)?, hits >= HITS_TO_MAIN) {
                (true, _) => self.requeue(id, SMALL, hits),
                (false, true) => self.requeue(id, MAIN, 0),
                (false, false) => return Some(id),
            }
        }
        None
    }

    fn main_victim(&mut self, search: &mut Search<'_>) -> Option<ObjectId> {
        for _ in 0..u64::from(self.lens[MAIN as usize]) * u64::from(HITS_MAX + 1) {
            let id = self.links.back(MAIN).expect("as many objects as are counted");
            match (search.is_leased(id)?, self.hits(id)) {
                (true, hits) => self.requeue(id, MAIN, hits),
                (false, 0) => return Some(id),
                (false, hits) => self.requeue(id, MAIN, hits - 1),
            }
        }
        None
    }
}

/// A search for a victim.
struct Search<'a> {
    is_leased: &'a mut dyn FnMut(ObjectId) -> bool,
    /// Leased objects that it may still pass by.
    leased_left: u32,
}

impl Search<'_> {
    /// Returns whether an object is leased; `None` if it is, and ends the search.
    fn is_leased(&mut self, id: ObjectId) -> Option<bool> {
        let is_leased = (self.is_leased)(id);
        self.leased_left = self.leased_left.checked_sub(u32::from(is_leased))?;
        Some(is_leased)
    }
}

impl Policy for S3Fifo {
    fn inserted(&mut self, id: ObjectId, key_hash: u64) {
        // With few large objects, ghosts for the maximum number of objects would be many times the store's contents.
        let objects = 1 + self.lens.map(u64::from).iter().sum::<u64>();
        let queue = if self.ghosts.take(key_hash, objects) { MAIN } else { SMALL };
        self.push(queue, id, 0);
    }

    /// Enters all objects into the small queue in the order of their use, because their queues and hits are not
    /// recorded.
    fn restore(&mut self, objects: &mut dyn Iterator<Item = (ObjectId, u8)>) {
        self.lens[SMALL as usize] += self.links.fill_by_age(SMALL, objects);
    }

    fn touched(&mut self, id: ObjectId) {
        assert!(self.links.is_linked(id), "object {} is in no queue", id.0);
        let mark = self.links.mark(id);
        if mark & HITS_MAX < HITS_MAX {
            self.links.set_mark(id, mark + 1);
        }
    }

    fn removed(&mut self, id: ObjectId) {
        self.take(id);
    }

    fn evicted(&mut self, id: ObjectId, key_hash: u64) {
        if self.take(id) == SMALL {
            self.ghosts.remember(key_hash);
        }
    }

    fn victim(&mut self, is_leased: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId> {
        self.victim_within(u32::MAX, is_leased)
    }

    fn follower(&self, id: ObjectId) -> Option<ObjectId> {
        self.links.before(id)
    }

    fn memory_bytes(&self) -> usize {
        self.links.memory_bytes() + self.ghosts.memory_bytes()
    }
}

#[cfg(test)]
mod tests;
