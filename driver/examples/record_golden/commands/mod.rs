//! The recorded commands, valid and invalid: the same list for every controller.
//!
//! All memory a command names is in one arena, so that its entry depends only on the arena's address. The
//! commands run in order and some rely on earlier ones. They expect namespace 1 with 512-byte LBAs and
//! namespace 2 with 4096-byte LBAs, of at least 16 MiB each, no namespace 7, an MDTS of 512 KiB, and queue
//! pair 1 in use.

mod admin;
mod io;
mod sgl;

use adit_driver::spec::{DataPointer, Iova, LbaCount, Sqe};

pub(crate) const ARENA_BYTES: usize = (1 << 20) + (64 << 10);
/// Offset of data in the arena: its first MiB.
const DATA: usize = 0;
/// Offset of PRP lists, SGL segments, ranges and queues.
const LISTS: usize = 1 << 20;
const PAGE: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// The admin queue.
    Admin,
    /// I/O queue 1.
    Io,
}

/// A command, the memory it expects, and how many bytes of its data to record.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Its name, unique in the list.
    pub(crate) name: &'static str,
    pub(crate) queue: Queue,
    /// Its entry, with identifier 0.
    pub(crate) sqe: Sqe,
    /// Bytes to write into the arena first, by offset.
    pub(crate) memory: Vec<(usize, Vec<u8>)>,
    /// Bytes from the arena's start to record after success.
    pub(crate) shows_bytes: usize,
}

pub(crate) fn all(arena: Iova) -> Vec<Case> {
    let arena = Arena(arena);
    let mut cases = admin::identify(arena);
    cases.extend(admin::logs(arena));
    cases.extend(admin::features(arena));
    cases.extend(admin::queues(arena));
    cases.extend(admin::others(arena));
    cases.extend(io::transfers(arena));
    cases.extend(io::prps(arena));
    cases.extend(io::bounds(arena));
    cases.extend(io::without_data(arena));
    cases.extend(io::ranges(arena));
    cases.extend(sgl::good(arena));
    cases.extend(sgl::bad(arena));
    cases.extend(admin::logs_at_the_end(arena));
    cases
}

/// The device address of the arena.
#[derive(Clone, Copy)]
struct Arena(Iova);

impl Arena {
    fn at(self, offset: usize) -> Iova {
        Iova(self.0.0 + offset as u64)
    }
}

impl Case {
    fn admin(name: &'static str, sqe: Sqe) -> Case {
        Case { name, queue: Queue::Admin, sqe, memory: Vec::new(), shows_bytes: 0 }
    }

    fn io(name: &'static str, sqe: Sqe) -> Case {
        Case { queue: Queue::Io, ..Case::admin(name, sqe) }
    }

    fn at(mut self, pointer: DataPointer) -> Case {
        self.sqe = self.sqe.with_dptr(pointer);
        self
    }

    /// Points at `bytes` of data at the arena's start, with a PRP list if needed.
    fn data(self, arena: Arena, bytes: usize) -> Case {
        let prp1 = arena.at(DATA);
        match bytes.div_ceil(PAGE) {
            0 | 1 => self.at(DataPointer::Prp { prp1, prp2: Iova(0) }),
            2 => self.at(DataPointer::Prp { prp1, prp2: arena.at(PAGE) }),
            pages => {
                let list = (1..pages).map(|page| arena.at(page * PAGE).0);
                self.at(DataPointer::Prp { prp1, prp2: arena.at(LISTS) })
                    .holding(LISTS, qwords(list))
            }
        }
    }

    /// Writes `bytes` at `offset` of the arena first.
    fn holding(mut self, offset: usize, bytes: Vec<u8>) -> Case {
        self.memory.push((offset, bytes));
        self
    }

    /// Records `bytes` of the data after success.
    fn showing(mut self, bytes: usize) -> Case {
        self.shows_bytes = bytes;
        self
    }

    /// Changes dwords of the entry beyond what the builders allow.
    fn bent(mut self, bend: impl FnOnce(&mut [u32; 16])) -> Case {
        let mut dwords = self.sqe.to_dwords();
        bend(&mut dwords);
        self.sqe = Sqe::from_dwords(dwords);
        self
    }
}

fn qwords(words: impl Iterator<Item = u64>) -> Vec<u8> {
    words.flat_map(u64::to_le_bytes).collect()
}

/// Returns `bytes` of data that change every 64 bytes, which keeps the recording small, and depend on `seed`.
fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| seed ^ (index >> 6) as u8 ^ (index >> 14) as u8).collect()
}

fn lbas(count: u32) -> LbaCount {
    LbaCount::new(count).expect("the list names 1 to 65536 LBAs")
}
