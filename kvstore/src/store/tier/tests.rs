//! The sizes of shares, and a store's tier while a made-up machine has more and less memory.

use std::cell::Cell;
use std::time::{Duration, Instant};

use adit_driver::{Buffer, Device, DeviceOptions};

use super::*;
use crate::memory::{Machine, Probe};
use crate::model::key::Key;
use crate::store::answer::pair;
use crate::store::request::ThreadShard;
use crate::store::{FormatStore, OpenOptions, Store};

const MIB: u64 = 1 << 20;
const OBJECTS: u64 = 32;

#[test]
fn shards_get_regions_of_which_the_last_is_shorter() {
    let target = "null:".parse().expect("a target");
    let device = Device::open(&target, &Default::default()).expect("a device");
    let lent = |left: [u64; 2], share, most| {
        let (mut regions, looks) = (Vec::new(), Cell::new(0));
        let lend = |number, memory: Vec<Buffer>| {
            regions.extend(memory.iter().map(|region| (number, region.len() as u64)));
            Ok(())
        };
        let goes_on = || looks.replace(looks.get() + 1) < most;
        let has = TierSize::default().lend(&device, (left.to_vec(), share), &goes_on, lend);
        (regions, has.expect("memory"))
    };
    let share = 64 * MIB + 12_288;
    let both = [(0, 64 * MIB), (0, 12_288), (1, 64 * MIB), (1, 12_288)].to_vec();
    assert_eq!(lent([0, 0], share, 9), (both, 2 * share));
    assert_eq!(lent([64 * MIB, 0], 64 * MIB, 9), ([(1, 64 * MIB)].to_vec(), 128 * MIB));
    assert_eq!(lent([0, 0], share, 1), ([(0, 64 * MIB)].to_vec(), 64 * MIB));
    let one_each = [(0, 64 * MIB), (1, 64 * MIB)].to_vec();
    assert_eq!(lent([0, 0], share, 2), (one_each, 128 * MIB), "they take turns");
    assert_eq!(lent([4096, 4096], 4096, 9), (vec![], 8192));
}

#[test]
fn what_one_shard_gives_up_is_freed_while_another_is_busy() {
    struct Tells(mpsc::Sender<()>);
    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let long = Duration::from_secs(60);
    let (busy, pending) = pair::<u64>(long);
    let (gives, given_up) = mpsc::channel();
    let (tells, freed) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        free(&given_up, &[pending]);
    });
    gives.send(Tells(tells)).expect("it is awaited");
    freed.recv_timeout(long / 2).expect("freed");
    assert!(!thread.is_finished(), "it waits for the other shard");
    drop(gives);
    thread.join().expect("it ends once all were asked");
    drop(busy);
}

#[test]
fn a_size_that_became_unknown_is_asked_for() {
    let (_machine, probe) = machine("unknown-size", 8192);
    let store = open(probe);
    let most = 256 * MIB;
    assert_eq!(store.set_tier(most).expect("memory"), most);
    {
        // As behind a change of which one shard had none.
        let mut size = lock(&store.threads.tier.size);
        size.is_unknown = true;
        let made = |shard: &mut _, _| Ok(make_way(shard, 0).0);
        assert_eq!(store.core.ask(0, made).wait().expect("an answer"), 0);
    }
    read_until(&store, most);
    store.close().wait().expect("closed");
}

/// A machine with so much available memory, however much this process takes, and the probe of it.
fn machine(name: &str, available_mib: u64) -> (Machine, Probe) {
    let machine = Machine::new(&format!("tier-{name}"));
    let probe = machine.mounted("", &[]);
    set_available(&machine, available_mib);
    (machine, probe)
}

fn set_available(machine: &Machine, mib: u64) {
    machine.put("proc/meminfo", &format!("MemAvailable: {} kB\n", mib << 10));
}

/// Opens a store that looks at the memory of `probe`, with some objects.
fn open(probe: Probe) -> Store {
    let target = "soft:mem=64M,queues=host".parse().expect("a target");
    let device = Device::open(&target, &DeviceOptions { queue_count: 8, ..Default::default() });
    let devices = vec![device.expect("a controller")];
    let format = FormatStore { devices: devices.clone(), shards: 2, ..Default::default() };
    Store::format(&format).expect("formatted");
    let store = Store::open(&OpenOptions { devices, ..Default::default() }).expect("a store");
    lock(&store.threads.tier.size).probe = Some(probe);
    for number in 0..OBJECTS {
        store.put(Key::from(number), bytes(number)).wait().expect("stored");
    }
    store
}

