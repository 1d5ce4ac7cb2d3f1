//! Structures that the device-code controller shares with the host, as in gpu/device/controller.h, which documents the
//! fields.

use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) const BAD_KINDS: usize = 16;
/// The most commands of a queue that wait for a late completion at a time.
pub(super) const DELAYED_MAX: usize = 32;
/// Bytes of a queue's map of identifiers in flight.
pub(super) const IN_FLIGHT_BYTES: u64 = 8192;

/// Memory that commands may point to.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ControllerRange {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// The controller's view of a queue pair.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(128))]
pub(super) struct ControllerQueue {
    pub(super) sq: u64,
    pub(super) cq: u64,
    pub(super) sq_doorbell: u64,
    pub(super) cq_doorbell: u64,
    pub(super) in_flight: u64,
    pub(super) depth: u32,
    pub(super) cq_depth: u32,
    pub(super) qid: u32,
    pub(super) tail: u32,
    pub(super) sq_head: u64,
    pub(super) cq_tail: u64,
    pub(super) cq_head: u64,
    pub(super) padding_of_constants: [u64; 6],

    pub(super) commands: u64,
    pub(super) completions: u64,
    pub(super) sq_rings: u64,
    pub(super) cq_rings: u64,
    pub(super) faults: u64,
    pub(super) delayed_count: u64,
    pub(super) looks: u64,
    pub(super) full: u64,
    pub(super) reserved_counts: [u64; 8],
    pub(super) bad: [u64; BAD_KINDS],
    pub(super) delayed_ns: [u64; DELAYED_MAX],
    pub(super) delayed: [u32; DELAYED_MAX],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ControllerArguments {
    pub(super) queues: u64,
    pub(super) ranges: u64,
    pub(super) stop: u64,
    pub(super) alive: u64,
    pub(super) media: u64,
    pub(super) lbas: u64,
    pub(super) delay_ns: u64,
    pub(super) queue_count: u32,
    pub(super) range_count: u32,
    pub(super) nsid: u32,
    pub(super) lba_shift: u32,
    pub(super) lbas_max: u32,
    pub(super) form: u32,
    pub(super) fault: u32,
    pub(super) fault_every: u32,
    pub(super) fault_first: u32,
    pub(super) reserved: u32,
}

const _: () = assert!(size_of::<ControllerRange>() == 16);
const _: () = assert!(size_of::<ControllerQueue>() == 768);
const _: () = assert!(size_of::<ControllerArguments>() == 96);

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Writes C++ assertions about each field of a structure.
    macro_rules! assertions {
        ($structure:ident: $($field:ident)*) => {
            [$(format!(
                "static_assert(offsetof(adit::{0}, {1}) == {2}, \"{0}.{1}\");\n",
                stringify!($structure),
                stringify!($field),
                std::mem::offset_of!($structure, $field)
            )),*].concat()
        };
    }

    fn source() -> String {
        [
            "#include <cstddef>\n#include \"controller.h\"\n".to_owned(),
            assertions!(ControllerRange: address bytes),
            assertions!(ControllerQueue: sq cq sq_doorbell cq_doorbell in_flight depth cq_depth qid
                tail sq_head cq_tail cq_head commands completions sq_rings cq_rings faults
                delayed_count looks full bad delayed_ns delayed),
            assertions!(ControllerArguments: queues ranges stop alive media lbas delay_ns
                queue_count range_count nsid lba_shift lbas_max form fault fault_every
                fault_first),
        ]
        .concat()
    }

    #[test]
    fn every_field_is_where_a_cpp_compiler_has_it() {
        let name = format!("adit-controller-{}.cpp", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, source()).expect("written");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let checked = Command::new(compiler)
            .args(["-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof"])
            .args(["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/../../gpu/device")])
            .arg(&path)
            .output()
            .expect("a C++ compiler (Debian: g++), or its name in CXX");
        std::fs::remove_file(&path).expect("removed");
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}
