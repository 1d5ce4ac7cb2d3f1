//! The rare work of a queue: requests of several commands, built lists, bounce copies, aborts, and returning
//! every buffer after a reset.
//!
//! A request of several commands keeps its buffer in the slot of the first, the *lead*; the others refer to
//! it. The lead's slot stays taken until all are done. A request's needs (slots, list pages, bounce pages)
//! are counted before its first command is posted, so it is taken whole or returned whole.

use std::collections::BTreeSet;
use std::time::Duration;

use super::command::{Bounds, LbaCommand, Pointer};
use super::core::Core;
use super::lists::Borrowed;
use super::outcome::{CommandError, Completion, RejectReason, Rejected};
use crate::Time;
use crate::memory::{Bounce, IoBuffer, SegmentsOf, bounce_copy};
use crate::spec::{Cid, DataPointer, IoOpcode, Iova, Sqe, Status};
use crate::transfer::prebuilt::PrebuiltPrps;
use crate::transfer::{
    Form, LIST_PAGES_PER_COMMAND, PAGE_BYTES, Piece, Plan, Position, prp, sgl, whole_as_prp,
};

/// Attachments of a special command. Meaningless for a plain one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extra {
    /// The slot that holds the request's buffer; for the first command, its own.
    lead: u16,
    /// Lead only: commands of the request not yet completed.
    remaining: u16,
    /// Lead only: the first failure.
    error: Option<CommandError>,
    lists: Borrowed,
    bounce: Option<Bounced>,
    /// Lead only: a command of the request that may write reached the device.
    wrote: bool,
    /// The limit of waiting for an overdue command while the controller pauses.
    patience: Option<Time>,
    ending: Ending,
}

/// Delay before retrying an abort that the controller had no room for.
const ABORT_AGAIN: Duration = Duration::from_millis(1);

/// Whether the driver is ending a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ending {
    #[default]
    Not,
    /// It missed its deadline and is to be aborted.
    Overdue {
        /// When to give up on the abort.
        until: Time,
        /// Whether the abort was sent, rather than postponed for lack of room.
        sent: bool,
    },
    /// Its queue is being deleted.
    Deleted,
}

/// A bounce page and the bytes that go through it.
#[derive(Clone, Copy, Debug)]
struct Bounced {
    page: u16,
    start: Position,
    bytes: u64,
    /// The device writes the page; copy the data back afterwards.
    inbound: bool,
}

/// Resources a request takes from its queue.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    commands: usize,
    lists: usize,
    bounces: usize,
}

impl Needs {
    fn add<B: IoBuffer>(mut self, piece: &Piece, buffer: &B) -> Needs {
        self.commands += 1;
        self.lists += lists_of(piece, buffer);
        self.bounces += usize::from(piece.form == Form::Bounce);
        self
    }
}

impl<B: IoBuffer> Core<B> {
    /// Plans a transfer and posts all its commands.
    #[cold]
    #[inline(never)]
    pub(super) fn post_pieces(
        &mut self,
        deadline: Time,
        transfer: LbaCommand<'_>,
        buffer: B,
    ) -> Result<Cid, Rejected<B>> {
        if let Err(reason) = self.admit(&transfer, &buffer) {
            return Err(Rejected { buffer, reason });
        }
        let segments = SegmentsOf(&buffer);
        let plan =
            Plan::new(transfer.namespace.limits(), transfer.lba, &segments).expect("admitted");
        let mut lead = None;
        let before = self.slots.in_flight();
        for piece in plan {
            let index = self.post_piece(deadline, &transfer, &piece, &buffer, lead);
            lead.get_or_insert(index);
        }
        let lead = lead.expect("a plan has at least one piece");
        let posted = self.slots.in_flight() - before;
        let remaining = usize::from(self.extras[lead].remaining);
        assert_eq!(remaining, posted, "the lead counts the request's commands");
        assert_eq!(usize::from(self.extras[lead].lead), lead, "the lead is its own");
        let lead = self.slots.get_mut(lead);
        assert!(lead.buffer.is_none(), "a request has one buffer");
        lead.buffer = Some(buffer);
        Ok(lead.cid())
    }

