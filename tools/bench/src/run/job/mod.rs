//! One job's thread: a queue for each of its files, `iodepth` I/Os in flight.
//!
//! | file | part |
//! |---|---|
//! | `mod` | the job, from its first pass to its outcome |
//! | `setting`, `work` | what a job is made from, and one of its I/Os |
//! | `submit` | which I/O is posted next, and when |
//! | `reap`, `counted` | completions and their counts |
//! | `plain` | both in the shortest way, for jobs whose options ask nothing of single I/Os |
//! | `replay` | the I/Os of a log, in place of a workload's |
//! | `read_back` | verification of written data |
//! | `trouble` | failures, and controllers that may recover |
//! | `pool`, `overlap` | buffers, and the ranges in flight |
//!
//! The loop posts I/Os that are due, rings once per batch, polls until an I/O finishes, and counts it; its histograms and
//! counters follow once the next batch is on its way, so that the device does not wait for them. It reads
//! the clock once per batch rung and once per batch finished, and once more if data was stamped or checked in
//! between. It does not allocate, lock or make system calls, except those of the I/O path itself and the logs
//! of single I/Os.
//!
//! A pass that wrote with `verify` is followed by a phase that reads the data back and checks it. The first
//! failure that is not tolerated ends the job: it waits for the I/Os in flight and reports the counts so far.

mod counted;
mod overlap;
mod plain;
mod pool;
mod read_back;
mod reap;
mod replay;
mod setting;
mod submit;
mod trouble;
mod work;

use std::time::Duration;

use adit_driver::paths::CommandQueue;
use adit_driver::{Buffer, CommandError, Time};

use super::again::Again;
use super::clock::{Clock, unix_ms};
use super::cpu::Cpu;
use super::flow::Share;
use super::latency_target::DepthSearch;
use super::pace::Pace;
use crate::errors::EIO;
use crate::measure::percent;
use crate::options::{Disabled, JobOptions};
use crate::outcome::JobOutcome;
use crate::way::{PerWay, Way};
use counted::{AlikeIos, Cycle};
use overlap::Overlaps;
use pool::Pool;
use read_back::Checks;
use replay::Replay;
use work::{Flight, Work};

pub(crate) use setting::{JobFile, Setting};
pub(super) use submit::RANGE_BYTES;
pub(crate) use work::Owned;

/// Interval between checks of slow changes: the ramp, the watcher's requests, minimum rates.
const TICK: Duration = Duration::from_millis(1);

/// The I/Os in flight and those that wait to be.
struct InFlight {
    /// By slot.
    flights: Vec<Flight>,
    /// Slots posted since the last ring.
    fresh: Vec<u32>,
    done: Vec<(Owned, Result<u32, CommandError>)>,
    /// Slots of a plain job whose I/Os have finished and are not counted yet.
    ended: Vec<u32>,
    /// Chosen work that could not be posted yet.
    held: Option<Work>,
    /// Failed I/Os that wait for their retry.
    again: Again<Work>,
    /// The I/Os in flight, if others must not overlap them.
    overlaps: Option<Overlaps>,
}

impl InFlight {
    fn new(slots: usize, depth: usize, overlaps: Option<Overlaps>) -> InFlight {
        InFlight {
            flights: vec![Flight::NONE; slots],
            fresh: Vec::with_capacity(depth),
            done: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
            held: None,
            again: Again::new(depth),
            overlaps,
        }
    }
}

/// Writes since the last Flush.
#[derive(Default)]
struct Flushes {
    writes_issued: u64,
    /// `writes_issued` at the last Flush.
    flushed_at: u64,
    /// By file: whether there were writes since.
    is_dirty: Box<[bool]>,
    /// Files to flush next.
    to_flush: Vec<u32>,
}

/// The times a job acts by.
#[derive(Default)]
struct Times {
    /// When the last I/O finished on a path that is lost for good; measurement ends there.
    lost_at: Option<Time>,
    now: Time,
    start: Time,
    /// When the current pass or its verification began, and the counts at that time.
    phase_start: Time,
    phase_before: PerWay<u64>,
    /// When counting started.
    counts_from: Time,
    is_ramping: bool,
    end: Option<Time>,
    next_tick: Time,
    cycle: Cycle,
}

