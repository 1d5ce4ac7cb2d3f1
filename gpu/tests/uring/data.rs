//! Data goes exactly where it should: random transfers against a model of pool and devices.

use adit_driver::spec::Lba;
use adit_gpu::{Direction, EngineChoice, KernelChoice, Options, Place, Slice, Transfer};

use crate::rig::{LONG, REGIONS, Rig, alone, options};

/// A linear congruential generator: the tests' only randomness, by its seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.below(256) as u8;
        }
    }
}

struct Model {
    pool: Vec<Vec<u8>>,
    devices: Vec<Vec<u8>>,
}

const DEVICE_BYTES: u64 = 8 << 20;

impl Model {
    fn new(rig: &Rig, chance: &mut Chance) -> Model {
        let pool = REGIONS.map(|bytes| vec![0u8; bytes as usize]);
        let mut model = Model {
            pool: pool.to_vec(),
            devices: rig.devices.iter().map(|_| vec![0u8; DEVICE_BYTES as usize]).collect(),
        };
        model.refill(rig, chance);
        model
    }

    /// Writes new bytes to all of the pool.
    fn refill(&mut self, rig: &Rig, chance: &mut Chance) {
        for (region, bytes) in self.pool.iter_mut().enumerate() {
            chance.fill(bytes);
            rig.uring.pool().write(region, 0, bytes).expect("written");
        }
    }

    fn carry_out(&mut self, transfer: &Transfer<Vec<Slice>>, lba_bytes: u64) {
        let device = &mut self.devices[usize::from(transfer.device)];
        let mut at = (transfer.lba.0 * lba_bytes) as usize;
        for slice in &transfer.slices {
            let bytes = slice.bytes as usize;
            let on_device = &mut device[at..at + bytes];
            let in_pool = &mut self.pool[slice.region as usize][slice.offset as usize..][..bytes];
            match transfer.direction {
                Direction::Read => in_pool.copy_from_slice(on_device),
                Direction::Write => on_device.copy_from_slice(in_pool),
            }
            at += bytes;
        }
    }

    fn check(&self, rig: &Rig, seed: u64) {
        for (region, expected) in self.pool.iter().enumerate() {
            let mut bytes = vec![0u8; expected.len()];
            rig.uring.pool().read(region, 0, &mut bytes).expect("read");
            let wrong = bytes.iter().zip(expected).position(|(is, should)| is != should);
            assert_eq!(wrong, None, "region {region}, seed {seed}");
        }
    }
}

/// Returns disjoint transfers in both directions, of one or two slices each: each device and each region is cut into as
/// many parts.
fn transfers(rig: &Rig, chance: &mut Chance, parts: u64) -> Vec<Transfer<Vec<Slice>>> {
    let mut all = Vec::new();
    for part in 0..parts {
        let device = chance.below(rig.devices.len() as u64) as u16;
        let lba_bytes = u64::from(rig.devices[usize::from(device)].namespace.lba_bytes());
        let region = chance.below(REGIONS.len() as u64) as u32;
        let slot_bytes = REGIONS[region as usize] / parts / lba_bytes * lba_bytes;
        let lbas = 1 + chance.below(slot_bytes / lba_bytes - 1);
        let slack = (slot_bytes - lbas * lba_bytes) / 4;
        let device_slot = DEVICE_BYTES / parts / lba_bytes;
        let lba = Lba(part * device_slot + chance.below(device_slot.saturating_sub(lbas) + 1));
        let offset = part * slot_bytes + 4 * chance.below(slack + 1);
        let (lbas, direction) = (lbas.min(device_slot), chance.below(2));
        // The second slice comes first in memory.
        let second_bytes = chance.below(lbas) * lba_bytes;
        let first =
            Slice { region, offset: offset + second_bytes, bytes: lbas * lba_bytes - second_bytes };
        let mut slices = vec![first];
        if second_bytes > 0 {
            slices.push(Slice { region, offset, bytes: second_bytes });
        }
        let direction = if direction == 0 { Direction::Read } else { Direction::Write };
        all.push(Transfer { device, direction, lba, slices });
    }
    all
}

/// Runs rounds of random transfers, each checked.
fn carries_data(targets: &[&str], settings: &str, options: &Options, parts: u64, seed: u64) {
    carries_data_in(Place::Host, targets, settings, options, parts, seed);
}

fn carries_data_in(
    place: Place,
    targets: &[&str],
    settings: &str,
    options: &Options,
    parts: u64,
    seed: u64,
) {
    let _alone = alone(settings);
    let rig = Rig::new(targets, place, options);
    let mut chance = Chance(seed);
    let mut model = Model::new(&rig, &mut chance);
    let mut commands = 0;
    for _ in 0..4 {
        let transfers = transfers(&rig, &mut chance, parts);
        let iocbs = rig.uring.get_iocb(transfers.iter().cloned(), None).expect("blocks");
        commands += iocbs.commands();
        rig.uring.issue_io(&iocbs, 0).expect("issued");
        let outcome = rig.uring.wait(iocbs, LONG).expect("done");
        assert_eq!(outcome.failed, [], "seed {seed}");
        for transfer in &transfers {
            let lba_bytes = rig.devices[usize::from(transfer.device)].namespace.lba_bytes();
            model.carry_out(transfer, u64::from(lba_bytes));
        }
        model.check(&rig, seed);
        model.refill(&rig, &mut chance);
    }
    // Exactly once: no other command was sent.
    assert_eq!(rig.uring.stats().expect("stats").commands, commands);
}

