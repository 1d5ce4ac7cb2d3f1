//! Tests `adit setup bind`, `unbind` and `restore` as users see them, on recorded machines, so that nothing is
//! changed.

use std::path::PathBuf;
use std::process::Command;

/// A machine with a drive in group 12 and a network card.
const MACHINE: &str = "\
/proc/sys/kernel/osrelease = 6.1.0
/proc/sys/kernel/random/boot_id = b7b0
/sys/bus/pci/devices/0000:01:00.0/class = 0x010802
/sys/bus/pci/devices/0000:01:00.0/vendor = 0x8086
/sys/bus/pci/devices/0000:01:00.0/device = 0x0a54
/sys/bus/pci/devices/0000:01:00.0/driver -> ../../drivers/nvme
/sys/bus/pci/devices/0000:01:00.0/driver_override = (null)
/sys/bus/pci/devices/0000:01:00.0/iommu_group -> ../../../../kernel/iommu_groups/12
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/serial = S1
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/state = live
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/nvme0n1/size = 8000
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/nvme0n1/dev = 259:0
/sys/bus/pci/devices/0000:02:00.0/class = 0x020000
/sys/bus/pci/drivers/nvme/
/sys/class/block/nvme0n1 -> ../../bus/pci/devices/0000:01:00.0/nvme/nvme0/nvme0n1
/sys/kernel/iommu_groups/12/devices/0000:01:00.0 -> ../../../../bus/pci/devices/0000:01:00.0
/dev/nvme0n1 = x
";

const EMPTY: &str = "/recorded/wipefs/nvme0n1 = {\"signatures\": []}\n";
const EXT4: &str = r#"/recorded/wipefs/nvme0n1 = {"signatures": [{"device": "nvme0n1", "offset": "0x438", "type": "ext4", "uuid": null, "label": "data", "usage": "filesystem"}]}
"#;

/// A recording in a file that is removed on drop.
struct Recording(PathBuf);

impl Recording {
    fn new(name: &str, more: &str) -> Recording {
        let file = format!("adit-{}-{name}.tree", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, format!("{MACHINE}{more}")).expect("a recording");
        Recording(path)
    }

    /// Returns exit code, standard output and standard error.
    fn run(&self, line: &str) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
        command.args(["setup", "--sysroot"]).arg(&self.0).args(line.split_whitespace());
        let ended = command.output().expect("adit runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (ended.status.code(), text(ended.stdout), text(ended.stderr))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_dry_run_prints_every_change_in_order() {
    let (code, out, err) = Recording::new("dry", EMPTY).run("bind 0000:01:00.0 --dry-run");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(
        out,
        "\
would modprobe vfio-pci
would write /var/lib/adit/setup/devices/0000:01:00.0.json
would echo vfio-pci > /sys/bus/pci/devices/0000:01:00.0/driver_override
would echo 0000:01:00.0 > /sys/bus/pci/devices/0000:01:00.0/driver/unbind
would echo 0000:01:00.0 > /sys/bus/pci/drivers_probe
would write /var/lib/adit/setup/devices/0000:01:00.0.json
0000:01:00.0 would be bound to vfio-pci: use it as vfio:0000:01:00.0; 'adit setup unbind 0000:01:00.0' gives it back
"
    );
}

#[test]
fn json_is_one_object_with_the_changes_and_the_devices() {
    let (code, out, _) = Recording::new("json", EMPTY).run("bind 01:00.0 --dry-run --json");
    let object: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(code, Some(0));
    assert_eq!(object["dry_run"], true);
    assert_eq!(object["changes"][0]["program"], "modprobe");
    assert_eq!(object["changes"][2]["action"], "write");
    assert_eq!(object["changes"][2]["value"], "vfio-pci");
    assert_eq!(object["result"][0]["target"], "vfio:0000:01:00.0");
    assert_eq!(object["error"], serde_json::Value::Null);
}

#[test]
fn a_refusal_lists_all_reasons_and_is_in_the_json_too() {
    let machine = Recording::new("refused", EXT4);
    let (code, out, err) = machine.run("bind 01:00.0 02:00.0 03:00.0 --dry-run");
    assert_eq!((code, out.as_str()), (Some(1), ""));
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 4, "{err}");
    assert_eq!(lines[0], "adit: nothing was changed:");
    assert!(
        lines[1].starts_with("  0000:01:00.0: nvme0n1 holds a signature of ext4 'data'"),
        "{err}"
    );
    assert!(lines[2].starts_with("  0000:02:00.0: this PCI device is no NVMe controller"), "{err}");
    assert!(lines[3].starts_with("  0000:03:00.0: there is no such PCI device"), "{err}");

    let (code, out, err) = machine.run("bind 01:00.0 --dry-run --json");
    let object: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(code, Some(1));
    assert_eq!(format!("adit: {}\n", object["error"].as_str().expect("a sentence")), err);
    assert_eq!(object["changes"], serde_json::json!([]));
}

