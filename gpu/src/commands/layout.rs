//! Structures shared by host and device code, as in gpu/device/layout.h.
//!
//! Sizes are asserted on both sides, and a test compares every offset with a C++ compiler's. The host writes these
//! structures whole while no kernel uses them, and reads copies; padding is explicit, so that a structure equals its
//! bytes. layout.h documents the fields and their writers.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The most entries of a queue, which leaves four bits of a command identifier for its generation.
pub const DEPTH_MAX: u32 = 4096;
pub const CONTEXTS_MAX: usize = 2048;
/// Bits of a context's place for its first LBA.
pub const LBA_BITS: u32 = 40;
pub const LBAS_MAX: u64 = 1 << 12;
pub const REGIONS_MAX: usize = 1 << 11;
/// Size of a page of PRP list entries.
pub const PAGE_BYTES: u64 = 4096;

/// A command to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(16))]
pub struct Context {
    /// Address of the data: the device's, or an offset in the region for the staged engine.
    pub address: u64,
    /// Packed by [`Context::place`].
    pub place: u64,
}

impl Context {
    /// Packs a place: bits 39:0 first LBA, 51:40 LBAs less one, 62:52 region, 63 write.
    #[inline(always)]
    pub const fn place(lba: u64, lbas: u64, region: u16, is_write: bool) -> u64 {
        debug_assert!(lba >> LBA_BITS == 0 && lbas >= 1 && lbas <= LBAS_MAX);
        lba | (lbas - 1) << 40 | (region as u64) << 52 | (is_write as u64) << 63
    }

    pub const fn lba(self) -> u64 {
        self.place & ((1 << LBA_BITS) - 1)
    }

    pub const fn lbas(self) -> u32 {
        (self.place >> 40) as u32 % LBAS_MAX as u32 + 1
    }

    pub const fn region(self) -> u16 {
        (self.place >> 52) as u16 % REGIONS_MAX as u16
    }

    pub const fn is_write(self) -> bool {
        self.place >> 63 != 0
    }
}

/// A region of the pool with its prebuilt PRP lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Region {
    pub address: u64,
    pub lists: [u64; 2],
    pub bytes: u64,
}

/// How a command points to its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Form {
    /// By an SGL data block.
    Sgl = 0,
    /// By two addresses, the second of which may be a list's.
    Prp = 1,
}

/// States of a request word.
pub mod state {
    /// The slot has no command.
    pub const FREE: u64 = 0;
}

pub const fn state_of(request: u64) -> u64 {
    request >> 48 & 3
}

/// Returns the generation of a request word: the upper bits of its command identifier.
pub const fn generation_of(request: u64) -> u16 {
    (request >> 32) as u16
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(128))]
pub struct Ring {
    pub sq: u64,
    pub cq: u64,
    pub sq_doorbell: u64,
    pub cq_doorbell: u64,
    pub published: u64,
    pub requests: u64,
    pub free_slots: u64,
    pub reciprocal: u64,
    pub regions: u64,
    pub depth: u32,
    pub qid: u32,
    pub nsid: u32,
    pub slot_bits: u32,
    pub cq_interval: u32,
    pub lba_shift: u32,
    pub protection: u32,
    pub form: u32,
    pub cq_reciprocal: u64,
    pub cq_depth: u32,
    pub slots: u32,
    pub cq_in_host: u32,
    pub reserved_constants: u32,

    pub ticket: u64,
    pub padding_of_ticket: [u64; 15],

    pub pending: u32,
    pub reserved_pending: u32,
    pub rung: u64,
    pub sq_rings: u64,
    pub padding_of_pending: [u64; 13],

    pub harvesting: u32,
    pub poison: u32,
    pub head: u64,
    pub told: u64,
    pub cq_rings: u64,
    pub late: u64,
    pub poison_detail: u64,
    pub padding_of_harvesting: [u64; 10],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(128))]
pub struct Iocb {
    pub contexts: u64,
    pub statuses: u64,
    pub done_host: u64,
    pub timeout_ns: u64,
    pub total: u64,
    pub count: u32,
    pub first_ring: u32,
    pub ring_count: u32,
    pub generation: u32,
    pub padding_of_constants: [u64; 9],

    pub issued: u32,
    pub reserved_issued: u32,
    pub padding_of_issued: [u64; 15],

    pub claimed: u64,
    pub started_ns: u64,
    pub remaining: u64,
    pub failed: u64,
    pub ended_ns: u64,
    pub padding_of_counters: [u64; 11],

    pub done: u32,
    pub reserved_done: u32,
    pub padding_of_done: [u64; 15],
}

/// Bits of a counter that count; the rest identify the use of its block.
const COUNT_BITS: u32 = 40;

impl Iocb {
    /// Packs a count for a use of the block; the low bits of its generation lie above.
    pub const fn counted(generation: u32, count: u64) -> u64 {
        (generation as u64) << COUNT_BITS | count
    }
}

