//! Tests the `adit` binary as users see it: output and exit codes.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::Ended;

fn adit() -> Command {
    let mut adit = Command::new(env!("CARGO_BIN_EXE_adit"));
    // The help is as wide as that says.
    adit.env_remove("COLUMNS");
    adit
}

/// Runs `adit` with `line`, split at spaces.
fn run(line: &str) -> Ended {
    adit().args(line.split_whitespace()).output().expect("adit runs").into()
}

fn succeed(line: &str) -> String {
    let ended = run(line);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "adit {line}\n{}", ended.out);
    ended.out
}

/// A file that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("adit-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn identify_prints_a_table() {
    let out = succeed("identify soft:mem=64M,lba=512+4096");
    for part in [
        "Model",
        "MDTS",
        "512KiB (524288 bytes)",
        "LBA of 512 bytes",
        "LBA of 4096 bytes",
        "Temperature",
    ] {
        assert!(out.contains(part), "{part} is missing:\n{out}");
    }
}

#[test]
fn identify_prints_json() {
    let out = succeed("identify soft:mem=64M,serial=X1,mdts=5 --json");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["controller"]["serial"], "X1");
    assert_eq!(report["controller"]["mdts_bytes"], 131_072);
    assert_eq!(report["namespaces"][0]["size_bytes"], 64 << 20);
    assert!(report["health"]["temperature_celsius"].is_number());
}

#[test]
fn identify_shows_what_protects_a_namespace() {
    let out = succeed("identify soft:mem=64M,lba=4096,pi=1");
    let said = "type 1, the controller checks the guard and reference tag";
    assert!(out.contains("LBA of 4096 bytes + 8 metadata") && out.contains(said), "{out}");
    let out = succeed("identify soft:mem=64M,pi=3 --json");
    assert!(out.contains("\"protection_type\": 3") && out.contains("\"unusable\": null"), "{out}");
    assert!(succeed("identify soft:mem=64M --json").contains("\"protection_type\": null"));
}

#[test]
fn identify_shows_the_namespace_that_is_named() {
    let out = succeed("identify soft:mem=64M,lba=512+4096,ns=2 --json");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["namespaces"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["namespaces"][0]["lba_bytes"], 4096);
}

#[test]
fn a_verified_mix_reads_back_what_it_wrote() {
    let out = succeed(
        "bench --filename=soft:mem=64M --rw=randrw --bs=16k --iodepth=32 --size=16M --verify=crc32c",
    );
    let issued = out.lines().find(|line| line.contains("issued rwts")).expect("the line is there");
    let totals =
        issued.split("total=").nth(1).and_then(|rest| rest.split(' ').next()).expect("totals");
    let counts: Vec<u64> = totals.split(',').map(|count| count.parse().expect("a count")).collect();
    // Each block once, and the written ones again.
    assert_eq!((counts[0], counts[1] > 400), (1024, true), "{issued}");
    for part in [
        "err= 0",
        "clat percentiles",
        "IO depths",
        "violations=0",
        "Run status group 0",
        "READ: bw=",
        "WRITE: bw=",
    ] {
        assert!(out.contains(part), "{part} is missing:\n{out}");
    }
}

#[test]
fn every_way_to_move_data_verifies() {
    for (target, options) in [
        ("soft:mem=32M,sgl=off,mdts=1", "--bs=64k --iodepth=4"),
        ("soft:mem=32M,sgl=off", "--bs=512k --iodepth=4"),
        ("soft:mem=32M,sgl=dword,lba=4096", "--bs=4k --iodepth=64"),
        ("soft:mem=32M,cmb=1M,queues=cmb", "--bs=4k --iodepth=8"),
        ("soft:mem=32M,dbbuf=off,ioqueues=1,mqes=2", "--bs=4k"),
        ("soft:mem=32M,noiob=24", "--bs=64k --iodepth=8"),
        ("soft:mem=32M,noiob=1", "--bs=4m"),
        ("soft:mem=128M,sgl=off,mdts=0", "--bs=33m --size=66m"),
        ("soft:mem=32M,lba=512+4096,ns=2", "--bs=128k --iodepth=2"),
        ("soft:mem=32M", "--bs=1536 --iodepth=3 --offset=512"),
    ] {
        succeed(&format!(
            "bench --filename={target} --rw=randrw --size=8M --verify=crc32c {options}"
        ));
    }
}

#[test]
fn without_sgls_lists_come_prebuilt() {
    let out = succeed(
        "bench --filename=soft:mem=32M,sgl=off --rw=read --bs=128k --iodepth=4 --output-format=json",
    );
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let driver = &report["jobs"][0]["adit"];
    assert_eq!(
        (&driver["prebuilt_lists"], &driver["built_lists"], &driver["sgl_commands"]),
        (&256.into(), &0.into(), &0.into())
    );
}