    /// Checks that a request is valid and that the queue has room for it.
    fn admit(&self, transfer: &LbaCommand<'_>, buffer: &B) -> Result<(), RejectReason> {
        if !buffer.is_in(self.domain()) || transfer.namespace.domain() != self.domain() {
            return Err(RejectReason::Foreign);
        }
        let segments = SegmentsOf(buffer);
        let plan = Plan::new(transfer.namespace.limits(), transfer.lba, &segments)?;
        let lbas = transfer.namespace.lba_count();
        let end = plan.end_lba();
        if end > lbas {
            return Err(RejectReason::OutOfRange { lba: transfer.lba.0, end, lbas });
        }
        self.has(plan.fold(Needs::default(), |needs, piece| needs.add(&piece, buffer)))
    }

    fn has(&self, needs: Needs) -> Result<(), RejectReason> {
        let resources = [
            ("commands", needs.commands, self.slots.free(), self.extras.len()),
            ("list pages", needs.lists, self.lists.free(), self.lists.count()),
            ("bounce pages", needs.bounces, self.bounces.free(), self.bounces.count()),
        ];
        for (what, needs, free, has) in resources {
            assert!(free <= has, "no more is free than there is");
            if needs > has {
                return Err(RejectReason::TooLarge { what, needs, has });
            }
        }
        let full = resources.iter().any(|&(_, needs, free, _)| needs > free);
        if full { Err(RejectReason::Full) } else { Ok(()) }
    }

    /// Posts one command of a request; the first one's slot becomes the lead.
    fn post_piece(
        &mut self,
        deadline: Time,
        transfer: &LbaCommand<'_>,
        piece: &Piece,
        buffer: &B,
        lead: Option<usize>,
    ) -> usize {
        assert!(piece.bytes > 0, "a command has data");
        let mut extra = Extra {
            lists: Borrowed::take(&mut self.lists, lists_of(piece, buffer)),
            ..Extra::default()
        };
        let pointer = match piece.form {
            Form::Bounce => {
                self.bounce(piece, transfer.opcode == IoOpcode::READ, &mut extra, buffer)
            }
            Form::Sgl { descriptors } => self.build_sgl(piece, descriptors, &extra.lists, buffer),
            Form::Prp { entries } => self.build_prp(piece, entries, &extra.lists, buffer),
        };
        let limits = transfer.namespace.limits();
        let tags = transfer.namespace.prinfo().tags(piece.lba);
        let command = transfer.qwords(piece.lba, piece.bytes >> limits.lba_shift, pointer, tags);
        let (index, cid) = self.slots.occupy(None, deadline, transfer.opcode.0, true);
        self.stats.bytes += piece.bytes;
        let lead = lead.unwrap_or(index);
        assert!(self.slots.is_special(lead), "a request's buffer stays until all of it is done");
        self.extras[index] = Extra { lead: lead as u16, ..extra };
        self.extras[lead].remaining += 1;
        let remaining = usize::from(self.extras[lead].remaining);
        assert!(remaining <= self.slots.in_flight(), "what remains of a request is in flight");
        self.push(command, cid, deadline);
        index
    }

    fn build_sgl(
        &mut self,
        piece: &Piece,
        descriptors: u64,
        lists: &Borrowed,
        buffer: &B,
    ) -> Pointer {
        assert!(descriptors > 0, "a command has data");
        assert_eq!(lists.is_empty(), sgl::list_pages(descriptors) == 0, "a list has its pages");
        self.stats.sgl_commands += 1;
        self.stats.built_lists += u64::from(!lists.is_empty());
        let mut memory = lists.memory(&self.lists);
        Pointer::sgl(sgl::build(
            &SegmentsOf(buffer),
            piece.start,
            piece.bytes,
            descriptors,
            &mut memory,
        ))
    }

    fn build_prp(&mut self, piece: &Piece, entries: u64, lists: &Borrowed, buffer: &B) -> Pointer {
        if entries > 2 && lists.is_empty() {
            self.stats.prebuilt_lists += 1;
            return prebuilt_pointer(piece, buffer);
        }
        assert!(entries > 0, "a command has data");
        assert_eq!(lists.is_empty(), prp::list_pages(entries) == 0, "a list has its pages");
        self.stats.built_lists += u64::from(!lists.is_empty());
        let mut memory = lists.memory(&self.lists);
        let (prp1, prp2) = prp::build(&SegmentsOf(buffer), piece.start, piece.bytes, &mut memory);
        Pointer::prps(prp1, prp2)
    }

