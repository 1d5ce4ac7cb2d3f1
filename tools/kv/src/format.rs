//! `adit kv format`: creates a store.

use adit_kvstore::{FormatStore, Store};
use clap::Args;
use serde_json::json;

use super::store;
use super::store_arg::StoreArgs;
use crate::failure::{Failure, Result};
use crate::human::{self, plural};
use crate::output;
use crate::units;

const EXAMPLES: &str = "\
Examples:
  In a new file of 4 GiB:
    adit kv format uring:kv.img --size 4G
  On two drives, for two threads:
    adit kv format vfio:0000:01:00.0 vfio:0000:02:00.0 --shards 2
  For a million objects of 32 KiB, whose keys have up to 100 bytes:
    adit kv format uring:/dev/nvme1n1 --objects 1000000 --key-bytes 100

Refuses devices that contain a file system, a partition table, a store or other data that is not zero, and names \
what it found, unless --force is given.";

/// Maximum bytes of a label.
const LABEL_BYTES_MAX: usize = 32;

/// Creates a store on devices or files
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FormatArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Shards, each driven by a thread of its own: the most cores that the store can use
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: u16,

    /// Number of objects that the store holds; by default one for each 64 KiB
    #[arg(long, value_name = "N", value_parser = units::count)]
    objects: Option<u64>,

    /// Length of the longest keys with which it holds so many, 1 to 512; longer ones take the room of others
    #[arg(long, value_name = "N", default_value_t = FormatStore::default().key_bytes)]
    key_bytes: u16,

    /// Creates or extends files to this size
    #[arg(long, value_name = "SIZE", value_parser = units::block_bytes)]
    size: Option<u64>,

    /// A descriptive name, up to 32 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    label: String,

    /// Overwrites existing data
    #[arg(long)]
    force: bool,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// The data on a device, if it must not be overwritten; an error of the device or the command line.
pub(crate) fn run(args: &FormatArgs) -> Result<()> {
    if args.label.len() > LABEL_BYTES_MAX {
        return Err(Failure::usage(format!(
            "--label has {} bytes; use at most {LABEL_BYTES_MAX}",
            args.label.len()
        )));
    }
    let targets = &args.store.devices()?;
    let format = FormatStore {
        targets: targets.clone(),
        shards: args.shards,
        objects_max: args.objects,
        key_bytes: args.key_bytes,
        label: args.label.clone(),
        overwrite: args.force,
        ..FormatStore::default()
    };
    if args.size.is_some() {
        format.check_files()?;
    }
    let devices = store::open_devices(targets, args.size)?;
    adit_guard::check_format(targets, &devices, args.force)?;
    let format = FormatStore { devices: devices.clone(), ..format };
    let formatted = Store::format(&format)?;
    let bytes: u64 = devices.iter().map(|device| device.info().bytes).sum();
    let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
    let report = || {
        json!({
            "store": names,
            "bytes": bytes,
            "shards": args.shards,
            "objects_max": formatted.objects_max,
            "key_bytes": formatted.key_bytes,
            "label": args.label,
        })
    };
    output::report(args.json, report, || {
        format!(
            "{}: a store of {} on {} device{}, {} shard{}, for {} objects with keys of up to {} bytes\n",
            names.join(" "),
            human::capacity(bytes),
            devices.len(),
            plural(devices.len() as u64),
            args.shards,
            plural(args.shards.into()),
            formatted.objects_max,
            formatted.key_bytes,
        )
    })
}
