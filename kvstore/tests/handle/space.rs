//! The blocks of a store's file: a store keeps those that it was given, and gives back only what it took as it wrote.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use adit_kvstore::Store;
use adit_kvstore::store::{FormatStore, OpenOptions};

use crate::rig::{Rig, data, key};

const BYTES: u64 = 64 << 20;
const OBJECT_BYTES: usize = 2 << 20;
const OBJECTS: u64 = 8;

fn path(rig: &Rig) -> &Path {
    let Rig::File(path) = rig else { panic!("a file") };
    path
}

fn allocated_bytes(rig: &Rig) -> u64 {
    fs::metadata(path(rig)).expect("it is there").blocks() * 512
}

fn make_sparse(rig: &Rig) {
    File::create(path(rig)).and_then(|file| file.set_len(BYTES)).expect("a file");
}

fn format(rig: &Rig, file_bytes: Option<u64>) {
    let options = FormatStore { file_bytes, ..FormatStore::new(rig.options().targets) };
    Store::format(&options).expect("formatted");
}

/// Puts and deletes objects in a store that discards at once. Returns the bytes that it discards, after a while.
fn discarded_bytes(rig: &Rig, until: u64) -> u64 {
    let options = OpenOptions { discard_after: Duration::from_millis(1), ..rig.options() };
    let store = Store::open(&options).expect("a store");
    for number in 0..OBJECTS {
        store.put(key(number), data(number, OBJECT_BYTES)).wait().expect("put");
    }
    store.commit().wait().expect("committed");
    for number in 0..OBJECTS {
        assert!(store.delete(key(number)).wait().expect("deleted"));
    }
    store.commit().wait().expect("committed");
    let stats = || store.stats().wait().expect("counted").discards_bytes;
    let begun = Instant::now();
    let patience = if until == 0 { Duration::from_millis(500) } else { Duration::from_secs(20) };
    while begun.elapsed() < patience && (until == 0 || stats() < until) {
        std::thread::sleep(Duration::from_millis(10));
    }
    store.close().wait().expect("closed").discards_bytes
}

#[test]
fn a_preallocated_file_keeps_its_blocks() {
    let rig = Rig::file();
    format(&rig, Some(BYTES));
    let before = allocated_bytes(&rig);
    assert!(before >= BYTES, "a new file is allocated");
    assert_eq!(discarded_bytes(&rig, 0), 0);
    assert!(allocated_bytes(&rig) >= BYTES);
}

#[test]
fn a_sparse_file_gives_back_what_objects_took() {
    let rig = Rig::file();
    make_sparse(&rig);
    format(&rig, None);
    let objects_bytes = OBJECTS * OBJECT_BYTES as u64;
    assert!(discarded_bytes(&rig, objects_bytes) >= objects_bytes);
    assert!(allocated_bytes(&rig) < objects_bytes, "{} are left", allocated_bytes(&rig));
}

#[test]
fn a_sparse_file_that_is_formatted_with_its_size_is_allocated() {
    let rig = Rig::file();
    make_sparse(&rig);
    assert!(allocated_bytes(&rig) < BYTES);
    format(&rig, Some(BYTES / 2));
    assert!(allocated_bytes(&rig) >= BYTES, "all of it, as it is longer");
    assert_eq!(fs::metadata(path(&rig)).expect("it is there").len(), BYTES);
}

#[test]
fn a_format_that_is_refused_leaves_no_file_and_no_longer_one() {
    let rig = Rig::file();
    let plain =
        || FormatStore { file_bytes: Some(BYTES), ..FormatStore::new(rig.options().targets) };
    let refused = [
        FormatStore { shards: 0, ..plain() },
        FormatStore { key_bytes: 0, ..plain() },
        FormatStore { key_bytes: 513, ..plain() },
        FormatStore { objects_max: Some(1 << 40), ..plain() },
        FormatStore { journal_bytes: Some(1 << 40), ..plain() },
        FormatStore { shards: 60_000, ..plain() },
        FormatStore { label: "l".repeat(33), ..plain() },
        FormatStore { file_bytes: Some(4096), ..plain() },
    ];
    for options in &refused {
        Store::format(options).expect_err("refused");
        assert!(!path(&rig).exists(), "{options:?}");
    }
    fs::write(path(&rig), "a note").expect("written");
    for options in &refused {
        Store::format(&FormatStore { overwrite: true, ..options.clone() }).expect_err("refused");
        assert_eq!(fs::read(path(&rig)).expect("there"), b"a note", "{options:?}");
    }
    Store::format(&plain()).expect_err("it is data");
    assert_eq!(fs::read(path(&rig)).expect("there"), b"a note");
    fs::remove_file(path(&rig)).expect("removed");
    format(&rig, Some(BYTES));
    let before = fs::read(path(&rig)).expect("there");
    Store::format(&plain()).expect_err("it is a store");
    assert!(fs::read(path(&rig)).expect("there") == before, "a store stays as it is");
}
