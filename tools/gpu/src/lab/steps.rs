//! The steps of the lab, in the order of what they tell, and what is expected of each.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::child::{self, Ended};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::options::is_emulated;

const MACHINE: &str = "machine";
/// 768 MiB, with and without the page cache, verified in the GPU's memory.
const TENSORS: &str = "kv bench --workload dual-blade --model opt-1.3b --prompt 120 --gen 8 --config dual,direct --verify";
/// Where the sanitizer lies if it is not in `PATH`.
const SANITIZER: &str = "/usr/local/cuda/bin/compute-sanitizer";

/// A command, and its purpose.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) tells: &'static str,
    pub(super) limit: Duration,
    /// At least one.
    pub(super) expected: Vec<Expected>,
    /// The source of the values that are added next.
    source: &'static str,
    program: PathBuf,
    lines: Vec<Vec<String>>,
    how: How,
}

/// The ways a step runs its lines and makes its report.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// One line, which prints the report.
    Once,
    /// One line: alone, and then twice at once. The report is a list of three.
    Pair,
    /// Lines that tell by their exit codes alone.
    Codes,
}

/// A figure of a step's report, beside the value expected.
pub(super) struct Expected {
    pub(super) what: &'static str,
    pub(super) goal: Goal,
    /// The source of the value.
    pub(super) source: &'static str,
    pub(super) figure: Box<Figure>,
}

/// Finds a figure in a step's report; `None` if it has no such figure, as for times of the emulated GPU.
type Figure = dyn Fn(&Value) -> Option<f64> + Sync;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    pub(super) fn is_met(self, measured: f64) -> bool {
        match self {
            Goal::AtLeast(goal) => measured >= goal,
            Goal::AtMost(goal) => measured <= goal,
        }
    }

    pub(super) fn text(self) -> String {
        match self {
            Goal::AtLeast(goal) => format!("{goal} or more"),
            Goal::AtMost(goal) => format!("{goal} or less"),
        }
    }
}
use Goal::{AtLeast, AtMost};

/// The machine, as the first step describes it.
pub(super) struct Machine {
    pub(super) has_gpu: bool,
    pub(super) is_emulated: bool,
    sms: u32,
    /// Major compute capability.
    major: u32,
}

impl Machine {
    /// Reads the report of the first step. Assumes a GPU if that step has none, because it crashed or hung.
    pub(super) fn of(report: &Value) -> Machine {
        let row = |name: &str| {
            let rows = report["sections"][0]["rows"].as_array()?;
            rows.iter().find(|row| row["name"] == name && row["verdict"] != "missing")
        };
        let value = |name: &str| row(name).and_then(|row| row["value"].as_str());
        let number = |name: &str| value(name)?.split('.').next()?.parse().ok();
        Machine {
            has_gpu: report.is_null() || row("GPU").is_some(),
            is_emulated: value("GPU").is_some_and(is_emulated),
            sms: number("multiprocessors").unwrap_or(16),
            major: number("compute capability").unwrap_or(8),
        }
    }
}

/// The conditions of all steps.
pub(super) struct Plan {
    pub(super) gpu: u32,
    /// A drive to look at, or empty.
    pub(super) target: String,
    pub(super) is_quick: bool,
    pub(super) stress_s: u64,
}

impl Plan {
    /// Returns the first step, which tells what the others need to know.
    pub(super) fn machine(&self) -> Step {
        self.step(MACHINE, &format!("gpu doctor {}", self.target), 60)
            .tells("the GPU, its driver, NVRTC, and the ways to memory that the machine allows")
            .by(LIMITS)
            .computes(
                "facts of the GPU that rings need and that are missing",
                AtMost(0.0),
                |report| count(&report["sections"][0]["rows"], |row| row["verdict"] == "missing"),
            )
    }

