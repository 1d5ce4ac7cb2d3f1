//! NVMe commands to a namespace's character device (`/dev/ng0n1`): the kernel's driver without its block
//! layer.
//!
//! A request becomes as many commands as the limits of controller and kernel require, split where its
//! segments end. The kernel requires entries of 128 bytes and completions of 32. Protection information is
//! left to the controller and other metadata refused, as by the driver's own queue pairs; the kernel passes
//! such commands on unchanged.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{cqueue, opcode, squeue};
use zerocopy::FromBytes;

use super::passthrough::{self, Passthrough};
use super::pieces::{CommandPiece, Cutter};
use super::ring::{FILE, Ring, RingOptions};
use super::{Encoding, KernelQueue, Registration, depth_max};
use crate::error::{Error, Result};
use crate::memory::{Buffer, IoBuffer, Region};
use crate::namespace::{self, CommandLimits, Format};
use crate::paths::exclusive::Lock;
use crate::paths::extent::{ByteRange, Extent};
use crate::paths::file::KernelLimits;
use crate::paths::info::{DeviceInfo, DeviceOptions, QueueOptions};
use crate::paths::nvme;
use crate::paths::request::{Durability, Operation};
use crate::protection::{Prinfo, Protection, ProtectionChecks};
use crate::queue_pair::{CommandError, Errno, RejectReason};
use crate::spec::identify::{
    IdentifyController, IdentifyNamespace, IdentifyNvmController, IdentifyNvmNamespace,
};
use crate::spec::{Cns, Lba, LbaCount, Nsid, Sqe, Status};
use crate::target::KernelTarget;

/// A queue of `uring-cmd:`.
pub type UringCmdQueue<B> = KernelQueue<B, Commands>;

/// Smallest page of any controller: MDTS counts in pages whose size only its registers tell.
const PAGE: u64 = 4096;
/// Bytes of one command if neither controller nor kernel reports a limit.
const COMMAND_BYTES: u64 = 128 << 10;
/// The most LBAs a command can express.
const COMMAND_LBAS_MAX: u64 = 1 << 16;

#[derive(Clone, Debug)]
pub(crate) struct UringCmdDevice {
    file: Arc<File>,
    namespace: Namespace,
    polled: bool,
    registration: Registration,
    lock: Option<Lock>,
}

/// The namespace's properties that commands need.
#[derive(Clone, Copy, Debug)]
struct Namespace {
    nsid: Nsid,
    extent: Extent,
    bytes: u64,
    lba_bytes: u32,
    command_bytes_max: u64,
    is_write_protected: bool,
    deallocates: bool,
    limits: CommandLimits,
    writes: bool,
    protection: Option<Protection>,
}

/// Opens a namespace's character device and identifies its controller.
///
/// # Errors
/// [`Error::Refused`] with a remedy, [`Error::Device`] for an unsupported format.
pub(crate) fn open(target: &KernelTarget, options: &DeviceOptions) -> Result<UringCmdDevice> {
    let device = target.device();
    let opened = OpenOptions::new().read(true).write(options.writes).open(&target.file);
    let file = opened.map_err(|error| {
        let fix =
            "name a namespace's character device, as /dev/ng0n1, and run as a user who may open it";
        Error::refused(&device, "open it", error, fix)
    })?;
    let is_character = file.metadata().is_ok_and(|about| about.file_type().is_char_device());
    if !is_character {
        let why = "not a character device; NVMe commands go to a device such as /dev/ng0n1 ('uring:' takes files and \
                   block devices)";
        return Err(Error::invalid(device, why));
    }
    let lock = Lock::of(options, &target.file, &device)?;
    let queue = KernelLimits::beside(&file);
    let namespace = identify(&file, &device, &queue, options.writes)?;
    let polls = queue.polls();
    if target.polled == Some(true) && !polls {
        let why = "the device's queues are not set up for it (queue/io_poll is 0)";
        let fix = "load the driver with poll queues (nvme.poll_queues=2), or write 'polled=off'";
        return Err(Error::refused(device, "poll for completions", why, fix));
    }
    let polled = target.polled.unwrap_or(polls);
    let registration = Registration::of(target.fixed);
    Ok(UringCmdDevice { file: Arc::new(file), namespace, polled, registration, lock })
}

