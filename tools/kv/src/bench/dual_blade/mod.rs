//! The workloads of KV tensors: Dual-Blade's configurations, beside each other under memory limits.
//!
//! | module | noun |
//! |---|---|
//! | `options`, `configuration` | the command line, and what to run |
//! | `cgroup` | the memory limit of a run |
//! | `child` | the process of a run, and its loop |
//! | `baseline` | the files of `mmap` and `fadvise`, with which Dual-Blade is compared |
//! | `gpu` | a run's side of a real GPU |
//! | `outcome` | what a run measured |
//! | `report`, `picture` | the report |
//!
//! Each run is a process of its own in a memory cgroup of its own, so that nothing of one run is in the memory of the
//! next. Configurations take turns in an order in which each follows each other one equally often, after a rest: the
//! system frees the last run's blocks, and a drive that wrote may be slower for a while.

mod baseline;
mod cgroup;
mod child;
mod configuration;
mod gpu;
mod options;
mod outcome;
mod picture;
mod report;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

pub(super) use options::{Task, TensorArgs};

use self::cgroup::Cgroup;
use self::child::Loop;
use self::configuration::Configuration;
use self::options::Plan;
use self::outcome::{Line, Outcome};
use self::report::{Report, Run};
use super::options::KvBenchArgs;
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::output::Output;
use adit_tools_common::meter::Meter;

/// Interval between looks at an interrupt.
const LOOK: Duration = Duration::from_millis(100);

/// Runs the command.
///
/// # Errors
/// A failure of the command line, the machine or a run. What was measured before is reported.
pub(super) fn run(args: &KvBenchArgs, task: Task) -> Result<()> {
    let tensors = &args.tensors;
    let plan = Plan::of(tensors, task, args.model.as_deref(), &args.store().devices()?)?;
    if let Some(&[configuration]) = tensors.child {
        let (h2d, gpu, stamps, ahead) = (tensors.h2d, tensors.gpu, args.verify, tensors.ahead);
        let loops = Loop { configuration, h2d, gpu, stamps, ahead };
        return child::run(plan.options(configuration, args.size), &loops);
    }
    tensors.gpu.map_or(Ok(()), gpu::check)?;
    plan.check_target(args.size, args.force)?;
    let mut report = Report::new(task, &plan, tensors);
    let failure = measure_all(args, &plan, &mut report).err();
    if report.runs.is_empty() {
        return failure.map_or(Ok(()), Err);
    }
    let text = if args.json { report.json() } else { report.table() };
    Output::Standard.write(&text)?;
    if let Some(path) = &tensors.picture {
        Output::open(Some(path))?.write(&picture::svg(&report))?;
    }
    failure.map_or(Ok(()), Err)
}

fn measure_all(args: &KvBenchArgs, plan: &Plan, report: &mut Report) -> Result<()> {
    let tensors = &args.tensors;
    let interrupt = Interrupt::install()?;
    let set = plan.shape.set_bytes();
    let limits: Vec<Option<u64>> = match tensors.memory_limit.as_slice() {
        [] => vec![None],
        limits => limits.iter().map(|limit| Some(limit.of(set))).collect(),
    };
    let mut meter = Meter::new();
    for round in 0..tensors.rounds {
        for limit in &limits {
            for index in order(plan.configurations.len(), round as usize) {
                let (configuration, limit) = (plan.configurations[index], *limit);
                let meter = &mut meter;
                if !report.runs.is_empty() {
                    plan.rest();
                }
                let outcome =
                    One { args, configuration, limit, round, meter }.measure(&interrupt)?;
                report.runs.push(Run { configuration, limit, round, outcome });
            }
        }
    }
    Ok(())
}

/// Returns the order of `count` configurations in a round: a Williams design, in which each follows each other one once
/// in `count` rounds, or twice in `2 * count` if that is odd.
fn order(count: usize, round: usize) -> Vec<usize> {
    let zigzag =
        (0..count).map(|at| if at % 2 == 1 { at.div_ceil(2) } else { (count - at / 2) % count });
    let mut order: Vec<usize> = zigzag.map(|index| (index + round) % count).collect();
    if count % 2 == 1 && (round / count) % 2 == 1 {
        order.reverse();
    }
    order
}

