//! Memory of this process for DMA.
//!
//! [`HostMemory::allocate`] takes the largest free pages: 1 GiB and 2 MiB hugepages, then transparent hugepages, then 4
//! KiB pages. It uses an unlinked memory file or an anonymous mapping, which leaves nothing behind when the process is
//! killed and needs no mounted hugetlbfs. [`HostMemory::adopt`] takes memory that the caller owns.
//!
//! Memory is not locked here: mapping it for DMA pins it, and the bus that pins it reports which limit refused.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::Atomics;
use crate::error::{Error, Result};

const SMALL: usize = 4 << 10;
const HUGE: usize = 2 << 20;
const GIANT: usize = 1 << 30;

/// The pages behind a piece of memory, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// 1 GiB hugepages.
    Huge1G,
    /// 2 MiB hugepages.
    Huge2M,
    /// Ordinary pages that the kernel may merge into 2 MiB ones.
    Transparent,
    /// 4 KiB pages.
    Small,
    /// The caller's own memory, of unknown pages.
    Caller,
}

impl PageKind {
    /// Returns how many bytes lie together in physical memory, as far as is known.
    pub fn bytes(self) -> usize {
        match self {
            PageKind::Huge1G => GIANT,
            PageKind::Huge2M | PageKind::Transparent => HUGE,
            PageKind::Small | PageKind::Caller => SMALL,
        }
    }
}

/// Required backing of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Any memory that this process can read and write.
    Any,
    /// A file descriptor that another process can map, as vfio-user servers need.
    SharedFile,
}

enum Source {
    Mapped(MmapRaw),
    Adopted(#[allow(dead_code, reason = "held, not read")] Box<dyn Any + Send + Sync>),
}

/// Memory for DMA, owned until dropped.
pub struct HostMemory {
    at: NonNull<u8>,
    len: usize,
    file: Option<(File, u64)>,
    pages: PageKind,
    /// Others than this process's Rust code may write it at any time.
    is_shared: bool,
    /// Present until the drop.
    source: Option<Source>,
}

// SAFETY: the memory is owned (or its owner is held) and only reached through
// pointers whose users say why they may.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

/// A borrowed view of [`HostMemory`] for a bus to map. Only [`HostMemory::range`] makes one, so that a bus never gets
/// memory without an owner.
#[derive(Clone, Copy)]
pub struct HostRange<'a> {
    /// First byte in this process; 4 KiB aligned.
    pub(crate) at: NonNull<u8>,
    /// Length in bytes; a multiple of 4 KiB.
    pub(crate) len: usize,
    /// The file behind it, if any, and the offset of the first byte.
    pub(crate) file: Option<(BorrowedFd<'a>, u64)>,
    /// Whether the device may write it, if the bus can enforce that.
    pub(crate) is_writable: bool,
}

/// Largest small private mapping. A start or a recovery makes dozens; they are not faulted in up front, and are reused
/// after their release.
const SMALL_MAX: usize = 64 << 10;
/// Maximum number of released small mappings that a thread keeps for reuse.
const SPARE_MAX: usize = 32;

thread_local! {
    /// Released small private mappings; no other owner of their addresses is left.
    static SPARE: RefCell<Vec<MmapRaw>> = const { RefCell::new(Vec::new()) };
}

impl HostRange<'_> {
    /// Restricts the device to reading.
    pub fn read_only(self) -> Self {
        HostRange { is_writable: false, ..self }
    }

    /// Returns the length in bytes, for a [`crate::bus::Bus`] that forwards the range and accounts for it.
    pub fn bytes(&self) -> u64 {
        self.len as u64
    }
}

impl HostMemory {
    /// Allocates at least `len` zeroed bytes in the largest pages that fit without wasting more than they save. Calls
    /// `place` with the fresh mapping before its pages exist, to choose their NUMA node.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes, [`Error::Refused`] when even 4 KiB pages run out.
    pub fn allocate(
        len: usize,
        backing: Backing,
        place: &dyn Fn(NonNull<u8>, usize),
    ) -> Result<HostMemory> {
        if len == 0 {
            return Err(Error::invalid("DMA memory", "0 bytes requested"));
        }
        let whole = len.checked_next_multiple_of(GIANT);
        if whole.is_none_or(|whole| whole > isize::MAX as usize) {
            return Err(Error::invalid(
                "DMA memory",
                format!("{len} bytes requested, more than there are addresses for"),
            ));
        }
        for (pages, size) in [(PageKind::Huge1G, GIANT), (PageKind::Huge2M, HUGE)] {
            if len >= size / 2
                && let Some(memory) = Self::huge(len.next_multiple_of(size), pages, place)
            {
                return Ok(memory);
            }
        }
        Self::ordinary(len.next_multiple_of(SMALL), backing, place)
    }

