//! From a plan to jobs that are ready: devices opened and checked, queues and buffers made.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_driver::device::{CommandQueue, Device, DeviceOptions, DeviceQueue, QueueOptions};
use adit_driver::target::{KernelPath, KernelTarget};
use adit_driver::{Buffer, Controller, Target};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::job::{Job, Owned, Setting};
use super::plan::{self, Thread};
use super::progress::Progress;
use super::supervisor::Recovery;
use super::{affinity, layout};
use crate::bench::data::Data;
use crate::bench::data::state::VerifyState;
use crate::bench::guard;
use crate::bench::logs::JobLogs;
use crate::bench::options::targets::{has_own_files, targets};
use crate::bench::options::{JobOptions, Request};
use crate::bench::outcome::{JobOutcome, Warning};
use crate::bench::workload::random::mix;
use crate::bench::workload::{Generator, Region};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

/// How long a job spins before it lets others have its core: longer than a busy SSD takes.
const YIELD_AFTER: Duration = Duration::from_millis(1);
/// The same where the controller is a thread of ours, which may be waiting for that very core.
const YIELD_AFTER_SOFT: Duration = Duration::from_micros(10);
/// Where buffers start: what PRPs and direct I/O like best.
const BUFFER_ALIGN: u64 = 4096;
/// Retries of an I/O that was caught in a reset; one that is caught more often is its cause.
const RECOVERY_RETRIES: u8 = 5;
/// Until an I/O is aborted, and until its queue is created anew, where the job does not say.
const TIMEOUTS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(2));

/// All devices of a run, and what each thread does on its own.
pub(crate) struct Fleet {
    devices: BTreeMap<String, (Target, Device)>,
    /// For each thread in order.
    pub(crate) planned: Vec<Planned>,
    /// What was there and is overwritten, as the user allowed.
    pub(crate) warnings: Vec<Warning>,
    started_unix_ms: u64,
    retries: u8,
}

/// Where a thread stands among the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Among all of the run.
    pub(crate) index: usize,
    /// Among those that run at the same time: the core it has, where there are enough.
    pub(crate) core: usize,
    /// How many run at the same time.
    pub(crate) core_count: usize,
}

/// What a thread does on its device.
pub(crate) struct Planned {
    target: Target,
    region: Region,
    queue_depth: u32,
    iodepth: u32,
    /// Bytes after which it ends; none where only time, or a full device, does.
    pub(crate) bytes_max: Option<u64>,
}