    /// Returns the others, in order.
    pub(super) fn steps(&self, machine: &Machine) -> Vec<Step> {
        let time = self.time(2000, 500);
        let in_host = machine.bench(&machine.share(8), 16, &time) + " --placement host";
        let by_cpu = format!("gpu bench --controller cpu --queues 1 --depth 256 --runtime {time}");
        vec![
            self.selftest(),
            self.host_copies(machine),
            self.green_contexts(machine),
            self.stress(machine),
            self.checksums(),
            self.foreign(),
            self.two_processes(machine),
            self.curve(machine, &time),
            self.rate("bench in host memory", &in_host)
                .tells("the same across PCIe: rings in pinned memory"),
            self.rate("bench by the CPU", &by_cpu)
                .tells("the same with a thread of the CPU as the controller"),
            self.trace("trace one-shot", ""),
            self.trace("trace persistent", "--kernel persistent"),
            self.trace("trace in host memory", "--placement host"),
            self.tensors(),
            self.sanitizers(machine),
        ]
    }

    /// Checks the names of steps to run.
    ///
    /// # Errors
    /// A usage failure that lists the steps, for a name that none has.
    pub(super) fn check_names(&self, names: &[String]) -> Result<()> {
        let steps = self.steps(&Machine::of(&Value::Null));
        let is_known =
            |name: &&String| *name == MACHINE || steps.iter().any(|step| step.name == *name);
        let Some(name) = names.iter().find(|name| !is_known(name)) else { return Ok(()) };
        let there: Vec<_> = steps.iter().map(|step| format!("'{}'", step.name)).collect();
        let there = there.join(", ");
        Err(Failure::usage(format!("--only {name}: there is no such step; there are: {there}")))
    }

    /// Makes a step that runs `adit` with a line's words, the GPU's number and `--json`.
    fn step(&self, name: &'static str, line: &str, limit_s: u64) -> Step {
        let line = format!("{line} --gpu {} --json", self.gpu);
        Step {
            name,
            tells: "",
            limit: Duration::from_secs(limit_s),
            expected: Vec::new(),
            source: "",
            program: std::env::current_exe().unwrap_or_else(|_| "adit".into()),
            lines: vec![words(&line)],
            how: How::Once,
        }
    }

    /// Makes a step of a measurement that the lab makes itself.
    fn measure(&self, name: &'static str, limit_s: u64) -> Step {
        let mut step = self.step(name, "", limit_s);
        let measure = name.replace(' ', "-");
        step.lines = vec![words(&format!("gpu lab --measure {measure} --gpu {}", self.gpu))];
        step
    }

    fn time(&self, full_ms: u64, quick_ms: u64) -> String {
        format!("{}ms", if self.is_quick { quick_ms } else { full_ms })
    }

    fn selftest(&self) -> Step {
        self.step("selftest", "gpu selftest", 90)
            .tells("whether driver, device code, memory, rings and doorbells do what rings rely on")
            .by(TESTED)
            .computes("checks that failed", AtMost(0.0), |report| {
                count(&report["checks"], |check| check["outcome"] == "failed")
            })
    }

    fn host_copies(&self, machine: &Machine) -> Step {
        // PCIe 5.0 from Hopper on; a kind of GPU that is slower says so in the report.
        let goal = AtLeast(if machine.major >= 9 { 50.0 } else { 22.0 });
        self.measure("host copies", 60)
            .tells("copies between registered host memory and the GPU, by size and direction")
            .by(COPIES)
            .expects("bytes that arrived wrong", AtMost(0.0), "/wrong_bytes")
            .by(LINK)
            .expects("GB/s from pinned host memory to the GPU", goal, "/best/to_gpu")
            .expects("GB/s from the GPU to pinned host memory", goal, "/best/from_gpu")
    }

