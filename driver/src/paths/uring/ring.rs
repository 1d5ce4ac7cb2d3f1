//! An io_uring with one file and memory registered.
//!
//! If requested, and if the kernel supports a table with empty slots (5.19), memory allocated later is
//! registered on request or after some uses ([`LateMemory`]) and forgotten when it is freed. Registered memory counts
//! against the limit on locked memory; what the limit does not allow is pinned by each request anew.
//!
//! The first call that enters the kernel enables the ring, which from then on belongs to that thread: the
//! kernel then completes requests without locks and interrupts. Older kernels get a plainer ring. The queues
//! above must not exceed the ring's entries. Only [`Ring::wait`] waits in the kernel, for a limited time.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{Builder, IoUring, cqueue, squeue};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::late_memory::LateMemory;
use crate::error::{Error, Result};
use crate::memory::{Buffer, IoBuffer, Region};
use crate::queue_pair::Errno;

pub(super) const DEPTH_MAX: u32 = 32_768;
/// The registered file.
pub(super) const FILE: io_uring::types::Fixed = io_uring::types::Fixed(0);
/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;
const PIECE_BYTES_MAX: usize = 1 << 30;
/// A huge page.
const HUGE: usize = 2 << 20;
/// The most slots of the kernel's table of memory.
const SLOTS_MAX: u16 = 16_384;
/// Slots for memory allocated later, if a piece may be long, and if it may not.
const LATE_SLOTS: u16 = 1024;
const LATE_SLOTS_OF_SHORT_PIECES: u16 = SLOTS_MAX / 2;
/// Time limit for requests in flight to end when a queue is dropped.
const DRAIN: Duration = Duration::from_secs(10);
/// Interval between looks meanwhile.
const NAP: Duration = Duration::from_micros(100);

/// Whether the rings of a device register memory.
#[derive(Clone, Debug)]
pub(super) enum Registration {
    /// Each request pins its pages.
    Off,
    /// All memory that is known when a ring is created, or the ring is refused.
    Required,
    /// What the limit on locked memory allows; the first ring that gets less logs it.
    AsAllowed(Arc<Once>),
}

impl Registration {
    /// Reads a target's `fixed=on|off`.
    pub(super) fn of(fixed: Option<bool>) -> Registration {
        match fixed {
            Some(false) => Registration::Off,
            Some(true) => Registration::Required,
            None => Registration::AsAllowed(Arc::new(Once::new())),
        }
    }
}

/// Options for creating a ring.
pub(super) struct RingOptions<'a> {
    /// The target, for messages.
    pub(super) device: &'a str,
    pub(super) fd: RawFd,
    /// Poll the device for completions instead of waiting for interrupts.
    pub(super) polled: bool,
    pub(super) memory: &'a [&'a Buffer],
    /// Register each buffer by itself, in pieces of this many bytes, instead of with its neighbours.
    pub(super) piece_bytes: Option<u64>,
    pub(super) registration: &'a Registration,
}

