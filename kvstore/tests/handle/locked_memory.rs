//! Locked memory: how much a user without privileges needs, and what is registered. Each in a process of its own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use adit_driver::sys::{Backing, HostMemory};
use adit_kvstore::store::{FormatStore, PutWith};
use adit_kvstore::{OpenOptions, Store};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

use crate::rig::{data, key};

/// Set in the child process: the name of its file.
const FILE: &str = "ADIT_TEST_PLAIN_USERS_FILE";

/// Makes a file that everyone may write, and runs a test of this binary anew, as its user.
fn run_anew(name: &str) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = format!("adit-{}-{}.img", name.replace(':', "-"), std::process::id());
    let path = folder.join(&file);
    std::fs::write(&path, []).expect("a file");
    std::fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("its owner may");
    let mut child = Command::new(std::env::current_exe().expect("this binary"));
    child.args(["--exact", name, "--nocapture"]).env(FILE, file);
    // The user may not be allowed to see the folders above.
    let status = child.current_dir(folder).status().expect("a child");
    std::fs::remove_file(path).expect("removed");
    assert!(status.success(), "{name}: {status}");
}

fn give_up_privileges() {
    setrlimit(Resource::RLIMIT_MEMLOCK, 8 << 20, 8 << 20).expect("less than before");
    if Uid::effective().is_root() {
        setgroups(&[]).expect("no groups");
        setgid(Gid::from_raw(65534)).expect("a group");
        setuid(Uid::from_raw(65534)).expect("a user");
    }
}

#[test]
fn a_plain_user_opens_a_store_with_the_default_options() {
    let Ok(file) = std::env::var(FILE) else {
        return run_anew("locked_memory::a_plain_user_opens_a_store_with_the_default_options");
    };
    give_up_privileges();
    let targets = [format!("uring:{file}").parse().expect("a target")];
    let file_bytes = Some(256 << 20);
    let format = FormatStore { shards: 4, file_bytes, ..FormatStore::new(targets.clone()) };
    Store::format(&format).expect("formatted");
    let open = || Store::open(&OpenOptions::new(targets.clone())).expect("a store");
    let store = open();
    let items = (0..30).map(|number| (key(number), data(number, 200_000)));
    for put in store.put_many(items, &PutWith::default()) {
        assert!(put.wait().expect("put").is_stored());
    }
    store.close().wait().expect("closed");
    let store = open();
    for number in 0..30 {
        let value = store.get(key(number)).wait().expect("got").expect("a hit");
        assert_eq!(value[..], data(number, 200_000));
    }
}

/// Memory of this process that is pinned, in KiB.
fn pinned_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("it says so");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn memory_of_the_callers_is_pinned_once_for_each_shard() {
    let Ok(file) = std::env::var(FILE) else {
        return run_anew("locked_memory::memory_of_the_callers_is_pinned_once_for_each_shard");
    };
    let targets = [format!("uring:{file}").parse().expect("a target")];
    let file_bytes = Some(64 << 20);
    let format = FormatStore { shards: 2, file_bytes, ..FormatStore::new(targets.clone()) };
    Store::format(&format).expect("formatted");
    let options = OpenOptions { pool_bytes: 1 << 20, ..OpenOptions::new(targets) };
    let store = Store::open(&options).expect("a store");
    let before = pinned_kib();
    let memory = HostMemory::allocate(6 << 20, Backing::Any, &|_, _| ()).expect("memory");
    let pool = store.register(memory).expect("registered");
    let pinned = pinned_kib() - before;
    // The kernel counts whole huge pages, of which the memory uses only a part at either end. As little as the limit on
    // locked memory allows, if there is one.
    let (once, twice) = (2 * (6 << 10), 4 * (6 << 10));
    assert!(
        (once..twice).contains(&pinned) || before < 2 * (5 << 10),
        "{pinned} KiB after {before} KiB"
    );
    drop(pool);
}
