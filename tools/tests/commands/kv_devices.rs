//! Tests `adit kv add-device`, `remove-device` and `grow` as users see them.

use std::fs;

use crate::support::kv::{Scratch, fail, json, noise, succeed, text};

fn put_objects(scratch: &Scratch, devices: &[&str], keys: std::ops::Range<u32>) {
    let file = scratch.path("x");
    fs::write(&file, noise(100_000)).expect("there is room");
    for key in keys {
        let (key, file) = (format!("object-{key}"), file.display().to_string());
        let mut words = vec!["kv", "put", devices[0], &key, &file];
        devices[1..].iter().for_each(|device| words.extend(["--with", device]));
        succeed(&words);
    }
}

fn scrubbed(devices: &[&str]) -> u64 {
    succeed(&[&["kv", "check"], devices].concat());
    let report = json(&[&["kv", "scrub"], devices].concat());
    report["objects"].as_u64().expect("a number")
}

#[test]
fn a_device_is_added_and_another_one_removed() {
    let scratch = Scratch::new("devices");
    let [a, b, c] = ["a.img", "b.img", "c.img"].map(|name| scratch.target(name));
    let [a, b, c] = [&a[..], &b, &c];
    succeed(&["kv", "format", a, b, "--size", "64m", "--shards", "2"]);
    put_objects(&scratch, &[a, b], 0..6);
    let told = json(&["kv", "add-device", a, b, "--new", c, "--size", "64m"]);
    assert_eq!(told["store"].as_array().map(Vec::len), Some(3));
    fail(&["kv", "ls", a, b], 1, "device 2 of the 3");
    assert_eq!(scrubbed(&[a, b, c]), 6);
    put_objects(&scratch, &[a, b, c], 6..12);
    let info = json(&["kv", "info", a, "--with", b, "--with", c]);
    assert_eq!(info["changes_of_devices"], 1);
    let homes: Vec<_> = (0..3).map(|at| info["devices"][at]["home_of_shards"].as_u64()).collect();
    assert_eq!(homes, [Some(1), Some(1), Some(0)]);
    assert_eq!(info["devices"][2]["segments"][0][0], 4096);

    let words = ["kv", "remove-device", a, b, c, "--device", a];
    let told = text(&succeed(&words));
    assert!(told.contains("moved ") && !told.contains("lost"), "{told}");
    assert_eq!(scrubbed(&[b, c]), 12);
    fail(&["kv", "ls", a, b, c], 1, "nothing was ever written here");
    let info = text(&succeed(&["kv", "info", b, "--with", c]));
    assert!(info.contains("1 segment of data, home of 2 shards"), "{info}");
    let told = json(&["kv", "remove-device", b, c, "--device", c, "--drop"]);
    let lost = told["lost_objects"].as_u64().expect("a number");
    assert_eq!(scrubbed(&[b]), 12 - lost);
    succeed(&["kv", "format", a, "--size", "64m"]);
}

#[test]
fn a_store_in_a_file_grows() {
    let scratch = Scratch::new("grows");
    let target = scratch.store("a.img");
    put_objects(&scratch, &[&target], 0..3);
    let before = json(&["kv", "info", &target])["data_bytes"].as_u64().expect("a number");
    fail(&["kv", "grow", &target], 1, "extend the file or the volume first");
    succeed(&["kv", "grow", &target, "--size", "128m"]);
    let after = json(&["kv", "info", &target]);
    assert_eq!(after["data_bytes"], before + (64 << 20));
    assert_eq!(after["devices"][0]["segments"].as_array().map(Vec::len), Some(2));
    assert_eq!(scrubbed(&[&target]), 3);
    // A volume that was extended by other means, and the software controller.
    let file = fs::File::options().write(true).open(scratch.path("a.img")).expect("there");
    file.set_len(160 << 20).expect("longer");
    fail(&["kv", "ls", &target], 1, "adit kv grow");
    let target = format!("soft:file={},size=160m", scratch.path("a.img").display());
    let told = text(&succeed(&["kv", "grow", &target]));
    assert!(told.contains("for data"), "{told}");
    assert_eq!(scrubbed(&[&target]), 3);
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let scratch = Scratch::new("refused");
    let [a, b] = ["a.img", "b.img"].map(|name| scratch.target(name));
    succeed(&["kv", "format", &a, &b, "--size", "64m"]);
    let other = scratch.store("other.img");
    fail(&["kv", "add-device", &a, &b, "--new", &other], 1, "--force");
    fail(&["kv", "add-device", &a, &b, "--new", &b], 2, "given twice");
    let new = scratch.target("new.img");
    fail(&["kv", "add-device", &a, "--new", &new, "--size", "64m"], 1, "missing");
    let none = scratch.target("none.img");
    fail(&["kv", "add-device", &none, "--new", &new, "--size", "64m"], 1, "no such file");
    fail(&["kv", "add-device", &a, &b, "--new", &new, "--size", "8k"], 1, "take a device of");
    assert!(!scratch.path("new.img").exists(), "a device that is not added leaves no file");
    fail(&["kv", "remove-device", &a, &b, "--device", &other], 2, "not among the store's devices");
    fail(&["kv", "remove-device", &other, "--device", &other], 2, "has 1 devices");
    fail(
        &["kv", "remove-device", &a, &b, "--device", &a, "--drop", "--evict"],
        2,
        "cannot be used",
    );
    fail(&["kv", "grow", &scratch.target("none.img")], 1, "there is no such file");
    succeed(&["kv", "add-device", &a, &b, "--new", &other, "--force"]);
    assert_eq!(scrubbed(&[&a, &b, &other]), 0);
}
