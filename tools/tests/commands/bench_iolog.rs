//! Logs of I/Os: what `write_iolog` writes is what fio writes, and `read_iolog` replays both.
//!
//! Where fio is installed, it replays our logs, and we replay its; without it, these parts are left out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A temporary folder of one test, in which its commands run.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench_iolog").join(name);
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).expect("a folder");
        Scratch(folder)
    }

    fn run(&self, program: &str, options: &str) -> std::io::Result<Output> {
        Command::new(program).args(options.split_whitespace()).current_dir(&self.0).output()
    }

    fn bench(&self, options: &str) -> Output {
        self.run(env!("CARGO_BIN_EXE_adit"), &format!("bench {options}")).expect("adit runs")
    }

    /// Returns the first job of the JSON of a successful run.
    fn job(&self, options: &str) -> Value {
        let output = self.bench(&format!("--name=j {options} --output-format=json"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{options}: {said}");
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        json["jobs"][0].clone()
    }

    fn refusal(&self, options: &str) -> String {
        let output = self.bench(&format!("--name=j {options}"));
        assert_eq!(output.status.code(), Some(2), "{options}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Runs fio; `None` where it is not installed.
    fn fio(&self, options: &str) -> Option<Value> {
        let output = self.run("fio", &format!("--name=j {options} --output-format=json")).ok()?;
        assert!(output.status.success(), "fio {options}: {output:?}");
        let json = String::from_utf8_lossy(&output.stdout);
        let json: Value = serde_json::from_str(&json[json.find('{')?..]).expect("JSON");
        Some(json["jobs"][0].clone())
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("writable");
    }

    /// Returns a log's lines without their times.
    fn actions(&self, log: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.join(log)).expect(log);
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("fio version 3 iolog"));
        let mut last = 0;
        let action = |line: &str| {
            let (us, action) = line.split_once(' ').expect("a time");
            let us: u64 = us.parse().expect("microseconds");
            assert!(us >= last, "{line}");
            last = us;
            action.to_owned()
        };
        lines.map(action).collect()
    }

    fn file(&self, name: &str, bytes: u64) {
        fs::File::create(self.0.join(name)).and_then(|it| it.set_len(bytes)).expect("a file");
    }
}

/// Returns how many reads, writes, trims and flushes a job did.
fn counts(job: &Value) -> [u64; 4] {
    ["read", "write", "trim", "sync"].map(|way| job[way]["total_ios"].as_u64().expect("a count"))
}

/// A log as fio 3.33 writes it.
const LOG: &str = "fio version 3 iolog\n23 f add\n179 f open\n184 f read 8192 4096\n198 f write 4096 512\n\
                   206 f write 16384 65536\n209 f datasync 16384 0\n856 f trim 0 4096\n1007 f close\n";

#[test]
fn what_is_issued_is_logged_as_by_fio() {
    let scratch = Scratch::new("written");
    let job = "--filename=f --rw=write --bs=4k --size=16k --fdatasync=2 --verify=md5";
    scratch.job(&format!("{job} --write_iolog=log"));
    let expected = [
        "f add",
        "f open",
        "f write 0 4096",
        "f write 4096 4096",
        "f datasync 0 0",
        "f write 8192 4096",
        "f write 12288 4096",
        "f datasync 0 0",
        "f read 0 4096",
        "f read 4096 4096",
        "f read 8192 4096",
        "f read 12288 4096",
        "f close",
    ];
    assert_eq!(scratch.actions("log"), expected);
    scratch.job("--filename=null: --rw=randtrim --bs=4k --size=8k --write_iolog=trims");
    let mut trims = scratch.actions("trims");
    trims.sort();
    assert_eq!(
        trims,
        ["null: add", "null: close", "null: open", "null: trim 0 4096", "null: trim 4096 4096"]
    );
    // As by fio, rows are appended.
    scratch.job("--filename=f --rw=read --bs=4k --size=4k --write_iolog=log");
    let text = fs::read_to_string(scratch.0.join("log")).expect("the log");
    assert_eq!((text.matches("iolog").count(), text.lines().count()), (2, 14 + 5));
    for options in ["--numjobs=2", "--name=k --filename=null: --size=4k --write_iolog=log"] {
        let said =
            scratch.refusal(&format!("--filename=null: --size=4k --write_iolog=log {options}"));
        assert!(said.contains("a log of its own"), "{said}");
    }
    scratch.write("job", "[j]\nfilename=a b\nrw=write\nsize=4k\nwrite_iolog=x\n");
    let output = scratch.bench("job");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("ends at a blank"), "{said}");
}

