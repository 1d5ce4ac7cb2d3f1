//! The driver's own queue pairs as a path.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use zerocopy::IntoBytes;

use super::exclusive::Lock;
use super::info::{DeviceInfo, DeviceOptions, QueueOptions};
use super::request::{CommandQueue, Durability, Operation, Request};
use crate::Time;
use crate::error::Error;
use crate::memory::{Buffer, DomainId, IoBuffer};
use crate::namespace::{CommandLimits, Ranges};
use crate::queue_pair::{Body, Command, Completion, RejectReason, Rejected, Stats};
use crate::soft::{self, Storage};
use crate::spec::{DsmRange, Lba, Sqe};
use crate::target::{QueueMemory, Target};
use crate::{
    Controller, ControllerOptions, Namespace, Placement, ProtectionChecks, QueuePair,
    QueuePairOptions,
};

/// Time for the answer about placement, and again for its abortion.
const HANDLES_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the Reclaim Unit Handle Status that are read: 127 handles, of the 128 that a namespace may have.
const HANDLES_BYTES: usize = 4096;

/// Returns the placement identifiers of a Reclaim Unit Handle Status (Base 2.1, 7.3.1.1).
fn identifiers(status: &[u8]) -> Vec<u16> {
    let (header, handles) = status.split_at(16);
    let count = usize::from(u16::from_le_bytes([header[14], header[15]]));
    handles.chunks_exact(32).take(count).map(|it| u16::from_le_bytes([it[0], it[1]])).collect()
}

#[derive(Clone, Debug)]
pub(super) struct NvmeDevice {
    pub(super) controller: Controller,
    namespace: Namespace,
    queues: QueueMemory,
    /// Whether something outside this process carries out its commands.
    pub(super) is_outside: bool,
    /// Whether that is another process, which maps registered memory's files.
    pub(super) maps_files: bool,
    /// Excludes other users of a software controller's file.
    lock: Option<Lock>,
}

/// Opens the controller and namespace that `target` names.
///
/// # Errors
/// As [`Controller::open`] and [`Lock::around`].
pub(super) fn open(target: &Target, options: &DeviceOptions) -> crate::Result<NvmeDevice> {
    let about = ControllerOptions {
        io_queues: options.queue_count,
        shadow_doorbells: options.shadow_doorbells,
        server_timeout: options.server_timeout,
        ..ControllerOptions::default()
    };
    let open = || Controller::open(target, &about);
    let (controller, lock) = match software_file(target)? {
        Some(path) => Lock::around(options, &path, &target.device(), open)?,
        None => (open()?, None),
    };
    let namespace = controller.namespace_of(target)?;
    Ok(NvmeDevice::new(controller, namespace, target, lock))
}

/// Returns a software controller's data file, which is locked; there is none to lock for other targets.
fn software_file(target: &Target) -> crate::Result<Option<PathBuf>> {
    let Target::Soft { options, .. } = target else { return Ok(None) };
    match options.parse::<soft::Options>()?.storage {
        Storage::File { path, .. } => Ok(Some(path)),
        _ => Ok(None),
    }
}

impl NvmeDevice {
    pub(super) fn new(
        controller: Controller,
        namespace: Namespace,
        target: &Target,
        lock: Option<Lock>,
    ) -> NvmeDevice {
        let queues = target.settings().queues;
        let is_outside = !matches!(target, Target::Soft { .. });
        let maps_files = matches!(target, Target::VfioUser { .. });
        NvmeDevice { controller, namespace, queues, is_outside, maps_files, lock }
    }

