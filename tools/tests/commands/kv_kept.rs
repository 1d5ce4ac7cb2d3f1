//! Tests `adit kv bench` on an existing store: without `--force`, it destroys only its own.

use std::fs;
use std::path::Path;

use crate::support::kv::{Scratch, adit, fail, filled, json, put, succeed, text};

/// Returns the words of a small fill.
fn fill<'a>(target: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let base = ["kv", "bench", "--store", target, "--workload", "fill", "--objects", "10"];
    [&base[..], &["--object-bytes", "4k"], more].concat()
}

/// Flips a byte of every block with this magic.
fn damage_all(path: &Path, magic: &[u8]) {
    let mut image = fs::read(path).expect("there");
    let is_block = |unit: &&mut [u8]| unit[..64].windows(magic.len()).any(|part| part == magic);
    image.chunks_mut(4096).filter(is_block).for_each(|unit| unit[100] ^= 0xff);
    fs::write(path, &image).expect("there is room");
}

#[test]
fn a_store_with_foreign_objects_is_refused_and_stays() {
    let scratch = Scratch::new("foreign");
    let target = scratch.target("a.img");
    succeed(&["kv", "format", &target, "--size", "64m", "--shards", "2", "--label", "mine"]);
    for key in ["one", "two", "three"] {
        put(&target, key, b"hello");
    }
    for workload in ["fill", "layers"] {
        let words = ["kv", "bench", "--store", &target, "--workload", workload];
        fail(&words, 2, "there is a store (label 'mine') with 3 objects");
        fail(&words, 2, "add --force");
    }
    assert_eq!(succeed(&["kv", "get", &target, "two"]), b"hello");
    json(&fill(&target, &["--force"]));
    assert_eq!(json(&["kv", "ls", &target]).as_array().map(Vec::len), Some(10));
}

#[test]
fn a_damaged_store_is_refused_though_no_object_of_it_is_found() {
    let scratch = Scratch::new("damaged");
    let target = scratch.store("a.img");
    put(&target, "one", b"hello");
    for magic in [b"AKVJ", b"AKVC"] {
        damage_all(&scratch.path("a.img"), magic);
    }
    let said = "there is a damaged store with 0 objects that are found";
    fail(&fill(&target, &[]), 2, said);
    json(&fill(&target, &["--force"]));
}

#[test]
fn a_store_of_an_earlier_run_and_one_without_objects_are_overwritten() {
    let scratch = Scratch::new("own");
    let target = filled(&scratch);
    json(&fill(&target, &[]));
    let empty = scratch.store("b.img");
    json(&fill(&empty, &[]));
}

#[test]
fn a_part_of_a_store_and_the_remains_of_one_are_refused() {
    let scratch = Scratch::new("part");
    let [a, b] = [scratch.target("a.img"), scratch.target("b.img")];
    succeed(&["kv", "format", &a, &b, "--size", "64m", "--label", "both"]);
    fail(&fill(&b, &[]), 2, "b.img is device 1 of 2 of a store (label 'both')");
    let path = scratch.path("a.img");
    let mut image = fs::read(&path).expect("there");
    let last = image.len() - 100;
    (image[100], image[last]) = (0xff, 0xff);
    fs::write(&path, &image).expect("there is room");
    fail(&fill(&a, &[]), 2, "both copies of the superblock are damaged");
    let ended = adit(&fill(&a, &["--force"])).output().expect("adit runs");
    assert!(ended.status.success(), "{}", text(&ended.stderr));
}
