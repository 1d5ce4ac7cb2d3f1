//! Tests `adit kv bench` on KV tensors: every configuration, with its bytes verified, and what cannot be done.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::kv::{Scratch, adit, fail, succeed};

/// A small set: 24 layers of OPT-1.3B, 46 MiB in 48 tensors of four commands each.
const SMALL: &str = "kv bench --workload dual-blade --model opt-1.3b --batch 2 --prompt 120 --gen 3 --verify --h2d 0";

/// The same set, on the emulated GPU.
const ON_GPU: &str = "kv bench --workload dual-blade --model opt-1.3b --batch 2 --prompt 120 --gen 3 --verify --gpu 0";

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn folder(scratch: &Scratch) -> String {
    scratch.path("tensors").display().to_string()
}

fn runs(report: &[u8]) -> Vec<Value> {
    let report: Value = serde_json::from_slice(report).expect("JSON");
    report["runs"].as_array().expect("a list").clone()
}

fn files_in(folder: &str) -> usize {
    std::fs::read_dir(Path::new(folder)).expect("a folder").count()
}

#[test]
fn every_configuration_reads_what_was_written() {
    let scratch = Scratch::new("tensors");
    let folder = folder(&scratch);
    std::fs::create_dir(&folder).expect("a folder");
    let line = format!("{SMALL} --config all --rounds 2 --json --folder {folder}");
    let runs = runs(&succeed(&words(&line)));
    let order: Vec<&str> = runs.iter().filter_map(|run| run["config"].as_str()).collect();
    let turned = ["mmap", "fadvise", "dual", "direct", "fadvise", "direct", "mmap", "dual"];
    assert_eq!(order, turned, "the order turns with the rounds");
    for run in &runs {
        assert!(
            run["prefill_s"].as_f64() > Some(0.0) && run["decode_s"].as_f64() > Some(0.0),
            "{run}"
        );
        assert_eq!(run["iterations_s"].as_array().map(Vec::len), Some(2), "{run}");
        assert_eq!(run["decode_read"]["tensors"], 96, "{run}");
        assert_eq!(run["memory_limit_bytes"], Value::Null);
    }
    let direct = &runs[3];
    assert_eq!(direct["hit_ratio"], 0.0, "{direct}");
    assert!(direct["sequentiality"].as_f64() >= Some(0.7), "{direct}");
    assert_eq!(files_in(&folder), 0, "files of a run go with it");
}

#[test]
fn direct_layers_lie_where_store_says() {
    let scratch = Scratch::new("tensors-store");
    let folder = folder(&scratch);
    std::fs::create_dir(&folder).expect("a folder");
    let line =
        format!("{SMALL} --config dual,direct --store soft:mem=64M --folder {folder} --json");
    for run in runs(&succeed(&words(&line))) {
        assert!(run["decode_s"].as_f64() > Some(0.0), "{run}");
    }
    let table = succeed(&words(&format!("{SMALL} --store soft:mem=64M --folder {folder}")));
    let table = String::from_utf8_lossy(&table);
    assert!(table.contains("opt-1.3b: batch 2, 120 tokens and 3 generated"), "{table}");
    fail(&words(&format!("{SMALL} --config direct --store soft:mem=1M --json")), 1, "direct: ");
}

fn emulated(line: &str, settings: &str) -> Command {
    let mut command = adit(&words(line));
    command.env("LD_LIBRARY_PATH", adit_gpu_emulated::directory());
    command.env("ADIT_EMULATED_GPU", settings);
    command
}

