//! NVMe PCI functions, as described by sysfs.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use adit_driver::bus::pci::{CLASS_NVME, PciAddress, PciFunction, VirtualFunction, is_vfio};
use serde::{Serialize, Serializer};

use super::controller::Controller;
use super::namespace::{self, Namespace};
use super::obstacle::Obstacle;
use crate::device::{DEVICES, Device};
use crate::record::{self, DeviceRecord};
use adit_guard::disk::{Process, Usage};
use adit_guard::root::Root;

/// An NVMe PCI function.
#[derive(Debug, Serialize)]
pub(crate) struct Function {
    /// Its address, such as `0000:01:00.0`.
    pub(crate) bdf: String,
    /// Vendor and device ids, such as `8086:0a54`.
    pub(crate) ids: String,
    /// Its model, from the kernel's driver, or from our record while it is bound to vfio-pci.
    pub(crate) model: Option<String>,
    /// Its serial number, from the same source.
    pub(crate) serial: Option<String>,
    /// Its firmware revision, from the same source.
    pub(crate) firmware: Option<String>,
    /// Bytes of all namespaces, from the same source.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) driver: Option<String>,
    /// The controller's state according to the kernel's NVMe driver: `live`, `resetting`, …; empty if the
    /// driver is too old to tell.
    pub(crate) state: Option<String>,
    /// Number of SR-IOV virtual functions.
    pub(crate) virtual_functions: u32,
    /// Its physical function, if it is a virtual function.
    #[serde(serialize_with = "virtual_function")]
    pub(crate) virtual_function: Option<VirtualFunction>,
    /// Its `driver_override`, if set.
    pub(crate) driver_override: Option<String>,
    /// Its IOMMU group; `None` without an IOMMU.
    pub(crate) iommu_group: Option<Group>,
    /// Its PCIe link; `None` if unknown.
    pub(crate) link: Option<Link>,
    /// The Intel VMD controller above it.
    pub(crate) vmd: Option<String>,
    /// Its block devices, while the kernel's driver has it.
    pub(crate) namespaces: Vec<Namespace>,
    /// Processes that have its character devices or its group's file open.
    pub(crate) open_by: Vec<Process>,
    /// The record written when it was bound.
    pub(crate) record: Option<DeviceRecord>,
    /// Whether it was bound in this boot: if vfio-pci has the device of an older record, another tool bound it.
    #[serde(skip)]
    pub(crate) is_recorded_now: bool,
    /// Why Adit may not take it; empty if it may.
    pub(crate) obstacles: Vec<Obstacle>,
}

/// An IOMMU group: devices the IOMMU cannot isolate from each other.
#[derive(Debug, Serialize)]
pub(crate) struct Group {
    pub(crate) number: u32,
    /// All its devices, including this one.
    pub(crate) members: Vec<Member>,
}

/// A device of a group.
#[derive(Debug, Serialize)]
pub(crate) struct Member {
    /// Its address.
    pub(crate) bdf: String,
    /// Its PCI class, such as `0x020000`.
    pub(crate) class: Option<String>,
    pub(crate) driver: Option<String>,
    /// Whether the group is usable while that driver has it.
    pub(crate) viable: bool,
}

/// A PCIe link: its current state, and the best one the slower of its ends supports.
#[derive(Debug, Serialize)]
pub(crate) struct Link {
    /// Current speed, such as `16.0 GT/s`.
    pub(crate) speed: String,
    /// Maximum speed.
    pub(crate) speed_max: String,
    /// Current number of lanes.
    pub(crate) width: u32,
    /// Maximum number of lanes.
    pub(crate) width_max: u32,
    /// Whether it is below its maximum.
    pub(crate) degraded: bool,
}

impl Group {
    /// Returns the members other than `bdf` whose drivers make the group unusable.
    pub(crate) fn in_the_way(&self, bdf: &str) -> Vec<&Member> {
        self.members.iter().filter(|member| member.bdf != bdf && !member.viable).collect()
    }
}

impl Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.bdf, self.driver.as_deref().unwrap_or_default())
    }
}

impl Function {
    /// Returns whether the kernel's NVMe driver operates it.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state.as_deref(), Some("live" | ""))
    }

    /// Returns its place on its physical function if it may not be online there: the kernel's driver lets go
    /// of a virtual function that does not answer.
    pub(crate) fn perhaps_offline(&self) -> Option<&VirtualFunction> {
        let let_go = self.driver.is_none() && self.record.is_none();
        self.virtual_function.as_ref().filter(|_| let_go)
    }

    /// Returns whether a VFIO driver has it.
    pub(crate) fn is_bound(&self) -> bool {
        self.driver.as_deref().is_some_and(is_vfio)
    }
}

/// Returns all NVMe functions by address, without their obstacles.
pub(super) fn all(root: &Root, usage: &Usage) -> Vec<Function> {
    let names = root.names_quietly(DEVICES);
    let mut addresses: Vec<PciAddress> =
        names.iter().filter_map(|name| name.parse().ok()).collect();
    addresses.sort_unstable();
    let found =
        addresses.into_iter().filter_map(|address| PciFunction::find(&root.path("/sys"), address));
    let nvme = found.filter(|function| function.class() == Some(CLASS_NVME));
    nvme.map(|function| read(root, &function, usage)).collect()
}

