//! Tests judgements of recorded machines and of drives in memory.

use adit_driver::DeviceOptions;
use adit_driver::target::KernelTarget;

use super::*;

const EMPTY: &str = "\
/sys/class/block/nvme0n1/dev = 259:0
/sys/class/block/nvme0n1/size = 2048
/recorded/wipefs/nvme0n1 = {\"signatures\": []}
/dev/nvme0n1 = x
/dev/ng0n1 = x
";

const EXT4: &str = "/recorded/wipefs/nvme0n1 = {\"signatures\": [{\"offset\": \"0x438\", \"type\": \"ext4\", \
                    \"usage\": \"filesystem\", \"label\": \"mine\"}]}\n";
const MOUNTED: &str = "/proc/self/mountinfo = 36 35 259:0 / /mnt rw - ext4 /dev/nvme0n1 rw\n";

/// Returns the empty drive with additional lines, which replace its own for the same file.
fn with(more: &str) -> String {
    let path = |line: &str| line.split(" = ").next().map(str::to_owned);
    let replaced: Vec<_> = more.lines().map(path).collect();
    let kept = EMPTY.lines().filter(|line| !replaced.contains(&path(line)));
    kept.flat_map(|line| [line, "\n"]).collect::<String>() + more
}

fn kernel(path: KernelPath, file: &str) -> Target {
    Target::Kernel(KernelTarget::new(path, file))
}

fn drive() -> Target {
    kernel(KernelPath::Uring, "/dev/nvme0n1")
}

/// Judges `target` on the recorded machine; its reads return zeroes.
fn judged(machine: &str, target: &Target, allow_destroy: bool) -> Result<Vec<Warning>> {
    let null = "null:".parse().expect("a target");
    let device = Device::open(&null, &DeviceOptions::default()).expect("nothing is opened");
    judged_with(machine, target, &device, allow_destroy)
}

fn judged_with(
    machine: &str,
    target: &Target,
    device: &Device,
    allow_destroy: bool,
) -> Result<Vec<Warning>> {
    let root = Root::recorded(machine).expect("a recording");
    let findings = look(&root, &Written { target, device, is_ours: false });
    judge(&[(target.device(), findings)], Permission { is_given: allow_destroy, ..ALLOW_DESTROY })
}

fn refusal_of(machine: &str, target: &Target) -> String {
    let failure = judged(machine, target, false).expect_err("refused");
    assert_eq!(failure.code(), 2);
    failure.to_string()
}

#[test]
fn an_idle_empty_drive_may_be_written() {
    assert_eq!(judged(EMPTY, &drive(), false).expect("allowed"), []);
}

#[test]
fn a_signature_is_refused_by_every_path_and_named() {
    let machine = with(EXT4);
    for path in [KernelPath::Uring, KernelPath::Psync, KernelPath::Mmap] {
        let text = refusal_of(&machine, &kernel(path, "/dev/nvme0n1"));
        assert!(text.contains("nvme0n1 holds a signature of ext4 'mine' (filesystem)"), "{text}");
        assert!(text.contains("--allow-destroy"), "{text}");
    }
    let text = refusal_of(&machine, &kernel(KernelPath::UringCmd, "/dev/ng0n1"));
    assert!(text.starts_with("uring-cmd:/dev/ng0n1: nothing was written"), "{text}");
    assert!(text.contains("nvme0n1 holds a signature of ext4"), "{text}");
}

#[test]
fn each_use_is_refused_with_what_ends_it() {
    let cases = [
        (MOUNTED, "nvme0n1 is mounted at /mnt (ext4); umount /mnt"),
        (
            "/proc/swaps:\n    Filename Type\n    /dev/nvme0n1 partition\n",
            "nvme0n1 is used for swap; swapoff /dev/nvme0n1",
        ),
        (
            "/sys/class/block/nvme0n1/holders/md0/x = 1\n/sys/class/block/md0/md/level = raid1\n",
            "nvme0n1 is part of MD raid1 md0; mdadm --stop /dev/md0",
        ),
        (
            "/recorded/claimed-nvme0n1 = yes\n",
            "nvme0n1 is claimed by the kernel or by an unknown process; lsblk /dev/nvme0n1",
        ),
    ];
    for (more, wanted) in cases {
        let text = refusal_of(&with(more), &drive());
        assert!(text.contains(wanted), "{text}");
    }
}

#[test]
fn what_is_known_to_be_mounted_is_not_told_as_claimed_again() {
    let text =
        refusal_of(&with(&(MOUNTED.to_owned() + "/recorded/claimed-nvme0n1 = yes\n")), &drive());
    assert!(text.contains("mounted") && !text.contains("claimed"), "{text}");
}

#[test]
fn the_claim_of_our_own_handle_is_no_obstacle() {
    let machine = with("/recorded/claimed-nvme0n1 = yes\n");
    let null = "null:".parse().expect("a target");
    let device = Device::open(&null, &DeviceOptions::default()).expect("nothing is opened");
    let (root, target) = (Root::recorded(&machine).expect("a recording"), drive());
    let found = |is_ours| look(&root, &Written { target: &target, device: &device, is_ours });
    assert_eq!((found(true), found(false).len()), (vec![], 1));
    let text = refusal_of(&machine, &target);
    assert_eq!(text.lines().count(), 3, "one for each reason, and what to do: {text}");
}

#[test]
fn allow_destroy_turns_refusals_into_warnings_that_say_what_goes() {
    let machine = with(&(EXT4.to_owned() + MOUNTED));
    let warnings = judged(&machine, &drive(), true).expect("allowed");
    let texts: Vec<&str> = warnings.iter().map(|warning| warning.text.as_str()).collect();
    assert_eq!(texts.len(), 2);
    assert!(texts[0].contains("is mounted at /mnt (ext4), and is OVERWRITTEN"), "{texts:?}");
    assert!(texts[1].contains("ext4 'mine'"), "{texts:?}");
    assert!(warnings.iter().all(|warning| warning.code == "data-destroyed"));
}

#[test]
fn a_read_only_drive_is_refused_whatever_is_allowed() {
    let machine = with(&(EXT4.to_owned() + "/sys/class/block/nvme0n1/ro = 1\n"));
    let failure = judged(&machine, &drive(), true).expect_err("refused");
    let text = failure.to_string();
    assert!(text.contains("nvme0n1 is read-only; blockdev --setrw /dev/nvme0n1"), "{text}");
    assert!(!text.contains("ext4") && !text.contains("--allow-destroy"), "{text}");
}

#[test]
fn a_process_that_only_has_the_drive_open_is_a_warning() {
    let machine = with("/proc/77/fd/3 -> /dev/ng0n1\n/proc/77/comm = fio\n");
    let warnings = judged(&machine, &drive(), false).expect("allowed");
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].code, "device-shared");
    assert!(warnings[0].text.contains("process 77 (fio)"), "{:?}", warnings[0]);
}

