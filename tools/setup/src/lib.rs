//! `adit setup`: hands drives to user space and gives them back.
//!
//! Every command inspects the machine below a [`Root`] (this machine or a recorded one), decides, and
//! then carries out [`change::Change`]s in order through an [`operation::Operation`], which prints each before
//! making it. `--dry-run` only prints. Hugepages and the unit for a boot are the user's to set: of these a
//! [`script::Script`] is printed. A device's previous state is on disk in a [`record::DeviceRecord`]
//! before the first change, so that `restore` can complete or undo an interrupted run.
//!
//! A device in use is never taken: [`inventory`] finds mounts, swap, holders, signatures and open files, and
//! `bind` claims the block devices exclusively while it removes the driver.

mod args;
mod bind;
mod change;
mod device;
mod doctor;
mod grant;
mod hugepages;
mod inventory;
mod lock;
mod machine;
mod names;
mod operation;
mod persist;
mod record;
mod rights;
mod script;
#[cfg(test)]
mod simulated;
mod status;

pub use args::SetupArgs;
use args::SetupCommand;

use adit_guard::root::Root;
use adit_tools_common::{failure, human, interrupt, output, units};
use failure::Result;

/// Runs the command.
///
/// # Errors
/// One sentence with what to do next: a device in use, a missing right, a machine without an IOMMU.
pub fn run(args: &SetupArgs) -> Result<()> {
    let root = Root::open(args.sysroot.as_deref())?;
    match &args.command {
        SetupCommand::Status(status) => status::run(&root, status, args.json),
        SetupCommand::Bind(bind) => bind::bind(&root, bind, args.json),
        SetupCommand::Unbind(unbind) => bind::unbind(&root, unbind, args.json),
        SetupCommand::Restore(restore) => bind::restore(&root, restore, args.json),
        SetupCommand::Grant(grant) => grant::grant(&root, grant, args.json),
        SetupCommand::Revoke(revoke) => grant::revoke(&root, revoke, args.json),
        SetupCommand::Hugepages(hugepages) => hugepages::run(&root, hugepages, args.json),
        SetupCommand::Doctor(doctor) => doctor::run(&root, doctor, args.json),
        SetupCommand::Persist => persist::run(&root, args.json),
    }
}
