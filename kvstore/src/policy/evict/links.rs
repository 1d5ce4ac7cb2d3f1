//! Queues of objects in an array: an object is in at most one queue, and leaves it from any position in O(1).
//!
//! Two 32-bit words per object name its neighbours. Each queue is a ring through a sentinel of its own. All zeroes,
//! as in fresh pages, means an object in no queue, so memory is used only as ids are. Neighbours need 27 bits; the
//! other five bits of one word are a mark for the policy.

use crate::catalog::index::Index;
use crate::catalog::table::Table;
use crate::model::object::ObjectId;
use crate::policy::age::Ages;

/// Bits of a word that name a node.
const NODE_BITS: u32 = 27;
const NODE_MASK: u32 = (1 << NODE_BITS) - 1;

pub(super) type Queue = u32;

/// Ages that an object may have.
pub(super) const AGES: usize = Ages::MAX as usize + 1;
/// The most queues over the objects of a shard: for each of 256 tenants its own, and one for each age.
const QUEUES_MAX: u32 = 256 * (1 + AGES as u32);

const _: () = assert!(1 + QUEUES_MAX + Index::OBJECTS_MAX <= NODE_MASK);

/// The two words of a node.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// Its neighbour towards the front, and its mark.
    Front = 0,
    /// Its neighbour towards the back.
    Back = 1,
}

/// Queues over the objects of a shard.
#[derive(Debug)]
pub(super) struct Links {
    /// Node 0 stands for none; the sentinels of the queues follow, then the objects.
    nodes: Table<[u32; 2]>,
    /// The node of object 0.
    base: u32,
}

impl Links {
    /// Creates empty queues for objects with ids below `objects_max`.
    pub(super) fn new(objects_max: u32, queues: u32) -> Links {
        let is_in_range = objects_max <= Index::OBJECTS_MAX && queues <= QUEUES_MAX;
        assert!(is_in_range, "a node has {NODE_BITS} bits");
        let base = 1 + queues;
        let mut nodes = Table::new((base + objects_max) as usize);
        for sentinel in 1..base {
            nodes[sentinel as usize] = [sentinel; 2];
        }
        Links { nodes, base }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.nodes.memory_bytes()
    }

    fn node(&self, id: ObjectId) -> u32 {
        let node = self.base + id.0;
        assert!((node as usize) < self.nodes.len(), "object {} is beyond the capacity", id.0);
        node
    }

    fn get(&self, node: u32, word: Word) -> u32 {
        self.nodes[node as usize][word as usize] & NODE_MASK
    }

    fn set(&mut self, node: u32, word: Word, to: u32) {
        let bits = &mut self.nodes[node as usize][word as usize];
        *bits = *bits & !NODE_MASK | to;
    }

    pub(super) fn is_linked(&self, id: ObjectId) -> bool {
        self.get(self.node(id), Word::Back) != 0
    }

    /// Adds an object at the front of a queue, with a mark of 0.
    ///
    /// # Panics
    /// If it is in a queue.
    pub(super) fn push_front(&mut self, queue: Queue, id: ObjectId) {
        assert!(!self.is_linked(id), "object {} is in a queue", id.0);
        let (node, sentinel) = (self.node(id), 1 + queue);
        let first = self.get(sentinel, Word::Back);
        self.nodes[node as usize] = [sentinel, first];
        self.set(first, Word::Front, node);
        self.set(sentinel, Word::Back, node);
    }

    /// Adds an object to the queue of another, behind it, with a mark of 0.
    ///
    /// # Panics
    /// If it is in a queue, or the other is in none.
    pub(super) fn push_behind(&mut self, other: ObjectId, id: ObjectId) {
        assert!(!self.is_linked(id), "object {} is in a queue", id.0);
        assert!(self.is_linked(other), "object {} is in no queue", other.0);
        let (node, front) = (self.node(id), self.node(other));
        let back = self.get(front, Word::Back);
        self.nodes[node as usize] = [front, back];
        self.set(back, Word::Front, node);
        self.set(front, Word::Back, node);
    }

    /// Adds objects, each with its age, to an empty queue: the oldest at the back; of one age, those that come first.
    /// Returns their number.
    ///
    /// Objects of one age are linked to a run as they come, and the runs to a queue at the end. So memory is accessed
    /// in the order of the objects.
    ///
    /// # Panics
    /// If the queue has objects, or an object is in a queue.
    pub(super) fn fill_by_age(
        &mut self,
        queue: Queue,
        objects: &mut dyn Iterator<Item = (ObjectId, u8)>,
    ) -> u32 {
        assert!(self.back(queue).is_none(), "queue {queue} has objects");
        // The nodes at the back and at the front of each run; 0 if there are none.
        let mut runs = [[0; 2]; AGES];
        let (sentinel, mut count) = (1 + queue, 0);
        for (id, age) in objects {
            assert!(!self.is_linked(id), "object {} is in a queue", id.0);
            let (node, [back, front]) = (self.node(id), &mut runs[usize::from(age)]);
            // The neighbours at both ends of a run are set at the end.
            self.nodes[node as usize] = [sentinel; 2];
            if *front == 0 {
                *back = node;
            } else {
                self.join(*front, node);
            }
            *front = node;
            count += 1;
        }
        let mut last = sentinel;
        for [back, front] in runs.into_iter().rev().filter(|[back, _]| *back != 0) {
            self.join(last, back);
            last = front;
        }
        self.join(last, sentinel);
        count
    }

