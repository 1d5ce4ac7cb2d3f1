//! `adit gpu bench`: measures a GPU's rings against a software controller.

use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

use super::{self as bench, BenchOptions, BenchReport, ControllerChoice, LABEL, Watch};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::Placement;
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::units;
use adit_kv::Meter;

const EXAMPLES: &str = "\
Examples:
  Queues in GPU memory, served by a second kernel, for two seconds:
    adit gpu bench
  How many commands a multiprocessor carries, and what it costs compute:
    adit gpu bench --sms 1,2,4,8
  One queue in host memory, served by a thread of the CPU, for a program to read:
    adit gpu bench --controller cpu --placement host --queues 1 --json

On the emulated GPU ('cargo xtask gpu -- bench') only counts are printed: its times mean nothing.

Exit codes: 0 measured, 1 a command, the controller or CUDA failed, 2 an option cannot be, 3 no GPU, or none that rings \
can use (a compiler for device code included), 130 interrupted, with what was measured until then.";

/// Measures the rings of a GPU against a software controller that checks every command: no PCIe, no drive
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// GPU number, from 0
    #[arg(long, default_value_t = 0)]
    gpu: u32,

    /// Queue pairs, 1 to 256
    #[arg(long, default_value_t = 16)]
    queues: u32,

    /// Entries of each queue, 2 to 4096
    #[arg(long, default_value_t = 1024)]
    depth: u32,

    /// Multiprocessors of the I/O kernel, 1 to the GPU's; several numbers give a curve
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "8")]
    sms: Vec<u32>,

    /// Warps of the I/O kernel on each multiprocessor, 1 to 16
    #[arg(long, default_value_t = 16)]
    warps: u32,

    /// Where the rings are [default: hbm with the GPU's controller, host with the CPU's]
    #[arg(long)]
    placement: Option<Placement>,

    /// What serves the rings: a second kernel, or threads of the CPU
    #[arg(long, default_value = "gpu")]
    controller: Server,

    /// Bytes of each command: a multiple of 512, up to 1M
    #[arg(long, default_value = "512", value_parser = units::block_bytes)]
    bs: u64,

    /// How long to measure the saturated rings: 500ms, 2s, 5m
    #[arg(long, default_value = "2s", value_parser = units::duration)]
    runtime: Duration,

    /// Commands to measure one at a time, 1 to 1000000
    #[arg(long, default_value_t = 2000)]
    single: u32,

    /// How long the compute kernel beside the rings takes on its own, up to 10s
    #[arg(long, default_value = "100ms", value_parser = units::duration)]
    compute: Duration,

    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// What serves the rings.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Server {
    /// Threads of the CPU
    Cpu,
    /// A second kernel
    Gpu,
}

/// Runs the command.
///
/// # Errors
/// As [`bench::run`], and when the user interrupted it.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let meter = Mutex::new(Meter::new());
    let tell = |what: &str| {
        let mut meter = meter.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        meter.show(|_| what.to_owned());
    };
    let reports = bench::curve(&options(args)?, &args.sms, &Watch::new(interrupt.flag(), &tell))?;
    drop(meter);
    let text = if args.json { json_text(&reports)? } else { table(&reports)? };
    Output::Standard.write(&text)?;
    if interrupt.requested() { Err(Failure::interrupted()) } else { Ok(()) }
}

fn options(args: &BenchArgs) -> Result<BenchOptions> {
    let (controller, usual) = match args.controller {
        Server::Cpu => (ControllerChoice::Cpu, Placement::Host),
        Server::Gpu => (ControllerChoice::Gpu, Placement::Hbm),
    };
    let block_bytes = u32::try_from(args.bs).map_err(|_| {
        Failure::usage(format!("--bs: {} bytes are more than a command's", args.bs))
    })?;
    Ok(BenchOptions {
        gpu: args.gpu,
        queues: args.queues,
        depth: args.depth,
        sms: args.sms[0],
        warps: args.warps,
        placement: args.placement.unwrap_or(usual).place(),
        controller,
        block_bytes,
        runtime: args.runtime,
        single_commands: args.single,
        compute: args.compute,
    })
}

fn json_text(reports: &[BenchReport]) -> Result<String> {
    let value = match reports {
        [report] => json(report),
        curve => json!({ "curve": curve.iter().map(json).collect::<Vec<_>>() }),
    };
    serde_json::to_string_pretty(&value).map(|text| text + "\n").map_err(Failure::failed)
}

