//! A report as text, and the terminal that shows it.

use std::io::{self, IsTerminal, Write};

use console::Term;
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::human;
use crate::output::Output;

/// The place of the picture. On a terminal it is the alternate screen, which is left on drop.
pub(super) struct Screen {
    live: Option<Term>,
}

/// Enters the alternate screen and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor and leaves the alternate screen.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

impl Screen {
    /// Opens the terminal if standard output is one and `may_be_live`.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn open(may_be_live: bool) -> Result<Screen> {
        let is_live = may_be_live && io::stdout().is_terminal();
        let screen = Screen { live: is_live.then(Term::stdout) };
        screen.write(ENTER)?;
        Ok(screen)
    }

    /// Returns whether the picture is redrawn in place.
    pub(super) fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// Shows these lines: as much as fits on a terminal, all of them elsewhere.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn draw(&mut self, lines: &[String]) -> Result<()> {
        let Some(term) = &self.live else {
            return Output::Standard.write(&(lines.join("\n") + "\n"));
        };
        let (rows, columns) = term.size();
        let fits =
            |line: &String| human::printable(line).chars().take(columns.into()).collect::<String>();
        let shown: Vec<String> = lines.iter().take(rows.into()).map(fits).collect();
        self.write(&format!("\x1b[H{}\x1b[K\x1b[J", shown.join("\x1b[K\r\n")))
    }

    fn write(&self, text: &str) -> Result<()> {
        if self.live.is_none() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|why| Failure::failed(format!("standard output: {why}")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no repair.
        let _ = self.write(LEAVE);
    }
}

/// Returns the lines of a report.
pub(super) fn lines(source: &str, report: &Value) -> Vec<String> {
    let restarted = if report["restarted"] == true { "   the server restarted" } else { "" };
    let mut lines = vec![
        format!(
            "{source}   last {:.1} s{restarted}",
            report["seconds"].as_f64().unwrap_or_default()
        ),
        String::new(),
    ];
    lines.extend(totals(report));
    if report["server"].is_object() {
        // It tells nothing of single requests, devices and tenants.
        lines.push(clients(&report["server"]));
        return lines;
    }
    lines.push(String::new());
    lines.push(format!("{:<10} {:>10} {:>10} {:>10}", "REQUEST", "per s", "p50", "p99"));
    for (request, figures) in report["latency"].as_object().into_iter().flatten() {
        let [p50, p99] = ["p50_s", "p99_s"].map(|name| latency(&figures[name]));
        lines.push(format!("{request:<10} {:>10} {p50:>10} {p99:>10}", count(&figures["per_s"])));
    }
    lines.push(String::new());
    lines.push(format!(
        "{:<24} {:>6} {:>7} {:>8} {:>10} {:>9} {:>8} {:>10} {:>9} {:>9} {:>7}",
        "DEVICE",
        "flying",
        "waiting",
        "reads/s",
        "read",
        "p99",
        "writes/s",
        "written",
        "p99",
        "flush p99",
        "errors"
    ));
    lines.extend(report["devices"].as_array().into_iter().flatten().map(device));
    lines.extend(tenants(report));
    lines
}

fn totals(report: &Value) -> [String; 5] {
    let per_s = |name: &str| count(&report[format!("{name}_per_s")]);
    let throughput = |name: &str| bytes_per_s(&report[format!("{name}_per_s")]);
    let evictions: Vec<String> = report["evictions_per_s"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(reason, rate)| format!("{reason} {}", count(rate)))
        .collect();
    [
        format!(
            "hits      {} of gets now, {} since the start; {} gets/s, {} puts/s, {} deletes/s, {} failures/s",
            percent(&report["hit_share"]),
            percent(&report["hit_share_since_start"]),
            per_s("gets"),
            per_s("puts"),
            per_s("deletes"),
            per_s("failures")
        ),
        format!(
            "bytes     {} read, {} stored, {} copied; write amplification {}",
            throughput("read_bytes"),
            throughput("written_bytes"),
            throughput("copied_bytes"),
            report["write_amplification"]
                .as_f64()
                .map_or("-".to_owned(), |times| format!("{times:.2}"))
        ),
        format!(
            "space     {} of {}, longest free run {}, {} objects",
            size(&report["used_bytes"]),
            size(&report["capacity_bytes"]),
            size(&report["largest_free_bytes"]),
            count(&report["objects"])
        ),
        format!(
            "gone      evictions/s: {}; {} expired/s, {} declined/s, {} corrupt/s",
            evictions.join(", "),
            per_s("expirations"),
            per_s("puts_declined"),
            per_s("get_corrupt")
        ),
        format!(
            "waiting   {} jobs, {} for memory ({} of {} in use), {} for room",
            count(&report["mailbox_jobs"]),
            count(&report["waiting_for_memory"]),
            size(&report["pool_used_bytes"]),
            size(&report["pool_bytes"]),
            count(&report["waiting_for_room"])
        ),
    ]
}

