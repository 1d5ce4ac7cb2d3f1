//! The driver's own queue pairs as a path.
#![allow(unsafe_code)]

use zerocopy::IntoBytes;

use super::exclusive::Lock;
use super::{
    CommandQueue, Device, DeviceInfo, DeviceOptions, Durability, Operation, Path, QueueOptions,
    Request,
};
use crate::Time;
use crate::memory::{DomainId, IoBuffer};
use crate::namespace::{CommandLimits, Ranges};
use crate::queue_pair::{Body, Command, Completion, RejectReason, Rejected, Stats};
use crate::soft::{self, Storage};
use crate::spec::{DsmRange, Lba, Sqe};
use crate::target::{QueueMemory, Target};
use crate::{
    Controller, ControllerOptions, Namespace, Placement, ProtectionChecks, QueuePair,
    QueuePairOptions,
};

#[derive(Clone, Debug)]
pub(super) struct NvmeDevice {
    pub(super) controller: Controller,
    namespace: Namespace,
    queues: QueueMemory,
    /// Whether something outside this process carries out its commands.
    pub(super) is_outside: bool,
    /// Excludes other users of a software controller's file.
    lock: Option<Lock>,
}

pub(super) fn open(target: &Target, options: &DeviceOptions) -> crate::Result<Device> {
    let about = ControllerOptions {
        io_queues: options.queue_count,
        shadow_doorbells: options.shadow_doorbells,
        server_timeout: options.server_timeout,
        ..ControllerOptions::default()
    };
    let controller = Controller::open(target, &about)?;
    let lock = lock(target, options)?;
    let namespace = controller.namespace_of(target)?;
    Ok(device(controller, namespace, target, lock))
}

/// Locks a software controller's data file; no lock for other targets.
fn lock(target: &Target, options: &DeviceOptions) -> crate::Result<Option<Lock>> {
    let Target::Soft { options: controller, .. } = target else { return Ok(None) };
    let Storage::File { path, .. } = controller.parse::<soft::Options>()?.storage else {
        return Ok(None);
    };
    Lock::of(options, &path, &target.device())
}

pub(super) fn device(
    controller: Controller,
    namespace: Namespace,
    target: &Target,
    lock: Option<Lock>,
) -> Device {
    let (limits, about) = (namespace.limits(), controller.info());
    let info = DeviceInfo {
        device: target.device(),
        bytes: namespace.bytes(),
        lba_bytes: namespace.lba_bytes(),
        command_bytes_max: limits.max_bytes,
        boundary_bytes: u64::from(limits.boundary_lbas) << limits.lba_shift,
        queue_depth_max: about.queue_entries_max - 1,
        is_synchronous: false,
        queue_count_max: about.io_queues,
        deallocates: about.identify.oncs().dataset_management(),
        deallocate_lbas_max: namespace.command_limits().deallocate_lbas_max(),
        is_preallocated: false,
        is_cached: false,
        protection: namespace.protection(),
    };
    let queues = target.settings().queues;
    let is_outside = !matches!(target, Target::Soft { .. });
    let locality = controller.locality();
    let path = Path::Nvme(NvmeDevice { controller, namespace, queues, is_outside, lock });
    Device::new(info, path, locality)
}

impl NvmeDevice {
    pub(super) fn domain(&self) -> DomainId {
        self.namespace.domain()
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
        Ok(NvmeQueue { queue, reads, writes, _lock: self.lock.clone() })
    }
}

/// A queue pair, and the namespace of its requests.
#[derive(Debug)]
pub struct NvmeQueue<B: IoBuffer> {
    queue: QueuePair<B>,
    /// The namespace for reads and all else, and for writes, which may set more bits.
    reads: Namespace,
    writes: Namespace,
    _lock: Option<Lock>,
}

impl<B: IoBuffer> NvmeQueue<B> {
    pub(super) fn set_durability(&mut self, durability: Durability) {
        self.writes.force_unit_access(durability != Durability::Cached);
    }

    pub(super) fn set_protection_checks(&mut self, checks: ProtectionChecks) {
        self.reads.set_protection_checks(checks);
        self.writes.set_protection_checks(checks);
    }
}

impl<B: IoBuffer> CommandQueue<B> for NvmeQueue<B> {
    #[inline(always)]
    fn post(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        let command = command(&self.reads, &self.writes, request);
        self.queue.post(now, command).map(drop)
    }

    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        let command = command(&self.reads, &self.writes, request);
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
    request: Request<B>,
) -> Command<'n, B> {
    match request.operation {
        Operation::Read(lba) => namespace.read(lba, request.buffer),
        Operation::Write(lba) => writes.write(lba, request.buffer),
        Operation::Flush => namespace.fixed(Sqe::flush(namespace.nsid()), 0, request.buffer),
        Operation::Deallocate(lba, lbas) => deallocate(namespace, lba, lbas, request.buffer),
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
    let has = if buffer.segment_count() > 0 { buffer.segment(0).len } else { 0 };
    if has < ranges.bytes() {
        return Err(RejectReason::ShortBuffer { needs: ranges.bytes(), has });
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
