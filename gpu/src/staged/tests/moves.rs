//! Data arrives, in order with the GPU's work, and the two stages overlap.

use std::time::Duration;

use adit_driver::bus::Bus as _;

use super::rig::{CHUNK_LBAS, CHUNKS, LBA, POOL, Rig, TIMEOUT, pattern, read, write};
use super::stepped_gpu::BASE;
use crate::commands::layout::Context;

const DISK_LBAS: u64 = 2048;

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// The expected content of the disk and the pool.
struct Model {
    disk: Vec<u8>,
    pool: Vec<u8>,
}

impl Model {
    fn apply(&mut self, context: Context) {
        let bytes = context.lbas() as usize * LBA;
        let (disk, pool) = (context.lba() as usize * LBA, context.address as usize);
        match context.is_write() {
            true => self.disk[disk..disk + bytes].copy_from_slice(&self.pool[pool..pool + bytes]),
            false => self.pool[pool..pool + bytes].copy_from_slice(&self.disk[disk..disk + bytes]),
        }
    }
}

/// Returns contexts that use no LBA and no byte of the pool twice: slot `n` of each.
fn contexts(numbers: &mut Numbers) -> Vec<Context> {
    let slots = DISK_LBAS / CHUNK_LBAS;
    let count = 1 + numbers.below(slots);
    let (lba_turn, pool_turn) = (numbers.below(slots), numbers.below(slots));
    let one = |slot: u64| {
        let lbas = 1 + numbers.below(CHUNK_LBAS);
        let lba = (slot + lba_turn) % slots * CHUNK_LBAS + numbers.below(CHUNK_LBAS - lbas + 1);
        let offset = (slot + pool_turn) % slots * CHUNK_LBAS * LBA as u64 + numbers.below(2) * 4;
        let lbas = lbas.min(CHUNK_LBAS - 1);
        if numbers.below(2) == 0 { read(lba, lbas, offset) } else { write(lba, lbas, offset) }
    };
    (0..count).map(one).collect()
}

fn random_blocks_match_a_model(seed: u64, faults: &str) {
    let mut rig = Rig::new(faults);
    let mut numbers = Numbers(seed | 1);
    let mut model =
        Model { disk: vec![0; DISK_LBAS as usize * LBA], pool: pattern(seed, POOL as usize) };
    rig.gpu.write(BASE, &model.pool);
    for _ in 0..12 {
        let contexts = contexts(&mut numbers);
        let parts = 1 + numbers.below(4) as usize;
        let size = contexts.len().div_ceil(parts);
        let issued: Vec<_> = contexts.chunks(size).map(|part| rig.issue(part, None)).collect();
        contexts.iter().for_each(|context| model.apply(*context));
        for block in &issued {
            rig.finish(block);
            assert_eq!(block.progress.failed(), 0, "seed {seed}");
        }
        assert!(rig.gpu.read(BASE, POOL as usize) == model.pool, "the pool, seed {seed}");
    }
    for lba in (0..DISK_LBAS).step_by(CHUNK_LBAS as usize) {
        let expected = &model.disk[lba as usize * LBA..][..CHUNK_LBAS as usize * LBA];
        assert!(rig.on_device(lba, CHUNK_LBAS) == expected, "LBA {lba}, seed {seed}");
    }
}

#[test]
fn random_blocks_leave_disk_and_pool_as_a_model_has_them() {
    for seed in 1..20 {
        random_blocks_match_a_model(seed, "");
    }
}

#[test]
fn random_blocks_do_so_on_a_device_whose_commands_fail_once_now_and_then() {
    for seed in 1..10 {
        // Namespace Not Ready is transient: each command that fails so is retried and then succeeds.
        let failures = [5, 17, 40].map(|n| format!("status(0:82)@io:n={n}:times=1+")).concat();
        random_blocks_match_a_model(seed, &format!(",faults={failures}delay(3ms)@io:p=0.1"));
    }
}

