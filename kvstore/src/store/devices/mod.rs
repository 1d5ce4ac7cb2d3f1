//! The opened devices of a store: queues and memory for its shards, and one clock.

mod change;
#[cfg(feature = "serde")]
mod config;
mod endurance;
mod format;
mod found;
mod options;
pub(crate) mod release;

use std::fs::File;
use std::io::Read;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_driver::paths::{DeviceQueue, QueueOptions};
use adit_driver::{Buffer, Device, DeviceOptions, Target, Time};

pub use self::change::{Change, ChangeStore};
#[cfg(feature = "serde")]
pub use self::config::{CoresConfig, FormatConfig, LayoutConfig, MovedConfig, StoreConfig};
pub use self::format::{FormatStore, Formatted};
pub(crate) use self::found::FoundStore;
pub use self::options::OpenOptions;
pub(crate) use self::options::{MEMORY_BYTES_MIN, keep_ages_within};
use crate::error::{Error, Result};
use crate::media::format as media;
use crate::media::format::Set;
use crate::model::place::UNIT_BYTES;
use crate::shard::{LANE_MEMORY_BYTES, Lane, LaneInfo, Load, Shard};

/// A shard of the store; its requests carry replies of type `R`.
pub(crate) type DeviceShard<R> = Shard<DeviceQueue<Load>, R>;
pub(crate) type DeviceLane = Lane<DeviceQueue<Load>>;

/// Queues to request: the most shards possible on a controller that grants them.
const QUEUES: u16 = 64;

/// The opened devices; at least one.
#[derive(Clone)]
pub(crate) struct Devices(Vec<Device>);

impl Devices {
    /// Uses `devices` if given, otherwise opens `targets` exclusively. Waits for a store of this process that is being
    /// closed.
    pub(crate) fn open(
        targets: &[Target],
        devices: &[Device],
        file_bytes: Option<u64>,
    ) -> Result<Devices> {
        release::wait(targets, devices);
        if !devices.is_empty() {
            return Ok(Devices(devices.to_vec()));
        }
        if targets.is_empty() {
            return Err(Error::invalid("targets", "", "name at least one device of the store"));
        }
        let options = DeviceOptions {
            queue_count: QUEUES,
            exclusive: true,
            file_bytes,
            fills_holes: file_bytes.is_some(),
            ..DeviceOptions::default()
        };
        let mut devices = Devices(Vec::new());
        for target in targets {
            let opened = Device::open(target, &options);
            devices.0.push(opened.inspect_err(|_| devices.take_back_files())?);
        }
        Ok(devices)
    }

    /// Undoes the effect of `file_bytes` on their files, so that a refused store leaves none.
    pub(crate) fn take_back_files(&self) {
        self.0.iter().for_each(Device::take_back_file);
    }

    /// Takes the right to read their files, which hold a store, from other users.
    pub(crate) fn close_to_others(&self) {
        self.0.iter().for_each(Device::close_to_others);
    }

    /// Checks that the files among `targets` hold no data, before any of them is made longer.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::Media`] with the data that may not be overwritten.
    pub(crate) fn check_files(targets: &[Target]) -> Result<()> {
        let is_there = |target: &&Target| match target {
            Target::Kernel(kernel) => kernel
                .file
                .metadata()
                .is_ok_and(|about| about.is_file() && about.len() >= UNIT_BYTES),
            _ => false,
        };
        let there: Vec<Target> = targets.iter().filter(is_there).cloned().collect();
        if there.is_empty() {
            return Ok(());
        }
        let devices = Devices::open(&there, &[], None)?;
        let mut lanes = devices.lanes(&OpenOptions::default(), &[])?;
        media::check_blank(&mut lanes, &mut devices.clock())
    }

    pub(crate) fn as_slice(&self) -> &[Device] {
        &self.0
    }

    /// Returns the total size of the devices in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|device| device.info().bytes).sum()
    }

    /// Returns the current time on the first device's clock.
    pub(crate) fn now(&self) -> Time {
        self.0[0].now()
    }

    /// Returns a clock for blocking waits, which yields the CPU on each reading.
    pub(crate) fn clock(&self) -> impl FnMut() -> Time {
        let device = self.0[0].clone();
        move || {
            std::thread::yield_now();
            device.now()
        }
    }

    /// Checks that each shard can have a queue on each device.
    pub(crate) fn check_shards(&self, shards: u16) -> Result<()> {
        let Some(device) = self.0.iter().find(|device| device.info().queue_count_max < shards)
        else {
            return Ok(());
        };
        let about = device.info();
        let why =
            format!("the store has {shards} shards and it gives {} queues", about.queue_count_max);
        let fix = "format it with fewer shards, or allow the controller more queues";
        Err(Error::Media { device: about.device.clone(), why, fix: fix.to_owned() })
    }

    /// Recovers the controller of a failed device and checks that it still holds this store.
    ///
    /// # Errors
    /// As [`adit_driver::Controller::recover`]; [`Error::Media`] if a different device answers; [`Error::Invalid`] if
    /// there is no such device.
    pub(crate) fn recover(&self, device: u8, options: &OpenOptions, set: &Set) -> Result<()> {
        let Some(found) = self.0.get(usize::from(device)) else {
            return Err(Error::invalid("device", device, "the store has no such device"));
        };
        if let Some(controller) = found.controller() {
            controller.recover()?;
        }
        // Check only this device: others may have failed as well.
        let lane = self.lane(device, options)?;
        media::check_same(lane, set, device, &mut self.clock())
    }

    /// Records on the media that all shards have stopped: the journal of shard n was flushed below `ends[n]`. Without
    /// that, damage to the last blocks looks like the end of the journal, so failing is no error.
    pub(crate) fn record_stop(&self, options: &OpenOptions, set: &Set, ends: &[u64]) {
        let recorded = self.lanes(options, &[]).and_then(|mut lanes| {
            media::end_session(&mut lanes, set, options.durability, ends, &mut self.clock())
        });
        if let Err(error) = recorded {
            tracing::warn!("{error}: the store is closed, and the superblocks do not say so");
        }
    }

    /// Opens a lane to one device, for the shards' own memory only.
    pub(crate) fn lane(&self, device: u8, options: &OpenOptions) -> Result<DeviceLane> {
        lane(&self.0[usize::from(device)], options, &[])
    }

    /// Opens a lane to each device for one shard, whose requests will use `memory`.
    pub(crate) fn lanes(
        &self,
        options: &OpenOptions,
        memory: &[Buffer],
    ) -> Result<Vec<DeviceLane>> {
        self.0.iter().map(|device| lane(device, options, memory)).collect()
    }
}

