//! A store's figures in Prometheus' text format, version 0.0.4.
//!
//! Each family has a type and a help text, then its samples. Labels: `reason` of evictions, `request` (its kind and
//! result), `device` (by name) with `operation`, `thread` and `pool` (by number).

use std::fmt::{Display, Write};

use crate::io::latency::Latencies;
use crate::model::place::UNIT_BYTES;
use crate::shard::{DeviceFigures, Evicted, Evictions, Stats, TenantStats};
use crate::store::answer::merged;
use crate::store::core::Core;
use crate::store::request::ThreadShard;
use crate::store::thread::KINDS;

/// A store's figures at one moment.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) stats: Stats,
    /// Times from call to answer, for each of [`KINDS`].
    pub(super) latencies: [Latencies; KINDS.len()],
    /// Requests that failed.
    pub(super) failures: u64,
    /// Reads that wait for memory.
    pub(super) waiting_for_memory: u64,
    /// Requests that wait for room on the media.
    pub(super) waiting_for_room: u64,
    /// Jobs in each thread's mailbox, and its capacity.
    pub(super) mailboxes: Vec<(usize, usize)>,
    /// Bytes of each pool, and the bytes lent.
    pub(super) pools: Vec<(usize, usize)>,
    pub(super) in_place_bytes: u64,
    /// Devices by name.
    pub(super) devices: Vec<(String, DeviceFigures)>,
    /// Tenants in the order of their names.
    pub(super) tenants: Vec<TenantStats>,
}

impl Sample {
    /// Returns the figures of one shard; its devices have no names.
    pub(super) fn of_shard(shard: &ThreadShard) -> Sample {
        Sample {
            stats: shard.stats(),
            waiting_for_room: shard.waiting() as u64,
            devices: shard.lanes().figures().map(|figures| (String::new(), figures)).collect(),
            tenants: shard.tenants().stats(),
            ..Sample::default()
        }
    }

    /// Adds up the figures of all shards and threads.
    pub(super) fn of(core: &Core, shards: Vec<Sample>) -> Sample {
        let names = core.devices.as_slice().iter().map(|device| device.info().device.clone());
        let mailboxes = core.mailboxes.iter().map(|mailbox| (mailbox.len(), mailbox.depth()));
        let mut sum = Sample {
            mailboxes: mailboxes.collect(),
            pools: core.pools.usage().collect(),
            in_place_bytes: core.pools.counts.in_place_bytes(),
            devices: names.map(|name| (name, DeviceFigures::default())).collect(),
            ..Sample::default()
        };
        for shard in shards {
            sum.stats += shard.stats;
            sum.waiting_for_room += shard.waiting_for_room;
            let devices = sum.devices.iter_mut().zip(shard.devices);
            devices.for_each(|((_, sum), (_, figures))| *sum += figures);
            sum.tenants.extend(shard.tenants);
        }
        sum.tenants = merged(sum.tenants);
        core.pools.counts.add_to(&mut sum.stats);
        for figures in &core.figures {
            sum.failures += figures.failures();
            sum.waiting_for_memory += figures.waiting_for_memory();
            sum.latencies.iter_mut().zip(figures.latencies()).for_each(|(sum, its)| *sum += its);
        }
        sum
    }
}

/// A metric: name, type, help text, and value, if it has one.
struct Metric<T> {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&T) -> Option<u64>,
}

/// Makes a table of metrics, one in each row: type, name, help text, and a function that returns the value.
macro_rules! metrics {
    ($($kind:literal $name:literal $help:literal |$of:pat_param| $value:expr;)*) => {
        &[$(Metric { name: $name, kind: $kind, help: $help, value: |$of| Some($value) }),*]
    };
}

