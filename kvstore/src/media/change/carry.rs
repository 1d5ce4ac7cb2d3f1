//! Carries out the removal of a device: copies objects and writes checkpoints.

use adit_driver::paths::CommandQueue;

use super::plan::{self, Move, Plan};
use super::{Changed, Leaving, place_without};
use crate::error::{Error, Result};
use crate::io::lane::{LANE_BUFFER_BYTES, Load};
use crate::media::block::{BODY_BLOCK_BYTES, Lineage};
use crate::media::checkpoint::{CHECKPOINT_HEADER_BYTES, CheckpointWriter, Pushed};
use crate::media::format::{Set, Waiting};
use crate::media::geometry::Geometry;
use crate::media::record::Record;
use crate::media::recovery::{Areas, Media};
use crate::media::survey::{self, ShardSurvey, SurveyedObject};
use crate::model::object::{LayoutId, Object, TenantId};
use crate::model::place::{Place, UNIT_BYTES};

/// Faults that an opening repairs by itself and that cost no listed object.
const HARMLESS: [&str; 3] = ["checkpoint-header", "checkpoint", "journal-cut"];

/// Reads a shard.
///
/// # Errors
/// [`Error::Media`] if it is damaged, or a device does not answer.
pub(super) fn survey_of<Q: CommandQueue<Load>>(
    waiting: &mut Waiting<'_, Q>,
    set: &Set,
    shard: u16,
) -> Result<ShardSurvey> {
    let lineage = Lineage { store: set.store_id(), epoch: set.agreed().epoch, shard };
    let survey = survey::shard_of(waiting, set.geometry(), &lineage, set.witness(shard))?;
    let mut faults = survey.faults.iter();
    let damage = match faults.find(|fault| !HARMLESS.contains(&fault.code)) {
        Some(fault) => fault.to_string(),
        None => match plan::misplaced(&survey) {
            Some(found) => format!("object '{}' cannot be where it is", found.key),
            None => return Ok(survey),
        },
    };
    let why = format!("shard {shard} is damaged: {damage}");
    let fix = "open the store once, which drops what is damaged (as 'adit kv ls' does); 'adit kv check' tells more";
    Err(waiting.refused(survey.areas.device.into(), why, fix))
}

/// A removal in progress.
pub(super) struct Carrier<'a, 'w, Q> {
    pub(super) waiting: &'a mut Waiting<'w, Q>,
    pub(super) set: &'a Set,
    /// The device that is removed.
    pub(super) device: u8,
    pub(super) done: Changed,
}

/// Where a checkpoint is written, and what its header says.
struct CheckpointTarget {
    areas: Areas,
    slot: usize,
    number: u64,
    lineage: Lineage,
}

impl<Q: CommandQueue<Load>> Carrier<'_, '_, Q> {
    /// Moves the shard's objects off the device and off the units of the shard's new home. The old store stays whole.
    pub(super) fn carry(
        &mut self,
        shard: u16,
        home: Option<Place>,
        leaving: Leaving,
    ) -> Result<()> {
        let mut survey = survey_of(self.waiting, self.set, shard)?;
        let metadata_units = self.set.geometry().metadata_units();
        let plan = Plan::new(&survey, self.device, home, leaving, metadata_units);
        let Plan { moves, mut lost, losses } = plan;
        if moves.is_empty() && lost.is_empty() {
            return Ok(());
        }
        self.waiting.void(&survey.areas, &survey.recovered)?;
        let mut target = CheckpointTarget {
            areas: survey.areas.clone(),
            slot: survey.recovered.next_slot,
            number: survey.recovered.next_number,
            lineage: Lineage { store: self.set.store_id(), epoch: self.set.agreed().epoch, shard },
        };
        if !lost.is_empty() {
            self.done.lost_objects += losses.objects;
            self.done.lost_bytes += losses.units * UNIT_BYTES;
            // The units of lost objects may be overwritten once the removal is durable.
            self.write_checkpoint(&target, &survey, &Objects::without(&survey, &lost))?;
            target.slot = 1 - target.slot;
            target.number += 1;
        }
        for one in moves {
            if !self.move_object(&mut survey, one)? {
                lost.push(one.object);
            }
        }
        self.write_checkpoint(&target, &survey, &Objects::without(&survey, &lost))
    }

    /// Copies an object to its new place and updates `survey`. Returns false if the bytes are damaged.
    fn move_object(&mut self, survey: &mut ShardSurvey, to: Move) -> Result<bool> {
        let found = &survey.objects[to.object];
        let moved = SurveyedObject {
            object: Object { place: to.place, ..found.object },
            slab_base: to.slab_base,
            ..found.clone()
        };
        let bytes = self.copy(survey, found, &moved)?;
        if survey.verify(self.waiting, &moved)? {
            self.done.moved_objects += 1;
            self.done.moved_bytes += bytes;
            survey.objects[to.object] = moved;
            return Ok(true);
        }
        if !survey.verify(self.waiting, found)? {
            tracing::warn!("object '{}' is damaged; it is left out", found.key);
            self.done.damaged_objects += 1;
            self.done.lost_objects += 1;
            self.done.lost_bytes += bytes;
            return Ok(false);
        }
        Err(self.unwritten(to.place.device, &format!("object '{}'", found.key)))
    }

