//! Tests `adit setup` on a machine where a drive's model and serial number, a process's name and a mount point
//! try to deceive root: none of them can start a line, and none of their control characters reach the terminal.

use std::path::PathBuf;
use std::process::Command;

/// A drive bound to vfio-pci, held open and recorded with a partly different serial number, and a drive with
/// the kernel's driver. Every free text ends its line and starts another with `FORGED`.
const MACHINE: &str = "\
/proc/sys/kernel/random/boot_id = b7b0
/proc/77/comm:
    fio\u{1b}[2K
    FORGED ok   other users: none
/proc/77/fd/3 -> /dev/vfio/12
/proc/self/limits:
    Limit                     Soft Limit           Hard Limit           Units
    Max locked memory         unlimited            unlimited            bytes
/proc/self/mountinfo:
    22 1 259:3 / /mnt/a\\012FORGED\u{9b}2J rw,relatime - ext4 /dev/nvme1n1p1 rw
/sys/bus/pci/devices/0000:01:00.0/class = 0x010802
/sys/bus/pci/devices/0000:01:00.0/vendor = 0x8086
/sys/bus/pci/devices/0000:01:00.0/device = 0x0a54
/sys/bus/pci/devices/0000:01:00.0/driver -> ../../drivers/vfio-pci
/sys/bus/pci/devices/0000:01:00.0/driver_override = vfio-pci
/sys/bus/pci/devices/0000:01:00.0/iommu_group -> ../../../../kernel/iommu_groups/12
/sys/bus/pci/devices/0000:02:00.0/class = 0x010802
/sys/bus/pci/devices/0000:02:00.0/vendor = 0x8086
/sys/bus/pci/devices/0000:02:00.0/device = 0x0a54
/sys/bus/pci/devices/0000:02:00.0/driver -> ../../drivers/nvme
/sys/bus/pci/devices/0000:02:00.0/driver_override = (null)
/sys/bus/pci/devices/0000:02:00.0/iommu_group -> ../../../../kernel/iommu_groups/13
/sys/bus/pci/devices/0000:02:00.0/nvme/nvme1/model:
    Disk\u{1b}[1A
    FORGED ok   identify
/sys/bus/pci/devices/0000:02:00.0/nvme/nvme1/serial:
    S\u{202e}1
    FORGED ok   read
/sys/bus/pci/devices/0000:02:00.0/nvme/nvme1/state = live
/sys/bus/pci/devices/0000:02:00.0/nvme/nvme1/nvme1n1/size = 8000
/sys/bus/pci/devices/0000:02:00.0/nvme/nvme1/nvme1n1/dev = 259:0
/sys/bus/pci/devices/0000:02:00.0/nvme/nvme1/nvme1n1/nvme1n1p1/dev = 259:3
/sys/bus/pci/devices/0000:02:00.0/nvme/nvme1/nvme1n1/nvme1n1p1/partition = 1
/sys/bus/pci/drivers/nvme/
/sys/bus/pci/drivers/vfio-pci/module/
/sys/bus/pci/drivers/vfio-pci/
/sys/class/block/nvme1n1 -> ../../bus/pci/devices/0000:02:00.0/nvme/nvme1/nvme1n1
/sys/class/block/nvme1n1p1 -> ../../bus/pci/devices/0000:02:00.0/nvme/nvme1/nvme1n1/nvme1n1p1
/sys/class/iommu/dmar0/intel-iommu/version = 1:0
/sys/kernel/iommu_groups/12/devices/0000:01:00.0 -> ../../../../bus/pci/devices/0000:01:00.0
/sys/kernel/iommu_groups/13/devices/0000:02:00.0 -> ../../../../bus/pci/devices/0000:02:00.0
/sys/module/vfio/
/sys/module/vfio_iommu_type1/
/sys/module/vfio_pci/
/dev/vfio/vfio = may be opened
/dev/vfio/12 = may be opened
/dev/nvme1n1 = x
/recorded/wipefs/nvme1n1 = {\"signatures\": [{\"device\": \"nvme1n1\", \"offset\": \"0x438\", \"type\": \"ext4\", \"uuid\": null, \"label\": \"a\\nFORGED\", \"usage\": \"filesystem\"}]}
/recorded/wipefs/nvme1n1p1 = {\"signatures\": []}
/var/lib/adit/setup/devices/0000:01:00.0.json = {\"version\": 1, \"bdf\": \"0000:01:00.0\", \"phase\": \"bound\", \"before\": {\"driver\": \"nvme\", \"driver_override\": null}, \"identity\": {\"ids\": \"8086:0a54\", \"model\": \"M\\nFORGED\\u001b[8m\", \"serial\": \"S\\nFORGED\", \"firmware\": null, \"size_bytes\": null, \"namespaces\": []}, \"boot_id\": \"b7b0\", \"grant\": null}
/var/lib/adit/setup/devices/0000:02:00.0.json = {\"version\": 1, \"bdf\": \"0000:02:00.0\", \"phase\": \"bound\", \"before\": {\"driver\": \"nvme\", \"driver_override\": null}, \"identity\": {\"ids\": \"8086:0a54\", \"model\": \"M\", \"serial\": \"S\\nFORGED recorded\", \"firmware\": null, \"size_bytes\": null, \"namespaces\": []}, \"boot_id\": \"a000\", \"grant\": null}
";

/// A recording in a file that is removed on drop.
struct Recording(PathBuf);

impl Recording {
    fn new() -> Recording {
        let path = std::env::temp_dir().join(format!("adit-hostile-{}.tree", std::process::id()));
        std::fs::write(&path, MACHINE).expect("a recording");
        Recording(path)
    }

    /// Returns a command's whole output.
    fn said(&self, line: &str) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
        command.args(["setup", "--sysroot"]).arg(&self.0).args(line.split(' '));
        let ended = command.output().expect("adit runs");
        let said = [ended.stdout, ended.stderr].concat();
        String::from_utf8(said).expect("UTF-8")
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn text_that_others_chose_stays_text_in_its_line() {
    let machine = Recording::new();
    for (line, shows) in [
        ("status", "FORGED ok   identify"),
        ("doctor 0000:01:00.0", "FORGED ok   other users"),
        ("doctor 0000:02:00.0", "FORGED ok   identify"),
        ("unbind 0000:01:00.0 --dry-run", "FORGED ok   other users"),
        ("restore --dry-run", "FORGED ok   other users"),
        ("bind --recorded --dry-run", "FORGED recorded"),
        ("bind 0000:02:00.0 --force-erase-signature --dry-run", "FORGED"),
        ("status --json", "FORGED ok   identify"),
        ("doctor 0000:02:00.0 --json", "FORGED ok   identify"),
    ] {
        let said = machine.said(line);
        assert!(said.contains(shows), "{line} does not show it:\n{said:?}");
        let forged = said.lines().find(|line| line.trim_start().starts_with("FORGED"));
        assert_eq!(forged, None, "{line}");
        let harmful =
            |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
        assert_eq!(said.find(harmful), None, "{line}: {said:?}");
    }
}