    /// Returns its properties under the target's name.
    pub(super) fn info(&self, target: &Target) -> DeviceInfo {
        let (namespace, about) = (&self.namespace, self.controller.info());
        let (limits, commands) = (namespace.limits(), namespace.command_limits());
        DeviceInfo {
            device: target.device(),
            bytes: namespace.bytes(),
            lba_bytes: namespace.lba_bytes(),
            command_bytes_max: limits.max_bytes,
            boundary_bytes: u64::from(limits.boundary_lbas) << limits.lba_shift,
            queue_depth_max: about.queue_entries_max - 1,
            is_synchronous: false,
            queue_count_max: about.io_queues,
            is_write_protected: namespace.identify().is_write_protected(),
            deallocates: about.identify.oncs().dataset_management(),
            deallocate_lbas_max: commands.deallocate_lbas_max(),
            is_preallocated: false,
            has_holes: false,
            is_cached: false,
            protection: namespace.protection(),
        }
    }

    pub(super) fn lock(&self) -> Option<&Lock> {
        self.lock.as_ref()
    }

    pub(super) fn domain(&self) -> DomainId {
        self.namespace.domain()
    }

    /// Asks the namespace for its placement identifiers, on a queue of its own.
    pub(super) fn placement_handles(&self, device: &str) -> crate::Result<Vec<u16>> {
        let has_them = self.controller.info().identify.ctratt().flexible_data_placement();
        if !has_them {
            return Ok(Vec::new());
        }
        let options =
            QueueOptions { depth: 1, timeout: HANDLES_TIMEOUT, abort_timeout: HANDLES_TIMEOUT };
        let mut queue = self.create_queue::<Buffer>(&options)?;
        let buffer = self.controller.allocate(HANDLES_BYTES)?;
        let sqe = Sqe::reclaim_unit_handles(self.namespace.nsid(), HANDLES_BYTES as u32);
        let command = self.namespace.fixed(sqe, HANDLES_BYTES, buffer);
        let failed = |why: String| {
            let what = format!("its reclaim unit handles are not known: {why}");
            Error::device(device, what, "write without placement, or enable it as its vendor says")
        };
        let posted = queue.queue.post(self.controller.now(), command);
        posted.map_err(|rejected| failed(rejected.reason.to_string()))?;
        queue.ring();
        let mut told = None;
        while told.is_none() {
            if queue.poll(self.controller.now(), |done| told = Some(done)) == 0 {
                queue.check()?;
                std::thread::yield_now();
            }
        }
        let Completion { buffer, result } = told.expect("it has ended");
        result.map_err(|why| failed(why.to_string()))?;
        Ok(identifiers(&buffer))
    }

    pub(super) fn create_queue<B: IoBuffer>(
        &self,
        options: &QueueOptions,
    ) -> crate::Result<NvmeQueue<B>> {
        let placement = match self.queues {
            QueueMemory::Host => Placement::Host,
            QueueMemory::Cmb => Placement::Cmb,
        };
        let options = QueuePairOptions {
            // One entry of a ring stays free.
            depth: options.depth + 1,
            timeout: options.timeout,
            abort_timeout: options.abort_timeout,
            placement,
            ..QueuePairOptions::default()
        };
        let queue = self.controller.create_queue_pair(options)?;
        let (reads, writes) = (self.namespace.clone(), self.namespace.clone());
        Ok(NvmeQueue { queue, reads, writes, placement: None, _lock: self.lock.clone() })
    }
}

/// A queue pair, and the namespace of its requests.
#[derive(Debug)]
pub struct NvmeQueue<B: IoBuffer> {
    queue: QueuePair<B>,
    /// The namespace for reads and all else, and for writes, which may set more bits.
    reads: Namespace,
    writes: Namespace,
    /// The handles that writes go through, and which is next.
    placement: Option<Turns>,
    _lock: Option<Lock>,
}

impl<B: IoBuffer> NvmeQueue<B> {
    pub(super) fn set_durability(&mut self, durability: Durability) {
        self.writes.force_unit_access(durability != Durability::Cached);
    }

    pub(super) fn set_placement(&mut self, identifiers: &[u16]) {
        self.placement = Turns::new(identifiers);
    }

