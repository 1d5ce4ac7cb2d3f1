//! Formats the inventory for people: a block about the host, then one row per controller with its obstacles
//! below.

use std::fmt::Write;

use adit_driver::bus::pci::VirtualFunction;

use crate::human;
use crate::inventory::{
    Function, Host, Hugepages, Inventory, ModuleState, Namespace, Obstacle, ObstacleKind,
};

/// Columns of the table.
const HEADINGS: [&str; 9] =
    ["BDF", "driver", "node", "group", "link", "size", "model", "serial", "can be taken"];

/// Formats everything.
pub(super) fn of(inventory: &Inventory) -> String {
    let mut out = String::from("Host\n");
    for (name, value) in host_rows(&inventory.host) {
        line(&mut out, format_args!("  {name:<15}{value}"));
    }
    out.push_str("\nNVMe controllers\n");
    if inventory.controllers.is_empty() {
        out.push_str("  none\n");
    } else {
        controllers(&mut out, &inventory.controllers);
    }
    if !inventory.notes.is_empty() {
        out.push_str("\nNotes\n");
    }
    for note in &inventory.notes {
        line(&mut out, format_args!("  {note}"));
    }
    out
}

fn line(out: &mut String, line: std::fmt::Arguments) {
    let text = human::printable(&line.to_string());
    writeln!(out, "{}", text.trim_end()).expect("a string takes everything");
}

fn host_rows(host: &Host) -> Vec<(&'static str, String)> {
    let limit = |bytes: Option<u64>| bytes.map_or("no limit".to_owned(), human::capacity);
    vec![
        ("kernel", host.kernel.clone().unwrap_or_else(|| "unknown".to_owned())),
        ("command line", host.command_line.clone()),
        ("IOMMU", iommu(host)),
        ("VFIO modules", modules(host)),
        ("hugepages", hugepages(&host.hugepages)),
        (
            "locked memory",
            match (host.memlock.soft_bytes, host.memlock.hard_bytes) {
                (soft, hard) if soft == hard => limit(soft),
                (soft, hard) => format!("{}, can be raised to {}", limit(soft), limit(hard)),
            },
        ),
        ("memory", limit(host.cgroup_memory_bytes)),
    ]
}

fn iommu(host: &Host) -> String {
    let iommu = &host.iommu;
    let mut text = match (iommu.on, &iommu.firmware_table) {
        (true, _) => format!("on: {}; {} groups", iommu.units.join(", "), iommu.groups),
        (false, Some(table)) => format!("off, though the firmware has one ({table})"),
        (false, None) => "none".to_owned(),
    };
    if iommu.no_iommu_mode {
        text.push_str("; VFIO's no-IOMMU mode is on (enable_unsafe_noiommu_mode)");
    }
    text
}

fn modules(host: &Host) -> String {
    let states = [
        (ModuleState::Loaded, "loaded"),
        (ModuleState::Available, "not loaded"),
        (ModuleState::Missing, "missing in this kernel"),
        (ModuleState::Unknown, "unknown: this kernel's modules cannot be seen from here"),
    ];
    let parts = states.into_iter().filter_map(|(state, word)| {
        let modules = host.modules.iter().filter(|module| module.state == state);
        let names: Vec<&str> = modules.map(|module| module.name.as_str()).collect();
        (!names.is_empty()).then(|| format!("{} {word}", names.join(", ")))
    });
    parts.collect::<Vec<_>>().join("; ")
}

fn hugepages(all: &[Hugepages]) -> String {
    let parts: Vec<String> = all
        .iter()
        .filter(|pages| pages.total > 0)
        .map(|pages| {
            let Hugepages { node, page_bytes, total, free } = pages;
            format!("node {node}: {total} of {} ({free} free)", human::capacity(*page_bytes))
        })
        .collect();
    if parts.is_empty() { "none; they are not required".to_owned() } else { parts.join("; ") }
}

