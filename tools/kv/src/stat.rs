//! `adit kv stat`: shows how full a store is, its devices' wear, and a server's performance.
//!
//! Data on the media is read directly, even while a server has the store open. Hit rates and write
//! amplification are not on the media; they come from a server's metrics.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use adit_driver::Device;
use adit_driver::spec::log::SmartHealth;
use adit_driver::spec::{Lid, Nsid, View};
use adit_kvshare::{Client, ClientOptions};
use adit_kvstore::UNIT_BYTES;
use adit_kvstore::survey::Space;
use clap::Args;
use serde_json::{Map, Value, json};

use super::any_store::connect;
use super::metrics::{METRICS_BYTES_MAX, Metrics};
use super::store_arg::StoreArgs;
use super::survey::{IN_USE, Reader};
use crate::failure::{Failure, Result};
use crate::human;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  adit kv stat uring:kv.img
  What 'adit kv serve' tells of the store that it has:
    adit kv stat serve:kv.sock
  With the hit rate and the write amplification of another server that has it open:
    curl -s http://localhost:8080/metrics | adit kv stat uring:kv.img --metrics -

Writes nothing. The store may be open elsewhere; the figures then show one moment. Only the server knows hit rates \
and write amplification; give its metrics in Prometheus's format.";

/// Shows how full and how fragmented a store is, and the wear of its devices
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Metrics of the server that has the store open, in Prometheus's text format; '-' for standard input
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When there is no store, or the metrics cannot be read.
pub(crate) fn run(args: &StatArgs) -> Result<()> {
    let report = match (args.store.socket()?, &args.metrics) {
        (Some(socket), None) => of_server(&connect(socket, &ClientOptions::default())?)?,
        (Some(_), Some(_)) => {
            let why =
                format!("{} tells its metrics itself: leave --metrics out", args.store.name());
            return Err(Failure::usage(why));
        }
        (None, metrics) => {
            let metrics = metrics.as_deref().map(read_metrics).transpose()?;
            of_media(&mut args.store.reader(false)?, metrics.as_ref())?
        }
    };
    output::report(args.json, || &report, || table(&report, &args.store.name()))
}

/// Returns what the media say, beside the metrics of the server that has the store.
fn of_media(reader: &mut Reader, metrics: Option<&Metrics>) -> Result<Value> {
    let picture = reader.picture(|_, _, found| {
        let bytes: u64 = found.objects.iter().map(|found| found.object.bytes).sum();
        Ok((found.objects.len() as u64, bytes, found.space))
    })?;
    picture.warn_of_faults();
    let faults = picture.faults.len();
    let (mut objects, mut bytes, mut space) = (0, 0, Space::default());
    for (of_shard, their_bytes, room) in picture.shards {
        objects += of_shard;
        bytes += their_bytes;
        space.data_units += room.data_units;
        space.used_units += room.used_units;
        space.free_runs += room.free_runs;
        space.largest_free_units = space.largest_free_units.max(room.largest_free_units);
    }
    let mut report = json!({ "objects": objects, "object_bytes": bytes, "faults": faults });
    add_space(&mut report, &space);
    report["in_use"] = reader.is_in_use.into();
    report["devices"] = reader.devices().map(wear).collect();
    report["server"] = metrics.map_or(Value::Null, served);
    Ok(report)
}

/// Returns what a server tells of its store. It does not tell of faults and of wear.
fn of_server(client: &Client) -> Result<Value> {
    let (stats, _) = client.stats()?;
    let mut report = json!({ "objects": stats.objects });
    let (data_units, used_units) = (stats.capacity_units, stats.used_units);
    let (free_runs, largest_free_units) = (stats.free_runs, stats.largest_free_units);
    add_space(&mut report, &Space { data_units, used_units, free_runs, largest_free_units });
    report["in_use"] = true.into();
    report["server"] = served(&Metrics::of_server(client)?);
    Ok(report)
}

fn add_space(report: &mut Value, space: &Space) {
    let free = space.data_units - space.used_units.min(space.data_units);
    report["capacity_bytes"] = (space.data_units * UNIT_BYTES).into();
    report["used_bytes"] = (space.used_units * UNIT_BYTES).into();
    report["free_runs"] = space.free_runs.into();
    report["largest_free_bytes"] = (space.largest_free_units * UNIT_BYTES).into();
    let fragmentation = match free {
        0 => 0.0,
        free => 1.0 - space.largest_free_units as f64 / free as f64,
    };
    report["fragmentation"] = fragmentation.into();
}

/// Returns a device's wear, if it reports it.
fn wear(device: &Device) -> Value {
    let mut report = json!({ "device": device.info().device });
    let Some(controller) = device.controller() else { return report };
    let page = controller.log_page(Lid::SMART_HEALTH, Nsid::ALL, size_of::<SmartHealth>() as u32);
    let Ok(page) = page.inspect_err(|error| tracing::warn!("no SMART log: {error}")) else {
        return report;
    };
    if let Some(smart) = SmartHealth::view(&page) {
        report["percentage_used"] = smart.percentage_used.into();
        report["available_spare_percent"] = smart.available_spare_percent.into();
        report["data_written_bytes"] = json!(smart.data_written_bytes() as f64);
        report["media_errors"] = json!(smart.media_errors.get() as f64);
    }
    report
}

