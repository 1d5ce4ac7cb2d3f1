//! Reads a job's figures from its entry in a JSON report of ours or fio's.
//!
//! All comparisons and plots use these figures, so earlier files and current runs are treated alike. Latencies
//! are total ones (our own `adit.latency`, fio's `lat_ns`) if the report has percentiles of them, else
//! completion latencies (`clat_ns`), fio's default. Reports to compare are read with one [`LatencyKind`], so that only like
//! latencies are compared.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::way::{PerWay, Way};

/// Which part of an I/O's time a latency covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatencyKind {
    /// The whole: fio's `lat`.
    Total,
    /// From submission on: fio's `clat`.
    Completion,
}

impl LatencyKind {
    /// Both, the preferred one first.
    pub(super) const ALL: [LatencyKind; 2] = [LatencyKind::Total, LatencyKind::Completion];

    /// fio's name.
    pub(super) fn name(self) -> &'static str {
        ["lat", "clat"][self as usize]
    }
}

/// A compared metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Metric {
    /// I/Os per second.
    Iops,
    /// Bytes per second.
    Bandwidth,
    /// Mean latency, ns.
    Mean,
    /// Median latency, ns.
    P50,
    /// 99th percentile of latency, ns.
    P99,
    /// 99.99th percentile of latency, ns.
    P9999,
    /// CPU time per I/O, ns.
    Cpu,
}

impl Metric {
    /// All metrics, in the order of tables.
    pub(crate) const ALL: [Metric; 7] = [
        Metric::Iops,
        Metric::Bandwidth,
        Metric::Mean,
        Metric::P50,
        Metric::P99,
        Metric::P9999,
        Metric::Cpu,
    ];

    /// Its name for people, its name for programs with the unit last, and its percentile in percent.
    const ROWS: [(&str, &str, Option<f64>); 7] = [
        ("IOPS", "iops", None),
        ("bandwidth", "bytes_per_second", None),
        ("mean", "lat_mean_ns", None),
        ("p50", "lat_p50_ns", Some(50.0)),
        ("p99", "lat_p99_ns", Some(99.0)),
        ("p99.99", "lat_p99_99_ns", Some(99.99)),
        ("CPU/IO", "cpu_ns_per_io", None),
    ];

    /// Returns its name for people.
    pub(crate) fn name(self) -> &'static str {
        Metric::ROWS[self as usize].0
    }

    /// Returns its name for programs.
    pub(crate) fn key(self) -> &'static str {
        Metric::ROWS[self as usize].1
    }

    /// Returns its percentile in percent, if it is one.
    pub(crate) fn percentile(self) -> Option<f64> {
        Metric::ROWS[self as usize].2
    }

    pub(super) fn is_latency(self) -> bool {
        self == Metric::Mean || self.percentile().is_some()
    }

    pub(crate) fn more_is_better(self) -> bool {
        matches!(self, Metric::Iops | Metric::Bandwidth)
    }

    /// Formats a value for people.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Metric::Iops => crate::human::si(value, 4),
            Metric::Bandwidth => format!("{}/s", crate::human::bytes(value)),
            _ => crate::human::latency(value.round().max(0.0) as u64),
        }
    }
}

/// A job's figures for one way.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WayFigures {
    /// Completed I/Os.
    pub(super) ios: u64,
    /// I/Os per second.
    pub(super) iops: f64,
    pub(super) bytes_per_second: f64,
    /// Mean latency in ns; `None` if not measured.
    pub(super) mean_ns: Option<f64>,
    /// Percentage and ns, ascending.
    pub(super) percentiles: Vec<(f64, f64)>,
    /// Latency in ns, and the number of I/Os that took no longer; ascending. Empty if the report has only
    /// percentiles.
    pub(super) cdf: Vec<(u64, u64)>,
    /// Milliseconds from the start, bytes per second, I/Os per second.
    pub(super) series: Vec<[f64; 3]>,
}