#[test]
fn what_would_be_erased_is_told_with_where_the_copies_go() {
    let machine = Recording::new("erase", EXT4);
    let (code, out, _) = machine.run("bind 01:00.0 --dry-run --force-erase-signature");
    assert_eq!(code, Some(0));
    let copies = "/var/lib/adit/setup/erased/0000:01:00.0-1";
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "would modprobe vfio-pci");
    assert_eq!(lines[1], format!("would write {copies}/README"));
    assert!(
        out.contains(&format!("\nwould env HOME={copies} wipefs --all --backup /dev/nvme0n1\n")),
        "{out}"
    );
}

#[test]
fn the_way_back_is_the_records() {
    let bound = "\
/var/lib/adit/setup/devices/0000:01:00.0.json = {\"version\": 1, \"bdf\": \"0000:01:00.0\", \"phase\": \"bound\", \
\"before\": {\"driver\": \"nvme\", \"driver_override\": null}, \"identity\": {\"ids\": \"8086:0a54\", \"model\": null, \
\"serial\": \"S1\", \"firmware\": null, \"size_bytes\": 4096000, \"namespaces\": [\"nvme0n1\"]}, \"boot_id\": \"b7b0\", \
\"grant\": null}
/sys/bus/pci/drivers/vfio-pci/
";
    let machine =
        MACHINE.replace("drivers/nvme\n", "drivers/vfio-pci\n").replace("(null)", "vfio-pci");
    let machine = machine.lines().filter(|line| !line.contains("nvme0")).collect::<Vec<_>>();
    let recording = Recording::new("back", "");
    std::fs::write(&recording.0, format!("{}\n{bound}", machine.join("\n"))).expect("a recording");
    for line in ["restore --dry-run", "unbind --all --dry-run", "unbind 01:00.0 --dry-run"] {
        let (code, out, err) = recording.run(line);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{line}");
        assert_eq!(
            out,
            "\
would write /var/lib/adit/setup/devices/0000:01:00.0.json
would echo > /sys/bus/pci/devices/0000:01:00.0/driver_override
would echo 0000:01:00.0 > /sys/bus/pci/devices/0000:01:00.0/driver/unbind
would echo 0000:01:00.0 > /sys/bus/pci/drivers/nvme/bind
would rm /var/lib/adit/setup/devices/0000:01:00.0.json
0000:01:00.0 would be back: driver nvme
",
            "{line}"
        );
    }
}

#[test]
fn what_another_tool_has_bound_since_the_boot_is_left_alone() {
    let stale = "\
/dev/vfio/12 = x
/proc/77/comm = qemu
/proc/77/fd/3 -> /dev/vfio/12
/var/lib/adit/setup/devices/0000:01:00.0.json = {\"version\": 1, \"bdf\": \"0000:01:00.0\", \"phase\": \"bound\", \
\"before\": {\"driver\": \"nvme\", \"driver_override\": null}, \"identity\": {\"ids\": \"8086:0a54\", \"model\": null, \
\"serial\": \"S1\", \"firmware\": null, \"size_bytes\": 4096000, \"namespaces\": [\"nvme0n1\"]}, \"boot_id\": \"a000\", \
\"grant\": \"alice\"}
/sys/bus/pci/drivers/vfio-pci/
";
    let machine =
        MACHINE.replace("drivers/nvme\n", "drivers/vfio-pci\n").replace("(null)", "vfio-pci");
    let machine = machine.lines().filter(|line| !line.contains("nvme0")).collect::<Vec<_>>();
    let recording = Recording::new("stale", "");
    std::fs::write(&recording.0, format!("{}\n{stale}", machine.join("\n"))).expect("a recording");
    for line in ["restore --dry-run", "unbind 01:00.0 --dry-run"] {
        let (code, out, err) = recording.run(line);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{line}");
        assert_eq!(
            out,
            "\
would write /var/lib/adit/setup/devices/0000:01:00.0.json
would write /var/lib/adit/setup/devices/0000:01:00.0.json
0000:01:00.0 has the driver vfio-pci by now, and keeps it
would rm /var/lib/adit/setup/devices/0000:01:00.0.json
0000:01:00.0 would be left alone, and its record removed
",
            "{line}"
        );
    }
}

#[test]
fn wrong_command_lines_end_with_2_and_say_why() {
    let machine = Recording::new("wrong", EMPTY);
    for (line, why) in [
        ("bind", "<BDF>"),
        ("bind 01:00 --dry-run", "domain:bus:device.function"),
        ("bind 01:00.0 --recorded --dry-run", "cannot be used with"),
        ("unbind", "<BDF>"),
        ("unbind --all 01:00.0", "cannot be used with"),
        ("bind 01:00.0", "a recorded machine cannot be changed; add --dry-run"),
        ("restore", "a recorded machine cannot be changed; add --dry-run"),
    ] {
        let (code, out, err) = machine.run(line);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{line}: {err}");
        assert!(err.contains(why), "{line}: {err}");
    }
}

#[test]
fn nothing_to_do_is_said_and_is_no_failure() {
    let machine = Recording::new("nothing", EMPTY);
    for line in ["restore --dry-run", "unbind --all --dry-run", "bind --recorded --dry-run"] {
        let (code, out, err) = machine.run(line);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{line}");
        assert!(out.starts_with("nothing is recorded"), "{line}: {out}");
    }
}