/// An io_uring and what is registered with it.
pub struct Ring<S: squeue::EntryMarker, C: cqueue::EntryMarker> {
    uring: IoUring<S, C>,
    registered: Registered,
    /// `None` if unsupported or not requested.
    late: Option<LateMemory>,
    /// The most bytes of a piece of late memory.
    piece_bytes: usize,
    registration: Registration,
    polled: bool,
    /// Whether the kernel supports a time limit for waits (5.11); without one, this ring does not wait.
    sleeps: bool,
    is_enabled: bool,
    /// Entries the kernel has not taken yet.
    pushed: u32,
    /// Whether `submit` left some of them.
    owes: bool,
    /// Entries the kernel took and has not completed.
    in_kernel: u32,
    broken: Option<Errno>,
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Ring<S, C> {
    /// Creates a ring with room for `entries` in flight and registers its file and memory.
    ///
    /// # Errors
    /// [`Error::Refused`] with a remedy.
    pub(super) fn new(shape: &RingOptions<'_>, entries: u32) -> Result<Ring<S, C>> {
        let refused = |error| refusal(shape.device, error);
        let (uring, is_enabled) = build::<S, C>(entries, shape.polled).map_err(refused)?;
        uring.submitter().register_files(&[shape.fd]).map_err(refused)?;
        let (registered, late) = register_allowed(&uring, shape)?;
        let piece_bytes = shape.piece_bytes.map_or(PIECE_BYTES_MAX, |bytes| bytes as usize);
        let polled = shape.polled;
        let sleeps = !polled && uring.params().is_feature_ext_arg();
        let (pushed, in_kernel, owes, broken) = (0, 0, false, None);
        Ok(Ring {
            uring,
            registered,
            late,
            piece_bytes,
            registration: shape.registration.clone(),
            polled,
            sleeps,
            is_enabled,
            pushed,
            owes,
            in_kernel,
            broken,
        })
    }

    /// Returns the index of the registered memory that contains `len` bytes at `at`.
    #[inline]
    pub(super) fn fixed(&self, at: *const u8, len: u64) -> Option<u16> {
        self.registered.find(at.addr(), len as usize)
    }

    /// Like `fixed`, for memory of `region`, which it registers if that is possible and worthwhile.
    #[inline]
    pub(super) fn fixed_in(
        &mut self,
        at: *const u8,
        len: u64,
        region: Option<&Arc<Region>>,
    ) -> Option<u16> {
        if let Some(index) = self.fixed(at, len) {
            return Some(index);
        }
        let (late, region) = (self.late.as_mut()?, region?);
        let found = late.find(at.addr(), len as usize, region);
        if found.is_none() && late.is_worth_it(region) {
            if let Err(error) = self.learn(region) {
                tracing::debug!("memory is not registered with io_uring: {error}");
            }
            return self.late.as_ref()?.find(at.addr(), len as usize, region);
        }
        found
    }

    /// Registers the region of `memory`; returns whether requests need not pin it. Memory beyond the limit, and memory
    /// that overlaps registered memory, is usable all the same.
    pub(super) fn register(&mut self, memory: &Buffer, device: &str) -> bool {
        let region = memory.region();
        if self.fixed(memory.pointer(0).as_ptr(), memory.len() as u64).is_some() {
            return true;
        }
        match self.learn(&region) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                tracing::debug!("{device}: {error}");
                false
            }
            Err(error) => {
                if let Registration::AsAllowed(told) = &self.registration {
                    told.call_once(|| warn_of_limit(device, region.bytes(), &error));
                }
                false
            }
        }
    }

    /// Registers a region, all of it or nothing.
    ///
    /// # Errors
    /// The kernel's, or that there are too few slots, or that this ring registers nothing later;
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if it overlaps another region.
    #[cold]
    fn learn(&mut self, region: &Arc<Region>) -> io::Result<()> {
        self.forget_gone();
        let Some(late) = &mut self.late else { return Err(io::ErrorKind::Unsupported.into()) };
        if late.has(region) {
            return Ok(());
        }
        let start = region.start().as_ptr().expose_provenance();
        let all = MemoryPiece { start, end: start + region.bytes() };
        if !late.is_clear(all.start..all.end) {
            let why = "memory that overlaps registered memory is not registered a second time";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let pieces = if self.piece_bytes < HUGE { vec![all] } else { whole_pages(all) };
        let learned = cut(pieces, self.piece_bytes).try_for_each(|piece| {
            let slot = late.take_slot().ok_or(io::ErrorKind::QuotaExceeded)?;
            let vector = [piece.vector()];
            // SAFETY: the region is alive. When it is gone its slot is named by no request any more: it is found
            // only together with the region, and requests own their buffers.
            let updated = unsafe {
                self.uring.submitter().register_buffers_update(slot.into(), &vector, None)
            };
            match updated {
                Ok(()) => late.add(region, piece.start..piece.end, slot),
                Err(_) => late.give_slot(slot),
            }
            updated
        });
        if learned.is_err() {
            let slots = late.remove_region(region);
            self.empty(slots);
        }
        learned
    }

    #[cold]
    fn forget_gone(&mut self) {
        let Some(late) = &mut self.late else { return };
        let slots = late.remove_gone();
        self.empty(slots);
    }

    /// Empties slots that no request names.
    fn empty(&mut self, slots: Vec<u16>) {
        let Some(late) = &mut self.late else { return };
        let nothing = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];
        for slot in slots {
            // SAFETY: an empty slot names no memory; nothing in flight names this one: its region is gone, or was not
            // found yet.
            let emptied = unsafe {
                self.uring.submitter().register_buffers_update(slot.into(), &nothing, None)
            };
            match emptied {
                Ok(()) => late.give_slot(slot),
                // The slot is never reused, and its pages are released when the ring is closed.
                Err(error) => tracing::debug!("memory stays registered with io_uring: {error}"),
            }
        }
    }

    /// Returns the entries the kernel has not taken yet: memory they point to must not move.
    pub(super) fn pushed(&self) -> u32 {
        self.pushed
    }

    /// Adds an entry to the ring.
    ///
    /// # Safety
    /// The memory that the entry names stays mapped and has no other user until its completion.
    #[inline]
    pub(super) unsafe fn push(&mut self, entry: &S) {
        // SAFETY: passed on to our caller.
        let pushed = unsafe { self.uring.submission().push(entry) };
        pushed.expect("a queue has no more in flight than its ring has entries");
        self.pushed += 1;
    }

    /// Submits all entries. `reap` resubmits those that the kernel does not take now.
    #[inline]
    pub(super) fn submit(&mut self) {
        if self.pushed == 0 || !self.is_usable() {
            return;
        }
        match self.uring.submit() {
            Ok(taken) => {
                self.pushed -= taken as u32;
                self.in_kernel += taken as u32;
            }
            Err(error) => self.note(&error),
        }
        self.owes = self.pushed > 0;
    }

    /// Passes the user data and result of each completed entry to `done`. Enters the kernel only if there is
    /// none and entering may bring some.
    #[inline]
    pub(super) fn reap(&mut self, mut done: impl FnMut(u64, i32)) {
        if self.owes {
            self.submit();
        }
        if self.take_in(&mut done) > 0 || self.in_kernel == 0 {
            self.forget_one();
        } else if self.may_have_more() {
            self.enter();
            self.take_in(&mut done);
        }
    }

    /// Makes the kernel signal an eventfd whenever an entry completes. Returns `false` if completions are
    /// polled on the device: the kernel then does not notice them by itself.
    ///
    /// # Errors
    /// [`Error::Refused`] with the system's error.
    pub(super) fn notify(&self, event: BorrowedFd<'_>, device: &str) -> Result<bool> {
        if self.polled {
            return Ok(false);
        }
        let registered = self.uring.submitter().register_eventfd(event.as_raw_fd());
        registered.map(|()| true).map_err(|error| refusal(device, error))
    }

    /// Sleeps in the kernel until an entry completes, at most `at_most`. Returns `false` without sleeping if
    /// there is nothing to wait for or no time, completions are polled on the device (nothing would wake the
    /// thread), or the kernel cannot limit the wait.
    pub(super) fn wait(&mut self, at_most: Duration) -> bool {
        let is_due = self.in_kernel > 0 && self.pushed == 0 && !at_most.is_zero();
        if !self.sleeps || !is_due || !self.is_usable() {
            return false;
        }
        let until = Timespec::from(at_most);
        match self.uring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&until)) {
            Err(error) if error.raw_os_error() != Some(libc::ETIME) => self.note(&error),
            _ => {}
        }
        self.broken.is_none()
    }

    /// Releases freed memory, checking one piece per call.
    #[inline]
    fn forget_one(&mut self) {
        if self.late.as_mut().is_some_and(LateMemory::has_gone) {
            self.forget_gone();
        }
    }

    #[inline]
    fn take_in(&mut self, done: &mut impl FnMut(u64, i32)) -> u32 {
        let mut count = 0;
        for entry in self.uring.completion() {
            let entry: cqueue::Entry = entry.into();
            count += 1;
            done(entry.user_data(), entry.result());
        }
        self.in_kernel = self.in_kernel.saturating_sub(count);
        count
    }

    #[inline]
    fn may_have_more(&mut self) -> bool {
        self.polled || self.uring.submission().taskrun()
    }

    #[cold]
    fn note(&mut self, error: &io::Error) {
        let errno = Errno::of(error);
        if !matches!(errno.0, libc::EINTR | libc::EAGAIN | libc::EBUSY) {
            self.broken.get_or_insert(errno);
        }
    }

    /// Runs the kernel's deferred work; with polled completions, also polls the device.
    fn enter(&mut self) {
        if !self.is_usable() {
            return;
        }
        // SAFETY: no arguments; nothing is submitted.
        let entered =
            unsafe { self.uring.submitter().enter::<libc::sigset_t>(0, 0, GETEVENTS, None) };
        if let Err(error) = entered {
            self.note(&error);
        }
    }

    #[inline]
    fn is_usable(&mut self) -> bool {
        if !self.is_enabled && self.broken.is_none() {
            match self.uring.submitter().register_enable_rings() {
                Ok(()) => self.is_enabled = true,
                Err(error) => self.broken = Some(Errno::of(&error)),
            }
        }
        self.broken.is_none()
    }

    /// Checks that the kernel still takes requests.
    ///
    /// # Errors
    /// [`Error::Failed`] if it does not.
    pub(super) fn check(&self, device: &str) -> Result<()> {
        let reason = match self.broken {
            None => return Ok(()),
            Some(Errno(libc::EEXIST)) => {
                "its io_uring queue was used by a second thread; it belongs to the first thread that rings it".to_owned()
            }
            Some(errno) => format!("io_uring: {errno}"),
        };
        Err(Error::Failed { device: device.to_owned(), reason })
    }

    /// Ends the entries in the kernel, so that their memory can be freed: cancels what it can and waits for
    /// the rest. Returns the number of entries left.
    pub(super) fn drain(&mut self) -> u32 {
        if self.in_kernel == 0 || !self.is_enabled {
            return self.in_kernel;
        }
        let at_once = Timespec::new();
        // Refused before kernel 6.0, and if nothing can be cancelled.
        let _ = self.uring.submitter().register_sync_cancel(Some(at_once), CancelBuilder::any());
        let start = Instant::now();
        loop {
            self.take_in(&mut |_, _| ());
            if self.in_kernel == 0 || start.elapsed() > DRAIN || self.broken.is_some() {
                break;
            }
            self.enter();
            std::thread::sleep(NAP);
        }
        self.in_kernel
    }

    /// Forgets the registered memory, which is then never freed.
    pub(super) fn leak_memory(&mut self) {
        std::mem::forget(std::mem::take(&mut self.registered.keep));
    }
}

