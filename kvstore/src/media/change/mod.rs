//! Changes of the devices of a closed store: adds devices, removes one, or extends the store to grown ones.
//!
//! Each change is atomic. Everything that the new store needs is written and flushed to units that the old one does
//! not use; then the superblocks of a new [`Revision`] are written. As soon as one of them is whole, the new store
//! counts: the next opening, or the next change, writes the others ([`crate::media::device_set`]).
//!
//! | change | writes before the superblocks |
//! |---|---|
//! | add | superblocks of the new revision to the new devices: without these the store would be incomplete |
//! | grow | nothing: the new copy B of the superblock is in a unit that the old store does not have |
//! | remove | 1. in the old store, as in any session: removes lost objects and writes a checkpoint; copies the others off the device and off the places of future homes, verifies them, and writes another. 2. for each shard a checkpoint of a new epoch, in the slot that the old epoch does not need, or in the shard's new home |
//!
//! A removal lowers the indices of the devices behind the removed one. So the checkpoints of the new epoch lie
//! elsewhere than those of the old one; the epoch in the superblocks decides which ones count. It rises by a random
//! step, so that no remains of an interrupted removal ever count.
//!
//! This module does not open or extend files, and does not know whether the store is in use.

mod carry;
mod plan;

use adit_driver::Time;
use adit_driver::paths::CommandQueue;

use self::carry::Carrier;
use self::plan::{Losses, Plan};
use crate::error::{Error, Result};
use crate::io::lane::{Lane, Load};
use crate::media::chart::{Member, index_without};
use crate::media::device_set::Lengths;
use crate::media::format::{Set, Waiting, begin_session, read_set, read_set_of};
use crate::media::geometry::{Geometry, superblock_units};
use crate::media::superblock::Superblock;
use crate::model::options::Durability;
use crate::model::place::{Place, UNIT_BYTES};

/// How the objects of a removed device are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaving {
    /// Moves them to the other devices; refuses the change if they do not all fit. Default.
    #[default]
    Move,
    /// Moves them to the other devices; drops the store's oldest objects to make room.
    Evict,
    /// Drops them, and others where a shard's metadata need room.
    Drop,
}

/// The effect of a change on the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The store's capacity for data afterwards, in bytes.
    pub data_bytes: u64,
    /// Objects copied to another place.
    pub moved_objects: u64,
    /// Their bytes, padding included.
    pub moved_bytes: u64,
    /// Lost objects, damaged ones included.
    pub lost_objects: u64,
    /// Their bytes, padding included.
    pub lost_bytes: u64,
    /// Objects whose bytes did not match their checksums; reads would have missed them.
    pub damaged_objects: u64,
}

impl Changed {
    /// Returns the effect of a change to `geometry` that touched no object.
    fn of(geometry: &Geometry) -> Changed {
        Changed { data_bytes: geometry.data_units() * UNIT_BYTES, ..Changed::default() }
    }
}

/// Adds devices to the store on the first `known` devices. `id` is a random number of the change. Sets `is_begun`
/// before it writes anything.
///
/// # Errors
/// [`Error::Media`] if the first devices are not a store's, or if a new one holds data that may not be overwritten, or
/// is too small; [`Error::Driver`] if a device does not answer.
pub(crate) fn add<Q: CommandQueue<Load>>(
    lanes: &mut [Lane<Q>],
    known: usize,
    (id, overwrite): (u64, bool),
    clock: &mut dyn FnMut() -> Time,
    is_begun: &mut bool,
) -> Result<Changed> {
    let set = read_set(&mut lanes[..known], clock)?;
    let mut chart = set.geometry().chart().clone();
    for (lane, number) in lanes[known..].iter().zip(0..) {
        check_length(lane, set.shards())?;
        let member = Member { id: id.wrapping_add(number), units: lane.units() };
        chart = chart.with_device(member);
    }
    let geometry = set.geometry().with_chart(chart)?;
    let mut waiting = Waiting { lanes, clock };
    for index in known..waiting.lanes.len() {
        check_new(&mut waiting, index, &set, overwrite)?;
    }
    let mut superblocks = set.changed(&geometry, id);
    for (lane, member) in waiting.lanes.iter().zip(&geometry.chart().members).skip(known) {
        let lba_bytes = lane.info.lba_bytes;
        let first = superblocks[0].clone();
        superblocks.push(Superblock { device_id: member.id, lba_bytes, ..first });
    }
    *is_begun = true;
    // Write the new devices first: an old one must not name devices without a superblock.
    waiting.write_superblocks(&superblocks, known..superblocks.len(), |_| false)?;
    waiting.write_superblocks(&superblocks, 0..known, |device| set.lacks_copy_a(device))?;
    Ok(Changed::of(&geometry))
}

