//! One emulated NVMe controller: parses `OPTS[;NSOPTS…]` and produces the QEMU devices.
//!
//! Options pass to QEMU unchanged, which reports unknown ones; this module does not check them. Missing ones
//! are filled in (serial number, id, PCI slot, image files). Every namespace is an explicit `nvme-ns` device,
//! because QEMU's short form (`nvme,drive=…`) leaves the limits of the Copy command at zero.

use crate::failure::{Failure, Result};
use std::path::Path;

/// A controller's place on the guest's PCI bus.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A known address.
    Fixed(String),
    /// Behind a bridge, whose bus number only the guest knows: the next unclaimed NVMe function in PCI order.
    NextInOrder,
}

/// The driver of a controller in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// vfio-pci (`--nvme`).
    Vfio,
    /// The kernel's nvme driver (`--kernel-nvme`).
    Kernel,
}

impl Driver {
    /// Returns the prefix of id and serial number, the first PCI slot and the number of slots.
    fn place(self) -> (&'static str, u8, usize) {
        match self {
            Driver::Vfio => ("nvme", 0x10, 8),
            Driver::Kernel => ("kernel", 0x18, 6),
        }
    }
}

/// A controller requested on the command line.
#[derive(Debug)]
pub(crate) struct Controller {
    id: String,
    options: String,
    namespaces: Vec<String>,
    address: Address,
}

impl Controller {
    /// Parses the `index`-th `--nvme` or `--kernel-nvme`.
    pub(crate) fn parse(text: &str, driver: Driver, index: usize) -> Result<Self> {
        let (prefix, first_slot, slots) = driver.place();
        if index >= slots {
            return Err(Failure::usage(format!(
                "at most {slots} controllers can have the {driver:?} driver"
            )));
        }
        let (given, namespaces) =
            text.split_once(';').map_or((text, None), |(given, rest)| (given, Some(rest)));
        let id = option(given, "id").map_or_else(|| format!("{prefix}{index}"), str::to_owned);
        let mut options = vec![format!("id={id}")];
        if option(given, "serial").is_none() {
            options.push(format!("serial={prefix}{index}"));
        }
        let slot = usize::from(first_slot) + index;
        let address = place(given, slot)?;
        if option(given, "bus").is_none() && option(given, "addr").is_none() {
            options.push(format!("addr={slot:#x}"));
        }
        let kept = given.split(',').filter(|part| !part.is_empty() && !part.starts_with("id="));
        options.extend(kept.map(str::to_owned));
        Ok(Self {
            id,
            options: options.join(","),
            namespaces: namespace_list(given, namespaces),
            address,
        })
    }

    /// Returns where the guest finds it.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Adds this controller and its namespaces to QEMU's arguments. `new_image` creates an empty image file.
    pub(crate) fn add_to(
        &self,
        arguments: &mut Vec<String>,
        mut new_image: impl FnMut(&str) -> Result<std::path::PathBuf>,
    ) -> Result<()> {
        arguments.extend(["-device".into(), format!("nvme,{}", self.options)]);
        for (index, given) in self.namespaces.iter().enumerate() {
            let mut options = String::new();
            if option(given, "drive").is_none() {
                let name = format!("{}-ns{index}", self.id);
                arguments.extend(["-drive".into(), drive(&name, &new_image(&name)?)]);
                options.push_str(&format!(",drive={name}"));
            }
            if option(given, "bus").is_none() {
                options.push_str(&format!(",bus={}", self.id));
            }
            if !given.is_empty() {
                options.push_str(&format!(",{given}"));
            }
            arguments.extend(["-device".into(), format!("nvme-ns{options}")]);
        }
        Ok(())
    }
}

/// Returns the value of `key` in QEMU's comma-separated options.
fn option<'a>(options: &'a str, key: &str) -> Option<&'a str> {
    options.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='))
}

