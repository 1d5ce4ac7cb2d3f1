//! `adit gpu` as a user meets it: on a machine without a GPU, and on the emulated CUDA driver.
#![forbid(unsafe_code)]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// What the GPU that the emulated driver has is like, and which of its calls fail.
const SETTINGS: &str = "ADIT_EMULATED_GPU";

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

fn adit(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
    command.arg("gpu").args(line.split_whitespace());
    command
}

fn run(command: &mut Command) -> Ended {
    command.output().expect("adit runs").into()
}

/// `adit gpu` on a machine without a GPU, wherever it runs.
fn without(line: &str) -> Ended {
    run(adit(line).env_remove("LD_LIBRARY_PATH").env("CUDA_VISIBLE_DEVICES", "-1"))
}

/// `adit gpu` with an emulated GPU.
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
}

#[test]
fn a_trace_takes_every_model_and_kernel() {
    for line in [
        "trace --kernel persistent",
        "trace --model deepseek-v3 --blocks 3 --layers 1 --queues 1 --depth 2",
        "trace soft:mem=512M,sgl=off --blocks 8",
        "trace soft:mem=512M,mdts=3,noiob=48 --blocks 8",
    ] {
        let out = succeed(line);
        assert!(out.contains("by the store's checksums"), "adit gpu {line}\n{out}");
    }
}

#[test]
fn a_machine_whose_gpu_cannot_drive_rings_says_so_and_stages_the_layer() {
    let without_a_compiler = |line: &str| run(emulated(line).env(SETTINGS, "nvrtc=error"));
    let traced = without_a_compiler("trace --blocks 4");
    assert_eq!((traced.code, traced.err.as_str()), (Some(0), ""), "{}", traced.out);
    let staged = "none: CPU threads stage the transfers, since ";
    assert!(traced.out.contains(staged) && traced.out.contains("checksums"), "{}", traced.out);
    let examined = without_a_compiler("doctor --json");
    assert_eq!(examined.code, Some(3), "rings cannot be made: {}", examined.err);
    assert!(examined.err.contains("NVRTC"), "{}", examined.err);
    let report: Value = serde_json::from_str(&examined.out).expect("JSON");
    let rows = report["sections"][0]["rows"].as_array().expect("rows");
    let nvrtc = rows.iter().find(|row| row["name"] == "NVRTC").expect("it is looked for");
    assert_eq!(nvrtc["verdict"], "missing", "{nvrtc}");
    assert!(nvrtc["fix"].is_string(), "{nvrtc}");
}

#[test]
fn bad_input_gets_one_sentence_and_its_code() {
    for (line, code, part) in [
        ("trace uring:kv.img", 1, "kv.img"),
        ("trace null:", 2, "reached through the kernel"),
        ("trace --model llama-9", 2, "llama-3-8b"),
        ("trace --blocks 0", 2, "--blocks"),
        ("trace --depth 1", 2, "depth"),
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
    for command in ["", "doctor ", "trace ", "selftest ", "bench "] {
        let ended = without(&format!("{command}--help"));
        assert!(ended.out.contains("Example"), "adit gpu {command}--help");
    }
}