/// Checks that each shard can have a part of a new device.
fn check_length<Q: CommandQueue<Load>>(lane: &Lane<Q>, shards: u16) -> Result<()> {
    let least = 2 + u64::from(shards);
    if lane.units() >= least {
        return Ok(());
    }
    let why = format!("it has {} bytes", lane.info.bytes);
    let fix = format!("take a device of {} bytes or more", least * UNIT_BYTES);
    Err(Error::media(&lane.info.device, why, fix))
}

/// Checks that a new device is not the store's and may be overwritten: it is blank, or belongs to an interrupted
/// addition.
fn check_new<Q: CommandQueue<Load>>(
    waiting: &mut Waiting<'_, Q>,
    index: usize,
    set: &Set,
    overwrite: bool,
) -> Result<()> {
    if let Ok(found) = waiting.superblock(index)?
        && found.superblock.store == set.store_id()
    {
        let superblock = found.superblock;
        let own = &set.superblocks()[0];
        if let Some(at) = own.index_of(superblock.device_id) {
            let why = format!("it is device {at} of the store already");
            return Err(waiting.refused(index, why, "add another device"));
        }
        if superblock.revision.number == own.revision.number + 1
            && superblock.revision.follows(&own.revision)
        {
            return Ok(());
        }
    }
    if overwrite { Ok(()) } else { waiting.check_blank(index) }
}

/// Extends the store to the units by which its devices have grown. `id` is a random number of the change.
///
/// # Errors
/// [`Error::Media`] if the devices are not a store's, or if none has grown; [`Error::Driver`] if a device does not
/// answer.
pub(crate) fn grow<Q: CommandQueue<Load>>(
    lanes: &mut [Lane<Q>],
    id: u64,
    clock: &mut dyn FnMut() -> Time,
) -> Result<Changed> {
    let set = read_set_of(lanes, Lengths::Grown, clock)?;
    let mut chart = set.geometry().chart().clone();
    for (device, lane) in (0..).zip(&*lanes) {
        if lane.units() > chart.members[usize::from(device)].units {
            chart = chart.with_length(device, lane.units());
        }
    }
    if chart == *set.geometry().chart() {
        let why = "neither it nor another device of the store is larger than the store made of it";
        let fix = "extend the file or the volume first (--size extends files)";
        return Err(Error::media(&lanes[0].info.device, why, fix));
    }
    let geometry = set.geometry().with_chart(chart)?;
    let superblocks = set.changed(&geometry, id);
    let all = 0..superblocks.len();
    Waiting { lanes, clock }
        .write_superblocks(&superblocks, all, |device| set.lacks_copy_a(device))?;
    Ok(Changed::of(&geometry))
}

impl Set {
    /// Returns the superblocks of the next revision. Their device numbers are those of this set.
    fn changed(&self, geometry: &Geometry, id: u64) -> Vec<Superblock> {
        let next = |superblock: &Superblock| Superblock {
            sequence: self.agreed().sequence + 1,
            epoch: self.agreed().epoch,
            stop: self.last_stop().cloned(),
            revision: superblock.revision.next(id),
            chart: geometry.chart().clone(),
            ..superblock.clone()
        };
        self.superblocks().iter().map(next).collect()
    }
}

