//! How much of a batch begins at one time: what does writes neighbours with one command.

use super::{Rig, STORED, item, options};
use crate::media::record::record_bytes;
use crate::model::key::Key;
use crate::model::options::Durability;
use crate::shard::{PutItem, ShardOptions};

/// Puts a batch, and returns the write commands of its data.
fn commands(rig: &mut Rig, puts: Vec<PutItem>) -> u64 {
    let (before, count) = (rig.shard.stats().commands_write, puts.len());
    let tag = rig.submit_puts(puts);
    rig.turn(100);
    assert_eq!(rig.taken(tag), vec![STORED; count]);
    rig.shard.stats().commands_write - before
}

/// A batch of objects of some units each.
fn batch(lengths: impl IntoIterator<Item = u64>) -> Vec<PutItem> {
    lengths.into_iter().zip(100..).map(|(units, key)| item(key, units)).collect()
}

/// A batch of objects of one unit each, with keys of 500 bytes.
fn long_batch(count: usize) -> Vec<PutItem> {
    let long = |(number, put): (usize, PutItem)| {
        let key = Key::new(&[number as u8; 500]).expect("a key");
        PutItem { key, ..put }
    };
    batch(vec![1; count]).into_iter().enumerate().map(long).collect()
}

#[test]
fn a_share_has_half_of_the_space() {
    let half = Rig::new(1, 64, options(Durability::Restart)).capacity() / 2;
    for (lengths, shares) in [
        (vec![half - 2, 1, 1], 1),
        (vec![half - 2, 1, 2], 2),
        (vec![half, 1], 2),
        (vec![half + 5], 1),
        (vec![1, half + 5, 1], 3),
        (vec![half - 1, 1, half - 2, 1, 1], 2),
    ] {
        let mut rig = Rig::new(1, 64, options(Durability::Restart));
        assert_eq!(commands(&mut rig, batch(lengths.clone())), shares, "{lengths:?}");
    }
}

#[test]
fn a_share_has_no_more_objects_than_the_store() {
    for (count, shares) in [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3)] {
        let few = ShardOptions { capacity_objects: Some(8), ..options(Durability::Restart) };
        let mut rig = Rig::new(1, 64, few);
        assert_eq!(commands(&mut rig, batch(vec![1; count])), shares, "{count} objects");
    }
}

#[test]
fn a_share_has_records_of_a_sixteenth_of_the_journal() {
    // A block of a ring of 16, without its header.
    let each = 4040 / record_bytes(500, 1);
    for (count, shares) in [(each, 1), (each + 1, 2), (2 * each, 2), (2 * each + 1, 3)] {
        let mut rig = Rig::new(1, 16, options(Durability::Restart));
        assert_eq!(commands(&mut rig, long_batch(count)), shares, "{count} objects");
    }
}

#[test]
fn a_share_has_half_of_the_records_of_a_checkpoint() {
    // Less than the journal's share.
    let half = 10 * record_bytes(500, 1);
    for (count, shares) in [(10, 1), (11, 2)] {
        let mut rig = Rig::new(1, 64, options(Durability::Restart));
        assert!(rig.shard.parts.log.share_bytes_max() > half as u64);
        rig.shard.parts.room.set_record_bytes_max(2 * half as u64);
        assert_eq!(commands(&mut rig, long_batch(count)), shares, "{count} objects");
    }
}
