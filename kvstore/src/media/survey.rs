//! Surveys a store's devices without opening the store, to check or inspect it.
//!
//! 1. Both copies of each device's superblock, and whether the devices are those of one store.
//! 2. For each shard, the checkpoint and the journal, replayed as by an opening.
//! 3. Each object against its neighbours and the data area: extents are disjoint and inside it, layouts and tenants
//!    exist, and each piece has a checksum.
//!
//! The result lists [`Fault`]s. A survey writes nothing. Only [`ShardSurvey::verify`], a scrub, reads the objects'
//! data. If another process has the store open, a survey may mix several moments: [`heads_in_use`] and [`Looks`] repeat
//! it until it shows one moment, and distinguish data in motion from damage.

mod in_use;
mod objects;
mod space;
mod verify;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;

pub use in_use::{Looks, Moment, heads_in_use};
use objects::Objects;
pub use objects::SurveyedObject;
pub use space::Space;

pub use crate::media::heads::{DeviceFacts, Heads, head, heads};
pub use crate::media::recovery::Media;
pub use crate::media::superblock::{Absent, Copies};

use crate::error::Result;
use crate::media::block::{Lineage, Void};
use crate::media::geometry::Geometry;
use crate::media::recovery::{Areas, Recovered, Witness, recover};
use crate::model::layout::Layout;
use crate::model::object::LayoutId;
use crate::model::options::Quota;
use crate::model::place::UNIT_BYTES;

/// Returns whether these bytes begin a superblock of a store, whole or damaged, of any version. A store's device has
/// one in its first and one in its last whole unit of 4096 bytes.
pub fn is_superblock(bytes: &[u8]) -> bool {
    bytes.starts_with(&super::superblock::MAGIC)
}

