//! NVMe commands through io_uring to a namespace's character device (`/dev/ng0n1`): the kernel's driver
//! without its block layer.
//!
//! A request becomes as many commands as the limits of controller and kernel require, split where its
//! segments end; it finishes with the last of them, and fails if one does. The kernel requires entries of 128
//! bytes and completions of 32. Protection information is left to the controller and other metadata refused,
//! as by the driver's own queue pairs; the kernel passes such commands on unchanged.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{cqueue, opcode, squeue};
use zerocopy::FromBytes;

use super::exclusive::Lock;
use super::extent::{Extent, Run};
use super::kernel_ring::{COMMANDS_MIN, COMMANDS_PER_REQUEST, DEPTH_MAX, FILE, Ring, Shape};
use super::passthrough::{self, Passthrough};
use super::pieces::{Cutter, Join, Piece};
use super::{
    CommandQueue, DeviceInfo, DeviceOptions, Durability, Operation, QueueOptions, Request, nvme,
};
use crate::error::{Error, Result};
use crate::memory::{Buffer, IoBuffer};
use crate::namespace::{self, CommandLimits, Format};
use crate::protection::{Prinfo, Protection, ProtectionChecks};
use crate::queue_pair::{CommandError, Completion, Errno, RejectReason, Rejected, Slots, Stats};
use crate::spec::identify::{
    IdentifyController, IdentifyNamespace, IdentifyNvmController, IdentifyNvmNamespace,
};
use crate::spec::{Cid, Cns, Lba, LbaCount, Nsid, Sqe, Status};

use crate::Time;
use crate::target::KernelTarget;

/// Smallest page of any controller: MDTS counts in pages whose size only its registers tell.
const PAGE: u64 = 4096;
/// Bytes of one command if neither controller nor kernel reports a limit.
const COMMAND_BYTES: u64 = 128 << 10;
/// Most LBAs a command can express.
const COMMAND_LBAS_MAX: u64 = 1 << 16;

#[derive(Clone, Debug)]
pub(super) struct UringCmdDevice {
    file: Arc<File>,
    namespace: Namespace,
    polled: bool,
    fixed: bool,
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
    deallocates: bool,
    limits: CommandLimits,
    writes: bool,
    protection: Option<Protection>,
}

/// Opens a namespace's character device and identifies its controller.
///
/// # Errors
/// [`Error::Refused`] with a remedy, [`Error::Device`] for an unsupported format.
pub(super) fn open(target: &KernelTarget, options: &DeviceOptions) -> Result<UringCmdDevice> {
    let device = target.device();
    let opened = OpenOptions::new().read(true).write(options.writes).open(&target.file);
    let file = opened.map_err(|error| {
        let fix =
            "name a namespace's character device, as /dev/ng0n1, and run as a user who may open it";
        Error::refused(&device, "open it", error, fix)
    })?;
    let is_character = file.metadata().is_ok_and(|about| about.file_type().is_char_device());
    if !is_character {
        let why = "not a character device; NVMe commands go to /dev/ng0n1 and its like ('uring:' takes files and \
                   block devices)";
        return Err(Error::invalid(device, why));
    }
    let take = || Lock::take(&target.file, &device);
    let lock = options.exclusive.then(take).transpose()?;
    let queue = queue_of(&file);
    let namespace = identify(&file, &device, queue.as_deref(), options.writes)?;
    let polls = attribute(queue.as_deref(), "io_poll") == Some(1);
    if target.polled == Some(true) && !polls {
        let why = "the device's queues are not set up for it (queue/io_poll is 0)";
        let fix = "load the driver with poll queues (nvme.poll_queues=2), or write 'polled=off'";
        return Err(Error::refused(device, "poll for completions", why, fix));
    }
    let polled = target.polled.unwrap_or(polls);
    Ok(UringCmdDevice { file: Arc::new(file), namespace, polled, fixed: target.fixed, lock })
}

