//! What is on the devices of a store, found without opening it: for whoever checks a store, or only looks at it.
//!
//! 1. Both copies of each device's superblock, and whether the devices are those of one store.
//! 2. Of each shard the checkpoint and the journal, replayed as by an opening.
//! 3. Each object against its neighbours and the data area: extents are disjoint and inside, layouts and tenants are
//!    there, and there are as many checksums as pieces.
//!
//! What is wrong is a list of [`Fault`]s. Nothing is written. The objects' data are read only by
//! [`ShardSurvey::verify`], which is a scrub. Where
//! somebody has the store open meanwhile, what is found may be of several moments: [`heads_in_use`] and [`Looks`]
//! look until it is of one, and tell what is in motion from what is damaged.

mod in_use;
mod objects;
mod space;
mod verify;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

pub use in_use::{Looks, Moment, heads_in_use};
use objects::Objects;
pub use objects::SurveyedObject;
pub use space::Space;

pub use crate::media::recovery::Media;
pub use crate::media::superblock::{Absent, Copies};

use crate::error::Result;
use crate::media::block::{Lineage, Void};
use crate::media::device_set::{Agreed, Given, check_set};
use crate::media::geometry::{Geometry, superblock_units};
use crate::media::recovery::{Areas, Recovered, recover};
use crate::media::superblock::choose;
use crate::model::layout::Layout;
use crate::model::place::UNIT_BYTES;

/// A device as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// What it is called.
    pub device: String,
    /// How long it is, in bytes.
    pub bytes: u64,
    /// How long its LBAs are, in bytes.
    pub lba_bytes: u32,
}

impl DeviceFacts {
    fn units(&self) -> u64 {
        self.bytes / UNIT_BYTES
    }
}

/// The superblocks of a store.
#[derive(Clone, Debug)]
pub struct Heads {
    /// Of each device in order.
    pub copies: Vec<Copies>,
    /// What they say together.
    pub agreed: Agreed,
    /// Where everything lies.
    pub geometry: Geometry,
}

/// Reads and compares the superblocks.
///
/// # Errors
/// [`crate::Error::Media`] where a device has none, or they are not those of one store, in order and unchanged.
pub fn heads<M: Media>(media: &mut M, devices: &[DeviceFacts]) -> Result<Heads> {
    let mut copies = Vec::with_capacity(devices.len());
    for (index, device) in (0..).zip(devices) {
        let found = head(media, index, device)?;
        copies.push(found.map_err(|absent| absent.into_error(&device.device))?);
    }
    let given = devices.iter().zip(&copies).map(|(device, copies)| Given {
        device: &device.device,
        superblock: &copies.superblock,
        units: device.units(),
        lba_bytes: device.lba_bytes,
    });
    let agreed = check_set(&given.collect::<Vec<_>>())?;
    let units = copies.iter().map(|copies| copies.superblock.device_units).collect();
    let geometry = Geometry::new(&copies[0].superblock.format_options(units))?;
    Ok(Heads { copies, agreed, geometry })
}

/// The superblock of one device, or why there is none; whether its neighbours are there is not asked.
///
/// # Errors
/// Where the device does not answer.
pub fn head<M: Media>(
    media: &mut M,
    index: u8,
    device: &DeviceFacts,
) -> Result<Result<Copies, Absent>> {
    if device.units() < 2 {
        return Ok(Err(Absent::Blank));
    }
    let mut bytes = [[0; UNIT_BYTES as usize]; 2];
    for (unit, bytes) in superblock_units(device.units()).into_iter().zip(&mut bytes) {
        media.read(index, unit, bytes)?;
    }
    Ok(choose(&bytes[0], &bytes[1]))
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// A word for programs.
    pub code: &'static str,
    /// A sentence for people.
    pub text: String,
    /// How many objects it costs, as far as that can be told.
    pub objects_lost: u64,
    /// Which of its kind it is, where the text may say more of it the next time.
    place: Option<u64>,
}

impl Fault {
    fn new(code: &'static str, objects_lost: u64, text: impl ToString) -> Fault {
        Fault { code, text: text.to_string(), objects_lost, place: None }
    }

    fn at(self, place: u64) -> Fault {
        Fault { place: Some(place), ..self }
    }

    /// Whether it is this one, seen at another time.
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

/// What a shard has.
#[derive(Clone, Debug)]
pub struct ShardSurvey {
    /// Where its metadata lie.
    pub areas: Areas,
    /// The units of its data on each device.
    pub data: Vec<Range<u64>>,
    /// What its checkpoint and journal came to.
    pub recovered: Recovered,
    /// Its objects, by key.
    pub objects: Vec<SurveyedObject>,
    /// Its tenants: number, name, and quota in units.
    pub tenants: Vec<(u8, String, Option<u64>)>,
    /// Its layouts by number.
    pub layouts: BTreeMap<u8, Layout>,
    /// How its room is used.
    pub space: Space,
    /// What is wrong.
    pub faults: Vec<Fault>,
}

impl ShardSurvey {
    /// The layout of an object; none where it is plain, or its layout is not there.
    pub fn layout_of(&self, found: &SurveyedObject) -> Option<&Layout> {
        self.layouts.get(&found.object.layout.0)
    }

    /// The name of an object's tenant; empty where that is nobody in particular, or is not there.
    pub fn tenant_of(&self, found: &SurveyedObject) -> &str {
        let tenant = self.tenants.iter().find(|(id, ..)| *id == found.object.tenant.0);
        tenant.map_or("", |(_, name, _)| name)
    }
}

/// Surveys one shard.
///
/// # Errors
/// Where a device does not answer; damage is in the result.
///
/// # Panics
/// If there is no such shard.
pub fn shard<M: Media>(media: &mut M, heads: &Heads, shard: u16) -> Result<ShardSurvey> {
    let areas = heads.geometry.areas(shard);
    let store = heads.copies[0].superblock.store;
    let lineage = Lineage { store, epoch: heads.agreed.epoch, shard };
    let mut objects = Objects::default();
    let recovered = recover(media, &mut objects, &lineage, &areas)?;
    let mut faults = of_recovery(shard, &recovered);
    faults.append(&mut objects.faults());
    let data = |device| heads.geometry.data(shard, device);
    let data: Vec<Range<u64>> = (0..heads.geometry.devices()).map(data).collect();
    let space = Space::of(&objects, &data, &mut faults);
    let (tenants, layouts) = (objects.tenants(), objects.layouts());
    let objects = objects.into_list();
    Ok(ShardSurvey { areas, data, recovered, objects, tenants, layouts, space, faults })
}

/// What is wrong with the superblocks, of which there is one whole copy on each device.
pub fn of_heads(heads: &Heads, devices: &[DeviceFacts]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (device, copies) in devices.iter().zip(&heads.copies) {
        for (name, bad) in ["first", "last"].into_iter().zip(&copies.bad) {
            let Some(absent) = bad else { continue };
            let text = format!(
                "{}: the copy of the superblock in its {name} unit is bad ({absent}); the other one is used, and \
                 the next opening writes it anew",
                device.device
            );
            faults.push(Fault::new("superblock-copy", 0, text));
        }
    }
    faults
}

fn of_recovery(shard: u16, recovered: &Recovered) -> Vec<Fault> {
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
    if recovered.is_inconsistent {
        let text = format!(
            "shard {shard}: the journal ends at block {}, before the end of every checkpoint; objects may be missing, \
             and some that are listed may have been overwritten, which their checksums tell",
            recovered.next.sequence
        );
        faults.push(Fault::new("inconsistent", 0, text));
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