/// Returns whether a file or block device belongs to a store, by either superblock. Moves its position.
///
/// # Errors
/// The reason why its ends cannot be read.
pub fn is_of_store(file: &File) -> io::Result<bool> {
    let units = (&*file).seek(SeekFrom::End(0))? / UNIT_BYTES;
    let mut start = [0; super::superblock::MAGIC.len()];
    for unit in [0, units.saturating_sub(1)] {
        let bytes = file.read_at(&mut start, unit * UNIT_BYTES)?;
        if is_superblock(&start[..bytes]) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Something wrong with a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// A code for programs.
    pub code: &'static str,
    /// A sentence for people.
    pub text: String,
    /// Number of objects lost, as far as known.
    pub objects_lost: u64,
    /// Identifies the fault within its kind where its text may vary between looks.
    place: Option<u64>,
}

impl Fault {
    fn new(code: &'static str, objects_lost: u64, text: impl ToString) -> Fault {
        Fault { code, text: text.to_string(), objects_lost, place: None }
    }

    fn at(self, place: u64) -> Fault {
        Fault { place: Some(place), ..self }
    }

    /// Returns whether `other` is the same fault, seen at another time.
    fn is_same(&self, other: &Fault) -> bool {
        let is_place = self.place.is_some() && self.place == other.place;
        self.code == other.code && (is_place || self.text == other.text)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The contents of a shard.
#[derive(Clone, Debug)]
pub struct ShardSurvey {
    /// The areas of its metadata.
    pub areas: Areas,
    /// The ranges of units of its data on each device.
    pub data: Vec<Vec<Range<u64>>>,
    /// The result of replaying its checkpoint and journal.
    pub recovered: Recovered,
    /// Its objects, by key.
    pub objects: Vec<SurveyedObject>,
    /// Its tenants: id, name, and quota. Only quotas of shard 0 count.
    pub tenants: Vec<(u8, String, Option<Quota>)>,
    /// Its layouts by id.
    pub layouts: BTreeMap<u8, Layout>,
    /// The use of its space.
    pub space: Space,
    /// Its faults.
    pub faults: Vec<Fault>,
}

impl ShardSurvey {
    /// Returns the layout of an object; `None` if the object is plain, or its layout is missing.
    pub fn layout_of(&self, found: &SurveyedObject) -> Option<&Layout> {
        let is_plain = found.object.layout == LayoutId::PLAIN;
        self.layouts.get(&found.object.layout.0).filter(|_| !is_plain)
    }

    /// Returns the units that an object takes, as one run, or one for each layer if its layout interleaves them.
    pub(crate) fn runs_of(&self, found: &SurveyedObject) -> Vec<Range<u64>> {
        space::runs(&found.object, self.layout_of(found))
    }

    /// Returns the name of an object's tenant; empty for the default tenant or a missing one.
    pub fn tenant_of(&self, found: &SurveyedObject) -> &str {
        let tenant = self.tenants.iter().find(|(id, ..)| *id == found.object.tenant.0);
        tenant.map_or("", |(_, name, _)| name)
    }
}

/// Surveys one shard.
///
/// # Errors
/// If a device does not answer; damage is in the result.
///
/// # Panics
/// If there is no such shard.
pub fn shard<M: Media>(media: &mut M, heads: &Heads, shard: u16) -> Result<ShardSurvey> {
    let witness = heads.last_stop().map(|stop| stop.witness(shard));
    let store = heads.copies[0].superblock.store;
    let lineage = Lineage { store, epoch: heads.agreed.epoch, shard };
    shard_of(media, &heads.geometry, &lineage, witness)
}

/// Surveys the shard of a lineage.
///
/// # Errors
/// As [`shard`].
pub(crate) fn shard_of<M: Media>(
    media: &mut M,
    geometry: &Geometry,
    lineage: &Lineage,
    witness: Option<Witness>,
) -> Result<ShardSurvey> {
    let shard = lineage.shard;
    let areas = geometry.areas(shard);
    let data = geometry.data_of(shard);
    let mut objects = Objects::new(data.clone());
    let recovered = recover(media, &mut objects, lineage, &areas, witness)?;
    let outdated = objects.drop_outdated();
    let mut faults = of_recovery(shard, &recovered, outdated);
    faults.append(&mut objects.faults());
    let space = Space::of(&objects, &data, &mut faults);
    let (tenants, layouts) = (objects.tenants(), objects.layouts());
    let objects = objects.into_list();
    Ok(ShardSurvey { areas, data, recovered, objects, tenants, layouts, space, faults })
}

/// Returns the faults of the superblocks. Each device must have one whole copy.
pub fn of_heads(heads: &Heads, devices: &[DeviceFacts]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (device, copies) in devices.iter().zip(&heads.copies) {
        for (name, bad) in ["first", "last"].into_iter().zip(&copies.bad) {
            let Some(absent) = bad else { continue };
            let text = format!(
                "{}: the copy of the superblock in its {name} unit is bad ({absent}); the other one is used, and \
                 the next opening rewrites it",
                device.device
            );
            faults.push(Fault::new("superblock-copy", 0, text));
        }
    }
    faults
}

fn of_recovery(shard: u16, recovered: &Recovered, outdated: u64) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (slot, _) in recovered.damaged_headers.iter().enumerate().filter(|(_, bad)| **bad) {
        let text = format!(
            "shard {shard}: the header of checkpoint slot {slot} of 2 is damaged; what is used is {}",
            used(recovered)
        );
        faults.push(Fault::new("checkpoint-header", 0, text).at(slot as u64));
    }
    for (number, void) in &recovered.passed_over {
        let text = format!(
            "shard {shard}: checkpoint {number} cannot be used ({}); what is used is {}",
            why(*void),
            used(recovered)
        );
        faults.push(Fault::new("checkpoint", 0, text).at(*number));
    }
    let torn = matches!(recovered.cut, Some(Void::Damaged | Void::Records(_)));
    if torn || recovered.blocks_behind > 0 {
        let text = format!(
            "shard {shard}: the journal is cut at block {}: what was written after it is lost, {} whole blocks of it \
             at least",
            recovered.next.sequence, recovered.blocks_behind
        );
        faults.push(Fault::new("journal-cut", 0, text).at(recovered.next.sequence));
    }
    let becomes = format!(
        "{outdated} objects may have been replaced or deleted since they were stored, and the next opening drops them \
         unless it is told to keep them ('adit kv serve --keep-outdated', OpenOptions::keep_outdated)"
    );
    if recovered.lost_blocks > 0 {
        let text = format!(
            "shard {shard}: {} flushed blocks of the journal cannot be read: objects that only they name are missing, \
             and {becomes}",
            recovered.lost_blocks
        );
        faults.push(Fault::new("journal-lost", outdated, text));
    }
    if recovered.is_inconsistent {
        let lost = if recovered.lost_blocks > 0 { 0 } else { outdated };
        let text = format!(
            "shard {shard}: the journal ends at block {}, before the end of every checkpoint: {becomes}",
            recovered.next.sequence
        );
        faults.push(Fault::new("inconsistent", lost, text));
    }
    if recovered.is_index_lost() {
        let text = format!(
            "shard {shard}: neither a checkpoint nor the journal can be read: the objects that it held are lost, and the \
             next opening begins with none"
        );
        faults.push(Fault::new("index-lost", 0, text));
    }
    faults
}

fn used(recovered: &Recovered) -> String {
    let from = match recovered.checkpoint {
        Some(chosen) => format!("checkpoint {}", chosen.number),
        None => "no checkpoint".to_owned(),
    };
    format!("{from} and {} blocks of the journal", recovered.journal_blocks)
}

fn why(void: Void) -> String {
    match void {
        Void::Chain => "the journal ends before it".to_owned(),
        other => other.to_string(),
    }
}
