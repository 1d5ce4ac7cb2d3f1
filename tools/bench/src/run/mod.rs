//! Runs jobs.
//!
//! | file | noun |
//! |---|---|
//! | `plan` | threads, their regions and queues |
//! | `start` | opened devices, queues and buffers |
//! | `job/` | one thread: the measured loop |
//! | `file_queues` | the queues of a job on several files, as one |
//! | `pace`, `flow`, `latency_target`, `again` | when the next I/O is due, how many are in flight, retries |
//! | `clock`, `cpu`, `disks`, `affinity` | time, the system's counts, and cores |
//! | `progress`, `watch`, `steady` | observation of running jobs |
//! | `supervisor` | events outside the queues; recovery of a controller |
//! | `layout` | creation of files that jobs read |
//! | `doubts` | warnings about the figures |

mod affinity;
mod again;
mod clock;
pub(crate) mod cpu;
mod disks;
mod doubts;
mod file_queues;
mod flow;
mod job;
mod latency_target;
mod layout;
mod pace;
mod plan;
mod progress;
mod start;
mod steady;
mod supervisor;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use adit_driver::runtime::caught;

use super::measure::per_second;
use super::options::{ExitWhat, Request};
use super::outcome::{ClockOutcome, GroupOutcome, GroupWay, JobOutcome, RunOutcome};
use super::way::Way;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::Warning;
use disks::Disks;
use doubts::{Machine, Speed};
use plan::Thread;
use progress::Progress;
use start::{Fleet, ThreadPlace};
use supervisor::Recovery;
use watch::Watch;

/// Receives intermediate outcomes, with `status_interval` and at SIGUSR1.
pub(crate) type OnStatus<'a> = &'a mut dyn FnMut(&RunOutcome) -> Result<()>;

/// How long a job may take to deliver its counts.
const SNAPSHOT_PATIENCE: Duration = Duration::from_millis(200);

/// Runs all jobs to their end.
///
/// # Errors
/// When a device, a queue or memory is not available, or an option contradicts the device; later failures are
/// in the outcome.
pub(crate) fn run(
    request: &Request,
    interrupt: &Interrupt,
    on_status: OnStatus<'_>,
) -> Result<RunOutcome> {
    let threads = plan::threads(&request.sections);
    let fleet = Fleet::open(request, &threads, interrupt)?;
    run_fleet(request, &threads, &fleet, interrupt, on_status)
}

fn run_fleet(
    request: &Request,
    threads: &[Thread<'_>],
    fleet: &Fleet,
    interrupt: &Interrupt,
    on_status: OnStatus<'_>,
) -> Result<RunOutcome> {
    let progress: Vec<Progress> = threads.iter().map(|_| Progress::default()).collect();
    let recovery = Recovery::new(request.run.recover);
    let disks = Disks::of(fleet.on_disks(threads));
    let (progress, recovery) = (&progress, &recovery);
    let run = OpenRun { request, threads, fleet, progress, recovery, interrupt, disks };
    run.run(on_status)
}

/// A run with all devices open.
struct OpenRun<'a> {
    request: &'a Request,
    threads: &'a [Thread<'a>],
    fleet: &'a Fleet,
    progress: &'a [Progress],
    recovery: &'a Recovery,
    interrupt: &'a Interrupt,
    disks: Disks,
}

