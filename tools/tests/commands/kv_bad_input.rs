//! Tests what `adit kv` reports about damaged media and wrong targets, and whether it says what to do next.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::kv::{
    Scratch, adit, fail, json, noise, put, run, succeed, text, wait_until_open,
};

/// Returns the unit of a store's first block with this magic, and the image's bytes.
fn first_block(scratch: &Scratch, magic: &[u8]) -> (u64, Vec<u8>) {
    let image = fs::read(scratch.path("a.img")).expect("there");
    let is_it = |unit: &[u8]| unit[..64].windows(magic.len()).any(|window| window == magic);
    let unit = image.chunks(4096).position(is_it).expect("there is such a block");
    (unit as u64, image)
}

/// Flips a byte of the store's file.
fn flip(scratch: &Scratch, image: &[u8], at: u64) {
    let file = fs::File::options().write(true).open(scratch.path("a.img")).expect("there");
    file.write_all_at(&[!image[at as usize]], at).expect("written");
}

/// Computes a superblock's CRC-32C.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }
        })
    };
    !bytes.iter().fold(!0, step)
}

#[test]
fn a_file_that_is_not_there_is_to_be_made_or_named_right() {
    let scratch = Scratch::new("absent");
    let target = scratch.target("a.img");
    for command in ["ls", "check", "stat", "info", "scrub"] {
        fail(&["kv", command, &target], 1, "there is no such file; check the target's name");
    }
    fail(&["kv", "format", &target], 1, "create it with --size");
    fail(&["kv", "bench", "--store", &target, "--workload", "fill"], 1, "create it with --size");
    assert!(!scratch.path("a.img").exists(), "nothing was made");
}

#[test]
fn a_format_that_is_refused_leaves_no_file_and_no_longer_one() {
    let scratch = Scratch::new("refused");
    let (new, target) = (scratch.path("a.img"), scratch.target("a.img"));
    let refused = |words: &[&str], code: i32, says: &str| {
        fail(&[&["kv", "format", &target], words].concat(), code, says);
    };
    for (words, says) in [
        (&["--size", "64k"][..], "bytes or more"),
        (&["--size", "64m", "--key-bytes", "600"], "512"),
        (&["--size", "64m", "--objects", "999999999"], "objects_max"),
    ] {
        refused(words, 2, says);
        assert!(!new.exists(), "{words:?} leaves no file");
    }
    let other = scratch.target("missing/b.img");
    fail(&["kv", "format", &target, &other, "--size", "64m"], 1, "create the directory first");
    assert!(!new.exists(), "nor do devices beside one that cannot be opened");
    // Of less than a page, it holds no data that a format would ask about.
    fs::write(&new, "a note").expect("written");
    refused(&["--size", "64m", "--key-bytes", "600"], 2, "512");
    refused(&["--size", "64m", "--force", "--key-bytes", "600"], 2, "512");
    assert_eq!(fs::read(&new).expect("there"), b"a note", "its length and contents");
}

#[test]
fn a_file_that_cannot_be_asked_for_is_not_called_absent() {
    let scratch = Scratch::new("unknown");
    symlink("a.img", scratch.path("a.img")).expect("a link to itself");
    let target = scratch.target("a.img");
    for command in ["ls", "check", "stat", "format"] {
        fail(&["kv", command, &target], 1, "Too many levels of symbolic links");
    }
}

#[test]
fn damage_that_hides_objects_is_reported_by_the_commands_that_need_them() {
    let scratch = Scratch::new("hidden");
    let target = scratch.store("a.img");
    put(&target, "k", b"x");
    let (_, image) = first_block(&scratch, b"AKVJ");
    assert_eq!(json(&["kv", "stat", &target])["faults"], 0);
    assert_eq!(json(&["kv", "info", &target, "k"])["faults"], 0);
    flip(&scratch, &image, 100);
    for (words, faults) in [
        (&["kv", "ls", &target, "--read-only"][..], None),
        (&["kv", "info", &target, "k", "--json"], Some(1)),
        (&["kv", "stat", &target, "--json"], Some(1)),
    ] {
        let output = run(words);
        let told = text(&output.stderr);
        assert!(told.contains("1 fault: objects may be missing; run 'adit kv check'"), "{told}");
        let report = serde_json::from_slice::<Value>(&output.stdout).ok();
        assert_eq!(report.and_then(|report| report["faults"].as_u64()), faults, "{words:?}");
    }
}

#[test]
fn a_target_that_is_named_twice_is_a_usage_error() {
    let scratch = Scratch::new("twice");
    let target = scratch.store("a.img");
    for words in [
        vec!["kv", "ls", &target, &target],
        vec!["kv", "stat", &target, &target],
        vec!["kv", "format", &target, &target, "--force"],
        vec!["kv", "get", &target, "k", "--with", &target],
    ] {
        fail(&words, 2, "is given twice");
    }
    fail(&["kv", "put", &target, "k", "/dev/null", "--ttl", "0"], 2, "--ttl");
}

