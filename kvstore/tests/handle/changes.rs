//! Devices that are added to a store, removed from it, or grow, with the objects before and after.

use std::fs;
use std::path::PathBuf;

use adit_driver::{Device, DeviceOptions, Target};
use adit_kvstore::Store;
use adit_kvstore::store::{Change, ChangeStore, Changed, FormatStore, Leaving, OpenOptions};

use crate::rig::{data, key};

const BYTES: u64 = 64 << 20;

/// Devices of one kind, of which any can be a store's. Files go with it.
struct Shelf {
    soft: Vec<Device>,
    files: Vec<PathBuf>,
    object_bytes: usize,
}

impl Shelf {
    fn soft(count: usize) -> Shelf {
        let target: Target = "soft:mem=64M,queues=host".parse().expect("a target");
        let options = DeviceOptions { queue_count: 8, ..DeviceOptions::default() };
        let open = |_| Device::open(&target, &options).expect("a controller");
        Shelf { soft: (0..count).map(open).collect(), files: Vec::new(), object_bytes: 40_000 }
    }

    fn files(name: &str, count: usize, object_bytes: usize) -> Shelf {
        let path = |at| {
            let name = format!("adit-changes-{}-{name}-{at}.img", std::process::id());
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
        };
        Shelf { soft: Vec::new(), files: (0..count).map(path).collect(), object_bytes }
    }

    fn targets(&self, which: &[usize]) -> Vec<Target> {
        let target = |at: &usize| {
            let path = self.files.get(*at)?;
            Some(format!("uring:{}", path.display()).parse().expect("a target"))
        };
        which.iter().filter_map(target).collect()
    }

    fn devices(&self, which: &[usize]) -> Vec<Device> {
        which.iter().filter_map(|at| self.soft.get(*at).cloned()).collect()
    }

    fn format(&self, which: &[usize], shards: u16) {
        let (targets, devices) = (self.targets(which), self.devices(which));
        let file_bytes = Some(BYTES);
        let options =
            FormatStore { targets, devices, shards, file_bytes, ..FormatStore::default() };
        Store::format(&options).expect("formatted");
    }

    fn open(&self, which: &[usize]) -> adit_kvstore::Result<Store> {
        let (targets, devices) = (self.targets(which), self.devices(which));
        let pool_bytes = 4 << 20;
        Store::open(&OpenOptions { targets, devices, pool_bytes, ..OpenOptions::default() })
    }

    fn change(&self, which: &[usize], change: Change) -> adit_kvstore::Result<Changed> {
        let (targets, devices) = (self.targets(which), self.devices(which));
        Store::change(&ChangeStore { targets, devices, change })
    }

    fn add(&self, which: &[usize], new: usize) -> adit_kvstore::Result<Changed> {
        let (targets, devices) = (self.targets(&[new]), self.devices(&[new]));
        let (file_bytes, overwrite) = (Some(BYTES), false);
        self.change(which, Change::Add { targets, devices, file_bytes, overwrite })
    }

    /// Puts objects and closes the store.
    fn put(&self, which: &[usize], numbers: std::ops::Range<u64>) {
        let store = self.open(which).expect("a store");
        for number in numbers {
            let put = store.put(key(number), data(number, self.object_bytes)).wait().expect("put");
            assert!(put.is_stored());
        }
        store.close().wait().expect("closed");
    }

    /// Returns how many of these objects are there, all of which must be right.
    fn hits(&self, which: &[usize], numbers: std::ops::Range<u64>) -> u64 {
        let store = self.open(which).expect("a store");
        let mut hits = 0;
        for number in numbers {
            if let Some(value) = store.get(key(number)).wait().expect("got") {
                assert!(value[..] == data(number, self.object_bytes)[..], "object {number}");
                hits += 1;
            }
        }
        let stats = store.close().wait().expect("closed");
        assert_eq!(stats.misses_corrupt, 0);
        hits
    }

    /// Returns the units that the store has for objects.
    fn capacity(&self, which: &[usize]) -> u64 {
        self.open(which).expect("a store").close().wait().expect("closed").capacity_units
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        self.files.iter().for_each(|file| drop(fs::remove_file(file)));
    }
}