const COUNTERS: &[Metric<Stats>] = metrics! {
    "counter" "adit_kv_gets_total" "Gets, hits and misses." |s| s.gets;
    "counter" "adit_kv_get_hits_total" "Gets that found their object." |s| s.hits;
    "counter" "adit_kv_get_misses_total" "Gets that did not find their object, for any reason." |s| s.misses;
    "counter" "adit_kv_get_corrupt_total" "Misses because the device returned damaged bytes."
        |s| s.misses_corrupt;
    "counter" "adit_kv_puts_total" "Puts." |s| s.puts;
    "counter" "adit_kv_puts_declined_total" "Puts declined by admission or the write budget." |s| s.declined;
    "counter" "adit_kv_deletes_total" "Objects removed on request." |s| s.deletes;
    "counter" "adit_kv_expirations_total" "Objects removed because they expired." |s| s.expirations;
    "counter" "adit_kv_read_bytes_total" "Bytes that hits delivered to callers." |s| s.bytes_read;
    "counter" "adit_kv_written_bytes_total" "Bytes of objects stored." |s| s.bytes_written;
    "counter" "adit_kv_journal_bytes_total" "Bytes written to journals." |s| s.journal_bytes;
    "counter" "adit_kv_checkpoint_bytes_total" "Bytes written to checkpoints." |s| s.checkpoint_bytes;
    "counter" "adit_kv_copied_bytes_total" "Bytes copied between callers' memory and the store's."
        |s| s.copied_bytes;
    "counter" "adit_kv_spills_total" "Requests given memory beyond the pools, because callers held all pool memory."
        |s| s.spills;
    "counter" "adit_kv_spilled_bytes_total" "Bytes of memory given beyond the pools." |s| s.spilled_bytes;
    "counter" "adit_kv_deallocated_bytes_total" "Bytes deallocated on devices." |s| s.discards_bytes;
    "counter" "adit_kv_device_failures_total" "Devices that failed." |s| s.device_failures;
    "counter" "adit_kv_checkpoints_total" "Checkpoints completed." |s| s.checkpoints;
    "gauge" "adit_kv_journal_delay_max_ns"
        "Longest time from an acknowledgement to sending its record to the journal's device."
        |s| s.journal_delay_max_ns;
    "counter" "adit_kv_journal_lost_blocks_total"
        "Flushed journal blocks that could not be read when the store was opened."
        |s| s.journal_lost_blocks;
    "counter" "adit_kv_journal_outdated_objects_total"
        "Objects, dropped or kept, that lost journal blocks may have replaced or deleted."
        |s| s.journal_outdated_objects;
    "counter" "adit_kv_tier_hits_total" "Hits that the memory tier answered." |s| s.tier_hits;
    "counter" "adit_kv_tier_hit_bytes_total" "Bytes that hits in the memory tier delivered to callers."
        |s| s.tier_hit_bytes;
    "counter" "adit_kv_tier_admissions_total" "Objects admitted to the memory tier." |s| s.tier_admissions;
    "counter" "adit_kv_tier_evictions_total" "Objects that left the memory tier to make room or because it shrank."
        |s| s.tier_evictions;
    "counter" "adit_kv_tier_invalidations_total"
        "Objects that left the memory tier because they were replaced or removed."
        |s| s.tier_invalidations;
    "gauge" "adit_kv_tier_objects" "Objects in the memory tier." |s| s.tier_objects;
    "gauge" "adit_kv_tier_used_bytes" "Bytes of objects in the memory tier, padding included."
        |s| s.tier_object_bytes;
    "gauge" "adit_kv_tier_bytes" "Size of the memory tier in bytes." |s| s.tier_bytes;
    "gauge" "adit_kv_tier_pinned_bytes" "Bytes of tier memory pinned by callers' values, given-up regions included."
        |s| s.tier_pinned_bytes;
    "gauge" "adit_kv_tier_given_up_bytes" "Bytes of given-up tier regions that values still keep."
        |s| s.tier_given_up_bytes;
    "gauge" "adit_kv_objects" "Objects stored." |s| s.objects;
    "gauge" "adit_kv_leased_objects" "Leased objects." |s| s.leased;
    "gauge" "adit_kv_used_bytes" "Bytes in use, padding included." |s| s.used_units * UNIT_BYTES;
    "gauge" "adit_kv_capacity_bytes" "Bytes available to objects, used ones included."
        |s| s.capacity_units * UNIT_BYTES;
    "gauge" "adit_kv_free_runs" "Contiguous runs of free space." |s| s.free_runs;
    "gauge" "adit_kv_largest_free_bytes" "Bytes of the longest run of free space."
        |s| s.largest_free_units * UNIT_BYTES;
    "gauge" "adit_kv_memory_bytes" "Bytes of memory used by tables." |s| s.memory_bytes;
};