/// What was posted so far.
struct Issued {
    bytes: u64,
    ios: u64,
    /// I/Os after which the job ends.
    ios_max: Option<u64>,
}

/// What options and paths ask of each I/O.
struct Asked {
    /// Whether the path executes I/O during submission: as in fio, all of its time is completion latency.
    blocks: bool,
    /// Disabled measurements; a blocking path has no submission latency either.
    disabled: Disabled,
    /// Whether rates choose between reads and writes.
    is_mixed_by_rates: bool,
    /// Whether a log, a limit or pauses need single I/Os.
    is_watched: bool,
    /// Whether the options ask nothing of single I/Os; see `plain`.
    is_plain: bool,
}

impl Issued {
    /// Returns the counts before the first I/O of a job.
    fn of(options: &JobOptions) -> Issued {
        // As in fio, time_based jobs end by time only.
        let ios_max = options.amount.number_ios.filter(|_| !options.time.time_based);
        let passes = u64::from(options.amount.loops.max(1)) * options.rw.ios_per_block();
        Issued { bytes: 0, ios: 0, ios_max: ios_max.map(|ios| ios.saturating_mul(passes)) }
    }
}

impl Asked {
    /// Returns what a job asks on a path that blocks, or does not.
    fn of(set: &Setting<'_>, blocks: bool) -> Asked {
        let job = &set.section.job;
        let (rates, thinktime, disabled) = (&job.rates, &job.time.thinktime, job.reports.disable);
        let has_rate = |way: Way| rates.rate[way].is_some() || rates.rate_iops[way].is_some();
        let is_mixed = job.rw.reads && job.rw.writes && job.verify.is_none();
        Asked {
            blocks,
            disabled: Disabled { slat: disabled.slat || blocks, ..disabled },
            is_mixed_by_rates: is_mixed && (has_rate(Way::Read) || has_rate(Way::Write)),
            is_watched: set.logs.is_some()
                || (!thinktime.counts_issues && !thinktime.time.is_zero())
                || job.time.latency_target.is_some()
                || job.time.max_latency.is_some(),
            is_plain: false,
        }
    }
}

/// How busy the thread is.
#[derive(Default)]
struct Load {
    idle_polls: u32,
    last_finish: Time,
    cpu_before: Cpu,
    batches: u64,
    waited: u64,
}

/// A job that is ready to run.
pub(crate) struct Job<'a, Q> {
    set: Setting<'a>,
    options: &'a JobOptions,
    queue: Q,
    clock: Clock,
    pool: Pool,
    /// log2 of the LBA size, by file.
    lba_shifts: Box<[u32]>,
    inflight: InFlight,
    /// Whether data was generated for an I/O not yet sent; that time must not count as its latency.
    is_stamped: bool,
    pace: Pace,
    /// Its part of a group's I/Os, once it runs.
    share: Option<Share>,
    /// Whether it waits for others of its group.
    is_ahead: bool,
    /// A log whose I/Os are the job's.
    replay: Option<Replay>,
    search: Option<DepthSearch>,
    checks: Checks,
    issued: Issued,
    flushes: Flushes,
    /// No new work: the device is full, or only the last flush is left.
    is_full: bool,
    /// Whether the queue was full and drains to `iodepth_low`.
    is_draining: bool,
    asked: Asked,
    is_down: bool,
    times: Times,
    load: Load,
    /// Equal I/Os that finished and are not in the outcome yet.
    alike: AlikeIos,
    outcome: JobOutcome,
}

