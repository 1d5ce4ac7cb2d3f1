//! Checks that the devices given are all those of one store, in order and unchanged in size.
//!
//! This module only compares superblocks; it does not access the devices.

use std::fmt::Write;

use crate::error::{Error, Result};
use crate::media::superblock::Superblock;

/// A device that was given.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// Its name.
    pub device: &'a str,
    /// Its superblock.
    pub superblock: &'a Superblock,
    /// Its current length in units.
    pub units: u64,
    /// Its current LBA size in bytes.
    pub lba_bytes: u32,
}

/// What the devices agree on. An interrupted opening leaves some devices behind, so the highest values count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The highest epoch: everything of other epochs is void.
    pub epoch: u64,
    /// The highest sequence: the next opening is a session above it.
    pub sequence: u64,
}

/// Checks that these are all devices of one store, in order and unchanged.
///
/// # Errors
/// [`Error::Media`] for the first device that belongs to another store, is given twice, is missing, is out of place,
/// or has changed in size; with a remedy.
///
/// # Panics
/// If no device is given.
pub fn check_set(given: &[Given<'_>]) -> Result<Agreed> {
    for each in given {
        check_belongs(each, &given[0])?;
    }
    check_each_once(given)?;
    check_order(given)?;
    for each in given {
        check_size(each)?;
    }
    let most = |of: fn(&Superblock) -> u64| {
        given.iter().map(|each| of(each.superblock)).max().expect("there is a device")
    };
    Ok(Agreed { epoch: most(|one| one.epoch), sequence: most(|one| one.sequence) })
}

fn refused(each: &Given<'_>, why: String, fix: impl ToString) -> Error {
    Error::Media { device: each.device.to_owned(), why, fix: fix.to_string() }
}

fn name(superblock: &Superblock) -> String {
    let mut name = format!("'{}' (", superblock.label);
    for byte in superblock.store {
        write!(name, "{byte:02x}").expect("text takes all that is written");
    }
    name + ")"
}

fn check_belongs(each: &Given<'_>, first: &Given<'_>) -> Result<()> {
    let (one, other) = (each.superblock, first.superblock);
    if one.store != other.store {
        let why = format!("it belongs to store {}, {} to {}", name(one), first.device, name(other));
        return Err(refused(each, why, "give the targets of one store"));
    }
    let sizes = |of: &Superblock| {
        (of.device_count, of.shards, of.objects_max, of.journal_units, of.checkpoint_units)
    };
    if sizes(one) != sizes(other) {
        let why = format!("its superblock contradicts that of {}", first.device);
        return Err(refused(each, why, "one of them was restored from a copy: format both anew"));
    }
    Ok(())
}

fn check_each_once(given: &[Given<'_>]) -> Result<()> {
    let first = &given[0];
    let count = first.superblock.device_count;
    for index in 0..count {
        let mut here = given.iter().filter(|each| each.superblock.device_index == index);
        let Some(one) = here.next() else {
            let store = name(first.superblock);
            let why = format!("device {index} of the {count} of store {store} is missing");
            return Err(refused(first, why, "give all targets that the store was formatted with"));
        };
        if let Some(again) = here.next() {
            let why = format!("it is device {index} of the store, and so is {}", one.device);
            return Err(refused(again, why, "give each target once"));
        }
    }
    Ok(())
}

fn check_order(given: &[Given<'_>]) -> Result<()> {
    let mut places = given.iter().enumerate();
    let wrong = places.find(|(at, each)| usize::from(each.superblock.device_index) != *at);
    let Some((at, each)) = wrong else { return Ok(()) };
    let mut order: Vec<_> = given.iter().collect();
    order.sort_by_key(|each| each.superblock.device_index);
    let order: Vec<_> = order.iter().map(|each| each.device).collect();
    let index = each.superblock.device_index;
    let why = format!("it is device {index} of the store, and was given as device {at}");
    Err(refused(each, why, format!("give the targets in this order: {}", order.join(" "))))
}

fn check_size(each: &Given<'_>) -> Result<()> {
    let Superblock { device_units, lba_bytes, .. } = *each.superblock;
    if each.units != device_units {
        let than = if each.units < device_units { "smaller" } else { "larger" };
        let now = each.units;
        let why =
            format!("it is {than} than the store made of it: {now} units, not {device_units}");
        return Err(refused(each, why, "give the device its old size back, or format it anew"));
    }
    if each.lba_bytes != lba_bytes {
        let why = format!("its LBAs have {} bytes, and had {lba_bytes}", each.lba_bytes);
        return Err(refused(each, why, "format the namespace as it was, or the store anew"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::options::Durability;

    fn superblock(device_index: u8) -> Superblock {
        Superblock {
            store: [1; 16],
            sequence: 4 + u64::from(device_index),
            epoch: 3 - u64::from(device_index),
            device_units: 1000,
            journal_units: 256,
            checkpoint_units: 256,
            objects_max: 1000,
            lba_bytes: 512,
            shards: 2,
            device_index,
            device_count: 3,
            durability: Durability::Restart,
            label: "cache".into(),
        }
    }

    const NAMES: [&str; 4] = ["soft:a", "soft:b", "soft:c", "soft:d"];

    fn given<'a>(superblocks: &'a [Superblock]) -> Vec<Given<'a>> {
        let each = |(device, superblock): (&&'static str, &'a Superblock)| Given {
            device,
            superblock,
            units: 1000,
            lba_bytes: 512,
        };
        NAMES.iter().zip(superblocks).map(each).collect()
    }

    fn refusal(superblocks: &[Superblock]) -> String {
        check_set(&given(superblocks)).expect_err("refused").to_string()
    }

    #[test]
    fn devices_in_order_agree_on_the_most() {
        let superblocks = [0, 1, 2].map(superblock);
        let agreed = check_set(&given(&superblocks)).expect("a store");
        assert_eq!(agreed, Agreed { epoch: 3, sequence: 6 });
    }

    #[test]
    fn another_order_is_put_right() {
        let text = refusal(&[2, 0, 1].map(superblock));
        assert!(text.starts_with("soft:a: it is device 2"), "{text}");
        assert!(text.ends_with("in this order: soft:b soft:c soft:a"), "{text}");
    }

    #[test]
    fn what_is_missing_or_given_twice_is_named() {
        let text = refusal(&[0, 2].map(superblock));
        assert!(text.contains("device 1 of the 3"), "{text}");
        let text = refusal(&[0, 1, 2, 1].map(superblock));
        assert!(text.starts_with("soft:d: it is device 1") && text.contains("soft:b"), "{text}");
    }

    #[test]
    fn devices_of_two_stores_are_told_apart() {
        let mut superblocks = [0, 1, 2].map(superblock);
        superblocks[1].store = [0xab; 16];
        let text = refusal(&superblocks);
        assert!(text.starts_with("soft:b: it belongs to store 'cache' (abab"), "{text}");
        superblocks[1] = Superblock { shards: 9, ..superblock(1) };
        assert!(refusal(&superblocks).contains("contradicts that of soft:a"));
    }

    #[test]
    fn another_size_is_said_with_both_figures() {
        let superblocks = [0, 1, 2].map(superblock);
        for (units, word) in [(999, "smaller"), (1001, "larger")] {
            let mut given = given(&superblocks);
            given[2].units = units;
            let text = check_set(&given).expect_err("refused").to_string();
            assert!(text.starts_with("soft:c: ") && text.contains(word), "{text}");
            assert!(text.contains(&format!("{units} units, not 1000")), "{text}");
        }
        let mut given = given(&superblocks);
        given[0].lba_bytes = 4096;
        let text = check_set(&given).expect_err("refused").to_string();
        assert!(text.contains("4096 bytes, and had 512"), "{text}");
    }
}
