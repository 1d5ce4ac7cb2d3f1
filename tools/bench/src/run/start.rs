//! Prepares planned jobs: opens and checks devices, creates queues and buffers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use adit_driver::paths::{Device, DeviceInfo, DeviceOptions, DeviceQueue, QueueOptions};
use adit_driver::target::{KernelPath, KernelTarget};
use adit_driver::{Buffer, Controller, Target};

use adit_guard as guard;
use adit_load::mix;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::clock::unix_ms;
use super::file_queues::FileQueues;
use super::flow::Group;
use super::job::{Job, JobFile, Owned, RANGE_BYTES, Setting};
use super::plan::{self, Thread};
use super::progress::Progress;
use super::supervisor::Recovery;
use super::{affinity, layout};
use crate::data::Data;
use crate::data::state::VerifyState;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::logs::{IoLog, JobLogs};
use crate::options::targets::{has_own_files, joined, targets};
use crate::options::{JobOptions, RANDSEED, Request, Workload};
use crate::outcome::JobOutcome;
use crate::output::Warning;
use crate::workload::{JobRegion, Steps};

/// How long a job spins before it yields its core: longer than a busy SSD takes.
const YIELD_AFTER: Duration = Duration::from_millis(1);
/// The same for a software controller, whose thread may be waiting for that core.
const YIELD_AFTER_SOFT: Duration = Duration::from_micros(10);
/// Alignment of buffers, suited to PRPs and direct I/O.
const BUFFER_ALIGN: u64 = 4096;
/// Retries of an I/O caught in a reset; an I/O caught more often probably causes it.
const RECOVERY_RETRIES: u8 = 5;
/// Polling interval for a job that is waited for.
const AWAITED_EVERY: Duration = Duration::from_millis(1);
/// Default time until an I/O is aborted, and until its queue is recreated.
const TIMEOUTS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(2));

/// Writes after which a random order of placement identifiers begins again.
const RANDOM_TURNS: u64 = 4096;

/// A server that shares its core may need this long for a reply.
const SERVER_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// All devices of a run, and each thread's own plan.
pub(crate) struct Fleet {
    devices: BTreeMap<String, (Target, Device)>,
    /// By thread, in order.
    pub(crate) planned: Vec<Planned>,
    /// Existing data that is overwritten with the user's permission.
    pub(crate) warnings: Vec<Warning>,
    started_unix_ms: u64,
    retries: u8,
    /// The folder for verify states.
    state_folder: PathBuf,
    /// By `flow_id`.
    flows: BTreeMap<u32, Arc<Group>>,
}

/// A thread's place among the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadPlace {
    pub(crate) index: usize,
    /// Its index in its wave, which is its core if there are enough.
    pub(crate) core: usize,
    /// The number of threads of its wave.
    pub(crate) core_count: usize,
}

/// A thread's plan for its device.
pub(crate) struct Planned {
    /// Its region of each of its files.
    files: Vec<(Target, JobRegion)>,
    queue_depth: u32,
    /// A warning if its I/Os can exceed the queue.
    crowded: Option<Warning>,
    iodepth: u32,
    /// By file: the placement identifiers that its writes go through.
    placements: Vec<Vec<u16>>,
    /// Bytes after which it ends; `None` if only time or a full device ends it.
    pub(crate) bytes_max: Option<u64>,
}

