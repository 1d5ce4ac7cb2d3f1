//! DMA memory that a command can own.
//!
//! A [`Region`] is memory mapped for one controller, allocated by the driver or registered by the caller. A
//! [`Buffer`] is an exclusive run of a region and the unit of ownership: while idle, its owner reads and
//! writes it as a byte slice; submitting a command moves it into the queue and only the completion moves it
//! back. So no reference to memory in flight can exist. Memory that others may write at any time, such as another process
//! that shares it, lends no slice: its bytes are copied ([`Buffer::bytes`]).
//!
//! A region is unmapped before its memory is freed. If unmapping fails, the memory is leaked and an error
//! logged (law 3).
#![allow(unsafe_code)]

mod bounce;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::bus::Bus;
use crate::error::{Error, Result};
use crate::spec::Iova;
use crate::sys::{Atomics, Backing, HostMemory, HostRange, PageKind, SharedBytes, SharedBytesMut};
use crate::transfer::prebuilt::PrebuiltPrps;
use crate::transfer::{PAGE_BYTES, Segment, SegmentList};

pub(crate) use bounce::{Bounce, bounce_copy};

/// The address space a buffer is mapped in: one per open controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DomainId(usize);

impl DomainId {
    pub(crate) fn of(bus: &Arc<dyn Bus>) -> DomainId {
        DomainId(Arc::as_ptr(bus).cast::<()>().addr())
    }

    /// This process's own addresses, used only by the kernel.
    pub(crate) const HOST: DomainId = DomainId(0);
}

/// Host memory mapped for one device; unmapped on drop.
pub(crate) struct Mapping {
    bus: Arc<dyn Bus>,
    memory: Option<Arc<HostMemory>>,
    iova: Iova,
    len: u64,
}

impl Mapping {
    pub(crate) fn new(bus: &Arc<dyn Bus>, memory: HostMemory) -> Result<Mapping> {
        Mapping::with(bus, Arc::new(memory), |memory| memory.range())
    }

    /// Allocates and maps memory that the device only reads.
    pub(crate) fn allocate_read_only(bus: &Arc<dyn Bus>, len: usize) -> Result<Mapping> {
        let memory = Arc::new(near(bus, len)?);
        // Until written, private pages are the kernel's zero page. Pinning one for reading (Linux before 6.2)
        // leaves the device on that page, whatever is written here afterwards.
        for page in memory.atomics().words().chunks(PAGE_BYTES as usize / size_of::<u64>()) {
            page[0].store(0, Ordering::Relaxed);
        }
        Mapping::with(bus, memory, |memory| memory.range().read_only())
    }

    fn with(
        bus: &Arc<dyn Bus>,
        memory: Arc<HostMemory>,
        range: impl FnOnce(&HostMemory) -> HostRange<'_>,
    ) -> Result<Mapping> {
        // SAFETY: the mapping owns the memory until it is unmapped, else leaks it; buffers in flight have no
        // references.
        let iova = unsafe { bus.map(range(&memory))? };
        assert!(iova.0.is_multiple_of(PAGE_BYTES), "a bus maps whole pages");
        let len = memory.len() as u64;
        Ok(Mapping { bus: Arc::clone(bus), memory: Some(memory), iova, len })
    }

    /// Allocates memory near the device and maps it.
    pub(crate) fn allocate(bus: &Arc<dyn Bus>, len: usize) -> Result<Mapping> {
        Mapping::new(bus, near(bus, len)?)
    }

    pub(crate) fn iova(&self) -> Iova {
        self.iova
    }

    pub(crate) fn atomics(&self) -> Atomics {
        self.memory().atomics()
    }

