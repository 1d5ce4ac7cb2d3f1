//! Wire types of the NVMe specifications: what lies in registers, queues and data buffers, byte for byte.
//!
//! Follows the NVM Express Base Specification 2.0 ("Base") and the NVM Command Set Specification 1.0 ("NVM").
//! Section numbers on items refer to these two.
//!
//! Invariants:
//! - Every multi-byte field is little-endian whatever the host is, and every structure has alignment 1, so that a
//!   view over any byte slice of sufficient length is sound. Sizes are asserted at compile time.
//! - A field whose wire value is one less than what it counts ends in `_z`; accessors without the suffix have
//!   converted it.
//! - Parsing never panics, whatever the bytes are: a device chooses them.
//!
//! What it does not do: any I/O, any policy, and any check that needs to know the state of a controller.

#![forbid(unsafe_code)]

mod bits;
pub mod command;
pub mod completion;
pub mod feature;
#[cfg(test)]
mod hostile_tests;
pub mod identify;
pub mod ids;
pub mod log;
pub mod prp;
pub mod register;
pub mod sgl;
pub mod status;
pub mod view;

pub use command::{
    AdminOpcode, Cns, CopyRange, DataPointer, DsmRange, FeatureSelect, Fuse, IoOpcode, Psdt,
    QueuePriority, Sqe,
};
pub use completion::Cqe;
pub use feature::Fid;
pub use ids::{Cid, Iova, Lba, LbaCount, Nsid, Qid, QueueEntries, RangeCount};
pub use log::Lid;
pub use sgl::SglDescriptor;
pub use status::{Status, StatusCodeType};
pub use view::{Ascii, View};