/// The root of everything that device code works on.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(128))]
pub struct Uring {
    pub rings: u64,
    pub iocbs: u64,
    pub ring_count: u32,
    pub iocb_count: u32,
    pub stop: u64,
    pub alive: u64,
    pub reserved: [u64; 11],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct IssueArguments {
    pub uring: u64,
    /// Address of u32[count]: indices of blocks.
    pub blocks: u64,
    /// Address of u32[count]: their generations.
    pub generations: u64,
    pub count: u32,
    pub zero: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct AbandonArguments {
    pub uring: u64,
    pub blocks: u64,
    pub count: u32,
    /// How abandoned commands end: an `Ended`.
    pub ended: u32,
}

/// A run of bytes that a check is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Segment {
    pub address: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Check {
    /// Its first segment.
    pub first: u32,
    pub segments: u32,
    /// The CRC-32C that its bytes should have.
    pub sum: u32,
    pub zero: u32,
}

/// The verdict of a check whose bytes have their checksum; 0 before.
pub const INTACT: u32 = 1;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct VerifyArguments {
    /// Address of Check[count].
    pub checks: u64,
    /// Address of Segment[].
    pub segments: u64,
    /// Address of u32[count].
    pub verdicts: u64,
    pub count: u32,
    pub zero: u32,
}

const _: () = assert!(size_of::<Context>() == 16 && align_of::<Context>() == 16);
const _: () = assert!(size_of::<Region>() == 32);
const _: () =
    assert!(size_of::<Ring>() == 512 && size_of::<Iocb>() == 512 && size_of::<Uring>() == 128);
const _: () = assert!(size_of::<IssueArguments>() == 32 && size_of::<AbandonArguments>() == 24);
const _: () = assert!(size_of::<Segment>() == 16 && size_of::<Check>() == 16);
const _: () = assert!(size_of::<VerifyArguments>() == 32);

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Lists `field: offset` of the named fields of a structure on the host.
    macro_rules! offsets {
        ($structure:ident { $($field:ident),* $(,)? }) => {
            [$((concat!(stringify!($structure), ".", stringify!($field)), std::mem::offset_of!($structure, $field))),*,
             (stringify!($structure), size_of::<$structure>()),
             (concat!("alignof ", stringify!($structure)), align_of::<$structure>())]
        };
    }

    fn host_offsets() -> Vec<(&'static str, usize)> {
        let mut all = Vec::new();
        all.extend(offsets!(Context { address, place }));
        all.extend(offsets!(Region { address, lists, bytes }));
        all.extend(offsets!(Ring {
            sq,
            cq,
            sq_doorbell,
            cq_doorbell,
            published,
            requests,
            free_slots,
            reciprocal,
            regions,
            depth,
            qid,
            nsid,
            slot_bits,
            cq_interval,
            lba_shift,
            protection,
            form,
            cq_reciprocal,
            cq_depth,
            slots,
            cq_in_host,
            ticket,
            pending,
            rung,
            sq_rings,
            harvesting,
            poison,
            head,
            told,
            cq_rings,
            late,
            poison_detail,
        }));
        all.extend(offsets!(Iocb {
            contexts,
            statuses,
            done_host,
            timeout_ns,
            total,
            count,
            first_ring,
            ring_count,
            generation,
            issued,
            claimed,
            started_ns,
            remaining,
            failed,
            ended_ns,
            done,
        }));
        all.extend(offsets!(Uring { rings, iocbs, ring_count, iocb_count, stop, alive }));
        all.extend(offsets!(Segment { address, bytes }));
        all.extend(offsets!(Check { first, segments, sum, zero }));
        all.extend(offsets!(VerifyArguments { checks, segments, verdicts, count, zero }));
        all
    }

    /// Writes a C++ program that prints the same for the device's structures.
    fn program(names: &[(&str, usize)]) -> String {
        let print = |name: &str| match name.split_once('.') {
            Some((structure, field)) => format!("offsetof(adit::{structure}, {field})"),
            None => match name.strip_prefix("alignof ") {
                Some(structure) => format!("alignof(adit::{structure})"),
                None => format!("sizeof(adit::{name})"),
            },
        };
        let lines = names
            .iter()
            .map(|(name, _)| format!("std::printf(\"{name} %zu\\n\", {});\n", print(name)));
        let body = lines.collect::<String>();
        format!(
            "#include \"layout.h\"\n#include <cstddef>\n#include <cstdio>\nint main() {{\n{body}return 0;\n}}\n"
        )
    }

    #[test]
    fn every_offset_is_where_a_cpp_compiler_has_it() {
        let expected = host_offsets();
        let directory = std::env::temp_dir().join(format!("adit-layout-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let (source, binary) = (directory.join("offsets.cpp"), directory.join("offsets"));
        std::fs::write(&source, program(&expected)).expect("written");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let built = Command::new(compiler)
            .args(["-std=c++17", "-I", concat!(env!("CARGO_MANIFEST_DIR"), "/device"), "-o"])
            .args([&binary, &source])
            .output()
            .expect("a C++ compiler (Debian: g++), or its name in CXX");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let printed = Command::new(&binary).output().expect("run").stdout;
        std::fs::remove_dir_all(&directory).expect("removed");
        let ours = expected.iter().map(|(name, at)| format!("{name} {at}\n")).collect::<String>();
        assert_eq!(String::from_utf8(printed).expect("text"), ours);
    }

    #[test]
    fn a_place_keeps_its_parts_at_their_limits() {
        for (lba, lbas, region, is_write) in [
            (0, 1, 0, false),
            ((1 << LBA_BITS) - 1, LBAS_MAX, REGIONS_MAX as u16 - 1, true),
            (12345, 256, 7, true),
            (1, LBAS_MAX, 1, false),
        ] {
            let context =
                Context { address: 0, place: Context::place(lba, lbas, region, is_write) };
            assert_eq!(context.lba(), lba);
            assert_eq!(u64::from(context.lbas()), lbas);
            assert_eq!(context.region(), region);
            assert_eq!(context.is_write(), is_write);
        }
    }
}