impl OpenRun<'_> {
    fn run(&self, on_status: OnStatus<'_>) -> Result<RunOutcome> {
        let (clock, speed) = (clock::Check::start(), Speed::measure());
        let ends = self.threads.iter().zip(self.progress).zip(&self.fleet.planned);
        let watched = ends
            .map(|((thread, progress), planned)| (thread, progress, planned.bytes_max))
            .collect();
        let mut course = Course {
            watch: Watch::new(&self.request.run, watched),
            outcomes: self.threads.iter().map(|_| None).collect(),
            status_interval: self.request.run.status_interval,
            last_status: Instant::now(),
            on_status,
        };
        let waves = self.threads.last().map_or(0, |thread| thread.wave + 1);
        for wave in 0..waves {
            if self.interrupt.requested() {
                break;
            }
            self.run_wave(wave, &mut course)?;
        }
        let Course { watch, mut outcomes, .. } = course;
        for ((samples, steady), outcome) in watch.finish().into_iter().zip(&mut outcomes) {
            let Some(outcome) = outcome else { continue };
            outcome.steady = steady;
            for (way, samples) in Way::ALL.into_iter().zip(samples.0) {
                outcome.ways[way].samples = samples;
            }
        }
        self.fleet.unlink(self.threads);
        let machine = self.machine((speed, Speed::measure()));
        let clock = clock.finish();
        let mut outcome = self.outcome(outcomes.into_iter().flatten().collect(), clock);
        outcome.warnings = self.fleet.warnings.clone();
        outcome.warnings.extend(unheeded(self.request));
        outcome.warnings.extend(doubts::doubts(&outcome.jobs, &machine, &clock));
        Ok(outcome)
    }

    /// Runs the threads of a wave concurrently.
    fn run_wave(&self, wave: u32, course: &mut Course<'_>) -> Result<()> {
        let of_wave: Vec<usize> =
            (0..self.threads.len()).filter(|index| self.threads[*index].wave == wave).collect();
        let mut ready = Vec::new();
        for (place, index) in of_wave.iter().enumerate() {
            let place = ThreadPlace { index: *index, core: place, core_count: of_wave.len() };
            let thread = &self.threads[*index];
            let made = self.fleet.ready(
                place,
                thread,
                &self.progress[*index],
                self.awaited(thread),
                self.recovery,
                self.interrupt,
            );
            ready.push((*index, made?));
        }
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            for (index, ready) in ready {
                let (sender, progress) = (sender.clone(), &self.progress[index]);
                scope.spawn(move || {
                    let ended = ended(progress, || ready.run());
                    // Sending fails only if the watcher panicked.
                    let _ = sender.send((index, ended));
                });
            }
            drop(sender);
            self.collect(&receiver, course)
        })
    }

    /// Waits for the wave while watching jobs and controllers.
    fn collect(
        &self,
        receiver: &Receiver<(usize, Ended<JobOutcome>)>,
        course: &mut Course<'_>,
    ) -> Result<()> {
        let mut told = Ok(());
        loop {
            match receiver.recv_timeout(course.watch.until_next().min(supervisor::LOOK_EVERY)) {
                Ok((index, Err(why))) => {
                    self.progress.iter().for_each(Progress::stop);
                    let name = &self.threads[index].job().name;
                    let died = format!(
                        "a thread of job '{name}' died ({why}): this is a bug of Adit's, report it; there are no figures"
                    );
                    told = told.and(Err(Failure::failed(died)));
                }
                Ok((index, Ok(outcome))) => {
                    self.end_others(&self.threads[index], &outcome);
                    course.outcomes[index] = Some(outcome);
                }
                Err(RecvTimeoutError::Timeout) => {
                    for controller in self.fleet.controllers() {
                        supervisor::look(controller, self.recovery);
                    }
                    course.watch.tick();
                    if (self.interrupt.takes_status() || course.is_status_due()) && told.is_ok() {
                        told = (course.on_status)(&self.so_far(&course.outcomes));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return told,
            }
        }
    }

    /// Ends the jobs that must end with this one.
    fn end_others(&self, ended: &Thread<'_>, outcome: &JobOutcome) {
        let job = ended.job();
        if !(job.order.exitall || (job.order.exitall_on_error && outcome.failure.is_some())) {
            return;
        }
        let is_meant = |thread: &Thread<'_>| match job.order.exit_what {
            ExitWhat::Group => thread.group == ended.group,
            ExitWhat::Stonewall => thread.wave == ended.wave,
            ExitWhat::All => true,
        };
        let all = self.threads.iter().zip(self.progress);
        all.filter(|(thread, _)| is_meant(thread)).for_each(|(_, progress)| progress.stop());
    }

    /// Returns the threads of the same wave that a thread waits for.
    fn awaited(&self, thread: &Thread<'_>) -> Vec<&Progress> {
        let Some(name) = &thread.job().order.wait_for else { return Vec::new() };
        let all = self.threads.iter().zip(self.progress);
        all.filter(|(other, _)| other.job().name == *name && other.wave == thread.wave)
            .map(|(_, progress)| progress)
            .collect()
    }

    /// Returns the counts so far.
    fn so_far(&self, outcomes: &[Option<JobOutcome>]) -> RunOutcome {
        let running: Vec<&Progress> =
            self.progress.iter().filter(|progress| progress.is_running()).collect();
        running.iter().for_each(|progress| progress.ask_for_snapshot());
        let asked = Instant::now();
        while running.iter().any(|progress| progress.wants_snapshot() && progress.is_running())
            && asked.elapsed() < SNAPSHOT_PATIENCE
        {
            thread::sleep(Duration::from_millis(1));
        }
        let of = |(outcome, progress): (&Option<JobOutcome>, &Progress)| {
            outcome.clone().or_else(|| progress.take_snapshot().map(|snapshot| *snapshot))
        };
        let jobs = outcomes.iter().zip(self.progress).filter_map(of).collect();
        self.outcome(jobs, ClockOutcome::default())
    }

    fn outcome(&self, jobs: Vec<JobOutcome>, clock: ClockOutcome) -> RunOutcome {
        // As in fio, jobs reported as one count as one in their group.
        let jobs = merged(jobs);
        RunOutcome {
            global: self.request.global.clone(),
            unix_ms: clock::unix_ms(),
            groups: groups(&jobs),
            jobs,
            clock,
            disks: self.disks.outcome(),
            warnings: Vec::new(),
            interrupted: self.interrupt.requested(),
        }
    }

    fn machine(&self, speeds: (Speed, Speed)) -> Machine {
        let mut by_wave: BTreeMap<u32, usize> = BTreeMap::new();
        for thread in self.threads {
            *by_wave.entry(thread.wave).or_default() += 1;
        }
        Machine {
            core_count: thread::available_parallelism().map_or(1, usize::from),
            threads_at_once: by_wave.values().max().unwrap_or(&0)
                + self.fleet.software_controllers(),
            speeds,
        }
    }
}