/// Queries the namespace's size and format, and the limits of controller and kernel.
fn identify(file: &File, device: &str, queue: Option<&Path>, writes: bool) -> Result<Namespace> {
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
        deallocates,
        limits,
        writes,
        protection,
    })
}

/// Returns the most bytes of one command, by the limits of controller, kernel and LBA count.
fn command_bytes_max(mdts: u8, queue: Option<&Path>, lba_bytes: u32) -> u64 {
    let by_controller = (1..32).contains(&mdts).then(|| PAGE << mdts);
    let by_queue = attribute(queue, "max_hw_sectors_kb").map(|kib| kib << 10);
    // A page may be a segment of its own, and so may the last of a run that starts inside one.
    let by_segments = attribute(queue, "max_segments").map(|count| count.saturating_sub(1) * PAGE);
    let told = [by_controller, by_queue, by_segments].into_iter().flatten().min();
    let most = told.unwrap_or(COMMAND_BYTES).min(u64::from(lba_bytes) * COMMAND_LBAS_MAX);
    (most & !u64::from(lba_bytes - 1)).max(u64::from(lba_bytes))
}

/// Returns the queue directory of the block device beside a character device, whose node may have any name.
fn queue_of(file: &File) -> Option<PathBuf> {
    let number = file.metadata().ok()?.rdev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    queue_beside(Path::new(&format!("/sys/dev/char/{major}:{minor}")))
}

/// Returns it by the character device's directory, which the kernel calls `ng0n1` beside `nvme0n1`.
fn queue_beside(character: &Path) -> Option<PathBuf> {
    let path = character.canonicalize().ok()?;
    let numbers = path.file_name()?.to_str()?.strip_prefix("ng")?;
    Some(PathBuf::from(format!("/sys/block/nvme{numbers}/queue")))
}

fn attribute(queue: Option<&Path>, name: &str) -> Option<u64> {
    std::fs::read_to_string(queue?.join(name)).ok()?.trim().parse().ok()
}

impl UringCmdDevice {
    pub(super) fn info(&self, target: &KernelTarget) -> DeviceInfo {
        DeviceInfo {
            device: target.device(),
            bytes: self.namespace.bytes,
            lba_bytes: self.namespace.lba_bytes,
            command_bytes_max: self.namespace.command_bytes_max,
            boundary_bytes: 0,
            queue_depth_max: DEPTH_MAX / COMMANDS_PER_REQUEST,
            queue_count_max: u16::MAX,
            deallocates: self.namespace.deallocates,
            deallocate_lbas_max: self.namespace.limits.deallocate_lbas_max(),
            is_cached: false,
            protection: self.namespace.protection,
        }
    }

    /// Creates a queue with `memory` registered.
    ///
    /// # Errors
    /// [`Error::Refused`] with the system's error.
    pub(super) fn create_queue<B: IoBuffer>(
        &self,
        options: &QueueOptions,
        memory: &[&Buffer],
        device: &str,
    ) -> Result<UringCmdQueue<B>> {
        let depth = options.depth.clamp(1, DEPTH_MAX / COMMANDS_PER_REQUEST);
        let entries = (depth * COMMANDS_PER_REQUEST).max(COMMANDS_MIN);
        let memory = if self.fixed { memory } else { &[] };
        let (fd, polled) = (self.file.as_raw_fd(), self.polled);
        // Old kernels (6.1) count all pages of a registered piece behind a command's first, and refuse more
        // than one command could have.
        let piece_bytes = Some(self.namespace.command_bytes_max);
        let shape =
            Shape { device, fd, depth: entries, polled, memory, piece_bytes, learns: false };
        Ok(UringCmdQueue {
            ring: Ring::new(&shape)?,
            slots: Some(Slots::new(depth as usize)),
            joins: vec![Join::default(); depth as usize].into(),
            free_commands: entries as usize,
            commands: entries as usize,
            namespace: self.namespace,
            timeout_ms: milliseconds(options.timeout),
            fua: false,
            prinfo: Prinfo::of(self.namespace.protection),
            _file: Arc::clone(&self.file),
            lock: self.lock.clone(),
            device: device.to_owned(),
            denied: Vec::with_capacity(depth as usize),
            gone: None,
            stats: Stats::default(),
        })
    }
}