#[test]
fn a_log_is_replayed_on_its_files_by_every_path() {
    let scratch = Scratch::new("replayed");
    scratch.write("log", LOG);
    for engine in ["psync", "io_uring --direct=1", "mmap", "io_uring --iodepth=8"] {
        scratch.file("f", 128 << 10);
        let job = scratch.job(&format!("--ioengine={engine} --read_iolog=log --write_iolog=again"));
        assert_eq!(counts(&job), [1, 2, 1, 1], "{engine}");
        let length = fs::metadata(scratch.0.join("f")).expect("the file").len();
        assert_eq!(length, 128 << 10, "a replay makes no file longer");
        let issued: Vec<String> = scratch.actions("again");
        let of_log: Vec<&str> =
            LOG.lines().skip(1).filter_map(|line| Some(line.split_once(' ')?.1)).collect();
        let alike = |line: &&String| !line.contains("datasync") && !line.contains(" sync");
        let issued: Vec<&String> = issued.iter().filter(alike).collect();
        let of_log: Vec<&&str> = of_log.iter().filter(|line| !line.contains("sync")).collect();
        assert_eq!(issued.len(), of_log.len());
        assert!(issued.iter().zip(of_log).all(|(ours, its)| **ours == **its), "{issued:?}");
        fs::remove_file(scratch.0.join("again")).expect("the log");
    }
    // On another target; the last one also in blocks of its own.
    for target in ["soft:mem=1M", "null:", "soft:mem=1M,lba=4096 --replay_skip=write"] {
        let job = scratch.job(&format!("--read_iolog=log --replay_redirect={target}"));
        let writes = if target.contains("skip") { 0 } else { 2 };
        assert_eq!(counts(&job), [1, writes, 1, 1], "{target}");
    }
    // What fio's own test of it replays: trims longer than memory, on no device.
    scratch.write(
        "big",
        "fio version 3 iolog\n30 /dev/null add\n31 /dev/null open\n\
                          36 /dev/null trim 0 2147483648\n52 /dev/null write 0 4096\n",
    );
    let job = scratch.job("--read_iolog=big --ioengine=null --iodepth=128");
    assert_eq!(counts(&job), [0, 1, 1, 0]);
}

#[test]
fn the_times_of_a_log_are_kept_unless_asked_otherwise() {
    let scratch = Scratch::new("times");
    scratch.write("log", "fio version 3 iolog\n0 f add\n0 f read 0 512\n150000 f read 512 512\n300000 f read 0 512\n");
    scratch
        .write("waits", "fio version 2 iolog\nf add\nf read 0 512\nf wait 300 0\nf read 512 512\n");
    scratch.file("f", 4096);
    for (options, reads, least) in [
        ("--read_iolog=log", 3, 300),
        ("--read_iolog=waits", 2, 300),
        ("--read_iolog=log --replay_time_scale=50", 3, 600),
        ("--read_iolog=log --number_ios=2", 2, 150),
    ] {
        let job = scratch.job(options);
        assert_eq!(counts(&job)[0], reads, "{options}");
        let took = job["elapsed"].as_u64().map(|_| job["job_runtime"].as_u64().expect("ms"));
        assert!(took.expect("a time") >= least, "{options}: {job}");
    }
    // The log's day is no reason to wait for one.
    scratch.write("day", "fio version 3 iolog\n0 f add\n86400000000 f read 0 512\n");
    let start = Instant::now();
    scratch.job("--read_iolog=day --replay_no_stall=1");
    scratch.job("--read_iolog=day --runtime=1");
    assert!(start.elapsed() < Duration::from_secs(600));
}

