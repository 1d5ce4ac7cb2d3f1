//! Moves devices from the kernel's driver to vfio-pci and back.
//!
//! `bind` decides for all devices ([`plan`]) before it changes one ([`take`]); `unbind` and `restore` return
//! devices from any state to the recorded one ([`back`]). The record is on disk from before the first change
//! until after the last, so `restore` can complete an interrupted run.

mod back;
mod erase;
mod no_iommu;
mod plan;
mod recorded;
mod restore;
mod take;
#[cfg(test)]
mod tests;

use std::time::Duration;

use adit_driver::bus::pci::PciAddress;
use serde::Serialize;

use super::args::{BindArgs, RestoreArgs, UnbindArgs};
use super::grant::{self, group::Sharing};
use super::inventory::{Function, Inventory, Namespace};
use super::operation::{self, Operation};
use crate::device::{Device, NVME};
use crate::failure::Result;
use adit_guard::root::Root;
use plan::{Task, Terms};
use take::Request;

/// Time limit for the kernel's driver to show a controller's first namespace; some controllers have none.
const SCAN: Duration = Duration::from_secs(3);

/// A device that is available to user space.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Bound {
    bdf: String,
    /// Its target name, such as `vfio:0000:01:00.0`.
    target: String,
    state: BoundState,
    /// The user it is granted to.
    user: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum BoundState {
    /// Bound by this run.
    Bound,
    /// Bound by an earlier run.
    AlreadyBound,
    /// Bound by other means, so it will not be given back.
    BoundByOthers,
}

/// Runs `adit setup bind`.
pub(crate) fn bind(root: &Root, args: &BindArgs, json: bool) -> Result<()> {
    operation::run(root, args.change, json, |operation| bind_on(operation, args))
}

/// Runs `adit setup unbind`.
pub(crate) fn unbind(root: &Root, args: &UnbindArgs, json: bool) -> Result<()> {
    operation::run(root, args.change, json, |operation| restore::unbind(operation, args))
}

/// Runs `adit setup restore`.
pub(crate) fn restore(root: &Root, args: &RestoreArgs, json: bool) -> Result<()> {
    operation::run(root, args.change, json, restore::restore)
}

fn bind_on(operation: &mut Operation, args: &BindArgs) -> Result<Vec<Bound>> {
    if let Some(user) = &args.user {
        grant::check_user(operation.root, user)?;
    }
    if args.recorded {
        return recorded::bind(operation, args);
    }
    let terms = Terms {
        together: &args.devices,
        erase: args.force_erase_signature,
        unseen: args.force_erase_signature,
        no_iommu: args.unsafe_no_iommu,
        with_group: args.with_group,
    };
    for &device in &args.devices {
        await_namespaces(operation, Device::at(device));
    }
    let inventory = Inventory::read(operation.root);
    let tasks = plan::tasks(operation.root, &inventory, &args.devices, terms)?;
    bind_tasks(operation, tasks, terms, args.user.as_deref())
}

/// Waits for the namespaces of a controller that the kernel's driver has. They appear some time after the
/// driver is bound; a namespace that is not visible yet would look like free space.
fn await_namespaces(operation: &mut Operation, device: Device) {
    operation.wait(&format!("waiting for the namespaces of {device}"), SCAN, |root| {
        device.driver(root).as_deref() != Some(NVME) || !device.block_devices(root).is_empty()
    });
}

/// Carries out the tasks and reports how to use each device.
fn bind_tasks(
    operation: &mut Operation,
    tasks: Vec<Task>,
    terms: Terms,
    user: Option<&str>,
) -> Result<Vec<Bound>> {
    admit_grants(operation, &tasks, terms, user)?;
    let functions: Vec<&Function> = tasks.iter().filter_map(Task::to_take).collect();
    for function in &functions {
        if plan::lacks_iommu(function) {
            operation.say(no_iommu::warning(&function.bdf))?;
        }
        let stores = function.namespaces.iter().filter(|one| one.holds_store == Some(true));
        for Namespace { name, .. } in stores {
            operation.say(format!(
                "{}: {name} is a device of a store of Adit, which stays as it is",
                function.bdf
            ))?;
        }
        if let Some(warning) = erase::warning(function) {
            operation.say(warning)?;
        }
    }
    let taken = take::take_all(operation, &Request { functions: &functions, terms, user })?;
    let mut taken = taken.into_iter();
    let mut bound = Vec::new();
    for task in tasks {
        bound.push(match task {
            Task::Take(_) => {
                let record =
                    taken.next().expect("one record for each function that was to be taken");
                report(operation, record.bdf, BoundState::Bound, record.grant)?
            }
            Task::Have(mut record) => {
                if let Some(user) = user {
                    let address = record.address();
                    grant::give(operation, address, Some(&mut *record), user, terms.with_group)?;
                }
                report(operation, record.bdf, BoundState::AlreadyBound, record.grant)?
            }
            Task::Foreign(bdf) => report(operation, bdf, BoundState::BoundByOthers, None)?,
        });
    }
    Ok(bound)
}

/// Checks which neighbouring devices the grants would open, before any device is changed.
fn admit_grants(
    operation: &mut Operation,
    tasks: &[Task],
    terms: Terms,
    user: Option<&str>,
) -> Result<()> {
    let granted: Vec<(PciAddress, Option<String>)> = tasks
        .iter()
        .filter_map(|task| match task {
            Task::Take(function) => {
                Some((function.bdf.parse().ok()?, take::grant_before(function)))
            }
            // Its owner stays unless it is granted to another user now.
            Task::Have(record) => user.map(|_| (record.address(), None)),
            Task::Foreign(_) => None,
        })
        .collect();
    let together: Vec<PciAddress> = granted.iter().map(|(address, _)| *address).collect();
    let sharing: Vec<Sharing> = granted
        .iter()
        .map(|(address, before)| Sharing {
            address: *address,
            user: user.or(before.as_deref()),
            with_group: terms.with_group,
            together: if user.is_some() { &together } else { &[] },
        })
        .collect();
    grant::group::admit(operation, &sharing)
}

fn report(
    operation: &mut Operation,
    bdf: String,
    state: BoundState,
    user: Option<String>,
) -> Result<Bound> {
    let target = format!("vfio:{bdf}");
    let (is, back) = match state {
        BoundState::Bound if operation.is_dry() => ("would be bound", "gives it back"),
        BoundState::Bound => ("is bound", "gives it back"),
        BoundState::AlreadyBound => ("was bound already", "gives it back"),
        BoundState::BoundByOthers => (
            "was bound already, by other means: nothing was recorded",
            "says how to give it back by hand",
        ),
    };
    operation.say(format!(
        "{bdf} {is} to vfio-pci: use it as {target}; 'adit setup unbind {bdf}' {back}"
    ))?;
    Ok(Bound { bdf, target, state, user })
}