#[test]
fn jobs_with_verify_have_regions_of_their_own() {
    let line = "bench --filename=soft:mem=32M --rw=randwrite --bs=4k --iodepth=8 --numjobs=3 --verify=crc32c";
    let refused = run(line);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("size=11182080 and offset_increment=11182080"), "{}", refused.err);
    let out = succeed(&format!("{line} --size=8M --offset_increment=8M --output-format=json"));
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let jobs = report["jobs"].as_array().expect("jobs");
    let written: u64 = jobs.iter().filter_map(|job| job["write"]["total_ios"].as_u64()).sum();
    assert_eq!((jobs.len(), written), (3, 3 * 2048));
}

#[test]
fn grouped_jobs_are_one() {
    let out = succeed(
        "bench --filename=soft:mem=8M --rw=read --bs=4k --numjobs=2 --group_reporting --output-format=json",
    );
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["jobs"].as_array().map(Vec::len), Some(1));
    assert_eq!(report["jobs"][0]["read"]["total_ios"], 4096);
}

#[test]
fn a_run_by_time_starts_over_and_checks_each_pass() {
    let out = succeed(
        "bench --filename=soft:mem=1M --rw=randwrite --bs=4k --iodepth=4 --verify=crc32c --time_based --runtime=2 --output-format=json",
    );
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let count = |way: &str| report["jobs"][0][way]["total_ios"].as_u64().expect("a count");
    assert!(count("write") > 256, "more than one pass");
    assert_eq!(count("read"), count("write"));
}

#[test]
fn a_device_without_data_is_read() {
    let out = succeed("bench --filename=soft:null --rw=randread --bs=4k --iodepth=32 --size=64M");
    assert!(out.contains("issued rwts: total=16384,0,0,0"), "{out}");
}

#[test]
fn a_run_that_puts_up_with_errors_counts_them() {
    let line =
        "bench --filename=soft:mem=8M --rw=randrw --io_timeout=5 --continue_on_error=io --recover";
    let out = succeed(&format!("{line} --output-format=json"));
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let job = &report["jobs"][0];
    assert_eq!((&job["total_err"], &job["first_error"]), (&0.into(), &0.into()));
    assert_eq!(job["job options"]["io_timeout"], "5");
    assert_eq!(job["adit"]["errors"], serde_json::json!({}));
    let out = succeed(line);
    assert!(out.contains("errors    : total=0, first_error=0/<Success>"), "{out}");
}

#[test]
fn progress_is_shown_where_it_is_asked_for() {
    let line = "bench --filename=soft:mem=8M --time_based --runtime=1200ms --eta=always";
    let ended = run(line);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let lines: Vec<&str> = ended.err.lines().collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.starts_with("Jobs: 1 (adit): [")));
}

#[test]
fn the_report_goes_to_a_file() {
    let report = Scratch::new("report.json");
    let line = format!(
        "bench --filename=soft:mem=8M --output-format=json --output={}",
        report.0.display()
    );
    assert_eq!(succeed(&line), "");
    assert!(std::fs::read_to_string(&report.0).expect("written").contains("\"jobs\""));
}

#[test]
fn a_flipped_bit_is_found_by_a_later_run() {
    let disk = Scratch::new("disk.img");
    let target = format!("soft:file={},size=4M", disk.0.display());
    succeed(&format!(
        "bench --filename={target} --rw=randwrite --bs=4k --iodepth=4 --verify=crc32c"
    ));
    succeed(&format!("bench --filename={target} --rw=read --bs=4k --iodepth=4 --verify=crc32c"));

    let mut bytes = std::fs::read(&disk.0).expect("the disk is a file");
    bytes[5 * 4096 + 1000] ^= 1;
    std::fs::write(&disk.0, bytes).expect("written");
    let ended = run(&format!(
        "bench --filename={target} --rw=randread --bs=4k --iodepth=4 --verify=crc32c"
    ));
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("the block at offset 20480 is corrupt: crc32c expected"),
        "{}",
        ended.err
    );
    assert!(ended.out.contains("err=84"), "the report is there: {}", ended.out);
}