/// Converts to milliseconds, rounded up; 0 would mean the kernel's default.
fn milliseconds(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX).max(1)
}

/// Translates the kernel's result: a status if the controller answered, else an error number.
#[inline]
fn outcome(result: i32) -> Result<u64, CommandError> {
    match result {
        0 => Ok(0),
        status if status > 0 => Err(CommandError::Status(Status::from_bits(status as u16))),
        errno => Err(CommandError::System(Errno(errno.saturating_neg()))),
    }
}

/// A queue of `uring-cmd:`.
#[derive(Debug)]
pub struct UringCmdQueue<B: IoBuffer> {
    ring: Ring<squeue::Entry128, cqueue::Entry32>,
    /// The requests' buffers; present until drop.
    slots: Option<Slots<B>>,
    /// By slot.
    joins: Box<[Join]>,
    /// Entries of the ring, free and in all.
    free_commands: usize,
    commands: usize,
    namespace: Namespace,
    timeout_ms: u32,
    /// Whether writes set Force Unit Access.
    fua: bool,
    prinfo: Prinfo,
    /// Keeps the descriptor open at least as long as the ring.
    _file: Arc<File>,
    lock: Option<Lock>,
    device: String,
    /// Requests that would change a device opened for reading: the kernel would carry them out for root.
    denied: Vec<Completion<B>>,
    gone: Option<CommandError>,
    stats: Stats,
}

impl Namespace {
    fn cutter(&self) -> Cutter {
        Cutter { lba_bytes: self.lba_bytes, command_bytes_max: self.command_bytes_max }
    }