    /// Copies an object's units. Returns their bytes.
    fn copy(
        &mut self,
        survey: &ShardSurvey,
        from: &SurveyedObject,
        to: &SurveyedObject,
    ) -> Result<u64> {
        let (source, target) = (from.object.place.device, to.object.place.device);
        let step_units = LANE_BUFFER_BYTES as u64 / UNIT_BYTES;
        let (mut room, mut bytes) = (Vec::new(), 0);
        for (from, to) in survey.runs_of(from).into_iter().zip(survey.runs_of(to)) {
            assert_eq!(from.end - from.start, to.end - to.start, "one layout has one shape");
            let mut at = 0;
            while at < from.end - from.start {
                let count = step_units.min(from.end - from.start - at);
                room.resize((count * UNIT_BYTES) as usize, 0);
                self.waiting.read(source, from.start + at, &mut room)?;
                self.waiting.write_run(target, to.start + at, &room)?;
                at += count;
                bytes += count * UNIT_BYTES;
            }
        }
        Ok(bytes)
    }

    /// Writes a shard's metadata for the store without the device, whose epoch is `epoch`. `home` is their new place,
    /// if they lay on the device.
    pub(super) fn found_anew(
        &mut self,
        shard: u16,
        home: Option<Place>,
        next: &Geometry,
        epoch: u64,
    ) -> Result<()> {
        let survey = survey_of(self.waiting, self.set, shard)?;
        let home = home.map(|Place { device, unit }| (device, unit..unit + next.metadata_units()));
        let mut objects = survey.objects.iter();
        let is_left = |found: &SurveyedObject| {
            plan::is_in_the_way(&survey, found, self.device, home.as_ref())
        };
        if objects.any(is_left) {
            return Err(self.unwritten(survey.areas.device, &format!("shard {shard}'s checkpoint")));
        }
        let objects = Objects { removed: Some(self.device), ..Objects::without(&survey, &[]) };
        let lineage = Lineage { store: self.set.store_id(), epoch, shard };
        let (number, slot) = (survey.recovered.next_number, survey.recovered.next_slot);
        let Some((device, _)) = home else {
            let target = CheckpointTarget { areas: survey.areas.clone(), slot, number, lineage };
            return self.write_checkpoint(&target, &survey, &objects);
        };
        // Objects lay where the ring and both slots are, so zero them: no remains may look like a block or a header.
        let areas = Areas { device, ..next.areas(shard) };
        self.waiting.zero(device, areas.journal.clone())?;
        for (slot, number) in [0, 1].into_iter().zip(number..) {
            let target = CheckpointTarget { areas: areas.clone(), slot, number, lineage };
            self.write_checkpoint(&target, &survey, &objects)?;
        }
        Ok(())
    }

    fn unwritten(&self, device: u8, what: &str) -> Error {
        let why = format!("{what} reads back otherwise than it was written");
        let fix = "check the drive and its cables, then remove the device again";
        self.waiting.refused(device.into(), why, fix)
    }

    /// Writes a checkpoint from which the journal continues at its present end. Flushes everything before it writes and
    /// flushes the header.
    fn write_checkpoint(
        &mut self,
        target: &CheckpointTarget,
        survey: &ShardSurvey,
        objects: &Objects<'_>,
    ) -> Result<()> {
        let (device, slot) = (target.areas.device, target.areas.slots[target.slot].clone());
        let session = self.set.agreed().sequence;
        let mark = survey.recovered.next;
        let mut writer =
            CheckpointWriter::begin(slot, target.lineage, session, target.number, mark);
        let mut block = vec![0; BODY_BLOCK_BYTES];
        let block: &mut [u8; BODY_BLOCK_BYTES] =
            block.as_mut_slice().try_into().expect("it is as long as a block");
        let mut full = false;
        objects.each(&mut |record| {
            let mut pushed = writer.push(record);
            if pushed == Pushed::BlockFull {
                let unit = writer.block(block).expect("a full block has records");
                self.waiting.write_run(device, unit, &block[..])?;
                pushed = writer.push(record);
            }
            full |= pushed != Pushed::Taken;
            Ok(())
        })?;
        if full {
            let why = "a checkpoint has no room for the records of its shard";
            return Err(self.waiting.refused(device.into(), why, "remove some objects first"));
        }
        if let Some(unit) = writer.block(block) {
            self.waiting.write_run(device, unit, &block[..])?;
        }
        self.waiting.flush()?;
        let mut header = [0; CHECKPOINT_HEADER_BYTES];
        let unit = writer.finish(mark, &mut header);
        self.waiting.write_run(device, unit, &header)?;
        self.waiting.flush()
    }
}

/// The contents of a checkpoint.
struct Objects<'a> {
    survey: &'a ShardSurvey,
    /// Positions of objects, oldest first.
    kept: Vec<usize>,
    /// The removed device; written device indices leave it out.
    removed: Option<u8>,
}

impl<'a> Objects<'a> {
    fn without(survey: &'a ShardSurvey, lost: &[usize]) -> Objects<'a> {
        let mut is_kept = vec![true; survey.objects.len()];
        lost.iter().for_each(|at| is_kept[*at] = false);
        let mut kept: Vec<usize> = (0..survey.objects.len()).filter(|at| is_kept[*at]).collect();
        kept.sort_unstable_by_key(|at| survey.objects[*at].order);
        Objects { survey, kept, removed: None }
    }

    /// Passes all records to `each`.
    fn each(&self, each: &mut dyn FnMut(&Record<'_>) -> Result<()>) -> Result<()> {
        for (id, name, quota) in &self.survey.tenants {
            each(&Record::Tenant { id: TenantId(*id), name, quota: *quota })?;
        }
        for (id, layout) in &self.survey.layouts {
            each(&Record::Layout { id: LayoutId(*id), bytes: &layout.encode() })?;
        }
        for at in &self.kept {
            let mut put = self.survey.objects[*at].put();
            if let Some(removed) = self.removed {
                put.object.place = place_without(put.object.place, removed);
            }
            each(&Record::Put(put))?;
        }
        Ok(())
    }
}
