//! The policy `auto` evicts the least valuable object, respects sequences, and declines objects worth less than all
//! stored ones.
//!
//! **Classes.** The class of a used object counts its uses; that of an unused one depends on its predecessors in the
//! sequence ([`BlockState`]). Each class is a queue in the order of use. [`reuse`] learns from samples the worth of an
//! object by class and age; the victim is the least valuable of the queues' last objects.
//!
//! **Sequences.** A KV block is useful only with all blocks before it. Blocks found by one lookup count as used from
//! the last to the first, and a new block is queued behind its predecessor, so in each queue the end of a sequence is
//! nearer to the back than its beginning. Across queues, a predecessor's class is worth at least as much as its
//! successor's. The end of a sequence is therefore evicted first, without links between blocks. (Worth may rise with
//! age as the next use approaches, so a block is occasionally evicted before an older successor.)
//!
//! **Admission.** A new block of a sequence is declined if it is worth less than the next victim or follows a declined
//! block. The keys of declined and evicted objects are remembered ([`Doorkeeper`]): an object that returns starts in
//! the class of objects used once. An object put on its own is always stored.
//!
//! **LRU** takes over while it hits more ([`shadow`]), and until enough was learned.
//!
//! Memory: per object 8 bytes for the queues, 2 for its time of use and 4 for remembered keys, plus at most 1.2 MiB.

mod arrivals;
mod reuse;
mod shadow;
mod state;

use arrivals::{Arrival, Arrivals};
use reuse::{CLASSES, Reuse};
use shadow::Shadow;
use state::{Ancestor, BlockState};

use super::links::Links;
use super::policy::{Newcomer, Policy};
use crate::catalog::hash::NumberMap;
use crate::catalog::table::Table;
use crate::model::object::ObjectId;
use crate::policy::doorkeeper::Doorkeeper;

/// Clock ticks per turnover, that is, per as many references as there are objects.
const TURN_TICKS: u32 = 64;
/// The clock's initial value, larger than any age of a restored object.
const START: u32 = 1024;
/// Bits of a time of use; the highest bit of the word says that a lookup's read is awaited.
const STAMP_MASK: u16 = 0x7fff;
const AWAITED: u16 = 0x8000;
/// A lookup at most this many ticks after the last belongs to the same request.
const SAME_REQUEST: u32 = 4;
/// Minimum ticks between solutions; [`SOLVE_REFERENCES`] is the minimum number of references.
const SOLVE_TICKS: u32 = 8;
const SOLVE_REFERENCES: u32 = 512;
/// Maximum number of remembered keys per object.
const SEEN_SHARE: u32 = 2;
/// A new block must be worth this many times the victim, because writing it costs too.
const ADMIT_MARGIN: f32 = 1.1;
/// Bit of a mark: the object's key is sampled. The bits below are its state.
const SAMPLED: u32 = 16;

/// The policy.
#[derive(Debug)]
pub struct Auto {
    links: Links,
    stamps: Table<u16>,
    len: u32,
    /// The clock, in ticks.
    now: u32,
    /// References since the last tick; `unsolved` counts those since the last solution.
    references: u32,
    unsolved: u32,
    solved: u32,
    reuse: Reuse,
    shadow: Shadow,
    /// The hashes of objects whose keys are sampled.
    sampled: NumberMap<u32, u64>,
    seen: Doorkeeper,
    arrivals: Arrivals,
    /// The next victim of each class after the victims already assigned to objects admitted since a queue changed: all
    /// objects of a request are admitted before the first eviction, and each must be worth more than its own victim.
    ahead: Option<[Option<ObjectId>; CLASSES]>,
}

impl Auto {
    /// Creates an empty policy for ids below `objects_max`.
    pub fn new(objects_max: u32) -> Auto {
        Auto {
            links: Links::new(objects_max, CLASSES as u32),
            stamps: Table::new(objects_max.max(1) as usize),
            len: 0,
            now: START,
            references: 0,
            unsolved: 0,
            solved: START,
            reuse: Reuse::new(),
            shadow: Shadow::new(),
            sampled: NumberMap::default(),
            seen: Doorkeeper::new(objects_max.saturating_mul(SEEN_SHARE).max(1)),
            arrivals: Arrivals::new(),
            ahead: None,
        }
    }

    fn state(&self, id: ObjectId) -> BlockState {
        BlockState::from_mark(self.links.mark(id))
    }

    /// Returns the ticks since an object was used; the count wraps after 512 turnovers.
    fn age(&self, id: ObjectId) -> u32 {
        u32::from((self.now as u16).wrapping_sub(self.stamps[id.0 as usize]) & STAMP_MASK)
    }

    fn set_stamp(&mut self, id: ObjectId, awaited: u16) {
        self.stamps[id.0 as usize] = self.now as u16 & STAMP_MASK | awaited;
    }

