use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A temporary directory of one test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("adit-logs-{}-{next}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        Scratch(path)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("a directory");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Requests all logs with this prefix.
    fn options(&self) -> LogOptions {
        let prefix = Some(self.0.join("p"));
        LogOptions {
            bw: prefix.clone(),
            iops: prefix.clone(),
            lat: prefix.clone(),
            hist: prefix,
            hist_every: Duration::from_millis(50),
            ..LogOptions::default()
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn io(ns: u64, offset: u64) -> IoSample {
    let (slat_ns, clat_ns) = (ns / 10, ns - ns / 10);
    IoSample { slat_ns, clat_ns, lat_ns: ns, bytes: 4096, offset, issued_ns: 77 }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn open(options: &LogOptions, thread: u32) -> JobLogs {
    JobLogs::open(options, thread, 1_000_000).expect("opened").expect("asked for")
}

#[test]
fn nothing_asked_for_is_nothing() {
    let hist_without_time =
        LogOptions { hist: Some("/nonexistent/p".into()), ..LogOptions::default() };
    for options in [LogOptions::default(), hist_without_time] {
        assert!(JobLogs::open(&options, 1, 0).expect("no file is opened").is_none());
    }
}

#[test]
fn each_io_is_a_row_in_every_log() {
    let scratch = Scratch::new();
    let mut logs = open(&scratch.options(), 2);
    logs.record(ms(1), Way::Read, io(1000, 8192));
    logs.record(ms(70), Way::Trim, io(4_000_000, 0));
    logs.finish(ms(80)).expect("written");
    let names = ["p_bw.2.log", "p_clat.2.log", "p_clat_hist.2.log", "p_iops.2.log", "p_lat.2.log"];
    assert_eq!(scratch.names(), [&names[..], &["p_slat.2.log"]].concat());
    assert_eq!(scratch.read("p_slat.2.log"), "1, 100, 0, 4096, 0\n70, 400000, 2, 4096, 0\n");
    assert_eq!(scratch.read("p_clat.2.log"), "1, 900, 0, 4096, 0\n70, 3600000, 2, 4096, 0\n");
    assert_eq!(scratch.read("p_lat.2.log"), "1, 1000, 0, 4096, 0\n70, 4000000, 2, 4096, 0\n");
    assert_eq!(scratch.read("p_bw.2.log"), "1, 4000000, 0, 4096, 0\n70, 1000, 2, 4096, 0\n");
    assert_eq!(scratch.read("p_iops.2.log"), "1, 1, 0, 4096, 0\n70, 1, 2, 4096, 0\n");
}

#[test]
fn offsets_and_the_epoch_are_there_where_asked_for() {
    let scratch = Scratch::new();
    let options = LogOptions { offset: true, unix_epoch: true, ..scratch.options() };
    let mut logs = open(&options, 1);
    logs.record(ms(1), Way::Write, io(1000, 8192));
    logs.finish(ms(80)).expect("written");
    assert_eq!(scratch.read("p_lat.1.log"), "1000001, 1000, 1, 4096, 8192, 0\n");
    assert!(scratch.read("p_clat_hist.1.log").starts_with("1000050, 1, 4096, 0, 0, "));
}

#[test]
fn a_window_is_a_row_for_each_way() {
    let scratch = Scratch::new();
    let mut logs = open(&LogOptions { avg: ms(100), ..scratch.options() }, 1);
    for (at, way, ns) in [(1, Way::Read, 1000), (99, Way::Read, 3000), (99, Way::Write, 500)] {
        logs.record(ms(at), way, io(ns, 0));
    }
    // Two windows without I/O, and one cut short by the end.
    logs.record(ms(300), Way::Read, io(700, 0));
    logs.finish(ms(350)).expect("written");
    let rows = "100, 2000, 0, 0, 0\n100, 500, 1, 0, 0\n350, 700, 0, 0, 0\n";
    assert_eq!(scratch.read("p_lat.1.log"), rows);
    let rows = "100, 80, 0, 0, 0\n100, 40, 1, 0, 0\n350, 80, 0, 0, 0\n";
    assert_eq!(scratch.read("p_bw.1.log"), rows, "KiB per second");
    let rows = "100, 20, 0, 0, 0\n100, 10, 1, 0, 0\n350, 20, 0, 0, 0\n";
    assert_eq!(scratch.read("p_iops.1.log"), rows);
}

#[test]
fn the_maximum_stands_for_a_window_where_asked_for() {
    let scratch = Scratch::new();
    let options = LogOptions {
        avg: ms(100),
        window: WindowValue::Maximum,
        offset: true,
        ..scratch.options()
    };
    let mut logs = open(&options, 1);
    for ns in [1000, 3000, 2000] {
        logs.record(ms(5), Way::Read, io(ns, 512));
    }
    logs.finish(ms(100)).expect("written");
    assert_eq!(scratch.read("p_lat.1.log"), "100, 3000, 0, 0, 0, 0\n");
}

#[test]
fn histograms_count_each_io_once_at_any_coarseness() {
    for coarseness in 0..=6 {
        let scratch = Scratch::new();
        let options = LogOptions {
            hist_coarseness: coarseness,
            bw: None,
            iops: None,
            lat: None,
            ..scratch.options()
        };
        let mut logs = open(&options, 1);
        for (at, clat_ns) in [(1, 63), (20, 1_000_000), (49, u64::MAX), (50, 64)] {
            let (slat_ns, lat_ns, issued_ns) = (0, clat_ns, 0);
            let io = IoSample { slat_ns, clat_ns, lat_ns, bytes: 512, offset: 0, issued_ns };
            logs.record(ms(at), Way::Write, io);
        }
        logs.finish(ms(60)).expect("written");
        assert_eq!(scratch.names(), ["p_clat_hist.1.log"]);
        let text = scratch.read("p_clat_hist.1.log");
        let rows: Vec<Vec<u64>> = text
            .lines()
            .map(|row| row.split(", ").map(|cell| cell.parse().expect("a number")).collect())
            .collect();
        assert_eq!((&rows[0][..3], &rows[1][..3]), (&[50, 1, 512][..], &[60, 1, 512][..]));
        for (row, total) in rows.iter().zip([3, 1]) {
            assert_eq!(row.len() - 3, 1856 >> coarseness);
            assert_eq!(row[3..].iter().sum::<u64>(), total);
        }
        assert_eq!(rows[1][3 + (64 >> coarseness)], 1);
        assert_eq!(rows[0].last(), Some(&1), "what is beyond all is in the last");
    }
}

#[test]
fn a_shared_file_holds_the_rows_of_all() {
    let scratch = Scratch::new();
    let options = LogOptions { shared: true, avg: ms(10), ..scratch.options() };
    let mut each = [open(&options, 1), open(&options, 2)];
    for (index, logs) in each.iter_mut().enumerate() {
        logs.record(ms(index as u64), Way::Read, io(1000, 0));
    }
    for logs in each {
        logs.finish(ms(10)).expect("written");
    }
    assert_eq!(scratch.read("p_iops.log"), "10, 100, 0, 0, 0\n".repeat(2));
}

#[test]
fn names_have_kind_and_thread() {
    let options = LogOptions::default();
    let path = path(&options, Path::new("/a/b.c"), "bw", 3);
    assert_eq!(path, Path::new("/a/b.c_bw.3.log"));
}

#[test]
fn a_place_that_is_not_there_is_named_before_anything_runs() {
    let options = LogOptions { bw: Some("/nonexistent/p".into()), ..LogOptions::default() };
    let failure = JobLogs::open(&options, 1, 0).expect_err("no such directory");
    assert!(failure.to_string().contains("/nonexistent/p_bw.1.log"), "{failure}");
}

#[test]
fn a_full_disk_is_told_with_the_files_name_at_the_end() {
    let scratch = Scratch::new();
    std::os::unix::fs::symlink("/dev/full", scratch.0.join("p_bw.1.log")).expect("a link");
    let mut logs = open(&scratch.options(), 1);
    // More than the buffer holds, so that writing fails during the run and at the end.
    (0..40_000).for_each(|n| logs.record(ms(n), Way::Read, io(1000, n)));
    let failure = logs.finish(ms(50_000)).expect_err("no space");
    let text = failure.to_string();
    assert!(text.contains("p_bw.1.log is incomplete: No space left on device"), "{text}");
    assert!(!text.contains("p_iops"), "only what failed: {text}");
    assert_eq!(scratch.read("p_iops.1.log").lines().count(), 40_000);
}

#[test]
fn rows_stay_whole_beyond_what_the_buffer_holds() {
    let scratch = Scratch::new();
    let mut logs = open(&LogOptions { avg: ms(1), ..scratch.options() }, 1);
    (0..30_000).for_each(|n| logs.record(ms(n), Way::Read, io(1000, n)));
    logs.finish(ms(30_000)).expect("written");
    let rows: String = (1..=30_000).map(|n| format!("{n}, 1000, 0, 0, 0\n")).collect();
    assert_eq!(scratch.read("p_lat.1.log"), rows);
    assert_eq!(scratch.read("p_clat_hist.1.log").lines().count(), 600);
}

#[test]
fn an_entry_is_as_large_as_documented() {
    assert_eq!(size_of::<LoggedIo>(), 56);
}

/// Runs the installed fio 3.33 for a second with all logs and returns its JSON; `None` without fio 3.33.
fn fio(scratch: &Scratch, more: &[&str]) -> Option<serde_json::Value> {
    let version = Command::new("fio").arg("--version").output().ok()?;
    if version.stdout.trim_ascii_end() != b"fio-3.33" {
        return None;
    }
    let ended = Command::new("fio")
        .current_dir(&scratch.0)
        .args(["--name=job", "--ioengine=null", "--rw=randrw", "--size=1m", "--iodepth=2"])
        .args(["--time_based", "--runtime=1", "--output-format=json+", "--write_hist_log=p"])
        .args(["--log_hist_msec=100"])
        .args(more)
        .output()
        .expect("it runs");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    Some(serde_json::from_slice(&ended.stdout).expect("JSON"))
}

/// Returns the files with the column counts of their rows.
fn shape(scratch: &Scratch) -> BTreeMap<String, BTreeSet<usize>> {
    let columns =
        |name: &String| scratch.read(name).lines().map(|row| row.split(", ").count()).collect();
    scratch.names().into_iter().map(|name| (name.clone(), columns(&name))).collect()
}

#[test]
fn logs_have_the_names_and_columns_of_fios() {
    for (more, change) in [
        (&[][..], (|_: &mut LogOptions| {}) as fn(&mut LogOptions)),
        (&["--log_offset=1", "--log_hist_coarseness=3"], |options| {
            (options.offset, options.hist_coarseness) = (true, 3);
        }),
        (&["--per_job_logs=0"], |options| options.shared = true),
    ] {
        let (theirs, ours) = (Scratch::new(), Scratch::new());
        let logs =
            ["--write_bw_log=p", "--write_iops_log=p", "--write_lat_log=p", "--log_avg_msec=100"];
        if fio(&theirs, &[&logs[..], more].concat()).is_none() {
            eprintln!("fio 3.33 is not installed: nothing to compare with");
            return;
        }
        let mut options = LogOptions { avg: ms(100), ..ours.options() };
        change(&mut options);
        let mut logs = open(&options, 1);
        (0..500).for_each(|at| logs.record(ms(at), Way::Read, io(1000, 0)));
        logs.finish(ms(500)).expect("written");
        assert_eq!(shape(&ours), shape(&theirs), "{more:?}");
    }
}

#[test]
fn bins_are_those_of_fios_own_histograms() {
    let scratch = Scratch::new();
    let Some(json) = fio(&scratch, &[]) else {
        eprintln!("fio 3.33 is not installed: nothing to compare with");
        return;
    };
    // fio's JSON names each bin by the latency in its middle.
    let named = json["jobs"][0]["read"]["clat_ns"]["bins"].as_object().expect("bins");
    let named = named.keys().map(|ns| histogram::bin(ns.parse().expect("nanoseconds")));
    let named: BTreeSet<usize> = named.collect();
    let log = scratch.read("p_clat_hist.1.log");
    let reads =
        log.lines().map(|row| row.split(", ").collect::<Vec<_>>()).filter(|row| row[1] == "0");
    let counted: BTreeSet<usize> =
        reads.flat_map(|row| (0..histogram::BINS).filter(move |bin| row[3 + bin] != "0")).collect();
    assert!(counted.len() > 10, "{counted:?}");
    let unnamed: Vec<_> = counted.difference(&named).collect();
    assert!(unnamed.is_empty(), "counted in the log, and not in the JSON: {unnamed:?}");
}