    fn green_contexts(&self, machine: &Machine) -> Step {
        const SMS: &str = "/curve/0/beside_compute/sms_given";
        const DISTURBANCE: &str = "/curve/0/beside_compute/disturbance";
        let line = machine.bench(&machine.share(8), 16, &self.time(2000, 1000));
        self.step("green contexts", &line, 60)
            .tells("what a compute kernel loses, by its own clock, where I/O has multiprocessors of its own")
            .by(GREEN)
            .expects("multiprocessors that I/O has to itself", AtLeast(1.0), SMS)
            .by(GOALS)
            .computes("slow-down beyond the share of SMs given away", AtMost(0.02), |report| {
                let beside = &report["curve"][0]["beside_compute"];
                Some(beside["slowdown"].as_f64()? - beside["share_given"].as_f64()?)
            })
            .expects("slow-down by the rings' work alone", AtMost(0.02), DISTURBANCE)
    }

    fn stress(&self, machine: &Machine) -> Step {
        const FULL: &str = "/curve/0/saturated/cq_full";
        let line = machine.bench(&machine.share(8), 1, &format!("{}s", self.stress_s));
        self.step("doorbell stress", &line, self.stress_s + 45)
            .tells("doorbells of one queue, rung by warps of several multiprocessors; a command that is out of order or half written fails the step")
            .by(GOALS)
            .expects("commands per submission doorbell", AtLeast(16.0), PER_DOORBELL)
            .expects("looks at a full completion ring", AtMost(0.0), FULL)
    }

    fn checksums(&self) -> Step {
        self.measure("checksums", 45)
            .tells("how fast the GPU compares checksums")
            .by(TESTED)
            .expects("verdicts that are wrong", AtMost(0.0), "/wrong_verdicts")
            .by(SUMS)
            .expects("GB/s of each SM, 8 SMs", AtLeast(12.0), "/of_8_sms/gb_per_s_of_each")
    }

    fn foreign(&self) -> Step {
        self.measure("foreign streams", 90)
            .tells(
                "whether kernels and calls of other libraries go on beside the persistent kernel",
            )
            .by(QUEUES)
            .expects("streams whose kernel did not end", AtMost(0.0), "/streams_late")
            .computes("calls that waited for the persistent kernel", AtMost(2.0), |report| {
                count(&report["calls"], |call| call["returned"] == false)
            })
    }

    fn two_processes(&self, machine: &Machine) -> Step {
        let line = machine.bench(&machine.share(2), 2, &self.time(3000, 1000));
        let mut step = self.step("two processes", &line, 90);
        step.how = How::Pair;
        step.tells("rings of two processes on one GPU, which share it by time slices")
            .by(TESTED)
            .computes("processes that ended well", AtLeast(2.0), |report| {
                let ended = |one: &Value| one.pointer(COMMANDS).and_then(Value::as_f64) > Some(0.0);
                Some(report.as_array()?.iter().skip(1).filter(|one| ended(one)).count() as f64)
            })
            .by(SLICES)
            .computes("rate that the slower one keeps", AtLeast(0.3), |report| {
                let rate = |at: usize| report[at].pointer(PER_SECOND)?.as_f64();
                Some(rate(1)?.min(rate(2)?) / rate(0)?)
            })
    }

    /// Makes a step of a bench whose rate alone has a goal.
    fn rate(&self, name: &'static str, line: &str) -> Step {
        let step = self.step(name, line, 45).by(ESTIMATE);
        step.expects("commands per second", AtLeast(1e6), PER_SECOND)
    }

    fn curve(&self, machine: &Machine, time: &str) -> Step {
        // The last point.
        const RATE: &str = "/curve/3/saturated/commands_per_second";
        const PER_SQ: &str = "/curve/3/saturated/commands_per_sq_doorbell";
        const PER_LAP: &str = "/curve/3/saturated/cq_doorbells_per_lap";
        const P50: &str = "/curve/3/single/p50_ns";
        let sms = [1, 2, 4, 8].map(|sms| machine.share(sms)).join(",");
        self.step("bench", &machine.bench(&sms, 16, time), 100)
            .tells("commands per second and doorbells on 1, 2, 4 and 8 multiprocessors; latency")
            .by(GOALS)
            .expects("commands per second, 8 SMs (100 M wanted)", AtLeast(60e6), RATE)
            .expects("commands per submission doorbell", AtLeast(16.0), PER_SQ)
            .expects("completion doorbells per lap", AtMost(4.0), PER_LAP)
            .expects("ns from submission to completion, p50", AtMost(5000.0), P50)
    }