impl Fleet {
    /// Opens every device once, checks each thread against its devices, and prepares the files the jobs expect.
    ///
    /// # Errors
    /// As [`Device::open`]; a usage error if a device does not fit or must not be overwritten.
    pub(crate) fn open(
        request: &Request,
        threads: &[Thread<'_>],
        interrupt: &Interrupt,
    ) -> Result<Fleet> {
        request.refuse_writes()?;
        let mut used: BTreeMap<String, (Target, Vec<User<'_>>)> = BTreeMap::new();
        let mut of_threads = Vec::new();
        for thread in threads {
            let its = targets(thread.job(), thread.number)?;
            for (file, target) in its.iter().enumerate() {
                let fresh = || (target.clone(), Vec::new());
                used.entry(target.to_string()).or_insert_with(fresh).1.push((thread, file));
            }
            of_threads.push(its);
        }
        let open = |(name, (target, users)): (String, (Target, Vec<User<'_>>))| {
            let device = open_device(&target, &users, request, interrupt)?;
            Ok((name, (target, device)))
        };
        let devices = used.into_iter().map(open).collect::<Result<BTreeMap<_, _>>>()?;
        Fleet::of(request, threads, of_threads, devices)
    }

    /// Checks each thread against its open devices.
    pub(super) fn of(
        request: &Request,
        threads: &[Thread<'_>],
        of_threads: Vec<Vec<Target>>,
        devices: BTreeMap<String, (Target, Device)>,
    ) -> Result<Fleet> {
        let device = |target: &Target| &devices[&target.to_string()].1;
        let writers = threads.iter().zip(&of_threads).filter(|(thread, _)| thread.destroys());
        let written = writers.flat_map(|(_, its)| its).map(|target| guard::Written {
            target,
            device: device(target),
            is_ours: false,
        });
        let mut warnings = guard::check(&written.collect::<Vec<_>>(), permission(request))?;
        let planned = threads.iter().zip(of_threads);
        let planned = planned.map(|(thread, its)| plan_thread(thread, its, device));
        let planned = planned.collect::<Result<Vec<Planned>>>()?;
        // Threads of one job cause the same warning.
        for crowded in planned.iter().filter_map(|planned| planned.crowded.as_ref()) {
            if !warnings.contains(crowded) {
                warnings.push(crowded.clone());
            }
        }
        let apart: Vec<_> = threads
            .iter()
            .zip(&planned)
            .flat_map(|(thread, planned)| {
                planned.files.iter().map(move |(target, region)| (thread, target, *region))
            })
            .collect();
        plan::check_apart(&apart)?;
        let retries = if request.run.recover { RECOVERY_RETRIES } else { 0 };
        let flows = threads.iter().map(|thread| (thread.job().time.flow.id, Arc::default()));
        Ok(Fleet {
            devices,
            planned,
            warnings,
            started_unix_ms: unix_ms(),
            retries,
            state_folder: request.run.aux_path.clone(),
            flows: flows.collect(),
        })
    }

    /// Returns the controllers run by the driver.
    pub(crate) fn controllers(&self) -> impl Iterator<Item = &Controller> {
        self.devices.values().filter_map(|(_, device)| device.controller())
    }

    /// Returns the number of software controllers, each a thread of this process.
    pub(crate) fn software_controllers(&self) -> usize {
        self.devices.values().filter(|(target, _)| matches!(target, Target::Soft { .. })).count()
    }

    /// Returns the targets of threads that want disk statistics.
    pub(crate) fn on_disks<'a>(
        &'a self,
        threads: &'a [Thread<'a>],
    ) -> impl Iterator<Item = &'a Target> {
        let all = threads.iter().zip(&self.planned);
        let wanted = all.filter(|(thread, _)| thread.job().reports.disk_util);
        wanted.flat_map(|(_, planned)| planned.files.iter().map(|(target, _)| target))
    }

    /// Removes the jobs' own files if they request it.
    pub(crate) fn unlink(&self, threads: &[Thread<'_>]) {
        let all = threads.iter().zip(&self.planned);
        let ours =
            all.filter(|(thread, _)| thread.job().files.unlink && has_own_files(thread.job()));
        for (target, _) in ours.flat_map(|(_, planned)| &planned.files) {
            let Target::Kernel(kernel) = target else { continue };
            // Threads of one job may share a file that is already removed.
            if kernel.file.exists()
                && let Err(error) = std::fs::remove_file(&kernel.file)
            {
                tracing::warn!("{}: it stays: {error}", kernel.file.display());
            }
        }
    }

    /// Prepares a thread's job with queue and buffers.
    ///
    /// # Errors
    /// When one of them is not available, or the job contradicts its region.
    pub(crate) fn ready<'a>(
        &'a self,
        place: ThreadPlace,
        thread: &'a Thread<'a>,
        progress: &'a Progress,
        awaited: Vec<&'a Progress>,
        recovery: &'a Recovery,
        interrupt: &'a Interrupt,
    ) -> Result<Ready<'a>> {
        let index = place.index;
        let planned = &self.planned[index];
        let job = thread.job();
        let regions: Vec<JobRegion> = planned.files.iter().map(|(_, region)| *region).collect();
        let writer = writer_of(job);
        let earlier = earlier(thread, &writer, &self.state_folder, index as u32, &regions)?;
        let wrote = if earlier.is_some() { &*writer } else { job };
        let seed = earlier.as_ref().map_or_else(|| seed_of(job, index as u64), |state| state.seed);
        let stamp =
            earlier.as_ref().map_or_else(|| mix(seed ^ self.started_unix_ms), |state| state.stamp);
        let devices: Vec<&Device> =
            planned.files.iter().map(|(target, _)| &self.devices[&target.to_string()].1).collect();
        let blocks: Vec<_> = devices.iter().map(|device| device.info().lba_bytes).collect();
        let places: Vec<_> = regions.iter().copied().zip(blocks).collect();
        let steps_of = if job.replay.read.is_some() { &[][..] } else { &places };
        let steps = Steps::new(wrote, steps_of, seed).map_err(|why| thread.usage(why))?;
        let mut data = Data::new(job, seed).map_err(|why| thread.usage(why))?;
        let (buffers, domains) = all_buffers(&devices, job, planned.iodepth, &mut data)?;
        let create = |((device, domain), placement): ((&&'a Device, &usize), &Vec<u16>)| {
            let mut queue = queue(thread, planned, device, &buffers[*domain])?;
            queue.set_placement(&turns(placement, job, seed));
            Ok((*device, queue))
        };
        let files = devices.iter().zip(&domains).zip(&planned.placements);
        let queues = files.map(create).collect::<Result<_>>()?;
        let queues = Queues::of(queues)?;
        let file = |((device, region), domain)| JobFile { device, region, domain };
        let files = devices.into_iter().zip(regions).zip(domains).map(file).collect();
        let targets: Vec<&Target> = planned.files.iter().map(|(target, _)| target).collect();
        let set = Setting {
            section: thread.section,
            files,
            target: joined(&targets),
            thread: index as u32,
            number: thread.number,
            group: thread.group,
            seed,
            stamp,
            steps,
            data,
            bytes_max: planned.bytes_max,
            batch_max: targets.iter().map(|target| batch_max(job, target)).min().unwrap_or(1),
            yield_after: yield_after(&targets),
            recovery,
            interrupt,
            progress,
            logs: JobLogs::open(&job.logs, index as u32 + 1, self.started_unix_ms)?,
            iolog: iolog(job, &targets)?,
            earlier,
            state_folder: &self.state_folder,
            samples_zeroes: targets.iter().all(|target| samples_zeroes(job, target)),
            retries: self.retries,
            flow: self.flows.get(&job.time.flow.id).filter(|_| job.time.flow.weight > 0).cloned(),
        };
        let cores = affinity::cores(job, thread.number)?.or_else(|| usual_core(&targets, place));
        Ok(Ready { targets, awaited, delay: delay(job, seed), cores, set, queues, buffers })
    }
}

/// The queues of a job's files.
enum Queues {
    One(Box<DeviceQueue<Owned>>),
    Several(FileQueues),
}

impl Queues {
    /// Creates it from the queues by file, each with its device.
    fn of(mut files: Vec<(&Device, DeviceQueue<Owned>)>) -> Result<Queues> {
        Ok(match files.len() {
            1 => Queues::One(Box::new(files.remove(0).1)),
            _ => Queues::Several(FileQueues::new(files)?),
        })
    }
}

/// A job that is ready to start.
pub(crate) struct Ready<'a> {
    targets: Vec<&'a Target>,
    /// Jobs that must end first.
    awaited: Vec<&'a Progress>,
    delay: Duration,
    cores: Option<Vec<usize>>,
    set: Setting<'a>,
    queues: Queues,
    /// By domain.
    buffers: Vec<Vec<Buffer>>,
}

