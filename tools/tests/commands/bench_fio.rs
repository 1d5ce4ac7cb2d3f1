//! Holds `adit bench` to fio's own tests: the same options, the same I/Os, the same figures.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A temporary folder of one test, in which its commands run.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench_fio").join(name);
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).expect("a folder");
        Scratch(folder)
    }

    fn command(&self, options: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
        command.arg("bench").args(options.split_whitespace()).current_dir(&self.0);
        command
    }

    fn bench(&self, options: &str) -> Output {
        self.command(options).output().expect("adit runs")
    }

    /// Returns the output of a successful run that prints nothing on standard error.
    fn told(&self, options: &str) -> String {
        let output = self.bench(options);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{options}: {said}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn json(&self, options: &str) -> Value {
        let text = self.told(&format!("{options} --output-format=json"));
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{options}: {why}: {text}"))
    }

    /// Returns the rows of a log, with the offset in the fifth column.
    fn rows(&self, log: &str) -> Vec<Vec<u64>> {
        let text =
            fs::read_to_string(self.0.join(log)).unwrap_or_else(|why| panic!("{log}: {why}"));
        let number = |field: &str| field.trim().parse().expect("a number");
        text.lines().map(|line| line.split(',').map(number).collect()).collect()
    }

    /// Returns the offsets of a job's I/Os in order.
    fn offsets(&self, options: &str) -> Vec<u64> {
        self.told(&format!("--name=j {options} --write_bw_log=o --log_offset=1"));
        self.rows("o_bw.1.log").iter().map(|row| row[4]).collect()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

const RANDOM: &str = "--filename=null: --rw=randread --bs=4k --size=1m";

#[test]
fn what_is_trimmed_and_written_is_the_whole_region() {
    let scratch = Scratch::new("trimwrite");
    for rw in ["trimwrite", "randtrimwrite"] {
        let offsets = scratch.offsets(&format!("--filename=null: --rw={rw} --bs=4k --size=1m"));
        assert_eq!(offsets.len(), 512, "{rw}");
        assert_eq!(offsets.iter().collect::<BTreeSet<_>>().len(), 256, "{rw}");
        // As in fio, a write after a trim has the trim's length.
        let uneven =
            scratch.offsets(&format!("--filename=null: --rw={rw} --bs=4k,4k,8k --size=1m"));
        assert_eq!(
            (uneven.len(), uneven.iter().collect::<BTreeSet<_>>().len()),
            (256, 128),
            "{rw}"
        );
        let few = format!("--name=j --filename=null: --rw={rw} --bs=4k --size=1m --number_ios=10");
        let job = &scratch.json(&few)["jobs"][0];
        assert_eq!(
            (&job["trim"]["total_ios"], &job["write"]["total_ios"]),
            (&10.into(), &10.into())
        );
    }
}

#[test]
fn a_seed_decides_the_order_whatever_else_is_said() {
    let scratch = Scratch::new("seed");
    let order = |more: &str| scratch.offsets(&format!("{RANDOM} {more}"));
    let usual = order("");
    assert_eq!(usual, order("--randrepeat=1"));
    assert_eq!(usual, order("--allrandrepeat=1"));
    for changes in ["--randrepeat=0", "--allrandrepeat=0"] {
        assert_ne!(order(changes), order(changes), "{changes}");
        let seeded = format!("{changes} --randseed=7");
        assert_eq!(order(&seeded), order("--randseed=7"), "{seeded}");
    }
    assert_ne!(usual, order("--randseed=7"));
}

#[test]
fn terse_percentiles_are_those_that_are_asked_for() {
    let scratch = Scratch::new("terse");
    let with = "--name=j --filename=soft:mem=4m --rw=randread --bs=4k --number_ios=200";
    for (options, kind) in [
        ("--lat_percentiles=1", "lat_ns"),
        ("--lat_percentiles=1 --clat_percentiles=0", "lat_ns"),
        ("", "clat_ns"),
    ] {
        let text = scratch.told(&format!("{with} {options} --output-format=terse,json"));
        let (terse, json) = text.split_once('\n').expect("a line and JSON");
        let json: Value = serde_json::from_str(json).expect("JSON");
        let percentiles = json["jobs"][0]["read"][kind]["percentile"].as_object().expect(kind);
        let told: Vec<&str> = terse.split(';').skip(17).take(percentiles.len()).collect();
        let expected: Vec<String> = percentiles
            .iter()
            .map(|(percent, ns)| format!("{percent}%={}", ns.as_u64().expect("ns") / 1000))
            .collect();
        assert_eq!(told, expected, "{options}");
    }
}

#[test]
fn a_format_that_is_given_twice_is_told_once() {
    let scratch = Scratch::new("formats");
    for formats in ["json,json", "json --output-format=json"] {
        let text = scratch.told(&format!("--name=j {RANDOM} --output-format={formats}"));
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{formats}: {text}");
    }
    let both = scratch.told(&format!("--name=j {RANDOM} --output-format=json --append-terse"));
    assert_eq!(both.lines().filter(|line| line.starts_with("3;")).count(), 1);
}

#[test]
fn a_file_takes_the_blocks_that_fit_into_its_size() {
    let scratch = Scratch::new("size");
    for (rw, bytes) in [("write", 8192), ("randwrite", 8192), ("read", 8192)] {
        let options = format!("--name=j --filename=f-{rw} --rw={rw} --bs=4k --size=10000");
        let way = if rw == "read" { "read" } else { "write" };
        assert_eq!(scratch.json(&options)["jobs"][0][way]["io_bytes"], bytes, "{rw}");
        let length = fs::metadata(scratch.file(&format!("f-{rw}"))).expect("the file").len();
        assert_eq!(length, 10000, "{rw}");
    }
}

#[test]
fn what_a_job_wrote_is_kept_where_it_is_asked_for_and_checked_by_one_that_reads() {
    let scratch = Scratch::new("state");
    let job = "--name=j --filename=f --bs=4k --size=512k --verify=md5";
    scratch.told(&format!("{job} --rw=write"));
    let state = scratch.file("local-j-0-verify.state");
    assert!(!state.exists(), "a job that ends by itself needs none");
    for more in ["", "--do_verify=0", "--rw=randwrite --loops=2"] {
        drop(fs::remove_file(&state));
        scratch.told(&format!("{job} --rw=write --verify_state_save=1 {more}"));
        assert!(state.exists(), "{more}");
    }
    let checked = format!("{job} --rw=randread --verify_state_load=1");
    assert_eq!(scratch.json(&checked)["jobs"][0]["read"]["io_bytes"], 512 << 10);
    // The state may be in another folder.
    fs::create_dir(scratch.file("aux")).expect("a folder");
    scratch.told(&format!("{job} --rw=write --verify_state_save=1 --aux-path=aux"));
    assert!(scratch.file("aux/local-j-0-verify.state").exists());
    scratch.told(&format!("{job} --rw=read --verify_state_load=1 --aux-path=aux"));
    // Checking keeps the state, and detects changed data.
    assert!(state.exists());
    let mut content = fs::read(scratch.file("f")).expect("the file");
    content[300_000] ^= 1;
    fs::write(scratch.file("f"), content).expect("the file");
    let output = scratch.bench(&checked);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_state_over_several_files_says_what_of_each_was_written() {
    let scratch = Scratch::new("states");
    for service in ["roundrobin", "roundrobin:3", "random", "sequential"] {
        let job = format!(
            "--name=j --filename=a:b:c --bs=4k --size=384k --verify=md5 --file_service_type={service}"
        );
        // About half of the blocks: all of the first file with sequential, else some of each.
        let written = "--rw=randwrite --number_ios=50 --do_verify=0 --verify_state_save=1";
        let json = scratch.json(&format!("{job} {written}"));
        assert_eq!(json["jobs"][0]["write"]["total_ios"], 50, "{service}");
        let checked = format!("{job} --rw=randread --verify_state_load=1");
        assert_eq!(scratch.json(&checked)["jobs"][0]["read"]["total_ios"], 50, "{service}");
        // A block of the second file that is not what was written, wherever it is.
        let file = scratch.file("b");
        let content = fs::read(&file).expect("the file");
        let block = content.chunks(4096).position(|block| block.iter().any(|byte| *byte != 0));
        let at = block.expect("a block of it was written") * 4096 + 2000;
        let mut other = content.clone();
        other[at] ^= 1;
        fs::write(&file, other).expect("writable");
        let output = scratch.bench(&checked);
        let said = String::from_utf8_lossy(&output.stderr);
        let is_named = said.contains("is corrupt: md5") && said.contains("psync:b");
        assert!(output.status.code() == Some(1) && is_named, "{service}: {said}");
        fs::write(&file, content).expect("writable");
        // Without the state, what was never written is expected as well.
        assert_eq!(scratch.bench(&format!("{job} --rw=randread")).status.code(), Some(1));
        for (name, with) in [
            ("offset", checked.replace("a:b:c", "a:b")),
            ("size", checked.replace("384k", "192k")),
            ("file_service_type", checked.replace(service, "roundrobin:5")),
        ] {
            let output = scratch.bench(&with);
            let said = String::from_utf8_lossy(&output.stderr);
            let is_refused = said.contains(&format!("was saved with {name}="));
            assert!(output.status.code() == Some(2) && is_refused, "{with}: {said}");
        }
        for name in ["a", "b", "c"] {
            fs::remove_file(scratch.file(name)).expect("the file");
        }
    }
}

#[test]
fn a_pattern_asks_for_verification_by_itself() {
    let scratch = Scratch::new("pattern");
    let job = "--name=j --filename=f --bs=4k --size=64k --verify_pattern=0xab%o";
    let json = scratch.json(&format!("{job} --rw=write"));
    let ways = ["write", "read"].map(|way| json["jobs"][0][way]["total_ios"].clone());
    assert_eq!(ways, [16, 16], "what was written is read back");
    // Each block has a header, and behind it the pattern with the block's offset.
    let content = fs::read(scratch.file("f")).expect("the file");
    let repeated = |offset: u64| [&[0xab][..], &offset.to_le_bytes()].concat().repeat(456);
    for (offset, block) in (0..).step_by(4096).zip(content.chunks(4096)) {
        let pattern = repeated(offset);
        assert_ne!(block[..48], pattern[..48], "a header");
        let starts = block.windows(4000).any(|window| *window == pattern[..4000]);
        assert!(starts, "the pattern at {offset}");
    }
    // The header's checksum is that of crc32c; it covers what is behind it.
    scratch.told(&format!("{job} --rw=read"));
    scratch.told("--name=j --filename=f --bs=4k --size=64k --rw=read --verify=crc32c");
    let mut other = content.clone();
    other[30_000] ^= 1;
    fs::write(scratch.file("f"), other).expect("writable");
    let output = scratch.bench(&format!("{job} --rw=read"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("is corrupt: crc32c"), "{said}");
    // Where verify says otherwise, before or after it, that holds.
    for (verify, first) in [("0", true), ("0", false), ("pattern", true), ("pattern", false)] {
        let pattern = "--verify_pattern=0xab";
        let both = match first {
            true => format!("--verify={verify} {pattern}"),
            false => format!("{pattern} --verify={verify}"),
        };
        let json =
            scratch.json(&format!("--name=j --filename=f --bs=4k --size=64k --rw=write {both}"));
        let expected = if verify == "0" { 0 } else { 16 };
        assert_eq!(json["jobs"][0]["read"]["total_ios"], expected, "{both}");
        let content = fs::read(scratch.file("f")).expect("the file");
        assert_eq!(content.iter().all(|byte| *byte == 0xab), verify == "pattern", "{both}");
    }
}

#[test]
fn a_signal_asks_for_a_report_in_between() {
    let scratch = Scratch::new("signal");
    let options = "--name=j --filename=null: --rw=read --size=1g --time_based --runtime=60 --rate_iops=100 \
                   --output-format=json --output=out.json --write_iops_log=l --log_avg_msec=10";
    let mut child = scratch.command(options).stderr(Stdio::piped()).spawn().expect("adit runs");
    let pid = Pid::from_raw(child.id() as i32);
    let reports = || {
        let text = fs::read_to_string(scratch.file("out.json")).unwrap_or_default();
        serde_json::Deserializer::from_str(&text).into_iter::<Value>().flatten().count()
    };
    let wait = |what: &str, is_there: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !is_there() {
            assert!(start.elapsed() < Duration::from_secs(30), "{what} did not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // Its log is created after the signal handler is installed.
    wait("the log", &|| scratch.file("l_iops.1.log").exists());
    for count in 1..=2 {
        kill(pid, Signal::SIGUSR1).expect("it runs");
        wait("a report", &|| reports() >= count);
    }
    kill(pid, Signal::SIGINT).expect("it runs");
    let output = child.wait().expect("adit ends");
    assert_eq!((output.code(), reports()), (Some(130), 3));
}

#[test]
fn what_does_no_harm_is_taken_with_one_warning() {
    let scratch = Scratch::new("unheeded");
    let jobs = "--nice=5 --prio=4 --name=a --filename=null: --size=1m --cmdprio_percentage=50 --name=b \
                --filename=null: --size=1m --sqthread_poll --bandwidth-log --debug=io,random --alloc-size=1 \
                --idle-prof=percpu --eta-newline=1";
    let text = scratch.told(&format!("{jobs} --output-format=json"));
    let json = &text[text.find('{').expect("JSON after the seeds")..];
    let json: Value = serde_json::from_str(json).expect("JSON");
    let warnings = json["adit"]["warnings"].as_array().expect("a list");
    let ours = warnings.iter().filter(|warning| warning["code"] == "option-unheeded");
    let names: Vec<&str> =
        ours.filter_map(|warning| warning["text"].as_str()?.split(' ').next()).collect();
    let expected = [
        "--bandwidth-log",
        "--debug",
        "--idle-prof",
        "cmdprio_percentage",
        "nice",
        "prio",
        "sqthread_poll",
    ];
    assert_eq!(names, expected);
    // There is one row by priority, for all I/Os; no other row has a priority.
    let [a, b] = [0, 1].map(|job| &json["jobs"][job]["read"]);
    assert_eq!(a["prios"][0]["clat_ns"]["N"], a["total_ios"]);
    assert!(b["prios"].is_null());
    let refused = scratch.bench(&format!("{jobs} --warnings-fatal"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(scratch.told("--name=j --filename=null: --size=1m --nice=0").lines().count() > 5);
    let json = scratch.json("--name=j --filename=null: --size=1m --nice=0 --cmdprio_percentage=0");
    let warnings = json["adit"]["warnings"].as_array().expect("a list");
    // A machine that is busy has warnings of its own.
    assert!(warnings.iter().all(|it| it["code"] != "option-unheeded"), "{warnings:?}");
}

#[test]
fn time_without_an_end_is_dropped_as_by_fio() {
    let scratch = Scratch::new("endless");
    let json = scratch.json("--name=j --filename=null: --size=1m --bs=4k --time_based");
    assert_eq!(json["jobs"][0]["read"]["total_ios"], 256);
    assert!(
        json["adit"]["warnings"][0]["text"].as_str().is_some_and(|it| it.contains("runtime=10"))
    );
}

#[test]
fn seeds_are_printed_for_each_thread() {
    let scratch = Scratch::new("seeds");
    let seeds = |options: &str| -> Vec<String> {
        let text = scratch.told(&format!("--debug=random --name=j {RANDOM} {options}"));
        let lines =
            text.lines().filter(|line| line.starts_with("random") && line.contains("rand_seeds["));
        lines.filter_map(|line| Some(line.split_once('=')?.1.to_owned())).collect()
    };
    let two = seeds("--numjobs=2");
    assert!(two.len() == 2 && two[0] != two[1], "{two:?}");
    assert_eq!(two, seeds("--numjobs=2 --randrepeat=1"));
    assert_eq!(seeds("--randseed=7 --randrepeat=0"), seeds("--randseed=7 --allrandrepeat=1"));
    assert_ne!(seeds("--randrepeat=0"), seeds("--randrepeat=0"));
}

#[test]
fn the_version_is_told_without_a_run() {
    let scratch = Scratch::new("answers");
    assert!(scratch.told("--version").starts_with("adit-"));
    for (absent, meant) in [("--cmdhelp=bs", "--help"), ("--ioengine=libaoi", "libaio")] {
        let output = scratch.bench(absent);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(meant), "{said}");
    }
}

#[test]
fn there_are_no_more_threads_than_are_allowed() {
    let scratch = Scratch::new("max-jobs");
    let jobs = "--max-jobs=3 --name=a --filename=null: --size=4k --numjobs=2 --name=b --filename=null: --size=4k";
    scratch.told(jobs);
    let output = scratch.bench(&format!("{jobs} --numjobs=2"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("--max-jobs=4"), "{said}");
}

#[test]
fn files_are_made_as_it_is_asked_for() {
    let scratch = Scratch::new("files");
    let job = "--name=j --filename=f --size=1m --bs=4k";
    let output = scratch.bench(&format!("{job} --rw=write --allow_file_create=0"));
    assert!(!output.status.success() && !scratch.file("f").exists(), "{output:?}");
    let json = scratch.json(&format!("{job} --rw=write --create_only=1 --fallocate=none"));
    assert_eq!(json["jobs"][0]["write"]["total_ios"], 0);
    let about = fs::metadata(scratch.file("f")).expect("the file");
    assert_eq!((about.len(), about.blocks()), (1 << 20, 0), "as long, without space");
    fs::remove_file(scratch.file("f")).expect("the file");
    scratch.told(&format!("{job} --rw=write --create_only=1 --fallocate=native"));
    let about = fs::metadata(scratch.file("f")).expect("the file");
    assert_eq!(about.len(), 1 << 20);
    fs::remove_file(scratch.file("f")).expect("the file");
    scratch.told(&format!("{job} --rw=write --overwrite=1 --number_ios=1"));
    let content = fs::read(scratch.file("f")).expect("the file");
    assert!(content.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)), "all is filled");
}

#[test]
fn logs_have_the_columns_that_are_asked_for() {
    let scratch = Scratch::new("logs");
    let job = "--name=j --filename=null: --rw=read --size=1m --bs=4k --write_lat_log=l --write_iops_log=l";
    let first = |log: &str| {
        let text = fs::read_to_string(scratch.file(log)).expect(log);
        text.lines().next().expect("a row").split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    scratch.told(&format!("{job} --log_prio=1"));
    assert_eq!(first("l_clat.1.log")[4..], ["0x0000"]);
    scratch.told(&format!("{job} --log_offset=1 --log_issue_time=1"));
    let issued = first("l_clat.1.log")[6].parse::<u64>().expect("ns");
    assert!(issued > 0);
    for log in ["l_lat.1.log", "l_iops.1.log"] {
        assert_eq!(first(log)[6..], ["0"], "{log}");
    }
    scratch.told(&format!("{job} --log_window_value=both --log_avg_msec=60000"));
    let row = first("l_clat.1.log");
    let [mean, most] = [1, 2].map(|column| row[column].parse::<u64>().expect("ns"));
    assert!(row.len() == 6 && mean <= most && mean > 0, "{row:?}");
    let row = first("l_iops.1.log");
    assert!(row.len() == 6 && row[1] == row[2], "{row:?}");
}

#[test]
fn a_job_waits_for_the_one_it_names() {
    let scratch = Scratch::new("wait-for");
    let jobs = "--filename=f --size=4m --bs=4k --verify=crc32c --name=writer --rw=write --do_verify=0 \
                --rate_iops=5000 --name=reader --rw=read --wait_for=writer";
    let json = scratch.json(jobs);
    assert_eq!(json["jobs"][1]["read"]["total_ios"], 1024);
    let output = scratch.bench("--name=a --filename=null: --size=4k --wait_for=later");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("no job of this name"), "{said}");
}

#[test]
fn one_job_ends_the_others_that_it_should() {
    let scratch = Scratch::new("exit-what");
    let jobs = |what: &str| {
        let long = "--filename=null: --size=4k --time_based --runtime=4 --rate_iops=200";
        let text = format!(
            "--name=first --filename=null: --size=4k --bs=4k --exitall --exit_what={what} --name=beside {long} \
             --new_group --name=after {long} --runtime=100ms --stonewall"
        );
        let json = scratch.json(&text);
        [1, 2].map(|job| json["jobs"][job]["read"]["total_ios"].as_u64().expect("a count"))
    };
    let [stonewall, all] = ["stonewall", "all"].map(jobs);
    assert!(stonewall[0] < 600 && stonewall[1] > 0, "stonewall: {stonewall:?}");
    assert!(all[0] < 600 && all[1] == 0, "all: {all:?}");
}

#[test]
fn a_job_that_fails_ends_the_others_where_it_is_asked_for() {
    let scratch = Scratch::new("exit-on-error");
    let jobs = "--exitall_on_error=1 --name=fails --filename=soft:mem=1m --rw=read --verify=pattern \
                --verify_pattern=0xff --name=beside --filename=null: --size=4k --time_based --runtime=30 \
                --rate_iops=100 --output-format=json";
    let output = scratch.bench(jobs);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(1));
    assert!(json["jobs"][1]["read"]["total_ios"].as_u64().is_some_and(|ios| ios < 2500));
}

#[test]
fn a_file_through_the_page_cache_takes_blocks_of_any_length() {
    let scratch = Scratch::new("bytes");
    // The check of a drive that etcd's documentation gives, with fewer writes.
    let check =
        "--name=etcd --rw=write --ioengine=sync --fdatasync=1 --directory=. --size=20000 --bs=2300";
    let job = &scratch.json(check)["jobs"][0];
    assert_eq!((&job["write"]["total_ios"], &job["sync"]["total_ios"]), (&8.into(), &8.into()));
    let file = fs::read(scratch.file("etcd.0.0")).expect("the file");
    assert_eq!((file.len(), file[8 * 2300..].iter().all(|byte| *byte == 0)), (20000, true));
    assert!(file[..8 * 2300].chunks(2300).all(|block| block.iter().any(|byte| *byte != 0)));
    for engine in ["sync", "io_uring --iodepth=4", "mmap"] {
        let job =
            format!("--name=j --filename=f --size=100001 --bsrange=999-3001 --ioengine={engine}");
        for rw in ["write", "randwrite", "randwrite --norandommap"] {
            scratch.told(&format!("{job} --rw={rw} --verify=crc32c --offset=7"));
        }
        scratch.told(&format!("{job} --rw=randtrim"));
        let length = fs::metadata(scratch.file("f")).expect("the file").len();
        assert_eq!(length, 100_008, "{engine}");
        fs::remove_file(scratch.file("f")).expect("the file");
    }
    // What bypasses the page cache has blocks of its own.
    let output = scratch.bench("--name=j --filename=f --size=100k --bs=2300 --rw=write --direct=1");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("use a multiple"), "{said}");
}
