//! Opening a shard, which rebuilds its tables from the media, and reattaching a device that was lost.

mod rebuild;
mod renewed;
mod replaced;
mod tables;

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

pub use self::tables::Recovery;
use self::tables::Tables;
use super::Shard;
use super::checkpoints::{Checkpoints, NextCheckpoint};
use super::lanes::Lanes;
use super::log::Log;
use super::objects::{FoundTables, Objects};
use super::options::ShardOptions;
use super::parts::Parts;
use super::reads::Reads;
use super::room::Room;
use super::sweeps::Sweeps;
use super::writes::Writes;
use crate::error::{Error, Result};
use crate::io::lane::{Lane, Load};
use crate::media::block::{JOURNAL_BLOCK_BYTES, Lineage};
use crate::media::device_set::Agreed;
use crate::media::format::{Set, Waiting, begin_session};
use crate::media::geometry::Geometry;
use crate::media::journal::{FIRST_SEQUENCE, Journal, Mark};
use crate::media::record::Record;
use crate::media::recovery::{Areas, Recovered, recover};
use crate::model::options::Durability;

impl<Q: CommandQueue<Load>, R> Shard<Q, R> {
    /// Opens shard `shard` of a store. Open shard 0 first: it records on the media that a session has begun.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for an invalid option; [`crate::Error::Media`] if a device does not answer.
    pub fn open(
        shard: u16,
        mut lanes: Vec<Lane<Q>>,
        set: &Set,
        options: ShardOptions,
        clock: &mut dyn FnMut() -> Time,
    ) -> Result<(Shard<Q, R>, Recovery)> {
        let geometry = set.geometry();
        assert_eq!(lanes.len(), usize::from(geometry.devices()), "a lane to each device");
        options.watermarks.check()?;
        let agreed = set.next_session(options.durability);
        let lineage = Lineage { store: set.store_id(), epoch: agreed.epoch, shard };
        let mut tables = Tables::new(shard, set, &options)?;
        let areas = geometry.areas(shard);
        let mut waiting = Waiting { lanes: &mut lanes, clock };
        let mut recovered = match options.durability {
            Durability::Volatile => None,
            _ => {
                let witness = set.witness(shard);
                Some(recover(&mut waiting, &mut tables, &lineage, &areas, witness)?)
            }
        };
        // Data just read may exist only in a drive's volatile cache.
        waiting.flush()?;
        if shard == 0 {
            begin_session(&mut lanes, set, options.durability, clock)?;
        }
        if let Some(recovered) = &mut recovered {
            let mut waiting = Waiting { lanes: &mut lanes, clock };
            if recovered.needs_voucher() {
                vouch(&mut waiting, &areas, agreed, recovered)?;
            }
            waiting.void(&areas, recovered)?;
        }
        let now = clock();
        let mut recovery = Recovery { recovered, objects: 0, dropped: tables.dropped, outdated: 0 };
        let objects_max = tables.objects_max();
        let (found, lost) = tables.settle(&mut recovery);
        let keeps_outdated = options.keep_outdated;
        let log = new_log(shard, geometry, &options, &recovery, agreed, now);
        let lanes = Lanes::new(lanes, geometry.home(shard), options.durability);
        let limits = (objects_max, geometry.record_bytes_max());
        let mut opened = join((lanes, log), (found, limits), options, now);
        let Parts { objects, log, .. } = &mut opened.parts;
        opened.checkpoints = recovery.recovered.as_ref().map(|recovered| {
            let (number, slot) = (recovered.next_number, recovered.next_slot);
            let next = NextCheckpoint { areas, lineage, session: agreed.sequence, number, slot };
            let begin = recovered.checkpoint.map_or(FIRST_SEQUENCE, |chosen| chosen.begin.sequence);
            let mut checkpoints = Checkpoints::new(next, begin, objects, now);
            if recovered.is_damaged() {
                checkpoints.hurry(log);
            }
            checkpoints
        });
        tell_damage(&mut opened.parts, shard, &recovery, keeps_outdated);
        let reverted = tell_reverted(shard, &recovery);
        // Dropped objects stay dropped, even if the lost block becomes readable again.
        if reverted > 0 || recovery.outdated > 0 && !keeps_outdated {
            checkpoint_at_once(&mut opened, clock)?;
        }
        let Parts { log, objects, .. } = &mut opened.parts;
        for (key, place) in lost {
            if log.has_room_for_small() {
                log.append(now, &Record::Delete { key: &key, place });
            }
        }
        recovery.objects = u64::from(objects.index().len());
        Ok((opened, recovery))
    }

    /// Returns whether a device failed and was not reattached.
    pub fn has_failed(&self, device: u8) -> bool {
        let lanes = &self.parts.lanes;
        usize::from(device) < lanes.len() && !lanes.works(device)
    }

    /// Replaces the lane of a failed device and returns the old one. The caller must have checked the superblocks on
    /// the device.
    ///
    /// Its objects were misses meanwhile and become hits again if their bytes are still those that were put. A device
    /// that lost power for a moment has forgotten unflushed data. On the journal's device that could lose records
    /// behind the hole at the next opening, so all blocks that are not durable are written again before any later
    /// ones, and a checkpoint in progress starts over.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the device still works, still has commands in flight, or has a different size.
    pub fn attach(&mut self, device: u8, lane: Lane<Q>) -> Result<Lane<Q>> {
        self.parts.lanes.check_attach(device, &lane)?;
        self.wake();
        // The device may have failed since the last turn.
        self.parts.note_failures();
        let device = usize::from(device);
        if self.parts.lanes.is_home(device) {
            self.parts.fail_all();
            self.checkpoints.iter_mut().for_each(Checkpoints::abandon);
            self.parts.log.write_again();
        }
        Ok(self.parts.lanes.replace(device, lane))
    }
}