#[test]
fn a_gpu_shares_the_memory_of_each_copy_thread_with_the_drive() {
    let scratch = Scratch::new("tensors-gpu");
    let folder = folder(&scratch);
    std::fs::create_dir(&folder).expect("a folder");
    for more in ["--config all", "--config direct,dual --store soft:mem=64M --copy-threads 4"] {
        let line = format!("{ON_GPU} {more} --json --folder {folder}");
        let output = emulated(&line, "").output().expect("adit runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{line}: {errors}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&report["gpu"], &report["h2d_bytes_per_s"]), (&0.into(), &Value::Null));
        for run in runs(&output.stdout) {
            assert_eq!(run["decode_read"]["tensors"], 96, "{run}");
        }
    }
}

#[test]
fn what_a_gpu_cannot_do_is_told() {
    let scratch = Scratch::new("tensors-gpu-fails");
    let folder = folder(&scratch);
    std::fs::create_dir(&folder).expect("a folder");
    for (settings, options, code, expected) in [
        ("copies=dropped", "", 1, "direct: the GPU: copy K of layer"),
        ("copies=dropped", "", 1, "wrong bytes at 0"),
        ("host-register=refused", "", 1, "register host memory with the GPU"),
        ("fail=cuMemcpyAsync:719:40", "", 1, "cuMemcpyAsync failed"),
        ("memory=1000000", "", 1, "CUDA_ERROR_OUT_OF_MEMORY"),
        ("", "--gpu 7", 2, "--gpu 7: there is no GPU 7; there are 1, from 0 on"),
        ("", "--gpu 0 --h2d 12g", 2, "--h2d"),
    ] {
        let line = if options.is_empty() { ON_GPU } else { ON_GPU.trim_end_matches("--gpu 0") };
        let line = format!("{line} {options} --config direct --folder {folder}");
        let output = emulated(&line, settings).output().expect("adit runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{settings} {options}: {errors}");
        assert!(errors.contains(expected), "{settings} {options}: {errors}");
        assert_eq!(files_in(&folder), 0, "{settings} {options}");
    }
    let mut without = adit(&words(ON_GPU));
    without.env_remove("LD_LIBRARY_PATH").env("CUDA_VISIBLE_DEVICES", "-1");
    let output = without.output().expect("adit runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("GPU") || errors.contains("CUDA"), "{errors}");
}

#[test]
fn a_store_that_is_in_use_is_not_overwritten() {
    let scratch = Scratch::new("tensors-kept");
    let store = format!("psync:{}", scratch.path("store").display());
    succeed(&["kv", "format", &store, "--size", "64M"]);
    let value = scratch.path("value");
    std::fs::write(&value, "bytes").expect("a file");
    succeed(&["kv", "put", &store, "key", &value.display().to_string()]);
    let line = format!("{SMALL} --config direct --store {store}");
    fail(&words(&line), 2, "nothing was written");
    assert_eq!(succeed(&["kv", "get", &store, "key"]), b"bytes");
    succeed(&words(&format!("{line} --force")));
}

#[test]
fn a_run_is_held_to_its_memory_limit() {
    let scratch = Scratch::new("tensors-limit");
    let folder = folder(&scratch);
    std::fs::create_dir(&folder).expect("a folder");
    let picture = scratch.path("picture.svg");
    let line = format!(
        "{SMALL} --config dual,mmap --memory-limit 128m,96m --halve-after 1 --json --folder {folder} --picture {}",
        picture.display()
    );
    let output = adit(&words(&line)).output().expect("adit runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if errors.contains("memory cannot be limited") {
        assert!(
            ["run as root", "mount -t cgroup2", "cgroup"].iter().any(|fix| errors.contains(fix)),
            "{errors}"
        );
        return;
    }
    assert!(output.status.success(), "{errors}");
    let limits: Vec<u64> =
        runs(&output.stdout).iter().filter_map(|run| run["memory_limit_bytes"].as_u64()).collect();
    assert_eq!(limits, [128 << 20, 128 << 20, 96 << 20, 96 << 20]);
    let svg = std::fs::read_to_string(picture).expect("a picture");
    assert!(svg.starts_with("<svg") && svg.contains("hit ratio") && svg.contains("mmap"), "{svg}");
}

#[test]
fn what_cannot_be_run_is_refused_with_a_remedy() {
    for (options, expected) in [
        ("--model opt-13b --batch 1 --config direct --store null:size=1G,lba=4096", "batch"),
        ("--model gpt-2", "opt-1.3b, opt-6.7b, opt-13b"),
        ("--config best", "all, mmap, fadvise, direct or dual"),
        ("--memory-limit 0%", "1% to 1000%"),
        ("--halve-after 3", "--memory-limit"),
        ("--halve-after 2 --memory-limit 1g", "--halve-after 2: there are 2 decode iterations"),
        ("--halve-after 1 --memory-limit 1m", "that a run pins"),
        ("--store null: --store null:", "give --store once"),
        ("--folder /nonexistent/tensors", "/nonexistent/tensors"),
    ] {
        let line = format!("kv bench --workload dual-blade --prompt 8 --gen 3 {options}");
        let output = adit(&words(&line)).output().expect("adit runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(expected), "{options}: {errors}");
    }
    fail(&["kv", "bench", "--workload", "get"], 2, "--store TARGET");
}