    /// Allocates on any node. Reuses this thread's released small mappings without a system call.
    ///
    /// # Errors
    /// As [`HostMemory::allocate`].
    pub fn allocate_anywhere(len: usize, backing: Backing) -> Result<HostMemory> {
        let whole = len.checked_next_multiple_of(SMALL).filter(|_| backing == Backing::Any);
        match whole.and_then(take_spare) {
            Some(map) => Ok(Self::of(map, None, PageKind::Small)),
            None => Self::allocate(len, backing, &|_, _| ()),
        }
    }

    fn of(map: MmapRaw, file: Option<File>, pages: PageKind) -> HostMemory {
        let at = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero");
        let (len, file) = (map.len(), file.map(|file| (file, 0)));
        HostMemory { at, len, file, pages, is_shared: false, source: Some(Source::Mapped(map)) }
    }

    /// Adopts memory that the caller owns: any mapping, memfd or pinned pool. `file` is the file behind it and the
    /// offset of the first byte; only vfio-user needs it.
    ///
    /// # Safety
    /// `owner` keeps `at..at+len` mapped, readable and writable while it lives. No Rust reference to those bytes is used
    /// while a device is given them, and nothing writes them while a buffer of them lends a slice: for memory that others
    /// may write at any time there is [`HostMemory::adopt_shared`].
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `at` and `len` are multiples of 4 KiB.
    pub unsafe fn adopt(
        at: NonNull<u8>,
        len: usize,
        file: Option<(File, u64)>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<HostMemory> {
        if len == 0 || !len.is_multiple_of(SMALL) || !at.addr().get().is_multiple_of(SMALL) {
            return Err(Error::invalid(
                format!("memory to register at {at:p}, {len} bytes"),
                "address and length must be multiples of 4096 (register the whole mapping)",
            ));
        }
        Ok(HostMemory {
            at,
            len,
            file,
            pages: PageKind::Caller,
            is_shared: false,
            source: Some(Source::Adopted(owner)),
        })
    }

    /// Like [`HostMemory::adopt`], for memory that others may write at any time, as another process that maps it. Buffers
    /// of it lend no slices: their bytes are copied ([`SharedBytes`](super::SharedBytes)).
    ///
    /// # Safety
    /// `owner` keeps `at..at+len` mapped, readable and writable while it lives, and no Rust reference to those bytes is
    /// used meanwhile.
    ///
    /// # Errors
    /// As [`HostMemory::adopt`].
    pub unsafe fn adopt_shared(
        at: NonNull<u8>,
        len: usize,
        file: Option<(File, u64)>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<HostMemory> {
        // SAFETY: passed on to our caller; buffers of it lend no slices.
        let mut memory = unsafe { Self::adopt(at, len, file, owner)? };
        memory.is_shared = true;
        Ok(memory)
    }

    /// Has the kernel gather adopted memory in pages of 2 MiB, as far as it is aligned to them, and all of it then has
    /// pages: what was not used yet is allocated, and what was is moved, at some GB/s. Its bytes do not change. Returns
    /// whether it now has such pages: not of memory that is pinned, that is shorter, or of a file that has none, and not
    /// before Linux 6.1.
    pub fn gather_pages(&mut self) -> bool {
        let (at, page) = (self.at.as_ptr(), HUGE);
        let skip = at.align_offset(page).min(self.len);
        let len = (self.len - skip) / page * page;
        if self.pages != PageKind::Caller || len == 0 {
            return false;
        }
        let advise = |advice| {
            // SAFETY: the range lies in memory that the owner keeps mapped. The advice moves pages and changes no byte.
            unsafe { libc::madvise(at.wrapping_add(skip).cast(), len, advice) == 0 }
        };
        let is_gathered = advise(libc::MADV_HUGEPAGE) && advise(libc::MADV_COLLAPSE);
        if is_gathered {
            self.pages = PageKind::Transparent;
        }
        is_gathered
    }

    fn huge(len: usize, pages: PageKind, place: &dyn Fn(NonNull<u8>, usize)) -> Option<HostMemory> {
        let size_flag =
            if pages == PageKind::Huge1G { MFdFlags::MFD_HUGE_1GB } else { MFdFlags::MFD_HUGE_2MB };
        let file = memory_file(len, MFdFlags::MFD_HUGETLB | size_flag).ok()?;
        // Mapping a hugetlb file reserves its pages, so that a shortage shows here and not as a fault later.
        let map = MmapOptions::new().len(len).map_raw(&file).ok()?;
        Self::populated(map, Some(file), pages, place).ok()
    }

    fn ordinary(
        len: usize,
        backing: Backing,
        place: &dyn Fn(NonNull<u8>, usize),
    ) -> Result<HostMemory> {
        let refused = |why: std::io::Error| {
            Error::refused(
                "host memory",
                format!("allocate {len} bytes"),
                why,
                "free memory or ask for less",
            )
        };
        let (map, file) = match backing {
            Backing::SharedFile => {
                let file = memory_file(len, MFdFlags::empty()).map_err(refused)?;
                (MmapOptions::new().len(len).map_raw(&file).map_err(refused)?, Some(file))
            }
            Backing::Any => {
                (MmapRaw::from(MmapOptions::new().len(len).map_anon().map_err(refused)?), None)
            }
        };
        let merged = len >= HUGE && map.advise(memmap2::Advice::HugePage).is_ok();
        let pages = if merged { PageKind::Transparent } else { PageKind::Small };
        Self::populated(map, file, pages, place).map_err(refused)
    }

    fn populated(
        map: MmapRaw,
        file: Option<File>,
        pages: PageKind,
        place: &dyn Fn(NonNull<u8>, usize),
    ) -> std::io::Result<HostMemory> {
        let len = map.len();
        place(NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero"), len);
        // Faults every page in now: running out must fail here, not as SIGBUS under I/O. Small private mappings are
        // left to their first use or pin: a start makes dozens, most of them unused.
        if file.is_some() || len > SMALL_MAX {
            map.advise(memmap2::Advice::PopulateWrite)?;
        }
        Ok(Self::of(map, file, pages))
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.at
    }

    /// Returns the length in bytes, a multiple of the page size.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: memory has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether others may write it at any time, so that there may be no reference to its bytes.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns the kind of its pages.
    pub fn pages(&self) -> PageKind {
        self.pages
    }

    /// Returns the file behind it, if any, and the offset of the first byte, for handing the memory to another device
    /// or process.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.file.as_ref().map(|(file, offset)| (file.as_fd(), *offset))
    }

    /// Returns the view that a bus maps.
    pub fn range(&self) -> HostRange<'_> {
        HostRange { at: self.at, len: self.len, file: self.file(), is_writable: true }
    }

    /// Returns the memory as atomics, sharing ownership.
    pub fn atomics(self: &Arc<Self>) -> Atomics {
        let owner: Arc<dyn Any + Send + Sync> = Arc::<Self>::clone(self);
        // SAFETY: `owner` keeps the mapping; DMA memory has no plain references while shared.
        unsafe { Atomics::new(self.at, self.len, owner) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Some(Source::Mapped(map)) = self.source.take()
            && self.file.is_none()
            && self.len <= SMALL_MAX
        {
            give_spare(map);
        }
    }
}

/// Takes a released mapping of `len` bytes and zeroes it.
fn take_spare(len: usize) -> Option<MmapRaw> {
    let take = |spare: &RefCell<Vec<MmapRaw>>| {
        let mut spare = spare.borrow_mut();
        let index = spare.iter().rposition(|map| map.len() == len)?;
        Some(spare.swap_remove(index))
    };
    let map = SPARE.try_with(take).ok().flatten()?;
    // SAFETY: the mapping is ours alone and `len` bytes long.
    unsafe { map.as_mut_ptr().write_bytes(0, len) };
    Some(map)
}

fn give_spare(map: MmapRaw) {
    // Fails during thread exit, which keeps nothing.
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < SPARE_MAX {
            spare.push(map);
        }
    });
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({:p}+{:#x}, {:?})", self.at, self.len, self.pages)
    }
}

fn memory_file(len: usize, flags: MFdFlags) -> std::io::Result<File> {
    let flags = flags | MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(c"adit-dma", flags)?);
    file.set_len(len as u64)?;
    // Another holder of the file (a vfio-user server) cannot shrink it under our mapping.
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::Ordering;