    fn trace(&self, name: &'static str, more: &str) -> Step {
        self.step(name, &format!("gpu trace {more}"), 45)
            .tells("a layer of a store's KV blocks through the rings")
            .by(TESTED)
            .expects("blocks that are not what was put", AtMost(0.0), "/verified/misses")
    }

    fn tensors(&self) -> Step {
        self.step("KV tensors", TENSORS, 90)
            .tells("KV tensors whose copy threads share pinned memory with drive and GPU")
            .by(TESTED)
            .computes("runs whose bytes are right in the GPU's memory", AtLeast(2.0), |report| {
                count(&report["runs"], |_| true)
            })
    }

    /// NVIDIA's compute-sanitizer over the self-test, where it is installed.
    fn sanitizers(&self, machine: &Machine) -> Step {
        let mut step = self.step("sanitizers", "", 150);
        let adit = step.program.display().to_string();
        let line = |tool| {
            words(&format!(
                "--tool {tool} --error-exitcode 1 {adit} gpu selftest --gpu {}",
                self.gpu
            ))
        };
        let sanitizer = sanitizer().filter(|_| !machine.is_emulated && !self.is_quick);
        let tools = ["memcheck", "racecheck", "synccheck"];
        step.lines = if sanitizer.is_some() { tools.map(line).into() } else { Vec::new() };
        step.program = sanitizer.unwrap_or_default();
        step.how = How::Codes;
        step.tells("compute-sanitizer's memcheck, racecheck and synccheck over the self-test")
            .by(TESTED)
            .computes("tools that found errors", AtMost(0.0), |report| {
                count(report, |code| *code != 0)
            })
    }
}

/// Figures of a bench with one number of multiprocessors.
const COMMANDS: &str = "/curve/0/saturated/commands";
const PER_SECOND: &str = "/curve/0/saturated/commands_per_second";
const PER_DOORBELL: &str = "/curve/0/saturated/commands_per_sq_doorbell";

const GOALS: &str = "docs/use/gpu.md, What could be measured";
const LIMITS: &str = "docs/use/gpu.md, Limits";
const TESTED: &str = "docs/use/gpu.md, How it is tested without a GPU";
const GREEN: &str = "CUDA 12.5 has green contexts";
const QUEUES: &str =
    "docs/use/gpu.md, Partitions and kernels: CUDA frees nothing beside a kernel that does not end";
const SUMS: &str = "docs/design/perf.md, Checksums: reckoned from machine code";
const COPIES: &str = "every byte is compared";
const LINK: &str =
    "nvbandwidth on PCIe 5.0 x16: 53.7 GB/s (xNVMe's experiments); half of it on 4.0";
const SLICES: &str = "estimate: half each, less switching";
const ESTIMATE: &str = "estimate: 1 to 5 M/s for a thread that polls across PCIe";

impl Machine {
    /// Returns `sms`, or as many as leave half of the GPU to others.
    fn share(&self, sms: u32) -> String {
        sms.min(self.sms / 2).max(1).to_string()
    }

    /// Returns the line of a bench. The emulated GPU has room for fewer warps.
    fn bench(&self, sms: &str, queues: u32, time: &str) -> String {
        let (queues, small) = match self.is_emulated {
            true => (queues.min(4), "--warps 2 --depth 256"),
            false => (queues, ""),
        };
        format!("gpu bench --sms {sms} --queues {queues} {small} --runtime {time}")
    }
}

/// Returns how many elements of a list are `wanted`; `None` if there is no list.
fn count(list: &Value, wanted: impl Fn(&Value) -> bool) -> Option<f64> {
    Some(list.as_array()?.iter().filter(|one| wanted(one)).count() as f64)
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn sanitizer() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join("compute-sanitizer"));
    found.chain([PathBuf::from(SANITIZER)]).find(|file| file.is_file())
}

