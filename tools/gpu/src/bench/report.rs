//! Results of a bench, as text and as JSON. Times on an emulated GPU are printed in neither.

use serde_json::{Value, json};

use super::args::BenchArgs;
use super::beside::Beside;
use super::saturated::Saturated;
use super::single::Single;
use crate::human;
use crate::options::is_emulated;
use crate::output;

/// The condition of every figure.
const LABEL: &str = "software controller, no PCIe";

/// Results with one number of multiprocessors for the I/O kernel.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) sms: u32,
    pub(super) saturated: Saturated,
    pub(super) single: Single,
    /// A compute kernel beside the rings, or why there was none.
    pub(super) beside: Result<Beside, String>,
}

/// Results of a bench.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) args: BenchArgs,
    /// The GPU's name.
    pub(super) gpu: String,
    pub(super) points: Vec<Point>,
}

/// A row of the table: what it holds, the figure's place in a point of the JSON, and how it is written.
type Row = (&'static str, &'static str, fn(f64) -> String);

const ROWS: [Row; 13] = [
    ("SMs of the I/O kernel", "/sms", whole),
    ("commands per second", "/saturated/commands_per_second", |rate| human::si(rate, 4)),
    ("the same of each SM", "/saturated/commands_per_second_of_each", |rate| human::si(rate, 4)),
    ("commands, each checked", "/saturated/commands", whole),
    ("commands per SQ doorbell", "/saturated/commands_per_sq_doorbell", |mean| {
        format!("{mean:.1}")
    }),
    ("CQ doorbells per lap", "/saturated/cq_doorbells_per_lap", |mean| format!("{mean:.2}")),
    ("looks of the controller at a full CQ", "/saturated/cq_full", whole),
    ("one at a time: commands per SQ doorbell", "/single/commands_per_sq_doorbell", |mean| {
        format!("{mean:.2}")
    }),
    ("  submission to completion, p50", "/single/p50_ns", |ns| human::latency(ns as u64)),
    ("  p99", "/single/p99_ns", |ns| human::latency(ns as u64)),
    ("SMs given away", "/beside_compute/share_given", percent),
    ("compute kernel beside the rings, slower by", "/beside_compute/slowdown", percent),
    ("  of that, by the rings' work", "/beside_compute/disturbance", percent),
];

