//! Clients' memory in the server: which files it maps, and how many bytes.
//!
//! The server maps only memory files of ordinary pages. They are sealed against shortening, so that none of its
//! accesses faults, and against holes, with every page present, so that it is never charged for one: a page counts
//! towards the control group of the process that touches it first, here the client. Where another process maps the
//! files too ([`Allowance::maps_files`]), they cannot be sealed against holes, and the server's group must have room
//! for all of them.
//!
//! The client may write the bytes at any time, even while a device or the store reads them. Its put then does not match
//! its checksum and is a miss later, or its get finds other bytes. Nothing else depends on these bytes: no length,
//! offset or decision is read from them, and the store holds no reference to them, but copies them and sums the copy
//! ([`HostMemory::adopt_shared`]).
#![allow(unsafe_code)]

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_driver::serve::parts::{first_hole, page_bytes, seal_length, seal_pages};
use adit_driver::sys::HostMemory;
use adit_kvstore::memory::{Memory, Probe, budget};
use adit_shared::Atomics;

use super::counts::add;
use crate::mapping::{Mapping, PAGE};
use crate::wire::Reason;

/// The clients' memory that a server maps, and its limits.
#[derive(Clone, Debug)]
pub(super) struct Allowance {
    /// Bytes that are mapped, for rings or for requests.
    pub(super) mapped_bytes: Arc<AtomicU64>,
    /// The mappings of these.
    pub(super) mappings: Arc<AtomicU64>,
    /// The most bytes.
    pub(super) bytes_max: u64,
    /// A device's process maps the files, too, so that they must stay mappable.
    pub(super) maps_files: bool,
}

/// The most mappings: a process may have 65530 (`vm.max_map_count`).
const MAPPINGS_MAX: u64 = 16 << 10;

/// The bytes that one mapping takes of an allowance until it is dropped.
struct Counted {
    bytes: u64,
    mapped_bytes: Arc<AtomicU64>,
    mappings: Arc<AtomicU64>,
}

