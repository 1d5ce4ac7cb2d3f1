//! A store on a sparse file whose file system is full: the error names a remedy, and the remedy works.
//!
//! The test mounts a small file system in a namespace of its own and runs itself there. Where a user may not do that,
//! it is skipped.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use adit_kvstore::shard::Failure;
use adit_kvstore::store::{FormatStore, OpenOptions};
use adit_kvstore::{Durability, Key, Store};

/// The directory of the small file system, in the child.
const DISK: &str = "ADIT_SMALL_DISK";
const OBJECT_BYTES: usize = 1 << 20;

/// Runs a test of this binary again on a small file system. Returns the file system in there, and `None` outside.
fn on_a_small_disk(test: &str) -> Option<PathBuf> {
    if let Some(disk) = std::env::var_os(DISK) {
        return Some(disk.into());
    }
    let disk = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("disk-{}", std::process::id()));
    fs::create_dir_all(&disk).expect("a directory");
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-c"]);
    let mut probe = Command::new("unshare");
    probe.args(["--map-root-user", "--mount", "mount", "-t", "tmpfs", "none"]).arg(&disk);
    if probe.output().is_ok_and(|probed| probed.status.success()) {
        let script = "mount -t tmpfs -o size=24m none \"$0\" && exec \"$@\"";
        let child = unshare.arg(script).arg(&disk).arg(std::env::current_exe().expect("a program"));
        let child = child.args(["--exact", test, "--nocapture"]).env(DISK, &disk);
        let status = child.status().expect("it runs");
        assert!(status.success(), "on a small disk");
    } else {
        eprintln!("{test}: skipped, as this user cannot mount a file system in a namespace");
    }
    fs::remove_dir(&disk).expect("it is empty outside the namespace");
    None
}

/// Fills the file system to its last page.
fn fill(disk: &Path) -> PathBuf {
    let path = disk.join("filler");
    let mut file = File::create(&path).expect("a file");
    for size in [1 << 20, 4096] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
    path
}

fn put(store: &Store, number: u64) -> Result<(), Failure> {
    let put = store.put(Key::from(number), vec![number as u8; OBJECT_BYTES]).wait();
    put.map(drop).map_err(|unfinished| unfinished.failure().expect("the store's own").clone())
}

fn is_there(store: &Store, number: u64) -> bool {
    let value = store.get(Key::from(number)).wait().expect("read");
    value.is_some_and(|value| value[..] == vec![number as u8; OBJECT_BYTES])
}

#[test]
fn a_full_disk_costs_only_what_is_put_and_freeing_space_helps() {
    let Some(disk) = on_a_small_disk("a_full_disk_costs_only_what_is_put_and_freeing_space_helps")
    else {
        return;
    };
    let path = disk.join("sparse.img");
    File::create(&path).and_then(|file| file.set_len(16 << 20)).expect("a file");
    // Older kernels have no direct I/O on such a file system, and locked memory is limited in a namespace.
    let target =
        format!("uring:{},direct=off,fixed=off", path.display()).parse().expect("a target");
    Store::format(&FormatStore::new([target])).expect("formatted");
    let target =
        format!("uring:{},direct=off,fixed=off", path.display()).parse().expect("a target");
    let durability = Durability::Durable;
    let options = OpenOptions { durability, pool_bytes: 4 << 20, ..OpenOptions::new([target]) };
    let store = Store::open(&options).expect("a store");
    assert!((0..3).all(|number| put(&store, number).is_ok()));

    let filler = fill(&disk);
    let refused = put(&store, 3).expect_err("no space");
    assert!(matches!(refused, Failure::NoSpace { .. }), "{refused}");
    assert!(refused.to_string().contains("free space on its file system"), "{refused}");
    assert!((0..3).all(|number| is_there(&store, number)), "nothing else is lost");
    fs::remove_file(&filler).expect("space is freed");
    put(&store, 3).expect("there is space");

    let filler = fill(&disk);
    let refused = store.delete(Key::from(0_u64)).wait().expect_err("no space for the journal");
    assert!(refused.to_string().contains("free space on its file system first"), "{refused}");
    fs::remove_file(&filler).expect("space is freed");
    store.recover(0).expect("the device is back");
    put(&store, 4).expect("there is space");
    assert!((1..5).all(|number| is_there(&store, number)), "all is back");
    store.close().wait().expect("closed");
}