const EVICTIONS: &[Metric<Evicted>] = metrics! {
    "counter" "adit_kv_evictions_total" "Evicted objects." |evicted| evicted.objects;
    "counter" "adit_kv_evicted_bytes_total" "Bytes of evicted objects, padding included." |evicted| evicted.bytes;
};

const REQUESTS: &[Metric<Sample>] = metrics! {
    "counter" "adit_kv_failures_total" "Failed requests, misses excluded." |s| s.failures;
    "gauge" "adit_kv_waiting_for_memory" "Reads waiting for registered memory." |s| s.waiting_for_memory;
    "gauge" "adit_kv_waiting_for_room" "Requests waiting for room on the media." |s| s.waiting_for_room;
};

const THREADS: &[Metric<(usize, usize)>] = metrics! {
    "gauge" "adit_kv_mailbox_jobs" "Jobs waiting for a thread." |(jobs, _)| *jobs as u64;
    "gauge" "adit_kv_mailbox_capacity" "Maximum number of jobs waiting for a thread." |(_, depth)| *depth as u64;
};

const MEMORY: &[Metric<Sample>] = metrics! {
    "counter" "adit_kv_in_place_bytes_total" "Bytes that devices read from callers' memory or wrote to it."
        |s| s.in_place_bytes;
};

const POOLS: &[Metric<(usize, usize)>] = metrics! {
    "gauge" "adit_kv_pool_bytes" "Bytes of registered memory." |(bytes, _)| *bytes as u64;
    "gauge" "adit_kv_pool_used_bytes" "Bytes of registered memory that requests and values hold."
        |(_, lent)| *lent as u64;
};

const DEVICES: &[Metric<DeviceFigures>] = metrics! {
    "counter" "adit_kv_device_read_bytes_total" "Bytes read from a device for any purpose." |d| d.read_bytes;
    "counter" "adit_kv_device_written_bytes_total" "Bytes written to a device for any purpose." |d| d.written_bytes;
    "counter" "adit_kv_device_errors_total" "Commands that failed on a device, retries included." |d| d.errors;
    "gauge" "adit_kv_device_in_flight" "Commands in flight on a device." |d| d.in_flight;
    "gauge" "adit_kv_device_waiting" "Commands waiting to be sent to a device." |d| d.waiting;
    "gauge" "adit_kv_device_failed_shards" "Shards for which a device is out of service." |d| d.failed;
};

const TENANTS: &[Metric<TenantStats>] = metrics! {
    "gauge" "adit_kv_tenant_objects" "Objects of the tenant." |t| t.objects;
    "gauge" "adit_kv_tenant_used_bytes" "Bytes of the tenant's objects, padding included." |t| t.used_bytes;
    "gauge" "adit_kv_tenant_quota_bytes" "The tenant's quota in bytes." |t| t.quota?.bytes;
    "counter" "adit_kv_tenant_puts_total" "Objects stored for the tenant." |t| t.puts;
    "counter" "adit_kv_tenant_gets_total" "Gets that found an object of the tenant." |t| t.gets;
    "counter" "adit_kv_tenant_get_hits_total" "Gets that returned an object of the tenant intact." |t| t.hits;
    "counter" "adit_kv_tenant_evictions_total" "Evicted objects of the tenant." |t| t.evictions;
    "counter" "adit_kv_tenant_refusals_total" "Puts refused because of the tenant's quota." |t| t.refusals;
};