    fn bounce(&mut self, piece: &Piece, is_read: bool, extra: &mut Extra, buffer: &B) -> Pointer {
        assert!(extra.lists.is_empty(), "what is bounced needs no list");
        assert!(piece.bytes <= PAGE_BYTES, "what is bounced fits a page");
        let page = self.bounces.take();
        let (start, bytes) = (piece.start, piece.bytes);
        extra.bounce = Some(Bounced { page, start, bytes, inbound: is_read });
        self.stats.bounced_commands += 1;
        self.stats.bounced_bytes += bytes;
        if !is_read {
            bounce_copy(buffer, start, bytes, &self.bounces.memory_of(page), Bounce::Out);
        }
        Pointer::prps(self.bounces.iova_of(page), Iova(0))
    }

    /// Posts one command unchanged. Its data is the buffer, or as much of it as the bounds state.
    #[cold]
    #[inline(never)]
    pub(crate) fn post_raw(
        &mut self,
        deadline: Time,
        sqe: Sqe,
        bounds: Option<Bounds>,
        buffer: B,
    ) -> Result<Cid, Rejected<B>> {
        if self.slots.is_full() {
            return Err(Rejected { buffer, reason: RejectReason::Full });
        }
        if bounds.and_then(|bounds| bounds.domain).is_some_and(|domain| domain != self.domain()) {
            return Err(Rejected { buffer, reason: RejectReason::Foreign });
        }
        if bounds.map_or(buffer.segment_count() == 0, |bounds| bounds.bytes == 0) {
            return Ok(self.launch(sqe, buffer, deadline));
        }
        match self.raw_pages(&buffer, bounds.map(|bounds| bounds.bytes)) {
            Err(reason) => Err(Rejected { buffer, reason }),
            Ok((bytes, entries)) => Ok(self.post_raw_data(deadline, sqe, buffer, bytes, entries)),
        }
    }

    /// Returns bytes and pages of a raw command's data, if the queue has room for it now.
    fn raw_pages(&self, buffer: &B, needs: Option<u64>) -> Result<(u64, u64), RejectReason> {
        if !buffer.is_in(self.domain()) {
            return Err(RejectReason::Foreign);
        }
        let segments = SegmentsOf(buffer);
        let has = (0..buffer.segment_count()).map(|index| buffer.segment(index).len).sum();
        let bytes = needs.unwrap_or(has);
        if bytes > has {
            return Err(RejectReason::ShortBuffer { needs: bytes, has });
        }
        let entries = whole_as_prp(&segments, bytes).ok_or(RejectReason::Scattered)?;
        let lists = prp::list_pages(entries);
        if lists > LIST_PAGES_PER_COMMAND {
            let what = "list pages in one command";
            return Err(RejectReason::TooLarge { what, needs: lists, has: LIST_PAGES_PER_COMMAND });
        }
        self.has(Needs { commands: 1, lists, bounces: 0 })?;
        assert!(entries.saturating_mul(PAGE_BYTES) >= bytes, "the pages hold the data");
        Ok((bytes, entries))
    }

    fn post_raw_data(
        &mut self,
        deadline: Time,
        sqe: Sqe,
        buffer: B,
        bytes: u64,
        entries: u64,
    ) -> Cid {
        let lists = Borrowed::take(&mut self.lists, prp::list_pages(entries));
        let mut memory = lists.memory(&self.lists);
        let (prp1, prp2) =
            prp::build(&SegmentsOf(&buffer), Position::default(), bytes, &mut memory);
        let special = !lists.is_empty();
        assert_eq!(special, prp::list_pages(entries) > 0, "a list has its pages");
        self.stats.built_lists += u64::from(special);
        let (index, cid) = self.slots.occupy(Some(buffer), deadline, sqe.opcode(), special);
        self.stats.bytes += bytes;
        self.extras[index] = Extra { lead: index as u16, remaining: 1, lists, ..Extra::default() };
        let sqe = sqe.with_dptr(DataPointer::Prp { prp1, prp2 }).with_cid(Cid(0));
        self.push(sqe.to_qwords(), cid, deadline);
        assert_eq!(self.slots.find(cid), Some(index), "the command is in flight");
        cid
    }

