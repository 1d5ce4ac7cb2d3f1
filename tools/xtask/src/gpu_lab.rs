//! `cargo xtask gpu-lab`: everything that only a machine with a GPU can tell, in one run and one file.
//!
//! Runs the commands of `adit gpu` one after another, each within a time limit, and NVIDIA's compute-sanitizer over the
//! self-test where it is installed. No NVMe drive is needed. The report holds what each step printed, and the figures
//! beside their goals (docs/gpu.md, "The lab").

use crate::deps;
use crate::failure::{Context, Failure, Result};
use crate::gpu;
use crate::interrupt;
use crate::process;
use crate::progress::Progress;
use crate::workspace;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where the sanitizer lies if it is not in `PATH`.
const SANITIZER: &str = "/usr/local/cuda/bin/compute-sanitizer";
/// Longest time of a step, beyond what it is asked to measure.
const PATIENCE: Duration = Duration::from_secs(120);
/// Lines kept of what a step printed on standard error.
const SAID_LINES: usize = 20;
/// 768 MiB, with and without the page cache, verified in the GPU's memory.
const TENSORS: &str = "kv bench --workload dual-blade --model opt-1.3b --prompt 120 --gen 8 --config dual,direct --verify";

const HELP: &str = "\
Examples:
  On a machine with an NVIDIA GPU (under ten minutes), which needs no drive:
    cargo xtask gpu-lab
  Also what lies between the GPU and a drive bound to vfio-pci, which is only read:
    cargo xtask gpu-lab vfio:0000:01:00.0
  Doorbells of one queue rung from eight multiprocessors for ten minutes:
    cargo xtask gpu-lab --stress-seconds 600
  The same steps on the emulated GPU, whose times mean nothing:
    cargo xtask gpu-lab --emulated

Exit codes: 0 nothing failed and each goal that was measured is met, 1 otherwise, 3 no GPU.";

/// `cargo xtask gpu-lab`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct GpuLabArgs {
    /// A drive for `adit gpu doctor`
    target: Option<String>,

    /// GPU number, from 0
    #[arg(long, default_value_t = 0)]
    gpu: u32,

    /// Seconds of the stress of one queue's doorbells
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    stress_seconds: u64,

    /// Rehearses the steps on the emulated GPU
    #[arg(long)]
    emulated: bool,

    /// The report [default: gpu-lab.json in cargo's target directory]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// One command, and what it is for.
struct Step {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    /// What it takes by itself.
    takes: Duration,
    /// Whether it prints JSON.
    has_json: bool,
}

/// How a step ended.
struct Ended {
    step: Step,
    /// `None` if it took too long, or a signal ended it.
    code: Option<i32>,
    took: Duration,
    /// Null if there is none.
    report: Value,
    said: String,
}

/// A figure beside its goal.
struct Goal {
    what: &'static str,
    goal: String,
    measured: Option<f64>,
    is_met: Option<bool>,
}

/// Runs the steps and writes the report; returns the exit code.
pub(crate) fn run(arguments: &GpuLabArgs) -> Result<u8> {
    deps::ensure(&deps::TO_BUILD)?;
    let (adit, libraries) = match arguments.emulated {
        true => (workspace::build_checked("adit")?, Some(gpu::library_path()?)),
        false => (workspace::build_release("adit", "adit")?, None),
    };
    let sanitizer = process::find("compute-sanitizer").or_else(|| process::find(SANITIZER));
    let steps = steps(arguments, &adit, sanitizer.as_deref().filter(|_| !arguments.emulated));
    let mut ended = Vec::new();
    for step in steps {
        interrupt::check()?;
        ended.push(run_step(step, libraries.as_ref())?);
        println!("{}", line_of(ended.last().expect("one was pushed")));
        if let [only] = &ended[..]
            && only.code == Some(3)
        {
            return Err(Failure::unavailable(format!(
                "there is no GPU to measure; --emulated rehearses the steps:\n{}",
                only.said
            )));
        }
    }
    let goals = goals(&ended);
    let out = arguments.out.clone().map_or_else(default_file, Ok)?;
    save(&out, &json_of(arguments.emulated, sanitizer.is_some(), &ended, &goals))?;
    goals.iter().for_each(|goal| println!("{}", line_of_goal(goal)));
    println!("report: {}", out.display());
    let is_good =
        ended.iter().all(Ended::is_good) && goals.iter().all(|goal| goal.is_met != Some(false));
    Ok(u8::from(!is_good))
}

fn default_file() -> Result<PathBuf> {
    Ok(workspace::target_directory()?.join("gpu-lab.json"))
}

fn save(file: &Path, report: &Value) -> Result<()> {
    fs::write(file, format!("{report:#}\n"))
        .context(format_args!("cannot write {}", file.display()))
}

