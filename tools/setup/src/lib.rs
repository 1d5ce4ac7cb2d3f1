//! `adit setup`: hands a drive to user space, and gives it back.
//!
//! Every command goes the same way. It looks at the machine below a [`Root`] (this machine, or a recorded one),
//! decides, and then carries out `change::Change`s one after the other through an `operation::Operation`, which tells
//! each before it is done. `--dry-run` ends at the telling. What a device was before is in a `record::DeviceRecord`
//! on disk before the first change, so that `restore` can complete or undo whatever was cut off.
//!
//! Nothing is taken that anything uses: `inventory` finds mounts, swap, holders, signatures and open files, and
//! `bind` holds exclusive claims on the block devices while it takes the driver away.

mod args;
mod bind;
mod change;
mod doctor;
mod grant;
mod hugepages;
mod inventory;
mod lock;
mod machine;
mod operation;
mod persist;
mod progress;
mod record;
mod root;
#[cfg(test)]
mod simulated;
mod status;
mod tree;

pub use args::SetupArgs;
use args::SetupCommand;
pub use inventory::{Disk, Process, Signature, Use, disk_of_file, signatures_of_file, told_once};
pub use root::Root;

use adit_tools_common::{failure, human, interrupt, output, units};
use failure::Result;

/// Runs the command.
///
/// # Errors
/// One sentence with what to do next: a device in use, a right that is missing, a machine without an IOMMU.
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
        SetupCommand::Persist(persist) => persist::run(&root, persist, args.json),
    }
}
