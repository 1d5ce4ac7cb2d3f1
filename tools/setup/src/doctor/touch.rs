//! The last links: open the device, identify it, and read one LBA.
//!
//! Opening resets the controller, so these come after everything that detects other users. The driver bounds
//! all waits. Nothing is written to the device's media.

use std::time::Duration;

use adit_driver::bus::pci::VirtualFunction;
use adit_driver::spec::{Lba, Nsid};
use adit_driver::{Buffer, Controller, ControllerOptions, Error, QueuePair, QueuePairOptions};

use super::link::{LinkState, Remedy};
use super::patient::Patient;
use crate::human::plural;

/// Time limit of a command; slow controllers need seconds.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// Entries of the queue for the read.
const DEPTH: u32 = 8;

/// Why devices of recorded machines are not touched.
const RECORDED: &str = "a recorded machine has no device to open";

/// Opens the device and its controller.
pub(super) fn open(patient: &Patient) -> LinkState {
    let Some(target) = &patient.target else { return LinkState::NotChecked(RECORDED.to_owned()) };
    let options =
        ControllerOptions { io_queues: 1, admin_timeout: COMMAND_LIMIT, ..Default::default() };
    match Controller::open(target, &options) {
        Ok(controller) => {
            let version = controller.info().version;
            // Only this link sets it, once.
            let _ = patient.controller.set(controller);
            LinkState::Holds(format!("NVMe {version}, ready"))
        }
        Err(error) => broken(patient, &error),
    }
}

/// Identifies the device.
pub(super) fn identify(patient: &Patient) -> LinkState {
    let Some(controller) = patient.controller.get() else {
        return LinkState::NotChecked(RECORDED.to_owned());
    };
    match controller.namespace_ids() {
        Ok(namespaces) => {
            let identify = &controller.info().identify;
            let count = namespaces.len();
            LinkState::Holds(format!(
                "{}, serial {}, firmware {}, {count} namespace{}",
                identify.mn,
                identify.sn,
                identify.fr,
                plural(count as u64),
            ))
        }
        Err(error) => broken(patient, &error),
    }
}

/// Reads LBA 0 of its first namespace.
pub(super) fn read(patient: &Patient) -> LinkState {
    let Some(controller) = patient.controller.get() else {
        return LinkState::NotChecked(RECORDED.to_owned());
    };
    match first_lba(controller) {
        Ok(None) => LinkState::NotChecked("the controller has no namespace".to_owned()),
        Ok(Some((nsid, bytes))) => {
            LinkState::Holds(format!("LBA 0 of namespace {}, {bytes} bytes", nsid.0))
        }
        Err(error) => broken(patient, &error),
    }
}

/// Returns the namespace that was read and its LBA size; `None` without a namespace.
fn first_lba(controller: &Controller) -> Result<Option<(Nsid, u32)>, Error> {
    let Some(nsid) = controller.namespace_ids()?.first().copied() else { return Ok(None) };
    let namespace = controller.namespace(nsid)?;
    let options =
        QueuePairOptions { depth: DEPTH, timeout: COMMAND_LIMIT, ..QueuePairOptions::default() };
    let mut queue: QueuePair<Buffer> = controller.create_queue_pair(options)?;
    let buffer = controller.allocate(namespace.lba_bytes() as usize)?;
    let submitted = queue.submit(controller.now(), namespace.read(Lba(0), buffer));
    submitted.map_err(|rejected| Error::invalid("reading LBA 0", rejected))?;
    let mut result = None;
    while queue.in_flight() > 0 {
        queue.poll(controller.now(), |done| result = Some(done.result));
        queue.check()?;
    }
    let device = &controller.info().device;
    let failed = |error| {
        Error::device(
            device,
            format!("reading LBA 0 of namespace {} failed: {error}", nsid.0),
            "look at its health",
        )
    };
    result.expect("what is no longer in flight was completed").map_err(failed)?;
    Ok(Some((nsid, namespace.lba_bytes())))
}

/// Returns a broken link for a driver error. Refusals carry their remedy; otherwise the kernel's and the
/// device's logs tell more.
fn broken(patient: &Patient, error: &Error) -> LinkState {
    let bdf = &patient.function.bdf;
    let log = format!("sudo dmesg | grep -e {bdf} -e vfio");
    match error {
        Error::Refused { what, why, fix, .. } => {
            LinkState::broken(format!("{what}: {why}"), refused(fix, log))
        }
        Error::Device { what, fix, .. } if let Some(place) = offline(patient, fix) => {
            LinkState::broken(what, Remedy::new(place.advice(), place.commands()))
        }
        Error::Device { what, fix, .. } => {
            LinkState::broken(what, Remedy::new(fix, [format!("adit log vfio:{bdf} --smart"), log]))
        }
        other => LinkState::broken(
            other,
            Remedy::new(
                "see the kernel's log; a device that does not answer may do so after a reset, or with the kernel's driver",
                [log, format!("echo 1 | sudo tee /sys/bus/pci/devices/{bdf}/reset")],
            ),
        ),
    }
}

/// Returns the place of a virtual function that the driver wants put online there.
fn offline<'a>(patient: &Patient<'a>, fix: &str) -> Option<&'a VirtualFunction> {
    patient.function.virtual_function.as_ref().filter(|place| place.remedy() == fix)
}

/// Returns the driver's remedy, unless it is this very command.
fn refused(fix: &str, log: String) -> Remedy {
    if fix.contains("adit setup doctor") {
        return Remedy::new("the links before hold, so see the kernel's log", [log]);
    }
    let command = fix.strip_prefix("run '").and_then(|rest| rest.split('\'').next());
    Remedy::new(fix, command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_remedy_is_told_unless_it_leads_in_a_circle() {
        let log = || "dmesg".to_owned();
        let grant = "run 'sudo adit setup grant 0000:01:00.0 --user $USER'";
        assert_eq!(
            refused(grant, log()).commands,
            ["sudo adit setup grant 0000:01:00.0 --user $USER"]
        );
        let end = refused("end that program, or choose another device", log());
        assert!(end.commands.is_empty() && end.advice.contains("end that program"));
        let circle = refused("'adit setup doctor 0000:01:00.0' finds what is wrong", log());
        assert!(!circle.advice.contains("doctor") && circle.commands == ["dmesg"]);
    }
}
