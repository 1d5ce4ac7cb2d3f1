//! Reads carried out by another executor.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_driver::memory::AnyBuffer;
use adit_driver::paths::{CommandQueue, DeviceQueue, Operation, QueueOptions, Request};
use adit_driver::transfer::{Slice, Transfer};
use adit_driver::{Buffer, Device, DeviceOptions, Time};
use adit_kvstore::shard::{Action, Failure, Part, PlannedItem, PutItem, PutOptions, Verification};
use adit_kvstore::store::{FormatStore, OpenOptions, ShardTransfers, Transfers};
use adit_kvstore::{Key, Local, Store};

use crate::on_each_path;
use crate::rig::{Rig, data, key};

on_each_path!(
    a_plan_is_carried_out_by_hand_and_verified,
    a_plan_of_a_part_that_is_not_there_holds_nothing,
);

/// An executor with a queue of its own.
struct Executor {
    device: Device,
    queue: DeviceQueue<Buffer>,
}

impl Executor {
    fn new(device: &Device) -> Executor {
        let timeout = Duration::from_secs(10);
        let options = QueueOptions { depth: 1, timeout, abort_timeout: timeout };
        let queue = device.create_queue(&options, &[]).expect("a queue");
        Executor { device: device.clone(), queue }
    }

    fn read(&mut self, transfer: &Transfer<&[Slice]>) -> Buffer {
        assert_eq!(transfer.device, 0);
        let bytes = transfer.bytes().expect("a command's") as usize;
        let mut buffer = self.device.allocate(bytes).expect("memory");
        drop(buffer.split_off(bytes));
        let request = Request { operation: Operation::Read(transfer.lba), buffer };
        self.queue.post(self.device.now(), request).expect("room");
        self.queue.ring();
        loop {
            let mut read = None;
            self.queue.poll(self.device.now(), |completion| read = Some(completion));
            if let Some(completion) = read {
                completion.result.expect("read");
                return completion.buffer;
            }
            std::thread::yield_now();
        }
    }

    /// Carries out all transfers and returns the memory of each item, by its position.
    fn run(&mut self, part: &ShardTransfers) -> BTreeMap<u32, Vec<u8>> {
        let memory = |position: &u32| {
            let bytes = part.item(*position).map_or(0, PlannedItem::padded_bytes);
            (*position, vec![0; bytes as usize])
        };
        let mut items: BTreeMap<_, _> = part.positions.iter().map(memory).collect();
        for transfer in part.transfers() {
            let (buffer, mut at) = (self.read(&transfer), 0);
            for slice in transfer.slices {
                let (start, len) = (slice.offset as usize, slice.bytes as usize);
                let item = items.get_mut(&slice.region).expect("an item of this part");
                item[start..start + len].copy_from_slice(&buffer[at..at + len]);
                at += len;
            }
        }
        items
    }

    /// Returns what each item of the list read, with its position, and whether it is intact.
    fn carry_out<L>(&mut self, transfers: &Transfers<L>) -> Vec<(u32, Vec<u8>, bool)> {
        let mut all = Vec::new();
        for part in &transfers.parts {
            for (position, memory) in self.run(part) {
                let Some(item) = part.item(position) else { continue };
                let is_intact = item.is_intact(&memory);
                all.push((position, memory[..item.bytes() as usize].to_vec(), is_intact));
            }
        }
        all.sort_by_key(|(position, ..)| *position);
        all
    }
}

fn len(number: u64) -> usize {
    3000 + 41_000 * number as usize
}

fn asked(numbers: std::ops::Range<u64>) -> Vec<(Key, Part)> {
    numbers.map(|number| (key(number), Part::All)).collect()
}