/// A job's figures: one entry of a report, or several of one name merged.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReportEntry {
    /// The job's name.
    pub(super) job: String,
    /// The target it ran on.
    pub(super) target: String,
    /// The values of the sweep.
    pub(super) sweep: Vec<(String, String)>,
    /// The round, from 1; 0 without rounds.
    pub(super) round: u64,
    /// Its own and the global options.
    pub(super) options: BTreeMap<String, String>,
    /// Its figures; `None` for unused ways.
    pub(super) ways: PerWay<Option<WayFigures>>,
    /// CPU time per I/O, ns.
    pub(super) cpu_ns_per_io: Option<f64>,
}

impl ReportEntry {
    /// Reads an entry of a report's `jobs`; `shared` are its global options, `kind` restricts the latencies
    /// read.
    ///
    /// # Errors
    /// A sentence about what is missing.
    fn read(
        entry: &Value,
        shared: &BTreeMap<String, String>,
        kind: Option<LatencyKind>,
    ) -> Result<ReportEntry, String> {
        let job = entry["jobname"].as_str().ok_or("has no `jobname`")?;
        if Way::ALL.iter().all(|way| !entry[way.name()].is_object()) {
            let hint =
                if entry["mixed"].is_object() { ": leave unified_rw_reporting out" } else { "" };
            return Err(format!("('{job}') has none of `read`, `write` and `trim`{hint}"));
        }
        let ours = &entry["adit"];
        let mut options = shared.clone();
        options.extend(strings(&entry["job options"]));
        let ways = PerWay(Way::ALL.map(|way| way_figures(entry, way, kind)));
        let ios = ways.0.iter().flatten().map(|way| way.ios).sum();
        let target = ours["target"].as_str().or(options.get("filename").map(String::as_str));
        Ok(ReportEntry {
            job: job.to_owned(),
            target: target.unwrap_or_default().to_owned(),
            sweep: strings(&ours["sweep"]).collect(),
            round: ours["round"].as_u64().unwrap_or(0),
            cpu_ns_per_io: ours["cpu_ns_per_io"].as_f64().or_else(|| cpu_ns_per_io(entry, ios)),
            options,
            ways,
        })
    }

    pub(super) fn done(&self) -> impl Iterator<Item = (Way, &WayFigures)> {
        self.ways.iter().filter_map(|(way, figures)| Some((way, figures.as_ref()?)))
    }

    /// Returns the I/Os of all ways.
    pub(super) fn ios(&self) -> u64 {
        self.done().map(|(_, figures)| figures.ios).sum()
    }

    /// Returns the I/Os per second of all ways.
    pub(super) fn iops(&self) -> f64 {
        self.done().map(|(_, figures)| figures.iops).sum()
    }

    /// Returns `metric` for `way`; CPU time is the whole job's.
    pub(super) fn metric(&self, way: Way, metric: Metric) -> Option<f64> {
        let figures = self.ways[way].as_ref()?;
        match metric {
            Metric::Iops => Some(figures.iops),
            Metric::Bandwidth => Some(figures.bytes_per_second),
            Metric::Mean => figures.mean_ns,
            Metric::P50 | Metric::P99 | Metric::P9999 => figures.percentile(metric.percentile()?),
            Metric::Cpu => self.cpu_ns_per_io,
        }
    }

    /// Merges a concurrent thread of the same job.
    pub(super) fn merge(&mut self, other: ReportEntry) {
        self.cpu_ns_per_io =
            weighted((self.cpu_ns_per_io, self.ios()), (other.cpu_ns_per_io, other.ios()));
        for (ours, theirs) in self.ways.0.iter_mut().zip(other.ways.0) {
            match (ours.as_mut(), theirs) {
                (Some(ours), Some(theirs)) => ours.merge(&theirs),
                (None, theirs) => *ours = theirs,
                (Some(_), None) => {}
            }
        }
    }
}

impl WayFigures {
    /// Returns the latency in ns that `percent` of the I/Os did not exceed, if known.
    pub(super) fn percentile(&self, percent: f64) -> Option<f64> {
        let told = self.percentiles.iter().find(|(told, _)| (told - percent).abs() < 1e-6);
        told.map(|(_, ns)| *ns).or_else(|| self.percentile_of_cdf(percent))
    }