    #[inline]
    fn sqe(&self, piece: Piece, reads: bool, fua: bool, prinfo: Prinfo) -> Sqe {
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

impl<B: IoBuffer> UringCmdQueue<B> {
    pub(super) fn set_durability(&mut self, durability: Durability) {
        self.fua = durability != Durability::Cached;
    }

    pub(super) fn set_protection_checks(&mut self, checks: ProtectionChecks) {
        if let Some(protection) = self.namespace.protection {
            self.prinfo = Prinfo::with(protection, checks);
        }
    }

    pub(super) fn notify(&self, event: BorrowedFd<'_>) -> Result<bool> {
        self.ring.notify(event, &self.device)
    }

    /// Returns the number of commands of a request.
    ///
    /// # Errors
    /// The reason for rejecting it, for now or for good.
    fn admit(&mut self, operation: Operation, buffer: &B) -> Result<(Run, usize), RejectReason> {
        let run = self.namespace.extent.run(operation, buffer)?;
        let needs = match operation {
            Operation::Read(_) | Operation::Write(_) => self.namespace.cutter().count(buffer)?,
            Operation::Flush => 1,
            Operation::Deallocate(lba, lbas) => {
                nvme::put_ranges(&self.namespace.limits, lba, lbas, buffer)?;
                1
            }
        };
        if needs > self.commands {
            return Err(RejectReason::TooLarge { what: "commands", needs, has: self.commands });
        }
        let is_full =
            self.slots.as_ref().is_none_or(Slots::is_full) || self.denied.len() == self.joins.len();
        if needs > self.free_commands || is_full {
            return Err(RejectReason::Full);
        }
        Ok((run, needs))
    }

    fn push(&mut self, operation: Operation, slot: usize, cid: Cid) {
        let slots = self.slots.as_ref().expect("slots are there until drop");
        let buffer = slots.get(slot).buffer.as_ref().expect("a request owns its buffer");
        let (namespace, timeout) = (&self.namespace, self.timeout_ms);
        match operation {
            Operation::Read(lba) | Operation::Write(lba) => {
                let reads = matches!(operation, Operation::Read(_));
                let start = lba.0 * u64::from(namespace.lba_bytes);
                for piece in namespace.cutter().pieces(start, buffer) {
                    let data = Data { at: piece.data(buffer), bytes: piece.bytes as u32 };
                    let sqe = namespace.sqe(piece, reads, self.fua, self.prinfo);
                    // SAFETY: see `push_command`; the data lies in the request's buffer.
                    unsafe { push_command(&mut self.ring, &sqe, data, timeout, cid) };
                }
            }
            Operation::Flush => {
                let sqe = Sqe::flush(namespace.nsid);
                // SAFETY: a flush has no data.
                unsafe { push_command(&mut self.ring, &sqe, Data::NONE, timeout, cid) };
            }
            Operation::Deallocate(lba, lbas) => {
                let ranges = namespace.limits.cut(lba, lbas).expect("admitted");
                let at = buffer.pointer(0).as_ptr().cast_const();
                let data = Data { at, bytes: ranges.bytes() as u32 };
                let sqe = Sqe::dataset_management(namespace.nsid, ranges.count(), true);
                // SAFETY: the ranges lie in the request's buffer, since it was admitted.
                unsafe { push_command(&mut self.ring, &sqe, data, timeout, cid) };
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Data {
    at: *const u8,
    bytes: u32,
}

impl Data {
    const NONE: Data = Data { at: std::ptr::null(), bytes: 0 };
}

/// Adds one command to the ring.
///
/// # Safety
/// As [`Ring::push`], for the command's data.
#[inline]
unsafe fn push_command(
    ring: &mut Ring<squeue::Entry128, cqueue::Entry32>,
    sqe: &Sqe,
    data: Data,
    timeout_ms: u32,
    cid: Cid,
) {
    let command = Passthrough::new(sqe, data.at, data.bytes, timeout_ms);
    let fixed = if data.bytes > 0 { ring.fixed(data.at, data.bytes.into()) } else { None };
    let entry = opcode::UringCmd80::new(FILE, passthrough::URING_CMD_IO)
        .cmd(command.to_bytes())
        .buf_index(fixed)
        .build()
        .user_data(cid.0.into());
    // SAFETY: passed on to our caller.
    unsafe { ring.push(&entry) };
}

impl<B: IoBuffer> CommandQueue<B> for UringCmdQueue<B> {
    #[inline]
    fn post(&mut self, _now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        let Request { operation, buffer } = request;
        let (run, commands) = match self.admit(operation, &buffer) {
            Ok(admitted) => admitted,
            Err(reason) => return Err(Rejected { buffer, reason }),
        };
        let changes = matches!(operation, Operation::Write(_) | Operation::Deallocate(..));
        if changes && !self.namespace.writes {
            let result = Err(CommandError::System(Errno(libc::EBADF)));
            self.denied.push(Completion { buffer, result });
            return Ok(());
        }
        let slots = self.slots.as_mut().expect("slots are there until drop");
        let (slot, cid) = slots.occupy(Some(buffer), Time::NEVER, 0, false);
        self.joins[slot] = Join::of(commands);
        self.free_commands -= commands;
        self.push(operation, slot, cid);
        self.stats.submitted += commands as u64;
        if matches!(operation, Operation::Read(_) | Operation::Write(_)) {
            self.stats.bytes += run.bytes;
        }
        Ok(())
    }

    fn post_again(&mut self, now: Time, request: Request<B>) -> Result<(), Rejected<B>> {
        self.post(now, request)?;
        self.stats.retries += 1;
        Ok(())
    }

    #[inline]
    fn ring(&mut self) {
        self.stats.submission_rings += u64::from(self.ring.pushed() > 0);
        self.ring.submit();
    }

    #[inline]
    fn poll(&mut self, _now: Time, mut done: impl FnMut(Completion<B>)) -> usize {
        let (mut count, mut commands) = (self.denied.len(), 0);
        self.denied.drain(..).for_each(&mut done);
        let slots = self.slots.as_mut().expect("slots are there until drop");
        self.ring.reap(|user_data, result| {
            let cid = Cid(user_data as u16);
            let Some(slot) = slots.find(cid) else {
                self.stats.unknown_cids += 1;
                return;
            };
            commands += 1;
            let Some(result) = self.joins[slot].end(outcome(result)) else { return };
            if let Err(error) = result
                && error.is_gone()
            {
                self.gone.get_or_insert(error);
            }
            let buffer = slots.end_plain(cid).expect("a request in flight owns its buffer");
            count += 1;
            done(Completion { buffer, result: result.map(|_| 0) });
        });
        self.free_commands += commands;
        self.stats.completed += commands as u64;
        count
    }

    fn wait(&mut self, at_most: Duration) -> bool {
        self.ring.wait(at_most)
    }

    fn check(&self) -> Result<()> {
        if let Some(error) = &self.gone {
            let (device, reason) = (self.device.clone(), error.to_string());
            return Err(Error::Failed { device, reason });
        }
        self.ring.check(&self.device)
    }

    fn stats(&self) -> Stats {
        self.stats.clone()
    }
}

impl<B: IoBuffer> Drop for UringCmdQueue<B> {
    fn drop(&mut self) {
        let left = self.ring.drain();
        if left > 0 {
            tracing::error!(
                "{}: leaking the memory of {left} commands that the kernel has not ended",
                self.device
            );
            std::mem::forget(self.slots.take());
            self.ring.leak_memory();
            // The device is not free for others either.
            std::mem::forget(self.lock.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_and_an_error_number_are_told_apart() {
        assert_eq!(outcome(0), Ok(0));
        let status = outcome(i32::from(Status::WRITE_FAULT.with_dnr(true).bits()));
        assert_eq!(status, Err(CommandError::Status(Status::WRITE_FAULT.with_dnr(true))));
        assert_eq!(outcome(-libc::ENODEV), Err(CommandError::System(Errno(libc::ENODEV))));
    }

    #[test]
    fn a_command_is_as_long_as_all_allow() {
        assert_eq!(command_bytes_max(0, None, 512), 128 << 10, "nobody says");
        assert_eq!(command_bytes_max(7, None, 512), 512 << 10);
        assert_eq!(command_bytes_max(31, None, 512), 512 << 16, "what a command can say");
        assert_eq!(command_bytes_max(0, None, 4096), 128 << 10);
        let queue = std::env::temp_dir().join(format!("adit-queue-{}", std::process::id()));
        std::fs::create_dir_all(&queue).expect("a directory");
        std::fs::write(queue.join("max_hw_sectors_kb"), "1024\n").expect("a file");
        std::fs::write(queue.join("max_segments"), "127\n").expect("a file");
        assert_eq!(command_bytes_max(0, Some(&queue), 4096), 126 * 4096);
        std::fs::remove_dir_all(&queue).expect("removing it");
    }

    #[test]
    fn limits_are_found_by_what_the_kernel_calls_a_device() {
        let sys = std::env::temp_dir().join(format!("adit-char-{}", std::process::id()));
        std::fs::create_dir_all(sys.join("devices/ng3n2")).expect("a directory");
        std::os::unix::fs::symlink("devices/ng3n2", sys.join("240:7")).expect("a link");
        let queue = queue_beside(&sys.join("240:7"));
        assert_eq!(queue.as_deref(), Some(Path::new("/sys/block/nvme3n2/queue")));
        std::fs::remove_dir_all(&sys).expect("removing it");
        let null = File::open("/dev/null").expect("a device");
        assert_eq!(queue_of(&null), None, "no namespace");
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