fn lane(device: &Device, options: &OpenOptions, memory: &[Buffer]) -> Result<DeviceLane> {
    let about = device.info().clone();
    let own = device.allocate(LANE_MEMORY_BYTES)?;
    let depth = options.queue_depth.min(about.queue_depth_max);
    let queue = QueueOptions {
        depth,
        timeout: options.command_timeout,
        abort_timeout: options.command_timeout / 5,
    };
    let usable = memory.iter().filter(|buffer| device.accepts(*buffer));
    let memory: Vec<&Buffer> = usable.chain([&own]).collect();
    let queue = device.create_queue::<Load>(&queue, &memory)?;
    let accepting = device.clone();
    let info = LaneInfo {
        device: about.device,
        bytes: about.bytes,
        lba_bytes: about.lba_bytes,
        command_bytes_max: about.command_bytes_max,
        boundary_bytes: about.boundary_bytes,
        depth,
        // The blocks that a file was given stay its own.
        deallocates: about.deallocates && !about.is_preallocated,
        deallocate_lbas_max: about.deallocate_lbas_max,
        may_lack_space: about.has_holes,
        protection: about.protection,
        accepts: Box::new(move |buffer| accepting.accepts(buffer)),
    };
    Ok(Lane::new(queue, info, own))
}

/// Returns the bytes of the memory tier that one of `shards` shards gets, in whole units; none if they would be too
/// few.
pub(crate) fn tier_share(bytes: u64, shards: u16) -> u64 {
    let share = bytes / u64::from(shards) / UNIT_BYTES * UNIT_BYTES;
    if share < MEMORY_BYTES_MIN as u64 { 0 } else { share }
}

/// Turns "did any shard reattach the device?" into the result of a recovery.
///
/// # Errors
/// [`Error::Invalid`] if no shard did.
pub(crate) fn any_attached(device: u8, any: bool) -> Result<()> {
    match any {
        true => Ok(()),
        false => Err(Error::invalid("device", device, "it works: there is nothing to recover")),
    }
}

/// Returns unpredictable bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map_err(|why| {
        let fix = "make /dev/urandom readable";
        adit_driver::Error::refused("/dev/urandom", "read random bytes", why, fix)
    })?;
    Ok(bytes)
}

/// Returns the Unix time at the origin of the clock that reads `now`.
pub(crate) fn wall_at_zero(now: Time) -> Duration {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    wall.saturating_sub(now.since(Time::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{FormatStore, Store};
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_keeps_its_rights_unless_it_is_a_store() {
        let path = std::env::temp_dir().join(format!("adit-rights-{}", std::process::id()));
        std::fs::write(&path, vec![7; 16 << 20]).expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("rights");
        let mode = || std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
        let target = format!("psync:{},direct=off", path.display());
        let targets: Vec<Target> = vec![target.parse().expect("a target")];
        let options = OpenOptions::new(targets.clone());
        assert!(Store::open(&options).is_err(), "it is none");
        let format = FormatStore { targets, objects_max: Some(100), ..FormatStore::default() };
        assert!(format.run().is_err(), "it has data");
        assert_eq!(mode(), 0o644);
        FormatStore { overwrite: true, ..format }.run().expect("formatted");
        assert_eq!(mode(), 0o640);
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("rights");
        drop(Store::open(&options).expect("a store"));
        assert_eq!(mode(), 0o640);
        std::fs::remove_file(&path).expect("it was there");
    }

    #[test]
    fn the_wall_clock_stood_earlier_when_this_one_stood_at_zero() {
        let at_zero = wall_at_zero(Time::ZERO);
        let earlier = wall_at_zero(Time::from_ns(1_000_000_000_000));
        let apart = (at_zero - earlier).as_secs();
        assert!((999..=1001).contains(&apart), "{at_zero:?} {earlier:?}");
    }
}