    /// Moves all objects of a queue, in their order, to the back of another.
    pub(super) fn append(&mut self, queue: Queue, from: Queue) {
        assert_ne!(queue, from, "a queue moves to another");
        let (sentinel, emptied) = (1 + queue, 1 + from);
        let (back, front) = (self.get(emptied, Word::Front), self.get(emptied, Word::Back));
        if back == emptied {
            return;
        }
        let old_back = self.get(sentinel, Word::Front);
        self.join(front, old_back);
        self.join(sentinel, back);
        self.join(emptied, emptied);
    }

    /// Makes a node the next one towards the front of another.
    fn join(&mut self, node: u32, before: u32) {
        self.set(node, Word::Front, before);
        self.set(before, Word::Back, node);
    }

    /// Removes an object from its queue.
    ///
    /// # Panics
    /// If it is in none.
    pub(super) fn unlink(&mut self, id: ObjectId) {
        assert!(self.is_linked(id), "object {} is in no queue", id.0);
        let node = self.node(id);
        let (front, back) = (self.get(node, Word::Front), self.get(node, Word::Back));
        self.join(back, front);
        self.nodes[node as usize] = [0; 2];
    }

    pub(super) fn back(&self, queue: Queue) -> Option<ObjectId> {
        self.object(self.get(1 + queue, Word::Front))
    }

    /// Returns the object before this one, towards the front.
    pub(super) fn before(&self, id: ObjectId) -> Option<ObjectId> {
        self.object(self.get(self.node(id), Word::Front))
    }

    fn object(&self, node: u32) -> Option<ObjectId> {
        node.checked_sub(self.base).map(ObjectId)
    }

    pub(super) fn mark(&self, id: ObjectId) -> u32 {
        self.nodes[self.node(id) as usize][Word::Front as usize] >> NODE_BITS
    }

    /// Sets the mark of an object, a number below 32.
    pub(super) fn set_mark(&mut self, id: ObjectId, mark: u32) {
        assert!(mark < 1 << (u32::BITS - NODE_BITS), "a mark has five bits");
        let node = self.node(id);
        let bits = &mut self.nodes[node as usize][Word::Front as usize];
        *bits = *bits & NODE_MASK | mark << NODE_BITS;
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    /// Returns a queue from back to front.
    fn walk(links: &Links, queue: Queue) -> Vec<u32> {
        let mut walk = Vec::new();
        let mut at = links.back(queue);
        while let Some(id) = at {
            walk.push(id.0);
            at = links.before(id);
        }
        walk
    }

    proptest! {
        #[test]
        fn a_queue_filled_by_age_has_the_oldest_at_its_back(
            ages in vec(option::of(0..=Ages::MAX), 1..300),
        ) {
            let mut links = Links::new(300, 2);
            let aged = (0u32..).zip(&ages).filter_map(|(id, age)| Some((ObjectId(id), (*age)?)));
            let count = links.fill_by_age(1, &mut aged.clone());
            let mut model: Vec<_> = aged.map(|(id, age)| (Reverse(age), id.0)).collect();
            prop_assert_eq!(count as usize, model.len());
            model.sort_unstable();
            let mut model: Vec<u32> = model.into_iter().map(|(_, id)| id).collect();
            prop_assert_eq!(walk(&links, 1), &model[..]);
            // Both directions hold.
            for id in (0..300).step_by(3).filter(|id| model.contains(id)).collect::<Vec<_>>() {
                links.unlink(ObjectId(id));
                model.retain(|other| *other != id);
                links.push_front(1, ObjectId(id));
                model.push(id);
            }
            prop_assert_eq!(walk(&links, 1), model);
            prop_assert!(walk(&links, 0).is_empty());
        }

        #[test]
        fn a_queue_that_is_appended_lies_behind_the_other_in_its_order(
            lens in (0_u32..5, 0_u32..5), gone in 0_u32..10,
        ) {
            let mut links = Links::new(10, 2);
            (0..lens.0).for_each(|id| links.push_front(0, ObjectId(id)));
            (5..5 + lens.1).for_each(|id| links.push_front(1, ObjectId(id)));
            links.append(0, 1);
            let mut model: Vec<u32> = (5..5 + lens.1).chain(0..lens.0).collect();
            prop_assert_eq!(&walk(&links, 0), &model);
            prop_assert!(walk(&links, 1).is_empty());
            if links.is_linked(ObjectId(gone)) {
                links.unlink(ObjectId(gone));
                model.retain(|other| *other != gone);
            }
            (0..10).filter(|id| !model.contains(id)).for_each(|id| links.push_front(1, ObjectId(id)));
            prop_assert_eq!(walk(&links, 0), model.clone());
            prop_assert_eq!(walk(&links, 1).len(), 10 - model.len());
        }

        #[test]
        fn an_object_is_where_it_was_last_put(steps in vec((0_u32..12, 0_usize..3, 0_u32..32), 1..200)) {
            let mut links = Links::new(12, 2);
            let mut model = [Vec::new(), Vec::new()];
            let mut marks = [0; 12];
            for (id, queue, mark) in steps {
                if links.is_linked(ObjectId(id)) {
                    links.unlink(ObjectId(id));
                    model.iter_mut().for_each(|queue| queue.retain(|other| *other != id));
                }
                if queue < 2 {
                    links.push_front(queue as Queue, ObjectId(id));
                    links.set_mark(ObjectId(id), mark);
                    model[queue].push(id);
                    marks[id as usize] = mark;
                }
                for (queue, model) in model.iter().enumerate() {
                    prop_assert_eq!(&walk(&links, queue as Queue), model);
                    prop_assert!(model.iter().all(|id| links.mark(ObjectId(*id)) == marks[*id as usize]));
                }
            }
        }
    }
}