    /// Ends a command with attachments; returns its request if this was its last command.
    #[cold]
    #[inline(never)]
    pub(super) fn finish_special(
        &mut self,
        index: usize,
        result: Result<u32, CommandError>,
    ) -> Option<Completion<B>> {
        let lead = usize::from(self.extras[index].lead);
        assert!(self.slots.is_special(lead), "a request's buffer stays until all of it is done");
        self.release(index, lead, result.is_ok());
        let may_write = self.may_write(index);
        let result = result.map_err(|error| explain(error, self.extras[index].ending, may_write));
        let request = &mut self.extras[lead];
        assert!(request.remaining > 0, "each command of a request ends once");
        request.wrote |= may_write;
        request.remaining -= 1;
        if let Err(error) = result {
            request.error.get_or_insert(error);
        }
        let (remaining, error) = (request.remaining, request.error);
        if index != lead {
            self.slots.vacate(index);
        } else if remaining > 0 {
            self.slots.mark_waiting(index);
        }
        (remaining == 0).then(|| {
            let buffer = self.slots.vacate(lead).expect("the lead holds the request's buffer");
            Completion { buffer, result: error.map_or(result, Err) }
        })
    }

    /// Copies bounced data back and frees the pages a command borrowed.
    fn release(&mut self, index: usize, lead: usize, ok: bool) {
        let mut extra = self.extras[index];
        extra.lists.give_back(&mut self.lists);
        if let Some(bounced) = extra.bounce.take() {
            assert!(bounced.bytes <= PAGE_BYTES, "what is bounced fits a page");
            if ok && bounced.inbound {
                let buffer = self
                    .slots
                    .get(lead)
                    .buffer
                    .as_ref()
                    .expect("the lead holds the request's buffer");
                let memory = self.bounces.memory_of(bounced.page);
                bounce_copy(buffer, bounced.start, bounced.bytes, &memory, Bounce::Back);
            }
            self.bounces.give_back(bounced.page);
        }
        assert!(extra.lists.is_empty() && extra.bounce.is_none(), "all pages are given back");
        self.extras[index] = extra;
    }

    /// Marks an overdue command for abort, with `until` as the abort's own deadline. Returns its identifier,
    /// or `None` if an abort was sent, its deadline has passed or the queue is being deleted.
    pub(crate) fn begin_abort(&mut self, index: usize, now: Time, until: Time) -> Option<Cid> {
        assert!(now <= until, "an abort has time");
        if !self.slots.is_special(index) {
            self.make_special(index);
        }
        let ending = &mut self.extras[index].ending;
        match *ending {
            Ending::Not => *ending = Ending::Overdue { until, sent: false },
            Ending::Overdue { until, sent: false } if now < until => {}
            Ending::Overdue { .. } | Ending::Deleted => return None,
        }
        Some(self.slots.get(index).cid())
    }

    /// Records whether the abort was `sent`, and schedules the next look at the command: at the abort's
    /// deadline, or soon, when the controller may take another abort.
    pub(crate) fn abort_tried(&mut self, index: usize, now: Time, sent: bool) {
        let Ending::Overdue { until, sent: was_sent } = self.extras[index].ending else {
            unreachable!("only an overdue command is aborted")
        };
        assert!(!was_sent, "a command is aborted once");
        self.extras[index].ending = Ending::Overdue { until, sent };
        self.stats.aborts += u64::from(sent);
        self.extend(index, if sent { until } else { until.min(now + ABORT_AGAIN) });
    }

    pub(super) fn is_ending(&self, index: usize) -> bool {
        self.ending(index) != Ending::Not
    }

    fn ending(&self, index: usize) -> Ending {
        if self.slots.is_special(index) { self.extras[index].ending } else { Ending::Not }
    }

