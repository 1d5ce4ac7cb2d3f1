//! Reports a run for people and for programs.

use std::fmt::Write;
use std::time::Duration;

use adit_kvstore::shard::Stats;
use adit_kvstore::{UNIT_BYTES, units};
use serde_json::{Value, json};

use super::counted::{Counted, DirectionCounts};
use super::options::KvBenchArgs;
use crate::human;
use adit_load::{Latency, PERCENTILES};

/// Everything in the report.
#[derive(Debug)]
pub(super) struct BenchOutcome {
    pub(super) counted: Counted,
    /// Objects that the workload chose from or was to put.
    pub(super) objects: u64,
    /// Time from the first request to the last answer.
    pub(super) elapsed: Duration,
    /// Time until everything was durable after that.
    pub(super) commit: Duration,
    /// The store's counts of the run.
    pub(super) store: Stats,
    /// The time that a trace spans, if it says.
    pub(super) span: Option<Duration>,
    /// Whether the user interrupted it.
    pub(super) interrupted: bool,
}

impl BenchOutcome {
    /// Formats the report for programs.
    pub(super) fn json(&self, args: &KvBenchArgs) -> String {
        let store = args.store();
        let own = store.socket().is_ok_and(|socket| socket.is_none());
        let mut report = json!({
            "workload": args.workload.to_string(),
            "store": store.targets(),
            "object_bytes": args.object_bytes,
            "objects": self.objects,
            "iodepth": args.iodepth,
            "durability": own.then(|| args.durability().to_string()),
            "policy": own.then(|| args.policy().to_string()),
            "capacity_blocks": args.capacity_blocks,
            "runtime_ms": self.elapsed.as_millis() as u64,
            "commit_ms": self.commit.as_millis() as u64,
            "interrupted": self.interrupted,
            "get": self.way_json(&self.counted.get),
            "put": self.way_json(&self.counted.put),
        });
        report["get"]["misses"] = self.counted.misses.into();
        report["put"]["declined"] = self.counted.declined.into();
        report["evictions"] = self.store.evictions.objects().into();
        if let Some(replayed) = &self.counted.replayed {
            report["requests"] = replayed.requests.into();
            report["references"] = replayed.references.into();
            report["prefix_hits"] = replayed.prefix_hits.into();
            report["prefix_hit_share"] = share(replayed.prefix_hits, replayed.references).into();
            report["trace_ms"] = self.span.map(|span| span.as_millis() as u64).into();
            report["bytes_written"] = self.store.bytes_written.into();
            report["drive_writes_per_day"] = self.drive_writes_per_day(args).into();
            report["request_lat_ns"] = replayed.latency.moments(&PERCENTILES);
        }
        if let Some(restored) = &self.counted.restored {
            report["layers"] = json!({
                "model": args.layers_model(),
                "restored": restored.layers,
                "commands_per_layer": per(self.store.commands_read, restored.layers),
                "lat_ns": restored.latency.moments(&PERCENTILES),
            });
        }
        if args.tier.is_some_and(|bytes| bytes > 0) {
            report["tier"] = json!({
                "bytes": self.store.tier_bytes,
                "hits": self.store.tier_hits,
                "admissions": self.store.tier_admissions,
                "evictions": self.store.tier_evictions,
            });
        }
        report["device"] = json!({
            "bytes_written": self.store.bytes_to_device,
            "write_amplification": self.write_amplification(),
            "journal_bytes": self.store.journal_bytes,
            "checkpoint_bytes": self.store.checkpoint_bytes,
            "commands_read": self.store.commands_read,
            "commands_write": self.store.commands_write,
            "flushes": self.store.flushes,
        });
        format!("{report:#}\n")
    }

    fn way_json(&self, way: &DirectionCounts) -> Value {
        json!({
            "ops": way.ops(),
            "bytes": way.bytes,
            "iops": self.per_second(way, way.ops()),
            "bw_bytes": self.per_second(way, way.bytes) as u64,
            "lat_ns": way.latency.moments(&PERCENTILES),
        })
    }

    fn per_second(&self, way: &DirectionCounts, count: u64) -> f64 {
        let took = way.took.unwrap_or(self.elapsed);
        if took.is_zero() { 0.0 } else { count as f64 / took.as_secs_f64() }
    }

    /// Returns how often a day, by the trace's clock, the capacity would be written: the bytes written to the devices,
    /// journal and checkpoints included, for each byte that the store may hold.
    fn drive_writes_per_day(&self, args: &KvBenchArgs) -> Option<f64> {
        let blocks = args.capacity_blocks.unwrap_or(u64::MAX);
        let held = blocks.saturating_mul(units(args.object_bytes));
        let capacity_bytes = held.min(self.store.capacity_units) * UNIT_BYTES;
        let days = self.span?.as_secs_f64() / (24.0 * 3600.0);
        Some(self.store.bytes_to_device as f64 / capacity_bytes as f64 / days)
    }