fn controllers(out: &mut String, functions: &[Function]) {
    let rows: Vec<[String; 9]> = functions.iter().map(row).collect();
    let mut widths = HEADINGS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    table_line(out, &HEADINGS.map(str::to_owned), &widths);
    for (row, function) in rows.iter().zip(functions) {
        table_line(out, row, &widths);
        for detail in details(function) {
            line(out, format_args!("      {detail}"));
        }
    }
}

fn table_line(out: &mut String, cells: &[String; 9], widths: &[usize; 9]) {
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    line(out, format_args!("  {}", padded.collect::<Vec<_>>().join("  ")));
}

fn row(function: &Function) -> [String; 9] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let free = function.obstacles.is_empty();
    let verdict = match (function.is_bound(), free) {
        (true, true) => "is taken",
        (true, false) => "is taken, but",
        (false, true) => "yes",
        (false, false) => "no",
    };
    [
        function.bdf.clone(),
        or_dash(function.driver.clone()),
        or_dash(function.numa_node.map(|node| node.to_string())),
        or_dash(function.iommu_group.as_ref().map(|group| group.number.to_string())),
        or_dash(function.link.as_ref().map(|link| format!("{} x{}", link.speed, link.width))),
        or_dash(function.size_bytes.map(human::capacity)),
        or_dash(function.model.clone()),
        or_dash(function.serial.clone()),
        verdict.to_owned(),
    ]
}

/// Returns the lines below a controller's row.
fn details(function: &Function) -> Vec<String> {
    let mut details: Vec<String> = function.namespaces.iter().map(namespace).collect();
    details.extend(function.virtual_function.as_ref().map(|place| {
        let name = place.controller.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        format!("virtual function {} of {}{name}", place.number, place.physical)
    }));
    details.extend(function.perhaps_offline().map(VirtualFunction::remedy));
    details.extend(function.obstacles.iter().map(obstacle));
    if function.is_bound() {
        let record = function.record.as_ref().filter(|_| function.is_recorded_now);
        let user = record.and_then(|record| record.grant.as_ref());
        let granted = user.map(|user| format!("; {user} may open it")).unwrap_or_default();
        let recorded = match record {
            Some(_) => "'adit setup unbind' gives it back",
            None => "another tool bound it; 'adit setup unbind' does not give it back",
        };
        details.push(format!("vfio:{}: {recorded}{granted}", function.bdf));
        let open = function.open_by.iter();
        details.extend(
            open.map(|process| format!("open in process {} ({})", process.pid, process.name)),
        );
    }
    let slow = function.link.as_ref().filter(|link| link.degraded);
    details.extend(slow.map(|link| {
        format!(
            "its link could have {} x{}: look at the slot, and at lspci -vv",
            link.speed_max, link.width_max
        )
    }));
    details
}

fn namespace(namespace: &Namespace) -> String {
    let Namespace { name, size_bytes, lba_bytes, partitions, holds_store, .. } = namespace;
    let partitions = if partitions.is_empty() {
        String::new()
    } else {
        format!("; partitions {}", partitions.join(", "))
    };
    let store = if *holds_store == Some(true) { "; a device of a store of Adit" } else { "" };
    let size = human::capacity(*size_bytes);
    format!("{name}: {size}, LBA of {lba_bytes} bytes{partitions}{store}")
}

