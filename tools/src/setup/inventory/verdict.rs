//! May Adit take this controller? Each reason why not, with what to do about it.

use serde::Serialize;

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

/// The kinds of reasons.
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
