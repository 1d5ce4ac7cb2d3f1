//! Tests `adit kv check` and `ls` on a store that another process writes to: changes in progress are no faults,
//! damage is.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::kv::{Scratch, adit, fail, filled, json, run, succeed, text, wait_until_open};

/// A process that has the store open, killed on drop.
struct Holder(Child);

impl Holder {
    fn start(scratch: &Scratch, target: &str, workload: &[&str]) -> Holder {
        let base = ["kv", "bench", "--store", target, "--object-bytes", "64k", "--runtime", "120"];
        let mut holder = adit(&[&base[..], workload].concat());
        let holder = holder.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let holder = Holder(holder.expect("adit runs"));
        wait_until_open(holder.0.id(), &scratch.path("a.img"));
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_store_under_load_is_checked_over_and_over_without_a_fault() {
    let scratch = Scratch::new("load");
    let target = filled(&scratch);
    for durability in ["durable", "restart"] {
        let load = ["--workload", "mixed", "--get-percent", "10", "--durability", durability];
        let mut holder = Holder::start(&scratch, &target, &load);
        for _ in 0..15 {
            let checked = json(&["kv", "check", &target, "--read-only"]);
            assert_eq!(checked["in_use"], true);
            assert_eq!(checked["faults"], Value::Array(Vec::new()));
        }
        let listed = run(&["kv", "ls", &target, "--read-only"]);
        assert!(listed.status.success());
        assert!(text(&listed.stderr).contains("at one moment"), "{}", text(&listed.stderr));
        assert!(text(&listed.stdout).lines().count() > 50, "most objects are there");
        assert!(holder.0.try_wait().expect("a process").is_none(), "it was not disturbed");
    }
    succeed(&["kv", "check", &target, "--read-only"]);
    assert_eq!(json(&["kv", "check", &target])["in_use"], false);
}

#[test]
fn damage_of_a_store_that_is_in_use_is_found_nevertheless() {
    let scratch = Scratch::new("damaged");
    let target = filled(&scratch);
    let _holder = Holder::start(&scratch, &target, &["--workload", "get"]);
    for command in ["check", "ls"] {
        fail(&["kv", command, &target], 1, "--read-only");
    }
    succeed(&["kv", "check", &target, "--read-only"]);
    let path = scratch.path("a.img");
    let image = fs::read(&path).expect("there");
    let file = fs::File::options().write(true).open(&path).expect("there");
    file.write_all_at(&[!image[100]], 100).expect("written");
    let out = fail(&["kv", "check", &target, "--read-only"], 1, "1 fault");
    assert!(out.contains("first unit") && out.contains("at one moment"), "{out}");
    // The first block of the checkpoint that the clean stop took.
    let block = image.chunks(4096).position(|unit| unit.windows(4).take(16).any(|m| m == b"AKVC"));
    let at = block.expect("a checkpoint") as u64 * 4096 + 100;
    file.write_all_at(&[!image[at as usize]], at).expect("written");
    let out = fail(&["kv", "check", &target, "--read-only"], 1, "2 faults");
    assert!(out.contains("checkpoint 1 cannot be used"), "{out}");
}