    fn percentile_of_cdf(&self, percent: f64) -> Option<f64> {
        let (_, total) = self.cdf.last()?;
        let rank = (percent / 100.0 * *total as f64).ceil().max(1.0) as u64;
        let at = self.cdf.partition_point(|(_, count)| *count < rank);
        self.cdf.get(at).map(|(ns, _)| *ns as f64)
    }

    /// Merges concurrent figures or, as far as latencies are concerned, another round's.
    pub(super) fn merge(&mut self, other: &WayFigures) {
        self.mean_ns = weighted((self.mean_ns, self.ios), (other.mean_ns, other.ios));
        let told: Vec<f64> = self.percentiles.iter().map(|(percent, _)| *percent).collect();
        let worst = self.worst_percentiles(other);
        if self.cdf.is_empty() || other.cdf.is_empty() {
            // Without distributions, the slower thread's percentiles are an upper bound.
            (self.cdf, self.percentiles) = (Vec::new(), worst);
        } else {
            self.cdf = merged_cdf(&self.cdf, &other.cdf);
            let exact = |percent: &f64| Some((*percent, self.percentile_of_cdf(*percent)?));
            self.percentiles = told.iter().filter_map(exact).collect();
        }
        self.ios += other.ios;
        self.iops += other.iops;
        self.bytes_per_second += other.bytes_per_second;
        merge_series(&mut self.series, &other.series);
    }

    fn worst_percentiles(&self, other: &WayFigures) -> Vec<(f64, f64)> {
        let of_both = |(percent, ns): &(f64, f64)| {
            let theirs = other.percentile(*percent)?;
            Some((*percent, ns.max(theirs)))
        };
        self.percentiles.iter().filter_map(of_both).collect()
    }
}

/// Returns a report's entries; those of equal name, target, sweep and round ran concurrently and are merged. With a
/// `kind`, they have latencies of that kind only, or none.
///
/// # Errors
/// A sentence about a malformed entry.
pub(super) fn entries(
    report: &Value,
    kind: Option<LatencyKind>,
) -> Result<Vec<ReportEntry>, String> {
    let jobs = report["jobs"].as_array().ok_or("has no list `jobs`")?;
    let shared: BTreeMap<String, String> = strings(&report["global options"]).collect();
    let mut entries: Vec<ReportEntry> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let entry = ReportEntry::read(job, &shared, kind)
            .map_err(|why| format!("entry {} of `jobs` {why}", index + 1))?;
        let same = |other: &&mut ReportEntry| {
            (&other.job, &other.target, &other.sweep, other.round)
                == (&entry.job, &entry.target, &entry.sweep, entry.round)
        };
        match entries.iter_mut().find(same) {
            Some(other) => other.merge(entry),
            None => entries.push(entry),
        }
    }
    Ok(entries)
}

/// Returns the mean of two means, each with its number of I/Os.
fn weighted(ours: (Option<f64>, u64), theirs: (Option<f64>, u64)) -> Option<f64> {
    let (Some(a), Some(b)) = (ours.0, theirs.0) else { return ours.0.or(theirs.0) };
    let (of_a, of_b) = (ours.1 as f64, theirs.1 as f64);
    if of_a + of_b > 0.0 { Some((a * of_a + b * of_b) / (of_a + of_b)) } else { Some(a) }
}