fn whole(count: f64) -> String {
    format!("{count}")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

impl Report {
    fn is_emulated(&self) -> bool {
        is_emulated(&self.gpu)
    }

    /// Formats it for people: a column for each number of multiprocessors, and a row for each figure that there is.
    pub(super) fn text(&self) -> String {
        let args = &self.args;
        let mut out = format!(
            "{}: {LABEL}\n{} queues of {} in {}, {} warps on each SM, controller on the {}\n\n",
            human::printable(&self.gpu),
            args.queues,
            args.depth,
            args.place().name(),
            args.warps,
            output::word(&args.controller)
        );
        let points: Vec<Value> = self.points.iter().map(|point| self.point(point)).collect();
        for (what, place, written) in ROWS {
            let figure = |point: &Value| point.pointer(place)?.as_f64().map(written);
            let figures: Vec<_> = points.iter().map(figure).collect();
            if figures.iter().any(Option::is_some) {
                let cells = figures.iter().map(|figure| figure.as_deref().unwrap_or("-"));
                let cells: String = cells.map(|cell| format!("{cell:>12}")).collect();
                out += &format!("{what:<42}{cells}\n");
            }
        }
        for Point { sms, beside, .. } in &self.points {
            let why = match beside {
                Err(why) => format!("no compute kernel beside the rings: {why}"),
                Ok(part) if part.sms_given == 0 => format!("not set apart ({})", part.kind),
                Ok(_) => continue,
            };
            out += &format!("{sms} SMs: {}\n", human::printable(&why));
        }
        out
    }

    /// Formats it for programs.
    pub(super) fn json(&self) -> Value {
        let args = &self.args;
        json!({
            "measured_against": LABEL,
            "gpu": self.gpu,
            "is_emulated": self.is_emulated(),
            "options": {
                "queues": args.queues,
                "depth": args.depth,
                "warps": args.warps,
                "placement": args.place().name(),
                "controller": args.controller,
                "runtime_ms": args.runtime.as_millis() as u64,
            },
            "curve": self.points.iter().map(|point| self.point(point)).collect::<Vec<_>>(),
        })
    }

    fn point(&self, point: &Point) -> Value {
        let Point { sms, saturated, single, beside } = point;
        let time = |value: Value| if self.is_emulated() { Value::Null } else { value };
        json!({
            "sms": sms,
            "saturated": {
                "commands": saturated.commands,
                "elapsed_ns": time(saturated.elapsed_ns.into()),
                "commands_per_second": time(saturated.per_second().into()),
                "commands_per_second_of_each": time((saturated.per_second() / f64::from(*sms)).into()),
                "sq_doorbells": saturated.sq_rings,
                "commands_per_sq_doorbell": saturated.commands_per_ring(),
                "cq_doorbells": saturated.cq_rings,
                "cq_doorbells_per_lap": saturated.cq_rings_per_lap(),
                "cq_full": saturated.cq_full,
            },
            "single": {
                "commands": single.commands,
                "sq_doorbells": single.sq_rings,
                "commands_per_sq_doorbell": single.commands as f64 / single.sq_rings.max(1) as f64,
                "p50_ns": time(single.p50_ns.into()),
                "p99_ns": time(single.p99_ns.into()),
            },
            "beside_compute": beside.as_ref().ok().map(|part| json!({
                "alone": time(json!(part.alone)),
                "idle": time(json!(part.idle)),
                "busy": time(json!(part.busy)),
                "slowdown": time(part.slowdown().into()),
                "disturbance": time(part.disturbance().into()),
                "sms_all": part.sms_all,
                "sms_given": part.sms_given,
                "share_given": part.share(),
                "partition": part.kind,
                "commands": part.commands,
            })),
            "why_no_compute": beside.as_ref().err(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::compute::Took;
    use crate::bench::tests::args;

    fn report(gpu: &str) -> Report {
        let point = |sms, elapsed_ns, beside| Point {
            sms,
            saturated: Saturated {
                commands: 2_000_000,
                elapsed_ns,
                sq_rings: 50_000,
                cq_rings: 7_000,
                laps: 1_950.0,
                cq_full: Some(0),
            },
            single: Single { commands: 100, sq_rings: 100, p50_ns: 3_400, p99_ns: 5_100 },
            beside,
        };
        let took = |ms| Took { ms, round_ns: 300_000, longest_round_ns: 400_000 };
        let beside = Beside {
            alone: took(10.0),
            idle: took(10.4),
            busy: took(10.5),
            sms_all: 132,
            sms_given: 8,
            kind: "green contexts".to_owned(),
            commands: 1,
        };
        let points = vec![
            point(1, 200_000_000, Err("it is full".to_owned())),
            point(8, 20_000_000, Ok(beside)),
        ];
        Report { args: args(""), gpu: gpu.to_owned(), points }
    }

    fn json_of(report: &Report) -> Value {
        report.json()
    }

    #[test]
    fn each_number_of_multiprocessors_has_a_column() {
        let text = report("NVIDIA H200").text();
        assert!(text.starts_with("NVIDIA H200: software controller, no PCIe\n"), "{text}");
        let cells = |row: &str| {
            let line = text.lines().find(|line| line.starts_with(row)).expect(row);
            line[row.len()..].split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(cells("commands per second"), "10.0M 100M");
        assert_eq!(cells("the same of each SM"), "10.0M 12.5M");
        assert_eq!(cells("commands per SQ doorbell"), "40.0 40.0");
        assert_eq!(cells("SMs given away"), "- 6.1 %");
        assert_eq!(cells("compute kernel beside the rings, slower by"), "- 5.0 %");
        assert_eq!(cells("  of that, by the rings' work"), "- 1.0 %");
        assert!(
            text.ends_with("\n1 SMs: no compute kernel beside the rings: it is full\n"),
            "{text}"
        );
    }

    #[test]
    fn programs_get_a_curve() {
        let json = json_of(&report("NVIDIA H200"));
        assert_eq!(json["measured_against"], "software controller, no PCIe");
        let [first, last] = [0, 1].map(|at| &json["curve"][at]);
        assert_eq!((&first["sms"], &last["sms"]), (&1.into(), &8.into()));
        assert_eq!(last["saturated"]["commands_per_second"], 1e8);
        assert_eq!(last["saturated"]["cq_full"], 0);
        assert_eq!(last["single"]["p50_ns"], 3_400);
        assert_eq!(
            (&first["beside_compute"], &first["why_no_compute"]),
            (&Value::Null, &"it is full".into())
        );
        assert_eq!(last["beside_compute"]["sms_given"], 8);
        assert_eq!(last["beside_compute"]["busy"]["longest_round_ns"], 400_000);
    }

    #[test]
    fn times_of_an_emulated_gpu_are_not_printed() {
        let emulated = report("Emulated GPU 0");
        let json = json_of(&emulated);
        let point = &json["curve"][1];
        assert_eq!(point["saturated"]["commands_per_second"], Value::Null);
        assert_eq!(point["single"]["p50_ns"], Value::Null);
        assert_eq!(point["beside_compute"]["slowdown"], Value::Null);
        assert_eq!(point["saturated"]["commands_per_sq_doorbell"], 40.0);
        let text = emulated.text();
        for time in ["per second", "p50", "p99", "slower", "of each SM"] {
            assert!(!text.contains(time), "{time}: {text}");
        }
        assert!(text.contains("commands per SQ doorbell") && text.contains("given away"), "{text}");
    }
}