    /// Extends an overdue command's deadline to the end of a controller's pause, by at most `longest` in
    /// total: announcing pause after pause gains nothing. Returns `false` once that is used up.
    pub(crate) fn wait_for_pause(
        &mut self,
        index: usize,
        now: Time,
        until: Time,
        longest: Duration,
    ) -> bool {
        if !self.slots.is_special(index) {
            self.make_special(index);
        }
        let patience = *self.extras[index].patience.get_or_insert(now + longest);
        let waits = self.extras[index].ending == Ending::Not && now < patience;
        if waits {
            self.extend(index, until.min(patience));
        }
        waits
    }

    /// Marks every command as ending with the deletion of its queue.
    pub(crate) fn begin_deletion(&mut self) {
        let occupied: Vec<usize> = self.slots.occupied().collect();
        for index in occupied {
            if !self.slots.is_special(index) {
                self.make_special(index);
            }
            let ending = &mut self.extras[index].ending;
            if *ending == Ending::Not {
                *ending = Ending::Deleted;
            }
        }
    }

    fn make_special(&mut self, index: usize) {
        assert!(!self.slots.is_special(index), "what is attached to a command stays");
        assert!(self.slots.get(index).buffer.is_some(), "a plain command owns its buffer");
        self.extras[index] = Extra { lead: index as u16, remaining: 1, ..Extra::default() };
        self.slots.mark_special(index);
    }

    fn may_write(&self, index: usize) -> bool {
        IoOpcode(self.slots.get(index).opcode()).may_write()
    }

    /// Forgets every buffer in flight, so that memory the device may still write is never freed or handed
    /// out.
    pub(crate) fn leak_all(&mut self) {
        let occupied: Vec<usize> = self.slots.occupied().collect();
        for index in occupied {
            std::mem::forget(self.slots.vacate(index));
        }
        assert_eq!(self.slots.in_flight(), 0, "no buffer is left");
    }

    /// Returns the commands never announced to the device. It can still access the entries, so entries that
    /// name no command in flight, or one twice, are dropped.
    fn unsent(&self) -> Vec<Sqe> {
        let mut seen = BTreeSet::new();
        let mut unsent = self.sq.unsent();
        unsent.retain(|sqe| self.slots.find(sqe.cid()).is_some_and(|index| seen.insert(index)));
        assert!(unsent.len() <= self.slots.in_flight(), "a command in flight is named once");
        unsent
    }

    /// Returns the unannounced commands whose deadline has not passed, to be sent to a new queue. A request's
    /// commands share one deadline, so they stay together.
    pub(crate) fn unsent_in_time(&mut self, now: Time) -> Vec<Sqe> {
        let mut unsent = self.unsent();
        unsent.retain(|sqe| {
            self.slots.find(sqe.cid()).is_some_and(|index| {
                let overdue = matches!(self.ending(index), Ending::Overdue { .. });
                !overdue && self.slots.get(index).deadline > now
            })
        });
        self.retain_whole(&mut unsent);
        let slots = self.slots_of(&unsent);
        assert_eq!(slots.len(), unsent.len(), "each command in flight is sent again once");
        for index in slots {
            if self.slots.is_special(index) {
                self.extras[index].ending = Ending::Not;
            }
        }
        unsent
    }

    /// Drops the commands of incomplete requests: a device that changed an entry cannot tear a request apart.
    fn retain_whole(&self, commands: &mut Vec<Sqe>) {
        let slots = self.slots_of(commands);
        let is_whole = |index: usize| {
            if !self.slots.is_special(index) {
                return true;
            }
            let lead = self.extras[index].lead;
            let of_it =
                |&slot: &usize| self.slots.is_special(slot) && self.extras[slot].lead == lead;
            let present = slots.iter().filter(|slot| of_it(slot)).count();
            slots.contains(&usize::from(lead))
                && present == usize::from(self.extras[usize::from(lead)].remaining)
        };
        commands.retain(|sqe| self.slots.find(sqe.cid()).is_some_and(is_whole));
    }

    /// Ends every request with [`CommandError::Reset`]. Call only once the device can no longer access their
    /// memory.
    pub(crate) fn end_all(&mut self, done: &mut impl FnMut(Completion<B>)) -> usize {
        let unsent = self.slots_of(&self.unsent());
        self.sq.rewind();
        let occupied: Vec<usize> = self.slots.occupied().collect();
        let ended = self.end(&occupied, &unsent, done);
        assert_eq!(self.slots.in_flight(), 0, "every command is ended");
        ended
    }