/// Closing a ring releases its memory some time later; the next ring may need the user's share of locked
/// memory now.
impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Drop for Ring<S, C> {
    fn drop(&mut self) {
        let is_late = self.late.as_ref().is_some_and(|late| !late.is_empty());
        if self.in_kernel == 0 && (is_late || !self.registered.pieces.is_empty()) {
            // Refused on threads other than the ring's, where closing must suffice.
            let _ = self.uring.submitter().unregister_buffers();
        }
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> fmt::Debug for Ring<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} pushed, {} in the kernel)", self.pushed, self.in_kernel)
    }
}

/// Builds the best ring the kernel supports; also returns whether it is already enabled.
fn build<S, C>(entries: u32, polled: bool) -> io::Result<(IoUring<S, C>, bool)>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    let plain = || {
        let mut builder = IoUring::<S, C>::builder();
        if polled {
            builder.setup_iopoll();
        }
        builder
    };
    let single = |builder: &mut Builder<S, C>| {
        // Kernel 6.1. Disabled, so that the first user's thread becomes its owner, not the creating one.
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        builder.setup_submit_all().setup_r_disabled();
    };
    let cooperative = |builder: &mut Builder<S, C>| {
        // Kernel 5.19.
        builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
    };
    let too_old = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    let mut builder = plain();
    single(&mut builder);
    match builder.build(entries) {
        Err(error) if too_old(&error) => {}
        other => return other.map(|ring| (ring, false)),
    }
    let mut builder = plain();
    cooperative(&mut builder);
    match builder.build(entries) {
        Err(error) if too_old(&error) => plain().build(entries).map(|ring| (ring, true)),
        other => other.map(|ring| (ring, true)),
    }
}