/// Returns the line for the clients of `adit kv serve`.
fn clients(server: &Value) -> String {
    format!(
        "clients   {} connected, {} shared; {} requests/s, {} in progress; {} leases",
        count(&server["clients_now"]),
        size(&server["mapped_bytes_now"]),
        count(&server["requests_per_s"]),
        count(&server["requests_now"]),
        count(&server["leases_now"])
    )
}

fn device(device: &Value) -> String {
    let of = |operation: &str, figure: &str| device["latency"][operation][figure].clone();
    let name = device["device"].as_str().unwrap_or_default();
    // The end of a path tells more than its beginning.
    let skipped = name.chars().count().saturating_sub(24);
    let name: String = name.chars().skip(skipped).collect();
    let out = match device["failed_shards"].as_f64() {
        Some(shards) if shards > 0.0 => format!("   OUT OF SERVICE for {shards} shards"),
        _ => String::new(),
    };
    format!(
        "{name:<24} {:>6} {:>7} {:>8} {:>10} {:>9} {:>8} {:>10} {:>9} {:>9} {:>7}{out}",
        count(&device["in_flight"]),
        count(&device["waiting"]),
        count(&of("read", "per_s")),
        bytes_per_s(&device["read_bytes_per_s"]),
        latency(&of("read", "p99_s")),
        count(&of("write", "per_s")),
        bytes_per_s(&device["written_bytes_per_s"]),
        latency(&of("write", "p99_s")),
        latency(&of("flush", "p99_s")),
        count(&device["errors_per_s"]),
    )
}

/// Returns a line for each tenant, if the server tells of any.
fn tenants(report: &Value) -> Vec<String> {
    let tenants = report["tenants"].as_array().map(Vec::as_slice).unwrap_or_default();
    let heading = (!tenants.is_empty()).then(|| ["", "TENANT"].map(str::to_owned));
    let line = |tenant: &Value| {
        let figures =
            tenant.as_object().into_iter().flatten().filter(|(name, _)| *name != "tenant");
        let figures: Vec<String> = figures
            .map(|(name, value)| match name.ends_with("bytes") {
                true => format!("{name} {}", size(value)),
                false => format!("{name} {}", count(value)),
            })
            .collect();
        format!("{:<24} {}", tenant["tenant"].as_str().unwrap_or_default(), figures.join(", "))
    };
    heading.into_iter().flatten().chain(tenants.iter().map(line)).collect()
}

/// Formats a figure, or a dash for one that the server does not tell.
fn told(value: &Value, format: impl FnOnce(f64) -> String) -> String {
    value.as_f64().map_or("-".to_owned(), format)
}

fn count(value: &Value) -> String {
    told(value, |number| human::si(number.round(), 4))
}

fn percent(value: &Value) -> String {
    told(value, |share| format!("{:.1} %", share * 100.0))
}

fn size(value: &Value) -> String {
    told(value, human::bytes)
}

fn bytes_per_s(value: &Value) -> String {
    told(value, |bytes| human::bytes_si(bytes.round()) + "/s")
}

fn latency(value: &Value) -> String {
    told(value, |seconds| human::latency((seconds * 1e9) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_server_does_not_tell_is_a_dash() {
        let text = lines("somewhere", &json!({ "seconds": 1.0 })).join("\n");
        assert!(text.contains("hits      - of gets now"), "{text}");
        assert!(!text.contains("TENANT") && !text.contains("restarted"), "{text}");
    }

    #[test]
    fn a_device_out_of_service_is_shown_and_a_long_name_keeps_its_end() {
        let name = format!("uring:/{}/end.img", "long/".repeat(20));
        let report = json!({
            "seconds": 1.0, "restarted": true, "evictions_per_s": { "space": 2.0, "all": 2.0 },
            "latency": { "get_hit": { "per_s": 12345.0, "p50_s": 0.00025, "p99_s": 0.0041 } },
            "devices": [{ "device": name, "failed_shards": 2.0, "in_flight": 3.0 }],
            "tenants": [{ "tenant": "blue", "used_bytes": 2048.0, "gets_per_s": 7.0 }],
        });
        let text = lines("somewhere", &report).join("\n");
        for part in [
            "the server restarted",
            "evictions/s: space 2, all 2",
            "12.3k   250.0 us     4.1 ms",
            "/end.img",
            "OUT OF SERVICE for 2 shards",
            "blue                     used_bytes 2048B, gets_per_s 7",
        ] {
            assert!(text.contains(part), "'{part}' is not in\n{text}");
        }
    }
}
