//! Tests `adit setup grant`, `revoke`, `hugepages` and `persist` as users see them, on recorded machines, so
//! that nothing is changed.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// A machine with a drive bound to vfio-pci, one with the kernel's driver, two nodes, and systemd.
const MACHINE: &str = "\
/etc/passwd:
    root:x:0:0:root:/root:/bin/bash
    alice:x:1000:1000::/home/alice:/bin/bash
    bob:x:1001:1001::/home/bob:/bin/bash
/proc/sys/kernel/random/boot_id = b7b0
/run/systemd/system/
/sys/bus/pci/devices/0000:01:00.0/driver -> ../../drivers/vfio-pci
/sys/bus/pci/devices/0000:01:00.0/iommu_group -> ../../../../kernel/iommu_groups/12
/sys/bus/pci/devices/0000:02:00.0/driver -> ../../drivers/nvme
/sys/bus/pci/drivers/nvme/
/sys/bus/pci/drivers/vfio-pci/
/sys/kernel/iommu_groups/12/devices/0000:01:00.0 -> ../../../../bus/pci/devices/0000:01:00.0
/dev/vfio/12 = x
/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages = 8
/sys/devices/system/node/node0/meminfo:
    Node 0 MemTotal: 2097152 kB
    Node 0 MemFree: 1048576 kB
/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages = 8
/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages = 8
/sys/devices/system/node/node0/hugepages/hugepages-2048kB/surplus_hugepages = 0
/sys/devices/system/node/node1/meminfo:
    Node 1 MemTotal: 2097152 kB
    Node 1 MemFree: 1048576 kB
/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages = 0
/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages = 0
/sys/devices/system/node/node1/hugepages/hugepages-2048kB/surplus_hugepages = 0
";

const RECORD: &str = r#"/var/lib/adit/setup/devices/0000:01:00.0.json = {"version": 1, "bdf": "0000:01:00.0", "phase": "bound", "before": {"driver": "nvme", "driver_override": null}, "identity": {"ids": "8086:0a54", "model": null, "serial": "S1", "firmware": null, "size_bytes": null, "namespaces": ["nvme0n1"]}, "boot_id": "b7b0", "grant": "bob"}
"#;

/// A recording in a file that is removed on drop.
struct Recording(PathBuf);

impl Recording {
    fn new(name: &str, more: &str) -> Recording {
        let file = format!("adit-changes-{}-{name}.tree", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, format!("{MACHINE}{more}")).expect("a recording");
        Recording(path)
    }

