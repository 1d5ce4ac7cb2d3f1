//! Objects that are put are there, also after the store is opened again.

use adit_driver::Time;
use adit_driver::device::DeviceInfo;
use adit_driver::memory::AnyBuffer;
use adit_driver::{Device, DeviceOptions, Target};
use adit_kvstore::shard::{Action, Done, GetItem, Outcome, Part, PutItem, PutOptions, Request};
use adit_kvstore::{FormatStore, Key, Local, OpenOptions, Store};

fn wait(store: &mut Local, action: Action) -> Done {
    let now = store.now();
    store.submit(now, Request { tag: 7, deadline: Time::NEVER, action });
    let mut answer = None;
    while answer.is_none() {
        let now = store.now();
        store.poll(now, &mut |done| answer = Some(done));
    }
    answer.expect("an answer")
}

fn device(target: &str) -> Device {
    let target: Target = target.parse().expect("a target");
    Device::open(&target, &DeviceOptions { queue_count: 8, ..Default::default() }).expect("opens")
}

fn put(store: &mut Local, key: u64, bytes: usize) -> Result<Outcome, adit_kvstore::shard::Failure> {
    let mut buffer = store.allocate(bytes.next_multiple_of(4096)).expect("memory");
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = (key as usize * 31 + at / 3) as u8;
    }
    let item = PutItem {
        key: key.into(),
        bytes: bytes as u64,
        data: AnyBuffer::One(buffer),
        options: PutOptions::default(),
    };
    wait(store, Action::Put(item)).result
}

fn get(store: &mut Local, key: u64, bytes: usize) -> Option<usize> {
    let buffer = store.allocate(bytes.next_multiple_of(4096)).expect("memory");
    let item = GetItem { key: key.into(), part: Part::All, into: AnyBuffer::One(buffer) };
    let done = wait(store, Action::Get(item));
    match (done.result.expect("no failure"), done.memory) {
        (Outcome::Miss, _) => None,
        (Outcome::Hit { bytes }, AnyBuffer::One(buffer)) => {
            for (at, byte) in buffer[..bytes as usize].iter().enumerate() {
                assert_eq!(*byte, (key as usize * 31 + at / 3) as u8, "byte {at} of {key}");
            }
            Some(bytes as usize)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn objects_come_back() {
    let device = device("soft:mem=256M");
    let _: &DeviceInfo = device.info();
    let devices = vec![device];
    Store::format(&FormatStore { devices: devices.clone(), ..FormatStore::default() })
        .expect("formats");
    let options = OpenOptions { devices, ..OpenOptions::default() };
    let mut store = Store::open_local(&options).expect("opens");
    for key in 0..3000u64 {
        let bytes = 1 + (key as usize * 7919) % 200_000;
        assert_eq!(put(&mut store, key, bytes), Ok(Outcome::Stored), "{key}");
        assert_eq!(get(&mut store, key, 200_000), Some(bytes));
    }
    let there: Vec<u64> =
        (0..3000).filter(|key| get(&mut store, *key, 200_000).is_some()).collect();
    println!("{} objects, {:?}", there.len(), store.stats());
    assert!(there.len() > 2000 && there.contains(&2999));
    store.close(&mut |_| {}).expect("closes");
    let mut store = Store::open_local(&options).expect("opens again");
    println!("{:?}", store.recoveries());
    let again: Vec<u64> =
        (0..3000).filter(|key| get(&mut store, *key, 200_000).is_some()).collect();
    assert_eq!(there, again);
    assert!(store.exists(store.now(), &Key::from(2999u64)));
}