/// Returns the steps in their order. The self-test comes first: it tells whether there is a GPU.
fn steps(arguments: &GpuLabArgs, adit: &Path, sanitizer: Option<&Path>) -> Vec<Step> {
    let gpu = arguments.gpu.to_string();
    let step = |name: &str, line: &str, takes: u64| {
        let words = format!("{line} --gpu {gpu} --json");
        Step {
            name: name.to_owned(),
            program: adit.to_owned(),
            arguments: words.split_whitespace().map(str::to_owned).collect(),
            takes: Duration::from_secs(takes),
            has_json: true,
        }
    };
    let on_gpu = |name: &str, line: &str, takes| step(name, &format!("gpu {line}"), takes);
    let target = arguments.target.as_deref().unwrap_or_default();
    // The emulated GPU has room for fewer warps.
    let warps = if arguments.emulated { "--warps 2 --queues 4 --depth 256" } else { "" };
    let stress = arguments.stress_seconds;
    let mut steps = vec![
        on_gpu("selftest", "selftest", 0),
        on_gpu("doctor", &format!("doctor {target}"), 0),
        on_gpu("bench", &format!("bench --sms 1,2,4,8 {warps}"), 40),
        on_gpu("bench, rings in host memory", &format!("bench --placement host {warps}"), 10),
        on_gpu("bench, controller on the CPU", "bench --controller cpu --queues 1 --depth 256", 10),
        on_gpu(
            "stress",
            &format!(
                "bench --queues 1 --sms 8 {} --runtime {stress}s",
                warps.replace("--queues 4", "")
            ),
            stress,
        ),
        on_gpu("trace, one-shot", "trace", 5),
        on_gpu("trace, persistent", "trace --kernel persistent", 5),
        on_gpu("trace, pages in host memory", "trace --placement host", 5),
        step("KV tensors", TENSORS, 30),
    ];
    for tool in ["memcheck", "racecheck", "synccheck"] {
        let Some(sanitizer) = sanitizer else { break };
        let words =
            format!("--tool {tool} --error-exitcode 1 {} gpu selftest --gpu {gpu}", adit.display());
        steps.push(Step {
            name: format!("sanitizer, {tool}"),
            program: sanitizer.to_owned(),
            arguments: words.split_whitespace().map(str::to_owned).collect(),
            takes: Duration::from_secs(60),
            has_json: false,
        });
    }
    steps
}

