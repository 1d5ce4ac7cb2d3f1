//! `adit kv add-device`, `remove-device` and `grow`: change the devices of a store that is not open.

use adit_driver::Target;
use adit_kvstore::Store;
use adit_kvstore::store::{Change, ChangeStore, Changed, Leaving};
use clap::Args;
use serde_json::json;

use super::store::{self, NO_STORE, name};
use super::store_arg::StoreArgs;
use crate::failure::{Failure, Result};
use crate::human;
use crate::output;
use crate::units;

const ADD_EXAMPLES: &str = "\
Examples:
  A file to a store in a file:
    adit kv add-device uring:kv.img --new uring:more.img --size 4G
  A drive to a store on two:
    adit kv add-device vfio:0000:01:00.0 vfio:0000:02:00.0 --new vfio:0000:03:00.0

From then on, name the store by all its devices, the new ones last. Refuses a device with contents, and names them, \
unless --force is given. If it is interrupted, run it again.";

const REMOVE_EXAMPLES: &str = "\
Examples:
  adit kv remove-device uring:a.img uring:b.img --device uring:a.img
  adit kv remove-device uring:a.img uring:b.img --device uring:a.img --evict

Copies the objects to the other devices, verifies the copies, and wipes the superblocks of the device. If there is \
no room for all, it says so and changes nothing, unless --evict or --drop is given. If it is interrupted, the store \
is as it was, or without the device: run it again.";

const GROW_EXAMPLES: &str = "\
Examples:
  A store in a file:
    adit kv grow uring:kv.img --size 8G
  A store on a volume that 'lvextend' has extended:
    adit kv grow uring:/dev/vg0/kv

With --size, extends the store's files that are shorter to this size. If it is interrupted, run it again.";

/// Adds devices to a store
#[derive(Args, Clone, Debug)]
#[command(after_help = ADD_EXAMPLES)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// The device to add; may be given several times
    #[arg(long, value_name = "TARGET", required = true)]
    new: Vec<Target>,

    /// Creates or extends the new files to this size
    #[arg(long, value_name = "SIZE", value_parser = units::block_bytes)]
    size: Option<u64>,

    /// Overwrites existing data on the new devices
    #[arg(long)]
    force: bool,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Removes a device from a store
#[derive(Args, Clone, Debug)]
#[command(after_help = REMOVE_EXAMPLES)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// The device to remove, one of the store's
    #[arg(long, value_name = "TARGET")]
    device: Target,

    /// Lets the store's oldest objects go where there is no room for all
    #[arg(long, conflicts_with = "drop")]
    evict: bool,

    /// Lets the objects of the device go
    #[arg(long)]
    drop: bool,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Takes in what a store's devices have grown by
#[derive(Args, Clone, Debug)]
#[command(after_help = GROW_EXAMPLES)]
pub(crate) struct GrowArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// First extends the store's files that are shorter to this size
    #[arg(long, value_name = "SIZE", value_parser = units::block_bytes)]
    size: Option<u64>,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs `adit kv add-device`.
///
/// # Errors
/// The data on a new device, if it must not be overwritten; an error of a device, the store or the command line.
pub(crate) fn add(args: &AddArgs) -> Result<()> {
    let targets = &args.store.devices()?;
    store::check_there(targets, NO_STORE)?;
    let all = [&targets[..], &args.new].concat();
    store::check_distinct(&all)?;
    let devices = store::open_devices(&args.new, args.size)?;
    adit_guard::check_format(&args.new, &devices, args.force)?;
    let change =
        Change::Add { targets: args.new.clone(), devices, file_bytes: None, overwrite: args.force };
    let changed = changed(targets, change)?;
    told(args.json, &all, &changed)
}

/// Runs `adit kv remove-device`.
///
/// # Errors
/// Objects without room on the other devices; an error of a device, the store or the command line.
pub(crate) fn remove(args: &RemoveArgs) -> Result<()> {
    let targets = &args.store.devices()?;
    store::check_there(targets, NO_STORE)?;
    let at = targets.iter().position(|target| *target == args.device).ok_or_else(|| {
        let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
        Failure::usage(format!(
            "--device {} is not among the store's devices: give one of {}",
            args.device,
            names.join(" ")
        ))
    })?;
    let objects = match (args.evict, args.drop) {
        (true, _) => Leaving::Evict,
        (_, true) => Leaving::Drop,
        _ => Leaving::Move,
    };
    // A store has far fewer devices; the store refuses what is too high.
    let device = u8::try_from(at).unwrap_or(u8::MAX);
    let changed = changed(targets, Change::Remove { device, objects })?;
    let mut left = targets.clone();
    left.remove(at);
    told(args.json, &left, &changed)
}

/// Runs `adit kv grow`.
///
/// # Errors
/// When no device has grown; an error of a device or the store.
pub(crate) fn grow(args: &GrowArgs) -> Result<()> {
    let targets = &args.store.devices()?;
    store::check_there(targets, NO_STORE)?;
    let changed = changed(targets, Change::Grow { file_bytes: args.size })?;
    told(args.json, targets, &changed)
}

fn changed(targets: &[Target], change: Change) -> Result<Changed> {
    let (targets, devices) = (targets.to_vec(), Vec::new());
    Ok(Store::change(&ChangeStore { targets, devices, change })?)
}

/// Prints what the store now is, and what became of its objects.
fn told(json: bool, targets: &[Target], changed: &Changed) -> Result<()> {
    let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
    let report = || {
        json!({
            "store": names,
            "data_bytes": changed.data_bytes,
            "moved_objects": changed.moved_objects,
            "moved_bytes": changed.moved_bytes,
            "lost_objects": changed.lost_objects,
            "lost_bytes": changed.lost_bytes,
            "damaged_objects": changed.damaged_objects,
        })
    };
    output::report(json, report, || in_words(&names, targets, changed))
}

fn in_words(names: &[String], targets: &[Target], changed: &Changed) -> String {
    let mut text = format!(
        "{}: the store has {} for data; its devices are {}\n",
        name(targets),
        human::capacity(changed.data_bytes),
        names.join(" ")
    );
    let counts = [
        ("moved", changed.moved_objects, changed.moved_bytes),
        ("lost", changed.lost_objects, changed.lost_bytes),
    ];
    for (word, objects, bytes) in counts.into_iter().filter(|(_, objects, _)| *objects > 0) {
        text += &format!("{word} {objects} objects of {}\n", human::capacity(bytes));
    }
    if changed.damaged_objects > 0 {
        text += &format!("{} of the lost objects were damaged before\n", changed.damaged_objects);
    }
    text
}
