//! Keeps a run from destroying a store.
//!
//! A run formats its target. It may overwrite stores that an earlier run formatted, recognized by their label,
//! and intact stores without objects; all others are refused. Other contents are not checked here: `guard`
//! refuses devices with them, and files are overwritten as by any benchmark.

use adit_driver::Device;
use adit_kvstore::survey::{self, Absent, Heads};

use crate::failure::{Failure, Result};
use crate::human::printable;
use crate::survey::Reader;

/// The label of stores formatted by a run, which the next run may overwrite.
pub(super) const LABEL: &str = "adit kv bench";

/// Refuses devices with a store of other origin that has objects or may have, such as a damaged one.
///
/// # Errors
/// A usage failure that says what was found and how to continue.
pub(super) fn refuse(name: &str, devices: &[Device]) -> Result<()> {
    let mut reader = Reader::of(devices.iter().cloned())?;
    let Some(kept) = found(&mut reader)? else { return Ok(()) };
    devices.iter().for_each(Device::take_back_file);
    Err(Failure::usage(format!(
        "{name}: nothing was written: {kept}; name another target, or add --force if all of its data may be lost"
    )))
}

/// Describes what was found.
fn found(reader: &mut Reader) -> Result<Option<String>> {
    let facts = reader.facts();
    match survey::heads(reader, &facts) {
        Ok(heads) => whole(reader, &heads),
        // An incomplete store may contain valuable objects too.
        Err(_) => parts(reader),
    }
}

/// Describes a complete store.
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
        // Damage may hide objects.
        _ => Some(format!("there is a damaged store {name}with {objects} objects that are found")),
    })
}

/// Describes a device of a store whose other devices are missing or damaged, or the remains of one.
fn parts(reader: &mut Reader) -> Result<Option<String>> {
    for (index, device) in (0..).zip(&reader.facts()) {
        let text = match survey::head(reader, index, device)? {
            Ok(found) if found.superblock.label == LABEL => continue,
            Err(Absent::Blank | Absent::Foreign(_)) => continue,
            Ok(found) => format!(
                "{} is device {} of {} of a store {}",
                device.device,
                found.superblock.device_index().unwrap_or_default(),
                found.superblock.device_count(),
                called(&found.superblock.label)
            ),
            Err(absent) => format!("{}: {absent}", device.device),
        };
        return Ok(Some(text.trim_end().to_owned()));
    }
    Ok(None)
}

/// Returns a store's name, if it has one.
fn called(label: &str) -> String {
    match label {
        "" => String::new(),
        label => format!("(label '{}') ", printable(label)),
    }
}
