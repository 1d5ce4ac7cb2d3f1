//! Wire types of the NVMe specifications: the contents of registers, queues and data buffers, byte for byte.
//!
//! Follows the NVM Express Base Specification 2.0 ("Base") and the NVM Command Set Specification 1.0 ("NVM"). Section
//! numbers on items refer to these two.
//!
//! Invariants:
//! - Multi-byte fields are little-endian on every host, and structures have alignment 1, so that a view over any
//!   sufficiently long byte slice is sound. Sizes are asserted at compile time.
//! - Zero-based fields end in `_z`; accessors without the suffix convert.
//! - Parsing never panics: a device chooses the bytes.
//!
//! Contains no I/O, no policy, and no check that depends on a controller's state.
//!
//! ```
//! use adit_spec::{IoOpcode, Lba, LbaCount, Nsid, Sqe};
//!
//! let read = Sqe::read(Nsid(1), Lba(8), LbaCount::new(16).expect("1 to 65536"));
//! assert_eq!(read.io_opcode(), IoOpcode::READ);
//! // The count is zero-based on the wire.
//! assert_eq!(read.to_dwords()[10..13], [8, 0, 15]);
//! ```
//!
//! | in reading order | what it is |
//! |---|---|
//! | [`ids`], [`view`] | identifiers and counts; views over bytes |
//! | [`register`] | controller registers |
//! | [`command`], [`completion`], [`status`] | queue entries |
//! | [`sgl`] | data pointers other than PRPs |
//! | [`identify`], [`log`], [`feature`] | data structures of admin commands |

#![forbid(unsafe_code)]

mod bits;
mod codes;
pub mod command;
pub mod completion;
pub mod feature;
#[cfg(test)]
mod hostile_tests;
pub mod identify;
pub mod ids;
pub mod log;
pub mod register;
pub mod sgl;
pub mod status;
pub mod view;

pub use command::{
    AdminOpcode, Cns, CopyRange, DataPointer, DsmRange, FeatureSelect, IoOpcode, QueuePriority, Sqe,
};
pub use completion::Cqe;
pub use feature::Fid;
pub use ids::{Cid, Iova, Lba, LbaCount, Nsid, Qid, QueueEntries, RangeCount};
pub use log::Lid;
pub use sgl::SglDescriptor;
pub use status::{Status, StatusCodeType};
pub use view::{Ascii, View};
