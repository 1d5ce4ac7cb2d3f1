//! Changing the devices of a closed store.

use adit_driver::{Device, Target};

use super::Devices;
use super::options::OpenOptions;
use crate::error::Result;
use crate::media::change::{self, Changed, Leaving};
use crate::media::device_set::Lengths;
use crate::media::format;

/// Options for changing the devices of a store, which must not be open. The change is atomic: a crash at any time
/// leaves the store as it was or as it is to be, with all objects that it then has.
#[derive(Clone, Debug)]
pub struct ChangeStore {
    /// The store's devices before the change, in order.
    pub targets: Vec<Target>,
    /// Devices that are already open; if given, `targets` is ignored.
    pub devices: Vec<Device>,
    /// The change.
    pub change: Change,
}

/// A change of a store's devices.
#[derive(Clone, Debug)]
pub enum Change {
    /// Adds devices behind the present ones.
    Add {
        /// The new devices.
        targets: Vec<Target>,
        /// New devices that are already open; if given, `targets` is ignored.
        devices: Vec<Device>,
        /// Creates missing regular files, and extends shorter ones to this many bytes.
        file_bytes: Option<u64>,
        /// Whether to overwrite existing data on the new devices.
        overwrite: bool,
    },
    /// Removes a device; those behind it move up. It is blank afterwards.
    Remove {
        /// The device's index among the targets.
        device: u8,
        /// The treatment of its objects.
        objects: Leaving,
    },
    /// Uses the space that devices have gained since the last change or the format.
    Grow {
        /// First extends the store's regular files that are shorter to this many bytes. Ignored for devices that are
        /// already open.
        file_bytes: Option<u64>,
    },
}

impl Devices {
    /// Adds devices to the store on these, and notes whether anything is written.
    fn with(
        &self,
        new: &Devices,
        (id, overwrite): (u64, bool),
        is_begun: &mut bool,
    ) -> Result<Changed> {
        let mut lanes = self.lanes(&OpenOptions::default(), &[])?;
        let count = lanes.len();
        lanes.extend(new.lanes(&OpenOptions::default(), &[])?);
        change::add(&mut lanes, count, (id, overwrite), &mut self.clock(), is_begun)
    }
}

impl ChangeStore {
    pub(crate) fn run(&self) -> Result<Changed> {
        let id = u64::from_le_bytes(super::random()?);
        match &self.change {
            Change::Add { targets, devices, file_bytes, overwrite } => {
                let given = devices.iter();
                let known = Devices::open(&self.targets, &self.devices, None)
                    .inspect_err(|_| given.for_each(Device::take_back_file))?;
                if file_bytes.is_some() && !overwrite && devices.is_empty() {
                    Devices::check_files(targets)?;
                }
                let new = Devices::open(targets, devices, *file_bytes)?;
                let mut is_begun = false;
                let added = known.with(&new, (id, *overwrite), &mut is_begun);
                added.iter().for_each(|_| new.close_to_others());
                added.inspect_err(|_| {
                    // Once it is begun, the store's devices may name the new ones.
                    if !is_begun {
                        new.take_back_files();
                    }
                })
            }
            Change::Remove { device, objects } => {
                let devices = Devices::open(&self.targets, &self.devices, None)?;
                let lanes = devices.lanes(&OpenOptions::default(), &[])?;
                change::remove(lanes, *device, (id, *objects), &mut devices.clock())
            }
            Change::Grow { file_bytes } => {
                if file_bytes.is_some() {
                    // A file is extended only if it is a store's.
                    let devices = Devices::open(&self.targets, &self.devices, None)?;
                    let mut lanes = devices.lanes(&OpenOptions::default(), &[])?;
                    format::read_set_of(&mut lanes, Lengths::Grown, &mut devices.clock())?;
                }
                let devices = Devices::open(&self.targets, &self.devices, *file_bytes)?;
                let mut lanes = devices.lanes(&OpenOptions::default(), &[])?;
                change::grow(&mut lanes, id, &mut devices.clock())
            }
        }
    }
}