    pub(super) fn set_protection_checks(&mut self, checks: ProtectionChecks) {
        self.reads.set_protection_checks(checks);
        self.writes.set_protection_checks(checks);
    }
}

impl<B: IoBuffer> CommandQueue<B> for NvmeQueue<B> {
    #[inline(always)]
    fn post(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        let command = command(&self.reads, &self.writes, &mut self.placement, request);
        self.queue.post(now, command).map(drop)
    }

    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        let command = command(&self.reads, &self.writes, &mut self.placement, request);
        self.queue.resubmit(now, command).map(drop)
    }

    #[inline(always)]
    fn ring(&mut self) {
        self.queue.ring();
    }

    #[inline(always)]
    fn poll(&mut self, now: Time, done: impl FnMut(Completion<B>)) -> usize {
        self.queue.poll(now, done)
    }

    fn check(&self) -> crate::Result<()> {
        self.queue.check()
    }

    fn stats(&self) -> Stats {
        self.queue.stats()
    }
}

#[inline(always)]
fn command<'n, B: IoBuffer>(
    namespace: &'n Namespace,
    writes: &'n Namespace,
    placement: &mut Option<Turns>,
    request: Request<B>,
) -> Command<'n, B> {
    match request.operation {
        Operation::Read(lba) => namespace.read(lba, request.buffer),
        Operation::Write(lba) => match placement {
            None => writes.write(lba, request.buffer),
            Some(turns) => writes.write(lba, request.buffer).placed(turns.next()),
        },
        Operation::Flush => namespace.fixed(Sqe::flush(namespace.nsid()), 0, request.buffer),
        Operation::Deallocate(lba, lbas) => deallocate(namespace, lba, lbas, request.buffer),
    }
}

/// The order in which writes take placement identifiers, again and again.
#[derive(Debug)]
struct Turns {
    /// At least one.
    identifiers: Box<[u16]>,
    next: usize,
}

impl Turns {
    fn new(identifiers: &[u16]) -> Option<Turns> {
        let some = !identifiers.is_empty();
        some.then(|| Turns { identifiers: identifiers.into(), next: 0 })
    }

    fn next(&mut self) -> u16 {
        let identifier = self.identifiers[self.next];
        self.next = (self.next + 1) % self.identifiers.len();
        identifier
    }
}

#[cold]
fn deallocate<B: IoBuffer>(
    namespace: &Namespace,
    lba: Lba,
    lbas: u32,
    buffer: B,
) -> Command<'_, B> {
    match put_ranges(namespace.command_limits(), lba, lbas, &buffer) {
        Ok(ranges) => {
            let sqe = Sqe::dataset_management(namespace.nsid(), ranges.count(), true);
            namespace.fixed(sqe, ranges.bytes() as usize, buffer)
        }
        Err(reason) => Command { body: Body::Refused(reason), buffer },
    }
}

/// Writes the ranges of a deallocation to the start of its buffer's first segment.
///
/// # Errors
/// [`RejectReason::OverLimit`] if one command cannot deallocate as much, [`RejectReason::ShortBuffer`] if
/// the segment has no room for the ranges.
pub(super) fn put_ranges<B: IoBuffer>(
    limits: &CommandLimits,
    lba: Lba,
    lbas: u32,
    buffer: &B,
) -> Result<Ranges, RejectReason> {
    let ranges = limits.cut(lba, lbas)?;
    let needs = ranges.bytes();
    let has = if buffer.segment_count() > 0 { buffer.segment(0).len } else { 0 };
    if has < needs {
        return Err(RejectReason::ShortBuffer { needs, has });
    }
    for (index, range) in ranges.iter().enumerate() {
        let (bytes, at) = (range.as_bytes(), index * size_of::<DsmRange>());
        // SAFETY: the segment has room for all, and is exclusively the buffer's, which is not in flight (`IoBuffer`).
        let at = unsafe { buffer.pointer(0).as_ptr().add(at) };
        // SAFETY: as above.
        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    Ok(ranges)
}