    #[test]
    fn allocation_is_zeroed_aligned_and_at_least_as_long() {
        for len in [1, 4096, 5000, 3 << 20] {
            let memory =
                Arc::new(HostMemory::allocate(len, Backing::Any, &|_, _| ()).expect("memory"));
            assert!(memory.len() >= len && memory.len().is_multiple_of(SMALL));
            assert!(memory.as_ptr().addr().get().is_multiple_of(SMALL));
            assert!(memory.atomics().words().iter().all(|w| w.load(Ordering::Relaxed) == 0));
        }
    }

    #[test]
    fn memory_that_is_used_again_is_zeroed_and_never_shared() {
        let fresh = HostMemory::allocate_anywhere(8192, Backing::Any).expect("memory");
        let place = fresh.as_ptr();
        Arc::new(fresh).atomics().words()[5].store(7, Ordering::Relaxed);
        let again = Arc::new(HostMemory::allocate_anywhere(5000, Backing::Any).expect("memory"));
        assert_eq!((again.as_ptr(), again.len()), (place, 8192), "of the same pages");
        assert!(again.atomics().words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        let other = HostMemory::allocate_anywhere(8192, Backing::Any).expect("memory");
        assert_ne!(other.as_ptr(), place);
    }

    #[test]
    fn placement_sees_the_whole_mapping() {
        let seen = Cell::new(0);
        let memory =
            HostMemory::allocate(8192, Backing::Any, &|_, len| seen.set(len)).expect("memory");
        assert_eq!(seen.get(), memory.len());
    }

    #[test]
    fn shared_backing_has_a_file_and_nothing_is_too_little() {
        let memory = HostMemory::allocate(4096, Backing::SharedFile, &|_, _| ()).expect("memory");
        let (file, _) = memory.range().file.expect("a file");
        let file = File::from(file.try_clone_to_owned().expect("a second descriptor"));
        assert!(file.set_len(0).is_err(), "the file cannot be truncated");
        for len in [0, usize::MAX, usize::MAX / 2] {
            assert!(HostMemory::allocate(len, Backing::Any, &|_, _| ()).is_err());
        }
    }

    #[test]
    fn gathered_memory_has_the_bytes_that_it_had() {
        const LEN: usize = 7 << 20;
        let map = MmapRaw::from(MmapOptions::new().len(LEN).map_anon().expect("memory"));
        let at = NonNull::new(map.as_mut_ptr()).expect("a mapping");
        let byte = |index: usize| (index / 4096 % 251) as u8;
        for index in (0..LEN).step_by(4096) {
            // SAFETY: within the mapping, which no one else uses.
            unsafe { at.add(index).write(byte(index)) };
        }
        // SAFETY: the mapping is the owner, and has no references.
        let adopted = unsafe { HostMemory::adopt(at, LEN, None, Box::new(map)) };
        let mut memory = adopted.expect("whole pages");
        assert_eq!(memory.pages(), PageKind::Caller);
        let is_gathered = memory.gather_pages();
        let pages = if is_gathered { PageKind::Transparent } else { PageKind::Caller };
        assert_eq!(memory.pages(), pages);
        // SAFETY: as above.
        let is_same = |index: usize| unsafe { at.add(index).read() } == byte(index);
        assert!((0..LEN).step_by(4096).all(is_same));
    }

    #[test]
    fn memory_shorter_than_a_huge_page_is_not_gathered() {
        let map = MmapRaw::from(MmapOptions::new().len(8192).map_anon().expect("memory"));
        let at = NonNull::new(map.as_mut_ptr()).expect("a mapping");
        // SAFETY: the mapping is the owner, and has no references.
        let adopted = unsafe { HostMemory::adopt(at, 8192, None, Box::new(map)) };
        assert!(!adopted.expect("whole pages").gather_pages());
        let own = HostMemory::allocate(4 << 20, Backing::Any, &|_, _| ());
        assert!(!own.expect("memory").gather_pages(), "only what was adopted");
    }

    #[test]
    fn adopting_wants_whole_pages() {
        let at = NonNull::new(0x1001 as *mut u8).expect("not null");
        // SAFETY: refused before anything is read.
        assert!(unsafe { HostMemory::adopt(at, 4096, None, Box::new(())) }.is_err());
    }
}
