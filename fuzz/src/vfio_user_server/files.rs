//! The files that clients hand over, and what they do to them afterwards.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::input::Input;

pub(super) const PAGE: u64 = 4096;
/// Pages of each memory file.
pub(super) const PAGES: u64 = 16;

/// Memory files that can be sealed, cannot, and are; eventfds; and others.
pub(super) struct Files {
    memory: Vec<File>,
    eventfds: Vec<EventFd>,
    others: Vec<File>,
}

impl Files {
    pub(super) fn new() -> Files {
        let sealable = MFdFlags::MFD_ALLOW_SEALING;
        let memory = [sealable, sealable, MFdFlags::empty(), MFdFlags::empty(), sealable];
        let memory: Vec<File> = memory.into_iter().map(memory_file).collect();
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        fcntl(&memory[4], FcntlArg::F_ADD_SEALS(seals)).expect("a memfd can be sealed");
        let paths = ["/dev/null", "/proc/self/status", "/"];
        Files {
            memory,
            eventfds: (0..3)
                .map(|_| EventFd::from_flags(EfdFlags::empty()).expect("eventfd"))
                .collect(),
            others: paths.map(|path| File::open(path).expect("a file")).into(),
        }
    }

    fn eventfd(&self, which: usize) -> &EventFd {
        &self.eventfds[which % self.eventfds.len()]
    }

    /// Returns a file, mostly memory.
    pub(super) fn any(&self, which: u8) -> RawFd {
        let which = usize::from(which);
        match which {
            0..224 => self.memory[which % self.memory.len()].as_raw_fd(),
            224..240 => self.eventfd(which).as_fd().as_raw_fd(),
            _ => self.others[which % self.others.len()].as_raw_fd(),
        }
    }

    /// Returns a file, mostly an eventfd.
    pub(super) fn eventfd_or_other(&self, which: u8) -> RawFd {
        match which {
            0..240 => self.eventfd(which.into()).as_fd().as_raw_fd(),
            _ => self.any((which - 240) << 4),
        }
    }

    /// Writes bytes to memory; a file sealed against growing may refuse.
    pub(super) fn write(&self, which: u8, at: u64, bytes: &[u8]) {
        let file = &self.memory[usize::from(which) % self.memory.len()];
        let _ = file.write_all_at(bytes, at);
    }

    /// Truncates or extends memory, or punches a hole; seals may refuse.
    pub(super) fn resize(&self, input: &mut Input) {
        let file = &self.memory[usize::from(input.byte()) % self.memory.len()];
        let pages = u64::from(input.byte()) % (PAGES + 4);
        if input.byte() & 3 == 3 {
            let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            let _ = fallocate(file, flags, 0, (pages * PAGE) as i64 + 1);
        } else {
            let _ = file.set_len(pages * PAGE);
        }
    }

    /// Fills an eventfd, empties it, or changes whether writers to it wait.
    pub(super) fn disturb_eventfd(&self, input: &mut Input) {
        let eventfd = self.eventfd(input.byte().into());
        let flags = |flags| fcntl(eventfd, FcntlArg::F_SETFL(flags)).map(drop);
        flags(OFlag::O_NONBLOCK).expect("an open file");
        match input.byte() % 3 {
            0 => drop(eventfd.write(u64::MAX - 1)),
            1 => drop(eventfd.read()),
            _ => {}
        }
        if input.byte() & 1 == 0 {
            flags(OFlag::empty()).expect("an open file");
        }
    }
}

fn memory_file(flags: MFdFlags) -> File {
    let file = File::from(memfd_create(c"adit-fuzz", flags).expect("memfd"));
    file.set_len(PAGES * PAGE).expect("room");
    file
}
