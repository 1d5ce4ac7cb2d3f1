//! Decides whether Adit may take a controller: each obstacle with its remedy.

use adit_guard::disk::{NO_DEVICE, Signature, told_once};

use super::function::Function;
use super::host::Host;
use super::namespace::Namespace;
use super::obstacle::{Obstacle, ObstacleKind};

/// Returns all obstacles to taking `function`, by kind. For a function already bound to vfio-pci, only those
/// that keep it from being opened.
pub(super) fn obstacles(function: &Function, host: &Host) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    if !function.is_bound() {
        obstacles.extend(
            function.open_by.iter().map(|process| in_use(process.opened("its controller"))),
        );
        obstacles.extend(function.namespaces.iter().flat_map(of_namespace));
        obstacles.extend(unseen(function));
        obstacles.extend(virtual_functions(function));
        obstacles.extend(foreign(function));
    }
    obstacles.extend(iommu(function, host));
    obstacles.extend(vmd(function).or_else(|| group(function)));
    obstacles.sort_by_key(|obstacle| obstacle.kind);
    obstacles
}

/// Users of a controller's virtual functions lose them when it is reset.
fn virtual_functions(function: &Function) -> Option<Obstacle> {
    let Function { bdf, virtual_functions, .. } = function;
    (*virtual_functions > 0).then(|| {
        let reason = format!("it has {virtual_functions} virtual functions (SR-IOV)");
        in_use((reason, format!("echo 0 > /sys/bus/pci/devices/{bdf}/sriov_numvfs")))
    })
}

fn of_namespace(namespace: &Namespace) -> Vec<Obstacle> {
    let mut obstacles: Vec<Obstacle> =
        namespace.uses.iter().map(|used| in_use(used.in_words())).collect();
    obstacles.extend(signatures(namespace.signatures.as_deref().unwrap_or_default()));
    obstacles.extend(namespace.unreadable.as_ref().map(|why| {
        let (kind, remedy) = if why == NO_DEVICE {
            (ObstacleKind::Unseen, format!("'nvme format' gives it another; {FORCE}"))
        } else {
            (ObstacleKind::Unknown, "this needs root and wipefs (package util-linux)".to_owned())
        };
        let reason = format!("the contents of {} cannot be inspected ({why})", namespace.name);
        Obstacle::new(kind, reason, remedy)
    }));
    obstacles
}

/// Returns one obstacle for each device and type.
fn signatures(signatures: &[Signature]) -> Vec<Obstacle> {
    let remedy = |device: &str| {
        format!(
            "if its contents are not needed, add --force-erase-signature, or run 'wipefs --all --backup /dev/{device}'"
        )
    };
    told_once(signatures)
        .into_iter()
        .map(|(reason, device)| Obstacle::new(ObstacleKind::Signature, reason, remedy(device)))
        .collect()
}

fn in_use((reason, remedy): (String, String)) -> Obstacle {
    Obstacle::new(ObstacleKind::InUse, reason, remedy)
}

/// How to take a drive whose contents cannot be inspected.
const FORCE: &str = "if its contents are not needed, add --force-erase-signature";

/// Returns the obstacle of unknown contents: the kernel's driver does not operate the drive, or shows nothing
/// of it.
fn unseen(function: &Function) -> Option<Obstacle> {
    let bdf = &function.bdf;
    let because = |kind, why: &str, remedy: String| {
        let reason = format!("its contents cannot be inspected: {why}");
        Some(Obstacle::new(kind, reason, remedy))
    };
    let (unseen, unknown) = (ObstacleKind::Unseen, ObstacleKind::Unknown);
    match (function.driver.as_deref(), function.state.as_deref()) {
        (None, _) if function.record.is_some() => because(
            unseen,
            "no driver has it",
            "'adit setup restore' gives it back to the one that it had".to_owned(),
        ),
        (None, _) if let Some(place) = function.perhaps_offline() => because(
            unseen,
            "no driver has it, and a virtual function may not be online",
            format!("{}; then 'echo {bdf} > /sys/bus/pci/drivers_probe'; {FORCE}", place.remedy()),
        ),
        (None, _) => because(
            unseen,
            "no driver has it",
            format!("'echo {bdf} > /sys/bus/pci/drivers_probe' gives it to the kernel's; {FORCE}"),
        ),
        (Some("nvme"), None) => because(
            unknown,
            "the kernel's driver created no controller for it",
            "see dmesg".to_owned(),
        ),
        // A drive whose namespaces the kernel rejects (duplicate identifiers, a failed Identify) is not empty.
        (Some("nvme"), Some("live" | "")) if function.namespaces.is_empty() => because(
            unseen,
            "the kernel's driver shows no namespace of it",
            format!("dmesg shows whether any were refused; {FORCE}"),
        ),
        // Old kernels do not report the state.
        (Some("nvme"), Some("live" | "")) => None,
        (Some("nvme"), Some(state)) => because(
            unknown,
            &format!("its controller is '{state}', not live"),
            "wait, or look at dmesg".to_owned(),
        ),
        _ => None,
    }
}

