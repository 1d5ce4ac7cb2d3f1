//! A device's state before `adit setup` took it: one file per device, written before the first change.
//!
//! The file, such as `/var/lib/adit/setup/devices/0000:01:00.0.json`, survives reboots and crashes: `unbind`
//! and `restore` return to its state from any phase, and remove it at the end.

use std::path::{Path, PathBuf};

use adit_driver::bus::pci::PciAddress;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::names::{is_driver, is_user};
use super::rights;
use crate::failure::{Failure, Result};
use crate::human::printable;
use adit_guard::root::Root;

/// The folder of `adit setup`'s persistent state.
pub(crate) const STATE: &str = "/var/lib/adit/setup";

/// The record's format version.
pub(crate) const VERSION: u32 = 1;

/// The most characters that are shown of a name that is none.
const NAME_SHOWN_MAX: usize = 64;

/// One device's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceRecord {
    /// The format version: [`VERSION`].
    pub(crate) version: u32,
    /// The device's PCI address.
    pub(crate) bdf: String,
    /// The phase of the binding.
    pub(crate) phase: Phase,
    /// The state to restore.
    pub(crate) before: Before,
    /// Identifies the device if a later boot changes its address.
    pub(crate) identity: Identity,
    /// The boot (`/proc/sys/kernel/random/boot_id`) in which it was bound.
    pub(crate) boot_id: String,
    /// The user the device is granted to.
    pub(crate) grant: Option<String>,
    /// Whether grants may open it together with other devices of its IOMMU group.
    #[serde(default)]
    pub(crate) with_group: bool,
}

/// The phase of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Being bound to vfio-pci.
    Binding,
    /// Bound.
    Bound,
    /// Being given back.
    Unbinding,
}

/// The state to restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Before {
    /// Its driver, if it had one.
    pub(crate) driver: Option<String>,
    pub(crate) driver_override: Option<String>,
}

/// Distinguishes this device from another at the same address. The kernel knows none of this while vfio-pci has
/// the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Vendor and device ids, such as `8086:0a54`.
    pub(crate) ids: String,
    /// Its model, if the kernel's driver reported it.
    pub(crate) model: Option<String>,
    /// Its serial number, if reported.
    pub(crate) serial: Option<String>,
    /// Its firmware revision, if reported.
    pub(crate) firmware: Option<String>,
    /// Bytes of all its namespaces, if reported.
    pub(crate) size_bytes: Option<u64>,
    /// Its block devices, which are waited for when it is given back.
    pub(crate) namespaces: Vec<String>,
}

/// Returns the record's file.
fn path(address: PciAddress) -> String {
    format!("{STATE}/devices/{address}.json")
}

