//! What happened between two samples of a store's metrics, as JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::metrics::{Label, Metrics};

/// Returns the rates and latencies of an interval of this length, and what there is at its end. What the server does
/// not tell is null.
pub(super) fn between(before: &Metrics, now: &Metrics, interval: Duration) -> Value {
    let (done, is_restarted) = now.since(before);
    let seconds = interval.as_secs_f64().max(1e-3);
    let interval = Interval { done, seconds };
    let mut report = json!({
        "seconds": seconds,
        "restarted": is_restarted,
        "hit_share": interval.ratio("get_hits_total", "gets_total"),
        "hit_share_since_start": share(now.sum("get_hits_total", &[]), now.sum("gets_total", &[])),
        "write_amplification": interval.ratio("device_written_bytes_total", "written_bytes_total"),
    });
    for name in [
        "gets",
        "puts",
        "puts_declined",
        "deletes",
        "failures",
        "expirations",
        "get_corrupt",
        "read_bytes",
        "written_bytes",
        "copied_bytes",
    ] {
        report[format!("{name}_per_s")] = interval.rate(&format!("{name}_total"), &[]);
    }
    for name in [
        "objects",
        "used_bytes",
        "capacity_bytes",
        "largest_free_bytes",
        "pool_used_bytes",
        "pool_bytes",
        "mailbox_jobs",
        "waiting_for_memory",
        "waiting_for_room",
        "memory_bytes",
    ] {
        report[name] = json!(now.sum(name, &[]));
    }
    report["evictions_per_s"] = interval.evictions();
    report["latency"] = interval.latencies("request_seconds", "request", &[]);
    report["devices"] =
        now.values("device_", "device").into_iter().map(|device| interval.device(device)).collect();
    report["tenants"] =
        now.values("tenant_", "tenant").into_iter().map(|tenant| interval.tenant(tenant)).collect();
    let server = interval.all("server_", &[]);
    if !server.is_empty() {
        report["server"] = server.into();
    }
    report
}

fn share(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    whole.filter(|whole| *whole > 0.0).and_then(|whole| Some(part? / whole))
}

/// Counts of an interval; gauges as at its end.
struct Interval {
    done: Metrics,
    seconds: f64,
}

impl Interval {
    fn ratio(&self, part: &str, whole: &str) -> Option<f64> {
        share(self.done.sum(part, &[]), self.done.sum(whole, &[]))
    }

    fn rate(&self, name: &str, labels: &[Label<'_>]) -> Value {
        json!(self.done.sum(name, labels).map(|count| count / self.seconds))
    }

    /// Returns the evictions by their reasons, if there are several.
    fn evictions(&self) -> Value {
        let name = "evictions_total";
        let reasons = self.done.values(name, "reason");
        let by_reason = reasons
            .into_iter()
            .map(|reason| (reason.to_owned(), self.rate(name, &[("reason", reason)])));
        let mut rates: Map<String, Value> = by_reason.collect();
        rates.insert("all".to_owned(), self.rate(name, &[]));
        rates.into()
    }

    /// Returns rate, median and 99th percentile for each value of a histogram's label.
    fn latencies(&self, name: &str, label: &str, labels: &[Label<'_>]) -> Value {
        let count = format!("{name}_count");
        let of = |value: &str| {
            let labels = [labels, &[(label, value)]].concat();
            let quantile = |quantile| self.done.quantile(name, &labels, quantile);
            json!({ "per_s": self.rate(&count, &labels), "p50_s": quantile(0.5), "p99_s": quantile(0.99) })
        };
        let values = self.done.values(&count, label).into_iter();
        values.map(|value| (value.to_owned(), of(value))).collect::<Map<_, _>>().into()
    }

    fn device(&self, device: &str) -> Value {
        let labels = [("device", device)];
        let of = |name: &str| self.done.sum(name, &labels);
        json!({
            "device": device,
            "in_flight": of("device_in_flight"),
            "waiting": of("device_waiting"),
            "failed_shards": of("device_failed_shards"),
            "errors_per_s": self.rate("device_errors_total", &labels),
            "read_bytes_per_s": self.rate("device_read_bytes_total", &labels),
            "written_bytes_per_s": self.rate("device_written_bytes_total", &labels),
            "latency": self.latencies("device_command_seconds", "operation", &labels),
        })
    }

    /// Returns all metrics whose names begin with `prefix`, without it: rates of counters, gauges as they are.
    fn all(&self, prefix: &str, labels: &[Label<'_>]) -> Map<String, Value> {
        let of = |name: &str| match name.strip_suffix("_total") {
            Some(counter) => (format!("{counter}_per_s"), self.rate(name, labels)),
            None => (name.to_owned(), json!(self.done.sum(name, labels))),
        };
        let short =
            |(name, value): (String, Value)| (name.trim_start_matches(prefix).to_owned(), value);
        self.done.names(prefix).into_iter().map(of).map(short).collect()
    }

    /// Returns all that the server tells of a tenant.
    fn tenant(&self, tenant: &str) -> Value {
        let mut report = Map::from_iter([("tenant".to_owned(), json!(tenant))]);
        report.extend(self.all("tenant_", &[("tenant", tenant)]));
        report.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(text: &str) -> Metrics {
        Metrics::parse(text, "a test").expect("metrics")
    }

    const BEFORE: &str = "adit_kv_gets_total 100\nadit_kv_get_hits_total 10\nadit_kv_objects 5\n\
        adit_kv_evictions_total{reason=\"space\"} 1\nadit_kv_evictions_total{reason=\"records\"} 0\n\
        adit_kv_device_read_bytes_total{device=\"a\"} 0\n\
        adit_kv_tenant_used_bytes{tenant=\"t\"} 1\nadit_kv_tenant_gets_total{tenant=\"t\"} 10\n";
    const NOW: &str = "adit_kv_gets_total 140\nadit_kv_get_hits_total 40\nadit_kv_objects 7\n\
        adit_kv_evictions_total{reason=\"space\"} 5\nadit_kv_evictions_total{reason=\"records\"} 2\n\
        adit_kv_device_read_bytes_total{device=\"a\"} 4096\n\
        adit_kv_tenant_used_bytes{tenant=\"t\"} 3\nadit_kv_tenant_gets_total{tenant=\"t\"} 30\n";

    #[test]
    fn rates_are_of_the_interval_and_sizes_of_its_end() {
        let report = between(&metrics(BEFORE), &metrics(NOW), Duration::from_secs(2));
        assert_eq!((&report["gets_per_s"], &report["hit_share"]), (&json!(20.0), &json!(0.75)));
        assert_eq!((&report["objects"], &report["restarted"]), (&json!(7.0), &json!(false)));
        assert_eq!(report["evictions_per_s"], json!({ "records": 1.0, "space": 2.0, "all": 3.0 }));
        assert_eq!(report["devices"][0]["read_bytes_per_s"], 2048.0);
        assert_eq!(
            report["tenants"],
            json!([{ "tenant": "t", "gets_per_s": 10.0, "used_bytes": 3.0 }])
        );
        assert_eq!(report["puts_per_s"], Value::Null, "the server does not tell");
    }

    #[test]
    fn a_restarted_server_counts_from_zero() {
        let report = between(&metrics(NOW), &metrics(BEFORE), Duration::from_secs(1));
        assert_eq!((&report["restarted"], &report["gets_per_s"]), (&json!(true), &json!(100.0)));
    }
}