fn foreign(function: &Function) -> Option<Obstacle> {
    let bdf = &function.bdf;
    match (function.driver.as_deref(), function.driver_override.as_deref()) {
        (Some(driver), _) if driver != "nvme" => Some(Obstacle::new(
            ObstacleKind::Foreign,
            format!(
                "the driver '{driver}' has it, which is neither the kernel's nvme nor vfio-pci"
            ),
            format!(
                "give it back with the tool that bound it, or: echo {bdf} > /sys/bus/pci/devices/{bdf}/driver/unbind"
            ),
        )),
        // An interrupted binding of our own.
        (_, Some("vfio-pci")) if function.record.is_some() => None,
        (_, Some(wanted)) => Some(Obstacle::new(
            ObstacleKind::Foreign,
            format!(
                "its driver_override says '{wanted}': another tool (driverctl?) has reserved it"
            ),
            format!("clear it there, or: echo > /sys/bus/pci/devices/{bdf}/driver_override"),
        )),
        _ => None,
    }
}

fn iommu(function: &Function, host: &Host) -> Option<Obstacle> {
    if function.iommu_group.is_some() {
        return None;
    }
    let reason = if host.iommu.on {
        "it is in no IOMMU group, so nothing would confine its DMA"
    } else {
        "no IOMMU is in use, so nothing would confine its DMA"
    };
    Some(Obstacle::new(ObstacleKind::NoIommu, reason, "adit setup doctor"))
}

fn vmd(function: &Function) -> Option<Obstacle> {
    let vmd = function.vmd.as_ref()?;
    Some(Obstacle::new(
        ObstacleKind::Vmd,
        format!(
            "it is behind the Intel VMD controller {vmd}, which it shares its IOMMU group with"
        ),
        "turn VMD off for this slot in the firmware's set-up (drives of a VROC array then lose it)",
    ))
}