    /// Counts references, which drive the clock.
    fn count(&mut self, references: u32) {
        self.references += references;
        self.unsolved += references;
        let tick = (self.len / TURN_TICKS).max(1);
        if self.references >= tick {
            self.now += self.references / tick;
            self.references %= tick;
            if self.unsolved >= SOLVE_REFERENCES && self.now - self.solved >= SOLVE_TICKS {
                (self.unsolved, self.solved) = (0, self.now);
                self.reuse.solve(self.now);
            }
        }
    }

    fn learn(&mut self, hash: u64, state: BlockState, is_hit: bool) {
        let bits = self.reuse.sample_bits();
        self.shadow.refer(hash, is_hit, (self.len, bits));
        self.reuse.refer(hash, state.class(), self.now);
        if self.reuse.sample_bits() > bits {
            let Auto { sampled, reuse, .. } = self;
            sampled.retain(|_, hash| reuse.is_sampled(*hash));
        }
    }

    /// Records a use: moves the object to the front of its next class.
    fn use_again(&mut self, id: ObjectId, awaited: u16) {
        let mark = self.links.mark(id);
        let state = BlockState::from_mark(mark).used();
        self.ahead = None;
        self.links.unlink(id);
        self.links.push_front(state.class() as u32, id);
        self.links.set_mark(id, mark & SAMPLED | state.to_mark());
        self.set_stamp(id, awaited);
        if mark & SAMPLED != 0 {
            match self.sampled.get(&id.0).copied() {
                Some(hash) if self.reuse.is_sampled(hash) => self.learn(hash, state, true),
                _ => {
                    self.sampled.remove(&id.0);
                    self.links.set_mark(id, state.to_mark());
                }
            }
        }
    }

    /// Returns the state of a new key, from its predecessor and from remembered keys.
    fn arrival(&mut self, new: &Newcomer) -> Arrival {
        let before = new.after.map_or(0, |(hash, _)| hash);
        let known = self.arrivals.get(before).copied();
        let object = new.after.and_then(|(_, id)| id).filter(|id| self.links.is_linked(*id));
        let ancestor = match (object, &known) {
            (Some(id), _) if self.state(id).is_used() => self.state(id).as_ancestor(),
            (_, Some(known)) => known.ancestor,
            _ => Ancestor::None,
        };
        let is_back = self.seen.has_seen(new.key_hash);
        let state = if is_back { BlockState::USED } else { BlockState::new(ancestor, new.is_last) };
        let is_declined = object.is_none() && known.is_some_and(|known| known.is_declined);
        let ancestor = if is_back { Ancestor::Used } else { ancestor };
        let (hash, parent) = (new.key_hash, object.or(known.and_then(|known| known.id)));
        Arrival { hash, before, ancestor, state, is_declined, parent, id: None }
    }

    /// Returns the class, worth and id of the next victim after those already assigned to admitted objects. Ignores
    /// leases.
    fn next_ahead(&mut self) -> Option<(usize, f32, ObjectId)> {
        let Auto { ahead, links, .. } = self;
        ahead.get_or_insert_with(|| std::array::from_fn(|class| links.back(class as u32)));
        let last = self.ahead.iter().flatten().enumerate();
        let last = last.filter_map(|(class, id)| Some((class, (*id)?)));
        let worth = last.map(|(class, id)| (class, self.reuse.worth(class, self.age(id)), id));
        worth.reduce(|one, other| if other.1 < one.1 { other } else { one })
    }

    fn unlink(&mut self, id: ObjectId) {
        if self.links.mark(id) & SAMPLED != 0 {
            self.sampled.remove(&id.0);
        }
        self.ahead = None;
        self.links.unlink(id);
        self.len -= 1;
    }
}

impl Policy for Auto {
    fn admits(&mut self, new: &Newcomer) -> bool {
        let mut arrival = self.arrival(new);
        if self.reuse.is_sampled(new.key_hash) {
            self.learn(new.key_hash, arrival.state, false);
        }
        self.count(1);
        let is_judged = new.is_short && new.is_in_sequence && !self.shadow.is_lru_better();
        if is_judged {
            let next = self.next_ahead();
            let price = next.map_or(0.0, |(_, worth, _)| worth);
            self.reuse.note_price(price, self.len);
            let worth = self.reuse.worth(arrival.state.class(), 0);
            // A block whose own predecessor would be evicted for it is useless.
            let is_for_parent = next.is_some_and(|(.., id)| Some(id) == arrival.parent);
            arrival.is_declined |= worth < price * ADMIT_MARGIN || is_for_parent;
            if let (false, Some((class, _, id)), Some(ahead)) =
                (arrival.is_declined, next, &mut self.ahead)
            {
                ahead[class] = self.links.before(id);
            }
        }
        arrival.is_declined &= is_judged;
        if arrival.is_declined {
            self.seen.see(new.key_hash, self.len.saturating_mul(SEEN_SHARE));
        }
        self.arrivals.enter(arrival);
        !arrival.is_declined
    }