fn read(root: &Root, pci: &PciFunction, usage: &Usage) -> Function {
    let directory = PathBuf::from(format!("{DEVICES}/{}", pci.address()));
    let attribute = |name: &str| root.text(directory.join(name));
    for name in ["class", "numa_node", "driver", "iommu_group", "physfn"] {
        root.note(directory.join(name));
    }
    let virtual_function = pci.virtual_function();
    if let Some(VirtualFunction { physical, number, .. }) = &virtual_function {
        let physical = Path::new(DEVICES).join(physical.to_string());
        root.note(physical.join(format!("virtfn{}", number - 1)));
        root.names(physical.join("nvme"));
    }
    let controller = Controller::of(root, &directory);
    // Commands that rely on the record report damage themselves.
    let record = record::load(root, pci.address()).unwrap_or_default();
    let identity = record.as_ref().map(|record| record.identity.clone()).unwrap_or_default();
    let namespaces = controller
        .iter()
        .flat_map(|controller| namespace::all(root, controller, usage))
        .collect::<Vec<_>>();
    let told = |name: &str| controller.as_ref().and_then(|controller| controller.text(root, name));
    let group = group(root, pci);
    let device = Device::at(pci.address());
    Function {
        bdf: pci.address().to_string(),
        ids: device.ids(root).unwrap_or_default(),
        model: told("model").or(identity.model),
        serial: told("serial").or(identity.serial),
        firmware: told("firmware_rev").or(identity.firmware),
        size_bytes: size(&namespaces).or(identity.size_bytes),
        numa_node: pci.numa_node(),
        driver: pci.driver(),
        state: controller
            .as_ref()
            .map(|controller| controller.text(root, "state").unwrap_or_default()),
        virtual_functions: attribute("sriov_numvfs")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
        virtual_function,
        driver_override: device.driver_override(root),
        link: link(root, &directory),
        vmd: vmd(root, &directory),
        open_by: usage.open_by(&device_files(
            root,
            &directory,
            controller.as_ref(),
            group.as_ref(),
        )),
        iommu_group: group,
        namespaces,
        is_recorded_now: record.as_ref().is_some_and(|record| record.is_of_this_boot(root)),
        record,
        obstacles: Vec::new(),
    }
}

/// Writes a virtual function's place as JSON.
fn virtual_function<S: Serializer>(
    function: &Option<VirtualFunction>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Fields<'a> {
        physical: String,
        controller: Option<&'a str>,
        number: u32,
    }
    let fields = function.as_ref().map(|VirtualFunction { physical, controller, number }| Fields {
        physical: physical.to_string(),
        controller: controller.as_deref(),
        number: *number,
    });
    fields.serialize(serializer)
}

fn size(namespaces: &[Namespace]) -> Option<u64> {
    (!namespaces.is_empty()).then(|| namespaces.iter().map(|namespace| namespace.size_bytes).sum())
}

fn group(root: &Root, pci: &PciFunction) -> Option<Group> {
    let number = pci.iommu_group()?;
    let members = pci.group_members().into_iter().map(|member| {
        let directory = format!("/sys/kernel/iommu_groups/{number}/devices/{}", member.name);
        root.note(format!("{directory}/driver"));
        Member {
            class: root.text(format!("{directory}/class")),
            viable: member.is_viable(),
            bdf: member.name,
            driver: member.driver,
        }
    });
    Some(Group { number, members: members.collect() })
}

/// Returns the `/dev` files through which a process may have the controller itself open: the kernel's, the
/// group's, and VFIO's own file for each device with iommufd.
fn device_files(
    root: &Root,
    directory: &Path,
    controller: Option<&Controller>,
    group: Option<&Group>,
) -> Vec<String> {
    let mut files = Vec::new();
    files.extend(controller.map(|controller| format!("/dev/{}", controller.name)));
    if let Some(Group { number, .. }) = group {
        files.extend([format!("/dev/vfio/{number}"), format!("/dev/vfio/noiommu-{number}")]);
    }
    let own = root.names(directory.join("vfio-dev")).into_iter();
    files.extend(own.map(|name| format!("/dev/vfio/devices/{name}")));
    files
}

/// Returns the current link, and the best one the slower of its ends supports.
fn link(root: &Root, directory: &Path) -> Option<Link> {
    let port = root.resolve(directory)?.parent()?.to_owned();
    let speed = |place: &Path, name: &str| speed(&root.text(place.join(name))?);
    let width = |place: &Path, name: &str| width(&root.text(place.join(name))?);
    let (now, lanes) =
        (speed(directory, "current_link_speed")?, width(directory, "current_link_width")?);
    let mut speed_max = speed(directory, "max_link_speed")?;
    let mut width_max = width(directory, "max_link_width")?;
    if let Some(bound) = speed(&port, "max_link_speed") {
        speed_max = speed_max.min(bound);
    }
    width_max = width_max.min(width(&port, "max_link_width").unwrap_or(width_max));
    let degraded = now < speed_max || lanes < width_max;
    let text = |tenths: u32| format!("{}.{} GT/s", tenths / 10, tenths % 10);
    let (speed, speed_max) = (text(now), text(speed_max));
    Some(Link { speed, speed_max, width: lanes, width_max, degraded })
}