impl Ready<'_> {
    /// Runs the job on the calling thread.
    pub(crate) fn run(self) -> JobOutcome {
        if let Some(Err(failure)) = self.cores.as_deref().map(affinity::pin) {
            tracing::warn!("{failure}");
        }
        let is_over = || self.set.interrupt.requested() || self.set.progress.is_stopped();
        let is_awaiting = || self.awaited.iter().any(|job| job.times().1.is_none());
        while is_awaiting() && !is_over() {
            std::thread::sleep(AWAITED_EVERY);
        }
        sleep(self.delay, is_over);
        for (target, file) in self.targets.iter().zip(&self.set.files) {
            if self.set.section.job.files.invalidate && file.device.info().is_cached {
                drop_cached(target);
            }
        }
        let queue = match self.queues {
            Queues::Several(queues) => return Job::new(self.set, queues, self.buffers).run(),
            Queues::One(queue) => *queue,
        };
        match queue {
            DeviceQueue::Nvme(queue) => Job::new(self.set, queue, self.buffers).run(),
            DeviceQueue::Null(queue) => Job::new(self.set, queue, self.buffers).run(),
            DeviceQueue::Uring(queue) => Job::new(self.set, queue, self.buffers).run(),
            DeviceQueue::UringCmd(queue) => Job::new(self.set, queue, self.buffers).run(),
            DeviceQueue::Psync(queue) => Job::new(self.set, queue, self.buffers).run(),
            DeviceQueue::Mmap(queue) => Job::new(self.set, queue, self.buffers).run(),
        }
    }
}