/// Returns the id of the current boot.
pub(crate) fn boot_id(root: &Root) -> String {
    root.text("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Loads the record of the device at `address`, if there is one.
///
/// # Errors
/// When the file exists but is no record of ours; names it.
pub(crate) fn load(root: &Root, address: PciAddress) -> Result<Option<DeviceRecord>> {
    let remedy =
        "inspect it, return the device by hand as docs/operate/setup.md describes, then remove it";
    read(root, &path(address), remedy, |record: &DeviceRecord| {
        let is_ours = record.version == VERSION && record.bdf == address.to_string();
        let other = || format!("version {} of {}", record.version, record.bdf);
        (!is_ours).then(other).or_else(|| record.odd_name())
    })
}

/// Reads a file of our state, if there is one; `wrong` returns why its content cannot be used.
///
/// # Errors
/// When the file is no state of ours, or others than root can change it; names it, and the remedy.
pub(crate) fn read<T: DeserializeOwned>(
    root: &Root,
    file: &str,
    remedy: &str,
    wrong: impl Fn(&T) -> Option<String>,
) -> Result<Option<T>> {
    // Of a recorded machine, only the recording's reader depends on it.
    if root.is_live() {
        check_owner(file, &root.path(file))?;
    }
    let Some(text) = root.text(file) else { return Ok(None) };
    let parsed = serde_json::from_str::<T>(&text).map_err(|why| why.to_string());
    let checked = parsed.and_then(|state| wrong(&state).map_or(Ok(state), Err));
    checked
        .map(Some)
        .map_err(|why| Failure::failed(printable(&format!("{file} is damaged ({why}); {remedy}"))))
}

/// Refuses a file of our state, at `real` on this machine, that others than root can change.
fn check_owner(file: &str, real: &Path) -> Result<()> {
    rights::changed_by_others(real).map_or(Ok(()), |why| {
        Err(Failure::failed(format!("{file} is not followed: {why}; check it before")))
    })
}

/// Returns the change that writes a file of our state.
pub(crate) fn written(file: impl Into<PathBuf>, state: &impl Serialize) -> Change {
    let text = serde_json::to_string_pretty(state).expect("our state is plain data");
    Change::file(file, text + "\n")
}

/// Returns the devices with a record, readable or not, in order.
pub(crate) fn addresses(root: &Root) -> Vec<PciAddress> {
    let names = root.names(format!("{STATE}/devices"));
    let addresses = names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok());
    let mut addresses: Vec<PciAddress> = addresses.collect();
    addresses.sort_unstable();
    addresses
}

/// Returns the changes that remove leftovers of interrupted writes among our files.
pub(crate) fn fragments(root: &Root) -> Vec<Change> {
    let mut found = Vec::new();
    for directory in [STATE.to_owned(), format!("{STATE}/devices")] {
        let names = root.names(&directory).into_iter().filter(|name| name.ends_with(".new"));
        found.extend(names.map(|name| Change::remove(PathBuf::from(&directory).join(name))));
    }
    found
}

impl DeviceRecord {
    /// Returns the device's address.
    pub(crate) fn address(&self) -> PciAddress {
        self.bdf.parse().expect("written from an address, compared with one when read")
    }

    /// Returns whether the device was bound in this boot. Drivers, overrides and file owners do not survive a
    /// reboot, so if vfio-pci has the device of an earlier record, another tool bound it.
    pub(crate) fn is_of_this_boot(&self, root: &Root) -> bool {
        self.boot_id == boot_id(root)
    }

    /// Returns why one of its names cannot be used: they become parts of paths in sysfs and in `/etc`, and arguments of
    /// modprobe. Texts that a device tells about itself are only shown.
    fn odd_name(&self) -> Option<String> {
        let Before { driver, driver_override } = &self.before;
        let drivers = driver.iter().chain(driver_override).chain(&self.identity.namespaces);
        let mut odd = drivers.filter(|name| !is_driver(name));
        let odd = odd.next().or_else(|| self.grant.as_ref().filter(|name| !is_user(name)))?;
        // A long one would fill the screen.
        let odd: String = odd.chars().take(NAME_SHOWN_MAX).collect();
        Some(format!("{odd:?} is no name of a driver, a block device or a user"))
    }

    /// Returns the change that writes the record.
    pub(crate) fn stored(&self) -> Change {
        written(self.file(), self)
    }

    /// Returns the change that removes the record.
    pub(crate) fn forgotten(&self) -> Change {
        Change::remove(self.file())
    }

    fn file(&self) -> PathBuf {
        format!("{STATE}/devices/{}.json", self.bdf).into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> DeviceRecord {
        DeviceRecord {
            version: VERSION,
            bdf: "0000:01:00.0".into(),
            phase: Phase::Bound,
            before: Before { driver: Some("nvme".into()), driver_override: None },
            identity: Identity { ids: "8086:0a54".into(), ..Identity::default() },
            boot_id: "b7b0".into(),
            grant: None,
            with_group: false,
        }
    }

    /// A machine with this text as the record of `0000:01:00.0`.
    fn machine(text: &[u8]) -> Root {
        let root = Root::recorded(&format!("{STATE}/devices/")).expect("a recording");
        std::fs::write(root.path(path(record().address())), text).expect("written");
        root
    }

    fn content(change: Change) -> String {
        match change {
            Change::File { content, .. } => content,
            other => panic!("{other} writes no file"),
        }
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        let record = record();
        let root = machine(content(record.stored()).as_bytes());
        assert_eq!(load(&root, record.address()).expect("a record"), Some(record));
    }

    #[test]
    fn what_is_no_record_of_ours_is_named_and_not_guessed_at() {
        let other = DeviceRecord { bdf: "0000:02:00.0".into(), ..record() };
        let later = DeviceRecord { version: VERSION + 1, ..record() };
        for text in ["", "{", "[]", "{\"version\": 1}"]
            .map(str::to_owned)
            .into_iter()
            .chain([other, later].map(|record| content(record.stored())))
        {
            let why = load(&machine(text.as_bytes()), record().address());
            let why = why.expect_err(&text).to_string();
            assert!(why.contains("0000:01:00.0.json is damaged"), "{why}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let before = |driver: &str, driver_override: &str| Before {
            driver: Some(driver.to_owned()),
            driver_override: Some(driver_override.to_owned()),
        };
        let identity = Identity { namespaces: vec!["../sda".into()], ..record().identity };
        let long = "x".repeat(65);
        for odd in [
            DeviceRecord { before: before("../../devices", "nvme"), ..record() },
            DeviceRecord { before: before("--version", "nvme"), ..record() },
            DeviceRecord { before: before("", "nvme"), ..record() },
            DeviceRecord { before: before(&long, "nvme"), ..record() },
            DeviceRecord { before: before("nvme", "a\nb"), ..record() },
            DeviceRecord { identity, ..record() },
            DeviceRecord { grant: Some("../../x".into()), ..record() },
        ] {
            let root = machine(content(odd.stored()).as_bytes());
            let why = load(&root, odd.address()).expect_err("an odd name").to_string();
            let is_told = why.contains(".json is damaged (\"") && why.contains("is no name of");
            assert!(is_told && why.lines().count() == 1, "{why}");
        }
        let right = DeviceRecord {
            before: before("uio_pci_generic", "vfio-pci"),
            identity: Identity { namespaces: vec!["nvme0c0n1".into()], ..record().identity },
            grant: Some("alice.b".into()),
            ..record()
        };
        let root = machine(content(right.stored()).as_bytes());
        assert_eq!(load(&root, right.address()).expect("a record"), Some(right));
    }

    #[test]
    fn a_record_that_others_can_change_is_not_followed() {
        let root = machine(content(record().stored()).as_bytes());
        // A recorded machine lies below a directory that all may write to.
        let checked = |address| check_owner(&path(address), &root.path(path(address)));
        let why = checked(record().address()).expect_err("others can change it").to_string();
        assert!(why.contains("is not followed: others than root can change /"), "{why}");
        checked("0000:02:00.0".parse().expect("an address")).expect("there is none");
    }

    #[test]
    fn only_records_are_looked_at_and_fragments_are_cleared_away() {
        let root = machine(content(record().stored()).as_bytes());
        let fragments = ["no-iommu.json.new", "devices/0000:00:05.0.json.new"];
        for name in fragments.into_iter().chain(["devices/README", "devices/x.json"]) {
            std::fs::write(root.path(format!("{STATE}/{name}")), "x").expect("written");
        }
        assert_eq!(addresses(&root), [record().address()]);
        let remove = |name| Change::remove(format!("{STATE}/{name}"));
        assert_eq!(super::fragments(&root), fragments.map(remove));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes_are_a_record_or_a_sentence(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = load(&machine(&bytes), record().address());
        }
    }
}