fn run_step(step: Step, libraries: Option<&OsString>) -> Result<Ended> {
    let _progress = Progress::start(step.name.clone());
    let begun = Instant::now();
    let mut command = Command::new(&step.program);
    command
        .args(&step.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    libraries.map(|path| command.env(gpu::LIBRARY_PATH, path));
    let mut child =
        command.spawn().context(format_args!("cannot run {}", step.program.display()))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = thread::spawn(move || text_of(out));
    let err = thread::spawn(move || text_of(err));
    let code = loop {
        if let Some(status) = child.try_wait().context("cannot wait for a step")? {
            break status.code();
        }
        if begun.elapsed() > step.takes + PATIENCE {
            // It may have ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let text = |thread: thread::JoinHandle<String>| thread.join().unwrap_or_default();
    let (out, err) = (text(out), text(err));
    let report =
        if step.has_json { serde_json::from_str(&out).unwrap_or_default() } else { Value::Null };
    let said = if step.has_json { err } else { out + &err };
    let (took, said) = (begun.elapsed(), process::tail(&said, SAID_LINES));
    Ok(Ended { step, code, took, report, said })
}

/// Reads to the end of what a step prints.
fn text_of(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // What came before an error is reported all the same.
        let _ = from.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Ended {
    /// Exit code 3 is a thing that the machine lacks.
    fn is_good(&self) -> bool {
        matches!(self.code, Some(0 | 3))
    }
}

fn line_of(ended: &Ended) -> String {
    let outcome = match ended.code {
        Some(0) => "done",
        Some(3) => "lacks",
        Some(_) => "FAILED",
        None => "TOO LONG",
    };
    let why = ended.said.lines().last().filter(|_| ended.code != Some(0)).unwrap_or_default();
    format!("{outcome:<9}{} ({:.1} s) {why}", ended.step.name, ended.took.as_secs_f64())
        .trim_end()
        .to_owned()
}

/// Returns the figures that docs/gpu.md has goals for.
fn goals(ended: &[Ended]) -> Vec<Goal> {
    let report = |name: &str| ended.iter().find(|one| one.step.name == name).map(|one| &one.report);
    let curve = report("bench").and_then(|report| report["curve"].as_array());
    let at_8 = curve.and_then(|curve| curve.last()).unwrap_or(&Value::Null);
    let (rate, beside) = (&at_8["saturated"], &at_8["beside_compute"]);
    let slower = beside["slowdown"].as_f64().zip(beside["share_given"].as_f64());
    let least = |what, goal: f64, measured: &Value| {
        let measured = measured.as_f64();
        Goal {
            what,
            goal: format!("{goal} or more"),
            measured,
            is_met: measured.map(|value| value >= goal),
        }
    };
    let most = |what, goal: f64, measured: Option<f64>| Goal {
        what,
        goal: format!("{goal} or less"),
        measured,
        is_met: measured.map(|value| value <= goal),
    };
    vec![
        least("commands per second, 8 SMs (100 M wanted)", 60e6, &rate["commands_per_second"]),
        least(
            "commands per submission doorbell, saturated",
            16.0,
            &rate["commands_per_sq_doorbell"],
        ),
        most("completion doorbells per lap", 4.0, rate["cq_doorbells_per_lap"].as_f64()),
        most("ns from submission to completion, p50", 5000.0, at_8["single"]["p50_ns"].as_f64()),
        most(
            "compute's slow-down beyond the SMs given away",
            0.02,
            slower.map(|(slower, share)| slower - share),
        ),
    ]
}

fn line_of_goal(goal: &Goal) -> String {
    let outcome = match goal.is_met {
        Some(true) => "met",
        Some(false) => "MISSED",
        None => "-",
    };
    let measured = goal.measured.map_or("not measured".to_owned(), |value| format!("{value:.4}"));
    format!("{outcome:<9}{}: {measured} ({})", goal.what, goal.goal)
}

fn json_of(is_emulated: bool, has_sanitizer: bool, ended: &[Ended], goals: &[Goal]) -> Value {
    let step = |one: &Ended| {
        json!({
            "name": one.step.name,
            "command": one.step.arguments.join(" "),
            "exit_code": one.code,
            "took_s": one.took.as_secs_f64(),
            "report": one.report,
            "said": one.said,
        })
    };
    let goal = |one: &Goal| json!({ "what": one.what, "goal": one.goal, "measured": one.measured, "is_met": one.is_met });
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "unix_time_s": since.as_secs(),
        "kernel": kernel.trim(),
        "is_emulated": is_emulated,
        "has_compute_sanitizer": has_sanitizer,
        "steps": ended.iter().map(step).collect::<Vec<_>>(),
        "goals": goals.iter().map(goal).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> GpuLabArgs {
        GpuLabArgs { target: None, gpu: 0, stress_seconds: 60, emulated: false, out: None }
    }

    fn ended(name: &str, code: i32, report: Value) -> Ended {
        let mut steps = steps(&arguments(), Path::new("adit"), None);
        let at = steps.iter().position(|step| step.name == name).expect("a step");
        Ended {
            step: steps.swap_remove(at),
            code: Some(code),
            took: Duration::from_secs(1),
            report,
            said: "why\n".to_owned(),
        }
    }

    fn bench(rate: f64, slowdown: f64) -> Value {
        let point = json!({
            "saturated": {
                "commands_per_second": rate, "commands_per_sq_doorbell": 31.0, "cq_doorbells_per_lap": 3.9,
            },
            "single": { "p50_ns": 4000 },
            "beside_compute": { "slowdown": slowdown, "share_given": 0.06 },
        });
        json!({ "curve": [Value::Null, point] })
    }

    #[test]
    fn figures_stand_beside_their_goals() {
        let met = |report| -> Vec<Option<bool>> {
            goals(&[ended("bench", 0, report)]).iter().map(|goal| goal.is_met).collect()
        };
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(met(bench(1e8, 0.07)), [yes; 5]);
        assert_eq!(met(bench(5e7, 0.09)), [no, yes, yes, yes, no]);
        assert_eq!(met(Value::Null), [None; 5]);
        assert!(line_of_goal(&goals(&[])[4]).contains("not measured"));
    }

    #[test]
    fn what_the_machine_lacks_is_no_failure_and_what_failed_says_why() {
        let lacks = ended("trace, one-shot", 3, Value::Null);
        assert!(lacks.is_good());
        let failed = ended("selftest", 1, Value::Null);
        assert!(!failed.is_good());
        assert_eq!(line_of(&failed), "FAILED   selftest (1.0 s) why");
    }

    #[test]
    fn a_drive_is_only_looked_at() {
        let mut arguments = arguments();
        arguments.target = Some("vfio:0000:01:00.0".to_owned());
        let steps = steps(&arguments, Path::new("adit"), Some(Path::new("sanitizer")));
        let names_it = |step: &&Step| step.arguments.iter().any(|word| word.starts_with("vfio:"));
        let named: Vec<&str> =
            steps.iter().filter(names_it).map(|step| step.name.as_str()).collect();
        assert_eq!(named, ["doctor"]);
        assert!(steps.iter().any(|step| step.name == "sanitizer, racecheck"));
    }

    #[test]
    fn a_step_keeps_its_report_and_what_it_said() {
        let step = Step {
            name: "sleep".to_owned(),
            program: process::find("sh").expect("there is a shell"),
            arguments: vec!["-c".to_owned(), "echo '{\"a\":1}'; echo why >&2; exit 1".to_owned()],
            takes: Duration::ZERO,
            has_json: true,
        };
        let ended = run_step(step, None).expect("it runs");
        assert_eq!(
            (ended.code, &ended.report["a"], ended.said.as_str()),
            (Some(1), &json!(1), "why")
        );
    }
}