#[test]
fn bad_input_gets_one_sentence_and_its_code() {
    let disk = "soft:mem=8M";
    for (line, code, part) in [
        ("", 2, "Usage"),
        ("identify", 2, "required"),
        ("identify vfi:0000:00:03.0", 2, "did you mean 'vfio:0000:00:03.0'?"),
        ("identify vfio:00:03", 2, "not a PCI address"),
        ("identify soft:men=1G", 2, "did you mean 'mem'?"),
        ("identify soft:mem=8M,ns=7", 1, "namespace 7"),
        ("identify vfio-user:/nonexistent/socket", 1, "start the server first"),
        ("identify vfio:ffff:ff:1f.7", 1, "no such PCI device"),
        ("bench", 2, "--filename"),
        ("bench --filename=DISK --bz=4k", 2, "--bz"),
        ("bench --filename=DISK --rw=reed", 2, "did you mean 'read'?"),
        ("bench --filename=DISK --bs=4x", 2, "--bs: '4x' is not a number such as 8, 4k"),
        ("bench --filename=DISK --bs=1000", 2, "bs=1024"),
        ("bench --filename=DISK --size=1g", 2, "8388608 bytes"),
        ("bench --filename=DISK --iodepth=9999", 2, "iodepth=4095 at most"),
        ("bench --filename=DISK --iodepth_low=5", 2, "give at most 1"),
        ("bench --filename=DISK --io_timeout=soon", 2, "--io_timeout: 'soon' is not a time"),
        ("bench --filename=DISK --continue_on_error=maybe", 2, "one of none, 0, read"),
        ("bench --filename=DISK --retries=256", 2, "--retries"),
        ("bench --filename=DISK --recover=perhaps", 2, "--recover"),
        ("bench --filename=DISK --output=/nonexistent/file", 1, "/nonexistent/file"),
        ("bench --filename=DISK --rw=read --verify=crc32c --verify_fatal=1", 1, "all zeroes"),
    ] {
        let ended = run(&line.replace("DISK", disk));
        assert_eq!(ended.code, Some(code), "adit {line}: {}", ended.err);
        assert!(ended.err.contains(part), "adit {line}: {}", ended.err);
        let sentences = ended.err.lines().count();
        assert!(
            line.is_empty() || (sentences == 1 && ended.err.starts_with("adit: ")),
            "adit {line}: {}",
            ended.err
        );
    }
}

/// Returns the names of all commands, such as `kv put`, by what each command's help lists.
fn commands(above: &str) -> Vec<String> {
    let help = succeed(&format!("{above} --help"));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names =
        listed.take_while(|line| !line.is_empty()).filter_map(|line| line.split(' ').nth(2));
    let names = names.filter(|name| !name.is_empty()).map(|name| format!("{above} {name}"));
    names.flat_map(|name| [vec![name.trim().to_owned()], commands(name.trim())].concat()).collect()
}

#[test]
fn a_wrong_option_is_refused_with_the_help_of_its_command() {
    let commands = commands("");
    assert!(commands.len() > 40, "{commands:?}");
    for command in commands.iter().map(String::as_str).chain([""]) {
        let ended = run(&format!("{command} --no-such-option"));
        let pointer = format!("'{} --help'", format!("adit {command}").trim());
        assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{}", ended.err);
        assert!(ended.err.contains(&pointer), "adit {command}: {}", ended.err);
    }
    let ended = run("kv put uring:kv.img");
    assert!(ended.err.contains("see 'adit kv put --help'"), "{}", ended.err);
}

#[test]
fn prose_in_the_help_fills_its_lines() {
    for command in commands("").iter().map(String::as_str).chain([""]) {
        let help = succeed(&format!("{command} --help"));
        let lines: Vec<&str> = help.lines().collect();
        let is_prose =
            |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
        for two in lines.windows(2).filter(|two| two.iter().all(|line| is_prose(line))) {
            let word = two[1].split(' ').next().unwrap_or_default();
            assert!(two[0].len() + 1 + word.len() > 100, "adit {command}: {two:?}");
        }
    }
}

#[test]
fn an_interrupted_run_reports_and_says_so() {
    let line =
        "bench --filename=soft:mem=8M --rw=randread --bs=4k --iodepth=8 --time_based --runtime=60";
    let child = adit()
        .args(line.split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    thread::sleep(Duration::from_millis(700));
    let killed =
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    let ended: Ended = child.wait_with_output().expect("ends").into();
    assert_eq!(ended.code, Some(130), "{}", ended.err);
    assert!(ended.out.contains("Run status group 0"), "{}", ended.out);
    assert!(ended.err.starts_with("adit: interrupted"), "{}", ended.err);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    for line in ["identify soft:mem=8M", "bench --filename=soft:mem=8M", "bench --help"] {
        let mut child = adit()
            .args(line.split(' '))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        drop(child.stdout.take());
        let mut err = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut err).expect("UTF-8");
        assert_eq!(
            (child.wait().expect("ends").code(), err.as_str()),
            (Some(0), ""),
            "adit {line}"
        );
    }
}

#[test]
fn the_demo_ends_with_a_table() {
    let out = succeed("demo");
    for part in ["workload", "p99.9", "128 KiB, 32 in flight", "software only"] {
        assert!(out.contains(part), "{part} is missing:\n{out}");
    }
}

#[test]
fn help_has_examples() {
    for command in ["", "identify ", "bench ", "demo "] {
        assert!(succeed(&format!("{command}--help")).contains("Example"), "{command}--help");
    }
}
