//! Records of a `durable` store that are written with the data that they describe, so that one flush covers both and no
//! write waits for another.
//!
//! A put of a new key whose data go to the device at once is recorded when it begins. Its block does not count as
//! written before its data are: no flush covers it earlier (`log`). A power cut may leave the record without
//! its data. It supersedes nothing, so all that is lost is a put that was not acknowledged, and its first read is a
//! counted miss. A record that supersedes an object, or a put that is not visible yet, waits until its data are flushed
//! ([`super`]). A removal that is not durable yet does no harm: its record is in the same journal, in
//! front of this one.
//!
//! If the data cannot be written, the record is *taken back*: one behind it says that the key has nothing. Room for
//! that is reserved while the data are in flight.

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use super::due::Event;
use crate::io::lane::Load;
use crate::media::record::{Record, record_bytes};
use crate::shard::answer::Done;
use crate::shard::change::NewObject;
use crate::shard::parts::Parts;
use crate::shard::request::Condition;

/// The longest object that is recorded before its data are written: the other puts of its block wait for them.
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// Returns the room for the record that takes back that of a put.
fn removal_bytes(new: &NewObject) -> u64 {
    record_bytes(new.key.as_bytes().len(), 0) as u64
}

impl<Q: CommandQueue<Load>, R> Parts<Q, R> {
    /// Takes the turn of a put whose data are about to be written, and records it if it may be recorded before they
    /// are.
    pub(crate) fn begin_put(&mut self, now: Time, new: &mut NewObject) {
        new.turn = self.order.take_turn(new.hash);
        self.order.expect_no_more(new.hash);
        self.room.promise(new);
        if self.records_ahead(new) {
            self.record_ahead(now, new);
        }
    }

    /// Returns whether a put that begins is recorded now: its key is new and nothing of it is under way, its data are
    /// written soon, and the journal has room to take the record back. Not on a sparse file: if the file system is
    /// full, the data are to find that out before the journal does, without which its shard is out of service. Nor on a
    /// device that verifies data itself ([`Protection`](adit_driver::Protection)): what a kill leaves there of a former
    /// object would pass for this one.
    fn records_ahead(&self, new: &NewObject) -> bool {
        let lane = self.lanes.of(new.object.place.device);
        self.log.is_strict()
            && new.object.bytes <= AHEAD_BYTES_MAX
            && new.condition == Condition::Always
            && self.order.is_first(new.hash, new.turn)
            && !self.supersedes(new)
            && self.log.has_room(removal_bytes(new))
            && !self.lanes.home().info.may_lack_space
            && lane.info.protection.is_none()
            && !lane.has_reads()
    }

    /// Records a put whose data are about to be written. It keeps its turn until they are.
    fn record_ahead(&mut self, now: Time, new: &mut NewObject) {
        self.log.reserve(removal_bytes(new));
        new.object.version = self.objects.next_version(now);
        self.order.hide(new.hash);
        let sequence = self.append_put(now, new);
        self.log.await_data(sequence);
        new.recorded = Some(sequence);
    }

    /// Handles the end of the writes of a put that block `recorded` describes.
    pub(super) fn finish_recorded(
        &mut self,
        now: Time,
        recorded: u64,
        new: Box<NewObject>,
        answer: Done<R>,
    ) {
        self.log.unreserve(removal_bytes(&new));
        if answer.result.is_ok() {
            self.due.wait(recorded, Event::Put(new, Some(answer)));
        } else {
            // A put that failed never comes back.
            let sequence = self.take_back(now, new);
            self.due.wait(sequence, Event::Answer(answer));
        }
        self.log.data_ended(recorded);
    }

    /// Takes back the record of a put whose data are lost, and returns the block that does.
    fn take_back(&mut self, now: Time, new: Box<NewObject>) -> u64 {
        let is_there = self.objects.find(new.hash, &new.key).is_some();
        assert!(!is_there, "its key was new, and it kept its turn");
        self.order.unhide(new.hash);
        self.room.settle(&new);
        self.objects.uncharge((&new.key, new.hash), &new.object);
        let (key, place) = (new.key.as_bytes(), new.object.place);
        let sequence = self.log.append(now, &Record::Delete { key, place });
        self.objects.spaces_mut().bury(sequence, new.object);
        self.boxes.keep(new);
        sequence
    }
}
