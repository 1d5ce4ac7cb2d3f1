//! Links of one device that are checked without opening it, from its place on the bus to its other users.
//!
//! They are in the order of `bind`, `grant` and opening, so that problems an earlier command fixes come first.

use adit_driver::bus::pci::{CLASS_NVME, PciAddress, PciFunction};

use super::link::{Link, LinkState, Remedy};
use super::patient::{Patient, Scene};
use super::touch;
use crate::human;
use crate::inventory::{Function, Group, Member, Obstacle, ObstacleKind};
use crate::record::{DeviceRecord, Phase};

/// Returns the chain of an existing device.
pub(super) fn links<'a>() -> [Link<Patient<'a>>; 9] {
    [
        Link { name: "IOMMU group", check: group },
        Link { name: "driver", check: driver },
        Link { name: "files", check: files },
        Link { name: "rights", check: rights },
        Link { name: "locked memory", check: locked_memory },
        Link { name: "other users", check: other_users },
        Link { name: "open", check: touch::open },
        Link { name: "identify", check: touch::identify },
        Link { name: "read", check: touch::read },
    ]
}

/// The link before them, which finds the device.
pub(super) const DEVICE: &str = "device";

/// Lockable memory a useful program needs: a few queue pairs and their buffers.
const MEMLOCK_BYTES_MIN: u64 = 64 << 20;

/// BAR0 holds an NVMe controller's registers, at least 4 KiB plus the doorbells.
const BAR0_BYTES_MIN: u64 = 0x1008;

/// Finds the device and checks that it is an NVMe controller.
///
/// # Errors
/// The broken link.
pub(super) fn find<'a>(
    scene: &Scene<'a>,
    address: PciAddress,
) -> Result<(&'a Function, LinkState), LinkState> {
    let Some(pci) = PciFunction::find(&scene.root.path("/sys"), address) else {
        return Err(LinkState::broken(
            format!("this machine has no PCI device {address}{}", known(scene)),
            Remedy::new("list its NVMe controllers", ["adit setup status"]),
        ));
    };
    let bdf = address.to_string();
    let function = scene.inventory.controllers.iter().find(|function| function.bdf == bdf);
    let Some(function) = function else { return Err(of_another_class(scene, &pci)) };
    if let Some(vmd) = function.obstacles.iter().find(|reason| reason.kind == ObstacleKind::Vmd) {
        return Err(LinkState::broken(&vmd.reason, Remedy::new(&vmd.remedy, [""; 0])));
    }
    scene.root.note(pci.directory().join("resource"));
    if pci.directory().join("resource").exists() && pci.bar_len(0) < BAR0_BYTES_MIN {
        return Err(LinkState::broken(
            format!("its registers are not mapped: BAR0 has {} bytes", pci.bar_len(0)),
            Remedy::new("see why in the kernel's log", [format!("sudo dmesg | grep {address}")]),
        ));
    }
    Ok((function, LinkState::Holds(described(function))))
}

fn known(scene: &Scene) -> String {
    let known: Vec<&str> =
        scene.inventory.controllers.iter().map(|function| &*function.bdf).collect();
    if known.is_empty() {
        return ", and no NVMe controller at all".to_owned();
    }
    format!("; its NVMe controllers are {}", known.join(", "))
}

fn of_another_class(scene: &Scene, pci: &PciFunction) -> LinkState {
    let class = pci.class().map_or("unknown".to_owned(), |class| format!("{class:06x}"));
    LinkState::broken(
        format!(
            "it is no NVMe controller (PCI class {class}, not {CLASS_NVME:06x}){}",
            known(scene)
        ),
        Remedy::new("name one of those", ["adit setup status"]),
    )
}

fn described(function: &Function) -> String {
    let name = function
        .model
        .as_deref()
        .map_or(format!("an NVMe controller ({})", function.ids), str::to_owned);
    let serial = function.serial.as_ref().map(|serial| format!(", serial {serial}"));
    let size = function.size_bytes.map(|bytes| format!(", {}", human::bytes(bytes as f64)));
    format!("{name}{}{}", serial.unwrap_or_default(), size.unwrap_or_default())
}

fn group(patient: &Patient) -> LinkState {
    let bdf = &patient.function.bdf;
    let Some(group) = &patient.function.iommu_group else {
        return LinkState::broken(
            "it is in no IOMMU group, so nothing would confine its DMA",
            Remedy::new(
                "see in the kernel's log what became of it",
                [format!("sudo dmesg | grep -e {bdf} -e DMAR -e AMD-Vi -e iommu")],
            ),
        );
    };
    let live = group.in_the_way(bdf);
    if live.is_empty() {
        let others = group.members.len().saturating_sub(1);
        return LinkState::Holds(match others {
            0 => format!("{}, its own", group.number),
            _ => format!("{}, with {others} more that nothing drives", group.number),
        });
    }
    let names: Vec<String> = live.iter().map(ToString::to_string).collect();
    LinkState::broken(
        format!(
            "it shares group {} with {}, and the IOMMU cannot keep them apart",
            group.number,
            names.join(", ")
        ),
        Remedy::new(
            "move the drive to a slot with a group of its own; or, if nothing needs those devices, take them from their drivers",
            live.iter().map(|member| freed(member, patient.function)),
        ),
    )
}