#[test]
fn a_store_of_another_version_is_told_from_damage() {
    let scratch = Scratch::new("version");
    let target = scratch.store("a.img");
    let path = scratch.path("a.img");
    let mut image = fs::read(&path).expect("there");
    for at in [0, image.len() - 4096] {
        let unit = &mut image[at..at + 4096];
        unit[8..12].copy_from_slice(&1u32.to_le_bytes());
        let crc = crc32c(&unit[..4092]);
        unit[4092..].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&path, image).expect("there is room");
    for command in ["ls", "check", "stat"] {
        fail(&["kv", command, &target], 1, "open it with the version of adit that made it");
    }
    fail(&["kv", "format", &target], 1, "version 1 of the format");
    let fill = ["kv", "bench", "--store", &target, "--workload", "fill"];
    fail(&fill, 2, "version 1 of the format");
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_other_one_is_used() {
    let scratch = Scratch::new("checkpoint");
    let target = scratch.target("a.img");
    // One block of the journal per object, until checkpoints are taken.
    let words = ["kv", "bench", "--store", &target, "--size", "64m", "--workload", "fill"];
    let small = ["--object-bytes", "4k", "--objects", "1000", "--iodepth", "1"];
    json(&[&words[..], &small, &["--durability", "durable"]].concat());
    let newest = json(&["kv", "check", &target])["shards"][0]["checkpoint"].as_u64();
    let newest = newest.filter(|number| *number > 1).expect("two checkpoints");
    let both = json(&["kv", "info", &target])["checkpoint_bytes"].as_u64().expect("a number");
    let (first, image) = first_block(&scratch, b"AKVC");
    // Odd checkpoints are in the first slot.
    let slot = (newest + 1) % 2;
    flip(&scratch, &image, first * 4096 + slot * (both / 2) + 40);
    let output = run(&["kv", "check", &target, "--json"]);
    let checked: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (output.status.code(), &checked["faults"][0]["code"]),
        (Some(1), &"checkpoint".into())
    );
    assert_eq!(checked["shards"][0]["checkpoint"], newest - 1, "{checked}");
    assert_eq!(checked["shards"][0]["objects"], 1000, "the journal has the rest");
    assert_eq!(text(&succeed(&["kv", "ls", &target])).lines().count(), 1000);
    assert_eq!(json(&["kv", "scrub", &target])["bad"], 0);
}

#[test]
fn a_damaged_journal_costs_nothing_of_what_the_last_checkpoint_holds() {
    let scratch = Scratch::new("tail");
    let target = scratch.store("a.img");
    put(&target, "one", &noise(5000));
    put(&target, "two", &noise(6000));
    let mut image = fs::read(scratch.path("a.img")).expect("there");
    let is_block = |unit: &[u8]| unit[..64].windows(4).any(|window| window == b"AKVJ");
    let blocks = image.chunks_mut(4096).filter(|unit| is_block(unit));
    assert!(blocks.map(|unit| unit[100] ^= 1).count() > 1, "each put has a block");
    fs::write(scratch.path("a.img"), image).expect("there is room");
    // A clean stop takes a checkpoint.
    succeed(&["kv", "check", &target]);
    assert_eq!(succeed(&["kv", "get", &target, "one"]), noise(5000));
    assert_eq!(succeed(&["kv", "get", &target, "two"]), noise(6000));
    put(&target, "three", &noise(100));
    succeed(&["kv", "check", &target]);
}

#[test]
fn ctrl_c_amid_a_fill_leaves_a_store_that_opens() {
    let scratch = Scratch::new("amid");
    let target = scratch.target("a.img");
    let words = ["kv", "bench", "--store", &target, "--size", "2g", "--workload", "fill"];
    let small = ["--object-bytes", "4k", "--iodepth", "1", "--durability", "durable"];
    let mut child = adit(&[&words[..], &small].concat());
    let child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("adit runs");
    wait_until_open(child.id(), &scratch.path("a.img"));
    thread::sleep(Duration::from_secs(1));
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill runs").success());
    let begun = Instant::now();
    let ended = child.wait_with_output().expect("it ends");
    assert!(begun.elapsed() < Duration::from_secs(20), "it ends at once");
    assert_eq!(ended.status.code(), Some(130), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("interrupted"), "{}", text(&ended.stderr));
    succeed(&["kv", "check", &target]);
    let listed = text(&succeed(&["kv", "ls", &target])).lines().count();
    assert!(listed > 0, "what was acknowledged is there");
    succeed(&["kv", "scrub", &target]);
}