impl<'a, Q: CommandQueue<Owned>> Job<'a, Q> {
    /// Creates a job over a queue, with buffers by domain, each as long as the longest I/O.
    pub(crate) fn new(set: Setting<'a>, queue: Q, buffers: Vec<Vec<Buffer>>) -> Job<'a, Q> {
        let pool = Pool::new(buffers);
        let (depth, slots, files) = (pool.depth(), pool.slots(), set.files.len());
        let options = &set.section.job;
        let infos = || set.files.iter().map(|file| file.device.info());
        let blocks = infos().any(|info| info.is_synchronous);
        let lba_shifts = infos().map(|info| info.lba_bytes.trailing_zeros()).collect();
        let backlog = options.verify.as_ref().and_then(|verify| verify.backlog);
        let backlog_max = backlog.unwrap_or(0) as usize;
        let log = options.replay.of_thread(set.number);
        let overlaps = Overlaps::of(options, set.steps.may_overlap(), depth);
        let mut job = Job {
            options,
            clock: Clock::of(set.files[0].device),
            outcome: empty_outcome(&set),
            queue,
            pool,
            lba_shifts,
            inflight: InFlight::new(slots, depth, overlaps),
            is_stamped: false,
            pace: Pace::new(options, set.seed, Time::ZERO),
            share: None,
            is_ahead: false,
            replay: log.map(|log| Replay::new(log.clone(), files)),
            search: None,
            checks: Checks {
                knows_writer: true,
                // Includes I/Os chosen before the backlog was full.
                backlog: Vec::with_capacity(backlog_max + depth),
                backlog_max,
                ..Checks::default()
            },
            issued: Issued::of(options),
            flushes: Flushes {
                is_dirty: vec![false; files].into(),
                to_flush: Vec::with_capacity(files),
                ..Flushes::default()
            },
            is_full: false,
            is_draining: false,
            asked: Asked::of(&set, blocks),
            is_down: false,
            times: Times { is_ramping: !options.time.ramp_time.is_zero(), ..Times::default() },
            load: Load::default(),
            alike: AlikeIos::default(),
            set,
        };
        job.asked.is_plain = job.has_plain_options();
        job
    }

    /// Runs the job to its end.
    pub(crate) fn run(mut self) -> JobOutcome {
        self.begin();
        if !self.options.files.create_only {
            self.work();
        }
        if self.outcome.failure.is_none() {
            self.outcome.failure = self.checks.mismatches.take();
        }
        self.finish_logs();
        self.set.progress.set_running(false);
        self.snapshot()
    }

    fn work(&mut self) {
        if self.reads_back_earlier() {
            self.read_back_earlier();
        } else {
            self.passes();
        }
        if self.options.flushes.end_fsync && self.options.rw.writes && !self.is_stopped() {
            self.flushes.to_flush.extend(0..self.set.files.len() as u32);
            self.is_full = true;
            self.phase();
        }
        self.save_state();
    }

    fn begin(&mut self) {
        self.set.progress.set_running(true);
        self.load.cpu_before = Cpu::of_this_thread();
        self.outcome.start_unix_ms = unix_ms();
        self.times.start = self.clock.now();
        (self.times.now, self.load.last_finish, self.times.counts_from) =
            (self.times.start, self.times.start, self.times.start);
        self.pace = Pace::new(self.options, self.set.seed, self.times.start);
        let weight = self.options.time.flow.weight;
        self.share = self.set.flow.clone().map(|group| Share::join(group, weight));
        let (time, start) = (&self.options.time, self.times.start);
        let depth_max = self.pool.depth() as u32;
        self.search = time.latency_target.map(|target| DepthSearch::new(target, depth_max, start));
        self.times.end = time.runtime.map(|runtime| start + time.ramp_time + runtime);
    }

    fn passes(&mut self) {
        loop {
            self.phase();
            let is_amid = self.checks_backlog();
            if self.reads_back() && !self.is_stopped() {
                self.read_back_pass();
            }
            if is_amid && !self.is_stopped() {
                continue;
            }
            if self.checks.mismatches.is_some()
                || self.is_over()
                || self.replay.is_some()
                || self.set.bytes_max.is_some_and(|most| self.issued.bytes >= most)
            {
                return;
            }
            self.next_pass();
        }
    }

    fn next_pass(&mut self) {
        self.set.steps.next_pass();
        self.checks.unwritten.clear();
    }

    /// Runs a pass or its verification to the end.
    fn phase(&mut self) {
        self.times.now = self.clock.now();
        (self.times.phase_start, self.times.phase_before) = (self.times.now, self.ios());
        self.load.last_finish = self.times.now;
        loop {
            self.submit();
            self.settle();
            if (self.pool.in_flight() == 0 && !self.goes_on()) || !self.reap() {
                break;
            }
        }
        self.settle();
        self.drop_held();
        self.set_runtimes();
        (self.times.phase_start, self.times.phase_before) = (self.times.now, self.ios());
    }

    /// Adds the time of the current phase to each active way.
    fn set_runtimes(&mut self) {
        for (way, took) in Way::ALL.into_iter().zip(self.phase_runtimes().0) {
            self.outcome.ways[way].runtime += took;
        }
    }

    /// Returns how long each way has been active in the current phase.
    fn phase_runtimes(&self) -> PerWay<Duration> {
        let end = self.times.lost_at.unwrap_or(self.times.now);
        let took = end.since(self.times.phase_start.max(self.times.counts_from));
        let is_fresh = self.times.counts_from > self.times.phase_start;
        PerWay(Way::ALL.map(|way| {
            // Counts restart after a ramp.
            let before = if is_fresh { 0 } else { self.times.phase_before[way] };
            if self.outcome.ways[way].ios > before { took } else { Duration::ZERO }
        }))
    }

    fn ios(&self) -> PerWay<u64> {
        PerWay(Way::ALL.map(|way| self.outcome.ways[way].ios))
    }

    /// Returns whether to keep waiting although nothing is in flight.
    fn goes_on(&self) -> bool {
        // Work that was begun is finished even if no more may begin.
        let must_end_well = self.is_down || !self.inflight.again.is_empty();
        let ends =
            if self.checks.to_verify.is_some() { self.is_stopped() } else { self.is_ended() };
        let thinks = self.checks.to_verify.is_none()
            && !self.is_over()
            && (self.is_ahead
                || self.pace.wants_pause()
                || self.times.now < self.pace.paused_until());
        (must_end_well && !self.is_stopped()) || ((self.inflight.held.is_some() || thinks) && !ends)
    }

    /// Returns whether to submit nothing more, not even verification.
    fn is_stopped(&self) -> bool {
        self.outcome.failure.is_some() || self.set.interrupt.requested()
    }

    /// Returns whether to begin no new work.
    #[inline]
    fn is_over(&self) -> bool {
        self.is_ended() || self.issued.ios_max.is_some_and(|most| self.issued.ios >= most)
    }

    /// Returns whether to begin nothing, not even what waits for its time and is counted already.
    #[inline]
    fn is_ended(&self) -> bool {
        self.is_full
            || self.times.end.is_some_and(|end| self.times.now >= end)
            || self.set.progress.is_stopped()
            || self.is_stopped()
    }

    /// Returns the counts so far.
    fn snapshot(&self) -> JobOutcome {
        let mut outcome = self.outcome.clone();
        for (way, took) in Way::ALL.into_iter().zip(self.phase_runtimes().0) {
            outcome.ways[way].runtime += took;
        }
        let end = self.times.lost_at.unwrap_or_else(|| self.clock.now());
        outcome.elapsed = end.since(self.times.counts_from);
        outcome.cpu = Cpu::of_this_thread().since(&self.load.cpu_before);
        outcome.stats = self.queue.stats();
        outcome.recoveries = self.set.recovery.count();
        outcome.latency_depth = self.search.as_ref().and_then(DepthSearch::found);
        let busy = self.load.batches - self.load.waited;
        outcome.busy_percent = percent(busy, self.load.batches);
        outcome
    }

    fn finish_logs(&mut self) {
        let at = self.clock.now().since(self.times.start);
        let logs = self.set.logs.take().map(|logs| logs.finish(at));
        let iolog = self.set.iolog.take().map(|log| log.finish(at));
        if let Some(failure) = [logs, iolog].into_iter().flatten().find_map(Result::err) {
            self.fail(EIO, failure.to_string());
        }
    }
}

fn empty_outcome(set: &Setting<'_>) -> JobOutcome {
    let infos = || set.files.iter().map(|file| file.device.info());
    JobOutcome {
        section: set.section.clone(),
        target: set.target.clone(),
        lba_bytes: infos().map(|info| info.lba_bytes).max().unwrap_or(0),
        group: set.group,
        threads: 1,
        is_cached: infos().any(|info| info.is_cached),
        ..JobOutcome::default()
    }
}