impl Step {
    fn tells(mut self, tells: &'static str) -> Step {
        self.tells = tells;
        self
    }

    /// Sets the source of the values that are added next.
    fn by(mut self, source: &'static str) -> Step {
        self.source = source;
        self
    }

    /// Expects a figure at a JSON pointer of the report.
    fn expects(self, what: &'static str, goal: Goal, pointer: &'static str) -> Step {
        self.computes(what, goal, move |report| report.pointer(pointer)?.as_f64())
    }

    /// Expects a figure that is computed from the report.
    fn computes(
        mut self,
        what: &'static str,
        goal: Goal,
        figure: impl Fn(&Value) -> Option<f64> + Sync + 'static,
    ) -> Step {
        let figure = Box::new(figure);
        self.expected.push(Expected { what, goal, source: self.source, figure });
        self
    }

    /// Returns the commands that it runs.
    pub(super) fn commands(&self) -> Vec<String> {
        let name = self.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.lines.iter().map(|line| format!("{name} {}", line.join(" "))).collect()
    }

    /// Runs it, within a limit; returns how it ended, with its report.
    pub(super) fn run(
        &self,
        limit: Duration,
        interrupt: &Interrupt,
        tell: &mut dyn FnMut(),
    ) -> (Ended, Value) {
        let each = limit / if self.how == How::Pair { 2 } else { self.lines.len().max(1) as u32 };
        let run = |line: &[String], tell: &mut dyn FnMut()| {
            child::run(&self.program, line, each, interrupt, tell)
        };
        let ended = match (&self.lines[..], self.how) {
            ([], _) => {
                let said = "compute-sanitizer is not installed, or not asked for".to_owned();
                return (Ended { code: Some(3), said, ..Ended::default() }, Value::Null);
            }
            ([line, ..], How::Pair) => {
                let alone = run(line, tell);
                let both = thread::scope(|scope| {
                    let child = |_| {
                        scope.spawn(|| child::run(&self.program, line, each, interrupt, &mut || ()))
                    };
                    let both = [0, 1].map(child);
                    both.map(|one| one.join().unwrap_or_default())
                });
                [alone].into_iter().chain(both).collect::<Vec<_>>()
            }
            (lines, _) => lines.iter().map(|line| run(line, tell)).collect(),
        };
        let report = |one: &Ended| serde_json::from_str(&one.out).unwrap_or(Value::Null);
        let report = match self.how {
            How::Once => report(&ended[0]),
            How::Pair => ended.iter().map(report).collect(),
            How::Codes => ended.iter().map(|one| json!(one.code)).collect(),
        };
        (together(ended, self.how), report)
    }
}