/// Formats a sample.
pub(super) fn text(sample: &Sample) -> String {
    let mut text = Text::default();
    text.add_stats(&sample.stats);
    let (name, help) = ("adit_kv_request_seconds", "Time from a call to its answer, in seconds.");
    text.family(name, "histogram", help);
    for (kind, latencies) in KINDS.iter().zip(&sample.latencies) {
        text.histogram(name, &[("request", kind)], latencies);
    }
    text.add(REQUESTS, [(None, sample)]);
    text.add_numbered(THREADS, "thread", &sample.mailboxes);
    text.add(MEMORY, [(None, sample)]);
    text.add_numbered(POOLS, "pool", &sample.pools);
    let devices = sample.devices.iter();
    text.add(DEVICES, devices.map(|(name, figures)| (Some(("device", &**name)), figures)));
    let name = "adit_kv_device_command_seconds";
    let help = "Time from sending a command to its completion, in seconds.";
    text.family(name, "histogram", help);
    for (device, figures) in &sample.devices {
        for (operation, latencies) in DeviceFigures::OPERATIONS.iter().zip(&figures.latencies) {
            text.histogram(name, &[("device", device), ("operation", operation)], latencies);
        }
    }
    let tenants = sample.tenants.iter();
    text.add(TENANTS, tenants.map(|tenant| (Some(("tenant", &*tenant.name)), tenant)));
    text.0
}

impl Stats {
    /// Formats the counters and sizes in Prometheus's text format, under the names that
    /// [`Store::prometheus`](crate::Store::prometheus) gives them.
    pub fn prometheus(&self) -> String {
        let mut text = Text::default();
        text.add_stats(self);
        text.0
    }
}

/// The text so far.
#[derive(Default)]
struct Text(String);

/// A label: its name and its value.
type Label<'a> = (&'static str, &'a str);

impl Text {
    /// Adds the counters and sizes of a store.
    fn add_stats(&mut self, stats: &Stats) {
        self.add(COUNTERS, [(None, stats)]);
        let Evictions { space, records, fragmentation, quota } = &stats.evictions;
        let reasons = [space, records, fragmentation, quota];
        let names = ["space", "records", "fragmentation", "quota"];
        self.add(EVICTIONS, names.map(|name| Some(("reason", name))).into_iter().zip(reasons));
    }

    /// Adds a table of metrics, each with a sample for each of `items`; labels distinguish several items.
    fn add<'a, T: 'a>(
        &mut self,
        metrics: &[Metric<T>],
        items: impl IntoIterator<Item = (Option<Label<'a>>, &'a T)> + Clone,
    ) {
        for Metric { name, kind, help, value } in metrics {
            self.family(name, kind, help);
            for (label, item) in items.clone() {
                if let Some(value) = value(item) {
                    self.value(name, label.as_slice(), value);
                }
            }
        }
    }

    /// Like [`Text::add`], for items that `label` distinguishes by number.
    fn add_numbered<T>(&mut self, metrics: &[Metric<T>], label: &'static str, items: &[T]) {
        let numbers: Vec<String> = (0..items.len()).map(|number| number.to_string()).collect();
        self.add(metrics, numbers.iter().map(|number| Some((label, &**number))).zip(items));
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes all that is written");
    }

    fn value(&mut self, name: &str, labels: &[Label<'_>], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        match labels.is_empty() {
            true => self.line(format_args!("{name} {value}")),
            false => self.line(format_args!("{name}{{{}}} {value}", labels.join(","))),
        }
    }

    fn histogram(&mut self, name: &str, labels: &[Label<'_>], latencies: &Latencies) {
        let bucket = format!("{name}_bucket");
        for (bound, below) in latencies.cumulative() {
            let bound = bound.as_secs_f64().to_string();
            self.value(&bucket, &[labels, &[("le", &bound)]].concat(), below);
        }
        self.value(&bucket, &[labels, &[("le", "+Inf")]].concat(), latencies.count());
        self.value(&format!("{name}_sum"), labels, latencies.sum().as_secs_f64());
        self.value(&format!("{name}_count"), labels, latencies.count());
    }
}

/// Escapes a label's value.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::options::{Quota, WhenReached};
    use adit_driver::Time;
    use std::collections::BTreeMap;

