//! A software NVMe controller: the driver's test peer, and a drive for whoever
//! has none to give away.
//!
//! It is a faithful controller, not a shortcut: registers, admin and I/O commands,
//! PRP and SGL walks, queues, shadow doorbells and events follow the
//! NVMe Base Specification 2.0 and NVM Command Set Specification 1.0, and each
//! error gets the status they name. It shares no logic with the driver, only
//! the wire types of [`adit_spec`]: a misreading must not agree with itself.
//!
//! | file | noun |
//! |---|---|
//! | `options` | what it is made of |
//! | `controller`, `registers` | its state, and the step that fetches commands |
//! | `run`, `pending` | carrying commands out, now or when they are due |
//! | `life` | enable, disable, resets, shutdown, power |
//! | `queue`, `doorbells` | rings, their doorbells and shadow doorbells |
//! | `command`, `status` | a submission queue entry taken apart; the answers |
//! | `prp`, `sgl`, `memory`, `cmb` | reaching the host's memory |
//! | `admin/`, `io/` | commands |
//! | `namespace`, `protection`, `media/` | data, and what protects it |
//! | `hook`, `faults/` | what goes wrong, by script or by plan |
//! | `timing` | how long commands take |
//! | `rng`, `words` | chance from a seed; values as people write them |
//!
//! `docs/faults.md` says what can go wrong on request, what a power cut takes and
//! where the timing figures come from.
//!
//! Nothing here starts a thread or reads a clock: somebody calls
//! [`Controller::step`]. All work per step is bounded. Not there: transfers of metadata (protection
//! information is made and dropped here), fused commands, firmware, security, Format NVM, reservations.

#![forbid(unsafe_code)]

mod admin;
mod cmb;
mod command;
mod controller;
mod doorbells;
mod error;
mod faults;
mod hook;
mod io;
mod life;
mod media;
mod memory;
mod namespace;
mod options;
mod pending;
mod protection;
mod prp;
mod queue;
mod registers;
mod rng;
mod run;
mod sgl;
mod status;
#[cfg(test)]
mod tests;
mod timing;
mod transfer;
pub mod words;

pub use cmb::{CMB_BAR, Cmb};
pub use controller::Controller;
pub use doorbells::DOORBELLS_OFFSET;
pub use error::{Error, Result};
pub use faults::{
    FaultChance, FaultCommands, FaultKind, FaultPlan, FaultRule, FaultScope, FaultTrigger,
};
pub use hook::Verdict;
pub use memory::{DmaResult, Fault, HostMemory};
pub use options::{CommandLimits, Options, PCI_VENDOR, SglSupport, Storage};
pub use timing::{TimingModel, TimingProfile};