/// Registers the memory of `shape`, or none of it if the limit on locked memory does not allow that and the device
/// may do without. Then each region that is used often is tried by itself.
///
/// # Errors
/// [`Error::Refused`] with a remedy.
fn register_allowed<S, C>(
    uring: &IoUring<S, C>,
    shape: &RingOptions<'_>,
) -> Result<(Registered, Option<LateMemory>)>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    let late_slots = shape.piece_bytes.map_or(LATE_SLOTS, |_| LATE_SLOTS_OF_SHORT_PIECES);
    let told = match shape.registration {
        Registration::Off => return Ok(Default::default()),
        Registration::Required => None,
        Registration::AsAllowed(told) => Some(told),
    };
    let registered = Registered::of(shape.memory, shape.piece_bytes);
    match (register(uring, &registered, late_slots), told) {
        (Ok(late), _) => Ok((registered, late)),
        (Err(error), Some(told)) if error.raw_os_error() == Some(libc::ENOMEM) => {
            told.call_once(|| warn_of_limit(shape.device, registered.bytes(), &error));
            // Some slots may be filled; there is no table if none was registered.
            let _ = uring.submitter().unregister_buffers();
            let nothing = Registered::default();
            let late = register(uring, &nothing, late_slots);
            late.map(|late| (nothing, late)).map_err(|error| refusal(shape.device, error))
        }
        (Err(error), _) => Err(memory_refusal(shape.device, &registered, error)),
    }
}