fn obstacle(obstacle: &Obstacle) -> String {
    let what = match obstacle.kind {
        ObstacleKind::InUse => "in use",
        ObstacleKind::Signature => "signature",
        ObstacleKind::Unknown | ObstacleKind::Unseen => "unknown",
        ObstacleKind::NoIommu => "no IOMMU",
        ObstacleKind::Group => "IOMMU group",
        ObstacleKind::Vmd => "VMD",
        ObstacleKind::Foreign => "another tool",
    };
    format!("{what}: {}", obstacle.reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_guard::root::Root;

    #[test]
    fn a_drive_of_a_store_is_told_and_may_be_taken() {
        let status = |store: &str| {
            let place = "/sys/devices/pci0000:00/0000:01:00.0";
            let text = of(&Inventory::read(&Root::recorded(&format!(
                "/sys/bus/pci/devices/0000:01:00.0 -> ../../../devices/pci0000:00/0000:01:00.0\n\
                 /sys/class/block/nvme0n1 -> ../../devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1\n\
                 /sys/kernel/iommu_groups/7/devices/0000:01:00.0 -> ../../../../devices/pci0000:00/0000:01:00.0\n\
                 /recorded/wipefs/nvme0n1 = {{\"signatures\": []}}\n{store}\
                 {place}/class = 0x010802\n\
                 {place}/driver -> ../../../bus/pci/drivers/nvme\n\
                 {place}/iommu_group -> ../../../kernel/iommu_groups/7\n\
                 {place}/nvme/nvme0/state = live\n\
                 {place}/nvme/nvme0/nvme0n1/dev = 259:0\n\
                 {place}/nvme/nvme0/nvme0n1/size = 2048\n"
            )).expect("a recording")));
            let row = text.lines().find(|line| line.contains("0000:01:00.0")).map(str::to_owned);
            (
                row.is_some_and(|row| row.ends_with("yes")),
                text.contains("; a device of a store of Adit"),
                text,
            )
        };
        for (store, wanted) in [("yes", true), ("no", false), ("unknown", false)] {
            let (free, told, text) = status(&format!("/recorded/store-nvme0n1 = {store}\n"));
            assert_eq!((free, told), (true, wanted), "{text}");
        }
        assert!(!status("").1, "an older recording does not have it");
    }

    #[test]
    fn a_virtual_function_is_told_with_its_physical_function() {
        let (physical, own) =
            ("/sys/bus/pci/devices/0000:01:00.0", "/sys/bus/pci/devices/0000:01:00.1");
        let status = |driver: &str| {
            let root = Root::recorded(&format!(
                "{physical}/class = 0x010802\n{physical}/nvme/nvme3/state = live\n\
                 {physical}/virtfn0 -> ../0000:01:00.1\n\
                 {own}/class = 0x010802\n{own}/physfn -> ../0000:01:00.0\n{driver}"
            ))
            .expect("a recording");
            let text = of(&Inventory::read(&root));
            let again = Root::recorded(&root.recording()).expect("a recording");
            assert_eq!(of(&Inventory::read(&again)), text, "a recording keeps the links");
            text
        };
        let offline = status("");
        assert!(
            offline.contains("      virtual function 1 of 0000:01:00.0 (nvme3)\n"),
            "{offline}"
        );
        assert!(offline.contains("a virtual function may not be online"), "{offline}");
        assert!(
            offline.contains("'sudo nvme virt-mgmt /dev/nvme3 --cntlid=C --act=9'"),
            "{offline}"
        );
        let bound = status(&format!("{own}/driver -> ../../drivers/vfio-pci\n"));
        assert!(bound.contains("virtual function 1 of") && !bound.contains("online"), "{bound}");
    }

    #[test]
    fn what_another_tool_bound_after_a_reboot_is_not_given_back() {
        let status = |boot: &str| {
            let place = "/sys/bus/pci/devices/0000:01:00.0";
            let root = Root::recorded(&format!(
                "{place}/class = 0x010802\n\
                 {place}/driver -> ../../drivers/vfio-pci\n\
                 /proc/sys/kernel/random/boot_id = {boot}\n\
                 /var/lib/adit/setup/devices/0000:01:00.0.json = {{\"version\": 1, \"bdf\": \"0000:01:00.0\", \
                 \"phase\": \"bound\", \"before\": {{\"driver\": \"nvme\", \"driver_override\": null}}, \"identity\": \
                 {{\"ids\": \"\", \"model\": null, \"serial\": null, \"firmware\": null, \"size_bytes\": null, \
                 \"namespaces\": []}}, \"boot_id\": \"one\", \"grant\": \"alice\"}}\n"
            )).expect("a recording");
            of(&Inventory::read(&root))
        };
        let ours = status("one");
        assert!(ours.contains("'adit setup unbind' gives it back; alice may open it"), "{ours}");
        let theirs = status("two");
        assert!(theirs.contains("another tool bound it; 'adit setup unbind' does not"), "{theirs}");
        assert!(!theirs.contains("alice"), "{theirs}");
    }
}
