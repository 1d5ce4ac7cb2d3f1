//! Tests `adit setup grant`, `revoke`, `hugepages` and `persist` as users see them, on recorded machines, so
//! that nothing of this one is changed.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

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
/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages = 8
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
fn what_sets_hugepages_is_a_script_of_plain_lines() {
    let machine = Recording::new("hugepages", "");
    let out = machine.succeed("hugepages --bytes 63M --node 1 --persist");
    let file = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "# Sets 32 pages of 2.0MiB on node 1; now: 0, 0 free.");
    assert!(lines[1].contains("'hugepagesz=2M hugepages=32'"), "{out}");
    assert_eq!(
        lines[2..],
        [
            "cat > /etc/tmpfiles.d/adit-hugepages.conf <<'END_OF_FILE'",
            &format!("w! {file} - - - - 32"),
            "END_OF_FILE",
            &format!("echo 32 > {file}"),
            &format!("cat {file}"),
            "# These lines undo it:",
            &format!("#   echo 0 > {file}"),
            "#   rm /etc/tmpfiles.d/adit-hugepages.conf",
        ]
    );
    let out = machine.succeed("hugepages --count 100 --json");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(report["commands"], json!([format!("echo 100 > {file}"), format!("cat {file}")]));
    assert_eq!(report["undo"], json!([format!("echo 8 > {file}")]));
    assert_eq!(report["files"], json!([]));
}

#[test]
fn hugepages_that_cannot_be_are_refused() {
    let machine = Recording::new("too-many", "");
    for line in [
        "hugepages --count 10000",
        "hugepages --count 18446744073709551615",
        "hugepages --bytes 16383P --node 1",
    ] {
        let why = machine.fail(line, 1);
        assert!(why.contains("at most"), "{why}");
    }
    // 1 GiB is free on node 0, less a 32nd of its 2 GiB: 480 pages.
    let why = machine.fail("hugepages --count 489 --node 0", 1);
    assert!(why.contains("node 0: 481 pages of 2.0MiB more than the 8 that there are"), "{why}");
    assert!(why.contains("ask for 488 at most"), "{why}");
    machine.succeed("hugepages --count 488 --node 0");
    let why = machine.fail("hugepages --size 1G --count 1", 1);
    assert!(why.contains("no hugepages of 1.0GiB") && why.contains("pdpe1gb"), "{why}");
    let why = machine.fail("hugepages --count 1 --node 7", 2);
    assert!(why.contains("there is no node 7; there are: 0, 1"), "{why}");
    machine.fail("hugepages", 2);
    machine.fail("hugepages --count -1", 2);
    machine.fail("hugepages --size 4M --count 1", 2);
    machine.fail("hugepages --bytes 4M --count 1", 2);
}

#[test]
fn what_binds_at_boot_is_a_script_and_needs_something_to_bind() {
    let machine = Recording::new("persist", RECORD);
    let out = machine.succeed("persist");
    assert!(out.starts_with("# Each boot binds 0000:01:00.0 after checking it again.\n"), "{out}");
    let commands: Vec<&str> = out
        .lines()
        .filter(|line| line.starts_with("cat ") || line.starts_with("systemctl "))
        .collect();
    assert_eq!(
        commands,
        [
            "cat > /etc/modules-load.d/adit.conf <<'END_OF_FILE'",
            "cat > /etc/systemd/system/adit-setup.service <<'END_OF_FILE'",
            "systemctl enable adit-setup.service",
        ]
    );
    assert!(out.contains("\nExecStart=/usr/local/bin/adit setup bind --recorded\n"), "{out}");
    assert!(out.contains("\nWantedBy=multi-user.target\nEND_OF_FILE\n"), "{out}");
    let report: Value = serde_json::from_str(&machine.succeed("persist --json")).expect("JSON");
    assert_eq!(report["files"][0]["content"], "vfio-pci\n");
    assert_eq!(report["undo"][0], "systemctl disable adit-setup.service");
    let bare = Recording::new("bare", "");
    let why = bare.fail("persist", 1);
    assert!(why.contains("begin with 'sudo adit setup bind BDF'"), "{why}");
}

/// Runs the script with the machine's folders replaced by one of its own, as a user would run it as root.
#[test]
fn a_printed_script_does_what_it_says() {
    let machine = Recording::new("script", RECORD);
    let folder = std::env::temp_dir().join(format!("adit-script-{}", std::process::id()));
    for below in ["etc/systemd/system", "etc/modules-load.d", "etc/tmpfiles.d", "sys/kernel/mm"] {
        std::fs::create_dir_all(folder.join(below)).expect("a folder");
    }
    let at = folder.to_str().expect("UTF-8");
    let script = machine.succeed("persist") + &machine.succeed("hugepages --count 9 --persist");
    let script = script
        .replace("> /etc/", &format!("> {at}/etc/"))
        .replace("/sys/kernel/mm/hugepages/hugepages-2048kB/", &format!("{at}/sys/kernel/mm/"));
    let shell = format!("set -e\nsystemctl() {{ echo \"ran $*\"; }}\n{script}");
    let ended = Command::new("sh").args(["-c", &shell]).output().expect("a shell");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let read = |file: &str| std::fs::read_to_string(folder.join(file));
    let (unit, pages) =
        (read("etc/systemd/system/adit-setup.service"), read("sys/kernel/mm/nr_hugepages"));
    let _ = std::fs::remove_dir_all(&folder);
    assert_eq!(said, "ran enable adit-setup.service\n9\n", "{ended:?}");
    assert_eq!(pages.expect("a number"), "9\n");
    let unit = unit.expect("a unit");
    assert!(unit.starts_with("[Unit]\n") && unit.ends_with("=multi-user.target\n"), "{unit}");
}