#[test]
fn gpu_memory_is_not_read_into_before_the_event() {
    let mut rig = Rig::new("");
    rig.put_on_device(8, &pattern(1, 8 * LBA));
    let event = rig.gpu.event();
    let issued = rig.issue(&[read(8, 8, 4096)], Some(event));
    rig.pass(4 * TIMEOUT);
    assert_eq!(rig.lane().stats().copies, 1, "the device was read ahead");
    assert_eq!(rig.gpu.read(BASE + 4096, 8 * LBA), vec![0; 8 * LBA]);
    assert_eq!(issued.progress.done(), 0, "and waiting for an event is not a timeout");
    rig.gpu.happen(event);
    rig.finish(&issued);
    assert_eq!(rig.gpu.read(BASE + 4096, 8 * LBA), pattern(1, 8 * LBA));
    assert_eq!(issued.progress.failed(), 0);
}

#[test]
fn gpu_memory_is_not_written_from_before_the_event() {
    let mut rig = Rig::new("");
    let event = rig.gpu.event();
    let issued = rig.issue(&[write(8, 8, 4096)], Some(event));
    rig.pass(Duration::from_millis(10));
    rig.gpu.write(BASE + 4096, &pattern(2, 8 * LBA));
    rig.gpu.happen(event);
    rig.finish(&issued);
    assert_eq!(rig.on_device(8, 8), pattern(2, 8 * LBA));
}

#[test]
fn who_waits_for_an_event_leaves_chunks_to_those_it_may_wait_for() {
    let mut rig = Rig::new("");
    let event = rig.gpu.event();
    let many: Vec<_> = (0..3 * CHUNKS as u64).map(|n| read(n * 8, 8, n * 4096)).collect();
    let waiting = rig.issue(&many, Some(event));
    rig.pass(Duration::from_millis(10));
    let others: Vec<_> = (0..3 * CHUNKS as u64).map(|n| write(n * 8, 8, n * 4096)).collect();
    let free = rig.issue(&others, None);
    rig.finish(&free);
    assert_eq!(waiting.progress.done(), 0);
    rig.gpu.happen(event);
    rig.finish(&waiting);
}

#[test]
fn most_chunks_are_in_their_second_stage_while_others_are_in_the_first() {
    for is_write in [false, true] {
        let mut rig = Rig::new("");
        let context = |n: u64| match is_write {
            true => write(n * CHUNK_LBAS, CHUNK_LBAS, n * CHUNK_LBAS * LBA as u64),
            false => read(n * CHUNK_LBAS, CHUNK_LBAS, n * CHUNK_LBAS * LBA as u64),
        };
        let contexts: Vec<_> = (0..32).map(context).collect();
        let issued = rig.issue(&contexts, None);
        // One command and one copy in each step: a stage is never idle for lack of work.
        while issued.progress.done() == 0 {
            let now = rig.bus.now();
            rig.lane().turn(now);
            rig.bus.step();
            rig.gpu.run(1);
            rig.bus.advance(Duration::from_micros(10));
        }
        let stats = rig.lane().stats();
        assert_eq!(stats.second_stage, 32);
        assert!(stats.overlapped > 16, "{stats:?}");
        assert!(stats.marks < stats.copies, "copies are looked at in batches: {stats:?}");
    }
}

#[test]
fn a_block_is_done_for_the_gpu_when_its_data_are_there() {
    let mut rig = Rig::new("");
    rig.put_on_device(0, &pattern(3, 64 * LBA));
    let contexts: Vec<_> = (0..16).map(|n| read(n * 4, 4, n * 2048)).collect();
    let issued = rig.issue(&contexts, None);
    while issued.progress.done() == 0 {
        rig.step(1);
        if rig.gpu.word(issued.done) == issued.generation {
            assert_eq!(rig.gpu.read(BASE, 64 * LBA), pattern(3, 64 * LBA));
        }
    }
}