/// Formats the report for programs. A part that was not measured is null, and `missing` says why. Times are null on an
/// emulated GPU.
fn json(report: &BenchReport) -> Value {
    let options = &report.options;
    let time = |value: Value| if report.is_emulated() { Value::Null } else { value };
    json!({
        "measured_against": LABEL,
        "gpu": report.gpu,
        "is_emulated": report.is_emulated(),
        "options": {
            "queues": options.queues,
            "depth": options.depth,
            "sms": options.sms,
            "warps": options.warps,
            "placement": options.placement.name(),
            "controller": options.controller.name(),
            "block_bytes": options.block_bytes,
            "runtime_ms": options.runtime.as_millis() as u64,
        },
        "saturated": report.saturated.map(|part| json!({
            "commands": part.commands,
            "checked": part.checked,
            "refused": part.refused,
            "elapsed_ns": time(part.elapsed_ns.into()),
            "commands_per_second": time(part.per_second().into()),
            "sq_doorbells": part.sq_rings,
            "commands_per_sq_doorbell": part.commands_per_ring(),
            "cq_doorbells": part.cq_rings,
            "cq_doorbells_per_lap": part.cq_rings_per_lap(),
            "cq_full": part.full,
        })),
        "single": report.single.map(|part| json!({
            "commands": part.commands,
            "sq_doorbells": part.sq_rings,
            "p50_ns": time(part.p50_ns.into()),
            "p99_ns": time(part.p99_ns.into()),
        })),
        "beside_compute": report.beside.as_ref().map(|part| json!({
            "alone_ms": time(part.alone_ms.into()),
            "beside_ms": time(part.beside_ms.into()),
            "slowdown": time(part.slowdown().into()),
            "sms_all": part.sms_all,
            "sms_given": part.sms_given,
            "share_given": part.share(),
            "partition": part.kind,
            "commands": part.commands,
        })),
        "preparation": report.preparation.map(|part| json!({
            "tensors": part.tensors,
            "commands": part.commands,
            "p50_ns": part.p50_ns,
            "least_ns": part.least_ns,
        })),
        "missing": report.missing.iter()
            .map(|(part, why)| json!({ "part": part, "why": why }))
            .collect::<Vec<_>>(),
    })
}

/// Formats the reports for people.
fn table(reports: &[BenchReport]) -> Result<String> {
    let mut text = String::new();
    match reports {
        [report] => write_table(&mut text, report),
        curve => write_curve(&mut text, curve),
    }
    .map_err(Failure::failed)?;
    Ok(text)
}

/// Writes a line for each number of multiprocessors.
fn write_curve(out: &mut String, curve: &[BenchReport]) -> std::fmt::Result {
    writeln!(out, "{}: {LABEL}", human::printable(&curve[0].gpu))?;
    writeln!(
        out,
        "{:>5}{:>16}{:>16}{:>20}{:>18}{:>16}",
        "SMs", "commands/s", "each SM's", "commands/doorbell", "SMs given away", "compute slower"
    )?;
    for report in curve {
        let sms = report.options.sms;
        let time = |value: Option<String>| value.filter(|_| !report.is_emulated());
        let rate = report.saturated.map(|part| part.per_second());
        let cells = [
            time(rate.map(|rate| human::si(rate, 4))),
            time(rate.map(|rate| human::si(rate / f64::from(sms), 4))),
            report.saturated.map(|part| format!("{:.1}", part.commands_per_ring())),
            report.beside.as_ref().map(|part| format!("{:.1} %", part.share() * 100.0)),
            time(report.beside.as_ref().map(|part| format!("{:.1} %", part.slowdown() * 100.0))),
        ]
        .map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
        let [rate, each, merged, given, slower] = cells;
        writeln!(out, "{sms:>5}{rate:>16}{each:>16}{merged:>20}{given:>18}{slower:>16}")?;
    }
    Ok(())
}

fn write_table(out: &mut String, report: &BenchReport) -> std::fmt::Result {
    let options = &report.options;
    writeln!(out, "{}: {LABEL}", human::printable(&report.gpu))?;
    writeln!(
        out,
        "  {} queues of {} in {}, {} SMs of {} warps, controller on the {}, {} bytes",
        options.queues,
        options.depth,
        options.placement.name(),
        options.sms,
        options.warps,
        options.controller.name(),
        options.block_bytes
    )?;
    write_saturated(out, report)?;
    write_single(out, report)?;
    write_beside(out, report)?;
    if let Some(part) = &report.preparation {
        let what = format!("control blocks for {} tensors", part.tensors);
        let time = human::latency(part.p50_ns);
        line(out, &what, &format!("{time} ({} commands, on the CPU)", part.commands))?;
    }
    for (part, why) in &report.missing {
        line(out, part, &format!("not measured: {}", human::printable(why)))?;
    }
    Ok(())
}

fn write_saturated(out: &mut String, report: &BenchReport) -> std::fmt::Result {
    let Some(part) = &report.saturated else { return Ok(()) };
    if !report.is_emulated() {
        line(out, "commands per second", &human::si(part.per_second(), 4))?;
    }
    let checked = format!("{} checked, {} refused", part.checked, part.refused);
    line(out, "commands", &format!("{} ({checked})", part.commands))?;
    line(out, "commands per SQ doorbell, saturated", &format!("{:.1}", part.commands_per_ring()))?;
    line(out, "CQ doorbells per lap", &format!("{:.2}", part.cq_rings_per_lap()))?;
    let Some(full) = part.full else { return Ok(()) };
    line(out, "looks of the controller at a full CQ", &full.to_string())
}

