//! Signatures of a drive that nothing uses, erased by `wipefs` with a copy of each kept.
//!
//! The copies go into a directory of their own for each erasing (`wipefs` names them after the block device, which may be
//! another drive's name tomorrow), beside a file that says whose they are and how each is put back. `wipefs` opens what
//! it erases exclusively: what came into use since it was looked at, it refuses.

use std::fmt::Write;

use super::take;
use crate::change::Change;
use crate::failure::Result;
use crate::human::{printable, shell_word};
use crate::inventory::{Function, Namespace, ObstacleKind, Signature};
use crate::operation::Operation;
use crate::record::STATE;
use crate::root::Root;

/// Erases all signatures of `function`'s namespaces: a namespace's partitions first, as their numbers go with its table.
///
/// # Errors
/// When `wipefs` refuses: it says why.
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
    take::step(operation, Change::File { path, content, mode: 0o600 })?;
    for device in marked.iter().flat_map(|(_, devices)| devices) {
        // The program puts its copies into the home directory.
        let words = [
            format!("HOME={directory}"),
            "wipefs".into(),
            "--all".into(),
            "--backup".into(),
            format!("/dev/{device}"),
        ];
        take::step(operation, Change::Run { program: "env".into(), arguments: words.into() })?;
    }
    operation.say(format!(
        "{}: a copy of each signature goes to {directory}; the README there says how to put it back",
        function.bdf
    ))
}

/// What the person must know of a drive whose contents cannot be seen, and which is taken on his word.
pub(super) fn warning(function: &Function) -> Option<String> {
    let unseen = function.obstacles.iter().find(|found| found.kind == ObstacleKind::Unseen)?;
    Some(format!(
        "warning: {}: {}; so nothing of that is erased and no copy kept",
        function.bdf, unseen.reason
    ))
}

/// Whether there is anything to erase.
pub(super) fn is_needed(function: &Function) -> bool {
    function.namespaces.iter().any(|namespace| !marked(namespace).is_empty())
}

/// The block devices with signatures: partitions, then the namespace.
fn marked(namespace: &Namespace) -> Vec<&str> {
    let signatures = namespace.signatures.as_deref().unwrap_or_default();
    let devices = namespace.partitions.iter().chain([&namespace.name]).map(String::as_str);
    devices.filter(|device| signatures.iter().any(|found| found.device == **device)).collect()
}

/// A directory that no earlier erasing has used.
fn directory(root: &Root, bdf: &str) -> String {
    let taken = root.names(format!("{STATE}/erased"));
    let mut names = (1u32..).map(|number| format!("{bdf}-{number}"));
    let name = names.find(|name| !taken.contains(name)).expect("numbers do not run out");
    format!("{STATE}/erased/{name}")
}

/// The text beside the copies. It is for a shell of root's: a line is a comment or a command of ours, whatever the drive
/// calls itself.
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
        // The namespace's own first: its partitions come back with its table.
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

/// The command that puts one signature back.
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

    /// A drive whose model, label and type of signature were chosen to be read by root.
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
        let inventory = Inventory::read(&Root::recorded(HOSTILE));
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