fn place(options: &str, slot: usize) -> Result<Address> {
    if option(options, "bus").is_some() {
        return Ok(Address::NextInOrder);
    }
    let Some(given) = option(options, "addr") else {
        return Ok(Address::Fixed(format!("0000:00:{slot:02x}.0")));
    };
    let (slot, function) = given.split_once('.').unwrap_or((given, "0"));
    let hex = |text: &str| u8::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    match (hex(slot), hex(function)) {
        (Some(slot @ 0..=31), Some(function @ 0..=7)) => {
            Ok(Address::Fixed(format!("0000:00:{slot:02x}.{function}")))
        }
        _ => Err(Failure::usage(format!(
            "addr={given} is not a PCI slot (0 to 1f) with an optional function (.0 to .7)"
        ))),
    }
}

/// Returns one namespace by default; none for `none`, or if the controller names its own drive.
fn namespace_list(options: &str, given: Option<&str>) -> Vec<String> {
    match given {
        None if option(options, "drive").is_some() => Vec::new(),
        None => vec![String::new()],
        Some("none") => Vec::new(),
        Some(list) => list.split(';').map(str::to_owned).collect(),
    }
}

/// Formats a drive with `cache=unsafe`: the image is deleted with the guest, so nothing needs to reach the
/// host's disk.
fn drive(name: &str, image: &Path) -> String {
    let file = image.to_string_lossy().replace(',', ",,");
    format!("file={file},if=none,id={name},format=raw,cache=unsafe")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn arguments(text: &str) -> Vec<String> {
        let controller = Controller::parse(text, Driver::Vfio, 0).unwrap();
        let mut arguments = Vec::new();
        controller
            .add_to(&mut arguments, |name| Ok(PathBuf::from(format!("/t/{name}.img"))))
            .unwrap();
        arguments
    }

    #[test]
    fn an_empty_text_is_a_plain_controller_with_one_namespace() {
        assert_eq!(
            arguments(""),
            [
                "-device",
                "nvme,id=nvme0,serial=nvme0,addr=0x10",
                "-drive",
                "file=/t/nvme0-ns0.img,if=none,id=nvme0-ns0,format=raw,cache=unsafe",
                "-device",
                "nvme-ns,drive=nvme0-ns0,bus=nvme0",
            ]
        );
    }

    #[test]
    fn options_pass_through_and_each_namespace_gets_an_image() {
        let arguments = arguments(
            "mdts=5,cmb_size_mb=64;nsid=1;logical_block_size=4096,physical_block_size=4096",
        );
        assert_eq!(arguments[1], "nvme,id=nvme0,serial=nvme0,addr=0x10,mdts=5,cmb_size_mb=64");
        assert_eq!(arguments[5], "nvme-ns,drive=nvme0-ns0,bus=nvme0,nsid=1");
        let last =
            "nvme-ns,drive=nvme0-ns1,bus=nvme0,logical_block_size=4096,physical_block_size=4096";
        assert_eq!(arguments[9], last);
    }

    #[test]
    fn what_the_person_gives_is_not_given_twice() {
        let arguments = arguments("id=x,serial=abc,addr=5;drive=mine,bus=other");
        assert_eq!(
            arguments,
            ["-device", "nvme,id=x,serial=abc,addr=5", "-device", "nvme-ns,drive=mine,bus=other"]
        );
    }

    #[test]
    fn a_controller_may_have_no_namespace() {
        assert_eq!(arguments("mdts=7;none").len(), 2);
        assert_eq!(arguments("drive=mine").len(), 2);
    }

    #[test]
    fn addresses_follow_the_options() {
        let address = |text, index| Controller::parse(text, Driver::Kernel, index).unwrap().address;
        assert_eq!(address("", 1), Address::Fixed("0000:00:19.0".into()));
        assert_eq!(address("addr=0x12.1", 0), Address::Fixed("0000:00:12.1".into()));
        assert_eq!(address("addr=1a", 0), Address::Fixed("0000:00:1a.0".into()));
        assert_eq!(address("bus=rp0", 0), Address::NextInOrder);
    }

    #[test]
    fn an_impossible_slot_or_too_many_controllers_are_usage_errors() {
        assert_eq!(Controller::parse("addr=zz", Driver::Vfio, 0).unwrap_err().code(), 2);
        assert_eq!(Controller::parse("addr=20", Driver::Vfio, 0).unwrap_err().code(), 2);
        assert_eq!(Controller::parse("", Driver::Vfio, 8).unwrap_err().code(), 2);
    }
}
