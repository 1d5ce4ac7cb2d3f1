//! A software NVMe controller: the driver's test peer, and a drive for machines without a spare one.
//!
//! It is a faithful controller: registers, admin and I/O commands, PRP and SGL walks, queues, shadow doorbells and
//! events follow the NVMe Base Specification 2.0 and NVM Command Set Specification 1.0, and each error returns the
//! status they name. It shares no logic with the driver, only the wire types of [`adit_spec`]: a misreading must not
//! agree with itself.
//!
//! ```
//! use adit_soft::Controller;
//! use adit_spec::register::{CSTS, Csts};
//!
//! let controller = Controller::new("mem=1M,seed=7".parse()?)?;
//! let status = Csts(controller.read_register(CSTS.offset(), CSTS.width()) as u32);
//! assert!(!status.rdy(), "a host has to enable it");
//! # Ok::<(), adit_soft::Error>(())
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `options` | configuration |
//! | `controller`, `registers` | the controller, and the step that fetches commands |
//! | `state/` | what commands read and change, by subject |
//! | `run`, `pending` | execution of commands, now or when due |
//! | `life` | enable, disable, resets, shutdown, power |
//! | `queue`, `doorbells` | rings, doorbells and shadow doorbells |
//! | `command`, `status` | parsed submission queue entries; status codes |
//! | `prp`, `sgl`, `memory`, `cmb` | access to host memory |
//! | `admin/`, `io/` | commands |
//! | `namespace`, `protection`, `media/` | data and its protection |
//! | `hook`, `faults/` | faults, by script or by plan |
//! | `timing` | how long commands take |
//! | `rng`, `words`, `page` | seeded randomness; parsing of values; fields of data structures |
//!
//! `docs/use/faults.md` describes the faults, the effects of a power cut and the sources of the timing figures.
//!
//! Nothing here starts a thread or reads a clock: the owner calls [`Controller::step`], and the work per step is
//! bounded. Not supported: metadata transfers (protection information is generated and dropped here), fused commands,
//! firmware, security, Format NVM, reservations.

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
mod page;
mod pending;
mod protection;
mod prp;
mod queue;
mod registers;
mod rng;
mod run;
mod sgl;
mod state;
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
