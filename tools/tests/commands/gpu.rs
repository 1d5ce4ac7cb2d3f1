//! Tests `adit gpu` as users see it, without a GPU and on the emulated CUDA driver.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::Ended;
use crate::support::interrupt;

/// Settings of the emulated GPU, and of calls that fail.
const SETTINGS: &str = "ADIT_EMULATED_GPU";

fn adit(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
    command.arg("gpu").args(line.split_whitespace());
    command
}

fn run(command: &mut Command) -> Ended {
    command.output().expect("adit runs").into()
}

/// Runs `adit gpu` as on a machine without a GPU, wherever it runs.
fn without(line: &str) -> Ended {
    run(adit(line).env_remove("LD_LIBRARY_PATH").env("CUDA_VISIBLE_DEVICES", "-1"))
}

/// Runs `adit gpu` with an emulated GPU.
fn emulated(line: &str) -> Command {
    let mut command = adit(line);
    command.env("LD_LIBRARY_PATH", adit_gpu_emulated::directory()).env_remove(SETTINGS);
    command
}

fn succeed(line: &str) -> String {
    let ended = run(&mut emulated(line));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "adit gpu {line}\n{}", ended.out);
    ended.out
}

#[test]
fn without_a_gpu_every_command_says_why_and_ends_with_3() {
    for line in ["doctor", "doctor soft:mem=64M", "selftest", "bench", "trace"] {
        let ended = without(line);
        assert_eq!(ended.code, Some(3), "adit gpu {line}: {}{}", ended.out, ended.err);
        let said = format!("{}{}", ended.out, ended.err);
        assert!(said.contains("GPU") || said.contains("CUDA"), "adit gpu {line}: {said}");
        assert_eq!(ended.err.lines().count(), 1, "adit gpu {line}: {}", ended.err);
    }
}

#[test]
fn a_mistake_on_the_command_line_is_told_where_there_is_no_gpu() {
    for (line, part) in [
        ("trace --model llama-9", "llama-3-8b"),
        ("trace soft:mem=64M --model llama-9", "llama-3-8b"),
        ("trace null:", "reached through the kernel"),
        ("trace uring:kv.img", "reached through the kernel"),
    ] {
        let ended = without(line);
        assert_eq!(ended.code, Some(2), "adit gpu {line}: {}{}", ended.out, ended.err);
        assert!(ended.err.contains(part), "adit gpu {line}: {}", ended.err);
    }
}

#[test]
fn a_layer_of_a_store_arrives_intact() {
    let out = succeed("trace --json");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let counts = &report["counts"];
    assert_eq!((&counts["tensors"], &counts["commands"]), (&128.into(), &128.into()), "{out}");
    let rings = counts["submission_doorbells"].as_u64().expect("a count");
    assert!((1..=128).contains(&rings), "{out}");
    let steps = report["steps"].as_array().expect("steps").iter();
    let steps: Vec<&str> = steps.filter_map(|step| step["step"].as_str()).collect();
    assert_eq!(steps, ["event", "get_iocb", "issue_io", "wait_cqe", "data", "outcome", "intact"]);
    let verified = serde_json::json!({ "checksums": 128, "compared_by": "gpu", "misses": 0 });
    assert_eq!(report["verified"], verified);
}

#[test]
fn a_bit_that_flips_on_the_medium_makes_its_block_a_miss() {
    // The rings' queue reads LBA 0 only to prove its ways; the layer lies behind.
    let rot = "soft:mem=273M,lba=4096,faults=rot@read:q=2:lba=1-100000000:times=1";
    for kernel in ["one-shot", "persistent"] {
        let line = format!("trace {rot} --blocks 4 --queues 1 --kernel {kernel}");
        let ended = run(&mut emulated(&line));
        assert_eq!(ended.code, Some(1), "adit gpu {line}: {}{}", ended.out, ended.err);
        let miss = "1 of 4 KV blocks are not what was put, which makes them misses";
        assert!(ended.err.contains(miss), "adit gpu {line}: {}", ended.err);
    }
}

