//! `adit bench`: fio's workloads on a controller driven from user space.
//!
//! | file | noun |
//! |---|---|
//! | `options`, `units` | the command line |
//! | `plan` | what it comes to on a namespace |
//! | `generator`, `permutation` | which block is next |
//! | `job` | one thread, one queue pair: the loop that is measured |
//! | `verify` | blocks that can be told from any other |
//! | `errors`, `again` | what went wrong: put up with, or sent again |
//! | `supervisor` | what happens outside the queues; bringing the controller back |
//! | `measure`, `cpu`, `live` | what is counted |
//! | `report_normal`, `report_json` | how it is told |

mod again;
mod cpu;
mod errors;
mod generator;
mod job;
mod live;
pub(crate) mod measure;
pub(crate) mod options;
mod permutation;
mod plan;
mod report_json;
mod report_normal;
mod supervisor;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_driver::target::QueueMemory;
use adit_driver::{
    Buffer, Controller, ControllerOptions, Namespace, Placement, QueuePairOptions, Target,
};

use crate::device;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::Output;
use job::{Common, Job, Progress};
use live::Watch;
use options::{BenchArgs, OutputFormat};
use plan::{Ground, Plan, plan};
use supervisor::Recovery;

pub(crate) use crate::units::Size;
pub(crate) use job::Outcome;

/// How long a job spins before it lets others have its core: longer than a busy SSD takes.
const YIELD_AFTER: Duration = Duration::from_millis(1);
/// The same where the controller is a thread of ours, which may be waiting for that very core.
const YIELD_AFTER_SOFT: Duration = Duration::from_micros(10);
/// Where buffers start: what PRPs like best.
const BUFFER_ALIGN: u64 = 4096;

/// Runs the command.
///
/// # Errors
/// What the device, the data or the command line did wrong; the report was written where there was something to report.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let bench = Bench::open(args)?;
    let mut output = Output::open(args.output.as_deref())?;
    let interrupt = Interrupt::install()?;
    if args.output_format == OutputFormat::Normal {
        output.write(&report_normal::head(args))?;
    }
    let outcomes = bench.run(&interrupt)?;
    output.write(&match args.output_format {
        OutputFormat::Normal => report_normal::report(args, &outcomes, unix_seconds()),
        OutputFormat::Json => report_json::report(args, &outcomes),
    })?;
    verdict(args, &outcomes)?;
    if interrupt.requested() { Err(Failure::interrupted()) } else { Ok(()) }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// An error if any job failed.
///
/// # Errors
/// The first failure of all jobs, with how many there were.
pub(crate) fn verdict(args: &BenchArgs, outcomes: &[Outcome]) -> Result<()> {
    let failures = || outcomes.iter().filter_map(|outcome| outcome.failure.as_ref());
    let Some(first) = failures().next() else { return Ok(()) };
    let count: u64 = failures().map(|failure| failure.count).sum();
    let others = if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
    Err(Failure::failed(format!("{}: {}{others}", args.filename.device(), first.first)))
}

/// A controller and a plan, ready to run.
pub(crate) struct Bench<'a> {
    args: &'a BenchArgs,
    controller: Controller,
    namespace: Namespace,
    plan: Plan,
}