    /// Parses the samples as strictly as Prometheus' own parser: help, type, then samples of that family.
    fn parse(text: &str) -> BTreeMap<String, f64> {
        assert!(text.ends_with('\n'));
        let (mut samples, mut family, mut kind) = (BTreeMap::new(), "", "");
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect("a name and a text");
                assert!(help.ends_with('.') && !help.contains('\\'), "{line}");
                let of_type = lines.next().and_then(|line| line.strip_prefix("# TYPE "));
                (family, kind) = of_type.and_then(|it| it.split_once(' ')).expect("a type");
                assert_eq!(name, family);
                assert!(family.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()));
                assert_eq!(kind == "counter", family.ends_with("_total"), "{family} is a {kind}");
                continue;
            }
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            let bare = name.split('{').next().unwrap_or_default();
            let suffix = bare.strip_prefix(family).expect("a sample of its family");
            let is_of_histogram = ["_bucket", "_sum", "_count"].contains(&suffix);
            assert_eq!(is_of_histogram, kind == "histogram", "{line}");
            assert!(is_of_histogram || suffix.is_empty(), "{line}");
            let is_new =
                samples.insert(name.to_owned(), value.parse().expect("a number")).is_none();
            assert!(is_new, "{name} is there twice");
        }
        samples
    }

    #[test]
    fn each_metric_is_there_once_with_its_value() {
        let stats = Stats { hits: 7, used_units: 3, misses_corrupt: 1, ..Stats::default() };
        let sample = Sample { stats, failures: 9, mailboxes: vec![(2, 8)], ..Sample::default() };
        let parsed = parse(&text(&sample));
        let own = parse(&sample.stats.prometheus());
        assert!(own.len() > 40 && own.iter().all(|(name, value)| parsed[name] == *value));
        assert_eq!(parsed["adit_kv_get_hits_total"], 7.0);
        assert_eq!(parsed["adit_kv_used_bytes"], 3.0 * 4096.0);
        assert_eq!(parsed["adit_kv_get_corrupt_total"], 1.0);
        assert_eq!(parsed["adit_kv_failures_total"], 9.0);
        assert_eq!(parsed["adit_kv_mailbox_jobs{thread=\"0\"}"], 2.0);
    }

    #[test]
    fn a_histogram_counts_up_to_infinity() {
        let mut sample = Sample::default();
        for ns in [1, 4000, 4001, 1 << 40] {
            sample.latencies[2].record(Time::ZERO, Time::from_ns(ns));
        }
        let parsed = parse(&text(&sample));
        let put = |le: &str| {
            parsed[&format!("adit_kv_request_seconds_bucket{{request=\"put\",le=\"{le}\"}}")]
        };
        assert_eq!(["0.000004", "0.000008", "8.388608", "+Inf"].map(put), [2.0, 3.0, 3.0, 4.0]);
        assert_eq!(parsed["adit_kv_request_seconds_count{request=\"put\"}"], 4.0);
        assert!(parsed["adit_kv_request_seconds_sum{request=\"put\"}"] > 1099.0);
    }

    #[test]
    fn a_tenants_name_is_a_label_whatever_is_in_it() {
        let quota = Some(Quota { bytes: 77, when_reached: WhenReached::Refuse });
        let named = |name: &str, quota| TenantStats {
            name: name.into(),
            quota,
            refusals: 5,
            ..TenantStats::default()
        };
        let tenants = vec![named("", None), named("a\"\\\n", quota)];
        let text = text(&Sample { tenants, ..Sample::default() });
        let lines = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(lines("adit_kv_tenant_quota_bytes{tenant=\"a\\\"\\\\\\n\"} 77"), 1, "{text}");
        assert_eq!(lines("adit_kv_tenant_quota_bytes{"), 1, "one has a quota: {text}");
        assert_eq!(lines("adit_kv_tenant_refusals_total{tenant=\"\"} 5"), 1, "{text}");
    }

    #[test]
    fn a_device_has_its_name_whatever_it_is() {
        let figures = DeviceFigures { errors: 3, ..DeviceFigures::default() };
        let devices = vec![("uring:a \"b\\\n".to_owned(), figures)];
        let parsed = parse(&text(&Sample { devices, ..Sample::default() }));
        assert_eq!(parsed["adit_kv_device_errors_total{device=\"uring:a \\\"b\\\\\\n\"}"], 3.0);
    }
}