#[test]
fn transfers_by_sgl_carry_exactly_their_bytes() {
    carries_data(&["soft:mem=8M,dbbuf=off"], "", &options(), 40, 1);
}

#[test]
fn transfers_by_prebuilt_prp_carry_exactly_their_bytes() {
    carries_data(&["soft:mem=8M,dbbuf=off,sgl=off"], "", &options(), 24, 2);
}

#[test]
fn sgls_of_dwords_carry_what_is_aligned() {
    carries_data(&["soft:mem=8M,dbbuf=off,sgl=dword,lba=4096"], "", &options(), 40, 3);
}

#[test]
fn small_commands_that_stop_at_a_boundary_carry_large_transfers() {
    carries_data(&["soft:mem=8M,dbbuf=off,mdts=2,noiob=24"], "", &options(), 12, 4);
    carries_data(&["soft:mem=8M,dbbuf=off,mdts=1,noiob=3,sgl=off"], "", &options(), 12, 5);
}

#[test]
fn several_devices_of_different_formats_share_blocks_of_one_call() {
    let targets = [
        "soft:mem=8M,dbbuf=off",
        "soft:mem=8M,dbbuf=off,lba=4096,mdts=3",
        "soft:mem=8M,dbbuf=off,sgl=off",
    ];
    carries_data(&targets, "", &options(), 48, 6);
}

#[test]
fn queues_of_two_entries_carry_one_command_at_a_time() {
    let options = Options { queues: 1, depth: 2, ..options() };
    carries_data(&["soft:mem=8M,dbbuf=off,mdts=3"], "", &options, 20, 7);
}

#[test]
fn the_persistent_kernel_carries_the_same() {
    let options = Options { kernel: KernelChoice::Persistent, ..options() };
    carries_data(
        &["soft:mem=8M,dbbuf=off", "soft:mem=8M,dbbuf=off,sgl=off"],
        "no-green",
        &options,
        32,
        8,
    );
}

#[test]
fn protected_namespaces_carry_the_same() {
    carries_data(&["soft:mem=12M,dbbuf=off,pi=1"], "", &options(), 24, 9);
}

#[test]
fn rings_beside_a_pool_in_the_gpus_memory_carry_the_same() {
    let options =
        Options { submission: Some(Place::Gpu), completion: Some(Place::Gpu), ..options() };
    carries_data_in(
        Place::Gpu,
        &["soft:mem=8M,dbbuf=off"],
        "coherent,ordering=100",
        &options,
        24,
        10,
    );
}

#[test]
fn the_staged_engine_carries_the_same_behind_the_same_functions() {
    let options = Options { engine: EngineChoice::Staged, ..options() };
    carries_data(&["soft:mem=8M", "soft:mem=8M,lba=4096,mdts=3"], "", &options, 32, 11);
}

#[test]
fn more_commands_than_a_block_holds_fill_several() {
    let _alone = alone("");
    let rig = Rig::new(&["soft:mem=8M,dbbuf=off"], Place::Host, &options());
    let mut chance = Chance(12);
    let mut model = Model::new(&rig, &mut chance);
    let transfer = |direction, lba, offset| Transfer {
        device: 0,
        direction,
        lba: Lba(lba),
        slices: vec![Slice { region: 0, offset, bytes: 512 }],
    };
    let write = |lba| transfer(Direction::Write, lba, (lba * 512) ^ 512);
    let all = (0..5000).map(write).collect::<Vec<_>>();
    let iocbs = rig.uring.get_iocb(all.iter().cloned(), None).expect("blocks");
    assert_eq!((iocbs.commands(), iocbs.blocks()), (5000, 3));
    rig.uring.issue_io(&iocbs, 0).expect("issued");
    let outcome = rig.uring.wait(iocbs, LONG).expect("done");
    assert_eq!((outcome.commands, outcome.is_success()), (5000, true));
    all.iter().for_each(|transfer| model.carry_out(transfer, 512));
    let read = |lba| transfer(Direction::Read, lba, lba * 512);
    let back = (0..5000).map(read).collect::<Vec<_>>();
    let iocbs = rig.uring.get_iocb(back.iter().cloned(), None).expect("blocks");
    rig.uring.issue_io(&iocbs, 0).expect("issued");
    assert!(rig.uring.wait(iocbs, LONG).expect("done").is_success());
    back.iter().for_each(|transfer| model.carry_out(transfer, 512));
    model.check(&rig, 12);
    let stats = rig.uring.stats().expect("stats");
    assert_eq!(stats.commands, 10_000);
    assert!(stats.sq_rings <= stats.commands && stats.late == 0, "{stats:?}");
    // The device is told of completions at most four times a lap of rings of 128.
    assert!(stats.cq_rings <= stats.commands / 32 + 2, "{stats:?}");
}
