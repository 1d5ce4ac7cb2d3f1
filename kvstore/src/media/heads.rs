//! The superblocks of a store, read from all its devices and compared.

use crate::error::Result;
use crate::io::lane::{Lane, LaneInfo};
use crate::media::device_set::{Agreed, Given, Lengths, check_set};
use crate::media::geometry::{Geometry, superblock_units};
use crate::media::recovery::Media;
use crate::media::superblock::{Absent, Copies, Revision, Stop, choose};
use crate::model::place::UNIT_BYTES;

/// The current facts of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its name.
    pub device: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its LBA size in bytes.
    pub lba_bytes: u32,
}

impl DeviceFacts {
    /// Returns the facts of a lane's device.
    pub(crate) fn of<Q>(lane: &Lane<Q>) -> DeviceFacts {
        let LaneInfo { device, bytes, lba_bytes, .. } = &lane.info;
        DeviceFacts { device: device.clone(), bytes: *bytes, lba_bytes: *lba_bytes }
    }

    fn units(&self) -> u64 {
        self.bytes / UNIT_BYTES
    }
}

/// The superblocks of a store.
#[derive(Clone, Debug)]
pub struct Heads {
    /// The copies on each device, in order.
    pub copies: Vec<Copies>,
    /// The devices' common state.
    pub agreed: Agreed,
    /// The places of everything.
    pub geometry: Geometry,
}

impl Heads {
    /// Returns how often the store's devices were changed.
    pub fn changes(&self) -> u64 {
        self.revision().number - 1
    }

    /// Returns the newest revision; an interrupted change has not written it to all devices.
    pub(crate) fn revision(&self) -> Revision {
        let revisions = self.copies.iter().map(|copies| copies.superblock.revision);
        revisions.max_by_key(|revision| revision.number).expect("a store has a device")
    }

    /// Returns the record of the last clean stop on any device: a cut may leave some devices behind, and flushed blocks
    /// stay flushed for the whole epoch.
    pub(crate) fn last_stop(&self) -> Option<&Stop> {
        let superblocks = self.copies.iter().map(|copies| &copies.superblock);
        let of_epoch = superblocks.filter(|superblock| superblock.epoch == self.agreed.epoch);
        of_epoch.filter_map(|superblock| superblock.stop.as_ref()).max_by_key(|stop| stop.session)
    }
}

/// Reads and compares the superblocks.
///
/// # Errors
/// [`crate::Error::Media`] if a device has none, or they are not those of one store, in order and unchanged.
pub fn heads<M: Media>(media: &mut M, devices: &[DeviceFacts]) -> Result<Heads> {
    heads_of(media, devices, Lengths::Same)
}

/// Reads and compares the superblocks of devices that may be longer than before.
///
/// # Errors
/// As [`heads`].
pub(crate) fn heads_of<M: Media>(
    media: &mut M,
    devices: &[DeviceFacts],
    lengths: Lengths,
) -> Result<Heads> {
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
    let (agreed, newest) = check_set(&given.collect::<Vec<_>>(), lengths)?;
    let geometry = newest.geometry()?;
    Ok(Heads { copies, agreed, geometry })
}

/// Reads the superblock of one device, regardless of the others. The inner error is the reason if there is none.
///
/// # Errors
/// If the device does not answer.
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
