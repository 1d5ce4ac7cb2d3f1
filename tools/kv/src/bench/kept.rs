//! What a store on the devices keeps that a run would destroy.
//!
//! A run formats its target. Stores that an earlier run formatted, which their label tells, and whole stores without an
//! object lose nothing by it; any other store is somebody's. What is no store is not looked for here: devices that hold
//! something else are refused by the guard that every writer has, and files are overwritten as by any benchmark.

use adit_driver::Device;
use adit_kvstore::survey::{self, Absent, Heads};

use super::run::LABEL;
use crate::failure::{Failure, Result};
use crate::human::printable;
use crate::survey::Reader;

/// Refuses devices with a store that somebody else made and that has objects, or may have: one that is damaged.
///
/// # Errors
/// A usage failure that says what is there and how to go on.
pub(super) fn refuse(name: &str, devices: &[Device]) -> Result<()> {
    let mut reader = Reader::of(devices.iter().cloned())?;
    let Some(kept) = found(&mut reader)? else { return Ok(()) };
    Err(Failure::usage(format!(
        "{name}: nothing was written: {kept}; name another target, or add --force if all of it may be lost"
    )))
}

/// What is there, in words.
fn found(reader: &mut Reader) -> Result<Option<String>> {
    let facts = reader.facts();
    match survey::heads(reader, &facts) {
        Ok(heads) => whole(reader, &heads),
        // Of a store that is not whole, too, somebody may want what is there.
        Err(_) => parts(reader),
    }
}

/// A store whose devices are all there.
fn whole(reader: &mut Reader, heads: &Heads) -> Result<Option<String>> {
    let label = &heads.copies[0].superblock.label;
    if label == LABEL {
        return Ok(None);
    }
    let (mut objects, mut faults) = (0, 0);
    for shard in 0..heads.geometry.shards() {
        let survey = survey::shard(reader, heads, shard)?;
        (objects, faults) = (objects + survey.objects.len(), faults + survey.faults.len());
    }
    let name = called(label);
    Ok(match (faults, objects) {
        (0, 0) => None,
        (0, _) => Some(format!("there is a store {name}with {objects} objects")),
        // What the damage hides may be objects.
        _ => Some(format!("there is a damaged store {name}with {objects} objects that are found")),
    })
}

/// A device of a store whose other devices are not there, or not as they were; or what is left of one.
fn parts(reader: &mut Reader) -> Result<Option<String>> {
    for (index, device) in (0..).zip(&reader.facts()) {
        let text = match survey::head(reader, index, device)? {
            Ok(found) if found.superblock.label == LABEL => continue,
            Err(Absent::Blank | Absent::Foreign(_)) => continue,
            Ok(found) => format!(
                "{} is device {} of {} of a store {}",
                device.device,
                found.superblock.device_index,
                found.superblock.device_count,
                called(&found.superblock.label)
            ),
            Err(absent) => format!("{}: {absent}", device.device),
        };
        return Ok(Some(text.trim_end().to_owned()));
    }
    Ok(None)
}

/// The name of a store, where it has one.
fn called(label: &str) -> String {
    match label {
        "" => String::new(),
        label => format!("(label '{}') ", printable(label)),
    }
}