    /// Returns the bytes written to the device per byte of objects; `None` without puts.
    fn write_amplification(&self) -> Option<f64> {
        let written = self.store.bytes_written;
        (written > 0).then(|| self.store.bytes_to_device as f64 / written as f64)
    }

    /// Formats the report for people.
    pub(super) fn table(&self, args: &KvBenchArgs) -> String {
        let store = match args.store().socket() {
            Ok(Some(socket)) => format!("served at {}", socket.display()),
            _ => format!("{}, {}", args.durability(), args.policy()),
        };
        let mut out = format!("{}: {}, {store}\n\n", args.workload, self.what(args));
        out.push_str(&heading());
        for (name, way) in [("get", &self.counted.get), ("put", &self.counted.put)] {
            if way.ops() > 0 {
                out.push_str(&self.row(name, way));
            }
        }
        out.push('\n');
        for (name, value) in self.rows(args) {
            writeln!(out, "{name:<22}{value}").expect("a string takes everything");
        }
        out
    }

    fn what(&self, args: &KvBenchArgs) -> String {
        match self.counted.restored {
            Some(_) => format!("{} KV blocks of {}", self.objects, args.layers_model()),
            None => format!(
                "{} objects of {}, {} in flight",
                self.objects,
                human::bytes(args.object_bytes as f64),
                args.iodepth
            ),
        }
    }

    fn row(&self, name: &str, way: &DirectionCounts) -> String {
        let [p50, p99, p999] = percentiles(&way.latency);
        format!(
            "{name:<6} {:>10} {:>8} {:>12} {p50:>10} {p99:>10} {p999:>10}\n",
            way.ops(),
            human::si(self.per_second(way, way.ops()), 4),
            human::bytes(self.per_second(way, way.bytes)) + "/s",
        )
    }

    fn rows(&self, args: &KvBenchArgs) -> Vec<(&'static str, String)> {
        let mut rows = Vec::new();
        if let Some(replayed) = &self.counted.replayed {
            let hits = share(replayed.prefix_hits, replayed.references);
            rows.push(("requests", replayed.requests.to_string()));
            rows.push(("references", replayed.references.to_string()));
            rows.push(("prefix hits", format!("{} ({hits:.4})", replayed.prefix_hits)));
            rows.push(("bytes written", human::bytes(self.store.bytes_written as f64)));
            if let Some(writes) = self.drive_writes_per_day(args) {
                rows.push(("drive writes a day", format!("{writes:.2}")));
            }
            rows.push(("request p50, p99", latencies(&replayed.latency)));
        }
        if let Some(restored) = &self.counted.restored {
            rows.push(("layers restored", restored.layers.to_string()));
            rows.push(("layer p50, p99", latencies(&restored.latency)));
            let commands = per(self.store.commands_read, restored.layers);
            rows.push(("commands a layer", format!("{commands:.2}")));
        }
        if self.counted.misses > 0 {
            rows.push(("misses", self.counted.misses.to_string()));
        }
        if self.counted.declined > 0 {
            rows.push(("declined puts", self.counted.declined.to_string()));
        }
        if self.store.tier_bytes > 0 {
            let hits = share(self.store.tier_hits, self.counted.get.ops());
            rows.push(("hits in memory", format!("{} ({hits:.4})", self.store.tier_hits)));
        }
        rows.push(("evictions", self.store.evictions.objects().to_string()));
        if let Some(amplification) = self.write_amplification() {
            rows.push(("write amplification", format!("{amplification:.4}")));
            rows.push(("commit at the end", human::latency(self.commit.as_nanos() as u64)));
        }
        rows
    }
}

fn heading() -> String {
    format!(
        "{:<6} {:>10} {:>8} {:>12} {:>10} {:>10} {:>10}\n",
        "", "ops", "IOPS", "bandwidth", "p50", "p99", "p99.9"
    )
}

fn percentiles(latency: &Latency) -> [String; 3] {
    [50.0, 99.0, 99.9].map(|percent| human::latency(latency.percentile_ns(percent)))
}

fn latencies(latency: &Latency) -> String {
    let [p50, p99, _] = percentiles(latency);
    format!("{p50}, {p99}")
}

fn share(part: u64, whole: u64) -> f64 {
    per(part, whole)
}

fn per(count: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { count as f64 / of as f64 }
}