/// Queries the namespace's size and format, and the limits of controller and kernel.
fn identify(file: &File, device: &str, queue: &KernelLimits, writes: bool) -> Result<Namespace> {
    let refused = |error: std::io::Error| {
        let fix =
            "name a namespace's character device, as /dev/ng0n1, and run as root (CAP_SYS_ADMIN)";
        Error::refused(device, "identify it", error, fix)
    };
    let nsid = passthrough::nsid(file).map_err(refused)?;
    let ask = |cns, nsid| {
        let mut data = [0u8; 4096];
        passthrough::identify(file, &Sqe::identify(cns, nsid, 0), &mut data).map(|()| data)
    };
    let data = ask(Cns::CONTROLLER, Nsid(0)).map_err(refused)?;
    let controller = IdentifyController::ref_from_bytes(&data).expect("4096 bytes of any kind");
    let (mdts, oncs, ctratt) = (controller.mdts, controller.oncs(), controller.ctratt());
    let data = ask(Cns::NAMESPACE, nsid).map_err(refused)?;
    let about = IdentifyNamespace::ref_from_bytes(&data).expect("4096 bytes of any kind");
    let extended = if namespace::needs_extended(about, ctratt) {
        Some(ask(Cns::COMMAND_SET_NAMESPACE, nsid).map_err(refused)?)
    } else {
        None
    };
    let extended = extended
        .as_ref()
        .map(|data| IdentifyNvmNamespace::ref_from_bytes(data).expect("4096 bytes of any kind"));
    let Format { lba_bytes, protection } = namespace::format(nsid, about, extended, device)?;
    let bytes = about.nsze_lbas.get() << lba_bytes.trailing_zeros();
    let command_bytes_max = command_bytes_max(mdts, queue, lba_bytes);
    let deallocates = writes && oncs.dataset_management();
    let extent = Extent::new(bytes, lba_bytes);
    let limits = match ask(Cns::COMMAND_SET_CONTROLLER, Nsid(0)) {
        Ok(data) => CommandLimits::of(
            IdentifyNvmController::ref_from_bytes(&data).expect("4096 bytes of any kind"),
            PAGE,
        ),
        // Older controllers have no such page.
        Err(_) => CommandLimits::NONE,
    };
    Ok(Namespace {
        nsid,
        extent,
        bytes,
        lba_bytes,
        command_bytes_max,
        is_write_protected: about.is_write_protected(),
        deallocates,
        limits,
        writes,
        protection,
    })
}

/// Returns the most bytes of one command, by the limits of controller, kernel and LBA count.
fn command_bytes_max(mdts: u8, queue: &KernelLimits, lba_bytes: u32) -> u64 {
    let by_controller = (1..32).contains(&mdts).then(|| PAGE << mdts);
    let by_queue = queue.command_bytes_max("max_hw_sectors_kb");
    let told = [by_controller, by_queue].into_iter().flatten().min();
    let most = told.unwrap_or(COMMAND_BYTES).min(u64::from(lba_bytes) * COMMAND_LBAS_MAX);
    (most & !u64::from(lba_bytes - 1)).max(u64::from(lba_bytes))
}

impl UringCmdDevice {
    pub(crate) fn info(&self, target: &KernelTarget) -> DeviceInfo {
        DeviceInfo {
            device: target.device(),
            bytes: self.namespace.bytes,
            lba_bytes: self.namespace.lba_bytes,
            command_bytes_max: self.namespace.command_bytes_max,
            boundary_bytes: 0,
            queue_depth_max: depth_max(true),
            is_synchronous: false,
            queue_count_max: u16::MAX,
            is_write_protected: self.namespace.is_write_protected,
            deallocates: self.namespace.deallocates,
            deallocate_lbas_max: self.namespace.limits.deallocate_lbas_max(),
            is_preallocated: false,
            has_holes: false,
            is_cached: false,
            protection: self.namespace.protection,
        }
    }

