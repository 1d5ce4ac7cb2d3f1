//! Erases the signatures of unused drives with `wipefs`, keeping a copy of each.
//!
//! Each run puts its copies into a directory of its own, because `wipefs` names them after the block device, a
//! name that may later refer to another drive. A file beside them tells whose they are and how to restore them.
//! `wipefs` opens the device exclusively, so it refuses devices that came into use meanwhile.

use std::fmt::Write;

use crate::change::Change;
use crate::failure::Result;
use crate::human::{printable, shell_word};
use crate::inventory::{Function, Namespace, ObstacleKind};
use crate::operation::Operation;
use crate::record::STATE;
use adit_guard::disk::Signature;
use adit_guard::root::Root;

/// Erases all signatures of `function`'s namespaces. A namespace's partitions come first, because erasing its
/// table removes them.
///
/// # Errors
/// When `wipefs` refuses; gives its reason.
pub(super) fn erase(
    operation: &mut Operation,
    function: &Function,
    copies: &mut Vec<String>,
) -> Result<()> {
    let marked: Vec<(&Namespace, Vec<&str>)> =
        function.namespaces.iter().map(|namespace| (namespace, marked(namespace))).collect();
    if marked.iter().all(|(_, devices)| devices.is_empty()) {
        return Ok(());
    }
    let directory = directory(operation.root, &function.bdf);
    copies.push(directory.clone());
    let path = format!("{directory}/README").into();
    let content = readme(function, &directory);
    operation.step(Change::File { path, content, mode: 0o600 })?;
    for device in marked.iter().flat_map(|(_, devices)| devices) {
        // wipefs puts its copies into the home directory.
        let (home, device) = (format!("HOME={directory}"), format!("/dev/{device}"));
        let words = [&*home, "wipefs", "--all", "--backup", &device];
        operation.step(Change::run("env", &words))?;
    }
    operation.say(format!(
        "{}: a copy of each signature goes to {directory}; the README there says how to put it back",
        function.bdf
    ))
}

/// Returns a warning about a drive that is taken although its contents are not visible.
pub(super) fn warning(function: &Function) -> Option<String> {
    let unseen = function.obstacles.iter().find(|found| found.kind == ObstacleKind::Unseen)?;
    Some(format!(
        "warning: {}: {}; so nothing of that is erased and no copy kept",
        function.bdf, unseen.reason
    ))
}

/// Returns whether there is anything to erase.
pub(super) fn is_needed(function: &Function) -> bool {
    function.namespaces.iter().any(|namespace| !marked(namespace).is_empty())
}

/// Returns the block devices with signatures: partitions, then the namespace.
fn marked(namespace: &Namespace) -> Vec<&str> {
    let signatures = namespace.signatures.as_deref().unwrap_or_default();
    let devices = namespace.partitions.iter().chain([&namespace.name]).map(String::as_str);
    devices.filter(|device| signatures.iter().any(|found| found.device == **device)).collect()
}

/// Returns a directory that no earlier run has used.
fn directory(root: &Root, bdf: &str) -> String {
    let taken = root.names(format!("{STATE}/erased"));
    let mut names = (1u32..).map(|number| format!("{bdf}-{number}"));
    let name = names.find(|name| !taken.contains(name)).expect("numbers do not run out");
    format!("{STATE}/erased/{name}")
}

/// Returns the text beside the copies. Root may run it in a shell, so each line is a comment or one of our
/// commands, whatever strings the drive contains.
fn readme(function: &Function, directory: &str) -> String {
    let told = |text: &Option<String>| printable(text.as_deref().unwrap_or("unknown"));
    let mut text = format!(
        "# Signatures that 'adit setup bind --force-erase-signature' erased from {}: model {}, serial number {}.\n\
         # To put them back, once the kernel's driver has the drive and it has the same name (see lsblk); each copy's\n\
         # name ends in the place where it belongs, also of copies that are not listed here:\n\n",
        function.bdf,
        told(&function.model),
        told(&function.serial),
    );
    for namespace in &function.namespaces {
        // The namespace's own signatures first: restoring its table restores its partitions.
        for device in marked(namespace).iter().rev() {
            let signatures = namespace.signatures.iter().flatten();
            signatures
                .filter(|found| found.device == **device)
                .for_each(|found| text += &remedy(found, directory));
            if **device == namespace.name && !namespace.partitions.is_empty() {
                writeln!(text, "blockdev --rereadpt {}", shell_word(&format!("/dev/{device}")))
                    .expect("a string takes everything");
            }
        }
    }
    text
}

/// Returns the command that restores one signature.
fn remedy(signature: &Signature, directory: &str) -> String {
    let Signature { device, offset, kind, .. } = signature;
    format!(
        "dd {} {} bs=1 seek={offset} conv=notrunc  # {}\n",
        shell_word(&format!("if={directory}/wipefs-{device}-0x{offset:08x}.bak")),
        shell_word(&format!("of=/dev/{device}")),
        printable(kind)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;

    /// A drive whose model, label and type of signature try to inject text into a root shell.
    const HOSTILE: &str = "\
/sys/bus/pci/devices/0000:01:00.0/class = 0x010802
/sys/bus/pci/devices/0000:01:00.0/driver -> ../../drivers/nvme
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/model:
    Disk
    dd if=/dev/zero of=/dev/sda  \u{1b}[8m
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/serial:
    S1
    reboot
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/state = live
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/nvme0n1/size = 8000
/sys/bus/pci/devices/0000:01:00.0/nvme/nvme0/nvme0n1/dev = 259:0
/sys/class/block/nvme0n1 -> ../../bus/pci/devices/0000:01:00.0/nvme/nvme0/nvme0n1
/recorded/wipefs/nvme0n1 = {\"signatures\": [{\"device\": \"nvme0n1\", \"offset\": \"0x438\", \"type\": \"ext4\\nreboot\", \"uuid\": null, \"label\": null, \"usage\": \"filesystem\"}]}
";

    #[test]
    fn every_line_of_the_readme_is_a_comment_or_puts_something_back() {
        let inventory = Inventory::read(&Root::recorded(HOSTILE).expect("a recording"));
        let function = &inventory.controllers[0];
        assert!(function.model.as_ref().is_some_and(|model| model.contains('\n')), "not hostile");
        let text = readme(function, "/var/lib/adit/a b");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let commands: Vec<&str> =
            text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        assert_eq!(
            commands,
            [
                "dd 'if=/var/lib/adit/a b/wipefs-nvme0n1-0x00000438.bak' of=/dev/nvme0n1 bs=1 seek=1080 conv=notrunc  # \
              ext4?reboot"
            ]
        );
    }
}