/// Registers memory, and reserves `late_slots` slots of the table for later memory if the kernel supports that.
fn register<S, C>(
    uring: &IoUring<S, C>,
    registered: &Registered,
    late_slots: u16,
) -> io::Result<Option<LateMemory>>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    let pieces: Vec<_> = registered.pieces.iter().map(MemoryPiece::vector).collect();
    let slots = u16::try_from(pieces.len()).ok().and_then(|first| {
        let end = first.checked_add(late_slots).filter(|end| *end <= SLOTS_MAX)?;
        let is_sparse = uring.submitter().register_buffers_sparse(end.into()).is_ok();
        is_sparse.then_some(first..end)
    });
    // SAFETY: the memory is a buffer's, whose region `registered` keeps for as long as the ring; it is
    // written only by requests, which own their buffers.
    unsafe {
        if slots.is_some() {
            // One by one: of several the kernel may take only some, and the crate drops the number it
            // returns.
            for (slot, piece) in (0..).zip(&pieces) {
                uring.submitter().register_buffers_update(slot, &[*piece], None)?;
            }
        } else if !pieces.is_empty() {
            uring.submitter().register_buffers(&pieces)?;
        }
    }
    Ok(slots.map(LateMemory::new))
}

/// Says what it costs that the limit does not allow to register memory.
fn warn_of_limit(device: &str, bytes: usize, error: &io::Error) {
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(soft, _)| soft);
    tracing::warn!(
        "{device}: {bytes} bytes of memory are not registered with io_uring ({error}; the limit on locked memory is \
         {} KiB): requests pin their pages one by one, which costs processor time; raise the limit (ulimit -l, \
         LimitMEMLOCK=), use less memory, or accept it with 'fixed=off'",
        limit >> 10,
    );
}

fn refusal(device: &str, error: io::Error) -> Error {
    let fix = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "allow io_uring: 'sysctl kernel.io_uring_disabled=0', and in a container the system calls io_uring_*; or \
             use 'psync:'"
        }
        Some(libc::ENOSYS) => "use 'psync:', or a kernel with io_uring (5.1 or later)",
        Some(libc::ENOMEM) => "raise the limit on locked memory (ulimit -l), or reduce the depth",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files (ulimit -n)",
        Some(libc::EINVAL) => "use a newer kernel, or leave options out (polled=off)",
        _ => "use 'psync:' instead",
    };
    Error::refused(device, "set up io_uring", error, fix)
}