    /// Creates a queue with `memory` registered.
    ///
    /// # Errors
    /// [`Error::Refused`] with the system's error.
    pub(crate) fn create_queue<B: IoBuffer>(
        &self,
        options: &QueueOptions,
        memory: &[&Buffer],
        device: &str,
    ) -> Result<UringCmdQueue<B>> {
        let shape = RingOptions {
            device,
            fd: self.file.as_raw_fd(),
            polled: self.polled,
            memory,
            // Old kernels (6.1) count all pages of a registered piece behind a command's first, and refuse
            // more than one command could have.
            piece_bytes: Some(self.namespace.command_bytes_max),
            registration: &self.registration,
        };
        let encoding = Commands {
            namespace: self.namespace,
            timeout_ms: milliseconds(options.timeout),
            fua: false,
            prinfo: Prinfo::of(self.namespace.protection),
        };
        KernelQueue::new(encoding, options, true, shape, self.lock.clone())
    }
}

/// Converts to milliseconds, rounded up; 0 would mean the kernel's default.
fn milliseconds(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX).max(1)
}

impl Namespace {
    fn cutter(&self) -> Cutter {
        Cutter { lba_bytes: self.lba_bytes, command_bytes_max: self.command_bytes_max }
    }

    #[inline]
    fn sqe(&self, piece: CommandPiece, reads: bool, fua: bool, prinfo: Prinfo) -> Sqe {
        let count = LbaCount::new((piece.bytes / u64::from(self.lba_bytes)) as u32)
            .expect("a piece has 1 to 65536 LBAs");
        let lba = Lba(piece.at / u64::from(self.lba_bytes));
        let sqe = match reads {
            true => Sqe::read(self.nsid, lba, count),
            false => Sqe::write(self.nsid, lba, count).with_fua(fua),
        };
        prinfo.on_transfer(sqe)
    }
}

/// Encodes requests as NVMe commands.
#[derive(Debug)]
pub struct Commands {
    namespace: Namespace,
    timeout_ms: u32,
    /// Whether writes set Force Unit Access.
    fua: bool,
    prinfo: Prinfo,
}

impl Commands {
    pub(crate) fn set_durability(&mut self, durability: Durability) {
        self.fua = durability != Durability::Cached;
    }

    pub(crate) fn set_protection_checks(&mut self, checks: ProtectionChecks) {
        if let Some(protection) = self.namespace.protection {
            self.prinfo = Prinfo::with(protection, checks);
        }
    }

    /// Adds one command to `ring`, with `bytes` of data at `at`.
    ///
    /// # Safety
    /// As [`Ring::push`], for the command's data.
    #[inline]
    unsafe fn push_one(
        &self,
        ring: &mut Ring<squeue::Entry128, cqueue::Entry32>,
        sqe: &Sqe,
        (at, bytes): (*const u8, u64),
        region: Option<&Arc<Region>>,
        user_data: u64,
    ) {
        let command = Passthrough::new(sqe, at, bytes as u32, self.timeout_ms);
        let fixed = if bytes > 0 { ring.fixed_in(at, bytes, region) } else { None };
        let entry = opcode::UringCmd80::new(FILE, passthrough::URING_CMD_IO)
            .cmd(command.to_bytes())
            .buf_index(fixed)
            .build()
            .user_data(user_data);
        // SAFETY: passed on to our caller.
        unsafe { ring.push(&entry) };
    }
}

impl Encoding for Commands {
    type Entry = squeue::Entry128;
    type Done = cqueue::Entry32;
    const COUNTS_BYTES: bool = false;

    fn check<B: IoBuffer>(
        &self,
        operation: Operation,
        buffer: &B,
    ) -> Result<(ByteRange, usize), RejectReason> {
        let run = self.namespace.extent.run(operation, buffer)?;
        let commands = match operation {
            Operation::Read(_) | Operation::Write(_) => self.namespace.cutter().count(buffer)?,
            Operation::Flush => 1,
            Operation::Deallocate(lba, lbas) => {
                nvme::put_ranges(&self.namespace.limits, lba, lbas, buffer)?;
                1
            }
        };
        Ok((run, commands))
    }