/// Removes a device. Moves the shards' metadata on it to the others, and treats its objects as `leaving` says. `id` is
/// a random number of the change.
///
/// # Errors
/// [`Error::Media`] if the devices are not a store's, if the store is damaged, or if there is no room for objects or
/// metadata; [`Error::Invalid`] if there is no such device, or no other; [`Error::Driver`] if a device does not answer.
pub(crate) fn remove<Q: CommandQueue<Load>>(
    mut lanes: Vec<Lane<Q>>,
    device: u8,
    (id, leaving): (u64, Leaving),
    clock: &mut dyn FnMut() -> Time,
) -> Result<Changed> {
    let set = read_set(&mut lanes, clock)?;
    let geometry = set.geometry();
    if device >= geometry.devices() || geometry.devices() == 1 {
        let fix = format!("the store has {} devices, one of which has to stay", geometry.devices());
        return Err(Error::invalid("the device to remove", device, fix));
    }
    let homes = planned(&mut Waiting { lanes: &mut lanes, clock }, &set, device, leaving)?;
    let moved = homes
        .iter()
        .zip(0..)
        .filter_map(|(home, shard)| home.map(|Place { device, unit }| (shard, device, unit)));
    let chart = geometry.chart().without_device(device, &moved.collect::<Vec<_>>());
    let next = geometry.with_chart(chart)?;

    begin_session(&mut lanes, &set, Durability::Restart, clock)?;
    let set = read_set(&mut lanes, clock)?;
    let mut waiting = Waiting { lanes: &mut lanes, clock };
    let mut carrier =
        Carrier { waiting: &mut waiting, set: &set, device, done: Changed::of(&next) };
    for shard in 0..set.shards() {
        carrier.carry(shard, homes[usize::from(shard)], leaving)?;
    }
    let epoch = set.agreed().epoch + 1 + (id >> 24);
    for shard in 0..set.shards() {
        carrier.found_anew(shard, homes[usize::from(shard)], &next, epoch)?;
    }
    let done = carrier.done;

    let mut superblocks = set.changed(&next, id);
    superblocks.remove(usize::from(device));
    for superblock in &mut superblocks {
        (superblock.epoch, superblock.stop) = (epoch, None);
    }
    let removed = lanes.remove(usize::from(device));
    let all = 0..superblocks.len();
    Waiting { lanes: &mut lanes, clock }.write_superblocks(&superblocks, all, |_| false)?;
    if let Err(error) = wipe(removed, clock) {
        tracing::warn!("{error}: the device is no longer of the store, but looks as if it were");
    }
    Ok(done)
}

/// Plans the removal for each shard, with a new home for shards whose home was on the device. Refuses losses that
/// `leaving` forbids before anything is written.
fn planned<Q: CommandQueue<Load>>(
    waiting: &mut Waiting<'_, Q>,
    set: &Set,
    device: u8,
    leaving: Leaving,
) -> Result<Vec<Option<Place>>> {
    let (mut homes, mut losses) = (Vec::new(), Losses::default());
    for shard in 0..set.shards() {
        let survey = carry::survey_of(waiting, set, shard)?;
        let home = plan::home(&survey, set.geometry(), shard, device)
            .map_err(|why| waiting.refused(device.into(), why, "add a larger device first"))?;
        losses.add(
            &Plan::new(&survey, device, home, leaving, set.geometry().metadata_units()).losses,
        );
        homes.push(home);
    }
    if leaving == Leaving::Move && losses.objects > 0 {
        let Losses { objects, units } = losses;
        let bytes = units * UNIT_BYTES;
        let why = format!("the other devices have no room for {objects} objects of {bytes} bytes");
        let fix = "add a device first, or let the oldest objects go (--evict, or Leaving::Evict), or those of this \
                   device (--drop, or Leaving::Drop)";
        return Err(waiting.refused(device.into(), why, fix));
    }
    Ok(homes)
}

/// Overwrites both copies of the superblock, so that a format finds the device blank.
fn wipe<Q: CommandQueue<Load>>(lane: Lane<Q>, clock: &mut dyn FnMut() -> Time) -> Result<()> {
    let units = superblock_units(lane.units());
    let mut lanes = [lane];
    let mut waiting = Waiting { lanes: &mut lanes, clock };
    units.into_iter().try_for_each(|unit| waiting.zero(0, unit..unit + 1))?;
    waiting.flush()
}

/// Returns a place with its device's index after device `removed` was removed.
fn place_without(place: Place, removed: u8) -> Place {
    assert_ne!(place.device, removed, "nothing is left on the device");
    Place { device: index_without(place.device, removed), ..place }
}

#[cfg(test)]
mod tests;