#[test]
fn files_and_what_is_made_for_the_run_are_free() {
    let root = Root::recorded(EMPTY).expect("a recording");
    for target in ["null:", "soft:mem=64M", "soft:null"] {
        let target = target.parse().expect("a target");
        assert_eq!(place(&root, &target), Contents::Free, "{target}");
    }
    let file = kernel(KernelPath::Psync, "/home/me/fio.0.0");
    assert_eq!(place(&root, &file), Contents::File);
    for target in ["vfio:0000:01:00.0", "vfio-user:/run/x", "soft:file=/tmp/x,size=64M"] {
        let target = target.parse().expect("a target");
        assert_eq!(place(&root, &target), Contents::Opaque, "{target}");
    }
    let hidden = kernel(KernelPath::UringCmd, "/dev/ng7n1");
    assert_eq!(place(&root, &hidden), Contents::Opaque);
}

#[test]
fn without_wipefs_a_drive_of_zeroes_is_empty_and_another_is_refused() {
    let machine = EMPTY.replace("wipefs/nvme0n1 =", "wipefs/other =")
        + "/recorded/wipefs/nvme0n1.failed = wipefs is not installed\n";
    assert_eq!(judged(&machine, &drive(), false).expect("zeroes"), []);
    let device = Device::open(&"soft:mem=16M".parse().expect("a target"), &Default::default());
    let device = device.expect("open");
    write_something(&device);
    let failure = judged_with(&machine, &drive(), &device, false).expect_err("refused");
    let text = failure.to_string();
    assert!(
        text.contains("the contents of nvme0n1 are unknown (wipefs is not installed)"),
        "{text}"
    );
    assert!(
        text.contains("install wipefs (package util-linux)") && text.contains("--allow-destroy"),
        "{text}"
    );
}

fn write_something(device: &Device) {
    use adit_driver::paths::{CommandQueue, Operation, QueueOptions, Request};
    let second = std::time::Duration::from_secs(1);
    let options = QueueOptions { depth: 1, timeout: second, abort_timeout: second };
    let mut queue = device.create_queue(&options, &[]).expect("a queue");
    let mut buffer = device.allocate(4096).expect("memory");
    buffer.fill(7);
    let request = Request { operation: Operation::Write(adit_driver::spec::Lba(0)), buffer };
    queue.post(device.now(), request).expect("room");
    queue.ring();
    while queue.poll(device.now(), |done| assert!(done.result.is_ok(), "written")) == 0 {}
}

#[test]
fn a_target_is_looked_at_once_and_each_namespace_for_itself() {
    let null = "null:".parse().expect("a target");
    let device = Device::open(&null, &DeviceOptions::default()).expect("nothing is opened");
    let names = ["vfio:0000:01:00.0,ns=1", "vfio:0000:01:00.0,ns=2", "vfio:0000:01:00.0,ns=1"];
    let targets = names.map(|name| name.parse::<Target>().expect("a target"));
    let written =
        targets.each_ref().map(|target| Written { target, device: &device, is_ours: false });
    let looked: Vec<String> = distinct(&written).iter().map(|one| one.target.to_string()).collect();
    assert_eq!(looked, names[..2]);
}

#[test]
fn all_refused_devices_are_told_at_once() {
    let loss = |what: &str| vec![Finding::new(FindingKind::Loss, what, None)];
    let looked = [("a:1".to_owned(), loss("one")), ("b:2".to_owned(), loss("two"))];
    let failure = judge(&looked, ALLOW_DESTROY).expect_err("refused");
    let text = failure.to_string();
    assert!(text.contains("a:1") && text.contains("one") && text.contains("b:2"), "{text}");
    assert_eq!(failure.code(), 2);
    assert_eq!(
        judge(&looked, Permission { is_given: true, ..ALLOW_DESTROY }).expect("allowed").len(),
        2
    );
}

#[test]
fn text_that_others_chose_does_nothing_to_a_terminal() {
    let label = EXT4.replace("mine", "a\\u001b[2Jb");
    let text = refusal_of(&with(&label), &drive());
    assert!(text.contains("a?[2Jb"), "{text:?}");
}

#[test]
fn a_disk_behind_a_software_controller_is_looked_at_as_a_disk() {
    let target = "soft:file=/dev/nvme0n1".parse().expect("a target");
    let refusal = refusal_of(&with(MOUNTED), &target);
    assert!(refusal.contains("/mnt"), "{refusal}");
    assert_eq!(judged(EMPTY, &target, false).expect("empty"), []);
}