    fn inserted(&mut self, id: ObjectId, key_hash: u64) {
        let known = self.arrivals.get(key_hash).copied();
        // In a large batch, later keys may have overwritten earlier ones in `arrivals`; `admits` counted each of them.
        let arrival = known.unwrap_or_else(|| self.arrival(&Newcomer::alone(key_hash)));
        self.len += 1;
        self.ahead = None;
        let class = arrival.state.class();
        let before = self.arrivals.get(arrival.before).and_then(|before| before.id);
        let is_there = |before: &ObjectId| *before != id && self.links.is_linked(*before);
        let before = before.or(arrival.parent).filter(is_there);
        match before.filter(|before| self.state(*before).class() == class) {
            Some(before) => self.links.push_behind(before, id),
            None => self.links.push_front(class as u32, id),
        }
        // The predecessor's age, so that of two blocks of equal worth the predecessor is not evicted as the older one.
        let stamp = before.map(|before| self.stamps[before.0 as usize] & STAMP_MASK);
        self.set_stamp(id, 0);
        if let Some(stamp) = stamp {
            self.stamps[id.0 as usize] = stamp;
        }
        let mut mark = arrival.state.to_mark();
        if self.reuse.is_sampled(key_hash) {
            self.sampled.insert(id.0, key_hash);
            mark |= SAMPLED;
        }
        self.links.set_mark(id, mark);
        self.arrivals.enter(Arrival { id: Some(id), ..arrival });
    }

    /// Enters all objects as used once, at their ages, because their numbers of uses are not recorded.
    fn restore(&mut self, objects: &mut dyn Iterator<Item = (ObjectId, u8)>) {
        let Auto { links, stamps, now, .. } = self;
        // The recorded ages have two ticks for each tick of this clock.
        let mut stamped = objects.inspect(|(id, age)| {
            stamps[id.0 as usize] = (*now - u32::from(*age) / 2) as u16 & STAMP_MASK;
        });
        self.len += links.fill_by_age(BlockState::USED.class() as u32, &mut stamped);
    }

    fn found(&mut self, ids: &[ObjectId]) {
        for id in ids.iter().rev() {
            let is_again = self.stamps[id.0 as usize] & AWAITED != 0;
            if !is_again || self.age(*id) > SAME_REQUEST {
                self.use_again(*id, AWAITED);
            }
        }
        self.count(ids.len() as u32);
    }

    fn touched(&mut self, id: ObjectId) {
        assert!(self.links.is_linked(id), "object {} is in no queue", id.0);
        let stamp = &mut self.stamps[id.0 as usize];
        if *stamp & AWAITED != 0 {
            *stamp &= STAMP_MASK;
            return;
        }
        self.use_again(id, 0);
        self.count(1);
    }

    fn removed(&mut self, id: ObjectId) {
        self.unlink(id);
    }

    fn evicted(&mut self, id: ObjectId, key_hash: u64) {
        self.unlink(id);
        self.seen.see(key_hash, self.len.saturating_mul(SEEN_SHARE));
        if let Some(arrival) = self.arrivals.get(key_hash) {
            arrival.id = None;
        }
    }

    fn victim(&mut self, is_leased: &mut dyn FnMut(ObjectId) -> bool) -> Option<ObjectId> {
        let is_lru = self.shadow.is_lru_better();
        let mut least: Option<(f32, u32, ObjectId)> = None;
        for class in 0..CLASSES {
            let mut at = self.links.back(class as u32);
            while let Some(id) = at.filter(|id| is_leased(*id)) {
                at = self.links.before(id);
            }
            let Some(id) = at else { continue };
            let age = self.age(id);
            let worth = if is_lru { 0.0 } else { self.reuse.worth(class, age) };
            // Ties go to the oldest, then to the lowest class, which may be a successor of the others.
            if least
                .is_none_or(|(least, oldest, _)| worth < least || (worth == least && age > oldest))
            {
                least = Some((worth, age, id));
            }
        }
        least.map(|(.., id)| id)
    }

    fn follower(&self, id: ObjectId) -> Option<ObjectId> {
        self.links.before(id)
    }

    fn memory_bytes(&self) -> usize {
        let sampled = self.sampled.capacity() * (size_of::<(u32, u64)>() + 1);
        let learnt = self.reuse.memory_bytes() + self.shadow.memory_bytes() + sampled;
        let keys = self.seen.memory_bytes() + self.arrivals.memory_bytes();
        self.links.memory_bytes() + self.stamps.memory_bytes() + learnt + keys
    }
}

#[cfg(test)]
mod tests;
