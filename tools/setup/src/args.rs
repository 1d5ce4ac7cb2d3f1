//! The command line of `adit setup`.

use std::path::PathBuf;

use adit_driver::bus::pci::PciAddress;
use clap::{Args, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  What there is, what uses it, and what Adit may take:
    adit setup status
  Hand a drive to user space, for a user who is not root:
    sudo adit setup bind 0000:01:00.0 --user $USER
  What a command would do:
    adit setup bind 0000:01:00.0 --dry-run
  Give everything back:
    sudo adit setup restore
  Why does it not work?
    adit setup doctor 0000:01:00.0";

/// Hands NVMe drives to user space safely, and gives them back
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct SetupArgs {
    #[command(subcommand)]
    pub(super) command: SetupCommand,

    /// Inspects another machine: a directory with its /sys, /proc, …, or a file written by 'status --record'
    #[arg(long, global = true, value_name = "PATH")]
    pub(super) sysroot: Option<PathBuf>,

    /// Prints JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
}

#[derive(Subcommand, Clone, Debug)]
pub(super) enum SetupCommand {
    Status(StatusArgs),
    Bind(BindArgs),
    Unbind(UnbindArgs),
    Restore(RestoreArgs),
    Grant(GrantArgs),
    Revoke(RevokeArgs),
    Hugepages(HugepagesArgs),
    Doctor(DoctorArgs),
    /// Prints what binds the recorded devices at each boot (a systemd unit); changes nothing
    #[command(after_help = "\
The lines are a shell script: root may run it, or put the parts where they belong. At boot each device is checked \
again before it is taken: same serial number, not in use, no signature.

Examples:
  adit setup persist
  adit setup persist | sudo sh")]
    Persist,
}

/// Options of every command that makes changes.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct ChangeArgs {
    /// Only prints what would be done
    #[arg(long)]
    pub(super) dry_run: bool,
}

/// Shows every NVMe controller, what uses it, whether Adit may take it, and the host
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  adit setup status
  adit setup status --json
  Everything this command looked at, in a file for '--sysroot' or a bug report:
    sudo adit setup status --record host.tree")]
pub(super) struct StatusArgs {
    /// Also writes everything that was read to FILE (including model and serial numbers)
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
}

/// Takes idle drives from the kernel's driver and gives them to vfio-pci
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Refused is what is mounted, part of an array or volume, swapped to, open, or carries a file system's, RAID's or \
partition table's signature. What the device was before is recorded first; 'adit setup restore' brings it back.

Examples:
  sudo adit setup bind 0000:01:00.0
  sudo adit setup bind 0000:01:00.0 0000:02:00.0 --user $USER
  adit setup bind 0000:01:00.0 --dry-run")]
pub(super) struct BindArgs {
    /// PCI addresses, as 'adit setup status' lists them
    #[arg(value_name = "BDF", required_unless_present = "recorded")]
    pub(super) devices: Vec<PciAddress>,

    /// Binds the recorded devices again after a reboot, as the unit of 'adit setup persist' does
    #[arg(long, conflicts_with = "devices")]
    pub(super) recorded: bool,

    /// Also lets this user open the devices, as 'adit setup grant' does
    #[arg(long, value_name = "NAME")]
    pub(super) user: Option<String>,

    /// Accepts that the user can also open other devices of the IOMMU group that vfio-pci has
    #[arg(long)]
    pub(super) with_group: bool,

    /// Erases signatures of an unused drive (a copy of each is kept below /var/lib/adit/setup)
    #[arg(long)]
    pub(super) force_erase_signature: bool,

    /// Binds without an IOMMU, for programs other than adit: the device can then read and write all memory of the machine
    #[arg(long)]
    pub(super) unsafe_no_iommu: bool,

    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Gives drives back to the driver they had before
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sudo adit setup unbind 0000:01:00.0
  sudo adit setup unbind --all")]
pub(super) struct UnbindArgs {
    /// PCI addresses of bound devices
    #[arg(value_name = "BDF", required_unless_present = "all")]
    pub(super) devices: Vec<PciAddress>,

    /// All recorded devices
    #[arg(long, conflicts_with = "devices")]
    pub(super) all: bool,

    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Undoes all changes to drives and rules; completes interrupted runs
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sudo adit setup restore
  sudo adit setup restore --dry-run")]
pub(super) struct RestoreArgs {
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Lets a user who is not root open a bound device and lock memory for it
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
A udev rule gives the user the file of the device's IOMMU group, a drop-in of limits.d the right to lock memory \
(from the next login on). Both are shown before they are written, and removed by 'adit setup revoke'. The file opens \
every device of the group that vfio-pci has: where one of those was granted to none, this is refused without \
--with-group.

Example:
  sudo adit setup grant 0000:01:00.0 --user $USER")]
pub(super) struct GrantArgs {
    /// The device's PCI address
    #[arg(value_name = "BDF")]
    pub(super) device: PciAddress,

    /// The user
    #[arg(long, value_name = "NAME")]
    pub(super) user: String,

    /// Accepts that the user can also open other devices of the IOMMU group that vfio-pci has
    #[arg(long)]
    pub(super) with_group: bool,

    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Revokes what 'adit setup grant' granted
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  sudo adit setup revoke 0000:01:00.0")]
pub(super) struct RevokeArgs {
    /// The device's PCI address
    #[arg(value_name = "BDF")]
    pub(super) device: PciAddress,

    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// x86-64's sizes of hugepages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PageSize {
    /// 2 MiB
    #[value(name = "2M")]
    Mebi2,
    /// 1 GiB
    #[value(name = "1G")]
    Gibi1,
}

/// Prints what allocates hugepages, now and at each boot; changes nothing
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The lines are a shell script: root may run it, or put the parts where they belong. More pages than memory allows are \
refused.

Examples:
  adit setup hugepages --bytes 4G --node 0
  adit setup hugepages --size 1G --count 8 --persist
  adit setup hugepages --bytes 4G | sudo sh")]
pub(super) struct HugepagesArgs {
    /// Size of a page
    #[arg(long, value_enum, ignore_case = true, default_value = "2M")]
    pub(super) size: PageSize,

    /// Number of pages to allocate
    #[arg(long, value_name = "N", value_parser = crate::units::count, required_unless_present = "bytes", conflicts_with = "bytes")]
    pub(super) count: Option<u64>,

    /// Number of bytes to allocate, such as 512M or 4G; rounded up to whole pages
    #[arg(long, value_name = "B", value_parser = crate::units::block_bytes)]
    pub(super) bytes: Option<u64>,

    /// NUMA node; by default the kernel spreads pages over all nodes
    #[arg(long, value_name = "K")]
    pub(super) node: Option<u32>,

    /// Also prints the file that allocates them at each boot (by tmpfiles.d)
    #[arg(long)]
    pub(super) persist: bool,
}

/// Walks the whole chain from the firmware to one read, and names the first broken link with its remedy
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Nothing is changed. A device that is bound and not in use is opened, identified, and one LBA is read.

Examples:
  adit setup doctor
  adit setup doctor 0000:01:00.0 --json")]
pub(super) struct DoctorArgs {
    /// The device to check; by default all bound devices
    #[arg(value_name = "BDF")]
    pub(super) device: Option<PciAddress>,
}
