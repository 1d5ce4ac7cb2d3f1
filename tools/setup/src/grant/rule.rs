//! The two files that grant a device to a user: a udev rule for the device, valid for this boot, and a drop-in
//! of limits.d for the user.
//!
//! The rule makes the user the owner of the file of the device's IOMMU group whenever it is created, and of the
//! device's own file in kernels with iommufd. The files are found by name, and the rule names the owner, so
//! grants can be revoked without a record.

use std::path::PathBuf;

use adit_driver::bus::pci::PciAddress;

use crate::change::Change;
use crate::names::is_user;
use adit_guard::root::Root;

/// Rules that end with the boot (udev(7)), because at the next boot another drive may have the address. Binding
/// at boot grants again after it has found the drive by its serial number.
const RULES: &str = "/run/udev/rules.d";
/// Prefix of our rules: after the distribution's, which set defaults.
const PREFIX: &str = "90-adit-";
/// The command of each rule, up to the user's name.
const CHOWN: &str = "RUN+=\"/bin/chown ";

/// Returns the path of a device's rule.
pub(super) fn path(address: PciAddress) -> PathBuf {
    format!("{RULES}/{PREFIX}{address}.rules").into()
}

/// Returns the path of a user's drop-in.
pub(super) fn limits_path(user: &str) -> PathBuf {
    format!("/etc/security/limits.d/{PREFIX}{user}.conf").into()
}

/// Returns the change that writes the rule; `user` must be [plain](is_user).
pub(super) fn written(address: PciAddress, user: &str) -> Change {
    // Neither form needs the group's number. `%k` is the name in /sys/class/vfio, which is that number; a group
    // without an IOMMU has another name there, and stays root's.
    let content = format!(
        "# Written by 'adit setup grant': {user} may open {address}.\n\
         # 'adit setup revoke {address}' removes it.\n\
         # By chown, as some versions of udev ignore OWNER= for users who are not the system's own.\n\
         SUBSYSTEM==\"vfio\", ACTION==\"add\", TEST==\"/sys/kernel/iommu_groups/%k/devices/{address}\", \
         MODE=\"0600\", {CHOWN}{user} $devnode\"\n\
         SUBSYSTEM==\"vfio-dev\", ACTION==\"add\", KERNELS==\"{address}\", \
         MODE=\"0600\", {CHOWN}{user} $devnode\"\n"
    );
    Change::file(path(address), content)
}

/// Returns the change that writes the drop-in.
pub(super) fn limits_written(user: &str) -> Change {
    let content = format!(
        "# Written by 'adit setup grant': {user} may lock memory, as DMA needs, from the next login on.\n\
         # 'adit setup revoke' removes it with the last of {user}'s devices.\n\
         {user} - memlock unlimited\n"
    );
    Change::file(limits_path(user), content)
}

/// Returns a device's owner according to its rule; `None` without a rule or with a modified one.
pub(super) fn holder(root: &Root, address: PciAddress) -> Option<String> {
    let text = root.text(path(address))?;
    let (_, rest) = text.split_once(CHOWN)?;
    let (name, _) = rest.split_once(' ')?;
    is_user(name).then(|| name.to_owned())
}

pub(super) fn devices(root: &Root) -> Vec<PciAddress> {
    let names = root.names(RULES);
    let address = |name: &String| name.strip_prefix(PREFIX)?.strip_suffix(".rules")?.parse().ok();
    names.iter().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address() -> PciAddress {
        "0000:01:00.0".parse().expect("an address")
    }

    /// A machine with these bytes as the rule of [`address`].
    fn machine(rule: &[u8]) -> Root {
        let root = Root::recorded("/run/udev/rules.d/").expect("a recording");
        std::fs::write(root.path(path(address())), rule).expect("written");
        root
    }

    #[test]
    fn a_rule_says_whose_it_is_and_what_it_matches() {
        let Change::File { content, .. } = written(address(), "alice") else { panic!("a file") };
        assert_eq!(holder(&machine(content.as_bytes()), address()).as_deref(), Some("alice"));
        let rules: Vec<&str> = content.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            rules,
            [
                "SUBSYSTEM==\"vfio\", ACTION==\"add\", \
                 TEST==\"/sys/kernel/iommu_groups/%k/devices/0000:01:00.0\", MODE=\"0600\", \
                 RUN+=\"/bin/chown alice $devnode\"",
                "SUBSYSTEM==\"vfio-dev\", ACTION==\"add\", KERNELS==\"0000:01:00.0\", MODE=\"0600\", \
                 RUN+=\"/bin/chown alice $devnode\"",
            ]
        );
    }

    #[test]
    fn only_our_own_rules_are_found() {
        let root = Root::recorded(
            "/run/udev/rules.d/90-adit-0000:01:00.0.rules = x\n\
             /run/udev/rules.d/90-adit-0000:02:00.0.rules.new = x\n\
             /run/udev/rules.d/90-adit-x.rules = x\n\
             /run/udev/rules.d/70-0000:03:00.0.rules = x\n",
        )
        .expect("a recording");
        assert_eq!(devices(&root), [address()]);
        assert_eq!(holder(&root, address()), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn of_any_bytes_the_holder_has_a_plain_name(
            start in "(RUN\\+=\"/bin/chown )?", rest in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let root = machine(&[start.as_bytes(), &rest].concat());
            prop_assert!(holder(&root, address()).is_none_or(|name| is_user(&name)));
        }
    }
}