fn bytes(number: u64) -> Vec<u8> {
    (0..20_000 + number).map(|at| (at * 7 + number) as u8).collect()
}

/// Reads all objects until the tier has so many bytes, and then once more.
fn read_until(store: &Store, tier_bytes: u64) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let has = store.stats().wait().expect("counters").tier_bytes;
        for number in 0..OBJECTS {
            let value = store.get(Key::from(number)).wait().expect("an answer");
            assert_eq!(value.as_deref(), Some(&bytes(number)[..]));
        }
        if has == tier_bytes {
            return;
        }
        assert!(Instant::now() < deadline, "{has} bytes, not {tier_bytes}");
    }
}

#[test]
fn a_tier_gives_memory_back_while_there_is_too_little_and_then_takes_it_again() {
    let (machine, probe) = machine("squeezed", 8192);
    let store = open(probe);
    let most = 256 * MIB;
    assert_eq!(store.set_tier(most).expect("memory"), most);
    for _ in 0..2 {
        read_until(&store, most);
        let stats = store.stats().wait().expect("counters");
        assert_eq!((stats.tier_objects, stats.misses_corrupt), (OBJECTS, 0));
        set_available(&machine, 0);
        read_until(&store, 0);
        assert_eq!(store.stats().wait().expect("counters").tier_objects, 0);
        set_available(&machine, 8192);
    }
    read_until(&store, most);
    let hits = || store.stats().wait().expect("counters").tier_hits;
    let before = hits();
    read_until(&store, most);
    assert!(hits() >= before + OBJECTS);
    store.close().wait().expect("closed");
}

#[test]
fn values_pin_a_part_of_the_memory_and_are_copies_beyond_that() {
    let (_machine, probe) = machine("pinned", 8192);
    let store = open(probe);
    assert_eq!(store.set_tier(8 * MIB).expect("memory"), 8 * MIB);
    let stats = || store.stats().wait().expect("counters");
    let read = || {
        let get = |number| store.get(Key::from(number)).wait().expect("an answer").expect("a hit");
        let values: Vec<_> = (0..OBJECTS).map(get).collect();
        assert!((0..).zip(&values).all(|(number, value)| **value == *bytes(number)));
        values
    };
    drop(read());
    let before = stats().tier_hits;
    let shared = read();
    assert_eq!((stats().tier_pinned_bytes, stats().tier_given_up_bytes), (8 * MIB, 0));
    assert_eq!(store.set_tier(0).expect("none"), 0);
    let left = stats();
    assert_eq!((left.tier_bytes, left.tier_pinned_bytes), (0, 8 * MIB), "values keep it");
    assert_eq!(left.tier_given_up_bytes, 8 * MIB);
    drop(shared);
    assert_eq!((stats().tier_pinned_bytes, stats().tier_given_up_bytes), (0, 0));

    assert_eq!(store.set_tier(8 * MIB).expect("memory"), 8 * MIB);
    for shard in 0..2 {
        let limit = |shard: &mut ThreadShard, _| {
            shard.tier_mut().set_pinned_bytes_max(4 * MIB - 1);
            Ok(())
        };
        store.core.ask(shard, limit).wait().expect("an answer");
    }
    drop(read());
    let copies = read();
    assert_eq!((stats().tier_pinned_bytes, stats().tier_hits), (0, before + 2 * OBJECTS));
    assert!((0..).zip(&copies).all(|(number, value)| **value == *bytes(number)));
    store.close().wait().expect("closed");
}

#[test]
fn a_tier_begins_with_what_there_is_room_for() {
    let (_machine, probe) = machine("bounded", 400);
    let store = open(probe);
    // 400 MiB, less a headroom and a half of 76 MiB, in steps of 128 MiB for the two shards.
    assert_eq!(store.set_tier(1 << 40).expect("memory"), 256 * MIB);
    assert_eq!(store.set_tier(128 * MIB).expect("memory"), 128 * MIB);
    assert_eq!(store.set_tier(0).expect("none"), 0);
    store.close().wait().expect("closed");
}

#[test]
fn a_machine_that_cannot_be_read_limits_nothing() {
    let (machine, probe) = machine("unknown", 0);
    machine.put("proc/meminfo", "MemTotal: 9000 kB\n");
    let store = open(probe);
    assert_eq!(store.set_tier(3 * MIB).expect("memory"), 3 * MIB);
    store.clone().close().wait().expect("closed");
    assert!(store.set_tier(4 * MIB).is_err(), "it is closed");
}
