//! Notes about the whole machine: what could not be seen, and where controllers may be hidden.

use adit_driver::bus::pci::{PciAddress, PciFunction};

use super::function::Function;
use crate::device::DEVICES;
use adit_guard::disk::Usage;
use adit_guard::root::Root;

/// The base class of mass storage, and the class of RAID controllers, which Intel's VMD reports.
const STORAGE: u32 = 0x01;
const RAID: u32 = 0x01_04_00;

/// The machine's initial PID namespace (PROC_PID_INIT_INO in the kernel's `proc_ns.h`).
const MACHINES_PROCESSES: &str = "pid:[4026531836]";

/// Intel's vendor id.
const VENDOR_INTEL: &str = "0x8086";

/// Returns all notes, one sentence each.
pub(super) fn all(root: &Root, controllers: &[Function], usage: &Usage) -> Vec<String> {
    let mut notes: Vec<String> = storage(root)
        .iter()
        .flat_map(|function| [without_vmd(root, function), remapped(root, function)])
        .flatten()
        .collect();
    if controllers.is_empty() {
        notes.insert(0, why_none(root));
    }
    if usage.unseen() > 0 {
        notes.push(format!(
            "what {} processes have open or mounted cannot be seen; run this as root",
            usage.unseen()
        ));
    }
    notes.extend(in_container(root));
    notes
}

/// Returns a note about what even root in a container cannot see.
fn in_container(root: &Root) -> Option<String> {
    let processes = root.link_name("/proc/self/ns/pid")?;
    (processes != MACHINES_PROCESSES).then(|| {
        "this is a container: what processes outside of it have open or mounted cannot be seen; run this on the host"
            .to_owned()
    })
}

/// Returns the mass storage functions.
fn storage(root: &Root) -> Vec<PciFunction> {
    let names = root.names_quietly(DEVICES);
    let addresses = names.iter().filter_map(|name| name.parse::<PciAddress>().ok());
    let found = addresses.filter_map(|address| PciFunction::find(&root.path("/sys"), address));
    let storage =
        found.filter(|function| function.class().is_some_and(|class| class >> 16 == STORAGE));
    let storage: Vec<PciFunction> = storage.collect();
    for function in &storage {
        attribute(root, function, "class");
        root.note(format!("{DEVICES}/{}/driver", function.address()));
    }
    storage
}

fn attribute(root: &Root, function: &PciFunction, name: &str) -> Option<String> {
    root.text(format!("{DEVICES}/{}/{name}", function.address()))
}

fn why_none(root: &Root) -> String {
    let names = root.names_quietly(DEVICES);
    root.note(DEVICES);
    let Some(first) = names.first() else {
        return "no PCI device can be seen in /sys: this is a container without the host's /sys, or a machine \
                without PCI"
            .to_owned();
    };
    // Puts into the recording that there were PCI devices.
    root.note(format!("{DEVICES}/{first}/class"));
    "none of this machine's PCI functions has NVMe's class, 010802".to_owned()
}

/// Returns a note about a VMD controller without a driver, which keeps its drives off the bus.
fn without_vmd(root: &Root, function: &PciFunction) -> Option<String> {
    let intel = attribute(root, function, "vendor").as_deref() == Some(VENDOR_INTEL);
    let idle = intel && function.class() == Some(RAID) && function.driver().is_none();
    idle.then(|| {
        format!(
            "{}, a RAID controller by Intel, has no driver; if it is a VMD, 'modprobe vmd' shows the drives behind it",
            function.address()
        )
    })
}

/// Returns a note about a SATA controller that hides drives, as firmware configures it for Intel's RST.
fn remapped(root: &Root, function: &PciFunction) -> Option<String> {
    let count = attribute(root, function, "remapped_nvme").filter(|count| count != "0")?;
    Some(format!(
        "{} hides {count} NVMe drives (Intel RST); set SATA to AHCI in the firmware's set-up to see them",
        function.address()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    fn notes(machine: &str) -> Vec<String> {
        let root = Root::recorded(machine).expect("a recording");
        let notes = Inventory::read(&root).notes;
        let again = Inventory::read(&Root::recorded(&root.recording()).expect("a recording")).notes;
        assert_eq!(again, notes, "a recording tells the same");
        notes
    }

    #[test]
    fn a_machine_without_controllers_is_told_why() {
        assert!(notes("")[0].contains("no PCI device can be seen"));
        let bridge = "/sys/bus/pci/devices/0000:00:00.0/class = 0x060000\n";
        assert!(notes(bridge)[0].contains("none of this machine's PCI functions"));
    }

    #[test]
    fn places_where_drives_hide_are_named() {
        let raid = "\
/sys/bus/pci/devices/0000:5d:05.5/class = 0x010400
/sys/bus/pci/devices/0000:5d:05.5/vendor = 0x8086
";
        assert!(
            notes(raid)[1].starts_with("0000:5d:05.5, a RAID controller by Intel, has no driver")
        );
        let driven = format!(
            "{raid}/sys/bus/pci/devices/0000:5d:05.5/driver -> ../../../../bus/pci/drivers/vmd\n"
        );
        assert_eq!(notes(&driven).len(), 1);
        let sata = "\
/sys/bus/pci/devices/0000:00:17.0/class = 0x010601
/sys/bus/pci/devices/0000:00:17.0/remapped_nvme = 2
";
        assert!(notes(sata)[1].starts_with("0000:00:17.0 hides 2 NVMe drives"));
    }

    #[test]
    fn what_cannot_be_seen_is_said_once() {
        let found = notes("/recorded/processes-unseen = 37\n");
        assert_eq!(found.len(), 2);
        assert!(found[1].contains("37 processes"));
    }

    #[test]
    fn a_container_is_told_from_the_machine() {
        let inside = |number: u64| {
            let link = format!("/proc/self -> 12\n/proc/12/ns/pid -> pid:[{number}]\n");
            notes(&link).iter().any(|note| note.starts_with("this is a container"))
        };
        assert!(inside(4_026_532_200) && !inside(0xefff_fffc));
    }
}