fn strings(object: &Value) -> impl Iterator<Item = (String, String)> {
    let members = object.as_object().into_iter().flat_map(Map::iter);
    members.map(|(name, value)| {
        (name.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    })
}

fn way_figures(entry: &Value, way: Way, kind: Option<LatencyKind>) -> Option<WayFigures> {
    let figures = &entry[way.name()];
    let ios = figures["total_ios"].as_u64().filter(|ios| *ios > 0)?;
    let ours = &entry["adit"]["latency"][way.name()];
    let is_ours =
        ours.is_object() && kind.is_none_or(|kind| ours["kind"].as_str() == Some(kind.name()));
    let latency = match kind {
        _ if is_ours => ours,
        Some(LatencyKind::Total) => &figures["lat_ns"],
        Some(LatencyKind::Completion) => &figures["clat_ns"],
        None => latency_of(figures),
    };
    let ours_cdf = if is_ours { &entry["adit"]["cdf"][way.name()] } else { &Value::Null };
    let bytes = figures["bw_bytes"].as_f64();
    let bytes = bytes.or_else(|| figures["bw"].as_f64().map(|kib| kib * 1024.0));
    Some(WayFigures {
        ios,
        iops: figures["iops"].as_f64().unwrap_or(0.0),
        bytes_per_second: bytes.unwrap_or(0.0),
        mean_ns: latency["mean"].as_f64().filter(|mean| *mean > 0.0),
        percentiles: percentiles(&latency["percentile"]),
        cdf: cdf(ours_cdf, &latency["bins"]),
        series: series(&entry["adit"]["series"][way.name()]),
    })
}

/// Returns total latencies if they have percentiles, else completion latencies.
fn latency_of(figures: &Value) -> &Value {
    let is_measured = |latency: &Value| latency["mean"].as_f64().is_some_and(|mean| mean > 0.0);
    let (total, completion) = (&figures["lat_ns"], &figures["clat_ns"]);
    let has_percentiles = total["percentile"].is_object();
    if (has_percentiles && is_measured(total)) || !is_measured(completion) {
        total
    } else {
        completion
    }
}

fn percentiles(percentiles: &Value) -> Vec<(f64, f64)> {
    let members = percentiles.as_object().into_iter().flat_map(Map::iter);
    let mut list: Vec<(f64, f64)> =
        members.filter_map(|(percent, ns)| Some((percent.parse().ok()?, ns.as_f64()?))).collect();
    list.sort_by(|a, b| a.0.total_cmp(&b.0));
    list
}

/// Reads our distribution, or the bins of fio's `json+`.
fn cdf(ours: &Value, bins: &Value) -> Vec<(u64, u64)> {
    if let Some(points) = ours.as_array() {
        return points.iter().filter_map(|p| Some((p[0].as_u64()?, p[1].as_u64()?))).collect();
    }
    let members = bins.as_object().into_iter().flat_map(Map::iter);
    let mut bins: Vec<(u64, u64)> =
        members.filter_map(|(ns, count)| Some((ns.parse().ok()?, count.as_u64()?))).collect();
    bins.sort_unstable();
    let mut total = 0;
    for (_, count) in &mut bins {
        total += *count;
        *count = total;
    }
    bins
}

fn series(points: &Value) -> Vec<[f64; 3]> {
    let points = points.as_array().into_iter().flatten();
    points.filter_map(|p| Some([p[0].as_f64()?, p[1].as_f64()?, p[2].as_f64()?])).collect()
}

/// fio reports shares of the job's time.
fn cpu_ns_per_io(entry: &Value, ios: u64) -> Option<f64> {
    let percent = entry["usr_cpu"].as_f64()? + entry["sys_cpu"].as_f64()?;
    let runtime_ms = entry["job_runtime"].as_f64()?;
    (ios > 0).then(|| percent / 100.0 * runtime_ms * 1e6 / ios as f64)
}

fn merged_cdf(a: &[(u64, u64)], b: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for cdf in [a, b] {
        let mut below = 0;
        for (ns, total) in cdf {
            *counts.entry(*ns).or_default() += total.saturating_sub(below);
            below = *total;
        }
    }
    let mut total = 0;
    let up_to = counts.into_iter().map(|(ns, count)| {
        total += count;
        (ns, total)
    });
    up_to.collect()
}

fn merge_series(ours: &mut Vec<[f64; 3]>, theirs: &[[f64; 3]]) {
    for point in theirs {
        match ours.iter_mut().find(|our| our[0] == point[0]) {
            Some(our) => {
                our[1] += point[1];
                our[2] += point[2];
            }
            None => ours.push(*point),
        }
    }
    ours.sort_by(|a, b| a[0].total_cmp(&b[0]));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns fio's entry of a thread of a job.
    fn thread(iops: f64, latency: &Value) -> Value {
        json!({
            "jobname": "j",
            "job options": { "bs": "4k" },
            "read": { "total_ios": 1000, "iops": iops, "bw_bytes": iops * 4096.0, "clat_ns": latency },
            "write": { "total_ios": 0, "iops": 0.0 },
            "job_runtime": 1000, "usr_cpu": 10.0, "sys_cpu": 15.0,
        })
    }

    fn only(report: &Value) -> ReportEntry {
        let mut entries = entries(report, None).expect("entries");
        assert_eq!(entries.len(), 1);
        entries.remove(0)
    }

    #[test]
    fn a_report_of_fio_needs_nothing_of_ours() {
        let latency = json!({ "mean": 50.0, "percentile": { "50.000000": 40, "99.000000": 90 } });
        let report =
            json!({ "global options": { "rw": "read" }, "jobs": [thread(1000.0, &latency)] });
        let entry = only(&report);
        assert_eq!(entry.metric(Way::Read, Metric::Iops), Some(1000.0));
        assert_eq!(entry.metric(Way::Read, Metric::Bandwidth), Some(4096e3));
        assert_eq!(entry.metric(Way::Read, Metric::Mean), Some(50.0));
        assert_eq!(entry.metric(Way::Read, Metric::P99), Some(90.0));
        assert_eq!(entry.metric(Way::Read, Metric::P9999), None, "it is not in the report");
        assert_eq!(entry.metric(Way::Read, Metric::Cpu), Some(250_000.0));
        assert_eq!(entry.metric(Way::Write, Metric::Iops), None, "there were no writes");
        assert_eq!((entry.options["rw"].as_str(), entry.options["bs"].as_str()), ("read", "4k"));
    }

    #[test]
    fn total_latencies_go_before_those_of_completion() {
        let completion = json!({ "mean": 50.0, "percentile": { "99.000000": 90 } });
        let mut job = thread(1000.0, &completion);
        job["read"]["lat_ns"] = json!({ "mean": 60.0 });
        let mean = |job: &Value| only(&json!({ "jobs": [job] })).metric(Way::Read, Metric::Mean);
        assert_eq!(mean(&job), Some(50.0), "the mean is of what the percentiles are of");
        job["read"]["lat_ns"]["percentile"] = json!({ "99.000000": 100 });
        assert_eq!(mean(&job), Some(60.0));
        job["adit"]["latency"]["read"] = json!({ "mean": 61.0 });
        assert_eq!(mean(&job), Some(61.0));
    }

    #[test]
    fn threads_of_a_job_are_one() {
        let bins =
            |slow: u64| json!({ "mean": slow, "bins": { "10": 500, (slow.to_string()): 500 } });
        let jobs = json!({ "jobs": [thread(1000.0, &bins(100)), thread(3000.0, &bins(300))] });
        let entry = only(&jobs);
        assert_eq!((entry.iops(), entry.ios()), (4000.0, 2000));
        assert_eq!(entry.metric(Way::Read, Metric::Mean), Some(200.0));
        let figures = entry.ways[Way::Read].as_ref().expect("reads");
        assert_eq!(figures.cdf, [(10, 1000), (100, 1500), (300, 2000)]);
        assert_eq!(figures.percentile(50.0), Some(10.0));
        assert_eq!(figures.percentile(75.0), Some(100.0));
        assert_eq!(figures.percentile(99.0), Some(300.0));
    }

    #[test]
    fn without_distributions_the_slower_thread_is_the_bound() {
        let told = |ns: u64| json!({ "mean": ns, "percentile": { "99.000000": ns } });
        let entry = only(&json!({ "jobs": [thread(1.0, &told(100)), thread(1.0, &told(300))] }));
        assert_eq!(entry.metric(Way::Read, Metric::P99), Some(300.0));
    }
}
