//! May Adit take this controller? Each reason why not, with what to do about it.

use serde::Serialize;

use super::{Function, Host, Namespace, Process, Signature, Use};

/// One reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Obstacle {
    /// Which kind of reason.
    pub(crate) kind: ObstacleKind,
    /// In words: `nvme0n1p2 is mounted at / (ext4)`.
    pub(crate) reason: String,
    /// What would remove it.
    pub(crate) remedy: String,
}

/// The kinds of reasons, the most telling first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ObstacleKind {
    /// Mounted, swapped to, held by another block device, or open.
    InUse,
    /// It holds something's signature, which `--force-erase-signature` would erase.
    Signature,
    /// What it holds could not be looked at (no rights, no `wipefs`).
    Unknown,
    /// No IOMMU is in use.
    NoIommu,
    /// Its group has other live devices.
    Group,
    /// It is behind Intel's VMD.
    Vmd,
    /// Another tool's `driver_override`, or a driver that is neither the kernel's nvme nor vfio-pci.
    Foreign,
}

impl Obstacle {
    fn new(kind: ObstacleKind, reason: impl ToString, remedy: impl ToString) -> Obstacle {
        Obstacle { kind, reason: reason.to_string(), remedy: remedy.to_string() }
    }
}

/// All reasons why `function` may not be taken, by kind. A function that vfio-pci has already is taken: only what
/// keeps it from being opened is told then.
pub(super) fn obstacles(function: &Function, host: &Host) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    if !function.is_bound() {
        obstacles
            .extend(function.open_by.iter().map(|process| in_use(open(&function.bdf, process))));
        obstacles.extend(function.namespaces.iter().flat_map(of_namespace));
        obstacles.extend(foreign(function));
    }
    obstacles.extend(iommu(function, host));
    obstacles.extend(vmd(function).or_else(|| group(function)));
    obstacles.sort_by_key(|obstacle| obstacle.kind);
    obstacles
}

fn of_namespace(namespace: &Namespace) -> Vec<Obstacle> {
    let mut obstacles: Vec<Obstacle> =
        namespace.uses.iter().map(|used| in_use(used.in_words())).collect();
    obstacles.extend(signatures(namespace.signatures.as_deref().unwrap_or_default()));
    obstacles.extend(namespace.unreadable.as_ref().map(|why| {
        Obstacle::new(
            ObstacleKind::Unknown,
            format!("what {} holds cannot be looked at ({why})", namespace.name),
            "run this as root, with wipefs installed (package util-linux)",
        )
    }));
    obstacles
}

/// One reason for each device and type: GPT and ZFS write theirs at several places.
fn signatures(signatures: &[Signature]) -> Vec<Obstacle> {
    let mut words: Vec<(String, &str)> = Vec::new();
    for signature in signatures {
        let told = (signature.in_words(), signature.device.as_str());
        if !words.contains(&told) {
            words.push(told);
        }
    }
    let remedy = |device: &str| {
        format!(
            "if nothing of it is wanted, add --force-erase-signature, or run 'wipefs --all --backup /dev/{device}'"
        )
    };
    words
        .into_iter()
        .map(|(reason, device)| Obstacle::new(ObstacleKind::Signature, reason, remedy(device)))
        .collect()
}

fn in_use((reason, remedy): (String, String)) -> Obstacle {
    Obstacle::new(ObstacleKind::InUse, reason, remedy)
}

fn open(what: &str, process: &Process) -> (String, String) {
    let Process { pid, name } = process;
    (format!("{what} is open in process {pid} ({name})"), format!("end process {pid}"))
}

impl Use {
    /// The use, and what would end it.
    fn in_words(&self) -> (String, String) {
        match self {
            Use::Mounted { device, at, fstype, inside } => {
                mounted(device, at, fstype, inside.as_ref())
            }
            Use::Swap { device } => {
                (format!("{device} is swapped to"), format!("swapoff /dev/{device}"))
            }
            Use::Holder { device, holder, what } => {
                (part_of(device, holder, what), release(holder, what))
            }
            Use::Open { device, process } => open(device, process),
            Use::Exported { device, by, switch } => {
                (format!("{device} is given to others by {by}"), switch.clone())
            }
            Use::OtherPath { device, controller } => (
                format!("{device} has another path, through {controller}"),
                format!("detach the namespace from {controller}, or unbind both"),
            ),
        }
    }
}