/// Combines how processes ended: the first that did not end well counts.
fn together(ended: Vec<Ended>, how: How) -> Ended {
    let took = ended.iter().map(|one| one.took).sum();
    let worst = ended.iter().find(|one| one.code != Some(0)).or(ended.first()).cloned();
    let mut worst = worst.unwrap_or_default();
    if how == How::Codes && worst.said.is_empty() {
        worst.said = worst.out.lines().last().unwrap_or_default().to_owned();
    }
    Ended { took, ..worst }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn machine(is_emulated: bool) -> Machine {
        Machine { has_gpu: true, is_emulated, sms: 132, major: 9 }
    }

    fn plan() -> Plan {
        let target = "vfio:0000:01:00.0".to_owned();
        Plan { gpu: 0, target, is_quick: false, stress_s: 60 }
    }

    fn all() -> Vec<Step> {
        let plan = plan();
        let mut steps = vec![plan.machine()];
        steps.extend(plan.steps(&machine(false)));
        steps
    }

    #[test]
    fn every_step_says_what_it_tells_and_what_is_expected() {
        for step in all() {
            assert!(!step.tells.is_empty() && !step.expected.is_empty(), "{}", step.name);
            assert!(step.expected.iter().all(|one| !one.source.is_empty()), "{}", step.name);
            // A report without figures, as of a step that crashed, meets and misses nothing.
            assert!(step.expected.iter().all(|one| (one.figure)(&Value::Null).is_none()));
        }
        let names: Vec<&str> = all().iter().map(|step| step.name).collect();
        let mut different = names.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), names.len());
        assert!(names.iter().all(|name| !name.contains(',')), "--only separates them by commas");
    }

    #[test]
    fn a_drive_is_only_looked_at() {
        let steps = all();
        let names_it = |step: &&Step| step.commands().iter().any(|line| line.contains("vfio:"));
        let named: Vec<&str> = steps.iter().filter(names_it).map(|step| step.name).collect();
        assert_eq!(named, [MACHINE]);
    }

    #[test]
    fn a_source_in_the_documentation_is_a_heading_of_its_page() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the root");
        let mut found = 0;
        for source in all().iter().flat_map(|step| &step.expected).map(|one| one.source) {
            let Some((page, rest)) =
                source.split_once(", ").filter(|_| source.starts_with("docs/"))
            else {
                continue;
            };
            let heading = rest.split(':').next().unwrap_or(rest);
            let text = std::fs::read_to_string(root.join(page)).expect(page);
            let is_there =
                text.lines().any(|line| line.trim_start_matches('#') == format!(" {heading}"));
            assert!(is_there, "{source}");
            found += 1;
        }
        assert!(found > 10, "{found}");
    }

    #[test]
    fn the_machine_is_read_from_the_doctors_report() {
        let row =
            |name: &str, value: &str| json!({ "name": name, "verdict": "ok", "value": value });
        let rows = [
            row("GPU", "Emulated GPU 0"),
            row("compute capability", "9.0"),
            row("multiprocessors", "8"),
        ];
        let machine = Machine::of(&json!({ "sections": [{ "rows": rows }] }));
        assert!(machine.has_gpu && machine.is_emulated);
        assert_eq!((machine.sms, machine.major, machine.share(8)), (8, 9, "4".to_owned()));
        let missing = json!({ "sections": [{ "rows": [{ "name": "GPU", "verdict": "missing", "value": "no" }] }] });
        assert!(!Machine::of(&missing).has_gpu);
        assert!(Machine::of(&Value::Null).has_gpu);
    }

    #[test]
    fn figures_stand_beside_their_goals() {
        let point = |rate: f64, slowdown: f64| {
            let point = json!({
                "saturated": { "commands": 1, "commands_per_second": rate, "commands_per_sq_doorbell": 31.0, "cq_doorbells_per_lap": 3.9 },
                "single": { "p50_ns": 4000 },
                "beside_compute": { "slowdown": slowdown, "share_given": 0.06, "sms_given": 8, "disturbance": 0.01 },
            });
            json!({ "curve": [point, point, point, point] })
        };
        let met = |name: &str, report: &Value| -> Vec<Option<bool>> {
            let step = all().into_iter().find(|step| step.name == name).expect("a step");
            step.expected.iter().map(|one| Some(one.goal.is_met((one.figure)(report)?))).collect()
        };
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(met("bench", &point(1e8, 0.07)), [yes; 4]);
        assert_eq!(met("bench", &point(5e7, 0.07)), [no, yes, yes, yes]);
        assert_eq!(met("green contexts", &point(1e8, 0.07)), [yes; 3]);
        assert_eq!(met("green contexts", &point(1e8, 0.09)), [yes, no, yes]);
        let pair = json!([point(9e6, 0.0), point(5e6, 0.0), point(2e6, 0.0)]);
        assert_eq!(met("two processes", &pair)[1], no);
        assert_eq!(met("sanitizers", &json!([0, 1, 0])), [no]);
    }

    #[test]
    fn a_name_that_no_step_has_is_refused_with_all_names() {
        assert!(plan().check_names(&["machine".to_owned(), "host copies".to_owned()]).is_ok());
        let failure = plan().check_names(&["copies".to_owned()]).expect_err("there is none");
        assert!(failure.to_string().contains("'host copies', 'green contexts'"), "{failure}");
    }
}
