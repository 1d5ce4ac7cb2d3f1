//! Checks that the devices given are all those of one store, in order and unchanged in size.
//!
//! A change of the store's devices writes one superblock after another. The newest revision on any device counts. Other
//! devices may have the one before it: the change was interrupted, and the next opening finishes it. A device with any
//! other revision was left out of a change, or belongs to an abandoned one.
//!
//! This module only compares superblocks; it does not access the devices.

use std::fmt::Write;

use crate::error::{Error, Result};
use crate::media::chart::Member;
use crate::media::superblock::Superblock;

/// A device passed by the caller.
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

/// The devices' common state. An interrupted opening leaves some devices behind, so the highest values count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The highest epoch: everything of other epochs is void.
    pub epoch: u64,
    /// The highest sequence: the next opening is a session above it.
    pub sequence: u64,
}

/// Accepted lengths of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// The lengths in the chart.
    Same,
    /// The lengths in the chart, or more.
    Grown,
}

/// Checks that these are all devices of one store, in order and unchanged. Returns their common state and the
/// superblock of the newest revision.
///
/// # Errors
/// [`Error::Media`] for the first device that belongs to another store, is given twice, is missing, is out of place,
/// was left out of a change, or has changed in size; with a remedy.
///
/// # Panics
/// If no device is given.
pub fn check_set<'a>(given: &[Given<'a>], lengths: Lengths) -> Result<(Agreed, &'a Superblock)> {
    let newest = given.iter().max_by_key(|each| each.superblock.revision.number);
    let newest = newest.expect("there is a device");
    for each in given {
        check_belongs(each, newest)?;
    }
    check_each_once(given, newest.superblock)?;
    check_order(given, newest.superblock)?;
    for (each, member) in given.iter().zip(&newest.superblock.chart.members) {
        check_size(each, member, lengths)?;
    }
    let most = |of: fn(&Superblock) -> u64| {
        given.iter().map(|each| of(each.superblock)).max().expect("there is a device")
    };
    let agreed = Agreed { epoch: most(|one| one.epoch), sequence: most(|one| one.sequence) };
    Ok((agreed, newest.superblock))
}

fn refused(each: &Given<'_>, why: String, fix: impl ToString) -> Error {
    Error::media(each.device, why, fix)
}

fn name(superblock: &Superblock) -> String {
    let mut name = format!("'{}' (", superblock.label);
    for byte in superblock.store {
        write!(name, "{byte:02x}").expect("text takes all that is written");
    }
    name + ")"
}

fn check_belongs(each: &Given<'_>, newest: &Given<'_>) -> Result<()> {
    let (one, other) = (each.superblock, newest.superblock);
    if one.store != other.store {
        let why =
            format!("it belongs to store {}, {} to {}", name(one), newest.device, name(other));
        return Err(refused(each, why, "give the targets of one store"));
    }
    if other.index_of(one.device_id).is_none() {
        let why = format!("it was removed from store {}", name(other));
        return Err(refused(each, why, "leave it out: what it holds is no longer of the store"));
    }
    if !other.revision.follows(&one.revision) {
        let why =
            format!("it was left out of a change of the devices, which {} was in", newest.device);
        let fix = "give the devices that the store was last used with; 'adit kv info' shows those of one device";
        return Err(refused(each, why, fix));
    }
    let sizes =
        |of: &Superblock| (of.shards, of.objects_max, of.journal_units, of.checkpoint_units);
    let charts = one.revision != other.revision || one.chart == other.chart;
    if sizes(one) != sizes(other) || !charts {
        let why = format!("its superblock contradicts that of {}", newest.device);
        return Err(refused(each, why, "one of them was restored from a copy: format both again"));
    }
    Ok(())
}