#[test]
fn what_waits_for_its_time_is_the_last_of_the_ios_that_were_asked_for() {
    let scratch = Scratch::new("counted");
    for rate in ["--rate_iops=20", "--rate=80k"] {
        let job = "--filename=null: --rw=read --bs=4k --size=1m --number_ios=3 --write_iolog=log";
        let counted = scratch.job(&format!("{job} {rate}"));
        assert_eq!(counts(&counted)[0], 3, "{rate}");
        let ios: Vec<String> =
            scratch.actions("log").into_iter().filter(|line| line.contains("read")).collect();
        assert_eq!(ios, [0, 4096, 8192].map(|at| format!("null: read {at} 4096")), "{rate}");
        fs::remove_file(scratch.0.join("log")).expect("the log");
    }
}

#[test]
fn threads_have_logs_of_their_own() {
    let scratch = Scratch::new("threads");
    scratch.write("a", "fio version 3 iolog\n0 f add\n1 f read 0 512\n");
    scratch.write("b", "fio version 3 iolog\n0 g add\n1 g write 0 512\n2 g write 512 512\n");
    scratch.file("f", 4096);
    scratch.file("g", 4096);
    let job = scratch.job("--read_iolog=a:b --numjobs=2 --group_reporting");
    assert_eq!(counts(&job), [1, 2, 0, 0]);
}

#[test]
fn what_cannot_be_replayed_is_refused_before_the_first_io() {
    let scratch = Scratch::new("refused");
    scratch.write("log", LOG);
    scratch.write("trace", "not a log");
    fs::write(scratch.0.join("blktrace"), [0x07, 0x74, 0x61, 0x65, 0, 0]).expect("writable");
    scratch.write("empty", "fio version 3 iolog\n0 f add\n");
    scratch.file("f", 16 << 10);
    for (options, said) in [
        ("--read_iolog=log", "a write of 65536 bytes at 16384: psync:f ends at 16384"),
        ("--read_iolog=log --replay_redirect=soft:mem=1M,lba=4096", "has LBAs of 4096 bytes"),
        ("--read_iolog=blktrace", "it is a trace of blktrace"),
        ("--read_iolog=trace", "line 1: a log begins with"),
        ("--read_iolog=none", "No such file"),
        ("--read_iolog=empty", "no I/O to replay"),
        ("--read_iolog=log --filename=other", "give replay_redirect=other"),
        ("--read_iolog=log --verify=md5", "without verify"),
        ("--read_iolog=log --replay_align=3", "no power of two"),
        ("--read_iolog=log --replay_skip=writes", "did you mean 'write'"),
        ("--read_iolog=log --readonly", "--readonly"),
    ] {
        let why = scratch.refusal(options);
        assert!(why.contains(said), "{options}: {why}");
    }
    // Without its writes it only reads and trims.
    let skipped = "--read_iolog=log --replay_skip=write,trim --readonly";
    assert_eq!(counts(&scratch.job(skipped)), [1, 0, 0, 1]);
}

#[test]
fn fio_and_bench_replay_each_others_logs() {
    let scratch = Scratch::new("both");
    let job = "--filename=f --rw=randrw --bs=4k --size=256k --fdatasync=8";
    let Some(theirs) = scratch.fio(&format!("{job} --write_iolog=theirs")) else {
        return eprintln!("fio is not installed: left out");
    };
    let replayed = scratch.job("--read_iolog=theirs");
    assert_eq!(counts(&replayed)[..2], counts(&theirs)[..2]);
    let ours = scratch.job(&format!("{job} --write_iolog=ours"));
    let replayed = scratch.fio("--read_iolog=ours").expect("installed");
    assert_eq!(counts(&replayed)[..2], counts(&ours)[..2]);
    assert_eq!(replayed["error"], 0);
    // A log of ours that was replayed and logged again is the same log.
    scratch.job("--read_iolog=theirs --write_iolog=again");
    let ios = |log: &str| {
        let all = scratch.actions(log);
        all.into_iter().filter(|line| line.ends_with(" 4096")).collect::<Vec<_>>()
    };
    assert_eq!(ios("again"), ios("theirs"));
}