#[test]
fn a_trace_takes_every_model_and_kernel() {
    for line in [
        "trace --kernel persistent",
        "trace --model deepseek-v3 --layers 1 --blocks 4000",
        "trace --queues 63 --blocks 1",
        "trace --model deepseek-v3 --blocks 3 --layers 1 --queues 1 --depth 2",
        "trace soft:mem=512M,sgl=off --blocks 8",
        "trace soft:mem=512M,mdts=3,noiob=48 --blocks 8",
    ] {
        let out = succeed(line);
        assert!(out.contains("by the store's checksums"), "adit gpu {line}\n{out}");
        assert!(out.contains("compared by the GPU"), "adit gpu {line}\n{out}");
    }
}

#[test]
fn pages_lie_where_they_are_asked_for_and_rings_beside_them() {
    let apart = |line: &str| {
        let ended = run(emulated(line).env(SETTINGS, "no-dma-buf,gdr=absent"));
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "adit gpu {line}");
        ended.out
    };
    let staged = apart("trace --blocks 4");
    assert!(staged.contains("pages   in hbm, which the device does not reach"), "{staged}");
    let whys = staged.split_once("since\n").expect("it is staged").1.lines();
    let paths: Vec<&str> = whys
        .take_while(|line| !line.is_empty())
        .map(|line| line.trim_start().split_once(": ").expect("a path and its reason").0)
        .collect();
    let expected = ["coherent memory", "dma-buf through iommufd", "dma-buf mapped here", "gdrdrv"];
    assert_eq!(paths, expected, "{staged}");
    let out = apart("trace --blocks 4 --placement host --json");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["scene"]["pages"], "in host");
    let rings = report["scene"]["rings"].as_str().expect("a sentence");
    assert!(rings.contains("entries in host, completions in host"), "{out}");
    let out = succeed("trace --blocks 4");
    assert!(out.contains("pages   in hbm, by "), "{out}");
}

#[test]
fn the_steps_tell_who_carries_the_layer_out() {
    let details = |settings: &str| -> Vec<String> {
        let ended = run(emulated("trace --blocks 4 --json").env(SETTINGS, settings));
        let report: Value = serde_json::from_str(&ended.out).expect("JSON");
        let steps = report["steps"].as_array().expect("steps").iter();
        steps.map(|step| step["detail"].as_str().expect("a sentence").to_owned()).collect()
    };
    let rings = details("");
    assert_eq!(rings[2], "the I/O kernel has them, behind the event");
    assert_eq!(rings[3], "the compute stream waits for the data; the CPU is free");
    let staged = details("no-dma-buf,gdr=absent");
    assert_eq!(staged[2], "CPU threads have them, behind the event");
    assert_eq!(staged[3], "the compute stream waits for the data; CPU threads bring it");
}

#[test]
fn a_machine_whose_gpu_cannot_drive_rings_says_so_and_stages_the_layer() {
    let without_a_compiler = |line: &str| run(emulated(line).env(SETTINGS, "nvrtc=error"));
    let traced = without_a_compiler("trace --blocks 4");
    assert_eq!((traced.code, traced.err.as_str()), (Some(0), ""), "{}", traced.out);
    let staged = "none: CPU threads stage the transfers, since\n          compile the device code";
    assert!(traced.out.contains(staged) && traced.out.contains("checksums"), "{}", traced.out);
    assert!(traced.out.contains("compared by the CPU, since "), "{}", traced.out);
    let examined = without_a_compiler("doctor --json");
    assert_eq!(examined.code, Some(3), "rings cannot be made: {}", examined.err);
    assert!(examined.err.contains("NVRTC"), "{}", examined.err);
    let report: Value = serde_json::from_str(&examined.out).expect("JSON");
    let rows = report["sections"][0]["rows"].as_array().expect("rows");
    let nvrtc = rows.iter().find(|row| row["name"] == "NVRTC").expect("it is looked for");
    assert_eq!(nvrtc["verdict"], "missing", "{nvrtc}");
    assert!(nvrtc["fix"].is_string(), "{nvrtc}");
}

