//! A reason why Adit may not take a controller.

use serde::Serialize;

use crate::human::printable;

/// A reason against taking a controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Obstacle {
    pub(crate) kind: ObstacleKind,
    /// A phrase such as `nvme0n1p2 is mounted at / (ext4)`.
    pub(crate) reason: String,
    /// How to remove it.
    pub(crate) remedy: String,
}

/// The kinds of obstacles, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ObstacleKind {
    /// Mounted, used for swap, held by another block device, or open.
    InUse,
    /// It has a signature, which `--force-erase-signature` would erase.
    Signature,
    /// Its contents could not be inspected (no rights, no `wipefs`).
    Unknown,
    /// The kernel cannot show its contents: no driver, no namespace, an unsupported format.
    Unseen,
    /// No IOMMU is in use.
    NoIommu,
    /// Other devices of its group have drivers.
    Group,
    /// It is behind Intel's VMD.
    Vmd,
    /// Another tool's `driver_override`, or a driver that is neither the kernel's nvme nor vfio-pci.
    Foreign,
}

impl Obstacle {
    /// Creates one whose words fit on a line of a terminal.
    pub(super) fn new(
        kind: ObstacleKind,
        reason: impl ToString,
        remedy: impl ToString,
    ) -> Obstacle {
        let words = |text: &dyn ToString| printable(&text.to_string());
        Obstacle { kind, reason: words(&reason), remedy: words(&remedy) }
    }
}