impl Fleet {
    /// Opens every device once, checks each thread against its own, and makes files what the jobs expect.
    ///
    /// # Errors
    /// As [`Device::open`]; a usage error for what a device does not have or must not lose.
    pub(crate) fn open(
        request: &Request,
        threads: &[Thread<'_>],
        interrupt: &Interrupt,
    ) -> Result<Fleet> {
        guard::refuse_writes(request)?;
        let of_threads = threads.iter().map(target_of).collect::<Result<Vec<Target>>>()?;
        let mut devices = BTreeMap::new();
        for target in &of_threads {
            let users: Vec<&Thread<'_>> = threads
                .iter()
                .zip(&of_threads)
                .filter(|(_, its)| *its == target)
                .map(|(thread, _)| thread)
                .collect();
            if let Entry::Vacant(place) = devices.entry(target.to_string()) {
                place.insert((
                    target.clone(),
                    open_device(target, &users, request.run.readonly, interrupt)?,
                ));
            }
        }
        Fleet::of(request, threads, of_threads, devices)
    }

    /// The same with a device that is open instead of those that are named.
    pub(crate) fn over(
        request: &Request,
        threads: &[Thread<'_>],
        target: Target,
        device: Device,
    ) -> Result<Fleet> {
        let devices = BTreeMap::from([(target.to_string(), (target.clone(), device))]);
        Fleet::of(request, threads, vec![target; threads.len()], devices)
    }

    /// Checks each thread against its device.
    fn of(
        request: &Request,
        threads: &[Thread<'_>],
        of_threads: Vec<Target>,
        devices: BTreeMap<String, (Target, Device)>,
    ) -> Result<Fleet> {
        let written: Vec<guard::Written<'_>> = threads
            .iter()
            .zip(&of_threads)
            .filter(|(thread, _)| thread.destroys())
            .map(|(_, target)| guard::Written { target, device: &devices[&target.to_string()].1 })
            .collect();
        let is_given = request.run.allow_destroy;
        let permission = guard::Permission { is_given, ..guard::ALLOW_DESTROY };
        let warnings = guard::check(&written, permission)?;
        let device = |target: &Target| &devices[&target.to_string()].1;
        let planned = threads
            .iter()
            .zip(of_threads)
            .map(|(thread, target)| planned(thread, device(&target), target))
            .collect::<Result<Vec<Planned>>>()?;
        let apart: Vec<_> = threads
            .iter()
            .zip(&planned)
            .map(|(thread, planned)| (thread, &planned.target, planned.region))
            .collect();
        plan::check_apart(&apart)?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let retries = if request.run.recover { RECOVERY_RETRIES } else { 0 };
        Ok(Fleet {
            devices,
            planned,
            warnings,
            started_unix_ms: started.as_millis() as u64,
            retries,
        })
    }

    /// The controllers that are the driver's own.
    pub(crate) fn controllers(&self) -> impl Iterator<Item = &Controller> {
        self.devices.values().filter_map(|(_, device)| device.controller())
    }

    /// Threads of this process that are controllers.
    pub(crate) fn software_controllers(&self) -> usize {
        self.devices.values().filter(|(target, _)| matches!(target, Target::Soft { .. })).count()
    }

    /// Removes the files that jobs made for themselves, where they ask for it.
    pub(crate) fn unlink(&self, threads: &[Thread<'_>]) {
        for (thread, planned) in threads.iter().zip(&self.planned) {
            let Target::Kernel(kernel) = &planned.target else { continue };
            // Threads of one job may share a file, which is gone then.
            let is_ours = thread.job().unlink && has_own_files(thread.job());
            if is_ours
                && kernel.file.exists()
                && let Err(error) = std::fs::remove_file(&kernel.file)
            {
                tracing::warn!("{}: it stays: {error}", kernel.file.display());
            }
        }
    }

    /// A thread's job with its queue and buffers.
    ///
    /// # Errors
    /// When one of them cannot be had, or the job contradicts its region.
    pub(crate) fn ready<'a>(
        &'a self,
        place: Place,
        thread: &'a Thread<'a>,
        progress: &'a Progress,
        recovery: &'a Recovery,
        interrupt: &'a Interrupt,
    ) -> Result<Ready<'a>> {
        let index = place.index;
        let planned = &self.planned[index];
        let (target, device) = &self.devices[&planned.target.to_string()];
        let job = thread.job();
        let earlier = earlier(thread, index as u32, planned.region)?;
        let seed = earlier.as_ref().map_or_else(|| seed_of(job, index as u64), |state| state.seed);
        let stamp =
            earlier.as_ref().map_or_else(|| mix(seed ^ self.started_unix_ms), |state| state.stamp);
        let generator = Generator::new(job, planned.region, device.info().lba_bytes, seed)
            .map_err(|why| thread.usage(why))?;
        let mut data = Data::new(job, seed).map_err(|why| thread.usage(why))?;
        let buffers = buffers(device, job, planned.iodepth, &mut data)?;
        let queue = device.create_queue(
            &queue_options(job, planned.queue_depth),
            &buffers.iter().collect::<Vec<_>>(),
        )?;
        let set = Setting {
            section: thread.section,
            device,
            target: target.to_string(),
            thread: index as u32,
            group: thread.group,
            seed,
            stamp,
            generator,
            region: planned.region,
            data,
            bytes_max: planned.bytes_max,
            batch_max: batch_max(job, target),
            yield_after: if matches!(target, Target::Soft { .. }) {
                YIELD_AFTER_SOFT
            } else {
                YIELD_AFTER
            },
            recovery,
            interrupt,
            progress,
            logs: JobLogs::open(&job.logs, &job.name, index as u32 + 1, self.started_unix_ms)?,
            earlier,
            samples_zeroes: samples_zeroes(job, target),
            retries: self.retries,
        };
        let cores = affinity::cores(job, thread.number)?.or_else(|| usual_core(target, place));
        Ok(Ready { target, delay: delay(job, seed), cores, set, queue, buffers })
    }
}

/// A job that only has to be started.
pub(crate) struct Ready<'a> {
    target: &'a Target,
    delay: Duration,
    cores: Option<Vec<usize>>,
    set: Setting<'a>,
    queue: DeviceQueue<Owned>,
    buffers: Vec<Buffer>,
}

impl Ready<'_> {
    /// Runs to the end, on the calling thread.
    pub(crate) fn run(self) -> JobOutcome {
        if let Some(Err(failure)) = self.cores.as_deref().map(affinity::pin) {
            tracing::warn!("{failure}");
        }
        sleep(self.delay, || self.set.interrupt.requested() || self.set.progress.is_stopped());
        if self.set.section.job.invalidate && self.set.device.info().is_cached {
            drop_cached(self.target);
        }
        match self.queue {
            DeviceQueue::Nvme(queue) => run_on(self.set, queue, self.buffers),
            DeviceQueue::Null(queue) => run_on(self.set, queue, self.buffers),
            DeviceQueue::Uring(queue) => run_on(self.set, queue, self.buffers),
            DeviceQueue::UringCmd(queue) => run_on(self.set, queue, self.buffers),
            DeviceQueue::Psync(queue) => run_on(self.set, queue, self.buffers),
            DeviceQueue::Mmap(queue) => run_on(self.set, queue, self.buffers),
        }
    }
}

