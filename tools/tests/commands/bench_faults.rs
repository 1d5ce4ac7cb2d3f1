//! Tests `adit bench` on a misbehaving software controller: its reports, the errors it tolerates, and its end.

use std::process::Command;

/// The end of a run.
struct Ended {
    code: Option<i32>,
    report: serde_json::Value,
    err: String,
}

/// Runs a bench of 2048 blocks over `faults`, with a JSON report.
fn bench(faults: &str, options: &str) -> Ended {
    let output = Command::new(env!("CARGO_BIN_EXE_adit"))
        .args(["bench", "--bs=4k", "--iodepth=8", "--output-format=json"])
        .arg(format!("--filename=soft:mem=8M,faults={faults}"))
        .args(options.split_whitespace())
        .output()
        .expect("adit runs");
    let err = String::from_utf8(output.stderr).expect("UTF-8");
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|why| panic!("{faults} {options}: {why}: {err}"));
    Ended { code: output.status.code(), report, err }
}

impl Ended {
    fn job(&self) -> &serde_json::Value {
        &self.report["jobs"][0]
    }

    /// Returns one of the driver's counts.
    fn count(&self, name: &str) -> u64 {
        self.job()["adit"][name].as_u64().expect("a count")
    }

    /// Returns the number of errors called `name`.
    fn errors(&self, name: &str) -> u64 {
        self.job()["adit"]["errors"][name].as_u64().unwrap_or(0)
    }
}

#[test]
fn the_first_error_ends_the_run_with_its_name_and_offset() {
    let ended = bench("status(2:81)@read:lba=800", "--rw=read");
    assert_eq!(ended.code, Some(1));
    let told = "adit: soft:mem=8M,faults=status(2:81)@read:lba=800: Read at offset 409600 failed: Unrecovered Read Error";
    assert!(ended.err.starts_with(told), "{}", ended.err);
    assert_eq!(ended.job()["error"], 5);
}

#[test]
fn tolerated_errors_are_told_counted_and_not_fatal() {
    let ended = bench("status(2:81)@read:lba=800", "--rw=read --continue_on_error=io");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.err.contains("Read at offset 409600 failed: Unrecovered Read Error"));
    assert_eq!((&ended.job()["total_err"], &ended.job()["first_error"]), (&1.into(), &5.into()));
    assert_eq!(ended.errors("Unrecovered Read Error"), 1);
    assert_eq!(ended.job()["read"]["total_ios"], 2047);
}

#[test]
fn many_errors_are_told_only_at_first() {
    let ended = bench("status(2:80)@write", "--rw=write --continue_on_error=write");
    assert_eq!((ended.code, ended.errors("Write Fault")), (Some(0), 2048));
    assert_eq!(ended.err.matches("Write Fault").count(), 10);
}

#[test]
fn what_may_succeed_is_sent_again_and_what_may_not_is_not() {
    let options = "--rw=randwrite --verify=crc32c --retries=2";
    let passing = bench("status(2:80)@write:lba=800:times=2", options);
    assert_eq!((passing.code, passing.count("retries")), (Some(0), 2), "{}", passing.err);
    let lasting = bench("status(2:80)@write:lba=800", options);
    assert_eq!((lasting.code, lasting.count("retries")), (Some(1), 2), "{}", lasting.err);
    let useless = bench("status(2:80:dnr)@write:lba=800", options);
    assert_eq!((useless.code, useless.count("retries")), (Some(1), 0), "{}", useless.err);
}

#[test]
fn an_io_past_its_deadline_is_aborted_and_named() {
    let ended = bench("hold@read:lba=800", "--rw=read --io_timeout=1 --continue_on_error=io");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.err.contains("is overdue; abort sent"), "{}", ended.err);
    assert!(ended.err.contains("Read at offset 409600 failed: it missed its deadline"));
    assert!(ended.errors("Timed Out") >= 1 && ended.count("aborts") >= 1);
}

#[test]
fn a_lost_write_is_caught_by_its_queue_and_sent_again_with_recover() {
    let faults = "lose@write:lba=800:times=1";
    let options = "--rw=randwrite --verify=crc32c --io_timeout=500ms";
    let ended = bench(faults, &format!("{options} --recover"));
    assert_eq!((ended.code, ended.job()["error"].as_u64()), (Some(0), Some(0)), "{}", ended.err);
    assert!(ended.err.contains("outlived its abort; deleting the queue"), "{}", ended.err);
    assert!(ended.count("recreations") >= 1 && ended.count("retries") >= 1);
    assert_eq!(ended.job()["read"]["total_ios"], 2048, "every block is read back");
    let ended = bench(faults, options);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("data may have been written"), "{}", ended.err);
}

#[test]
fn a_controller_that_fails_is_brought_back_with_recover_only() {
    for faults in ["twice@write:n=900", "cfs@write:n=900", "sqid@write:n=900"] {
        let options = "--rw=randwrite --verify=crc32c";
        let ended = bench(faults, &format!("{options} --recover"));
        assert_eq!(ended.code, Some(0), "{faults}: {}", ended.err);
        assert_eq!(ended.count("recoveries"), 1, "{faults}");
        assert_eq!(ended.job()["read"]["total_ios"], 2048, "{faults}: every block is read back");
        let ended = bench(faults, options);
        assert_eq!((ended.code, ended.count("recoveries")), (Some(1), 0), "{faults}");
        assert!(ended.err.contains("out of service: "), "{faults}: {}", ended.err);
    }
}

#[test]
fn a_device_that_is_gone_ends_the_run_also_with_recover() {
    let ended = bench("remove@write:n=900", "--rw=randwrite --recover --continue_on_error=all");
    assert_eq!(ended.code, Some(1));
    let last = ended.err.lines().last().expect("a reason");
    assert!(last.starts_with("adit: ") && last.contains("read as all ones"), "{}", ended.err);
    assert!(!ended.err.contains("panicked"), "{}", ended.err);
}
