//! The commands in flight on one queue.
//!
//! A slot holds a command's buffer and deadline until its completion. The command identifier is the slot's
//! index in the low bits and a generation above, so that a late, repeated or invented completion does not
//! match the slot's current command. A queue of more than 32768 entries needs all 16 bits for the index and
//! has no generation.
//!
//! [`Vacant`] is a free slot found but not yet taken, so that a command is checked between the two
//! without a second search.

use std::fmt;

use crate::Time;
use crate::spec::Cid;

/// What a slot's command is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// There is none.
    Idle,
    /// In flight; it only needs its completion.
    Plain,
    /// In flight with more attached; see [`super`].
    Special,
    /// The slot's own command is done, and it only keeps a split request's buffer.
    Waiting,
}

/// No slot: a queue has at most 65535.
const NONE: u16 = u16::MAX;

/// One command in flight, or none.
pub(crate) struct Slot<B> {
    /// The command's identifier; while idle, that of the slot's next command.
    cid: Cid,
    state: SlotState,
    /// While idle: the next idle slot, or [`NONE`]. In flight: the command's opcode.
    link: u16,
    /// When the command becomes overdue.
    pub(crate) deadline: Time,
    /// The command's buffer. In a split request, only the first command has one.
    pub(crate) buffer: Option<B>,
}

/// A free slot: nothing else can take it while this exists.
pub(crate) struct Vacant<'a, B> {
    slot: &'a mut Slot<B>,
    head: &'a mut u16,
    taken: &'a mut u64,
}

pub(crate) struct Slots<B> {
    slots: Box<[Slot<B>]>,
    /// The first idle slot, or [`NONE`]. The last one used is reused first: it is in the cache.
    head: u16,
    /// Slots taken and returned since creation.
    taken: u64,
    returned: u64,
    index_mask: usize,
    generation_step: u16,
}

impl<B> Slots<B> {
    /// Creates `count` free slots, at most 65535.
    pub(crate) fn new(count: usize) -> Slots<B> {
        assert!((1..65536).contains(&count), "a queue has 1 to 65535 commands in flight");
        let index_bits = usize::BITS - count.leading_zeros();
        assert!(count < 1 << index_bits && index_bits <= 16, "FFFFh is no command's identifier");
        let next = |index: u16| if usize::from(index) + 1 < count { index + 1 } else { NONE };
        let slot = |index| Slot {
            cid: Cid(index),
            state: SlotState::Idle,
            link: next(index),
            deadline: Time::NEVER,
            buffer: None,
        };
        Slots {
            slots: (0..count as u16).map(slot).collect(),
            head: 0,
            taken: 0,
            returned: 0,
            index_mask: (1 << index_bits) - 1,
            generation_step: (1u32 << index_bits) as u16,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        debug_assert!(self.returned <= self.taken, "only what was taken is given back");
        (self.taken - self.returned) as usize
    }

    #[inline]
    pub(crate) fn free(&self) -> usize {
        debug_assert!(self.in_flight() <= self.slots.len(), "a slot is taken once");
        self.slots.len() - self.in_flight()
    }

    /// Returns the number of commands posted since creation.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the number of commands that ended since creation.
    pub(crate) fn returned(&self) -> u64 {
        assert!(self.returned <= self.taken, "only what was taken is given back");
        self.returned
    }

    /// Returns the slot of the command in flight with identifier `cid`, in any state.
    pub(crate) fn find(&self, cid: Cid) -> Option<usize> {
        let index = usize::from(cid.0) & self.index_mask;
        let slot = self.slots.get(index)?;
        debug_assert!(index == usize::from(slot.cid.0) & self.index_mask, "a slot keeps its index");
        (slot.is_in_flight() && slot.cid == cid).then_some(index)
    }

    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        debug_assert_eq!(self.head == NONE, self.free() == 0, "the list holds every idle slot");
        self.head == NONE
    }