/// Returns the command that frees a neighbour from its driver. A drive goes to vfio-pci, which first checks
/// that it is unused; together with `ours`, unless that is already bound.
fn freed(member: &Member, ours: &Function) -> String {
    let bdf = &member.bdf;
    match member.class.as_deref() {
        Some("0x010802") if ours.is_bound() => format!("sudo adit setup bind {bdf}"),
        Some("0x010802") => format!("sudo adit setup bind {} {bdf}", ours.bdf),
        _ => format!("echo {bdf} | sudo tee /sys/bus/pci/devices/{bdf}/driver/unbind"),
    }
}

fn driver(patient: &Patient) -> LinkState {
    let function = patient.function;
    if function.is_bound() {
        return LinkState::Holds(function.driver.clone().unwrap_or_default());
    }
    let has = match &function.driver {
        None => "no driver has it".to_owned(),
        Some(driver) => format!("the driver '{driver}' has it"),
    };
    if let Some(record) = &function.record {
        return cut_off(record, &has);
    }
    if function.obstacles.is_empty() {
        let remedy = Remedy::new("give it to vfio-pci", [bind_command(&function.bdf)]);
        return LinkState::broken(format!("{has}, and nothing uses it"), remedy);
    }
    let why = format!("{has}, and it cannot be taken: {}", reasons(function));
    if let Some(place) = function.perhaps_offline() {
        let probe = format!("echo {} | sudo tee /sys/bus/pci/drivers_probe", function.bdf);
        let commands = place.commands().into_iter().chain([probe, bind_command(&function.bdf)]);
        return LinkState::broken(why, Remedy::new(place.advice(), commands));
    }
    LinkState::broken(why, made_free(function))
}

/// Returns the command that binds the device for the user.
pub(super) fn bind_command(bdf: &str) -> String {
    format!("sudo adit setup bind {bdf} --user $USER")
}

/// Returns all reasons why the device cannot be taken.
pub(super) fn reasons(function: &Function) -> String {
    let reasons: Vec<&str> = function.obstacles.iter().map(|reason| &*reason.reason).collect();
    reasons.join("; ")
}

/// Returns the remedy for the most important obstacle.
fn made_free(function: &Function) -> Remedy {
    let mut ends: Vec<&str> = Vec::new();
    for Obstacle { kind, remedy, .. } in &function.obstacles {
        if *kind != ObstacleKind::Signature && !ends.contains(&&**remedy) {
            ends.push(remedy);
        }
    }
    // An obstacle without a remedy reads 'none: this machine runs from it'.
    if let Some(why) = ends.iter().find_map(|end| end.strip_prefix("none: ")) {
        return Remedy::new(format!("choose another drive ({why})"), ["sudo adit setup status"]);
    }
    let (bdf, bind) = (&function.bdf, bind_command(&function.bdf));
    let first = function.obstacles.first();
    match first.map(|first| (first.kind, &first.remedy)) {
        Some((ObstacleKind::Unknown, remedy)) => {
            Remedy::new(format!("look again: {remedy}"), [format!("sudo adit setup doctor {bdf}")])
        }
        Some((ObstacleKind::Unseen, remedy)) => Remedy::new(
            format!("choose another drive; or: {remedy}"),
            [format!("{bind} --force-erase-signature")],
        ),
        Some((ObstacleKind::Signature, _)) => Remedy::new(
            "choose another drive; or, if nothing on it is wanted, have its signatures erased (a copy of each is kept)",
            [format!("{bind} --force-erase-signature")],
        ),
        _ => Remedy::new(
            format!("choose another drive; or free this one ({}), and then", ends.join("; ")),
            [bind],
        ),
    }
}

fn cut_off(record: &DeviceRecord, has: &str) -> LinkState {
    match record.phase {
        Phase::Bound => LinkState::broken(
            format!("{has}, though it was bound: the machine has been booted since"),
            Remedy::new(
                "bind again what is recorded ('adit setup persist' does that at each boot)",
                ["sudo adit setup bind --recorded"],
            ),
        ),
        Phase::Binding | Phase::Unbinding => LinkState::broken(
            format!("{has}: 'adit setup' was interrupted"),
            Remedy::new(
                "restore it, and bind it again",
                ["sudo adit setup restore".to_owned(), bind_command(&record.bdf)],
            ),
        ),
    }
}

/// Returns the device's group, once that link holds.
fn group_of<'a>(patient: &Patient<'a>) -> &'a Group {
    patient
        .function
        .iommu_group
        .as_ref()
        .expect("the chain ends earlier for a device without a group")
}