/// Time to fill the store; if it is too short, an earlier part is interrupted.
const FILLED: Duration = Duration::from_secs(2);

#[test]
fn an_interrupted_trace_stops_its_rings_and_ends_with_130() {
    // One command of the layer never ends.
    let line = "trace soft:mem=272M,lba=4096,faults=lose@read:n=100 --kernel persistent";
    let child = emulated(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("adit runs");
    interrupt::wait_for_handler(child.id());
    std::thread::sleep(FILLED);
    interrupt::send(child.id());
    let ended: Ended = child.wait_with_output().expect("it ends").into();
    assert_eq!((ended.code, ended.out.as_str()), (Some(130), ""), "{}", ended.err);
    assert!(ended.err.starts_with("adit: interrupted"), "{}", ended.err);
}

#[test]
fn bad_input_gets_one_sentence_and_its_code() {
    for (line, code, part) in [
        ("trace uring:kv.img", 2, "reached through the kernel"),
        ("trace null:", 2, "reached through the kernel"),
        ("trace --model llama-9", 2, "llama-3-8b"),
        ("trace --blocks 0", 2, "--blocks"),
        ("trace --depth 1", 2, "depth"),
        ("trace --queues 64", 2, "1..=63"),
        ("trace --sms 133", 2, "--sms 133: the GPU has 132 multiprocessors"),
        ("trace soft:mem=64M,lba=4096 --blocks 1000", 1, "name a larger TARGET or fewer --blocks"),
        ("trace --gpu 7", 2, "GPU 7"),
        ("doctor --gpu 7", 2, "GPU 7"),
        ("selftest --gpu 7", 2, "GPU 7"),
        ("doctor vfio:ffff:ff:1f.7", 1, "no such PCI device"),
        ("doctor soft:mem=64M,ns=9", 1, "no active namespace 9"),
        ("doctor null:", 2, "no queues of its own"),
        ("mend", 2, "mend"),
    ] {
        let ended = run(&mut emulated(line));
        assert_eq!(ended.code, Some(code), "adit gpu {line}: {}{}", ended.out, ended.err);
        assert!(ended.err.contains(part), "adit gpu {line}: {}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "adit gpu {line}: {}", ended.err);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure_and_a_full_disk_is() {
    for line in ["doctor", "trace --blocks 4"] {
        let child = emulated(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("adit runs");
        drop(child.stdout.take());
        let ended: Ended = child.wait_with_output().expect("it ends").into();
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "adit gpu {line}");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let ended = run(emulated(line).stdout(full));
        assert_eq!(ended.code, Some(1), "adit gpu {line}: {}", ended.err);
        assert!(ended.err.contains("No space left"), "adit gpu {line}: {}", ended.err);
    }
}

#[test]
fn help_has_examples() {
    for command in ["", "doctor ", "trace ", "selftest ", "bench ", "lab "] {
        let ended = without(&format!("{command}--help"));
        assert!(ended.out.contains("Example"), "adit gpu {command}--help");
    }
}

#[test]
fn help_has_limits_and_exit_codes() {
    let limits: [(&str, &[&str]); 3] = [
        ("bench", &["1 to 256", "2 to 4096", "1 to 16", "2s", "each of 512 bytes"]),
        ("trace", &["1 to 65536", "1 to 512", "1 to 63", "2 to 4096"]),
        ("selftest", &["3 no GPU, or none that rings can use"]),
    ];
    for (command, parts) in limits {
        let out = without(&format!("{command} --help")).out;
        let said = out.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in parts.iter().chain([&"Exit codes: 0 "]) {
            assert!(said.contains(part), "adit gpu {command} --help has no '{part}':\n{out}");
        }
    }
}