fn group(function: &Function) -> Option<Obstacle> {
    let group = function.iommu_group.as_ref()?;
    let live = group.in_the_way(&function.bdf).into_iter().map(ToString::to_string);
    let live: Vec<String> = live.collect();
    (!live.is_empty()).then(|| {
        Obstacle::new(
            ObstacleKind::Group,
            format!("it shares IOMMU group {} with {}", group.number, live.join(", ")),
            "unbind those from their drivers too, or move the drive to a slot with a group of its own",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use adit_guard::root::Root;

    /// An idle, empty drive in a group of its own.
    const IDLE: &str = "\
/sys/kernel/iommu_groups/7/devices/0000:01:00.0 -> ../../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0
/sys/bus/pci/devices/0000:01:00.0 -> ../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0
/sys/class/block/nvme0n1 -> ../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1
/recorded/wipefs/nvme0n1 = {\"signatures\": []}
/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/class = 0x010802
/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/iommu_group -> ../../../../kernel/iommu_groups/7
/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/driver_override = (null)
/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/state = live
/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1/dev = 259:0
/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1/size = 2048
";
    const PLACE: &str = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";

    fn with(more: &str) -> Function {
        machine(&format!("{IDLE}{PLACE}/driver -> ../../../../bus/pci/drivers/nvme\n{more}"))
    }

    fn machine(text: &str) -> Function {
        let mut controllers =
            Inventory::read(&Root::recorded(text).expect("a recording")).controllers;
        assert_eq!(controllers.len(), 1);
        controllers.remove(0)
    }

    fn kinds(function: &Function) -> Vec<ObstacleKind> {
        function.obstacles.iter().map(|obstacle| obstacle.kind).collect()
    }

    fn only(function: &Function, kind: ObstacleKind) -> (&str, &str) {
        assert_eq!(kinds(function), [kind], "{:?}", function.obstacles);
        (&function.obstacles[0].reason, &function.obstacles[0].remedy)
    }

    #[test]
    fn an_idle_drive_may_be_taken() {
        let function = with("");
        assert_eq!(function.obstacles, []);
        assert_eq!(function.size_bytes, Some(1 << 20));
    }

    #[test]
    fn virtual_functions_are_a_use() {
        let function = with(&format!("{PLACE}/sriov_numvfs = 4\n"));
        let (reason, remedy) = only(&function, ObstacleKind::InUse);
        assert!(reason.contains("4 virtual functions") && remedy.contains("sriov_numvfs"));
        assert!(with(&format!("{PLACE}/sriov_numvfs = 0\n")).obstacles.is_empty());
    }

    #[test]
    fn a_virtual_function_without_a_driver_may_not_be_online() {
        let physical = "/sys/bus/pci/devices/0000:01:00.1";
        let links = format!(
            "{PLACE}/physfn -> ../0000:01:00.1\n{physical}/virtfn0 -> ../0000:01:00.0\n{physical}/class = 0x010800\n"
        );
        let bare: String = IDLE
            .lines()
            .filter(|line| !line.contains("nvme"))
            .map(|line| format!("{line}\n"))
            .collect();
        let function = machine(&format!("{bare}{links}"));
        let (reason, remedy) = only(&function, ObstacleKind::Unseen);
        assert!(reason.contains("a virtual function may not be online"), "{reason}");
        assert!(remedy.contains("its physical function 0000:01:00.1"), "{remedy}");
        assert!(remedy.contains("--act=9'; then 'echo 0000:01:00.0 >"), "{remedy}");
        // The kernel's driver keeps one that answers.
        assert_eq!(with(&links).obstacles, []);
        let other = machine(&bare);
        assert!(!only(&other, ObstacleKind::Unseen).0.contains("online"), "no virtual function");
    }

    #[test]
    fn a_controller_that_shows_no_namespace_is_not_known_to_be_empty() {
        let bare: String = IDLE
            .lines()
            .filter(|line| !line.contains("nvme0n1"))
            .map(|line| format!("{line}\n"))
            .collect();
        let function =
            machine(&format!("{bare}{PLACE}/driver -> ../../../../bus/pci/drivers/nvme\n"));
        let (reason, remedy) = only(&function, ObstacleKind::Unseen);
        assert!(
            reason.contains("shows no namespace") && remedy.contains("--force-erase-signature")
        );
    }

    #[test]
    fn a_record_of_ours_excuses_no_other_tools_override() {
        let record = "/var/lib/adit/setup/devices/0000:01:00.0.json = {\"version\": 1, \"bdf\": \"0000:01:00.0\", \
            \"phase\": \"bound\", \"before\": {\"driver\": \"nvme\", \"driver_override\": null}, \"identity\": {\"ids\": \"\", \
            \"model\": null, \"serial\": null, \"firmware\": null, \"size_bytes\": null, \"namespaces\": []}, \
            \"boot_id\": \"x\", \"grant\": null}\n";
        let nvme = format!("{PLACE}/driver -> ../../../../bus/pci/drivers/nvme\n{record}");
        let ours = machine(&format!("{}{nvme}", IDLE.replace("(null)", "vfio-pci")));
        assert!(ours.record.is_some() && ours.obstacles.is_empty(), "{:?}", ours.obstacles);
        let theirs = machine(&format!("{}{nvme}", IDLE.replace("(null)", "pci-stub")));
        only(&theirs, ObstacleKind::Foreign);
    }

    #[test]
    fn every_reason_is_told_the_most_telling_first() {
        let function = with(
            "\
/proc/swaps:
    Filename Type
    /dev/nvme0n1 partition
/proc/9/fd/3 -> /dev/nvme0
/proc/9/comm = smartd
/sys/devices/pci0000:00/0000:00:02.0/class = 0x020000
/sys/devices/pci0000:00/0000:00:02.0/driver -> ../../../bus/pci/drivers/igb
/sys/kernel/iommu_groups/7/devices/0000:00:02.0 -> ../../../../devices/pci0000:00/0000:00:02.0
",
        );
        assert_eq!(
            kinds(&function),
            [ObstacleKind::InUse, ObstacleKind::InUse, ObstacleKind::Group]
        );
        let reasons: Vec<&str> =
            function.obstacles.iter().map(|obstacle| obstacle.reason.as_str()).collect();
        assert_eq!(
            reasons,
            [
                "its controller is open in process 9 (smartd)",
                "nvme0n1 is used for swap",
                "it shares IOMMU group 7 with 0000:00:02.0 (igb)",
            ]
        );
    }

    #[test]
    fn a_drive_with_unknown_contents_is_not_free() {
        let function = with("/sys/class/block/nvme0n1p1/dev = 259:1\n");
        assert!(function.obstacles.is_empty(), "a partition of another device");
        let partition = format!("{PLACE}/nvme/nvme0/nvme0n1/nvme0n1p1/partition = 1\n");
        let function = with(&partition);
        let (reason, _) = only(&function, ObstacleKind::Unknown);
        assert_eq!(
            reason,
            "the contents of nvme0n1 cannot be inspected (nothing by wipefs is recorded)"
        );
    }

    #[test]
    fn a_drive_that_no_driver_shows_is_unseen() {
        let unbound = machine(IDLE);
        let (_, remedy) = only(&unbound, ObstacleKind::Unseen);
        assert!(remedy.contains("drivers_probe"), "{remedy}");
        let text = IDLE.replace("state = live", "state = resetting");
        let nvme = format!("{PLACE}/driver -> ../../../../bus/pci/drivers/nvme\n");
        let resetting = machine(&(text + &nvme));
        let (reason, _) = only(&resetting, ObstacleKind::Unknown);
        assert!(reason.contains("'resetting'"), "{reason}");
        let without: String = IDLE
            .lines()
            .filter(|line| !line.contains("nvme/nvme0"))
            .map(|line| format!("{line}\n"))
            .collect();
        let dead = machine(&(without + &nvme));
        let (reason, _) = only(&dead, ObstacleKind::Unknown);
        assert!(reason.contains("no controller"), "{reason}");
    }

    #[test]
    fn a_namespace_that_the_kernel_cannot_use_may_hold_anything() {
        let hidden: String = IDLE
            .lines()
            .filter(|line| !line.contains("/dev ="))
            .map(|line| format!("{line}\n"))
            .collect();
        let nvme = format!("{PLACE}/driver -> ../../../../bus/pci/drivers/nvme\n");
        let hidden = hidden.replace("/recorded/wipefs/nvme0n1 ", "/recorded/wipefs/other ");
        assert_eq!(kinds(&machine(&(hidden + &nvme))), [ObstacleKind::Unseen]);
        let metadata = IDLE.replace("size = 2048", "size = 0");
        assert_eq!(kinds(&machine(&(metadata + &nvme))), [ObstacleKind::Unseen]);
    }

    #[test]
    fn drivers_and_overrides_of_others_are_named() {
        let foreign = machine(&format!(
            "{IDLE}{PLACE}/driver -> ../../../../bus/pci/drivers/uio_pci_generic\n"
        ));
        let (reason, remedy) = only(&foreign, ObstacleKind::Foreign);
        assert!(reason.contains("'uio_pci_generic'") && remedy.contains("driver/unbind"));
        let text = IDLE.replace("(null)", "pci-stub");
        let nvme = format!("{PLACE}/driver -> ../../../../bus/pci/drivers/nvme\n");
        let wanted = machine(&(text + &nvme));
        let (reason, remedy) = only(&wanted, ObstacleKind::Foreign);
        assert!(reason.contains("'pci-stub'") && remedy.contains("driver_override"));
    }

    #[test]
    fn what_vfio_has_is_taken_whatever_it_held() {
        let open = "/proc/9/fd/3 -> /dev/vfio/7\n/proc/9/comm = adit\n";
        let bound = machine(&format!(
            "{IDLE}{PLACE}/driver -> ../../../../bus/pci/drivers/vfio-pci\n{open}"
        ));
        assert!(bound.is_bound() && bound.obstacles.is_empty());
        assert_eq!(bound.open_by[0].name, "adit");
    }

    #[test]
    fn without_a_group_nothing_confines_it() {
        let text: String = IDLE
            .lines()
            .filter(|line| !line.contains("iommu"))
            .map(|line| format!("{line}\n"))
            .collect();
        let nvme = format!("{PLACE}/driver -> ../../../../bus/pci/drivers/nvme\n");
        let (reason, remedy) = (text + &nvme, "adit setup doctor");
        assert_eq!(only(&machine(&reason), ObstacleKind::NoIommu).1, remedy);
    }

    #[test]
    fn reasons_are_for_a_terminal() {
        let function = with("/proc/9/fd/3 -> /dev/nvme0n1\n/proc/9/comm = \u{1b}[2Jx\n");
        let (reason, _) = only(&function, ObstacleKind::InUse);
        assert_eq!(reason, "nvme0n1 is open in process 9 (?[2Jx)");
    }
}
