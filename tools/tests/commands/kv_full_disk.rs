//! `adit kv` on a small file system: what does not fit is refused when it is formatted, and what an error says to do
//! works. Skipped where a user may not mount a file system in a namespace.

use std::fs;
use std::process::Command;

use crate::support::kv::{Scratch, noise, text};

/// Runs a shell script in a new file system of 24 MiB, in which `$adit` is the program and `$data` has 4 MB. Returns
/// what it prints, or `None` where it cannot run.
fn on_a_small_disk(name: &str, script: &str) -> Option<String> {
    let scratch = Scratch::new(name);
    let disk = scratch.path("disk");
    fs::create_dir(&disk).expect("a directory");
    fs::write(scratch.path("data"), noise(4_000_000)).expect("there is room");
    let in_namespace = |script: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "sh", "-euc", script]).current_dir(&disk);
        unshare.env("adit", env!("CARGO_BIN_EXE_adit")).env("data", scratch.path("data"));
        unshare.output()
    };
    if !in_namespace("mount -t tmpfs none .").is_ok_and(|probed| probed.status.success()) {
        eprintln!("{name}: skipped, as this user cannot mount a file system in a namespace");
        return None;
    }
    let script = format!("mount -t tmpfs -o size=24m none .\ncd \"$PWD\"\nexec 2>&1\n{script}");
    let output = in_namespace(&script).expect("a shell");
    let told = text(&output.stdout);
    assert!(output.status.success(), "{told}{}", text(&output.stderr));
    Some(told)
}

#[test]
fn a_store_that_does_not_fit_is_refused_and_leaves_nothing() {
    let script = "
        ! $adit kv format uring:new.img,direct=off,fixed=off --size 64m
        test ! -e new.img
        truncate -s 64m sparse.img
        ! $adit kv format uring:sparse.img,direct=off,fixed=off --size 64m
        test $(stat -c %b sparse.img) = 0
        truncate -s 16m sparse.img
        $adit kv format uring:sparse.img,direct=off,fixed=off --size 16m
        test $(stat -c %b sparse.img) = 32768
        ! dd if=/dev/zero of=filler bs=4k
        for key in 1 2 3 4 5 6 7 8; do
            $adit kv put uring:sparse.img,direct=off,fixed=off $key $data
        done
        $adit kv check uring:sparse.img,direct=off,fixed=off";
    let Some(told) = on_a_small_disk("fits", script) else { return };
    assert_eq!(told.matches("free space, or ask for less").count(), 2, "{told}");
    assert!(told.contains("nothing is wrong"), "{told}");
}

#[test]
fn a_put_on_a_full_disk_says_what_to_do_and_that_works() {
    let script = "
        truncate -s 16m sparse.img
        store=uring:sparse.img,direct=off,fixed=off
        $adit kv format $store
        $adit kv put $store first $data
        dd if=/dev/zero of=filler bs=1M count=18
        ! $adit kv put $store second $data
        rm filler
        $adit kv put $store second $data
        $adit kv get $store first | cmp - $data
        $adit kv rm $store first
        fallocate -l 16m sparse.img
        ! dd if=/dev/zero of=filler bs=4k
        $adit kv put $store third $data
        $adit kv get $store second | cmp - $data
        $adit kv check $store";
    let Some(told) = on_a_small_disk("full", script) else { return };
    let refusal = "no space is left for the data: free space on its file system and put the object";
    assert_eq!(told.matches(refusal).count(), 1, "{told}");
    assert!(told.contains("'fallocate'") && told.contains("nothing is wrong"), "{told}");
}