fn objects_survive_devices_that_come_and_go(shelf: &Shelf) {
    shelf.format(&[0, 1], 2);
    shelf.put(&[0, 1], 0..60);
    shelf.add(&[0, 1], 2).expect("it is blank");
    assert_eq!(shelf.hits(&[0, 1, 2], 0..60), 60);
    let refused = shelf.open(&[0, 1]).expect_err("one is missing").to_string();
    assert!(refused.contains("device 2 of the 3") && refused.contains("added to it"), "{refused}");
    shelf.put(&[0, 1, 2], 60..120);

    let objects = Leaving::Move;
    let done = shelf.change(&[0, 1, 2], Change::Remove { device: 0, objects }).expect("room");
    assert!(done.moved_objects > 10 && done.lost_objects == 0, "{done:?}");
    assert_eq!(shelf.hits(&[1, 2], 0..120), 120);
    let refused = shelf.open(&[0, 1, 2]).expect_err("it was removed").to_string();
    assert!(refused.contains("nothing was ever written here"), "{refused}");
    shelf.put(&[1, 2], 120..150);

    let objects = Leaving::Drop;
    let done = shelf.change(&[1, 2], Change::Remove { device: 1, objects }).expect("they go");
    assert!(done.lost_objects > 10, "{done:?}");
    assert_eq!(shelf.hits(&[1], 0..150), 150 - done.lost_objects);
    shelf.add(&[1], 0).expect("it is blank");
    shelf.put(&[1, 0], 150..180);
    assert_eq!(shelf.hits(&[1, 0], 150..180), 30);
}

#[test]
fn objects_survive_controllers_that_come_and_go() {
    objects_survive_devices_that_come_and_go(&Shelf::soft(3));
}

#[test]
fn objects_survive_files_that_come_and_go() {
    objects_survive_devices_that_come_and_go(&Shelf::files("go", 3, 40_000));
}

#[test]
fn a_store_takes_in_what_its_file_has_grown_by() {
    let shelf = Shelf::files("grow", 2, 1_000_000);
    shelf.format(&[0, 1], 3);
    shelf.put(&[0, 1], 0..60);
    let before = shelf.capacity(&[0, 1]);
    let file = fs::File::options().write(true).open(&shelf.files[1]).expect("there");
    file.set_len(BYTES + (32 << 20)).expect("longer");
    let refused = shelf.open(&[0, 1]).expect_err("it is larger").to_string();
    assert!(refused.contains("adit kv grow"), "{refused}");
    shelf.change(&[0, 1], Change::Grow { file_bytes: None }).expect("it has grown");
    assert_eq!(shelf.capacity(&[0, 1]), before + (32 << 20) / 4096);
    assert_eq!(shelf.hits(&[0, 1], 0..60), 60);

    let file_bytes = Some(BYTES + (64 << 20));
    let done = shelf.change(&[0, 1], Change::Grow { file_bytes }).expect("they are extended");
    let sizes: Vec<u64> =
        shelf.files.iter().map(|f| fs::metadata(f).expect("there").len()).collect();
    assert_eq!(sizes, [BYTES + (64 << 20); 2]);
    assert_eq!(shelf.capacity(&[0, 1]), before + (128 << 20) / 4096);
    assert_eq!(done.data_bytes / 4096, before + (128 << 20) / 4096);
    // More than the files held before.
    shelf.put(&[0, 1], 60..180);
    assert_eq!(shelf.hits(&[0, 1], 0..180), 180);
    let refused = shelf.change(&[0, 1], Change::Grow { file_bytes }).expect_err("no growth");
    assert!(refused.to_string().contains("extend the file"), "{refused}");
}

#[test]
fn what_does_not_fit_is_refused_and_a_file_of_no_store_is_not_extended() {
    let shelf = Shelf::files("full", 3, 1_000_000);
    shelf.format(&[0, 1], 1);
    shelf.put(&[0, 1], 0..110);
    let held = shelf.hits(&[0, 1], 0..110);
    let remove = |objects| shelf.change(&[0, 1], Change::Remove { device: 1, objects });
    let refused = remove(Leaving::Move).expect_err("no room").to_string();
    assert!(refused.contains("no room for") && refused.contains("Leaving::Evict"), "{refused}");
    assert_eq!(shelf.hits(&[0, 1], 0..110), held);
    let done = remove(Leaving::Evict).expect("the oldest go");
    assert_eq!(shelf.hits(&[0], 0..110), held - done.lost_objects);

    let file = fs::File::create(&shelf.files[2]).expect("a file");
    file.set_len(1 << 20).expect("sparse");
    let grow = Change::Grow { file_bytes: Some(BYTES) };
    assert!(shelf.change(&[2], grow.clone()).is_err(), "it is no store");
    assert!(shelf.change(&[2, 0], grow).is_err(), "one is no store");
    assert_eq!(file.metadata().expect("there").len(), 1 << 20);
}