/// Parses `8.0 GT/s PCIe` or `8 GT/s` as tenths of GT/s; `None` for `Unknown`.
fn speed(text: &str) -> Option<u32> {
    let number = text.split_whitespace().next()?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u32 = whole.parse().ok().filter(|whole| *whole < 1000)?;
    Some(whole * 10 + tenths.get(..1)?.parse::<u32>().ok()?)
}

/// Parses a number of lanes; the kernel prints 0 or 255 without a link.
fn width(text: &str) -> Option<u32> {
    text.parse().ok().filter(|lanes| (1..=32).contains(lanes))
}

/// Returns the Intel VMD controller above the function.
fn vmd(root: &Root, directory: &Path) -> Option<String> {
    let place = root.resolve(directory)?;
    let above = place.ancestors().skip(1);
    above
        .filter_map(|place| {
            let address: PciAddress = place.file_name()?.to_str()?.parse().ok()?;
            (root.link_name(place.join("driver")).as_deref() == Some("vmd"))
                .then(|| address.to_string())
        })
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn speeds_and_widths_read_as_the_kernel_prints_them() {
        assert_eq!(speed("16.0 GT/s PCIe"), Some(160));
        assert_eq!(speed("2.5 GT/s"), Some(25));
        assert_eq!(speed("8 GT/s"), Some(80));
        assert_eq!(speed("Unknown"), None);
        assert_eq!(width("4"), Some(4));
        assert_eq!((width("0"), width("255"), width("")), (None, None, None));
    }

    /// Returns the link of a drive that runs at `now` and supports `own`, below a port that supports `port`.
    fn linked(now: (&str, &str), own: (&str, &str), port: Option<(&str, &str)>) -> Option<Link> {
        let place = "/sys/devices/pci0000:00/0000:00:01.0";
        let ends = |path: &str, which: &str, (speed, width): (&str, &str)| {
            format!("{path}/{which}_link_speed = {speed}\n{path}/{which}_link_width = {width}\n")
        };
        let drive = format!("{place}/0000:01:00.0");
        let port = port.map(|most| ends(place, "max", most)).unwrap_or_default();
        let text = ends(&drive, "current", now) + &ends(&drive, "max", own) + &port;
        link(&Root::recorded(&text).expect("a recording"), Path::new(&drive))
    }

    #[test]
    fn a_link_is_measured_against_the_slower_of_its_ends() {
        let (gen3, gen4) = (("8.0 GT/s PCIe", "4"), ("16.0 GT/s PCIe", "4"));
        let told = |link: Option<Link>| {
            link.map(|link| (link.speed, link.speed_max, link.width, link.width_max, link.degraded))
        };
        let slow =
            |degraded, max: &str| Some(("8.0 GT/s".to_owned(), max.to_owned(), 4, 4, degraded));
        assert_eq!(told(linked(gen3, gen4, Some(gen4))), slow(true, "16.0 GT/s"));
        assert_eq!(told(linked(gen3, gen4, Some(gen3))), slow(false, "8.0 GT/s"));
        assert_eq!(told(linked(gen3, gen3, None)), slow(false, "8.0 GT/s"));
        let narrow = linked(("16.0 GT/s PCIe", "2"), gen4, Some(gen4)).expect("a link");
        assert!(narrow.degraded && narrow.width == 2);
        let bifurcated = linked(("16.0 GT/s PCIe", "2"), gen4, Some(("16.0 GT/s PCIe", "2")));
        assert!(!bifurcated.expect("a link").degraded);
        assert_eq!(told(linked(("Unknown", "0"), gen4, Some(gen4))), None);
    }

    #[test]
    fn a_drive_behind_vmd_is_known_by_its_place() {
        let vmd = "/sys/devices/pci0000:5d/0000:5d:05.5";
        let drive = format!("{vmd}/pci10000:00/10000:00:02.0/10000:01:00.0");
        let text = |driver: &str| {
            format!("{vmd}/driver -> ../../../bus/pci/drivers/{driver}\n{drive}/class = 0x010802\n")
        };
        let above = |driver: &str| vmd_of(&text(driver), &drive);
        assert_eq!(above("vmd").as_deref(), Some("0000:5d:05.5"));
        assert_eq!(above("pcieport"), None);
    }

    fn vmd_of(text: &str, drive: &str) -> Option<String> {
        vmd(&Root::recorded(text).expect("a recording"), Path::new(drive))
    }

    proptest! {
        #[test]
        fn any_text_is_a_speed_or_none(text in ".{0,20}") {
            let _ = speed(&text);
        }
    }
}
