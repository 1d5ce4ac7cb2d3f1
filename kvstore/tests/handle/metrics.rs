//! What a store tells of itself in Prometheus' text format, and the documents that name it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use adit_kvstore::{Key, Store};

use crate::on_each_path;
use crate::rig::Rig;

on_each_path!(latencies_and_devices_are_counted, memory_in_use_is_shown);

/// Returns the samples of a store, by name and labels.
fn samples(store: &Store) -> BTreeMap<String, f64> {
    let text = store.prometheus().wait().expect("text");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    lines.map(sample).collect()
}

/// Returns the sum of the samples that begin so.
fn sum(samples: &BTreeMap<String, f64>, begin: &str) -> f64 {
    samples.iter().filter(|(name, _)| name.starts_with(begin)).map(|(_, value)| value).sum()
}

fn put(store: &Store, key: u64, bytes: usize) {
    store.put(Key::from(key), vec![7; bytes]).wait().expect("stored");
}

fn latencies_and_devices_are_counted(rig: &Rig) {
    let store = rig.format(2).open();
    (0..20).for_each(|key| put(&store, key, 100_000));
    for key in 0..30u64 {
        assert_eq!(store.get(Key::from(key)).wait().expect("an answer").is_some(), key < 20);
    }
    assert!(store.delete(Key::from(0u64)).wait().expect("an answer"));
    store.commit().wait().expect("committed");
    let samples = samples(&store);
    let count =
        |kind: &str| samples[&format!("adit_kv_request_seconds_count{{request=\"{kind}\"}}")];
    assert_eq!(["get_hit", "get_miss", "put", "delete"].map(count), [20.0, 10.0, 20.0, 1.0]);
    assert_eq!(count("commit"), 2.0, "one for each shard");
    let seconds = samples["adit_kv_request_seconds_sum{request=\"put\"}"];
    assert!(seconds > 0.0 && seconds < 20.0 * 60.0, "{seconds} s for 20 puts");
    assert!(sum(&samples, "adit_kv_device_read_bytes_total{") >= 20.0 * 100_000.0);
    assert!(sum(&samples, "adit_kv_device_written_bytes_total{") >= 20.0 * 100_000.0);
    let commands: Vec<f64> = samples
        .iter()
        .filter(|(name, _)| name.starts_with("adit_kv_device_command_seconds_count{"))
        .map(|(_, count)| *count)
        .collect();
    assert_eq!(commands.len(), 4, "one device, four operations");
    assert!(commands.iter().sum::<f64>() >= 41.0, "{commands:?}");
    assert_eq!(sum(&samples, "adit_kv_device_errors_total{"), 0.0);
    assert_eq!(sum(&samples, "adit_kv_device_failed_shards{"), 0.0);
    assert_eq!(samples["adit_kv_failures_total"], 0.0);
}

fn memory_in_use_is_shown(rig: &Rig) {
    let store = rig.format(1).open();
    put(&store, 1, 1_000_000);
    let used = |store: &Store| samples(store)["adit_kv_pool_used_bytes{pool=\"0\"}"];
    let before = used(&store);
    let value = store.get(Key::from(1u64)).wait().expect("an answer").expect("a hit");
    assert_eq!(used(&store) - before, 1_003_520.0, "whole units");
    drop(value);
    assert_eq!(used(&store), before);
    assert_eq!(samples(&store)["adit_kv_pool_bytes{pool=\"0\"}"], f64::from(8 << 20));
    assert_eq!(samples(&store)["adit_kv_mailbox_capacity{thread=\"0\"}"], 1024.0);
}

#[test]
fn a_request_that_waits_counts_its_waiting() {
    let rig = Rig::soft();
    let store = rig.format(1).open();
    (0..3).for_each(|key| put(&store, key, 5 << 20));
    let held = store.get(Key::from(0u64)).wait().expect("an answer").expect("a hit");
    let waits = store.get(Key::from(1u64));
    let until = Instant::now() + Duration::from_secs(60);
    while samples(&store)["adit_kv_waiting_for_memory"] < 1.0 {
        assert!(Instant::now() < until, "the read does not wait");
    }
    std::thread::sleep(Duration::from_millis(20));
    drop(held);
    assert!(waits.wait().expect("an answer").is_some());
    assert!(samples(&store)["adit_kv_request_seconds_sum{request=\"get_hit\"}"] >= 0.02);
}

/// Returns the names of the families in the text.
fn families(text: &str) -> BTreeSet<String> {
    let of_type = |line: &str| Some(line.strip_prefix("# TYPE ")?.split_once(' ')?.0.to_owned());
    text.lines().filter_map(of_type).collect()
}

/// Returns the words of `text` that begin with `prefix` and go on with small letters, digits and underscores.
fn words(text: &str, prefix: &str) -> BTreeSet<String> {
    let is_part =
        |letter: char| letter == '_' || letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let words = text.split(|letter| !is_part(letter));
    words.filter(|word| word.starts_with(prefix)).map(str::to_owned).collect()
}

fn document(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operate").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

#[test]
fn the_dashboard_and_the_manual_name_what_a_store_prints() {
    let rig = Rig::soft();
    let store = rig.format(1).open();
    let printed = families(&store.prometheus().wait().expect("text"));
    assert!(printed.len() > 30, "{printed:?}");
    let dashboard: serde_json::Value =
        serde_json::from_str(&document("grafana/adit-kv.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let queries = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut asked = BTreeSet::new();
    for query in queries {
        let expression = query["expr"].as_str().expect("an expression");
        let names = words(expression, "adit_kv_");
        assert!(!names.is_empty(), "{expression}");
        for name in names {
            let of_histogram =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            asked.insert(of_histogram.unwrap_or(&name).to_owned());
        }
    }
    let unknown: Vec<_> = asked.difference(&printed).collect();
    assert!(asked.len() > 20 && unknown.is_empty(), "the store does not print {unknown:?}");
    let manual = document("kv.md");
    let section = manual.split_once("\n## Metrics\n").expect("a chapter").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let told = words(section, "");
    let short =
        |name: &&String| name.strip_prefix("adit_kv_").is_none_or(|name| !told.contains(name));
    let untold: Vec<_> = printed.iter().filter(short).collect();
    assert!(untold.is_empty(), "docs/operate/kv.md does not explain {untold:?}");
}