    fn memory(&self) -> &Arc<HostMemory> {
        self.memory.as_ref().expect("memory is there until drop")
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({}+{:#x})", self.iova, self.len)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping's own; regions and rings keep it while its addresses are in use.
        if let Err(error) = unsafe { self.bus.unmap(self.iova, self.len) } {
            tracing::error!("leaking {} bytes the device may still write: {error}", self.len);
            std::mem::forget(self.memory.take());
        }
    }
}

/// Memory registered with one controller; lives as long as any [`Buffer`] of it.
pub struct Region {
    at: NonNull<u8>,
    iova: Iova,
    domain: DomainId,
    is_shared: bool,
    memory: Held,
    prebuilt: Option<(PrebuiltPrps, Mapping)>,
}

enum Held {
    /// Mapped for a device, and unmapped before it is freed.
    Mapped(Mapping),
    /// This process's only: the kernel copies it, or pins it itself.
    Host(HostMemory),
}

impl Held {
    fn memory(&self) -> &HostMemory {
        match self {
            Held::Mapped(mapping) => mapping.memory(),
            Held::Host(memory) => memory,
        }
    }
}

impl Region {
    /// Maps `memory`, and prebuilds its PRP lists if a transfer can need one.
    pub(crate) fn new(bus: &Arc<dyn Bus>, memory: HostMemory) -> Result<Arc<Region>> {
        let mapping = Mapping::new(bus, memory)?;
        let pages = mapping.len / PAGE_BYTES;
        let prebuilt = if pages > 2 { Some(prebuild(bus, mapping.iova, pages)?) } else { None };
        let (at, iova, domain) = (mapping.memory().as_ptr(), mapping.iova, DomainId::of(bus));
        let is_shared = mapping.memory().is_shared();
        let memory = Held::Mapped(mapping);
        Ok(Arc::new(Region { at, iova, domain, is_shared, memory, prebuilt }))
    }

    /// Wraps memory that is mapped for no device: its addresses are this process's own.
    fn for_host(memory: HostMemory) -> Arc<Region> {
        let at = memory.as_ptr();
        let iova = Iova(at.as_ptr().addr() as u64);
        let is_shared = memory.is_shared();
        let memory = Held::Host(memory);
        Arc::new(Region { at, iova, domain: DomainId::HOST, is_shared, memory, prebuilt: None })
    }

    /// Returns the start address in this process.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.at
    }

    pub(crate) fn bytes(&self) -> usize {
        self.memory.memory().len()
    }

    /// Returns the first `len` bytes as one buffer. Only the creator of a region may call this, once.
    pub(crate) fn into_buffer(self: Arc<Region>, len: usize) -> Buffer {
        assert!(len <= self.memory.memory().len(), "a buffer lies in its region");
        Buffer { iova: self.iova, len, region: self }
    }
}

/// Builds PRP lists for `pages` pages at `region`, in their own memory.
pub(crate) fn prebuild(
    bus: &Arc<dyn Bus>,
    region: Iova,
    pages: u64,
) -> Result<(PrebuiltPrps, Mapping)> {
    let lists = Mapping::allocate_read_only(bus, PrebuiltPrps::bytes_for(pages) as usize)?;
    let words = lists.atomics();
    let prps = PrebuiltPrps::build(region, pages, lists.iova, |word, value| {
        words.words()[word].store(value.to_le(), Ordering::Relaxed);
    });
    Ok((prps, lists))
}

/// An exclusive run of a [`Region`], readable and writable as a byte slice while idle, unless others may write its bytes
/// ([`HostMemory::adopt_shared`]).
pub struct Buffer {
    iova: Iova,
    len: usize,
    region: Arc<Region>,
}

// SAFETY: a region's pointer is only used through its buffers, each of which is the
// only way to its bytes, like a `Box<[u8]>`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Buffer {
    /// Splits off the bytes from `at` on and keeps those before.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    pub fn split_off(&mut self, at: usize) -> Buffer {
        assert!(at <= self.len, "cannot split {} bytes at {at}", self.len);
        let tail = Buffer {
            iova: Iova(self.iova.0 + at as u64),
            len: self.len - at,
            region: Arc::clone(&self.region),
        };
        self.len = at;
        tail
    }

    /// Undoes [`Buffer::split_off`]: appends the run directly behind this one.
    ///
    /// # Errors
    /// Returns `tail` if it does not follow directly in the same region.
    pub fn join(&mut self, tail: Buffer) -> Result<(), Buffer> {
        let is_next = self.iova.0 + self.len as u64 == tail.iova.0;
        if !is_next || !Arc::ptr_eq(&self.region, &tail.region) {
            return Err(tail);
        }
        self.len += tail.len;
        Ok(())
    }

    /// Returns this process's address of the first byte.
    #[inline(always)]
    fn at(&self) -> NonNull<u8> {
        let offset = (self.iova.0 - self.region.iova.0) as usize;
        // SAFETY: a buffer lies in its region, whose addresses here and there go in step.
        unsafe { self.region.at.add(offset) }
    }

    /// Returns its length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns this process's address of the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.at().as_ptr()
    }

    /// Returns whether others may write its bytes at any time, so that it lends no slice of them.
    pub fn is_shared(&self) -> bool {
        self.region.is_shared
    }

    /// Returns its bytes, to be copied to any memory.
    pub fn bytes(&self) -> SharedBytes<'_> {
        // SAFETY: the region keeps the run mapped; mutable references to its bytes borrow the buffer, and there are none
        // of shared memory (`HostMemory::adopt_shared`).
        unsafe { SharedBytes::new(self.at(), self.len) }
    }

    /// Returns its bytes, to be copied from any memory.
    pub fn bytes_mut(&mut self) -> SharedBytesMut<'_> {
        // SAFETY: as in `bytes`, and we are borrowed mutably.
        unsafe { SharedBytesMut::new(self.at(), self.len) }
    }

    /// # Panics
    /// If others may write its bytes: a bug of a caller's, as it knows what memory it registered.
    #[inline(always)]
    fn check_own(&self) {
        assert!(!self.region.is_shared, "others may write this memory: copy it by Buffer::bytes");
    }

    /// Returns the device's address of the first byte.
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// Returns the buffer's region, to be kept as long as its address is in use.
    pub(crate) fn region(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }

    /// Returns the kind of pages behind it.
    pub fn pages(&self) -> PageKind {
        self.region.memory.memory().pages()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.check_own();
        // SAFETY: the region keeps the run mapped; it is exclusively ours and, while we are not inside a
        // queue, no command of the device names it.
        unsafe { std::slice::from_raw_parts(self.at().as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.check_own();
        // SAFETY: as in `deref`, and we are borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at().as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}+{:#x})", self.iova, self.len)
    }
}

/// The first bytes of a [`Buffer`], for a shorter transfer.
#[derive(Debug)]
pub struct Prefix {
    buffer: Buffer,
    len: usize,
}

impl Prefix {
    /// Limits `buffer` to its first `len` bytes.
    ///
    /// # Panics
    /// If the buffer is shorter.
    #[inline(always)]
    pub fn new(buffer: Buffer, len: usize) -> Prefix {
        assert!(len <= buffer.len, "a prefix lies in its buffer");
        Prefix { buffer, len }
    }

    /// Returns the whole buffer.
    #[inline(always)]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl Deref for Prefix {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

/// Data that a command can own in flight: none, a [`Buffer`], several, or any of these with a caller's tag.
///
/// # Safety
/// Segments stay mapped for the device, and nothing else touches their bytes, for as long as the value
/// exists, wherever it is moved. Segment `index` starts at the start of buffer `index`.
pub unsafe trait IoBuffer: Send + 'static {
    /// Returns the number of segments.
    fn segment_count(&self) -> usize;
    /// Returns the buffer of segment `index`, if that is below the count.
    fn buffer(&self, index: usize) -> Option<&Buffer>;

    /// Returns segment `index`, which is below the count.
    #[inline(always)]
    fn segment(&self, index: usize) -> Segment {
        let buffer = self.buffer(index).expect(BELOW_COUNT);
        Segment { iova: buffer.iova, len: buffer.len as u64 }
    }

    /// Returns the host's address of segment `index`, valid for its length.
    #[inline(always)]
    fn pointer(&self, index: usize) -> NonNull<u8> {
        self.buffer(index).expect(BELOW_COUNT).at()
    }

    /// Returns prebuilt PRP lists that cover segment `index`.
    #[inline(always)]
    fn prebuilt(&self, index: usize) -> Option<&PrebuiltPrps> {
        self.region_of(index)?.prebuilt.as_ref().map(|(prps, _)| prps)
    }

    /// Returns whether all segments are mapped in `domain`.
    #[inline(always)]
    fn is_in(&self, domain: DomainId) -> bool {
        let is_in = |index| self.region_of(index).is_some_and(|region| region.domain == domain);
        (0..self.segment_count()).all(is_in)
    }

    /// Returns the region that contains segment `index`.
    #[inline(always)]
    fn region_of(&self, index: usize) -> Option<&Arc<Region>> {
        self.buffer(index).map(|buffer| &buffer.region)
    }
}

const BELOW_COUNT: &str = "a segment's number is below the count";

// SAFETY: a `Buffer` owns its run exclusively and keeps its region mapped.
unsafe impl IoBuffer for Buffer {
    #[inline(always)]
    fn segment_count(&self) -> usize {
        1
    }

    #[inline(always)]
    fn buffer(&self, _index: usize) -> Option<&Buffer> {
        Some(self)
    }
}

// SAFETY: as the buffer, of which it is the start.
unsafe impl IoBuffer for Prefix {
    #[inline(always)]
    fn segment_count(&self) -> usize {
        1
    }

    #[inline(always)]
    fn buffer(&self, _index: usize) -> Option<&Buffer> {
        Some(&self.buffer)
    }

    #[inline(always)]
    fn segment(&self, _index: usize) -> Segment {
        Segment { iova: self.buffer.iova, len: self.len as u64 }
    }
}

// SAFETY: no segments, nothing to promise.
unsafe impl IoBuffer for () {
    fn segment_count(&self) -> usize {
        0
    }

    fn buffer(&self, _index: usize) -> Option<&Buffer> {
        None
    }
}

// SAFETY: as each of the buffers; moving the vector does not move them.
unsafe impl IoBuffer for Vec<Buffer> {
    fn segment_count(&self) -> usize {
        self.len()
    }

    fn buffer(&self, index: usize) -> Option<&Buffer> {
        self.get(index)
    }
}

/// Any data a command may own as one type, for queues that mix them.
#[derive(Debug, Default)]
pub enum AnyBuffer {
    /// No data.
    #[default]
    None,
    /// One buffer.
    One(Buffer),
    /// Several, in order.
    Many(Vec<Buffer>),
}

impl From<Buffer> for AnyBuffer {
    fn from(buffer: Buffer) -> AnyBuffer {
        AnyBuffer::One(buffer)
    }
}

impl From<Vec<Buffer>> for AnyBuffer {
    fn from(buffers: Vec<Buffer>) -> AnyBuffer {
        AnyBuffer::Many(buffers)
    }
}

// SAFETY: as the variant's own implementation.
unsafe impl IoBuffer for AnyBuffer {
    #[inline(always)]
    fn segment_count(&self) -> usize {
        match self {
            AnyBuffer::None => 0,
            AnyBuffer::One(_) => 1,
            AnyBuffer::Many(buffers) => buffers.len(),
        }
    }

    #[inline(always)]
    fn buffer(&self, index: usize) -> Option<&Buffer> {
        match self {
            AnyBuffer::None => None,
            AnyBuffer::One(buffer) => Some(buffer),
            AnyBuffer::Many(buffers) => buffers.get(index),
        }
    }
}

// SAFETY: as the buffer inside.
unsafe impl<B: IoBuffer> IoBuffer for Option<B> {
    #[inline(always)]
    fn segment_count(&self) -> usize {
        self.as_ref().map_or(0, B::segment_count)
    }

    #[inline(always)]
    fn buffer(&self, index: usize) -> Option<&Buffer> {
        self.as_ref()?.buffer(index)
    }

    #[inline(always)]
    fn segment(&self, index: usize) -> Segment {
        self.as_ref().expect(BELOW_COUNT).segment(index)
    }
}

// SAFETY: as the buffer; the device never sees the tag.
unsafe impl<B: IoBuffer, T: Send + 'static> IoBuffer for (B, T) {
    #[inline(always)]
    fn segment_count(&self) -> usize {
        self.0.segment_count()
    }

    #[inline(always)]
    fn buffer(&self, index: usize) -> Option<&Buffer> {
        self.0.buffer(index)
    }

    #[inline(always)]
    fn segment(&self, index: usize) -> Segment {
        self.0.segment(index)
    }
}

