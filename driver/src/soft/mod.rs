//! A software NVMe controller: the driver's test peer, and a drive for whoever
//! has none to give away.
//!
//! It is a faithful controller, not a shortcut: registers, admin and I/O commands,
//! PRP and SGL walks, queues, shadow doorbells and events follow the
//! NVMe Base Specification 2.0 and NVM Command Set Specification 1.0, and each
//! error gets the status they name. It shares no logic with the driver, only
//! the wire types of [`crate::spec`]: a misreading must not agree with itself.
//!
//! | file | noun |
//! |---|---|
//! | `options` | what it is made of |
//! | `controller`, `registers` | its life: enable, step, shut down, reset |
//! | `queue`, `doorbells` | rings, their doorbells and shadow doorbells |
//! | `command`, `status` | a submission queue entry taken apart; the answers |
//! | `prp`, `sgl`, `memory`, `cmb` | reaching the host's memory |
//! | `admin/`, `io/` | commands |
//! | `namespace`, `media/` | data |
//! | `hook` | where tests slip faults in |
//!
//! Nothing here starts a thread or reads a clock: somebody calls
//! [`Controller::step`]. All work per step is bounded. Not there: metadata, protection
//! information, fused commands, firmware, security, Format NVM, reservations.

mod admin;
mod cmb;
mod command;
mod controller;
mod doorbells;
mod hook;
mod io;
mod media;
mod memory;
mod namespace;
mod options;
mod prp;
mod queue;
mod registers;
mod sgl;
mod status;
#[cfg(test)]
mod tests;
mod transfer;

pub use cmb::{CMB_BAR, Cmb};
pub use controller::Controller;
pub use doorbells::DOORBELLS_OFFSET;
pub use hook::Verdict;
pub use memory::{DmaResult, Fault, HostMemory};
pub use options::{Options, SglSupport, Storage};