impl Allowance {
    fn take(&self, bytes: u64) -> Result<Counted, Reason> {
        let Allowance { mapped_bytes, mappings, bytes_max: most, .. } = self;
        if let Err(has) = add(mapped_bytes, bytes, *most) {
            return Err(Reason::limit(format!(
                "{bytes} bytes more than the {has} that all clients share; together they may share {most}: raise \
                 the server's --memory-all, or share less"
            )));
        }
        if add(mappings, 1, MAPPINGS_MAX).is_err() {
            mapped_bytes.fetch_sub(bytes, Ordering::Relaxed);
            let why =
                "all clients together share too many pieces of memory: share fewer, larger ones";
            return Err(Reason::limit(why));
        }
        let (mapped_bytes, mappings) = (Arc::clone(mapped_bytes), Arc::clone(mappings));
        Ok(Counted { bytes, mapped_bytes, mappings })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.mapped_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.mappings.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Maps `bytes` of a client's file as rings.
///
/// # Errors
/// Why the server does not map it.
pub(super) fn rings(file: &File, bytes: usize, allowance: &Allowance) -> Result<Atomics, Reason> {
    // No device maps rings.
    let allowance = Allowance { maps_files: false, ..allowance.clone() };
    let owner = map_checked(file, bytes as u64, &allowance)?;
    let (at, len) = (owner.0.start(), owner.0.len());
    // SAFETY: `owner` keeps the mapping of `len` bytes; this is the only view of it here, and the file behind it
    // cannot become shorter.
    Ok(unsafe { Atomics::new(at, len, Arc::new(owner)) })
}

/// Maps `bytes` of a client's file as memory for a store to register. The descriptor is kept only where a device needs
/// it, so that clients do not use the server's up.
///
/// # Errors
/// Why the server does not map it.
pub(super) fn dma(file: File, bytes: u64, allowance: &Allowance) -> Result<HostMemory, Reason> {
    let owner = map_checked(&file, bytes, allowance)?;
    // Maps the pages, which are there, now and not under a request.
    let populated = owner.0.populate();
    populated.map_err(|why| Reason::malformed(format!("there is no memory for it: {why}")))?;
    let (at, len) = (owner.0.start(), owner.0.len());
    let file = allowance.maps_files.then_some((file, 0));
    // SAFETY: the owner keeps the mapping, and this is the only one of it here: buffers of it lend no references.
    let memory = unsafe { HostMemory::adopt_shared(at, len, file, Box::new(owner)) };
    memory.map_err(Reason::malformed)
}

/// Maps a client's file, all of whose pages are present and stay so. Touches no page, because a missing one would be
/// charged to this process.
fn map_checked(
    file: &File,
    bytes: u64,
    allowance: &Allowance,
) -> Result<(Mapping, Counted), Reason> {
    match page_bytes(file) {
        Some(PAGE) => {}
        Some(other) => {
            return Err(Reason::malformed(format!(
                "its pages have {other} bytes; share memory of {PAGE}"
            )));
        }
        None => {
            return Err(Reason::malformed("it is not a memory file; share one of memfd_create"));
        }
    }
    if bytes == 0 || !bytes.is_multiple_of(PAGE) {
        return Err(Reason::malformed(format!(
            "it has {bytes} bytes; share whole pages of {PAGE}"
        )));
    }
    if !seal_length(file) {
        return Err(Reason::malformed("it can be shortened; make it with MFD_ALLOW_SEALING"));
    }
    // After it was sealed: before, the length could change.
    let has = file.metadata().map_err(Reason::malformed)?.len();
    if has < bytes {
        return Err(Reason::malformed(format!(
            "the file has {has} bytes, {bytes} are to be shared"
        )));
    }
    let len = usize::try_from(bytes).map_err(Reason::malformed)?;
    let counted = allowance.take(bytes)?;
    let may_take = match allowance.maps_files {
        // All these files can lose pages, which this process would then make anew.
        true => allowance.mapped_bytes.load(Ordering::Relaxed),
        false => bytes / PAGE_TABLE_PART + PAGE,
    };
    check_room(may_take)?;
    let map = Mapping::new(file, len);
    let map = map.map_err(|why| Reason::malformed(format!("cannot map it for writing: {why}")))?;
    // After it was mapped: from then on it cannot be.
    if !allowance.maps_files && !seal_pages(file) {
        let why = "pages can be taken out of it: map it, and leave it open to seals (Linux 5.1); Adit's own client of \
                   this version does";
        return Err(Reason::malformed(why));
    }
    let hole = first_hole(file).map_err(Reason::malformed)?;
    if hole < bytes {
        return Err(Reason::malformed(format!(
            "its page at {hole} is not there: write all of it before it is shared"
        )));
    }
    Ok((map, counted))
}

/// Bytes that one byte of page tables maps.
const PAGE_TABLE_PART: u64 = PAGE / 8;

/// Checks that control groups leave this process `bytes` of memory.
fn check_room(bytes: u64) -> Result<(), Reason> {
    // A system that does not describe its memory sets no limit here.
    let Ok(memory) = Probe::new().and_then(|probe| probe.memory()) else { return Ok(()) };
    let left = budget(&Memory { available_bytes: u64::MAX, ..memory }, 0);
    if bytes > left {
        let why = format!(
            "the server's control group leaves it {left} bytes, and mapping it may take {bytes}: raise its limit, or \
             share less"
        );
        return Err(Reason::limit(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::make;
    use crate::wire::Code;
    use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};

    fn allowance() -> Allowance {
        let (mapped_bytes, mappings) = Default::default();
        Allowance { mapped_bytes, mappings, bytes_max: 1 << 40, maps_files: false }
    }

    fn taken(allowance: &Allowance) -> (u64, u64) {
        let Allowance { mapped_bytes, mappings, .. } = allowance;
        (mapped_bytes.load(Ordering::Relaxed), mappings.load(Ordering::Relaxed))
    }

    fn refusal(file: File, bytes: u64) -> String {
        let allowance = allowance();
        let Reason { code, text: why, .. } = dma(file, bytes, &allowance).expect_err("not taken");
        assert_eq!((code, taken(&allowance)), (Code::Malformed, (0, 0)), "nothing stays mapped");
        why
    }

    fn touched(file: File) -> File {
        let bytes = file.metadata().expect("a file").len() as usize;
        Mapping::new(&file, bytes).expect("mapped").populate().expect("memory");
        file
    }

    #[test]
    fn only_sealed_memory_files_of_the_right_length_are_mapped() {
        let null = File::open("/dev/null").expect("a file");
        assert!(refusal(null, PAGE).contains("not a memory file"));
        let unsealable = File::from(memfd_create(c"test", MFdFlags::empty()).expect("memfd"));
        unsealable.set_len(2 * PAGE).expect("room");
        assert!(refusal(unsealable, PAGE).contains("MFD_ALLOW_SEALING"));
        let short = || touched(make(c"test", 2 * PAGE).expect("a file"));
        assert!(refusal(short(), 3 * PAGE).contains("the file has 8192 bytes, 12288"));
        for ragged in [0, 1, PAGE + 1, u64::MAX] {
            assert!(refusal(short(), ragged).contains("whole pages"), "{ragged}");
        }
        let allowance = allowance();
        let memory = dma(short(), 2 * PAGE, &allowance).expect("mapped");
        assert_eq!((memory.len(), taken(&allowance)), (8192, (8192, 1)));
        drop(memory);
        assert_eq!(taken(&allowance), (0, 0));
    }

    /// Returns the pages that a file has, and those reserved behind its end.
    fn pages(file: &File) -> u64 {
        use std::os::unix::fs::MetadataExt;
        file.metadata().expect("a file").blocks() * 512 / PAGE
    }

    #[test]
    fn pages_that_are_not_there_are_refused_before_one_is_touched() {
        let whole = || touched(make(c"test", 64 * PAGE).expect("a file"));
        let punched = |at: u64| {
            let file = whole();
            let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&file, flags, (at * PAGE) as i64, PAGE as i64).expect("a hole");
            file
        };
        // As many pages as it is long, but behind its end.
        let behind = File::from(memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).expect("memfd"));
        behind.set_len(64 * PAGE).expect("room");
        let bytes = (64 * PAGE) as i64;
        fallocate(&behind, FallocateFlags::FALLOC_FL_KEEP_SIZE, bytes, bytes).expect("room");
        let cases = [
            (make(c"test", 64 * PAGE).expect("a file"), 0, 0),
            (behind, 64, 0),
            (punched(0), 63, 0),
            (punched(63), 63, 63),
        ];
        for (file, has, hole) in cases {
            let again = file.try_clone().expect("a descriptor");
            let why = refusal(file, 64 * PAGE);
            assert!(why.contains(&format!("its page at {} is not there", hole * PAGE)), "{why}");
            assert_eq!(pages(&again), has, "no page was made");
        }
        // Pages behind the shared ones may be missing.
        dma(punched(63), 63 * PAGE, &allowance()).expect("mapped");
        let why = rings(&punched(3), 64 * PAGE as usize, &allowance()).expect_err("a hole");
        assert!(why.text.contains("its page at 12288 is not there"), "{why:?}");
    }

    #[test]
    fn pages_that_are_shared_stay() {
        let [file, of_rings] = [(); 2].map(|()| touched(make(c"test", 4 * PAGE).expect("a file")));
        let again = file.try_clone().expect("a descriptor");
        let _memory = dma(file, 4 * PAGE, &allowance()).expect("mapped");
        let _rings = rings(&of_rings, 4 * PAGE as usize, &allowance()).expect("mapped");
        for file in [again, of_rings] {
            let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&file, flags, 0, PAGE as i64).expect_err("no page can be taken out");
            assert_eq!(pages(&file), 4);
        }
        // A file sealed against further seals could lose them.
        let closed = touched(make(c"test", PAGE).expect("a file"));
        fcntl(&closed, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SEAL)).expect("sealed");
        let twin = closed.try_clone().expect("a descriptor");
        assert!(refusal(twin, PAGE).contains("pages can be taken out of it"));
        // A device's process could not map a file with this seal.
        let mapping = Allowance { maps_files: true, ..allowance() };
        let memory = dma(closed, PAGE, &mapping).expect("mapped");
        assert!(memory.file().is_some(), "the device gets the file");
    }