fn run_on<Q: CommandQueue<Owned>>(set: Setting<'_>, queue: Q, buffers: Vec<Buffer>) -> JobOutcome {
    Job::new(set, queue, buffers).run()
}

/// Waits for a job's start, or for its end before.
fn sleep(delay: Duration, is_over: impl Fn() -> bool) {
    let until = std::time::Instant::now() + delay;
    while let Some(left) =
        until.checked_duration_since(std::time::Instant::now()).filter(|left| !left.is_zero())
    {
        if is_over() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// The one target of a thread.
fn target_of(thread: &Thread<'_>) -> Result<Target> {
    let mut of_job = targets(thread.job(), thread.number)?;
    match of_job.len() {
        1 => Ok(of_job.remove(0)),
        count => Err(thread.usage(format!(
            "it names {count} files; each job works on one: write a section for each"
        ))),
    }
}

/// Opens a device for all threads that use it.
fn open_device(
    target: &Target,
    users: &[&Thread<'_>],
    readonly: bool,
    interrupt: &Interrupt,
) -> Result<Device> {
    let writes = users.iter().any(|thread| thread.destroys());
    let file_bytes = users.iter().filter_map(|thread| thread.file_bytes()).max();
    let before = layout::length(target);
    let made = layout::makes(target, before, file_bytes, users);
    if made.is_some() && readonly {
        return Err(users[0].usage(format!(
            "{} is shorter than what is to be read, and --readonly forbids to lay it out; write it first",
            target.device()
        )));
    }
    let queue_count = users.len().min(usize::from(u16::MAX)) as u16;
    // A file that is to be made is written, also for readers.
    let options = DeviceOptions {
        queue_count,
        writes: writes || made.is_some(),
        file_bytes,
        ..DeviceOptions::default()
    };
    let device = Device::open(target, &options)?;
    let most = device.info().queue_count_max;
    if queue_count > most {
        let names = format!(
            "{queue_count} jobs use {}, which grants {most} I/O queue(s)",
            device.info().device
        );
        return Err(Failure::failed(format!(
            "{names}, and each job needs one; use numjobs={most}"
        )));
    }
    if let Some(range) = made.filter(|_| users.iter().any(|thread| thread.job().rw.reads)) {
        let length = range.start;
        layout::fill(&device, users[0].job(), range, interrupt).inspect_err(|_| {
            // What is laid out by half would be taken for whole by the next run.
            layout::shorten(target, length);
        })?;
    }
    Ok(device)
}

fn planned(thread: &Thread<'_>, device: &Device, target: Target) -> Result<Planned> {
    let info = device.info();
    let region = thread.region(info)?;
    let queue_depth = thread.queue_depth(info, region)?;
    let bytes_max = thread.bytes_max(info, region);
    Ok(Planned { target, region, queue_depth, iodepth: thread.iodepth(info), bytes_max })
}

/// A thread's seed: the same in each run, unless it is to be another.
fn seed_of(job: &JobOptions, thread: u64) -> u64 {
    let base = if job.randrepeat {
        job.randseed
    } else {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
    };
    mix(base.wrapping_add(thread))
}

/// A buffer of the longest block for each I/O in flight, filled where it will be written.
fn buffers(
    device: &Device,
    job: &JobOptions,
    iodepth: u32,
    data: &mut Data,
) -> Result<Vec<Buffer>> {
    let block = job.bs.iter().map(|(_, sizes)| sizes.max()).max().unwrap_or(0);
    let stride = block.next_multiple_of(BUFFER_ALIGN) as usize;
    let mut rest = device.allocate(stride * iodepth as usize)?;
    let mut buffers = Vec::with_capacity(iodepth as usize);
    while !rest.is_empty() {
        let tail = rest.split_off(stride);
        // What lies between a block's end and the next page is nobody's.
        drop(rest.split_off(block as usize));
        if job.rw.writes {
            data.initial(&mut rest);
        }
        buffers.push(std::mem::replace(&mut rest, tail));
    }
    Ok(buffers)
}

fn queue_options(job: &JobOptions, depth: u32) -> QueueOptions {
    let (timeout, abort_timeout) = job.io_timeout.map_or(TIMEOUTS, |timeout| (timeout, timeout));
    QueueOptions { depth, timeout, abort_timeout }
}

/// fio submits one at a time unless it is told otherwise, and so do we where each submission is a system call that is
/// compared with fio's. The driver's own queues take whatever is idle at once: that costs one doorbell.
fn batch_max(job: &JobOptions, target: &Target) -> usize {
    let usual = match target {
        Target::Kernel(KernelTarget { path: KernelPath::Null, .. }) => usize::MAX,
        Target::Kernel(_) => 1,
        _ => usize::MAX,
    };
    job.iodepth_batch.map_or(usual, |batch| batch.max(1) as usize)
}

/// Whether blocks of zeroes mean that nobody ever wrote them: where something holds data, and this job does not write it.
fn samples_zeroes(job: &JobOptions, target: &Target) -> bool {
    let holds_data = match target {
        Target::Kernel(kernel) => kernel.path != KernelPath::Null,
        Target::Soft { options, .. } => !options.contains("null"),
        _ => true,
    };
    holds_data && !job.rw.writes && job.verify.is_none()
}

/// What an interrupted run left, where it is asked for.
fn earlier(thread: &Thread<'_>, index: u32, region: Region) -> Result<Option<VerifyState>> {
    let wanted = thread.job().verify.as_ref().is_some_and(|verify| verify.state_load);
    let load = || VerifyState::load(Path::new("."), thread.job(), index, region);
    wanted.then(load).transpose().map_err(|why| thread.usage(why))
}

/// Drops what the page cache holds of a file, so that it is read from the device.
fn drop_cached(target: &Target) {
    let Target::Kernel(kernel) = target else { return };
    let dropped = File::open(&kernel.file)
        .map(|file| posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED));
    if !matches!(dropped, Ok(Ok(()))) {
        tracing::warn!(
            "{}: the page cache could not be dropped; its figures may be those of memory",
            target.device()
        );
    }
}

fn delay(job: &JobOptions, seed: u64) -> Duration {
    let (from, to) = job.startdelay;
    let range_ns = to.saturating_sub(from).as_nanos() as u64;
    from + Duration::from_nanos(if range_ns == 0 { 0 } else { mix(seed ^ 1) % range_ns })
}

/// Queues that are polled have a core each where there are enough; a software controller's thread needs one as well.
fn usual_core(target: &Target, place: Place) -> Option<Vec<usize>> {
    let is_polled = matches!(target, Target::Vfio { .. } | Target::VfioUser { .. });
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let core = cores.get(place.core).filter(|_| is_polled && place.core_count <= cores.len())?;
    Some(vec![core.id])
}