/// A run of one configuration at one limit.
struct One<'a> {
    args: &'a KvBenchArgs,
    configuration: Configuration,
    limit: Option<u64>,
    round: u32,
    meter: &'a mut Meter,
}

impl One<'_> {
    /// Runs it in a process and a group of its own.
    ///
    /// # Errors
    /// The run's failure, with its name; that it was interrupted.
    fn measure(&mut self, interrupt: &Interrupt) -> Result<Outcome> {
        let group = self.limit.map(Cgroup::make).transpose()?;
        let mut child = Killed(self.spawn()?);
        if let Some(group) = &group {
            group.enter(child.0.id())?;
        }
        let lines = lines(child.0.stdout.take().expect("it is piped"));
        let mut stdin = child.0.stdin.take().expect("it is piped");
        stdin.write_all(b"go\n").map_err(Failure::failed)?;
        loop {
            match lines.recv_timeout(LOOK) {
                Ok(Line::Iteration(number)) => self.note(number, group.as_ref())?,
                Ok(Line::Ended(outcome)) => return Ok(*outcome),
                Ok(Line::Failed(why)) => return Err(self.failed(&why)),
                Err(RecvTimeoutError::Timeout) if interrupt.requested() => {
                    return Err(Failure::interrupted());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if interrupt.requested() => {
                    return Err(Failure::interrupted());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = child.0.wait().map_err(Failure::failed)?;
                    return Err(self.failed(&format!(
                        "its process ended by itself ({status}); if the kernel killed it, dmesg says why"
                    )));
                }
            }
        }
    }

    /// Starts the process, which waits for a line on its standard input.
    fn spawn(&self) -> Result<Child> {
        let program = std::env::current_exe().map_err(Failure::failed)?;
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1));
        command.arg(format!("--child={}", self.configuration.name()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().map_err(|why| Failure::failed(format!("start a run: {why}")))
    }

    /// Takes notice of an iteration that ended.
    fn note(&mut self, number: u32, group: Option<&Cgroup>) -> Result<()> {
        let (name, round) = (self.configuration.name(), self.round + 1);
        let limit = self
            .limit
            .map_or(String::new(), |limit| format!(" with {}", human::bytes(limit as f64)));
        let rounds = self.args.tensors.rounds;
        self.meter
            .show(|_| format!("round {round} of {rounds}: {name}{limit}, iteration {number}"));
        match (self.args.tensors.halve_after, group, self.limit) {
            (Some(after), Some(group), Some(limit)) if after == number => {
                group.set_limit(limit / 2)
            }
            _ => Ok(()),
        }
    }

    fn failed(&self, why: &str) -> Failure {
        Failure::failed(format!("{}: {why}", self.configuration.name()))
    }
}

/// Passes on the lines of a run; the channel closes with its output.
fn lines(out: ChildStdout) -> Receiver<Line> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
            let line = serde_json::from_str(&line)
                .unwrap_or_else(|why| Line::Failed(format!("its report is not understood: {why}")));
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// A process that ends with its owner.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn each_configuration_follows_each_other_one_equally_often() {
        for count in 1..=6 {
            let rounds = if count % 2 == 0 { count } else { 2 * count };
            let mut followed: HashMap<(usize, usize), usize> = HashMap::new();
            for round in 0..rounds {
                let order = order(count, round);
                assert_eq!(order.iter().sum::<usize>(), count * (count - 1) / 2, "{order:?}");
                for pair in order.windows(2) {
                    *followed.entry((pair[0], pair[1])).or_default() += 1;
                }
            }
            assert_eq!(followed.len(), count * (count - 1), "{followed:?}");
            assert!(followed.values().all(|times| *times == rounds / count), "{followed:?}");
        }
    }
}