    /// Returns the slot for the next command; `None` if all are taken.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_, B>> {
        // `NONE`, the end of the list, is out of range.
        let slot = self.slots.get_mut(usize::from(self.head))?;
        debug_assert!(!slot.is_in_flight(), "the list holds idle slots only");
        Some(Vacant { slot, head: &mut self.head, taken: &mut self.taken })
    }

    /// Takes a free slot for a command and returns its index and identifier.
    ///
    /// # Panics
    /// If there is none, a bug in this crate: callers check [`Slots::is_full`] or [`Slots::free`] first.
    #[inline(always)]
    pub(crate) fn occupy(
        &mut self,
        buffer: Option<B>,
        deadline: Time,
        opcode: u8,
        special: bool,
    ) -> (usize, Cid) {
        let index = usize::from(self.head);
        let vacant = self.vacant().expect("the caller made sure that a slot is free");
        let cid = vacant.occupy(buffer, deadline, opcode, special);
        debug_assert_eq!(self.find(cid), Some(index), "the identifier names the slot");
        (index, cid)
    }

    /// Returns the slot of the special command `cid`; `None` if that is unknown, stale, completed or not
    /// special.
    pub(crate) fn find_special(&self, cid: Cid) -> Option<usize> {
        let index = usize::from(cid.0) & self.index_mask;
        let slot = self.slots.get(index)?;
        debug_assert!(index == usize::from(slot.cid.0) & self.index_mask, "a slot keeps its index");
        (slot.state == SlotState::Special && slot.cid == cid).then_some(index)
    }

    /// Ends the plain command `cid` and returns its buffer; `None` if there is no such plain command (it may
    /// be a special one).
    #[inline(always)]
    pub(crate) fn end_plain(&mut self, cid: Cid) -> Option<B> {
        let index = usize::from(cid.0) & self.index_mask;
        let slot = self.slots.get_mut(index)?;
        if slot.cid != cid || slot.state != SlotState::Plain {
            return None;
        }
        debug_assert_ne!(usize::from(self.head), index, "what is in flight is not listed as idle");
        debug_assert!(self.returned < self.taken, "a command that ends was taken");
        slot.cid = Cid(cid.0.wrapping_add(self.generation_step));
        debug_assert!(index == usize::from(slot.cid.0) & self.index_mask, "a slot keeps its index");
        slot.state = SlotState::Idle;
        slot.link = std::mem::replace(&mut self.head, index as u16);
        self.returned += 1;
        slot.buffer.take()
    }

    /// Makes a command special: its completion takes the slow path.
    pub(crate) fn mark_special(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        assert!(slot.is_in_flight(), "only a command in flight is marked");
        assert!(
            slot.state != SlotState::Waiting,
            "a command that completed does not complete again"
        );
        slot.state = SlotState::Special;
    }

    /// Keeps the slot of a completed command for its buffer: no completion matches it and no deadline
    /// applies.
    pub(crate) fn mark_waiting(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        assert!(slot.state == SlotState::Special, "only a split request's slot waits");
        assert!(slot.buffer.is_some(), "a slot waits for the sake of its buffer");
        slot.state = SlotState::Waiting;
        slot.deadline = Time::NEVER;
    }

    /// Returns whether a slot's command has more attached than its buffer.
    pub(crate) fn is_special(&self, index: usize) -> bool {
        debug_assert!(
            self.slots[index].is_in_flight(),
            "only a command in flight is special or not"
        );
        matches!(self.slots[index].state, SlotState::Special | SlotState::Waiting)
    }

    /// Ends a command and returns its buffer. The slot's next command has a new generation.
    #[inline(always)]
    pub(crate) fn vacate(&mut self, index: usize) -> Option<B> {
        let slot = &mut self.slots[index];
        assert!(slot.is_in_flight(), "only a command in flight ends");
        debug_assert_ne!(usize::from(self.head), index, "what is in flight is not listed as idle");
        debug_assert!(self.returned < self.taken, "a command that ends was taken");
        slot.cid = Cid(slot.cid.0.wrapping_add(self.generation_step));
        debug_assert!(index == usize::from(slot.cid.0) & self.index_mask, "a slot keeps its index");
        slot.state = SlotState::Idle;
        slot.link = std::mem::replace(&mut self.head, index as u16);
        self.returned += 1;
        slot.buffer.take()
    }

    pub(crate) fn get(&self, index: usize) -> &Slot<B> {
        &self.slots[index]
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Slot<B> {
        &mut self.slots[index]
    }

    /// Iterates over the slots of all commands in flight.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.slots.len()).filter(|&index| self.slots[index].is_in_flight())
    }
}

