//! A store's counters in Prometheus' text format.

use std::fmt::Write;

use crate::model::place::UNIT_BYTES;
use crate::shard::Stats;

/// A metric: its name, its kind, its help text and its value.
struct Metric {
    name: &'static str,
    is_counter: bool,
    help: &'static str,
    value: fn(&Stats) -> u64,
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Stats) -> u64) -> Metric {
    Metric { name, is_counter: true, help, value }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Stats) -> u64) -> Metric {
    Metric { name, is_counter: false, help, value }
}

const METRICS: &[Metric] = &[
    counter("adit_kv_gets_total", "Gets, hits and misses.", |s| s.gets),
    counter("adit_kv_get_hits_total", "Gets that found their object.", |s| s.hits),
    counter("adit_kv_get_misses_total", "Gets that did not, whyever.", |s| s.misses),
    counter(
        "adit_kv_get_corrupt_total",
        "Misses of objects whose bytes on the device were not those that were put.",
        |s| s.misses_corrupt,
    ),
    counter("adit_kv_puts_total", "Puts.", |s| s.puts),
    counter(
        "adit_kv_puts_declined_total",
        "Puts that admission or the write budget was against.",
        |s| s.declined,
    ),
    counter("adit_kv_deletes_total", "Objects removed on request.", |s| s.deletes),
    counter("adit_kv_evictions_total", "Objects removed for room.", |s| s.evictions),
    counter("adit_kv_expirations_total", "Objects whose time was over.", |s| s.expirations),
    counter("adit_kv_read_bytes_total", "Bytes that hits gave to callers.", |s| s.bytes_read),
    counter("adit_kv_written_bytes_total", "Bytes of objects that were stored.", |s| {
        s.bytes_written
    }),
    counter(
        "adit_kv_device_written_bytes_total",
        "Bytes written to the devices, whatever for.",
        |s| s.bytes_to_device,
    ),
    counter("adit_kv_journal_bytes_total", "Bytes of the journal written.", |s| s.journal_bytes),
    counter("adit_kv_checkpoint_bytes_total", "Bytes of checkpoints written.", |s| {
        s.checkpoint_bytes
    }),
    counter(
        "adit_kv_copied_bytes_total",
        "Bytes copied between slices and registered memory.",
        |s| s.copied_bytes,
    ),
    counter("adit_kv_deallocated_bytes_total", "Bytes that devices were told hold nothing.", |s| {
        s.discards_bytes
    }),
    counter("adit_kv_device_reads_total", "Read commands sent.", |s| s.commands_read),
    counter("adit_kv_device_writes_total", "Write commands sent.", |s| s.commands_write),
    counter("adit_kv_device_flushes_total", "Flushes sent.", |s| s.flushes),
    counter("adit_kv_device_failures_total", "Devices that failed.", |s| s.device_failures),
    counter("adit_kv_checkpoints_total", "Checkpoints completed.", |s| s.checkpoints),
    gauge("adit_kv_objects", "Objects there are.", |s| s.objects),
    gauge("adit_kv_leased_objects", "Objects that are leased.", |s| s.leased),
    gauge("adit_kv_used_bytes", "Bytes in use, padding included.", |s| s.used_units * UNIT_BYTES),
    gauge("adit_kv_capacity_bytes", "Bytes that objects may take.", |s| {
        s.capacity_units * UNIT_BYTES
    }),
    gauge("adit_kv_free_runs", "Runs of free space.", |s| s.free_runs),
    gauge("adit_kv_largest_free_bytes", "Bytes of the longest of them.", |s| {
        s.largest_free_units * UNIT_BYTES
    }),
    gauge("adit_kv_memory_bytes", "Bytes of memory that tables take.", |s| s.memory_bytes),
];

/// Formats `stats` in Prometheus' text format, version 0.0.4.
pub(crate) fn text(stats: &Stats) -> String {
    let mut text = String::new();
    for Metric { name, is_counter, help, value } in METRICS {
        let kind = if *is_counter { "counter" } else { "gauge" };
        let value = value(stats);
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}")
            .expect("a string takes all that is written");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Parses the samples, as strictly as Prometheus' own parser: help, type, then the sample.
    fn parse(text: &str) -> HashMap<String, u64> {
        let lines: Vec<&str> = text.lines().collect();
        assert!(text.ends_with('\n') && lines.len().is_multiple_of(3));
        let metric = |three: &[&str]| {
            let (name, value) = three[2].split_once(' ').expect("a name and a value");
            let help = three[0].strip_prefix(&format!("# HELP {name} "));
            assert!(help.is_some_and(|help| !help.contains('\\') && help.ends_with('.')));
            let kind = three[1].strip_prefix(&format!("# TYPE {name} ")).expect("a type");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            assert!(["counter", "gauge"].contains(&kind));
            assert!(name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()));
            (name.to_owned(), value.parse().expect("a number"))
        };
        lines.chunks(3).map(metric).collect()
    }

    #[test]
    fn each_metric_is_there_once_with_its_value() {
        let stats = Stats { hits: 7, used_units: 3, misses_corrupt: 1, ..Stats::default() };
        let parsed = parse(&text(&stats));
        assert_eq!(parsed.len(), METRICS.len(), "no name twice");
        assert_eq!(parsed["adit_kv_get_hits_total"], 7);
        assert_eq!(parsed["adit_kv_used_bytes"], 3 * 4096);
        assert_eq!(parsed["adit_kv_get_corrupt_total"], 1);
    }
}
