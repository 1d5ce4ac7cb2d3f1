//! Keys of reports with the types of their values, and fio 3.33's keys.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Jobs for which fio's keys are recorded, by name, with options that both fio and we accept. `{file}` is a
/// writable file.
pub(crate) const CASES: [(&str, &str); 8] = [
    ("plain", "--ioengine=null --rw=randrw --size=1m --iodepth=4 --output-format=json"),
    (
        "detailed",
        "--ioengine=null --rw=randrw --size=1m --iodepth=4 --slat_percentiles=1 --lat_percentiles=1 \
         --percentile_list=50:99.9 --description=words --fsync=8 --continue_on_error=all --output-format=json",
    ),
    ("trim", "--ioengine=null --rw=trimwrite --size=1m --output-format=json"),
    (
        "verify",
        "--ioengine=psync --filename={file} --rw=randwrite --size=1m --verify=crc32c --output-format=json",
    ),
    (
        "unified",
        "--ioengine=null --rw=randrw --size=1m --unified_rw_reporting=mixed --output-format=json",
    ),
    (
        "target",
        "--ioengine=null --rw=read --size=1m --latency_target=10ms --latency_window=1s \
         --latency_percentile=99 --clat_percentiles=0 --output-format=json",
    ),
    (
        "steady",
        "--ioengine=null --rw=read --size=1m --time_based --runtime=3 --steadystate=iops:100% \
         --steadystate_duration=1 --output-format=json",
    ),
    (
        "bins",
        "--ioengine=null --rw=randrw --size=1m --iodepth=4 --slat_percentiles=1 --lat_percentiles=1 \
         --output-format=json+",
    ),
];

/// Paths of values other than objects and lists, with their types: `jobs/*/read/iops float`.
pub(crate) type Keys = BTreeSet<(String, String)>;

/// Returns the keys of a report, without ours, those that depend on the machine and the command line, and
/// `job_start`, which came with fio 3.38.
pub(crate) fn of(report: &str) -> Keys {
    let mut report: Value = serde_json::from_str(report).expect("JSON");
    let mut found = Keys::new();
    for name in ["adit", "disk_util", "global options"] {
        report.as_object_mut().expect("an object").remove(name);
    }
    for job in report["jobs"].as_array_mut().expect("a list") {
        let job = job.as_object_mut().expect("an object");
        job.remove("adit");
        job.remove("job_start");
        job.remove("job options").expect("options are listed");
    }
    leaves(&report, "", &mut found);
    found
}

fn leaves(value: &Value, path: &str, found: &mut Keys) {
    let below =
        |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
    match value {
        // Which bins exist depends on the measurement.
        Value::Object(map) if path.ends_with("/bins") => {
            map.values().for_each(|value| leaves(value, &below("*"), found));
        }
        Value::Object(map) => {
            map.iter().for_each(|(name, value)| leaves(value, &below(name), found))
        }
        Value::Array(list) => list.iter().for_each(|value| leaves(value, &below("*"), found)),
        leaf => drop(found.insert((path.to_owned(), kind(leaf).to_owned()))),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Bool(_) => "bool",
        _ => "null",
    }
}

/// Formats fio's keys of all cases for `fio-3.33-keys.txt`: path, type and cases (`*` for all), separated by
/// tabs.
#[allow(dead_code, reason = "not every test that includes this file records")]
pub(crate) fn record(all: &BTreeMap<&str, Keys>) -> String {
    let keys: BTreeSet<_> = all.values().flatten().collect();
    let line = |key: &(String, String)| {
        let cases = CASES.iter().map(|(case, _)| *case);
        let cases: Vec<&str> = cases.filter(|case| all[case].contains(key)).collect();
        let cases = if cases.len() == CASES.len() { "*".to_owned() } else { cases.join(",") };
        format!("{}\t{}\t{cases}\n", key.0, key.1)
    };
    keys.into_iter().map(line).collect()
}

/// Returns fio's keys of one case.
pub(crate) fn recorded(case: &str) -> Keys {
    let lines = include_str!("../../fio-3.33-keys.txt").lines();
    let keys = lines.filter_map(|line| {
        let [path, kind, cases] = line.split('\t').collect::<Vec<_>>().try_into().expect("three");
        let is_there = cases == "*" || cases.split(',').any(|one| one == case);
        is_there.then(|| (path.to_owned(), kind.to_owned()))
    });
    keys.collect()
}

/// Describes the keys that only one side has; `None` if both are equal.
pub(crate) fn difference(theirs: &Keys, ours: &Keys) -> Option<String> {
    let only = |a: &Keys, b: &Keys| {
        a.difference(b).map(|(path, kind)| format!("\n  {path} ({kind})")).collect::<String>()
    };
    let (missing, extra) = (only(theirs, ours), only(ours, theirs));
    let same = missing.is_empty() && extra.is_empty();
    (!same).then(|| format!("fio has and we have not:{missing}\nwe have and fio has not:{extra}"))
}