impl<B> fmt::Debug for Slots<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slots({} of {} in flight)", self.in_flight(), self.slots.len())
    }
}

impl<B> Vacant<'_, B> {
    /// Takes the slot for a command and returns its identifier.
    #[inline(always)]
    pub(crate) fn occupy(
        self,
        buffer: Option<B>,
        deadline: Time,
        opcode: u8,
        special: bool,
    ) -> Cid {
        let slot = self.slot;
        debug_assert!(!slot.is_in_flight() && slot.buffer.is_none(), "a free slot holds nothing");
        *self.head = std::mem::replace(&mut slot.link, u16::from(opcode));
        *self.taken += 1;
        let cid = slot.cid;
        slot.state = if special { SlotState::Special } else { SlotState::Plain };
        debug_assert_ne!(cid.0, u16::MAX, "FFFFh is no command's identifier");
        slot.deadline = deadline;
        // The slot is free, so there is nothing to drop; `forget` avoids the check.
        std::mem::forget(std::mem::replace(&mut slot.buffer, buffer));
        cid
    }
}

impl<B> Slot<B> {
    /// Returns the identifier of the command in flight, or of the next one.
    pub(crate) fn cid(&self) -> Cid {
        self.cid
    }

    fn is_in_flight(&self) -> bool {
        self.state != SlotState::Idle
    }

    pub(crate) fn opcode(&self) -> u8 {
        assert!(self.is_in_flight(), "only a command in flight has an opcode");
        self.link as u8
    }
}

#[cfg(test)]
mod states;
#[cfg(test)]
mod tests {
    use super::*;

    fn occupied(slots: &mut Slots<u32>, value: u32) -> (usize, Cid) {
        slots.occupy(Some(value), Time::ZERO, 0, false)
    }

    #[test]
    fn a_stale_or_repeated_identifier_names_nothing() {
        let mut slots = Slots::new(4);
        let (index, cid) = occupied(&mut slots, 7);
        assert_eq!(slots.end_plain(cid), Some(7));
        assert_eq!(slots.end_plain(cid), None, "a second completion");
        let (again, newer) = occupied(&mut slots, 8);
        assert_eq!(again, index);
        assert_ne!(newer, cid);
        assert_eq!(slots.end_plain(cid), None, "a late completion");
        assert_eq!(slots.end_plain(newer), Some(8));
    }

    #[test]
    fn identifiers_outside_the_slots_name_nothing() {
        let mut slots = Slots::<u32>::new(5);
        for cid in 0..=u16::MAX {
            assert_eq!((slots.end_plain(Cid(cid)), slots.find_special(Cid(cid))), (None, None));
        }
    }

    #[test]
    fn every_slot_is_used_once_and_ffff_never() {
        for count in [1, 2, 3, 255, 1023, 65535] {
            let mut slots = Slots::<u32>::new(count);
            let mut seen = vec![false; 65536];
            while !slots.is_full() {
                let (_, cid) = slots.occupy(None, Time::ZERO, 0, false);
                assert!(!std::mem::replace(&mut seen[usize::from(cid.0)], true));
            }
            assert_eq!(slots.in_flight(), count);
            // The specification reserves FFFFh for errors that belong to no command.
            assert!(!seen[0xffff], "{count} slots");
        }
    }

    #[test]
    fn special_commands_are_found_only_as_such_and_not_once_they_wait() {
        let mut slots = Slots::new(2);
        let (index, cid) = occupied(&mut slots, 1);
        slots.mark_special(index);
        assert_eq!(slots.end_plain(cid), None);
        assert_eq!(slots.find_special(cid), Some(index));
        slots.mark_waiting(index);
        assert_eq!(
            slots.find_special(cid),
            None,
            "a second completion of a split request's first command"
        );
        assert_eq!(slots.vacate(index), Some(1));
    }
}