/// What a job's thread left, or the message of its panic.
type Ended<T> = std::result::Result<T, String>;

/// Runs a job's thread. Jobs that wait for it go on if it panics, too.
///
/// # Errors
/// The panic's message.
fn ended<T>(progress: &Progress, run: impl FnOnce() -> T) -> Ended<T> {
    caught("it ran a job, which is a bug", run).inspect_err(|_| progress.set_running(false))
}

/// Returns each thread's seed in order; all random choices follow from them.
pub(crate) fn seeds(request: &Request) -> Vec<u64> {
    let threads = plan::threads(&request.sections);
    (0..).zip(&threads).map(|(index, thread)| start::seed_of(thread.job(), index)).collect()
}

/// Returns warnings about ignored options.
fn unheeded(request: &Request) -> impl Iterator<Item = Warning> {
    request.unheeded().into_iter().map(|(name, because)| Warning {
        code: "option-unheeded",
        text: format!("{name} is ignored: {because}"),
    })
}

/// A run while it goes on.
struct Course<'a> {
    watch: Watch<'a>,
    /// By thread, once it has ended.
    outcomes: Vec<Option<JobOutcome>>,
    status_interval: Option<Duration>,
    last_status: Instant,
    on_status: OnStatus<'a>,
}

impl Course<'_> {
    fn is_status_due(&mut self) -> bool {
        let is_due = self.status_interval.is_some_and(|every| self.last_status.elapsed() >= every);
        if is_due {
            self.last_status = Instant::now();
        }
        is_due
    }
}

/// Merges the threads of each group with `group_reporting`.
fn merged(jobs: Vec<JobOutcome>) -> Vec<JobOutcome> {
    let mut merged: Vec<JobOutcome> = Vec::new();
    for job in jobs {
        let is_like = |before: &JobOutcome| {
            before.group == job.group && job.section.job.order.group_reporting
        };
        match merged.last_mut().filter(|before| is_like(before)) {
            Some(before) => before.merge(&job),
            None => merged.push(job),
        }
    }
    merged
}

/// Returns the groups of these threads.
fn groups(jobs: &[JobOutcome]) -> Vec<GroupOutcome> {
    let mut groups: BTreeMap<u32, GroupOutcome> = BTreeMap::new();
    for job in jobs {
        let group = groups
            .entry(job.group)
            .or_insert_with(|| GroupOutcome { group: job.group, ways: BTreeMap::new() });
        for (way, counted) in job.ways.iter().filter(|(_, counted)| counted.ios > 0) {
            let rate = counted.bytes_per_second();
            let one = GroupWay {
                bytes: counted.bytes,
                rate,
                rates: (rate, rate),
                runtimes: (counted.runtime, counted.runtime),
            };
            group.ways.entry(way).and_modify(|all| all.add(&one)).or_insert(one);
        }
    }
    groups.into_values().collect()
}

impl GroupWay {
    fn add(&mut self, other: &GroupWay) {
        self.bytes += other.bytes;
        self.rates = (self.rates.0.min(other.rates.0), self.rates.1.max(other.rates.1));
        self.runtimes =
            (self.runtimes.0.min(other.runtimes.0), self.runtimes.1.max(other.runtimes.1));
        self.rate = per_second(self.bytes, self.runtimes.1);
    }
}