    #[test]
    fn all_clients_together_share_no_more_than_the_allowance() {
        let whole = || touched(make(c"test", 4 * PAGE).expect("a file"));
        let allowance = Allowance { bytes_max: 9 * PAGE, ..allowance() };
        let memory = [(); 2].map(|()| dma(whole(), 4 * PAGE, &allowance).expect("room"));
        let Reason { code, text: why, .. } = dma(whole(), 4 * PAGE, &allowance).expect_err("none");
        assert!(code == Code::Limit && why.contains("--memory-all"), "{why}");
        let Reason { code, .. } = rings(&whole(), 2 * PAGE as usize, &allowance).expect_err("none");
        assert_eq!((code, taken(&allowance)), (Code::Limit, (8 * PAGE, 2)));
        drop(memory);
        dma(whole(), 4 * PAGE, &allowance).expect("room again");
        allowance.mappings.store(MAPPINGS_MAX, Ordering::Relaxed);
        let Reason { code, text: why, .. } = dma(whole(), PAGE, &allowance).expect_err("none");
        assert!(code == Code::Limit && why.contains("too many pieces"), "{why}");
        assert_eq!(taken(&allowance), (0, MAPPINGS_MAX));
    }

    #[test]
    fn a_file_that_its_maker_left_open_is_sealed_by_the_server() {
        let file = File::from(memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).expect("memfd"));
        file.set_len(PAGE).expect("room");
        let again = file.try_clone().expect("a descriptor");
        let _memory = dma(touched(file), PAGE, &allowance()).expect("mapped");
        assert!(again.set_len(0).is_err(), "a client cannot make the server fault");
    }
}