fn a_plan_is_carried_out_by_hand_and_verified(rig: &Rig) {
    let store = rig.format(2).open();
    for number in (0..10).filter(|number| *number != 4) {
        let put = store.put(key(number), data(number, len(number))).wait().expect("put");
        assert!(put.is_stored());
    }
    let leased = || store.stats().wait().expect("counted").leased;
    let transfers = store.plan(&asked(0..10), Duration::from_secs(60)).wait().expect("planned");
    assert_eq!((leased(), transfers.lease.count()), (9, 9));
    assert!(transfers.item(4).is_none() && transfers.item(10).is_none(), "a miss");
    let mut executor = Executor::new(&store.devices()[0]);
    let read = executor.carry_out(&transfers);
    let positions: Vec<u32> = read.iter().map(|(position, ..)| *position).collect();
    assert_eq!(positions, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    for (position, mut bytes, is_intact) in read {
        let number = u64::from(position);
        assert!(is_intact && bytes == data(number, len(number)), "object {number}");
        let item = transfers.item(position).expect("it is there");
        assert_eq!(item.verification(), Verification::Unverified, "no device protects it");
        let last = bytes.len() - 1;
        assert!(item.is_intact(&bytes) && !item.is_intact(&bytes[..last]), "too short");
        bytes[last] ^= 1;
        assert!(!item.is_intact(&bytes), "a bit is another");
    }
    drop(transfers);
    assert_eq!(leased(), 0);
}

fn a_plan_of_a_part_that_is_not_there_holds_nothing(rig: &Rig) {
    let store = rig.format(3).open();
    for number in 0..9 {
        store.put(key(number), data(number, 5000)).wait().expect("put");
    }
    let mut parts = asked(0..9);
    parts[7].1 = Part::Layer(0);
    let refused = store.plan(&parts, Duration::from_secs(60)).wait().expect_err("it has no layers");
    assert!(matches!(refused.failure(), Some(Failure::Part(_))), "{refused}");
    assert_eq!(store.stats().wait().expect("counted").leased, 0);
    let none = store.plan(&[], Duration::from_secs(60)).wait().expect("nothing");
    assert!(none.parts.is_empty());
    drop((none, store));
    let mut local = Store::open_local(&rig.options()).expect("a store");
    let refused = local.plan(local.now(), &parts, Time::NEVER).expect_err("it has no layers");
    assert!(matches!(refused, Failure::Part(_)) && local.stats().leased == 0);
}

/// Puts objects and waits until all are stored.
fn put_all(local: &mut Local, numbers: std::ops::Range<u64>, stamp: u64, len: usize) {
    let count = numbers.end - numbers.start;
    let item = |number| {
        let mut buffer = local.allocate(len.next_multiple_of(4096)).expect("memory");
        buffer[..len].copy_from_slice(&data(number + stamp, len));
        let (data, options) = (AnyBuffer::One(buffer), PutOptions::default());
        let action = Action::Put(PutItem { key: key(number), bytes: len as u64, data, options });
        adit_kvstore::shard::Request { reply: number, deadline: Time::NEVER, action }
    };
    let puts: Vec<_> = numbers.map(item).collect();
    local.submit_many(local.now(), puts);
    let mut stored = 0;
    while stored < count {
        let now = local.now();
        local.poll(now, &mut |done| {
            assert!(done.result.is_ok(), "{:?}", done.result);
            stored += 1;
        });
    }
}

#[test]
fn nothing_is_written_where_a_plan_reads_until_it_is_released() {
    let (queue_count, target) = (8, "soft:mem=48M".parse().expect("a target"));
    let options = DeviceOptions { queue_count, ..DeviceOptions::default() };
    let device = Device::open(&target, &options).expect("a controller");
    let devices = vec![device.clone()];
    let format = FormatStore { devices: devices.clone(), shards: 2, ..FormatStore::default() };
    Store::format(&format).expect("formatted");
    let options = OpenOptions { devices, ..OpenOptions::default() };
    let mut local = Store::open_local(&options).expect("a store");
    put_all(&mut local, 0..8, 0, 50_000);
    let transfers = local.plan(local.now(), &asked(0..9), Time::NEVER).expect("planned");
    assert!(transfers.item(8).is_none() && transfers.item(7).is_some());
    let mut executor = Executor::new(&device);
    // Replace the objects, then overwrite all other space twice.
    put_all(&mut local, 0..8, 1000, 50_000);
    let churn = |local: &mut Local, round: u64| {
        for first in (0..96).step_by(4) {
            let numbers = round * 1000 + first..round * 1000 + first + 4;
            put_all(local, numbers, 5000, 1 << 20);
        }
    };
    churn(&mut local, 1);
    let read = executor.carry_out(&transfers);
    assert_eq!(read.len(), 8);
    for (position, bytes, is_intact) in read {
        assert!(is_intact && bytes == data(u64::from(position), 50_000), "object {position}");
    }
    let Transfers { parts, lease } = transfers;
    local.release(lease).expect("this store's");
    churn(&mut local, 2);
    // Small ones fit where the replaced objects were.
    (0..16).for_each(|round| put_all(&mut local, 3000 + 8 * round..3008 + 8 * round, 7000, 50_000));
    let read = executor.carry_out(&Transfers { parts, lease: () });
    assert!(read.iter().any(|(.., is_intact)| !is_intact), "the room was used again");
    for (position, bytes, is_intact) in read {
        assert_eq!(is_intact, bytes == data(u64::from(position), 50_000), "object {position}");
    }
}