    /// Fails requests that would change a device opened for reading: the kernel would carry them out for
    /// root.
    #[inline]
    fn at_once(&self, operation: Operation, _: ByteRange) -> Option<Result<u32, CommandError>> {
        let changes = matches!(operation, Operation::Write(_) | Operation::Deallocate(..));
        let is_denied = changes && !self.namespace.writes;
        is_denied.then_some(Err(CommandError::System(Errno(libc::EBADF))))
    }

    unsafe fn push<B: IoBuffer>(
        &mut self,
        ring: &mut Ring<squeue::Entry128, cqueue::Entry32>,
        operation: Operation,
        run: ByteRange,
        buffer: &B,
        user_data: u64,
    ) {
        let namespace = &self.namespace;
        match operation {
            Operation::Read(_) | Operation::Write(_) => {
                let reads = matches!(operation, Operation::Read(_));
                for piece in namespace.cutter().pieces(run.offset, buffer) {
                    let data = (piece.data(buffer).cast_const(), piece.bytes);
                    let sqe = namespace.sqe(piece, reads, self.fua, self.prinfo);
                    let region = buffer.region_of(piece.segment());
                    // SAFETY: passed on to our caller; the data lies in the request's buffer.
                    unsafe { self.push_one(ring, &sqe, data, region, user_data) };
                }
            }
            Operation::Flush => {
                let sqe = Sqe::flush(namespace.nsid);
                // SAFETY: a flush has no data.
                unsafe { self.push_one(ring, &sqe, (std::ptr::null(), 0), None, user_data) };
            }
            Operation::Deallocate(lba, lbas) => {
                let ranges = namespace.limits.cut(lba, lbas).expect("checked");
                let data = (buffer.pointer(0).as_ptr().cast_const(), ranges.bytes());
                let sqe = Sqe::dataset_management(namespace.nsid, ranges.count(), true);
                // SAFETY: the ranges lie in the request's buffer, since it was checked.
                unsafe { self.push_one(ring, &sqe, data, buffer.region_of(0), user_data) };
            }
        }
    }

    #[inline]
    fn outcome(result: i32) -> Result<u64, CommandError> {
        match result {
            0 => Ok(0),
            status if status > 0 => Err(CommandError::Status(Status::from_bits(status as u16))),
            errno => Err(CommandError::System(Errno(errno.saturating_neg()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_and_an_error_number_are_told_apart() {
        assert_eq!(Commands::outcome(0), Ok(0));
        let status = Commands::outcome(i32::from(Status::WRITE_FAULT.with_dnr(true).bits()));
        assert_eq!(status, Err(CommandError::Status(Status::WRITE_FAULT.with_dnr(true))));
        assert_eq!(
            Commands::outcome(-libc::ENODEV),
            Err(CommandError::System(Errno(libc::ENODEV)))
        );
    }

    #[test]
    fn a_command_is_as_long_as_all_allow() {
        let none = KernelLimits::default();
        assert_eq!(command_bytes_max(0, &none, 512), 128 << 10, "no limit is known");
        assert_eq!(command_bytes_max(7, &none, 512), 512 << 10);
        assert_eq!(command_bytes_max(31, &none, 512), 512 << 16, "what a command can say");
        assert_eq!(command_bytes_max(0, &none, 4096), 128 << 10);
    }

    #[test]
    fn what_is_no_namespace_is_refused_with_what_to_write() {
        let open = |path: &str| {
            let target = KernelTarget::new(crate::target::KernelPath::UringCmd, path);
            open(&target, &DeviceOptions::default()).expect_err("must be refused").to_string()
        };
        assert!(open("/dev/ng99n1").contains("as /dev/ng0n1"));
        assert!(open("/dev/null").contains("identify it"));
        assert!(open("/proc/self/status").contains("/dev/ng0n1"));
    }
}