    /// Ends all requests but those of the commands `kept`, which stay in flight.
    pub(crate) fn end_others(
        &mut self,
        kept: &[Sqe],
        done: &mut impl FnMut(Completion<B>),
    ) -> usize {
        let (kept, unsent) = (self.slots_of(kept), self.slots_of(&self.unsent()));
        let others = self.slots.occupied().filter(|index| !kept.contains(index));
        let others: Vec<usize> = others.collect();
        let ended = self.end(&others, &unsent, done);
        assert_eq!(self.slots.in_flight(), kept.len(), "what is kept stays in flight");
        ended
    }

    fn slots_of(&self, commands: &[Sqe]) -> BTreeSet<usize> {
        let slots: BTreeSet<usize> =
            commands.iter().filter_map(|sqe| self.slots.find(sqe.cid())).collect();
        debug_assert!(slots.len() <= self.slots.in_flight(), "a slot is one command's");
        slots
    }

    /// Ends the commands in the slots `ending`, which are whole requests.
    fn end(
        &mut self,
        ending: &[usize],
        unsent: &BTreeSet<usize>,
        done: &mut impl FnMut(Completion<B>),
    ) -> usize {
        for &index in ending {
            if !self.slots.is_special(index) {
                self.make_special(index);
            }
            let lead = usize::from(self.extras[index].lead);
            self.release(index, lead, false);
            // Known only once all commands of the request were examined.
            self.extras[lead].wrote |= !unsent.contains(&index) && self.may_write(index);
        }
        self.stats.resets += ending.len() as u64;
        let before = self.slots.in_flight();
        let mut ended = 0;
        for &index in ending {
            let may_have_written = self.extras[index].wrote;
            if let Some(buffer) = self.slots.vacate(index) {
                ended += 1;
                done(Completion { buffer, result: Err(CommandError::Reset { may_have_written }) });
            }
        }
        assert!(ended <= ending.len(), "a request has a command");
        assert_eq!(self.slots.in_flight() + ending.len(), before, "each command ends once");
        ended
    }
}

/// Translates the status of a command that the driver was ending.
fn explain(error: CommandError, ending: Ending, may_have_written: bool) -> CommandError {
    let CommandError::Status(status) = error else { return error };
    let is_aborted = status.is(Status::COMMAND_ABORT_REQUESTED)
        || status.is(Status::COMMAND_ABORTED_BY_HOST)
        || status.is(Status::ABORTED_SQ_DELETION);
    match ending {
        Ending::Overdue { .. } if is_aborted => CommandError::TimedOut { may_have_written },
        Ending::Deleted if is_aborted => CommandError::Reset { may_have_written },
        Ending::Not | Ending::Overdue { .. } | Ending::Deleted => error,
    }
}

/// Returns the prebuilt PRP lists of a piece that lies in one segment.
fn prebuilt_for<'a, B: IoBuffer>(piece: &Piece, buffer: &'a B) -> Option<&'a PrebuiltPrps> {
    let Position { segment, offset } = piece.start;
    let inside = offset + piece.bytes <= buffer.segment(segment).len;
    if inside { buffer.prebuilt(segment) } else { None }
}

/// Returns the number of list pages to borrow for a piece.
fn lists_of<B: IoBuffer>(piece: &Piece, buffer: &B) -> usize {
    match piece.form {
        Form::Prp { .. } if prebuilt_for(piece, buffer).is_some() => 0,
        _ => piece.list_pages(),
    }
}

fn prebuilt_pointer<B: IoBuffer>(piece: &Piece, buffer: &B) -> Pointer {
    let prebuilt =
        prebuilt_for(piece, buffer).expect("no list was borrowed because there is a prebuilt one");
    let prp1 = Iova(buffer.segment(piece.start.segment).iova.0 + piece.start.offset);
    let second = Iova((prp1.0 | (PAGE_BYTES - 1)) + 1);
    assert!(prp1.0 + piece.bytes > second.0, "a piece with a list goes beyond its first page");
    Pointer::prps(prp1, prebuilt.list(second, prp1.0 + piece.bytes - second.0))
}
