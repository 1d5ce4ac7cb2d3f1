//! The opened devices of a store: queues and memory for its shards, and one clock.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_driver::paths::{DeviceQueue, QueueOptions};
use adit_driver::{Buffer, Device, DeviceOptions, Target, Time};

use super::exit;
use super::open::OpenOptions;
use crate::error::{Error, Result};
use crate::media::format::{self, Set};
use crate::model::place::UNIT_BYTES;
use crate::shard::{LANE_MEMORY_BYTES, Lane, LaneInfo, Load, Shard};

/// A shard of the store; `R` is what its requests carry.
pub(super) type DeviceShard<R> = Shard<DeviceQueue<Load>, R>;
pub(super) type DeviceLane = Lane<DeviceQueue<Load>>;

/// Minimum bytes of data memory, so that a 1 MiB object fits.
pub(super) const MEMORY_BYTES_MIN: usize = 1 << 20;
/// Queues to request: the most shards possible on a controller that grants them.
const QUEUES: u16 = 64;

/// The opened devices; at least one.
pub(super) struct Devices(Vec<Device>);

impl Devices {
    /// Uses `devices` if given, otherwise opens `targets` exclusively. Waits for a store of this process that is being
    /// closed.
    pub(super) fn open(
        targets: &[Target],
        devices: &[Device],
        file_bytes: Option<u64>,
    ) -> Result<Devices> {
        exit::wait_for_release(targets, devices);
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

    /// Takes back what `file_bytes` made of their files: a store that is refused leaves none.
    pub(super) fn take_back_files(&self) {
        self.0.iter().for_each(Device::take_back_file);
    }

    /// Closes their files, which hold a store, to users who may only read them.
    pub(super) fn close_to_others(&self) {
        self.0.iter().for_each(Device::close_to_others);
    }

    /// Checks that the files among `targets` hold no data, before any of them is made longer.
    ///
    /// # Errors
    /// As [`Device::open`]; [`Error::Media`] with the data that may not be overwritten.
    pub(super) fn check_files(targets: &[Target]) -> Result<()> {
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
        format::check_blank(&mut lanes, &mut devices.clock())
    }

    /// Returns the same devices once more.
    pub(super) fn share(&self) -> Devices {
        Devices(self.0.clone())
    }

    pub(super) fn as_slice(&self) -> &[Device] {
        &self.0
    }

    /// Returns the total size of the devices in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|device| device.info().bytes).sum()
    }

    /// Returns the current time on the first device's clock.
    pub(super) fn now(&self) -> Time {
        self.0[0].now()
    }

    /// Returns a clock for blocking waits, which yields the CPU on each reading.
    pub(super) fn clock(&self) -> impl FnMut() -> Time {
        let device = self.0[0].clone();
        move || {
            std::thread::yield_now();
            device.now()
        }
    }

    /// Checks that each shard can have a queue on each device.
    pub(super) fn check_shards(&self, shards: u16) -> Result<()> {
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
    pub(super) fn recover(&self, device: u8, options: &OpenOptions, set: &Set) -> Result<()> {
        let Some(found) = self.0.get(usize::from(device)) else {
            return Err(Error::invalid("device", device, "the store has no such device"));
        };
        if let Some(controller) = found.controller() {
            controller.recover()?;
        }
        // Check only this device: others may have failed as well.
        let lane = self.lane(device, options)?;
        format::check_same(lane, set, device, &mut self.clock())
    }

    pub(super) fn lane(&self, device: u8, options: &OpenOptions) -> Result<DeviceLane> {
        lane(&self.0[usize::from(device)], options, &[])
    }

    /// Opens a lane to each device for one shard, whose requests will use `memory`.
    pub(super) fn lanes(
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

/// Turns "did any shard reattach the device?" into the result of a recovery.
///
/// # Errors
/// [`Error::Invalid`] if no shard did.
pub(super) fn any_attached(device: u8, any: bool) -> Result<()> {
    match any {
        true => Ok(()),
        false => Err(Error::invalid("device", device, "it works: there is nothing to recover")),
    }
}

/// Returns unpredictable bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map_err(|why| {
        let fix = "make /dev/urandom readable";
        adit_driver::Error::refused("/dev/urandom", "read random bytes", why, fix)
    })?;
    Ok(bytes)
}

/// Returns the Unix time at the origin of the clock that reads `now`.
pub(super) fn wall_at_zero(now: Time) -> Duration {
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