/// The segments of a buffer, for the planner.
pub(crate) struct SegmentsOf<'a, B>(pub(crate) &'a B);

impl<B: IoBuffer> SegmentList for SegmentsOf<'_, B> {
    #[inline]
    fn segment_count(&self) -> usize {
        self.0.segment_count()
    }

    #[inline]
    fn segment(&self, index: usize) -> Segment {
        self.0.segment(index)
    }
}

/// Maps memory for a device, as one buffer.
pub(crate) fn register(bus: &Arc<dyn Bus>, memory: HostMemory) -> Result<Buffer> {
    let len = memory.len();
    Ok(Region::new(bus, memory)?.into_buffer(len))
}

/// Wraps memory for the kernel's paths, as one buffer.
pub(crate) fn register_for_host(memory: HostMemory) -> Buffer {
    let len = memory.len();
    Region::for_host(memory).into_buffer(len)
}

/// Allocates a region of at least `len` bytes and returns `len` of them.
pub(crate) fn allocate(bus: &Arc<dyn Bus>, len: usize) -> Result<Buffer> {
    if len == 0 {
        return Err(Error::invalid("a buffer", "0 bytes requested"));
    }
    Ok(Region::new(bus, near(bus, len)?)?.into_buffer(len))
}

/// Allocates memory for the kernel's paths, mapped for no device.
pub(crate) fn allocate_for_host(len: usize) -> Result<Buffer> {
    if len == 0 {
        return Err(Error::invalid("a buffer", "0 bytes requested"));
    }
    let memory = HostMemory::allocate_anywhere(len, Backing::Any)?;
    Ok(Region::for_host(memory).into_buffer(len))
}