fn check_each_once(given: &[Given<'_>], newest: &Superblock) -> Result<()> {
    for (index, Member { id, .. }) in newest.chart.members.iter().enumerate() {
        let mut here = given.iter().filter(|each| each.superblock.device_id == *id);
        let Some(one) = here.next() else {
            let (store, count) = (name(newest), newest.device_count());
            let why = format!("device {index} of the {count} of store {store} is missing");
            let fix = "give all targets that the store was formatted with or that were added to it, in order";
            return Err(refused(&given[0], why, fix));
        };
        if let Some(again) = here.next() {
            let why = format!("it is device {index} of the store, and so is {}", one.device);
            return Err(refused(again, why, "give each target once"));
        }
    }
    Ok(())
}

fn check_order(given: &[Given<'_>], newest: &Superblock) -> Result<()> {
    let index_of = |each: &Given<'_>| {
        let index = newest.index_of(each.superblock.device_id);
        index.expect("each was found in the chart")
    };
    let mut places = given.iter().enumerate();
    let wrong = places.find(|(at, each)| usize::from(index_of(each)) != *at);
    let Some((at, each)) = wrong else { return Ok(()) };
    let mut order: Vec<_> = given.iter().collect();
    order.sort_by_key(|each| index_of(each));
    let order: Vec<_> = order.iter().map(|each| each.device).collect();
    let index = index_of(each);
    let why = format!("it is device {index} of the store, and was given as device {at}");
    Err(refused(each, why, format!("give the targets in this order: {}", order.join(" "))))
}

fn check_size(each: &Given<'_>, member: &Member, lengths: Lengths) -> Result<()> {
    let (now, then) = (each.units, member.units);
    if now < then {
        let why = format!("it is smaller than the store made of it: {now} units, not {then}");
        return Err(refused(each, why, "restore the device to its old size, or format it again"));
    }
    if now > then && lengths == Lengths::Same {
        let why = format!("it is larger than the store made of it: {now} units, not {then}");
        let fix = "take the new space into the store with 'adit kv grow' (or Store::change), or give the device its \
                   old size back";
        return Err(refused(each, why, fix));
    }
    let lba_bytes = each.superblock.lba_bytes;
    if each.lba_bytes != lba_bytes {
        let why = format!("its LBAs have {} bytes, and had {lba_bytes}", each.lba_bytes);
        return Err(refused(each, why, "restore the namespace's LBA size, or format the store"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::chart::Chart;
    use crate::media::superblock::Revision;
    use crate::model::options::Durability;

    fn superblock(device_index: u8) -> Superblock {
        Superblock {
            store: [1; 16],
            sequence: 4 + u64::from(device_index),
            epoch: 3 - u64::from(device_index),
            device_id: device_index.into(),
            journal_units: 256,
            checkpoint_units: 256,
            objects_max: 1000,
            lba_bytes: 512,
            shards: 2,
            durability: Durability::Restart,
            label: "cache".into(),
            stop: None,
            revision: Revision::first(70),
            chart: Chart::new(&[1000; 3], 2, 768),
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
        check_set(&given(superblocks), Lengths::Same).expect_err("refused").to_string()
    }

    #[test]
    fn devices_in_order_agree_on_the_most() {
        let superblocks = [0, 1, 2].map(superblock);
        let (agreed, _) = check_set(&given(&superblocks), Lengths::Same).expect("a store");
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
        assert!(refusal(&superblocks).contains("soft:b: its superblock contradicts"));
    }

    #[test]
    fn another_size_is_said_with_both_figures() {
        let superblocks = [0, 1, 2].map(superblock);
        for (units, word) in [(999, "smaller"), (1001, "larger")] {
            let mut given = given(&superblocks);
            given[2].units = units;
            let text = check_set(&given, Lengths::Same).expect_err("refused").to_string();
            assert!(text.starts_with("soft:c: ") && text.contains(word), "{text}");
            assert!(text.contains(&format!("{units} units, not 1000")), "{text}");
        }
        let mut longer = given(&superblocks);
        longer[1].units = 2000;
        assert!(check_set(&longer, Lengths::Grown).is_ok(), "it may grow");
        let mut given = given(&superblocks);
        given[0].lba_bytes = 4096;
        let text = check_set(&given, Lengths::Same).expect_err("refused").to_string();
        assert!(text.contains("4096 bytes, and had 512"), "{text}");
    }

    /// Returns the superblock of a device after a change without device 1.
    fn changed(device_id: u8, id: u64) -> Superblock {
        let before = superblock(device_id);
        let chart = before.chart.without_device(1, &[(1, 2, 100)]);
        Superblock { revision: before.revision.next(id), chart, ..before }
    }

    #[test]
    fn a_change_that_reached_one_device_counts() {
        for superblocks in [[changed(0, 5), superblock(2)], [superblock(0), changed(2, 5)]] {
            let given = given(&superblocks);
            let (agreed, newest) = check_set(&given, Lengths::Same).expect("a store");
            assert_eq!((newest.revision.number, newest.device_count()), (2, 2));
            assert_eq!(agreed, Agreed { epoch: 3, sequence: 6 });
        }
        let text = refusal(&[changed(0, 5), superblock(1), superblock(2)]);
        assert!(text.starts_with("soft:b: it was removed from store 'cache'"), "{text}");
    }

    #[test]
    fn devices_of_two_changes_or_of_an_older_one_are_refused() {
        let text = refusal(&[changed(0, 5), changed(2, 6)]);
        assert!(text.contains("was left out of a change"), "{text}");
        let mut far = changed(0, 5);
        far.revision = far.revision.next(8);
        let text = refusal(&[far, superblock(2)]);
        assert!(text.starts_with("soft:b: it was left out of a change"), "{text}");
        let mut other = changed(2, 5);
        other.chart.segments.pop();
        assert!(refusal(&[changed(0, 5), other]).contains("contradicts"));
    }
}