    /// Returns exit code, standard output and standard error.
    fn run(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
        command.args(["setup", "--sysroot"]).arg(&self.0).args(words);
        let ended = command.output().expect("adit runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (ended.status.code(), text(ended.stdout), text(ended.stderr))
    }

    /// Returns the output of a command that succeeds.
    fn succeed(&self, line: &str) -> String {
        let (code, out, err) = self.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!((code, err.as_str()), (Some(0), ""), "{line}\n{out}");
        out
    }

    /// Returns the error output of a command that ends with `code`.
    fn fail(&self, line: &str, code: i32) -> String {
        let (ended, _, err) = self.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(ended, Some(code), "{line}\n{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        err
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the lines about changes.
fn changes(out: &str) -> Vec<&str> {
    out.lines().filter_map(|line| line.strip_prefix("would ")).collect()
}

#[test]
fn a_grant_shows_both_files_and_the_owner() {
    let out = Recording::new("grant", "").succeed("grant 0000:01:00.0 --user alice --dry-run");
    assert_eq!(
        changes(&out),
        [
            "write /run/udev/rules.d/90-adit-0000:01:00.0.rules",
            "write /etc/security/limits.d/90-adit-alice.conf",
            "chown 1000 /dev/vfio/12",
        ]
    );
    for part in [
        "    SUBSYSTEM==\"vfio\", ACTION==\"add\", \
         TEST==\"/sys/kernel/iommu_groups/%k/devices/0000:01:00.0\"",
        "    alice - memlock unlimited\n",
        "LimitMEMLOCK=infinity",
        "was not bound by 'adit setup'",
    ] {
        assert!(out.contains(part), "{part} is missing:\n{out}");
    }
}

#[test]
fn what_goes_along_in_the_group_is_said_or_refused() {
    let neighbour = "\
/sys/bus/pci/devices/0000:03:00.0/driver -> ../../drivers/vfio-pci
/sys/kernel/iommu_groups/12/devices/0000:03:00.0 -> ../../../../bus/pci/devices/0000:03:00.0
";
    let machine = Recording::new("group", neighbour);
    let why = machine.fail("grant 0000:01:00.0 --user alice --dry-run", 1);
    assert!(why.contains("alice could also open 0000:03:00.0; add --with-group"), "{why}");
    let out = machine.succeed("grant 0000:01:00.0 --user alice --with-group --dry-run");
    let said = "alice may open 0000:03:00.0 too: it shares IOMMU group 12 with 0000:01:00.0\n";
    assert!(out.starts_with(said), "{out}");
}

#[test]
fn another_users_grant_is_taken_back_first() {
    let machine = Recording::new("regrant", RECORD);
    let out = machine.succeed("grant 0000:01:00.0 --user alice --dry-run --json");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["result"]["user"], "alice");
    assert_eq!(report["notes"][0], "0000:01:00.0 goes from bob to alice");
    let uids = report["changes"].as_array().expect("changes").iter();
    let uids: Vec<&Value> =
        uids.filter(|one| one["action"] == "owner").map(|one| &one["uid"]).collect();
    assert_eq!(uids, [0, 1000]);
}

#[test]
fn revoke_takes_back_what_is_recorded_or_says_that_nothing_is() {
    let out = Recording::new("revoke", RECORD).succeed("revoke 0000:01:00.0 --dry-run");
    assert_eq!(
        changes(&out),
        ["chown 0 /dev/vfio/12", "write /var/lib/adit/setup/devices/0000:01:00.0.json"]
    );
    let out = Recording::new("nothing", "").succeed("revoke 0000:02:00.0 --dry-run");
    assert_eq!(out, "0000:02:00.0 is not granted, so there is nothing to revoke\n");
}

#[test]
fn what_cannot_be_granted_is_one_sentence() {
    let machine = Recording::new("refused", "");
    let why = machine.fail("grant 0000:02:00.0 --user alice --dry-run", 1);
    assert!(why.contains("run 'sudo adit setup bind 0000:02:00.0' first"), "{why}");
    let why = machine.fail("grant 0000:01:00.0 --user carol --dry-run", 2);
    assert!(why.contains("there is no user 'carol'"), "{why}");
    for user in ["a\",RUN+=\"x", "a$", "@users", "../../x", "", "a\nb", "1000"] {
        let user = format!("--user={user}");
        let (code, out, err) = machine.run(&["grant", "0000:01:00.0", &user, "--dry-run"]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
        assert!(err.contains("a name of letters, digits"), "{err}");
    }
    let why = machine.fail("grant 0000:01:00.0 --user alice", 2);
    assert!(why.contains("add --dry-run"), "{why}");
}

#[test]
fn hugepages_are_told_before_they_are_set() {
    let machine = Recording::new("hugepages", "");
    let out = machine.succeed("hugepages --bytes 64M --node 1 --persist --dry-run");
    assert_eq!(
        changes(&out),
        [
            "write /var/lib/adit/setup/hugepages.json",
            "echo 32 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
            "write /etc/tmpfiles.d/adit-hugepages.conf",
        ]
    );
    let line = "    w! /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages - - - - 32\n";
    assert!(out.contains(line), "{out}");
    let out = machine.succeed("hugepages --count 100 --dry-run --json");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["result"][0]["node"], 0);
    assert_eq!(report["result"][0]["before"], 8);
    assert_eq!(report["result"][0]["after"], Value::Null);
    let out = machine.succeed("hugepages --release --dry-run");
    assert!(out.contains("there is nothing to release"), "{out}");
}

#[test]
fn hugepages_that_cannot_be_are_refused() {
    let machine = Recording::new("too-many", "");
    for line in [
        "hugepages --count 10000 --dry-run",
        "hugepages --count 18446744073709551615 --dry-run",
        "hugepages --bytes 16383P --node 1 --dry-run",
    ] {
        let why = machine.fail(line, 1);
        assert!(why.contains("at most"), "{why}");
    }
    let why = machine.fail("hugepages --size 1G --count 1 --dry-run", 1);
    assert!(why.contains("pdpe1gb"), "{why}");
    let why = machine.fail("hugepages --count 1 --node 7 --dry-run", 2);
    assert!(why.contains("there is no node 7; there are: 0, 1"), "{why}");
    machine.fail("hugepages --dry-run", 2);
    machine.fail("hugepages --count -1 --dry-run", 2);
    machine.fail("hugepages --size 4M --count 1 --dry-run", 2);
    machine.fail("hugepages --release --count 1 --dry-run", 2);
}

#[test]
fn a_release_tells_every_number_that_it_puts_back() {
    let record = r#"/var/lib/adit/setup/hugepages.json = {"version": 1, "boot_id": "b7b0", "pools": [{"node": 0, "page_bytes": 2097152, "pages": 3}, {"node": 1, "page_bytes": 2097152, "pages": 0}]}
"#;
    let out = Recording::new("release", record).succeed("hugepages --release --dry-run");
    assert_eq!(
        changes(&out),
        [
            "echo 3 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
            "rm /var/lib/adit/setup/hugepages.json",
        ]
    );
}

#[test]
fn the_unit_is_shown_and_needs_something_to_bind() {
    let out = Recording::new("persist", RECORD).succeed("persist --dry-run");
    assert_eq!(
        changes(&out),
        [
            "write /etc/modules-load.d/adit.conf",
            "write /etc/systemd/system/adit-setup.service",
            "ln -s /etc/systemd/system/adit-setup.service \
             /etc/systemd/system/multi-user.target.wants/adit-setup.service",
            "systemctl daemon-reload",
        ]
    );
    assert!(out.contains("    ExecStart=/usr/local/bin/adit setup bind --recorded\n"), "{out}");
    let bare = Recording::new("bare", "");
    let why = bare.fail("persist --dry-run", 1);
    assert!(why.contains("begin with 'sudo adit setup bind BDF'"), "{why}");
    let out = bare.succeed("persist --remove --dry-run");
    assert!(out.contains("there is nothing to remove"), "{out}");
}