impl<'a> Bench<'a> {
    /// Opens the controller and checks the options against the namespace.
    ///
    /// # Errors
    /// As [`Controller::open`]; a usage error for what the namespace does not have.
    pub(crate) fn open(args: &'a BenchArgs) -> Result<Bench<'a>> {
        let io_queues = args.numjobs.min(u32::from(u16::MAX)) as u16;
        let options = ControllerOptions { io_queues, ..ControllerOptions::default() };
        Bench::over(args, Controller::open(&args.filename, &options)?)
    }

    /// Checks the options against the namespace of an open controller.
    ///
    /// # Errors
    /// A usage error for what the namespace does not have.
    pub(crate) fn over(args: &'a BenchArgs, controller: Controller) -> Result<Bench<'a>> {
        let namespace = device::namespace(&controller, &args.filename)?;
        let plan = plan(args, &Ground::of(&namespace, controller.info()))?;
        Ok(Bench { args, controller, namespace, plan })
    }

    /// Runs all jobs to their end.
    ///
    /// # Errors
    /// When a queue or buffer cannot be had; what goes wrong later is in the outcomes.
    pub(crate) fn run(&self, interrupt: &Interrupt) -> Result<Vec<Outcome>> {
        let args = self.args;
        let recovery = Recovery::new(args.recover);
        let common = Common {
            controller: &self.controller,
            namespace: &self.namespace,
            interrupt,
            recovery: &recovery,
            pattern: args.pattern(),
            verify: args.verify.is_some(),
            tolerance: args.continue_on_error,
            retries: args.retries(),
            time_based: args.time_based,
            runtime: args.runtime,
            yield_after: if self.is_soft() { YIELD_AFTER_SOFT } else { YIELD_AFTER },
        };
        let progress: Vec<Progress> = (0..args.numjobs).map(|_| Progress::default()).collect();
        let jobs = (0..).zip(&progress).map(|(index, progress)| self.job(&common, progress, index));
        let jobs = jobs.collect::<Result<Vec<Job<'_>>>>()?;
        let mut outcomes = self.run_jobs(jobs, &progress, &recovery);
        outcomes.sort_by_key(|outcome| outcome.index);
        if args.group_reporting { Ok(merged(outcomes)) } else { Ok(outcomes) }
    }

    fn is_soft(&self) -> bool {
        matches!(self.args.filename, Target::Soft { .. })
    }

    fn job<'c>(
        &'c self,
        common: &'c Common<'c>,
        progress: &'c Progress,
        index: usize,
    ) -> Result<Job<'c>> {
        let placement = match self.args.filename.settings().queues {
            QueueMemory::Host => Placement::Host,
            QueueMemory::Cmb => Placement::Cmb,
        };
        let usual = QueuePairOptions::default();
        let options = QueuePairOptions {
            depth: self.plan.queue_entries,
            timeout: self.args.io_timeout.unwrap_or(usual.timeout),
            abort_timeout: self.args.io_timeout.unwrap_or(usual.abort_timeout),
            placement,
            ..usual
        };
        let queue = self.controller.create_queue_pair(options)?;
        let seed = permutation::mix(self.args.randseed.wrapping_add(index as u64));
        let buffers = self.buffers(seed)?;
        Ok(Job::new(common, progress, index, seed, self.plan.regions[index], queue, buffers))
    }

    /// A buffer of one block for each I/O in flight, filled with noise where it will be written.
    fn buffers(&self, seed: u64) -> Result<Vec<Buffer>> {
        let (block, count) = (self.args.bs, u64::from(self.args.iodepth));
        let stride = block.next_multiple_of(BUFFER_ALIGN) as usize;
        let mut rest = self.controller.allocate(stride * count as usize)?;
        if self.args.pattern().read_percent < 100 {
            verify::fill(&mut rest, seed);
        }
        let mut buffers = Vec::with_capacity(count as usize);
        while !rest.is_empty() {
            let tail = rest.split_off(stride);
            // What lies between a block's end and the next page is nobody's.
            drop(rest.split_off(block as usize));
            buffers.push(std::mem::replace(&mut rest, tail));
        }
        Ok(buffers)
    }

    fn run_jobs(
        &self,
        jobs: Vec<Job<'_>>,
        progress: &[Progress],
        recovery: &Recovery,
    ) -> Vec<Outcome> {
        let blocks = self.plan.regions.iter().map(|region| region.block_count).sum();
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        // A software controller's thread needs a place as well, wherever there is one.
        let pin = jobs.len() <= cores.len() && !self.is_soft();
        let (sender, receiver) = mpsc::channel();
        let mut watch = Watch::new(self.args, progress, blocks);
        let mut outcomes = thread::scope(|scope| {
            let count = jobs.len();
            for (index, job) in jobs.into_iter().enumerate() {
                let (sender, core) = (sender.clone(), cores.get(index).filter(|_| pin));
                scope.spawn(move || {
                    if let Some(core) = core {
                        core_affinity::set_for_current(*core);
                    }
                    // Nobody listens any more only if the watcher panicked.
                    let _ = sender.send(job.run());
                });
            }
            drop(sender);
            self.collect(&receiver, &mut watch, recovery, count)
        });
        for (index, [read, write]) in watch.finish().into_iter().enumerate() {
            if let Some(outcome) = outcomes.iter_mut().find(|outcome| outcome.index == index) {
                (outcome.read.samples, outcome.write.samples) = (read, write);
            }
        }
        outcomes
    }

    /// Waits for `count` jobs, watching them and the controller.
    fn collect(
        &self,
        receiver: &Receiver<Outcome>,
        watch: &mut Watch<'_>,
        recovery: &Recovery,
        count: usize,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(count);
        loop {
            match receiver.recv_timeout(watch.until_next().min(supervisor::LOOK_EVERY)) {
                Ok(outcome) => outcomes.push(outcome),
                Err(RecvTimeoutError::Timeout) => {
                    supervisor::look(&self.controller, recovery);
                    watch.tick(count - outcomes.len());
                }
                Err(RecvTimeoutError::Disconnected) => return outcomes,
            }
        }
    }
}

fn merged(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let whole = outcomes.into_iter().reduce(|mut whole, outcome| {
        whole.merge(&outcome);
        whole
    });
    whole.into_iter().collect()
}