fn files(patient: &Patient) -> LinkState {
    let scene = patient.scene;
    let number = group_of(patient).number.to_string();
    let files = &scene.inventory.host.vfio_files;
    let missing: Vec<String> = ["vfio", &number]
        .into_iter()
        .filter(|name| files.iter().all(|file| file.name != *name))
        .map(|name| format!("/dev/vfio/{name}"))
        .collect();
    if missing.is_empty() {
        return LinkState::Holds(format!("/dev/vfio/vfio and /dev/vfio/{number} are there"));
    }
    let remedy = if scene.inventory.host.machine.container {
        Remedy::new(
            "give the container both files and the right to lock memory when it is made",
            [into_container(&number)],
        )
    } else {
        Remedy::new(
            "have udev make what the kernel has announced",
            [
                "sudo udevadm trigger --action=add --subsystem-match=vfio --subsystem-match=misc",
                "ls -l /dev/vfio",
            ],
        )
    };
    LinkState::broken(format!("{} not there", are(&missing)), remedy)
}

fn are(names: &[String]) -> String {
    format!("{} {}", names.join(" and "), if names.len() == 1 { "is" } else { "are" })
}

fn into_container(group: &str) -> String {
    format!(
        "docker run --device /dev/vfio/vfio --device /dev/vfio/{group} --ulimit memlock=-1:-1 …"
    )
}

fn rights(patient: &Patient) -> LinkState {
    let scene = patient.scene;
    let number = group_of(patient).number.to_string();
    let closed = |name: &str| {
        let files = &scene.inventory.host.vfio_files;
        files.iter().any(|file| file.name == name && !file.openable)
    };
    if closed("vfio") {
        return LinkState::broken(
            "this user may not open /dev/vfio/vfio, which every user may open by default",
            Remedy::new(
                "restore its default permissions (they give no access to any device)",
                ["sudo chmod 0666 /dev/vfio/vfio"],
            ),
        );
    }
    if closed(&number) {
        return LinkState::broken(
            format!("this user may not open /dev/vfio/{number}"),
            Remedy::new("give the user the device", [grant_command(&patient.function.bdf)]),
        );
    }
    LinkState::Holds(format!("this user may open /dev/vfio/{number}"))
}

fn grant_command(bdf: &str) -> String {
    format!("sudo adit setup grant {bdf} --user $USER")
}

fn locked_memory(patient: &Patient) -> LinkState {
    let limits = &patient.scene.inventory.host.memlock;
    let enough = |limit: Option<u64>| limit.is_none_or(|bytes| bytes >= MEMLOCK_BYTES_MIN);
    let (soft_bytes, hard_bytes) = (limits.soft_bytes, limits.hard_bytes);
    if limits.exempt {
        return LinkState::holds("no limit for root (CAP_IPC_LOCK)");
    }
    let Some(soft) = soft_bytes.filter(|_| !enough(soft_bytes)) else {
        return LinkState::Holds(soft_bytes.map_or("no limit".to_owned(), size));
    };
    let remedy = if enough(hard_bytes) {
        let most = hard_bytes.map_or("unlimited".to_owned(), |bytes| (bytes >> 10).to_string());
        Remedy::new("raise it in this shell, as far as it may", [format!("ulimit -l {most}")])
    } else if patient.scene.inventory.host.machine.container {
        let number = group_of(patient).number.to_string();
        Remedy::new("raise it when the container is made", [into_container(&number)])
    } else {
        higher(patient.function)
    };
    let why = format!(
        "this user may lock {}; DMA needs at least {} of locked memory",
        size(soft),
        size(MEMLOCK_BYTES_MIN)
    );
    LinkState::broken(why, remedy)
}

/// Returns how to exceed the limit the user may set alone.
fn higher(function: &Function) -> Remedy {
    let now = "sudo prlimit --pid $$ --memlock=unlimited".to_owned();
    if function.record.as_ref().is_some_and(|record| record.grant.is_some()) {
        return Remedy::new(
            "it was granted, and holds from the next login on: log in again, or for this shell",
            [now],
        );
    }
    let grant = grant_command(&function.bdf);
    Remedy::new(
        "raise it for the user from the next login on, and for this shell at once",
        [grant, now],
    )
}

fn size(bytes: u64) -> String {
    human::bytes(bytes as f64)
}

fn other_users(patient: &Patient) -> LinkState {
    let users = &patient.function.open_by;
    if users.is_empty() {
        return LinkState::holds("none that this user can see");
    }
    let names: Vec<String> =
        users.iter().map(|user| format!("{} (pid {})", user.name, user.pid)).collect();
    let commands = users.iter().map(|user| format!("kill {}", user.pid));
    LinkState::broken(
        format!("it is in use by {}", names.join(", ")),
        Remedy::new("end it if it is not needed, or choose another device", commands),
    )
}