/// Assembles a shard from these tables: at most `objects_max` objects, whose records may take `record_bytes_max` in a
/// checkpoint.
fn join<Q: CommandQueue<Load>, R>(
    (lanes, log): (Lanes<Q>, Log),
    (found, (objects_max, record_bytes_max)): (FoundTables, (u32, u64)),
    options: ShardOptions,
    now: Time,
) -> Shard<Q, R> {
    let limits = (objects_max, options.capacity_objects.is_none());
    let capacity_units = found.spaces.capacity_units();
    let room = Room::new(limits, record_bytes_max, options.watermarks, capacity_units);
    let objects = Objects::new(found, options.removals, options.wall_at_zero);
    Shard {
        parts: Parts::new(lanes, objects, log, room),
        writes: Writes::new(now, options.write_bytes_per_day),
        reads: Reads::new(options.callers_verify),
        sweeps: Sweeps::default(),
        checkpoints: None,
        rests_until: Time::ZERO,
    }
}

/// Takes a checkpoint before anything else happens, waiting for the devices.
///
/// # Errors
/// [`Error::Media`] if the journal's device fails.
fn checkpoint_at_once<Q: CommandQueue<Load>, R>(
    shard: &mut Shard<Q, R>,
    clock: &mut dyn FnMut() -> Time,
) -> Result<()> {
    let count = |shard: &Shard<Q, R>| shard.checkpoints.as_ref().map(|it| it.stats().checkpoints);
    let before = count(shard);
    let log = &mut shard.parts.log;
    shard.checkpoints.iter_mut().for_each(|checkpoints| checkpoints.hurry(log));
    while count(shard) == before {
        let now = clock();
        shard.take_finished(now);
        let pressure = shard.pressure();
        let Shard { parts, checkpoints, .. } = &mut *shard;
        parts.journal_step(now, pressure);
        checkpoints.iter_mut().for_each(|checkpoints| checkpoints.step(parts, now));
        parts.lanes.send(now);
        let home = parts.lanes.home();
        if let Some(why) = home.failure() {
            let (device, why) = (home.info.device.clone(), why.to_owned());
            let fix = "look at the drive's health and try again".to_owned();
            return Err(Error::Media { device, why, fix });
        }
    }
    Ok(())
}

/// Counts and reports losses by damage to the journal and the checkpoints.
fn tell_damage<Q, R>(
    parts: &mut Parts<Q, R>,
    shard: u16,
    recovery: &Recovery,
    keeps_outdated: bool,
) {
    let damaged = recovery.recovered.as_ref().filter(|recovered| recovered.is_damaged());
    let Some(recovered) = damaged else { return };
    let Recovered { lost_blocks, .. } = recovered;
    let (outdated, objects) = (recovery.outdated, parts.objects.index().len());
    parts.log.count_damage(*lost_blocks, outdated);
    if recovered.is_index_lost() {
        tracing::warn!(
            "shard {shard}: its index cannot be read, neither the checkpoints nor the journal: it held objects and \
             opens with none; check the drive"
        );
        return;
    }
    let became = if keeps_outdated {
        "are kept, as keep_outdated says: they may be older versions, or deleted ones"
    } else {
        "are dropped"
    };
    tracing::warn!(
        "shard {shard}: {lost_blocks} flushed blocks of the journal cannot be read: {outdated} objects, which these \
         blocks may have replaced or deleted, {became}; {objects} objects are left; check the drive"
    );
}

/// Returns and reports the number of objects whose newest version a power cut has taken.
fn tell_reverted(shard: u16, recovery: &Recovery) -> u64 {
    let reverted = recovery.recovered.as_ref().map_or(0, |recovered| recovered.reverted);
    if reverted > 0 {
        tracing::warn!(
            "shard {shard}: a power cut took the newest version of {reverted} objects; what they replaced is back"
        );
    }
    reverted
}

/// Writes and flushes a block that states which blocks of the journal were flushed.
fn vouch<Q: CommandQueue<Load>>(
    waiting: &mut Waiting<'_, Q>,
    areas: &Areas,
    agreed: Agreed,
    recovered: &mut Recovered,
) -> Result<()> {
    let (next, tail) = (recovered.next, recovered.tail);
    let mut journal =
        Journal::new(areas.journal.clone(), agreed.epoch, agreed.sequence, next, tail);
    let mut bytes = [0; JOURNAL_BLOCK_BYTES];
    journal.vouch();
    if let Some(write) = journal.take(&mut bytes) {
        waiting.write_run(areas.device, write.unit, &bytes)?;
        waiting.flush()?;
        recovered.next = journal.mark();
    }
    Ok(())
}

fn new_log(
    shard: u16,
    geometry: &Geometry,
    options: &ShardOptions,
    recovery: &Recovery,
    agreed: Agreed,
    now: Time,
) -> Log {
    let ring = geometry.journal(shard).1;
    let journal = recovery.recovered.as_ref().map(|recovered| {
        let next: Mark = recovered.next;
        Journal::new(ring, agreed.epoch, agreed.sequence, next, recovered.tail)
    });
    let intervals = (options.seal_interval, options.flush_interval);
    Log::new(journal, options.durability, intervals, now)
}