fn read_metrics(path: &Path) -> Result<Metrics> {
    let failed = |why: io::Error| Failure::failed(format!("{}: {why}", path.display()));
    let text = match path.as_os_str() == "-" {
        true => {
            let mut text = String::new();
            let mut limited = io::stdin().lock().take(METRICS_BYTES_MAX);
            limited.read_to_string(&mut text).map_err(failed)?;
            text
        }
        false => fs::read_to_string(path).map_err(failed)?,
    };
    Metrics::parse(&text, &path.display().to_string())
}

/// Returns a server's counts.
fn served(metrics: &Metrics) -> Value {
    let of = |name: &str| metrics.sum(name, &[]);
    let ratio = |part: &str, whole: &str| {
        let (part, whole) = (of(part)?, of(whole)?);
        (whole > 0.0).then(|| part / whole)
    };
    let mut report = Map::new();
    report.insert("hit_share".to_owned(), json!(ratio("get_hits_total", "gets_total")));
    report.insert(
        "write_amplification".to_owned(),
        json!(ratio("device_written_bytes_total", "written_bytes_total")),
    );
    for name in ["gets_total", "puts_total", "evictions_total", "get_corrupt_total"] {
        report.insert(name.trim_end_matches("_total").to_owned(), json!(of(name)));
    }
    for name in metrics.names("server_") {
        let short = name.trim_start_matches("server_").trim_end_matches("_total");
        report.insert(short.to_owned(), json!(of(name)));
    }
    report.into()
}

fn table(report: &Value, title: &str) -> String {
    let number = |name: &str| report[name].as_u64().unwrap_or_default();
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let used = number("used_bytes") as f64 / number("capacity_bytes").max(1) as f64;
    let mut rows = vec![
        ("objects", number("objects").to_string()),
        (
            "used",
            format!(
                "{} of {} ({})",
                human::capacity(number("used_bytes")),
                human::capacity(number("capacity_bytes")),
                percent(used)
            ),
        ),
        (
            "free runs",
            format!(
                "{}, the largest of {}",
                number("free_runs"),
                human::capacity(number("largest_free_bytes"))
            ),
        ),
        ("fragmentation", percent(report["fragmentation"].as_f64().unwrap_or_default())),
    ];
    if let Some(bytes) = report["object_bytes"].as_u64() {
        rows.insert(1, ("their bytes", human::capacity(bytes)));
    }
    for device in report["devices"].as_array().into_iter().flatten() {
        rows.push(("wear", wear_line(device)));
    }
    let server = &report["server"];
    if server.is_object() {
        let told = |name: &str| server[name].as_f64();
        rows.push(("hit rate", told("hit_share").map_or("none yet".to_owned(), percent)));
        let amplification = told("write_amplification");
        rows.push((
            "write amplification",
            amplification.map_or("none yet".to_owned(), |times| format!("{times:.3}")),
        ));
        if let (Some(clients), Some(requests)) = (told("clients_now"), told("requests_now")) {
            let mapped = human::bytes(told("mapped_bytes_now").unwrap_or_default());
            let line = format!(
                "{clients}, this one included; {requests} requests in progress, {mapped} shared"
            );
            rows.push(("clients", line));
        }
    }
    let rows: String = rows.iter().map(|(name, value)| format!("  {name:<22}{value}\n")).collect();
    let moving = match report["in_use"] == true {
        true => format!("  {IN_USE}\n"),
        false => String::new(),
    };
    format!("{title}\n{rows}{moving}")
}

fn wear_line(device: &Value) -> String {
    let name = human::printable(device["device"].as_str().unwrap_or_default());
    match device["percentage_used"].as_u64() {
        Some(percent) => format!(
            "{name}: {percent} % used, {} written",
            human::bytes(device["data_written_bytes"].as_f64().unwrap_or_default())
        ),
        None => format!("{name}: not available on this path"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_counted_has_no_share() {
        let text = "adit_kv_gets_total{shard=\"0\"} 30\nadit_kv_gets_total{shard=\"1\"} 10\nadit_kv_get_hits_total 20\n";
        let metrics = Metrics::parse(text, "a test").expect("metrics");
        assert_eq!(served(&metrics)["hit_share"], 0.5);
        assert_eq!(served(&metrics)["write_amplification"], Value::Null, "nothing was put");
    }

    #[test]
    fn fragmentation_is_what_the_largest_run_is_not() {
        let mut report = json!({});
        let space = Space { data_units: 100, used_units: 60, free_runs: 2, largest_free_units: 30 };
        add_space(&mut report, &space);
        assert_eq!(report["fragmentation"], 0.25);
        add_space(&mut report, &Space::default());
        assert_eq!(report["fragmentation"], 0.0);
    }
}