/// Allocates memory near the device, if its node is known.
pub(crate) fn near(bus: &Arc<dyn Bus>, len: usize) -> Result<HostMemory> {
    let locality = bus.locality();
    if locality.numa_node.is_none() {
        return HostMemory::allocate_anywhere(len, bus.backing());
    }
    HostMemory::allocate(len, bus.backing(), &crate::locality::place_near(&locality))
}

#[cfg(test)]
mod shapes;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::soft::{Drive, SoftBus};

    #[test]
    fn the_device_cannot_write_prebuilt_lists() {
        let options = "mem=1M".parse().expect("options");
        let soft = SoftBus::new(options, Drive::Manual).expect("a bus");
        let bus: Arc<dyn Bus> = Arc::<SoftBus>::clone(&soft);
        let (prps, lists) = prebuild(&bus, Iova(1 << 33), 8).expect("lists");
        let [first, _] = prps.tables();
        // SAFETY: no reference to the lists exists.
        let (written, read) = unsafe {
            soft.with_memory(|memory| {
                let mut word = [0; 8];
                (memory.write(first, &word), memory.read(first, &mut word).map(|()| word))
            })
        };
        assert!(written.is_err(), "a data page that was a list would be overwritten by reads");
        assert_eq!(read.expect("mapped"), (1u64 << 33).to_le_bytes());
        drop(lists);
    }
}