fn part_of(device: &str, holder: &str, what: &str) -> String {
    match what {
        "loop device" => format!("{device} is behind the loop device {holder}"),
        // An array is called what the kernel calls it.
        _ if what.ends_with(holder) => format!("{device} is part of {what}"),
        _ => format!("{device} is part of {what} ({holder})"),
    }
}

fn mounted(device: &str, at: &str, fstype: &str, inside: Option<&Process>) -> (String, String) {
    let reason = format!("{device} is mounted at {at} ({fstype})");
    match inside {
        None if at == "/" => (reason, "none: this machine runs from it".to_owned()),
        None => (reason, format!("umount {}", quoted(at))),
        Some(Process { pid, name }) => (
            format!("{reason} in the mount namespace of process {pid} ({name})"),
            format!("end that container, or: nsenter --mount --target {pid} umount {}", quoted(at)),
        ),
    }
}

/// A path as a shell takes it.
fn quoted(path: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/-_.,:@+".contains(letter);
    if path.chars().all(plain) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', "'\\''"))
    }
}

/// What gives the devices back of which a holder is made; each after what is made of the holder itself.
fn release(holder: &str, what: &str) -> String {
    let (kind, name) = what.rsplit_once(' ').unwrap_or((what, holder));
    match kind {
        "LVM volume" => format!("lvchange --activate n /dev/mapper/{name}"),
        "dm-crypt" => format!("cryptsetup close {name}"),
        "multipath" => format!("multipath -f {name}"),
        "device mapper" => format!("dmsetup remove {name}"),
        "bcache" => format!("echo 1 > /sys/block/{holder}/bcache/stop"),
        "loop" => format!("losetup --detach /dev/{holder}"),
        "ZFS" => format!("zpool export {holder}"),
        kind if kind.starts_with("MD ") => format!("mdadm --stop /dev/{holder}"),
        _ => format!("take {holder} apart, or move it to other devices"),
    }
}

impl Signature {
    fn in_words(&self) -> String {
        let label = self.label.as_ref().map(|label| format!(" '{label}'")).unwrap_or_default();
        format!("{} holds a signature of {}{label} ({})", self.device, self.kind, self.usage)
    }
}

/// Why nobody can know what the drive holds: the kernel's driver is not at work on it. `state` is that of its
/// controller, where the driver has made one.
pub(super) fn unseen(function: &Function, state: Option<&str>) -> Option<String> {
    let bdf = &function.bdf;
    match (function.driver.as_deref(), state) {
        // What a binding of our own was cut off from had been looked at.
        (None, _) if function.record.is_some() => None,
        (None, _) => Some(format!(
            "no driver has it; 'echo {bdf} > /sys/bus/pci/drivers_probe' gives it to the kernel's, to look"
        )),
        (Some("nvme"), None) => {
            Some("the kernel's driver has made no controller of it; dmesg may tell why".to_owned())
        }
        // Old kernels do not tell the state.
        (Some("nvme"), Some("live" | "")) => None,
        (Some("nvme"), Some(state)) => {
            Some(format!("its controller is '{state}', not live; wait, or look at dmesg"))
        }
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
        // Cut off in the middle of a binding of our own, it is ours.
        (_, Some(wanted)) if function.record.is_none() => Some(Obstacle::new(
            ObstacleKind::Foreign,
            format!(
                "its driver_override says '{wanted}': another tool (driverctl?) has plans for it"
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
    let live: Vec<String> = group
        .members
        .iter()
        .filter(|member| member.bdf != function.bdf && !member.viable)
        .map(|member| format!("{} ({})", member.bdf, member.driver.as_deref().unwrap_or_default()))
        .collect();
    (!live.is_empty()).then(|| {
        Obstacle::new(
            ObstacleKind::Group,
            format!("it shares IOMMU group {} with {}", group.number, live.join(", ")),
            "unbind those from their drivers too, or move the drive to a slot with a group of its own",
        )
    })
}