fn memory_refusal(device: &str, registered: &Registered, error: io::Error) -> Error {
    let bytes = registered.bytes();
    let fix = match error.raw_os_error() {
        // Partly registered memory would distort measurements.
        Some(libc::EINVAL) => {
            "these are more pieces than the kernel takes (16384; before 5.13, 1024): reduce the depth, use shorter \
             requests, or turn registration off (fixed=off)"
        }
        _ => "raise the limit on locked memory (ulimit -l), or turn registration off (fixed=off)",
    };
    let what = format!(
        "register {bytes} bytes of memory in {} pieces with io_uring",
        registered.pieces.len()
    );
    Error::refused(device, what, error, fix)
}

/// Memory the kernel keeps pinned for a ring.
#[derive(Default)]
struct Registered {
    /// Sorted by address.
    pieces: Vec<MemoryPiece>,
    /// Prevents reuse of the addresses while the kernel maps them to this memory.
    keep: Vec<Arc<Region>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MemoryPiece {
    start: usize,
    end: usize,
}

impl MemoryPiece {
    fn vector(&self) -> libc::iovec {
        let iov_base = std::ptr::with_exposed_provenance_mut(self.start);
        libc::iovec { iov_base, iov_len: self.end - self.start }
    }
}

impl Registered {
    /// Collects the memory of `buffers`: neighbours merged, or each by itself in pieces of `piece_bytes`.
    fn of(buffers: &[&Buffer], piece_bytes: Option<u64>) -> Registered {
        let place = |buffer: &&Buffer| {
            let start = buffer.pointer(0).as_ptr().expose_provenance();
            MemoryPiece { start, end: start + buffer.len() }
        };
        let mut places: Vec<MemoryPiece> =
            buffers.iter().filter(|buffer| !buffer.is_empty()).map(place).collect();
        places.sort_unstable();
        let pieces = match piece_bytes {
            Some(bytes) => cut(places, bytes as usize).collect(),
            None => cut(merged(places), PIECE_BYTES_MAX).collect(),
        };
        Registered { pieces, keep: regions(buffers) }
    }

    fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.end - piece.start).sum()
    }

    #[inline]
    fn find(&self, at: usize, len: usize) -> Option<u16> {
        let behind = self.pieces.partition_point(|piece| piece.start <= at);
        let index = behind.checked_sub(1)?;
        (at + len <= self.pieces[index].end).then_some(index as u16)
    }
}

/// Merges neighbours in sorted pieces.
fn merged(pieces: Vec<MemoryPiece>) -> Vec<MemoryPiece> {
    let mut merged: Vec<MemoryPiece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match merged.last_mut() {
            Some(last) if last.end == piece.start => last.end = piece.end,
            _ => merged.push(piece),
        }
    }
    merged
}

/// Splits memory before and behind what may be huge pages: the kernel uses them as such only if a piece has no others.
fn whole_pages(all: MemoryPiece) -> Vec<MemoryPiece> {
    let (first, last) = (all.start.next_multiple_of(HUGE), all.end & !(HUGE - 1));
    if first >= last {
        return vec![all];
    }
    let bounds = [all.start, first, last, all.end];
    let pieces = bounds.windows(2).map(|bounds| MemoryPiece { start: bounds[0], end: bounds[1] });
    pieces.filter(|piece| piece.start < piece.end).collect()
}

fn cut(pieces: Vec<MemoryPiece>, bytes: usize) -> impl Iterator<Item = MemoryPiece> {
    pieces.into_iter().flat_map(move |piece| {
        let starts = (piece.start..piece.end).step_by(bytes);
        starts.map(move |start| MemoryPiece { start, end: piece.end.min(start + bytes) })
    })
}

/// Returns each region once.
fn regions(buffers: &[&Buffer]) -> Vec<Arc<Region>> {
    let mut regions: Vec<Arc<Region>> = buffers.iter().map(|buffer| buffer.region()).collect();
    regions.sort_by_key(|region| Arc::as_ptr(region).addr());
    regions.dedup_by(|a, b| Arc::ptr_eq(a, b));
    regions
}

#[cfg(test)]
mod tests;