fn write_single(out: &mut String, report: &BenchReport) -> std::fmt::Result {
    let Some(part) = &report.single else { return Ok(()) };
    let per_ring = part.commands as f64 / part.sq_rings.max(1) as f64;
    line(out, "commands per SQ doorbell, one at a time", &format!("{per_ring:.2}"))?;
    if report.is_emulated() {
        return Ok(());
    }
    let (p50, p99) = (human::latency(part.p50_ns), human::latency(part.p99_ns));
    let figures = format!("p50 {p50}, p99 {p99} ({} commands)", part.commands);
    line(out, "submission to completion, one at a time", &figures)
}

fn write_beside(out: &mut String, report: &BenchReport) -> std::fmt::Result {
    let Some(part) = &report.beside else { return Ok(()) };
    let slower = match part.slowdown() * 100.0 {
        percent if percent >= 0.05 => format!("{percent:.1} % slower"),
        _ => "no slower".to_owned(),
    };
    if !report.is_emulated() {
        let times = format!("{:.2} ms alone, {:.2} ms beside", part.alone_ms, part.beside_ms);
        line(out, "compute kernel beside the rings", &format!("{slower} ({times})"))?;
    }
    let (all, kind) = (part.sms_all, human::printable(&part.kind));
    let share = match part.sms_given {
        0 => format!("not set apart: all share {all} SMs ({kind})"),
        given => format!("{:.1} % ({given} of {all} SMs; {kind})", part.share() * 100.0),
    };
    line(out, "multiprocessors given away", &share)
}

fn line(out: &mut String, what: &str, value: &str) -> std::fmt::Result {
    writeln!(out, "  {what:<41} {value}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Beside, Preparation, Saturated, Single};

    fn report() -> BenchReport {
        BenchReport {
            options: BenchOptions::default(),
            gpu: "NVIDIA H200".to_owned(),
            saturated: Some(Saturated {
                commands: 2_000_000,
                checked: 2_000_000,
                refused: 0,
                elapsed_ns: 20_000_000,
                sq_rings: 50_000,
                cq_rings: 7_000,
                laps: 1_950.0,
                full: Some(0),
            }),
            single: Some(Single { commands: 100, sq_rings: 100, p50_ns: 3_400, p99_ns: 5_100 }),
            beside: None,
            preparation: Some(Preparation {
                tensors: 8_000,
                commands: 8_000,
                p50_ns: 41_000,
                least_ns: 40_000,
            }),
            missing: vec![("beside compute", "the driver has no partitions".to_owned())],
        }
    }

    #[test]
    fn every_figure_stands_beside_what_it_was_measured_against() {
        let json = json(&report());
        assert_eq!(json["measured_against"], "software controller, no PCIe");
        assert_eq!(json["saturated"]["commands_per_second"], 1e8);
        assert_eq!(json["saturated"]["commands_per_sq_doorbell"], 40.0);
        assert_eq!(json["saturated"]["cq_full"], 0);
        assert_eq!(json["single"]["p50_ns"], 3_400);
        assert_eq!(json["beside_compute"], Value::Null);
        assert_eq!(json["missing"][0]["why"], "the driver has no partitions");
        let text = table(&[report()]).expect("a string takes all");
        assert!(text.starts_with("NVIDIA H200: software controller, no PCIe\n"), "{text}");
        assert!(text.contains("commands per second"), "{text}");
        assert!(text.contains("not measured: the driver has no partitions"), "{text}");
    }

    #[test]
    fn a_curve_has_a_line_for_each_number_of_multiprocessors() {
        let point = |sms, elapsed_ns| {
            let mut report = report();
            report.options.sms = sms;
            report.saturated.as_mut().expect("measured").elapsed_ns = elapsed_ns;
            report.beside = Some(Beside {
                alone_ms: 10.0,
                beside_ms: 10.5,
                sms_all: 132,
                sms_given: sms,
                ..Beside::default()
            });
            report
        };
        let curve = [point(1, 200_000_000), point(8, 20_000_000)];
        let text = table(&curve).expect("a string takes all");
        let last = text.lines().last().expect("a line");
        let cells: Vec<&str> = last.split_whitespace().collect();
        assert_eq!(cells, ["8", "100M", "12.5M", "40.0", "6.1", "%", "5.0", "%"], "{text}");
        let json: Value = serde_json::from_str(&json_text(&curve).expect("JSON")).expect("JSON");
        assert_eq!(json["curve"][0]["saturated"]["commands_per_second"], 1e7);
    }

    #[test]
    fn times_of_an_emulated_gpu_are_not_printed() {
        let emulated = BenchReport { gpu: "Emulated GPU 0".to_owned(), ..report() };
        let json = json(&emulated);
        assert_eq!(json["saturated"]["commands_per_second"], Value::Null);
        assert_eq!(json["single"]["p50_ns"], Value::Null);
        assert_eq!(json["saturated"]["commands_per_sq_doorbell"], 40.0);
        let text = table(&[emulated]).expect("a string takes all");
        assert!(!text.contains("per second") && !text.contains("p50"), "{text}");
        assert!(text.contains("commands per SQ doorbell, saturated"), "{text}");
    }
}