/// Waits until a job starts, or until it should end.
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

/// A thread that uses a device, and the index of the file it is for that thread.
type User<'a> = (&'a Thread<'a>, usize);

fn permission(request: &Request) -> guard::Permission {
    guard::Permission { is_given: request.run.allow_destroy, ..guard::ALLOW_DESTROY }
}

/// Opens a device for all its threads.
fn open_device(
    target: &Target,
    users: &[User<'_>],
    request: &Request,
    interrupt: &Interrupt,
) -> Result<Device> {
    let writes = users.iter().any(|(thread, _)| thread.destroys());
    let file_bytes = users.iter().filter_map(|(thread, file)| thread.file_bytes(*file)).max();
    let before = layout::length(target);
    let made = layout::makes(target, before, file_bytes, users[0].0);
    if made.is_some() && request.run.readonly {
        return Err(users[0].0.usage(format!(
            "{} is shorter than the region to read, and --readonly forbids extending it; write it first",
            target.device()
        )));
    }
    let queue_count = users.len().min(usize::from(u16::MAX)) as u16;
    if before.is_some_and(|length| file_bytes.is_some_and(|bytes| length < bytes)) {
        guard::check_lengthening(target, permission(request))?;
    }
    // A file to be created is written even for readers.
    let options = DeviceOptions {
        queue_count,
        writes: writes || made.is_some(),
        respects_exclusive: writes || made.is_some(),
        file_bytes,
        byte_addressed: users.iter().any(|(thread, _)| thread.wants_bytes()),
        server_timeout: server_timeout(users),
        ..DeviceOptions::default()
    };
    if let Some(bytes) =
        file_bytes.filter(|_| users.iter().all(|(thread, _)| !thread.job().files.fallocate))
    {
        layout::lengthen(target, bytes)?;
    }
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
    let is_filled = |job: &JobOptions| job.rw.reads || job.files.overwrite;
    if let Some(range) = made.filter(|_| users.iter().any(|(thread, _)| is_filled(thread.job()))) {
        let length = range.start;
        layout::fill(&device, users[0].0.job(), range, interrupt).inspect_err(|_| {
            // The next run would take a half-filled file for complete.
            layout::shorten(target, length);
        })?;
    }
    Ok(device)
}

/// Returns how long a server may take for a reply: short enough to give up on a hung server within another
/// `io_timeout`, and long enough for a busy machine.
fn server_timeout(users: &[(&Thread<'_>, usize)]) -> Duration {
    let usual = DeviceOptions::default().server_timeout;
    let timeouts = users.iter().filter_map(|(thread, _)| thread.job().failures.io_timeout);
    timeouts.min().map_or(usual, |timeout| (timeout / 4).clamp(SERVER_TIMEOUT_MIN, usual))
}

/// Plans a thread for its targets.
fn plan_thread<'a>(
    thread: &Thread<'_>,
    its: Vec<Target>,
    device: impl Fn(&Target) -> &'a Device,
) -> Result<Planned> {
    let infos: Vec<&DeviceInfo> = its.iter().map(|target| device(target).info()).collect();
    let regions = (0..).zip(&infos).map(|(file, info)| thread.region(info, file));
    let regions = regions.collect::<Result<Vec<JobRegion>>>()?;
    for (file, info) in infos.iter().enumerate() {
        thread.check_replay(info, file, infos.len())?;
    }
    let depths = infos.iter().zip(&regions).map(|(info, region)| thread.queue_depth(info, *region));
    // The deepest queue, and the first warning about a queue that is too short.
    let (mut queue_depth, mut crowded) = (1, None);
    for depth in depths {
        let (depth, warning) = depth?;
        queue_depth = queue_depth.max(depth);
        crowded = crowded.or(warning);
    }
    let there = infos.iter().map(|info| info.bytes).sum();
    let bytes_max = thread.bytes_max(there, &regions);
    let iodepth = infos.iter().map(|info| thread.iodepth(info)).min().unwrap_or(1);
    let placements = its
        .iter()
        .zip(&infos)
        .map(|(target, info)| thread.placement(info, || Ok(device(target).placement_handles()?)));
    let placements = placements.collect::<Result<_>>()?;
    let files = its.into_iter().zip(regions).collect();
    Ok(Planned { files, queue_depth, crowded, iodepth, placements, bytes_max })
}

/// Returns a thread's seed.
pub(super) fn seed_of(job: &JobOptions, thread: u64) -> u64 {
    mix(job.random.randseed.unwrap_or(RANDSEED).wrapping_add(thread))
}

/// Returns buffers for each memory domain of the devices, and the domain each device can use.
fn all_buffers(
    devices: &[&Device],
    job: &JobOptions,
    iodepth: u32,
    data: &mut Data,
) -> Result<(Vec<Vec<Buffer>>, Vec<usize>)> {
    let (mut all, mut domains): (Vec<Vec<Buffer>>, Vec<usize>) = (Vec::new(), Vec::new());
    for device in devices {
        let known = all.iter().position(|buffers| device.accepts(&buffers[0]));
        if known.is_none() {
            all.push(buffers(device, job, iodepth, data)?);
        }
        domains.push(known.unwrap_or(all.len() - 1));
    }
    Ok((all, domains))
}

/// Allocates a buffer of the longest block for each I/O in flight, filled if it will be written.
fn buffers(
    device: &Device,
    job: &JobOptions,
    iodepth: u32,
    data: &mut Data,
) -> Result<Vec<Buffer>> {
    let ranges = if job.rw.trims { RANGE_BYTES as u64 } else { 0 };
    let block = job.block_max().max(ranges);
    let stride = block.next_multiple_of(BUFFER_ALIGN) as usize;
    let mut rest = device.allocate(stride * iodepth as usize)?;
    let mut buffers = Vec::with_capacity(iodepth as usize);
    while !rest.is_empty() {
        let tail = rest.split_off(stride);
        // The rest of a page after a block's end is unused.
        drop(rest.split_off(block as usize));
        if job.rw.writes {
            data.initial(&mut rest);
        }
        buffers.push(std::mem::replace(&mut rest, tail));
    }
    Ok(buffers)
}

/// Returns the order in which writes take placement identifiers.
fn turns(identifiers: &[u16], job: &JobOptions, seed: u64) -> Vec<u16> {
    if !job.nvme.placement.is_random || identifiers.is_empty() {
        return identifiers.to_vec();
    }
    let draw = |turn| mix(seed ^ mix(turn)) % identifiers.len() as u64;
    (0..RANDOM_TURNS).map(|turn| identifiers[draw(turn) as usize]).collect()
}

/// Begins the log of a job's I/Os, if it writes one. A kernel path's file is named as fio would name it.
fn iolog(job: &JobOptions, targets: &[&Target]) -> Result<Option<IoLog>> {
    let name = |target: &&Target| match target {
        Target::Kernel(kernel) if kernel.path != KernelPath::Null => {
            kernel.file.display().to_string()
        }
        target => target.to_string(),
    };
    let open = |path: &PathBuf| {
        let is_data = job.flushes.fdatasync.is_some();
        IoLog::open(path, targets.iter().map(name).collect(), is_data)
    };
    job.logs.iolog.as_ref().map(open).transpose()
}

/// Creates a queue for a thread whose requests use `memory`.
fn queue(
    thread: &Thread<'_>,
    planned: &Planned,
    device: &Device,
    memory: &[Buffer],
) -> Result<DeviceQueue<Owned>> {
    let job = thread.job();
    let memory: Vec<&Buffer> = memory.iter().collect();
    let timeouts = job.failures.io_timeout.map_or(TIMEOUTS, |timeout| (timeout, timeout));
    let (timeout, abort_timeout) = timeouts;
    let options = QueueOptions { depth: planned.queue_depth, timeout, abort_timeout };
    let mut queue = device.create_queue(&options, &memory)?;
    queue.set_durability(job.flushes.sync);
    if let Some(checks) = thread.protection_checks(device.info())? {
        queue.set_protection_checks(checks);
    }
    Ok(queue)
}

/// Returns how long a job on these targets spins before it yields its core.
fn yield_after(targets: &[&Target]) -> Duration {
    let is_soft = |target: &&Target| matches!(target, Target::Soft { .. });
    if targets.iter().any(is_soft) { YIELD_AFTER_SOFT } else { YIELD_AFTER }
}

/// Returns the batch size. On kernel paths it is one unless specified, as in fio, because each submission is a
/// system call that is compared with fio's. The driver's own queues take all idle I/Os at once, for one
/// doorbell.
fn batch_max(job: &JobOptions, target: &Target) -> usize {
    let usual = match target {
        Target::Kernel(KernelTarget { path: KernelPath::Null, .. }) => usize::MAX,
        Target::Kernel(_) => 1,
        _ => usize::MAX,
    };
    job.batch.iodepth_batch.map_or(usual, |batch| batch.max(1) as usize)
}

/// Returns whether blocks of zeroes mean unwritten data: if the target stores data and this job does not write
/// it.
fn samples_zeroes(job: &JobOptions, target: &Target) -> bool {
    let holds_data = match target {
        Target::Kernel(kernel) => kernel.path != KernelPath::Null,
        Target::Soft { options, .. } => !options.contains("null"),
        _ => true,
    };
    holds_data && !job.rw.writes && job.verify.is_none()
}

/// Loads the state of an interrupted run, if requested.
fn earlier(
    thread: &Thread<'_>,
    writer: &JobOptions,
    folder: &Path,
    index: u32,
    files: &[JobRegion],
) -> Result<Option<VerifyState>> {
    let wanted = thread.job().verify.as_ref().is_some_and(|verify| verify.state_load);
    let load = || VerifyState::load(folder, writer, index, files);
    wanted.then(load).transpose().map_err(|why| thread.usage(why))
}

/// Returns the job whose blocks this one reads back: a read-only job checks data of an equivalent writer.
fn writer_of(job: &JobOptions) -> Cow<'_, JobOptions> {
    if job.rw.writes || job.rw.trims {
        return Cow::Borrowed(job);
    }
    let rw = Workload { reads: false, writes: true, ..job.rw };
    Cow::Owned(JobOptions { rw, ..job.clone() })
}

/// Drops a file's pages from the page cache, so that reads reach the device.
fn drop_cached(target: &Target) {
    let Target::Kernel(kernel) = target else { return };
    let dropped = File::open(&kernel.file)
        .map(|file| posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED));
    if !matches!(dropped, Ok(Ok(()))) {
        tracing::warn!(
            "{}: the page cache could not be dropped; the figures may be those of memory",
            target.device()
        );
    }
}

fn delay(job: &JobOptions, seed: u64) -> Duration {
    let (from, to) = job.order.startdelay;
    let range_ns = to.saturating_sub(from).as_nanos() as u64;
    from + Duration::from_nanos(if range_ns == 0 { 0 } else { mix(seed ^ 1) % range_ns })
}

/// Polled queues get a core each if there are enough; a software controller's thread needs one too.
fn usual_core(targets: &[&Target], place: ThreadPlace) -> Option<Vec<usize>> {
    let polls = |target: &&Target| matches!(target, Target::Vfio { .. } | Target::VfioUser { .. });
    let is_polled = targets.iter().any(polls);
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let core = cores.get(place.core).filter(|_| is_polled && place.core_count <= cores.len())?;
    Some(vec![core.id])
}
