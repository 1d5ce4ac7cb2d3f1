//! A load that never pauses: checkpoints keep up, so that no put waits for room in the journal, and the device works
//! while requests are taken in.

use adit_driver::Time;
use adit_driver::memory::AnyBuffer;

use super::device::{TestDevice, memory};
use super::{Rig, STORED, form, format, item, options};
use crate::media::format::FormatOptions;
use crate::model::key::Key;
use crate::model::options::Durability;
use crate::shard::{Action, PutItem, PutOptions};

/// Puts in flight, more than the device takes at once.
const PUTS: usize = 128;
/// Commands that the device carries out per turn.
const COMMANDS_PER_TURN: usize = 24;
const KEYS: u64 = 900;
/// Long keys, whose records fill about a journal block per turn.
const KEY_BYTES: usize = 128;

/// Opens a shard with the default format options.
fn rig() -> Rig {
    let devices = vec![TestDevice::new("memory:0", 8192)];
    format(&devices, &FormatOptions { objects_max: 8000, journal_bytes: None, ..form(0) });
    let rig = Rig::open(devices, options(Durability::Restart));
    rig.devices[0].medium().commands_per_poll = Some(COMMANDS_PER_TURN);
    rig
}

fn put(number: u64, data: AnyBuffer) -> Action {
    let key = Key::new(&[&[7; KEY_BYTES - 8][..], &(number % KEYS).to_le_bytes()].concat())
        .expect("a key");
    Action::Put(PutItem { key, bytes: 4096, data, options: PutOptions::default() })
}

#[test]
fn no_put_waits_for_the_journal_while_the_device_has_more_to_write_than_it_can() {
    let mut rig = rig();
    let (mut number, mut stalled) = (0, 0);
    let mut idle: Vec<AnyBuffer> = (0..PUTS).map(|_| AnyBuffer::One(memory(4096))).collect();
    for _ in 0..1000 {
        for data in idle.drain(..) {
            rig.submit(Time::NEVER, put(number, data));
            number += 1;
            stalled += usize::from(rig.shard.waiting() > 0);
        }
        rig.turn(1);
        for done in rig.answers.drain(..) {
            assert_eq!(done.result, STORED);
            idle.push(done.memory);
        }
    }
    let stats = rig.shard.stats();
    assert!(stats.checkpoints > 6, "the journal was filled more than twice");
    assert_eq!((stalled, stats.evictions.objects()), (0, 0), "of {number} puts");
}

#[test]
fn writes_are_sent_while_more_requests_are_taken_in() {
    // Objects of 256 KiB.
    let units = 64;
    for each in [1, 3] {
        let mut rig = rig();
        rig.devices[0].medium().commands_per_poll = None;
        let mut in_flight = Vec::new();
        let tags: Vec<u64> = (0..6)
            .map(|put| {
                let items = (0..each).map(|one| item(put * each + one, units));
                let tag = rig.submit_puts(items);
                in_flight.push(rig.shard.parts.lanes[0].in_flight());
                tag
            })
            .collect();
        // Those submitted together are one command.
        let expected = if each == 1 { [0, 2, 2, 4, 4, 6] } else { [1, 2, 3, 4, 5, 6] };
        assert_eq!(in_flight, expected, "{each} at a time");
        rig.turn(12);
        tags.into_iter().for_each(|tag| assert_eq!(rig.taken(tag), vec![STORED; each as usize]));
    }
}
